"""The files that the house rules check: all in the repository, and new ones not yet added."""

import ast
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PURE_PACKAGES = ("model", "raft", "group0", "topology", "balancer", "settings_store", "leadership")
"""State and event in, new state and effects out; no side effects."""

BESIDE_THE_PURE = ("src/ebla/topology/draw.py", "src/ebla/topology/explain.py")
"""Tools for people, placed beside the tables they read; no node runs them."""


@dataclass(frozen=True)
class Source:
    """One file. `path` is relative to the repository, with `/`."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def is_product(self) -> bool:
        return self.is_python and self.path.startswith("src/")

    @property
    def is_pure(self) -> bool:
        pure = tuple(f"src/ebla/{package}/" for package in PURE_PACKAGES)
        return self.is_python and self.path.startswith(pure) and self.path not in BESIDE_THE_PURE

    @property
    def module(self) -> str:
        """Its import name; for an `__init__.py` the package."""
        path = self.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        return path.replace("/", ".")

    def complaint(self, line: int, text: str) -> str:
        return f"{self.path}:{line}: {text}"


@cache
def all_files() -> tuple[Source, ...]:
    return read_files(ROOT)


def read_files(root: Path) -> tuple[Source, ...]:
    """Every text file under version control, and those not yet added that are not ignored either."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode()
    found = (_read(root, path) for path in sorted(set(listed.split("\0"))) if path)
    return tuple(source for source in found if source is not None)


def python_files() -> tuple[Source, ...]:
    return tuple(source for source in all_files() if source.is_python)


def product_files() -> tuple[Source, ...]:
    return tuple(source for source in all_files() if source.is_product)


def pure_files() -> tuple[Source, ...]:
    return tuple(source for source in all_files() if source.is_pure)


def _read(root: Path, path: str) -> Source | None:
    """None for files that are deleted but not committed, and for files that are not text."""
    try:
        return Source(path, (root / path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return None


def functions(source: Source) -> Sequence[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name inside the file."""
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []

    def walk(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((outer + child.name, child))
                walk(child, f"{outer}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{outer}{child.name}.")
            else:
                walk(child, outer)

    walk(source.tree, "")
    return found


def imported_names(source: Source) -> dict[str, str]:
    """For every import in the file: the local name and the dotted name it refers to."""
    names: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            base = import_base(source, node)
            for alias in node.names:
                names[alias.asname or alias.name] = f"{base}.{alias.name}"
    return names


def import_base(source: Source, node: ast.ImportFrom) -> str:
    """The absolute module that a `from … import` names."""
    if node.level == 0:
        return node.module or ""
    package = source.module if source.path.endswith("__init__.py") else source.module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name that a name or attribute chain refers to; empty for anything that is not imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""
