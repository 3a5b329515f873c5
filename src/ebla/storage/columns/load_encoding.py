"""Encodes batches of typed columns as stored rows, for bulk loads.

Plain rows, rows with cells that expire or are deleted, static cells and deletions are encoded by vector operations;
rows with a multi-cell collection one at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.cql_types import CqlType, ListType, MapType, SetType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, Row, RowMarker, list_path
from ebla.model.schema import TTL_S_MAX, Column, TableSchema
from ebla.model.values import split_elements
from ebla.storage.codec.row_codec import encode_head, encode_row
from ebla.storage.columns.binary_columns import Mask, as_binary, concat_columns, repeat_value, splice_columns
from ebla.storage.columns.key_columns import encode_head_keys, encode_keys
from ebla.storage.columns.row_columns import (
    BatchStamp,
    Seconds,
    encode_cell_values,
    encode_plain_values,
    encode_static_values,
)
from ebla.storage.columns.wire_columns import cast_to_type, check_values, to_wire, valid_of
from ebla.storage.merge.chunk_merge import drop_repeats

BATCH_BYTES_MAX = 1 << 30
"""Arrow counts the bytes of a binary column in 31 bits, and keys and lengths are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStamp:
    """When rows are written. A null is no cell at all (unset), or deletes the cell. With a TTL everything but deletions
    expires that long after `at_s`."""

    timestamp_us: int
    at_s: int
    nulls_delete: bool = False
    ttl_s: int = 0


EncodedRows = tuple[pa.Array, pa.Array]
"""Stored keys and values, in no order; keys may repeat."""
Columns = Mapping[int, pa.Array]
"""Typed columns by number."""


def encode_upserts(
    schema: TableSchema, batch: pa.RecordBatch, stamp: WriteStamp, ttls_s: Seconds | None = None
) -> EncodedRows:
    """Each row as INSERT writes it. `ttls_s`: of each row, instead of the stamp's. Rows without any clustering column
    have only static cells."""
    columns, count = _typed(schema, batch), len(batch)
    batch_stamp = BatchStamp(
        timestamp_us=stamp.timestamp_us,
        at_s=stamp.at_s,
        nulls_delete=stamp.nulls_delete,
        ttls_s=_checked_ttls(stamp, ttls_s, count),
    )
    static = {column.number: columns[column.name] for column in schema.static if column.name in columns}
    parts = []
    is_head = _static_alone(schema, columns, count) if static else None
    if static:
        parts.append(_heads(schema, columns, static, batch_stamp))
    if is_head is not None:
        members = np.flatnonzero(~is_head)
        chosen = pa.array(members)
        columns = {name: values.take(chosen) for name, values in columns.items()}
        count, batch_stamp = len(members), batch_stamp.of(members)
    if count:
        regular = {column.number: columns[column.name] for column in schema.regular if column.name in columns}
        parts.append((encode_keys(schema, columns, count), _row_values(schema, regular, batch_stamp)))
    return concat_columns([keys for keys, _ in parts]), concat_columns([values for _, values in parts])


def encode_row_deletions(schema: TableSchema, batch: pa.RecordBatch, stamp: WriteStamp) -> EncodedRows:
    """Deletes the rows of these keys. Other columns than those of the key are ignored."""
    columns = _typed(schema, _only(batch, (*schema.partition_key, *schema.clustering)))
    gone = Row(deletion=Deletion(stamp.timestamp_us, stamp.at_s))
    value = encode_row(gone, schema.version, schema.layouts[-1])
    return encode_keys(schema, columns, len(batch)), as_binary(repeat_value(value, len(batch)))


def encode_partition_deletions(schema: TableSchema, batch: pa.RecordBatch, stamp: WriteStamp) -> EncodedRows:
    """Deletes the partitions of these keys. Other columns than those of the partition key are ignored."""
    if not schema.clustering:
        return encode_row_deletions(schema, batch, stamp)  # as CQL does: a partition is one row
    columns = _typed(schema, _only(batch, schema.partition_key))
    value = encode_head(PartitionHead(Deletion(stamp.timestamp_us, stamp.at_s)), schema.version)
    return encode_head_keys(schema, columns, len(batch)), as_binary(repeat_value(value, len(batch)))


