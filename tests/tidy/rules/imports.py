"""What may be imported, and where."""

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
    """A pure package uses no clock, randomness, socket, file, thread or log, so that a seed replays it exactly and a
    test needs only values."""
    complaints = []
    for source in sources:
        if source.is_pure:
            for line, name in _imports(source):
                if any(name == banned or name.startswith(f"{banned}.") for banned in NOT_IN_PURE):
                    complaints.append(source.complaint(line, f"{name} imported in a pure package"))
    return complaints


def hidden_imports(sources: Iterable[Source]) -> list[str]:
    """An import inside a function hides a dependency from the reader, and fails when the function first runs instead of
    at start. Where one is needed (start-up time, an optional package), a comment beside or above it says why."""
    complaints = []
    for source in sources:
        lines = source.text.splitlines()
        found = {
            node.lineno
            for _, function in functions(source)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        bare = sorted(line for line in found if not _has_reason(lines, line))
        complaints += [source.complaint(line, "an import inside a function, without a reason") for line in bare]
    return complaints


def imports_by_string(sources: Iterable[Source]) -> list[str]:
    """Type checkers, editors and the import contracts cannot see `import_module("a.b")`. Write `from a import b` inside
    the function, with the reason. Computed names are allowed."""
    complaints = []
    for source in sources:
        if source.is_product:
            complaints += [
                source.complaint(node.lineno, f"imports {node.args[0].value!r} by a string")
                for node in ast.walk(source.tree)
                if isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith("import_module")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ]
    return complaints


def tests_of_tests(sources: Iterable[Source]) -> list[str]:
    """A test module that others import cannot be changed or deleted on its own. What several tests share belongs into a
    rig beside them."""
    complaints = []
    for source in sources:
        if source.path.startswith("tests/"):
            nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom)]
            complaints += [
                source.complaint(node.lineno, f"imports from {node.module}")
                for node in nodes
                if (node.module or "").startswith("tests.")
                and (node.module or "").rpartition(".")[2].startswith("test_")
            ]
    return complaints


def _has_reason(lines: list[str], number: int) -> bool:
    """A comment on the same line or the line above; consecutive imports share it."""
    line = lines[number - 1]
    above = lines[number - 2].strip() if number > 1 else ""
    if "#" in line or above.startswith("#"):
        return True
    return above.startswith(("import ", "from ")) and _has_reason(lines, number - 1)


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """Each line with what it imports; `from a import b` is both `a` and `a.b`, for `b` may be a module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = import_base(source, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


RULES = (impure_imports, hidden_imports, imports_by_string, tests_of_tests)
"""Run on every Python file."""
