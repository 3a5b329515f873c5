"""CQL types as data.

A type is a small tree of frozen structs. Its text is the CQL syntax: `map<text, frozen<list<int>>>`.
"""

import enum
import re
from collections.abc import Iterator
from typing import assert_never

import msgspec

from ebla.model.errors import InvalidRequest


class Scalar(enum.StrEnum):
    ASCII = "ascii"
    BIGINT = "bigint"
    BLOB = "blob"
    BOOLEAN = "boolean"
    DATE = "date"
    DECIMAL = "decimal"
    DOUBLE = "double"
    DURATION = "duration"
    FLOAT = "float"
    INET = "inet"
    INT = "int"
    SMALLINT = "smallint"
    TEXT = "text"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMEUUID = "timeuuid"
    TINYINT = "tinyint"
    UUID = "uuid"
    VARINT = "varint"


class ScalarType(msgspec.Struct, frozen=True, tag="scalar", array_like=True):
    scalar: Scalar

    def __str__(self) -> str:
        return self.scalar.value


class ListType(msgspec.Struct, frozen=True, tag="list", array_like=True):
    element: "CqlType"
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"list<{self.element}>", self.frozen)


class SetType(msgspec.Struct, frozen=True, tag="set", array_like=True):
    element: "CqlType"
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"set<{self.element}>", self.frozen)


class MapType(msgspec.Struct, frozen=True, tag="map", array_like=True):
    key: "CqlType"
    value: "CqlType"
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"map<{self.key}, {self.value}>", self.frozen)


class TupleType(msgspec.Struct, frozen=True, tag="tuple", array_like=True):
    """Always frozen: a tuple is only replaced as a whole."""

    elements: tuple["CqlType", ...]

    def __str__(self) -> str:
        return _frozen(f"tuple<{', '.join(str(element) for element in self.elements)}>", True)


CqlType = ScalarType | ListType | SetType | MapType | TupleType
Collection = ListType | SetType | MapType

SCALARS: dict[str, ScalarType] = {scalar.value: ScalarType(scalar) for scalar in Scalar}
SCALARS["varchar"] = SCALARS["text"]

FIXED_BYTES: dict[Scalar, int] = {
    Scalar.BIGINT: 8,
    Scalar.BOOLEAN: 1,
    Scalar.DATE: 4,
    Scalar.DOUBLE: 8,
    Scalar.FLOAT: 4,
    Scalar.INT: 4,
    Scalar.SMALLINT: 2,
    Scalar.TIME: 8,
    Scalar.TIMESTAMP: 8,
    Scalar.TIMEUUID: 16,
    Scalar.TINYINT: 1,
    Scalar.UUID: 16,
}
"""Scalars whose values have this many bytes, unless they are empty."""

EMPTIABLE = frozenset(
    map(
        Scalar,
        ("bigint", "boolean", "decimal", "double", "float", "inet", "int", "timestamp", "timeuuid", "uuid", "varint"),
    )
)
"""Scalars with an empty value beside their other values: no bytes, and still not null. Those of texts and blobs are
ordinary values; the remaining scalars have none, as in Cassandra."""


def is_multi_cell(kind: CqlType) -> bool:
    """Whether each element is a cell with its own timestamp: the collections that are not frozen."""
    return isinstance(kind, ListType | SetType | MapType) and not kind.frozen


def freeze(kind: CqlType) -> CqlType:
    """With all types inside."""
    match kind:
        case ListType(element=element):
            return ListType(freeze(element), True)
        case SetType(element=element):
            return SetType(freeze(element), True)
        case MapType(key=key, value=value):
            return MapType(freeze(key), freeze(value), True)
        case TupleType(elements=elements):
            return TupleType(tuple(map(freeze, elements)))
        case ScalarType():
            return kind
        case _ as never:
            assert_never(never)


def inner_types(kind: CqlType) -> tuple[CqlType, ...]:
    match kind:
        case ListType(element=element) | SetType(element=element):
            return (element,)
        case MapType(key=key, value=value):
            return (key, value)
        case TupleType(elements=elements):
            return elements
        case ScalarType():
            return ()
        case _ as never:
            assert_never(never)


