"""Terms of CQL as parsed: what may stand where a value does. No types yet: a term meets its column when it is bound."""

from dataclasses import dataclass

import msgspec

from ebla.model.cql_types import CqlType


class BindMarker(msgspec.Struct, frozen=True):
    """A value that comes with the request. Markers are numbered in the order of the text; `name` is None for `?`."""

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
    """The text as written: only a type tells what it is. NaN and Infinity are numbers too."""

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
    """In lower case, with the keyspace in front where one was written (`system.now`)."""

    name: str
    arguments: "tuple[Term | ColumnName, ...]"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+`, `-`, `*`, `/`, `%` between terms; a sign before one is `0 - term`."""

    operator: str
    left: "Term"
    right: "Term"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """Folded to lower case unless it was quoted."""

    name: str


Literal = StringLiteral | NumberLiteral | BooleanLiteral | UuidLiteral | BlobLiteral | DurationLiteral
CollectionLiteral = ListLiteral | SetOrMapLiteral | TupleLiteral
Term = BindMarker | NullLiteral | Literal | CollectionLiteral | TypeHint | FunctionCall | Arithmetic
