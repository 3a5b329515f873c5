"""The repository keeps every house rule. Each rule is a function in `rules/` that says why it is there."""

import inspect
from collections.abc import Callable, Iterable, Sequence

import pytest
from tests.tidy.rules import (
    calls,
    dead_modules,
    dead_names,
    documents,
    imports,
    labels,
    leader_checks,
    lengths,
    membership,
    names,
    order,
    structs,
    words,
)
from tests.tidy.source import Source, all_files, python_files

Rule = Callable[[Sequence[Source]], list[str]]

OWN_FILES = "tests/tidy/"


def others(sources: Iterable[Source]) -> tuple[Source, ...]:
    return tuple(source for source in sources if not source.path.startswith(OWN_FILES))


def keeps(rule: Rule, sources: Sequence[Source]) -> None:
    complaints = rule(sources)
    assert not complaints, "\n".join(["", *complaints, "", inspect.getdoc(rule) or ""])


def named(rule: Rule) -> str:
    return rule.__name__


PYTHON_RULES = (lengths, names, imports, calls, order, structs, dead_names, leader_checks, membership)


@pytest.mark.parametrize("rule", [rule for module in PYTHON_RULES for rule in module.RULES], ids=named)
def test_python_files_keep(rule: Rule) -> None:
    keeps(rule, python_files())


@pytest.mark.parametrize("rule", [*words.RULES, *labels.RULES], ids=named)
def test_texts_keep(rule: Rule) -> None:
    keeps(rule, others(all_files()))


@pytest.mark.parametrize("rule", [*dead_modules.RULES, *documents.RULES], ids=named)
def test_the_whole_keeps(rule: Rule) -> None:
    keeps(rule, all_files())


def test_the_table_of_long_places_only_shrinks() -> None:
    assert len(lengths.EXCEPTIONS) <= lengths.EXCEPTIONS_MAX


def test_allowed_places_are_there() -> None:
    """An exception for a file that is gone would silently apply to a new file of that name."""
    paths = [source.path for source in all_files()]
    for place in (*calls.OUTSIDE_ALLOWED, *calls.UNOWNED_TASKS_ALLOWED):
        assert any(path.startswith(place) for path in paths), place
