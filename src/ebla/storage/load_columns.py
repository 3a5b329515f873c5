"""Batches of typed columns as stored rows, ready for a layer: what a bulk load writes.

Rows without collections of many cells, static cells and deleted cells are encoded by vector operations; of the others
only what is special goes one row at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from ebla.model.cql_types import CqlType, ListType, MapType, SetType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, Deletion, Elements, Head, Row, list_path
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.values import split_elements
from ebla.storage.byte_columns import Mask
from ebla.storage.columns import Shape, chunk_of
from ebla.storage.key_codec import head_key
from ebla.storage.key_columns import encode_keys, partition_prefixes
from ebla.storage.merge_chunks import resolved
from ebla.storage.plain_columns import encode_plain_values
from ebla.storage.row_codec import decode_row, encode_head, encode_row
from ebla.storage.wire_columns import check_values, conformed, to_wire, valid_of

BATCH_BYTES_MAX = 1 << 30
"""Arrow counts the bytes of a binary column in 31 bits, and keys and lengths come on top."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When rows are written. A null is no cell at all (unset), or deletes the cell."""

    timestamp_us: int
    at_s: int
    nulls_delete: bool = False


def encode_batch(schema: TableSchema, batch: pa.RecordBatch, stamp: Stamp) -> pa.RecordBatch:
    """A chunk of the raw shape. A key that is there twice is merged by the one rule of all rows. `InvalidRequest`
    where a column is unknown, or a value is not of its type."""
    if batch.nbytes > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has {batch.nbytes} bytes, at most {BATCH_BYTES_MAX} go into one")
    columns = _typed(schema, batch)
    count = len(batch)
    keys = encode_keys(schema, columns, count)
    regular = {column.number: columns[column.name] for column in schema.regular if column.name in columns}
    single = {number: values for number, values in regular.items() if not is_multi_cell(schema.by_number[number].type)}
    timestamps = np.full(count, stamp.timestamp_us, np.int64)
    values = encode_plain_values(schema, single, timestamps, np.ones(count, np.bool_))
    values = _with_special(schema, values, regular, stamp)
    static = {column.number: columns[column.name] for column in schema.static if column.name in columns}
    if static:
        head_keys, heads = _heads(schema, partition_prefixes(keys), static, stamp)
        keys, values = pa.concat_arrays([keys, head_keys]), pa.concat_arrays([values, heads])
    shape = Shape(schema)
    return resolved(shape, chunk_of(shape, keys, values))


def element_cells(kind: CqlType, value: bytes, timestamp_us: int) -> dict[bytes, Cell]:
    """The cells of a whole collection, given in wire form."""
    match kind:
        case ListType():
            parts = enumerate(split_elements(value, 1))
            return {list_path(timestamp_us, place): Cell(timestamp_us, part) for place, part in parts}
        case SetType():
            return {part: Cell(timestamp_us, b"") for part in split_elements(value, 1) if part is not None}
        case MapType():
            parts_of_map = split_elements(value, 2)
            pairs = zip(parts_of_map[::2], parts_of_map[1::2], strict=True)
            return {key: Cell(timestamp_us, part) for key, part in pairs if key is not None}
        case _:
            raise AssertionError(f"a {kind} has one cell")


def _typed(schema: TableSchema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for name, values in zip(batch.schema.names, batch.columns):
        column = schema.column(name)
        if name in columns:
            raise InvalidRequest(f"column {name!r} is given twice")
        columns[name] = conformed(column.type, values)
        check_values(column.type, columns[name])
    return columns


def _with_special(schema: TableSchema, values: pa.Array, regular: Mapping[int, pa.Array], stamp: Stamp) -> pa.Array:
    """The values, with those rows rewritten that have more than plain cells."""
    special: Mask = np.zeros(len(values), np.bool_)
    for number, column in regular.items():
        valid = valid_of(column)
        if is_multi_cell(schema.by_number[number].type):
            special |= True if valid is None or stamp.nulls_delete else valid
        elif valid is not None and stamp.nulls_delete:
            special |= ~valid
    if not special.any():
        return values
    chosen = pa.array(np.flatnonzero(special))
    additions = _additions(schema, {number: column.take(chosen) for number, column in regular.items()}, stamp)
    rewritten = []
    for value, addition in zip(values.take(chosen).to_pylist(), additions):
        row = decode_row(value, schema.layouts)
        cells = {**row.cells, **addition.cells}
        row = msgspec.structs.replace(row, cells=cells, collections=addition.collections)
        rewritten.append(encode_row(row, schema.version, schema.layouts[-1]))
    places = np.where(special, len(values) + np.cumsum(special) - 1, np.arange(len(values)))
    return pa.concat_arrays([values, pa.array(rewritten, pa.binary())]).take(pa.array(places))


def _additions(schema: TableSchema, columns: Mapping[int, pa.Array], stamp: Stamp) -> list[Row]:
    """For each row its deleted cells, and its collections."""
    count = len(next(iter(columns.values())))
    found: list[Row] = [Row(cells={}, collections={}) for _ in range(count)]
    for number, values in columns.items():
        column = schema.by_number[number]
        for row, value in zip(found, _wire_list(column, values)):
            if is_multi_cell(column.type):
                if value is not None or stamp.nulls_delete:
                    row.collections[number] = _elements(column, value, stamp)
            elif value is None and stamp.nulls_delete:
                row.cells[number] = Cell(stamp.timestamp_us, None, 0, stamp.at_s)
    return found


def _elements(column: Column, value: bytes | None, stamp: Stamp) -> Elements:
    """Assigning a collection deletes what it held, a microsecond before."""
    if value is None:
        return Elements(Deletion(stamp.timestamp_us, stamp.at_s))
    deletion = Deletion(stamp.timestamp_us - 1, stamp.at_s)
    return Elements(deletion, element_cells(column.type, value, stamp.timestamp_us))


def _wire_list(column: Column, values: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = to_wire(column.type, values).to_pylist()
    return found


def _heads(
    schema: TableSchema, prefixes: pa.Array, static: Mapping[int, pa.Array], stamp: Stamp
) -> tuple[pa.Array, pa.Array]:
    """A head for each row that has static cells; those of one partition are merged later."""
    additions = _additions(schema, static, stamp)
    for number, values in static.items():
        column = schema.by_number[number]
        assert column.kind is ColumnKind.STATIC
        if is_multi_cell(column.type):
            continue
        for row, value in zip(additions, _wire_list(column, values)):
            if value is not None:
                row.cells[number] = Cell(stamp.timestamp_us, value)
    keys, heads = [], []
    for prefix, row in zip(prefixes.to_pylist(), additions):
        if row.cells or row.collections:
            keys.append(head_key(prefix))
            heads.append(encode_head(Head(static=row), schema.version))
    return pa.array(keys, pa.binary()), pa.array(heads, pa.binary())
