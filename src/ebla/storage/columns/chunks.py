"""Rows in chunks: stored keys and values as Arrow columns, and back.

A chunk is a record batch in key order with these columns, and one more (`c7` for column number 7) for each table
column that it includes:

    key          the stored key
    stored       the stored value; null where the row is plain and the columns hold all of it, which they do not where a
                 number, time or uuid is empty
    timestamp    of a plain row
    flags        `ChunkFlag`

Plain rows become columns by vector operations. Every other row, and every partition head, stays in `stored`, with nulls
in its regular columns.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import is_multi_cell
from ebla.model.errors import Stale
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.storage.codec.row_codec import RowFlag
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.binary_columns import Mask, Positions, byte_run
from ebla.storage.columns.key_columns import decode_keys
from ebla.storage.columns.row_columns import decode_plain, encode_plain_values, plain_headers
from ebla.storage.columns.wire_columns import valid_of
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts, stored_facts

Flags = npt.NDArray[np.uint8]
Timestamps = npt.NDArray[np.int64]


class ChunkFlag(enum.IntFlag):
    """The first three are the flags of stored rows."""

    PLAIN = RowFlag.PLAIN
    MARKED = RowFlag.MARKED
    HEAD = RowFlag.HEAD
    COMPLETE = 64
    """A plain row with a cell in every regular column of the schema: it hides every older plain row."""
    BARE = 128
    """A plain row whose cells all belong to dropped columns: without a marker users do not see it."""


KEY, STORED, TIMESTAMP, FLAGS = range(4)
_LEADING = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("stored", pa.binary()),
    pa.field("timestamp", pa.int64(), nullable=False),
    pa.field("flags", pa.uint8(), nullable=False),
]


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """What chunks include: the key and regular columns of these numbers. Without any, `stored` is never null: the raw
    shape, which compactions and streams between nodes use."""

    schema: TableSchema
    numbers: tuple[int, ...] = ()

    @property
    def is_raw(self) -> bool:
        return not self.numbers

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(self.schema.by_number[number] for number in self.numbers)

    @property
    def arrow_schema(self) -> pa.Schema:
        fields = [pa.field(field_name(one.number), arrow_type(one.type)) for one in self.columns]
        return pa.schema([*_LEADING, *fields])


def field_name(number: int) -> str:
    return f"c{number}"


def whole_shape(schema: TableSchema) -> ChunkShape:
    """Every column that a plain row has."""
    return ChunkShape(schema, tuple(column.number for column in schema.columns if column.kind is not ColumnKind.STATIC))


def flags_of(chunk: pa.RecordBatch) -> Flags:
    return np.asarray(chunk.column(FLAGS).to_numpy())


def timestamps_of(chunk: pa.RecordBatch) -> Timestamps:
    return np.asarray(chunk.column(TIMESTAMP).to_numpy())


def empty_chunk(shape: ChunkShape) -> pa.RecordBatch:
    schema = shape.arrow_schema
    return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)


def chunk_of(shape: ChunkShape, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    """Stored keys and values as a chunk. Raises `Corruption` where a value is not what the codec writes, and `Stale`
    where a row was written by a newer schema than the shape's."""
    run = byte_run(values)
    if not len(run):
        return empty_chunk(shape)
    flags, versions = plain_headers(run)
    if versions.max() > shape.schema.version:
        raise Stale(
            f"rows of {shape.schema.full_name} were written by schema version {versions.max()}, "
            f"this reader knows {shape.schema.version}",
            advice="read again with the table's current schema",
        )
    plain = (flags & RowFlag.PLAIN) != 0
    if plain.all() and (versions == versions[0]).all():
        return _plain_chunk(shape, (keys, values), flags, int(versions[0]))
    return _mixed_chunk(shape, (keys, values), flags, np.where(plain, versions, 0))


def _plain_chunk(shape: ChunkShape, items: tuple[pa.Array, pa.Array], flags: Flags, version: int) -> pa.RecordBatch:
    keys, values = items
    rows = decode_plain(shape.schema, values, version, shape.numbers)
    flags = flags | np.where(rows.complete, ChunkFlag.COMPLETE, 0).astype(np.uint8)
    flags |= np.where(rows.bare, ChunkFlag.BARE, 0).astype(np.uint8)
    stored = values if shape.is_raw else pa.nulls(len(values), pa.binary())
    if rows.reduced.any():
        stored = pc.if_else(pa.array(rows.reduced), values, stored)
    columns = {**_key_columns(shape, keys), **rows.columns}
    return _assembled(shape, [keys, stored, pa.array(rows.timestamps), pa.array(flags)], columns)


def _other_chunk(shape: ChunkShape, items: tuple[pa.Array, pa.Array], flags: Flags) -> pa.RecordBatch:
    """A chunk of heads and of rows that are not plain."""
    keys, values = items
    timestamps = pa.array(np.zeros(len(keys), np.int64))
    return _assembled(shape, [keys, values, timestamps, pa.array(flags)], _key_columns(shape, keys))


