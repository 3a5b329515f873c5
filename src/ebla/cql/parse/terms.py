"""Terms of CQL as parsed: expressions that yield a value. Types are added when they are bound."""

from dataclasses import dataclass

import msgspec

from ebla.model.cql_types import CqlType


class BindMarker(msgspec.Struct, frozen=True):
    """A value sent with the request. Markers are numbered in text order; `name` is None for `?`."""

    number: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class NullLiteral:
    pass


@dataclass(frozen=True, slots=True)
class StringLiteral:
    value: str


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """The text as written: its meaning depends on the type. NaN and Infinity are numbers, too."""

    text: str
    is_integer: bool


@dataclass(frozen=True, slots=True)
class BooleanLiteral:
    value: bool


@dataclass(frozen=True, slots=True)
class UuidLiteral:
    text: str


@dataclass(frozen=True, slots=True)
class BlobLiteral:
    """`0x…` without the prefix."""

    digits: str


@dataclass(frozen=True, slots=True)
class DurationLiteral:
    text: str


@dataclass(frozen=True, slots=True)
class ListLiteral:
    elements: "tuple[Term, ...]"


@dataclass(frozen=True, slots=True)
class SetOrMapLiteral:
    """`{…}`. An empty one is either; `pairs` holds (key, value), with None for the values of a set."""

    pairs: "tuple[tuple[Term, Term | None], ...]"


@dataclass(frozen=True, slots=True)
class TupleLiteral:
    elements: "tuple[Term, ...]"


@dataclass(frozen=True, slots=True)
class TypeHint:
    """`(int) ?` or `(text) 'a'`."""

    type: CqlType
    term: "Term"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The name is in lower case, with its keyspace if one was written (`system.now`)."""

    name: str
    arguments: "tuple[Term | ColumnName, ...]"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+`, `-`, `*`, `/`, `%` between terms; a unary minus is `0 - term`."""

    operator: str
    left: "Term"
    right: "Term"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """In lower case unless it was quoted."""

    name: str


Literal = StringLiteral | NumberLiteral | BooleanLiteral | UuidLiteral | BlobLiteral | DurationLiteral
CollectionLiteral = ListLiteral | SetOrMapLiteral | TupleLiteral
Term = BindMarker | NullLiteral | Literal | CollectionLiteral | TypeHint | FunctionCall | Arithmetic
