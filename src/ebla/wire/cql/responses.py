"""Encodes the messages to clients. Pure."""

import enum
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import assert_never

from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType
from ebla.model.error_codes import CqlCode, codes_of
from ebla.model.errors import (
    AlreadyExists,
    EblaError,
    ReadFailed,
    ReadTimeout,
    TooFewReplicas,
    Unprepared,
    WriteFailed,
    WriteTimeout,
)
from ebla.wire.cql import notation
from ebla.wire.cql.messages import ColumnSpec, KeyspaceSet, PreparedResult, Rows, SchemaChangeResult, Void

SCALAR_IDS: dict[Scalar, int] = {
    Scalar.ASCII: 0x01,
    Scalar.BIGINT: 0x02,
    Scalar.BLOB: 0x03,
    Scalar.BOOLEAN: 0x04,
    Scalar.DECIMAL: 0x06,
    Scalar.DOUBLE: 0x07,
    Scalar.FLOAT: 0x08,
    Scalar.INT: 0x09,
    Scalar.TIMESTAMP: 0x0B,
    Scalar.UUID: 0x0C,
    Scalar.TEXT: 0x0D,
    Scalar.VARINT: 0x0E,
    Scalar.TIMEUUID: 0x0F,
    Scalar.INET: 0x10,
    Scalar.DATE: 0x11,
    Scalar.TIME: 0x12,
    Scalar.SMALLINT: 0x13,
    Scalar.TINYINT: 0x14,
    Scalar.DURATION: 0x15,
}
_LIST, _MAP, _SET, _TUPLE = 0x20, 0x21, 0x22, 0x31

_VOID, _ROWS, _SET_KEYSPACE, _PREPARED, _SCHEMA_CHANGE = 1, 2, 3, 4, 5
_GLOBAL_TABLE, _MORE_PAGES, _NO_METADATA = 1, 2, 4
_INT = struct.Struct(">i")
_ROWS_KIND = notation.integer(_ROWS)
_LENGTHS_MAX = 256
_LENGTHS = tuple(_INT.pack(size) for size in range(_LENGTHS_MAX))
"""The encoded lengths of most values: a lookup takes half the time of packing."""


def type_option(kind: CqlType) -> bytes:
    match kind:
        case ScalarType(scalar=scalar):
            return notation.short(SCALAR_IDS[scalar])
        case ListType(element=element):
            return notation.short(_LIST) + type_option(element)
        case SetType(element=element):
            return notation.short(_SET) + type_option(element)
        case MapType(key=key, value=value):
            return notation.short(_MAP) + type_option(key) + type_option(value)
        case TupleType(elements=elements):
            parts = [type_option(element) for element in elements]
            return notation.short(_TUPLE) + notation.short(len(parts)) + b"".join(parts)
        case _ as never:
            assert_never(never)


def supported(options: Mapping[str, Sequence[str]]) -> bytes:
    return notation.string_multimap(options)


VOID = notation.integer(_VOID)


def result(found: Rows | Void | KeyspaceSet | SchemaChangeResult) -> bytes:
    match found:
        case Rows():
            return rows(found)
        case Void():
            return VOID
        case KeyspaceSet(keyspace=keyspace):
            return notation.integer(_SET_KEYSPACE) + notation.string(keyspace)
        case SchemaChangeResult():
            return notation.integer(_SCHEMA_CHANGE) + schema_change(found)
        case _ as never:
            assert_never(never)


def schema_change(change: SchemaChangeResult) -> bytes:
    parts = [notation.string(change.kind), notation.string(change.target), notation.string(change.keyspace)]
    if change.table:
        parts.append(notation.string(change.table))
    return b"".join(parts)


def rows(found: Rows, *, skip_metadata: bool = False) -> bytes:
    if found.paging_state is not None:
        metadata = _rows_metadata(found.columns, found.paging_state, skip_metadata)
    elif skip_metadata:
        metadata = _no_metadata(len(found.columns))
    else:
        metadata = _known_metadata(found.columns)
    pack, null = _INT.pack, notation.NULL_LENGTH
    parts: list[bytes] = [_ROWS_KIND, metadata, pack(len(found.rows))]
    add = parts.append
    for row in found.rows:
        for cell in row:
            if cell is None:
                add(null)
            else:
                size = len(cell)
                add(_LENGTHS[size] if size < _LENGTHS_MAX else pack(size))
                add(cell)
    return b"".join(parts)


def _rows_metadata(columns: Sequence[ColumnSpec], paging_state: bytes | None, skip: bool) -> bytes:
    flags = (_MORE_PAGES if paging_state is not None else 0) | (_NO_METADATA if skip else 0)
    one_table = not skip and len({(column.keyspace, column.table) for column in columns}) == 1
    flags |= _GLOBAL_TABLE if one_table else 0
    parts = [notation.integer(flags), notation.integer(len(columns))]
    if paging_state is not None:
        parts.append(notation.value(paging_state))
    if not skip:
        parts.append(_specs(columns, one_table))
    return b"".join(parts)


@lru_cache(64)
def _no_metadata(columns: int) -> bytes:
    """For a driver that has the metadata from PREPARE."""
    return notation.integer(_NO_METADATA) + notation.integer(columns)


