"""Nothing in a pure package may depend on the order of a set, on `hash()` or on `id()`.

All three differ between processes: two nodes would decide differently, and a seed would not replay.
"""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.source import Source

SET_TYPES = ("set", "frozenset", "Set", "AbstractSet", "MutableSet")
SET_METHODS = ("union", "intersection", "difference", "symmetric_difference")

ORDER_LOST = ("sorted", "set", "frozenset", "len", "any", "all", "sum", "min", "max", "Counter")
"""Their result does not depend on the order of their input (`min` and `max` only without a key)."""

ORDER_KEPT = ("list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed", "dict", "deque", "next", "join")


def iterated_sets(sources: Iterable[Source]) -> list[str]:
    """Recognises, within one file: set displays, comprehensions, calls of `set`, and names and attributes annotated as
    sets."""
    complaints = []
    for source in sources:
        if source.is_pure:
            known = _annotated_sets(source.tree)
            lines = {node.lineno for node in _ordered_uses(source.tree) if _is_set(node, known)}
            complaints += [source.complaint(line, "iterates a set: sort it, or keep a tuple") for line in sorted(lines)]
    return complaints


def identity_calls(sources: Iterable[Source]) -> list[str]:
    complaints = []
    for source in sources:
        if source.is_pure:
            complaints += [
                source.complaint(node.lineno, f"{node.func.id}() differs between processes")
                for node in ast.walk(source.tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hash", "id")
            ]
    return complaints


def _ordered_uses(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression whose iteration order affects a result."""
    harmless = _arguments_without_order(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            if node not in harmless:
                yield from (generator.iter for generator in node.generators)
        elif isinstance(node, ast.Starred):
            if node not in harmless:
                yield node.value
        elif isinstance(node, ast.Call):
            keyed = any(keyword.arg == "key" for keyword in node.keywords)
            if _called(node) in ORDER_KEPT or (keyed and _called(node) in ("min", "max")):
                yield from node.args


def _arguments_without_order(tree: ast.Module) -> set[ast.expr]:
    """Arguments of calls whose result does not depend on order, and elements of set displays."""
    found: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ORDER_LOST and not node.keywords:
            found.update(node.args)
        elif isinstance(node, ast.Set):
            found.update(node.elts)
    return found


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _annotated_sets(tree: ast.Module) -> frozenset[str]:
    """Names and attributes annotated as sets, unless the file also uses the name for something else."""
    sets: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            (sets if _is_set_type(node.annotation) else others).add(node.arg)
        elif isinstance(node, ast.AnnAssign):
            name = node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")
            (sets if _is_set_type(node.annotation) else others).add(name)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None and _is_property(node):
            (sets if _is_set_type(node.returns) else others).add(node.name)
    return frozenset(sets - others)


def _is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)


def _is_set_type(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return (base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")) in SET_TYPES


def _is_set(node: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.Attribute):
        return node.attr in known
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, known) or _is_set(node.right, known)
    if isinstance(node, ast.IfExp):
        return _is_set(node.body, known) or _is_set(node.orelse, known)
    if isinstance(node, ast.Call):
        return _called(node) in ("set", "frozenset", *SET_METHODS)
    return False


RULES = (iterated_sets, identity_calls)
"""Run on every Python file; they check the pure ones."""
