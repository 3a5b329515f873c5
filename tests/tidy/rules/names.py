"""Names that say nothing, or mean two things."""

import ast
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.tidy.source import Source

BANNED_WORDS = ("util", "utils", "helper", "helpers", "common", "manager", "managers", "handler", "handlers", "misc")


SHARED_NAMES = {"Entry": "of Raft's log and of the settings: the field's word for both, in packages that never meet"}
"""Class names that two modules of the product may have, with the reason."""


PRIVATE_WORDS = {
    "wish": "request, spec",
    "wishes": "requests",
    "desk": "service",
    "door": "client, server",
    "doors": "clients",
    "surroundings": "environment",
    "chance": "rng",
    "told": "notified, reported",
    "whoever": "the thing itself",
    "anew": "again",
    "fold": "compact",
    "folds": "compactions",
    "folding": "compaction",
    "folded": "compacted",
}
"""Words of a private vocabulary, with the field's words. `docs/decisions/0008-names.md` has the whole table."""


def private_words(sources: Iterable[Source]) -> list[str]:
    """A reader who knows Cassandra, Scylla, etcd or Spark cannot search for a private word. `docs/glossary.md` has the
    words to use."""
    complaints = []
    for source in sources:
        if source.path.startswith("tests/"):
            continue
        for node in ast.walk(source.tree):
            for word in _words_of(_defined_name(node)):
                if word in PRIVATE_WORDS:
                    line = getattr(node, "lineno", 1)
                    complaints.append(source.complaint(line, f"{word!r}: say {PRIVATE_WORDS[word]}"))
    return complaints


def _defined_name(node: ast.AST) -> str:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case _:
            return ""


def empty_names(sources: Iterable[Source]) -> list[str]:
    """A module called `utils` collects what fits nowhere else, and a class that manages or handles could do anything.
    The right name says what the thing knows or decides."""
    complaints = []
    for source in sources:
        named = [(1, part) for part in PurePosixPath(source.path).with_suffix("").parts]
        named += [(node.lineno, node.name) for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
        complaints += [source.complaint(line, f"{name!r} says nothing") for line, name in named if _says_nothing(name)]
    return complaints


def repeated_classes(sources: Iterable[Source]) -> list[str]:
    """A public class name that exists in two modules of the product makes every search, import and conversation
    ambiguous. Choose a more specific name."""
    places: dict[str, list[str]] = {}
    for source in sources:
        if source.is_product:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in SHARED_NAMES:
                    places.setdefault(node.name, []).append(source.complaint(node.lineno, node.name))
    return [
        f"{first} is also in {', '.join(others)}"
        for first, *others in (sorted(found) for _, found in sorted(places.items()))
        if others
    ]


def _says_nothing(name: str) -> bool:
    return any(word in BANNED_WORDS for word in _words_of(name))


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


RULES = (private_words, empty_names, repeated_classes)
"""For every Python file."""