def _mixed_chunk(
    shape: ChunkShape, items: tuple[pa.Array, pa.Array], flags: Flags, groups: Positions
) -> pa.RecordBatch:
    """Group number 0 holds what is not plain, the others plain rows by schema version."""
    keys, values = items
    parts, positions = [], []
    for version in np.unique(groups).tolist():
        members = np.flatnonzero(groups == version)
        chosen = pa.array(members)
        part = (keys.take(chosen), values.take(chosen))
        if version:
            parts.append(_plain_chunk(shape, part, flags[members], version))
        else:
            parts.append(_other_chunk(shape, part, flags[members]))
        positions.append(members)
    return splice_chunks(parts, positions)


def splice_chunks(parts: Sequence[pa.RecordBatch], positions: Sequence[Positions]) -> pa.RecordBatch:
    """One chunk from several, with rows ordered by their positions."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(positions), kind="stable")
    return concat_chunks(parts).take(pa.array(order))


def concat_chunks(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def stored_values(shape: ChunkShape, chunk: pa.RecordBatch) -> pa.Array:
    """The stored value of every row, encoded from the columns where `stored` is null. The shape must be whole or
    raw."""
    stored = chunk.column(STORED)
    absent = stored.null_count
    if not absent:
        return stored
    if absent == len(chunk):
        return _encoded(shape, chunk)
    is_absent = stored.is_null()
    positions = np.cumsum(np.asarray(is_absent.to_numpy(zero_copy_only=False))) - 1
    encoded = _encoded(shape, chunk.filter(is_absent))
    return pc.if_else(is_absent, encoded.take(pa.array(np.maximum(positions, 0))), stored)


def with_completeness(shape: ChunkShape, chunk: pa.RecordBatch) -> pa.RecordBatch:
    """The chunk with its completeness flags recomputed, for columns written by an older schema version. The shape must
    be whole."""
    flags = flags_of(chunk) & np.uint8(0xFF & ~(ChunkFlag.COMPLETE | ChunkFlag.BARE))
    every: Mask = np.ones(len(chunk), np.bool_)
    some: Mask = np.zeros(len(chunk), np.bool_)
    for column in shape.schema.regular:
        valid = valid_of(chunk.column(field_name(column.number)))
        some |= True if valid is None else valid
        if valid is not None and not is_multi_cell(column.type):
            every &= valid
    plain = (flags & ChunkFlag.PLAIN) != 0
    flags |= np.where(plain & every, ChunkFlag.COMPLETE, 0).astype(np.uint8)
    flags |= np.where(plain & ~some, ChunkFlag.BARE, 0).astype(np.uint8)
    found = chunk.set_column(FLAGS, _LEADING[FLAGS], pa.array(flags))
    reduced = reduced_rows(chunk)
    if not reduced.any():
        return found
    chosen = chunk.filter(pa.array(reduced))
    again = chunk_of(shape, chosen.column(KEY), chosen.column(STORED))
    return splice_chunks([found.filter(pa.array(~reduced)), again], [np.flatnonzero(~reduced), np.flatnonzero(reduced)])


def reduced_rows(chunk: pa.RecordBatch) -> Mask:
    """Plain rows whose columns do not show every cell. The shape must not be raw."""
    found: Mask = (flags_of(chunk) & ChunkFlag.PLAIN) != 0
    found &= np.asarray(chunk.column(STORED).is_valid().to_numpy(zero_copy_only=False))
    return found


def reduced_items(chunk: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """Keys and stored values of plain rows whose columns do not show every cell. The shape must not be raw."""
    chosen = chunk.filter(pa.array(reduced_rows(chunk)))
    return zip(chosen.column(KEY).to_pylist(), chosen.column(STORED).to_pylist())


def chunk_facts(chunk: pa.RecordBatch, schema: TableSchema) -> LayerFacts:
    flags = flags_of(chunk)
    plain = (flags & ChunkFlag.PLAIN) != 0
    facts = NO_FACTS
    if plain.any():
        timestamps = timestamps_of(chunk)[plain]
        facts = LayerFacts(least_us=int(timestamps.min()), greatest_us=int(timestamps.max()), rows=len(timestamps))
    if plain.all():
        return facts
    others = chunk.column(STORED).filter(pa.array(~plain)).to_pylist()
    return reduce(LayerFacts.widened, (stored_facts(value, schema.layouts) for value in others), facts)


def _key_columns(shape: ChunkShape, keys: pa.Array) -> dict[int, pa.Array]:
    wanted = [column for column in shape.columns if column.kind is not ColumnKind.REGULAR]
    found = decode_keys(shape.schema, keys, [column.name for column in wanted])
    return {column.number: found[column.name] for column in wanted}


def _assembled(shape: ChunkShape, leading: list[pa.Array], columns: dict[int, pa.Array]) -> pa.RecordBatch:
    count = len(leading[0])
    carried = [
        columns[one.number] if one.number in columns else pa.nulls(count, arrow_type(one.type)) for one in shape.columns
    ]
    return pa.RecordBatch.from_arrays([*leading, *carried], schema=shape.arrow_schema)


def _encoded(shape: ChunkShape, chunk: pa.RecordBatch) -> pa.Array:
    regular = {column.number: chunk.column(field_name(column.number)) for column in shape.schema.regular}
    marked = (flags_of(chunk) & ChunkFlag.MARKED) != 0
    return encode_plain_values(shape.schema, regular, timestamps_of(chunk), marked)
