"""Requests and results in the form that codec, executor and clients share."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import CqlType


class Unset(enum.Enum):
    """A bound value that was not set: the column keeps its value."""

    UNSET = "unset"


UNSET = Unset.UNSET
BoundValue = bytes | None | Unset


class QueryParameters(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a QUERY, EXECUTE or BATCH has besides the statement. A msgspec struct because one is created per request, as
    are rows and responses."""

    level: ConsistencyLevel = ConsistencyLevel.ONE
    values: Sequence[BoundValue] = ()
    names: Sequence[str] | None = None
    """The names of the values, if they are named."""
    page_size: int | None = None
    paging_state: bytes | None = None
    timestamp_us: int | None = None
    skip_metadata: bool = False


class ColumnSpec(msgspec.Struct, frozen=True, kw_only=True):
    keyspace: str
    table: str
    name: str
    type: CqlType


class Rows(msgspec.Struct, frozen=True, gc=False):
    columns: tuple[ColumnSpec, ...]
    rows: Sequence[Sequence[bytes | None]]
    paging_state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Void:
    pass


@dataclass(frozen=True, slots=True)
class KeyspaceSet:
    keyspace: str


class SchemaChangeKind(enum.StrEnum):
    CREATED = "CREATED"
    UPDATED = "UPDATED"
    DROPPED = "DROPPED"


class SchemaChangeTarget(enum.StrEnum):
    KEYSPACE = "KEYSPACE"
    TABLE = "TABLE"


@dataclass(frozen=True, slots=True)
class SchemaChangeResult:
    kind: SchemaChangeKind
    keyspace: str
    table: str = ""
    """Empty: the keyspace has changed."""

    @property
    def target(self) -> SchemaChangeTarget:
        return SchemaChangeTarget.TABLE if self.table else SchemaChangeTarget.KEYSPACE


class CqlResponse(msgspec.Struct, frozen=True, gc=False):
    """`payload` is the custom payload of the response (tablet routing)."""

    result: Rows | Void | KeyspaceSet | SchemaChangeResult
    warnings: tuple[str, ...] = ()
    payload: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedResult:
    id: bytes
    """16 bytes, derived from keyspace and text: the same on every node."""
    variables: tuple[ColumnSpec, ...]
    key_positions: tuple[int, ...]
    """Which variables are the partition key columns, in order; empty if not all of them are bound."""
    columns: tuple[ColumnSpec, ...]
    """The columns of the rows; empty if the statement returns none."""
    keyspace: str = ""
    table: str = ""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A statement of a BATCH message: its text, or the id of a prepared one."""

    query: str | bytes
    values: Sequence[BoundValue] = ()
    names: Sequence[str] | None = None