def contains(kind: CqlType, scalar: Scalar) -> bool:
    if isinstance(kind, ScalarType):
        return kind.scalar is scalar
    return any(contains(inner, scalar) for inner in inner_types(kind))


_WIDER = frozenset(
    (Scalar(source), Scalar(target))
    for source, target in (
        ("ascii", "text"),
        ("bigint", "timestamp"),
        ("timestamp", "bigint"),
        ("timeuuid", "uuid"),
        ("int", "varint"),
        ("bigint", "varint"),
    )
)


def is_assignable(source: CqlType, target: CqlType) -> bool:
    """Whether every value of one type is a value of the other, with the same bytes. A blob takes any bytes."""
    one, other = freeze(source), freeze(target)
    if one == other or other == SCALARS["blob"]:
        return True
    if isinstance(one, ScalarType) and isinstance(other, ScalarType):
        return (one.scalar, other.scalar) in _WIDER
    inner, other_inner = inner_types(one), inner_types(other)
    return type(one) is type(other) and len(inner) == len(other_inner) and all(map(is_assignable, inner, other_inner))


_WORD = re.compile(r"\s*([A-Za-z_]\w*|[<>,])")


def parse_type(text: str) -> CqlType:
    """Raises `InvalidRequest` that names the unexpected part."""
    words = _words(text)
    kind = _parse(words, text)
    if (extra := next(words, None)) is not None:
        raise InvalidRequest(f"unexpected {extra!r} after the type in {text!r}")
    if is_multi_cell(kind) and any(map(is_multi_cell, inner_types(kind))):
        raise InvalidRequest(f"Non-frozen collections are not allowed inside collections: {kind}")
    return kind


def _frozen(name: str, frozen: bool) -> str:
    return f"frozen<{name}>" if frozen else name


def _words(text: str) -> Iterator[str]:
    position = 0
    while position < len(text.rstrip()):
        match = _WORD.match(text, position)
        if match is None:
            raise InvalidRequest(f"cannot read the type {text!r} at {text[position:].strip()[:10]!r}")
        position = match.end()
        yield match.group(1).lower()


def _parse(words: Iterator[str], text: str) -> CqlType:
    name = next(words, None)
    if name is None:
        raise InvalidRequest(f"a type is missing in {text!r}")
    if name in SCALARS:
        return SCALARS[name]
    if name not in ("list", "set", "map", "tuple", "frozen"):
        raise InvalidRequest(f"unknown type {name!r} in {text!r}")
    inner = _parse_inner(words, text)
    wanted = {"list": 1, "set": 1, "map": 2, "frozen": 1, "tuple": len(inner)}[name]
    if len(inner) != wanted:
        raise InvalidRequest(f"{name} takes {wanted} inner type(s), {text!r} has {len(inner)}")
    return _compose(name, inner, text)


def _parse_inner(words: Iterator[str], text: str) -> tuple[CqlType, ...]:
    if next(words, None) != "<":
        raise InvalidRequest(f"'<' is missing in the type {text!r}")
    inner = [_parse(words, text)]
    while (word := next(words, None)) == ",":
        inner.append(_parse(words, text))
    if word != ">":
        raise InvalidRequest(f"'>' is missing in the type {text!r}")
    return tuple(inner)


def _compose(name: str, inner: tuple[CqlType, ...], text: str) -> CqlType:
    if name == "frozen":
        if isinstance(inner[0], ScalarType):
            raise InvalidRequest(f"frozen<> takes a collection or a tuple, not {inner[0]}")
        return freeze(inner[0])
    if name == "tuple":
        return TupleType(tuple(freeze(one) for one in inner))
    if name in ("set", "map") and contains(inner[0], Scalar.DURATION):
        raise InvalidRequest(f"durations have no order, so they cannot be elements of a set or keys of a map: {text!r}")
    match name:
        case "list":
            return ListType(inner[0])
        case "set":
            return SetType(inner[0])
        case _:
            return MapType(inner[0], inner[1])
