"""What may be imported, and where an import may stand."""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.source import Source, functions, import_base

NOT_IN_PURE = (
    "asyncio", "concurrent", "ctypes", "fcntl", "http", "io", "logging", "mmap", "multiprocessing", "os", "pathlib",
    "queue", "random", "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl",
    "subprocess", "sys", "tempfile", "threading", "time", "warnings",
    "ebla.cli", "ebla.control", "ebla.node", "ebla.observe", "ebla.replica", "ebla.request", "ebla.runtime", "ebla.sim",
)  # fmt: skip


def impure_imports(sources: Iterable[Source]) -> list[str]:
    """A pure package touches no clock, chance, socket, file, thread or log, so that a seed replays it exactly and a
    test needs nothing but values."""
    complaints = []
    for source in sources:
        if source.is_pure:
            for line, name in _imports(source):
                if any(name == banned or name.startswith(f"{banned}.") for banned in NOT_IN_PURE):
                    complaints.append(source.complaint(line, f"{name} imported in a pure package"))
    return complaints


def hidden_imports(sources: Iterable[Source]) -> list[str]:
    """An import inside a function hides a dependency from the reader and from the import contracts, and fails when
    the function first runs instead of at start."""
    complaints = []
    for source in sources:
        lines = {
            node.lineno
            for _, function in functions(source)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        complaints += [source.complaint(line, "an import inside a function") for line in sorted(lines)]
    return complaints


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """Each line with what it imports; `from a import b` is both `a` and `a.b`, for `b` may be a module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = import_base(source, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


RULES = (impure_imports, hidden_imports)
"""For every Python file."""
