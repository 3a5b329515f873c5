"""Names that say nothing.

A module called for what it is not (not the rest) collects the rest, and a class that manages or handles could do
anything. The right name says what the thing knows or decides.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.tidy.source import Source

BANNED_WORDS = ("util", "utils", "helper", "helpers", "common", "manager", "managers", "handler", "handlers", "misc")


def empty_names(sources: Iterable[Source]) -> list[str]:
    """Of modules, packages and classes."""
    complaints = []
    for source in sources:
        named = [(1, part) for part in PurePosixPath(source.path).with_suffix("").parts]
        named += [(node.lineno, node.name) for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
        complaints += [source.complaint(line, f"{name!r} says nothing") for line, name in named if _says_nothing(name)]
    return complaints


def _says_nothing(name: str) -> bool:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)
    return any(word.lower() in BANNED_WORDS for word in words)


RULES = (empty_names,)
"""For every Python file."""
