"""The table of codes is total, and no code promises what the error does not."""

import importlib
import itertools
import pkgutil
from collections.abc import Iterator

import pytest

import ebla
from ebla.model import errors
from ebla.model.error_codes import CODES, CODES_BY_OUTCOME, CqlCode, as_read_error, codes_of
from ebla.model.errors import EblaError, Fault, Outcome, WriteFailed

NOT_EXECUTED = (
    CqlCode.UNAVAILABLE,
    CqlCode.OVERLOADED,
    CqlCode.IS_BOOTSTRAPPING,
    CqlCode.INVALID,
    CqlCode.ALREADY_EXISTS,
    CqlCode.SYNTAX_ERROR,
    CqlCode.CONFIG_ERROR,
    CqlCode.UNPREPARED,
    CqlCode.PROTOCOL_ERROR,
    CqlCode.BAD_CREDENTIALS,
    CqlCode.UNAUTHORIZED,
)
"""Codes that drivers take to mean that nothing was executed."""


def tree(root: type[EblaError]) -> Iterator[type[EblaError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def whole_tree() -> list[type[EblaError]]:
    """Also the errors that other packages derive: all of ours is imported, but entry points."""
    for module in pkgutil.walk_packages(ebla.__path__, "ebla."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in tree(EblaError) if kind.__module__.startswith("ebla.")]


def test_every_error_of_the_tree_has_a_row() -> None:
    found = [kind for name, kind in vars(errors).items() if not name.startswith("_")]
    named = [kind for kind in found if isinstance(kind, type) and issubclass(kind, EblaError)]
    assert set(named) == set(CODES)


def test_every_outcome_and_fault_has_a_row() -> None:
    assert set(CODES_BY_OUTCOME) == set(itertools.product(Outcome, Fault))


def test_a_code_that_says_nothing_happened_is_only_for_errors_that_know_so() -> None:
    kinds = whole_tree()
    assert len(kinds) >= len(CODES)
    for kind in kinds:
        codes = codes_of(kind)
        if kind.outcome is Outcome.UNKNOWN:
            assert codes.cql_read not in NOT_EXECUTED, kind
            assert codes.cql_write not in NOT_EXECUTED, kind
            assert codes.rest not in (400, 409, 413, 503), kind


def test_the_fault_is_told_by_the_class_of_the_status() -> None:
    for kind in whole_tree():
        of_caller = 400 <= codes_of(kind).rest < 500
        assert of_caller == (kind.fault is Fault.CALLER) or kind.outcome is Outcome.UNKNOWN, kind


def test_reads_and_writes_are_told_apart_where_cql_does() -> None:
    assert codes_of(errors.DeadlineExceeded).cql_read is CqlCode.READ_TIMEOUT
    assert codes_of(errors.DeadlineExceeded).cql_write is CqlCode.WRITE_TIMEOUT


def test_a_derived_error_has_the_code_of_its_ancestor() -> None:
    class LockStale(errors.Stale):
        pass

    assert codes_of(LockStale) == CODES[errors.Stale]


@pytest.mark.parametrize(("outcome", "fault"), list(itertools.product(Outcome, Fault)))
def test_a_derived_error_with_another_outcome_has_not(outcome: Outcome, fault: Fault) -> None:
    changed = type("Changed", (errors.Refused,), {"outcome": outcome, "fault": fault})
    same = (outcome, fault) == (errors.Refused.outcome, errors.Refused.fault)
    assert codes_of(changed) == (CODES[errors.Refused] if same else CODES_BY_OUTCOME[outcome, fault])


@pytest.mark.parametrize("kind", [kind for kind in CODES if kind is not EblaError])
def test_a_failed_read_has_never_the_code_of_a_write(kind: type[EblaError]) -> None:
    error = as_read_error(kind("it failed", advice="try again"))
    codes = codes_of(type(error))
    assert codes.cql_read is codes_of(kind).cql_read
    assert codes.cql_read not in (CqlCode.WRITE_FAILURE, CqlCode.WRITE_TIMEOUT) or issubclass(kind, WriteFailed)
    assert (error.message, error.advice) == ("it failed", "try again")
