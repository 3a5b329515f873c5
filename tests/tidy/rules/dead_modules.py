"""Modules that no entry point of the product imports.

Code that only tests use stays alive because of them: people read, change and trust it, and it serves no user.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence

from tests.tidy.source import Source, import_base

DISCOVERED = ("ebla.sim.scenarios.", "pyspark_ebla")
"""Modules found by listing their package, or by PySpark by name, not by an import."""

AWAITED: Mapping[str, str] = {}
"""Modules written before their user, with the name of that user. A module that is reached must leave the table."""


def dead_modules(sources: Sequence[Source], awaited: Mapping[str, str] = AWAITED) -> list[str]:
    """Entry points are the `__main__` modules, and modules with a main guard that another file names to run them: by
    `-m`, or as a string. All else must be reached from one, or from a module that is awaited."""
    product = {source.module: source for source in sources if source.is_product}
    entries = [name for name in product if _is_entry(product[name], sources)]
    reached = _reach(entries, product)
    complaints = [f"{name} is awaited no longer: take it from the table" for name in awaited if name in reached]
    complaints += [f"{name} is awaited and not there" for name in awaited if name not in product]
    alive = reached | _reach([name for name in awaited if name in product], product)
    for name, source in sorted(product.items()):
        if name not in alive and not _is_bare_package(source):
            complaints.append(source.complaint(1, f"no entry point of the product leads to {name}"))
    return complaints


def _is_entry(source: Source, sources: Iterable[Source]) -> bool:
    if source.path.endswith("/__main__.py") or source.module.startswith(DISCOVERED):
        return True
    if 'if __name__ == "__main__":' not in source.text:
        return False
    ways = (f"-m {source.module}", f'"{source.module}"')
    return any(one in other.text for other in sources if other.path != source.path for one in ways)


def _is_bare_package(source: Source) -> bool:
    """An `__init__.py` with nothing but its docstring."""
    return source.path.endswith("/__init__.py") and all(isinstance(node, ast.Expr) for node in source.tree.body)


def _reach(names: Iterable[str], product: Mapping[str, Source]) -> set[str]:
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in product and name not in reached:
            reached.add(name)
            waiting += _imports(product[name])
            waiting.append(name.rpartition(".")[0])
    return reached


def _imports(source: Source) -> list[str]:
    found: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = import_base(source, node)
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            found += [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
    return found


RULES = (dead_modules,)
"""Run on every file: guides and the Makefile name modules to run."""