_KNOWN_MAX = 4_096
_known: dict[int, tuple[Sequence[ColumnSpec], bytes]] = {}


def _known_metadata(columns: Sequence[ColumnSpec]) -> bytes:
    """The metadata of rows that fit one response. A plan always passes the same `columns` object, so it is cached."""
    found = _known.get(id(columns))
    if found is None or found[0] is not columns:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        found = _known[id(columns)] = (columns, _rows_metadata(columns, None, skip=False))
    return found[1]


def _specs(columns: Sequence[ColumnSpec], one_table: bool) -> bytes:
    parts: list[bytes] = []
    if one_table:
        parts += (notation.string(columns[0].keyspace), notation.string(columns[0].table))
    for column in columns:
        if not one_table:
            parts += (notation.string(column.keyspace), notation.string(column.table))
        parts += (notation.string(column.name), type_option(column.type))
    return b"".join(parts)


def prepared(found: PreparedResult, version: int) -> bytes:
    variables = found.variables
    one_table = len({(column.keyspace, column.table) for column in variables}) == 1
    parts = [
        notation.integer(_PREPARED),
        notation.short_bytes(found.id),
        notation.integer(_GLOBAL_TABLE if one_table else 0),
        notation.integer(len(variables)),
    ]
    if version >= 4:
        parts.append(notation.integer(len(found.key_positions)))
        parts += (notation.short(position) for position in found.key_positions)
    parts.append(_specs(variables, one_table))
    if found.columns:
        parts.append(_rows_metadata(found.columns, None, skip=False))
    else:
        parts += (notation.integer(_NO_METADATA), notation.integer(0))
    return b"".join(parts)


# ---- errors


class WriteType(enum.StrEnum):
    SIMPLE = "SIMPLE"
    BATCH = "BATCH"
    UNLOGGED_BATCH = "UNLOGGED_BATCH"


def error(
    failure: EblaError, level: ConsistencyLevel = ConsistencyLevel.ONE, write_type: WriteType = WriteType.SIMPLE
) -> bytes:
    """The body of an ERROR: code, message, and the fields of the code."""
    codes = codes_of(type(failure))
    # Any failure but that of a read may have changed something, and must say so.
    code = codes.cql_read if isinstance(failure, ReadTimeout | ReadFailed) else codes.cql_write
    return notation.integer(code) + notation.short_string(str(failure)) + _fields(code, failure, level, write_type)


def _fields(code: CqlCode, failure: EblaError, level: ConsistencyLevel, write_type: WriteType) -> bytes:
    encoded_level = notation.short(level)
    match code:
        case CqlCode.UNAVAILABLE:
            required, alive = (failure.required, failure.alive) if isinstance(failure, TooFewReplicas) else (1, 0)
            return encoded_level + _ints(required, alive)
        case CqlCode.WRITE_TIMEOUT:
            received, required = _counts(failure)
            return encoded_level + _ints(received, required) + notation.string(write_type)
        case CqlCode.READ_TIMEOUT:
            received, required = _counts(failure)
            has_data = isinstance(failure, ReadTimeout) and failure.has_data
            return encoded_level + _ints(received, required) + notation.byte(has_data)
        case CqlCode.READ_FAILURE:
            return encoded_level + _ints(*_counts(failure), _failed(failure)) + notation.byte(0)
        case CqlCode.WRITE_FAILURE:
            return encoded_level + _ints(*_counts(failure), _failed(failure)) + notation.string(write_type)
        case CqlCode.ALREADY_EXISTS:
            assert isinstance(failure, AlreadyExists)
            return notation.string(failure.keyspace) + notation.string(failure.table)
        case CqlCode.UNPREPARED:
            assert isinstance(failure, Unprepared)
            return notation.short_bytes(failure.statement_id)
        case _:
            return b""


def _counts(failure: EblaError) -> tuple[int, int]:
    """Received and required; errors of a single replica have neither."""
    if isinstance(failure, WriteTimeout | ReadTimeout | WriteFailed | ReadFailed):
        return failure.received, failure.required
    return 0, 1


def _failed(failure: EblaError) -> int:
    return failure.failed if isinstance(failure, WriteFailed | ReadFailed) else 1


def _ints(*numbers: int) -> bytes:
    return b"".join(notation.integer(number) for number in numbers)


# ---- events


class EventKind(enum.StrEnum):
    TOPOLOGY_CHANGE = "TOPOLOGY_CHANGE"
    STATUS_CHANGE = "STATUS_CHANGE"
    SCHEMA_CHANGE = "SCHEMA_CHANGE"


class NodeChange(enum.StrEnum):
    """What happened to a node."""

    NEW_NODE = "NEW_NODE"
    REMOVED_NODE = "REMOVED_NODE"
    UP = "UP"
    DOWN = "DOWN"

    @property
    def kind(self) -> EventKind:
        is_status = self in (NodeChange.UP, NodeChange.DOWN)
        return EventKind.STATUS_CHANGE if is_status else EventKind.TOPOLOGY_CHANGE


def schema_event(change: SchemaChangeResult) -> bytes:
    return notation.string(EventKind.SCHEMA_CHANGE) + schema_change(change)


def node_event(change: NodeChange, address: bytes, port: int) -> bytes:
    return notation.string(change.kind) + notation.string(change) + notation.inet(address, port)
