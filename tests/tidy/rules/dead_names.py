"""Top-level names that only tests use.

Tests keep such a name alive: people read, change and trust it, and it serves no user.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.tidy.source import Source

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

AWAITED_NAMES: Mapping[str, str] = {}
"""`module.name` of names that may have no user, with the reason. A name that is used must leave the table."""

FOUND_BY_NAME = ("SCENARIO", "main")
"""Looked up by name in the module."""

HARMLESS_DECORATORS = (
    "dataclass",
    "cache",
    "lru_cache",
    "contextmanager",
    "asynccontextmanager",
    "final",
    "unique",
    "total_ordering",
)
"""Any other decorator may register what it decorates, as `@app.command()` does."""


def dead_names(sources: Sequence[Source], awaited: Mapping[str, str] = AWAITED_NAMES) -> list[str]:
    """Delete the name with its tests, or use it. The rule looks for the bare word in `src/`, `benchmarks/` and
    `examples/`, so it misses a dead name that is also the name of something in use."""
    users = [source for source in sources if source.is_python and not source.path.startswith("tests/")]
    uses: dict[str, set[str]] = {}
    for source in users:
        for owner, word in _words(source):
            uses.setdefault(word, set()).add(owner)
    complaints = []
    for source in sources:
        if not source.is_product or source.path.endswith("/__init__.py"):
            continue
        for name, line in _top_level(source):
            own = f"{source.module}.{name}"
            is_used = bool(uses.get(name, set()) - {own})
            if is_used and own in awaited:
                complaints.append(f"{own} is used: take it from the table")
            elif not is_used and own not in awaited:
                complaints.append(source.complaint(line, f"only tests use {name}"))
    return complaints


def _top_level(source: Source) -> Iterator[tuple[str, int]]:
    for node in source.tree.body:
        names: list[str] = []
        if isinstance(node, Definition):
            names = [node.name] if not _is_registered(node) else []
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        for name in names:
            if not name.startswith("__") and name not in FOUND_BY_NAME:
                yield name, node.lineno


def _is_registered(node: Definition) -> bool:
    def called(decorator: ast.expr) -> str:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")

    return any(called(decorator) not in HARMLESS_DECORATORS for decorator in node.decorator_list)


def _words(source: Source) -> Iterator[tuple[str, str]]:
    """Every word in use, with the top-level definition that uses it: a name does not keep itself alive, and an import
    alone is not a use."""
    for node in source.tree.body:
        owner = f"{source.module}.{node.name}" if isinstance(node, Definition) else source.module
        yield from ((owner, word) for word in _words_of(node))


def _words_of(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            yield from node.value.replace("[", " ").replace("]", " ").replace(".", " ").replace(":", " ").split()


AWAITED = (dead_names,)
"""Run on every Python file."""