def element_cells(kind: CqlType, value: bytes, cell: Callable[[bytes], Cell], timestamp_us: int) -> dict[bytes, Cell]:
    """The cells of a whole collection, given in wire form."""
    match kind:
        case ListType():
            parts = enumerate(split_elements(value, 1))
            return {list_path(timestamp_us, position): cell(_element(part)) for position, part in parts}
        case SetType():
            return {_element(part): cell(b"") for part in split_elements(value, 1)}
        case MapType():
            parts_of_map = split_elements(value, 2)
            pairs = zip(parts_of_map[::2], parts_of_map[1::2], strict=True)
            return {_element(key): cell(_element(part)) for key, part in pairs}
        case _:
            raise AssertionError(f"a {kind} has one cell")


def _element(part: bytes | None) -> bytes:
    if part is None:
        raise InvalidRequest("null is not supported inside collections")
    return part


def _only(batch: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
    return batch.select([column.name for column in columns if column.name in batch.schema.names])


def _typed(schema: TableSchema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    if batch.nbytes > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has {batch.nbytes} bytes, at most {BATCH_BYTES_MAX} go into one")
    columns: dict[str, pa.Array] = {}
    for name, values in zip(batch.schema.names, batch.columns):
        column = schema.column(name)
        if name in columns:
            raise InvalidRequest(f"column {name!r} is given twice")
        columns[name] = cast_to_type(column.type, values)
        check_values(column.type, columns[name])
    return columns


def _checked_ttls(stamp: WriteStamp, ttls_s: Seconds | None, count: int) -> Seconds:
    if ttls_s is None:
        ttls_s = np.full(count, stamp.ttl_s, np.int64)
    assert len(ttls_s) == count
    if count and not 0 <= ttls_s.min() <= ttls_s.max() <= TTL_S_MAX:
        wrong = ttls_s.min() if ttls_s.min() < 0 else ttls_s.max()
        raise InvalidRequest(f"a TTL of {wrong} s is not possible: 0 to {TTL_S_MAX}, where 0 is for ever")
    return ttls_s


# ---- rows


def _row_values(schema: TableSchema, columns: Columns, batch_stamp: BatchStamp) -> pa.Array:
    """Encodes each row in the way that fits it."""
    many = [number for number in columns if is_multi_cell(schema.by_number[number].type)]
    by_cells = _has_own_cells(columns, many, batch_stamp)
    one_by_one = _has_elements(columns, many, batch_stamp)
    ways: tuple[tuple[Mask, Callable[[TableSchema, Columns, BatchStamp], pa.Array]], ...] = (
        (~by_cells & ~one_by_one, _plain_values),
        (by_cells & ~one_by_one, encode_cell_values),
        (one_by_one, _encoded_one_by_one),
    )
    single = {number: values for number, values in columns.items() if number not in many}
    parts, positions = [], []
    for chosen, encode in ways:
        left = columns if encode is _encoded_one_by_one else single
        if chosen.all():
            return encode(schema, left, batch_stamp)
        if chosen.any():
            members = np.flatnonzero(chosen)
            taken = {number: values.take(pa.array(members)) for number, values in left.items()}
            parts.append(encode(schema, taken, batch_stamp.of(members)))
            positions.append(members)
    return splice_columns(parts, positions)


def _has_own_cells(columns: Columns, many: list[int], batch_stamp: BatchStamp) -> Mask:
    """Rows with a cell that expires or is deleted."""
    found: Mask = batch_stamp.ttls_s > 0
    if batch_stamp.nulls_delete:
        for number, values in columns.items():
            valid = valid_of(values)
            if number not in many and valid is not None:
                found = found | ~valid
    return found


def _has_elements(columns: Columns, many: list[int], batch_stamp: BatchStamp) -> Mask:
    """Rows that set or delete a multi-cell collection."""
    found: Mask = np.zeros(len(batch_stamp), np.bool_)
    for number in many:
        valid = valid_of(columns[number])
        found |= True if valid is None or batch_stamp.nulls_delete else valid
    return found


def _plain_values(schema: TableSchema, columns: Columns, batch_stamp: BatchStamp) -> pa.Array:
    timestamps = np.full(len(batch_stamp), batch_stamp.timestamp_us, np.int64)
    return encode_plain_values(schema, columns, timestamps, np.ones(len(batch_stamp), np.bool_))


def _encoded_one_by_one(schema: TableSchema, columns: Columns, batch_stamp: BatchStamp) -> pa.Array:
    rows = _drafted(schema, columns, batch_stamp, marked=True)
    return pa.array([encode_row(row, schema.version, schema.layouts[-1]) for row in rows], pa.binary())


def _drafted(schema: TableSchema, columns: Columns, batch_stamp: BatchStamp, *, marked: bool) -> list[Row]:
    """The cells and collections of each row."""
    times = list(zip(batch_stamp.ttls_s.tolist(), batch_stamp.expiries_s.tolist()))
    drafts = [_Draft(batch_stamp, *one) for one in times]
    markers = [RowMarker(batch_stamp.timestamp_us, *one) if marked else None for one in times]
    rows = [Row(marker=marker, cells={}, collections={}) for marker in markers]
    for number, values in columns.items():
        column = schema.by_number[number]
        for row, draft, value in zip(rows, drafts, to_wire(column.type, values).to_pylist()):
            if value is None and not batch_stamp.nulls_delete:
                continue
            if is_multi_cell(column.type):
                row.collections[number] = draft.elements(column, value)
            else:
                row.cells[number] = draft.dead() if value is None else draft.live(value)
    return rows


@dataclass(frozen=True, slots=True)
class _Draft:
    """Cells of one row."""

    batch_stamp: BatchStamp
    ttl_s: int
    expires_s: int

    def live(self, value: bytes) -> Cell:
        return Cell(timestamp_us=self.batch_stamp.timestamp_us, value=value, ttl_s=self.ttl_s, at_s=self.expires_s)

    def dead(self) -> Cell:
        return Cell(timestamp_us=self.batch_stamp.timestamp_us, value=None, ttl_s=0, at_s=self.batch_stamp.at_s)

    def elements(self, column: Column, value: bytes | None) -> CollectionCells:
        """Assigning a collection deletes its old elements, one microsecond earlier."""
        timestamp_us, at_s = self.batch_stamp.timestamp_us, self.batch_stamp.at_s
        if value is None:
            return CollectionCells(Deletion(timestamp_us, at_s))
        cells = element_cells(column.type, value, self.live, timestamp_us)
        return CollectionCells(Deletion(timestamp_us - 1, at_s), cells)


# ---- static cells


def _static_alone(schema: TableSchema, columns: Mapping[str, pa.Array], count: int) -> Mask | None:
    """Which rows have a partition key and no clustering key; None where none does."""
    alone: Mask = np.ones(count, np.bool_)
    for column in schema.clustering:
        values = columns.get(column.name)
        if values is not None:
            valid = valid_of(values)
            if valid is None:
                return None
            alone &= ~valid
    if not alone.any():
        return None
    for column in schema.regular:
        valid = valid_of(columns[column.name]) if column.name in columns else ~alone
        if valid is None or (alone & valid).any():
            raise InvalidRequest(
                f"rows of {schema.full_name} have a value in {column.name!r} and no clustering key",
                advice="without a clustering key only static columns may have values",
            )
    return alone


def _heads(
    schema: TableSchema, columns: Mapping[str, pa.Array], static: Columns, batch_stamp: BatchStamp
) -> EncodedRows:
    """A head for each row with static cells; heads of one partition are merged later."""
    some: npt.NDArray[np.bool_] = np.zeros(len(batch_stamp), np.bool_)
    for values in static.values():
        valid = valid_of(values)
        some |= True if valid is None or batch_stamp.nulls_delete else valid
    members = np.flatnonzero(some)
    chosen = pa.array(members)
    taken = {number: values.take(chosen) for number, values in static.items()}
    partitions = {column.name: columns[column.name] for column in schema.partition_key if column.name in columns}
    keys = encode_head_keys(schema, {name: values.take(chosen) for name, values in partitions.items()}, len(members))
    if any(is_multi_cell(schema.by_number[number].type) for number in static):
        rows = _drafted(schema, taken, batch_stamp.of(members), marked=False)
        heads = pa.array([encode_head(PartitionHead(static=row), schema.version) for row in rows], pa.binary())
    else:
        heads = encode_static_values(schema, taken, batch_stamp.of(members))
    return drop_repeats(keys, heads)
