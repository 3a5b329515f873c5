"""What a job asks of a table's rows: which columns, and conditions on keys by which rows are left out. Data only."""

import enum

import msgspec


class SelectorKind(enum.StrEnum):
    VALUE = "value"
    WRITETIME = "writetime"
    """Microseconds, of a regular or static column with one cell; null where the cell is not there."""
    TTL = "ttl"
    """Seconds left; null where the cell does not expire."""
    TOKEN = "token"  # noqa: S105  # of the ring
    """Of the partition; it has no column."""


class ColumnSelector(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Of the table's column; of no meaning for a token."""
    kind: SelectorKind = SelectorKind.VALUE
    alias: str = ""
    """The name in the answer; empty: the column's own."""

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
    """On a partition key or clustering column. All conditions of a question must hold; a row that has no value there,
    as a partition of static columns alone, meets none."""

    column: str
    operator: KeyOperator
    values: tuple[bytes, ...]
    """In wire form; one, but for IN."""
