"""Top-level names that only tests use.

Tests keep such a name alive: people read, change and trust it, and it serves no user.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.tidy.source import Source

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

AWAITED_NAMES: Mapping[str, str] = {
    "ebla.sim.faults.harsh.BIT_ROT": "a fault that a scenario may choose",
    "ebla.sim.loop.PRIVATE_NAMES": "a test pins what the loop needs of asyncio, for each Python version",
    "ebla.topology.cdc_generations": "CDC streams, once tables are captured",
    "ebla.topology.resize": "the balancer of the topology coordinator",
    "ebla.topology.snapshot_builder.from_settings": "recovery of the cluster from its settings",
    "ebla.topology.invariants.stray_tablets": "a checker; simulated transfers of the coordinator will use it",
    "ebla.topology.tablet_stages.UNUSED_STAGES": "a test proves with it that the table of stages is total",
}
"""`module.name` (or a whole `module`) of names that may have no user, with the reason: what will use it, or what its
test proves. An entry that is not needed must leave the table."""

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
    needed: set[str] = set()
    for source in sources:
        if not source.is_product or source.path.endswith("/__init__.py"):
            continue
        for name, line in _top_level(source):
            own = f"{source.module}.{name}"
            if uses.get(name, set()) - {own}:
                continue
            entries = {own, source.module} & awaited.keys()
            needed |= entries
            if not entries:
                complaints.append(source.complaint(line, f"only tests use {name}"))
    return complaints + [f"{entry} needs no entry in the table any more" for entry in awaited if entry not in needed]


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


RULES = (dead_names,)
"""Run on every Python file."""
