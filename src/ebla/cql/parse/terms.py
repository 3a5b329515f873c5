"""Terms of CQL as parsed: expressions that yield a value. Types are added when they are bound."""

import enum
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


class LiteralKind(enum.StrEnum):
    """In the words of Cassandra's error messages."""

    STRING = "STRING"
    INTEGER = "INTEGER"
    FLOAT = "FLOAT"
    """Any other number, with NaN and Infinity."""
    BOOLEAN = "BOOLEAN"
    UUID = "UUID"
    HEX = "HEX"
    """A blob: `0x…`."""
    DURATION = "DURATION"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Its meaning depends on the type that receives it."""

    kind: LiteralKind
    text: str
    """As written, without quotes and without `0x`; a boolean is in lower case."""


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
    """A chain of `+` and `-`, or of `*`, `/` and `%`, to be evaluated from left to right; a unary minus is `0 - term`.
    A chain and not a tree, so that its length is no depth of recursion."""

    first: "Term"
    rest: "tuple[tuple[str, Term], ...]"
    """Operators with their right operands."""


@dataclass(frozen=True, slots=True)
class ColumnName:
    """In lower case unless it was quoted."""

    name: str


CollectionLiteral = ListLiteral | SetOrMapLiteral | TupleLiteral
Term = BindMarker | NullLiteral | Literal | CollectionLiteral | TypeHint | FunctionCall | Arithmetic
