"""What a read selects of a table's rows: columns, and conditions on keys. Data only."""

import enum

import msgspec


class SelectorKind(enum.StrEnum):
    VALUE = "value"
    WRITETIME = "writetime"
    """Microseconds; only for a regular or static column with one cell; null without a cell."""
    TTL = "ttl"
    """Seconds left; null if the cell does not expire."""
    TOKEN = "token"  # noqa: S105  # of the ring
    """The partition's token; no column."""


class ColumnSelector(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Of the table's column; ignored for a token."""
    kind: SelectorKind = SelectorKind.VALUE
    alias: str = ""
    """The name in the result; empty: the column's own."""

    @property
    def label(self) -> str:
        return self.alias or self.name


class KeyOperator(enum.StrEnum):
    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"


class KeyCondition(msgspec.Struct, frozen=True, array_like=True):
    """On a partition key or clustering column. All conditions of a query must hold; a row without a value there, such
    as
    a partition with only static columns, never matches."""

    column: str
    operator: KeyOperator
    values: tuple[bytes, ...]
    """In wire form; exactly one, except for IN."""
