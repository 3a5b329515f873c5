"""Structs whose fields cannot be mixed up."""

import ast
from collections.abc import Iterable, Mapping, Sequence

from tests.tidy.source import Source, dotted, imported_names

FIELDS_MAX = 3
"""The most fields that may be passed by position."""

STRUCT = "msgspec.Struct"
NOT_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")


class _Struct:
    """A struct or dataclass of the product: its own fields, its bases, and whether it is keyword-only."""

    def __init__(self, source: Source, node: ast.ClassDef) -> None:
        self.source, self.node = source, node
        names = imported_names(source)
        local = {one.name: f"{source.module}.{one.name}" for one in source.tree.body if isinstance(one, ast.ClassDef)}
        self.bases = [dotted(_unsubscripted(base), {**names, **local}) for base in node.bases]
        decorators = [one for one in node.decorator_list if "dataclass" in ast.unparse(one)]
        self.is_dataclass = bool(decorators)
        options = [*node.keywords, *(word for one in decorators if isinstance(one, ast.Call) for word in one.keywords)]
        self.is_keyword_only = any(word.arg == "kw_only" and ast.unparse(word.value) == "True" for word in options)
        self.fields = [
            one.target.id
            for one in node.body
            if isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and not any(word in ast.unparse(one.annotation) for word in NOT_FIELDS)
            and "init=False" not in ast.unparse(one)
        ]
        self.has_own_init = any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body)


def positional_structs(sources: Sequence[Source]) -> list[str]:
    """A call with four or more values by position is read by counting, and two of one type get swapped unnoticed.
    `kw_only=True` costs a word per value and ends that."""
    classes = dict(_classes(sources))
    complaints = []
    for name, struct in sorted(classes.items()):
        count = len(_positional(name, classes))
        if count > FIELDS_MAX and not struct.is_keyword_only and not struct.has_own_init and _is_struct(name, classes):
            text = f"{struct.node.name} has {count} fields: make it keyword-only"
            complaints.append(struct.source.complaint(struct.node.lineno, text))
    return complaints


def _classes(sources: Iterable[Source]) -> list[tuple[str, _Struct]]:
    return [
        (f"{source.module}.{node.name}", _Struct(source, node))
        for source in sources
        if source.is_product
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    ]


def _is_struct(name: str, classes: Mapping[str, _Struct]) -> bool:
    if name == STRUCT:
        return True
    struct = classes.get(name)
    return struct is not None and (struct.is_dataclass or any(_is_struct(base, classes) for base in struct.bases))


def _positional(name: str, classes: Mapping[str, _Struct]) -> set[str]:
    """Fields that a caller may pass by position, those of base classes included."""
    struct = classes.get(name)
    if struct is None:
        return set()
    inherited = {field for base in struct.bases for field in _positional(base, classes)}
    return inherited if struct.is_keyword_only else inherited | set(struct.fields)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


RULES = (positional_structs,)
"""Run on every Python file."""
