"""Encodes and decodes stored keys for whole columns: `key_codec.py` by vector operations."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.cql_types import ScalarType
from ebla.model.errors import Corruption, InvalidRequest, TooLarge
from ebla.model.schema import Column, TableSchema
from ebla.model.token import COMPONENT_BYTES_MAX
from ebla.model.token_columns import tokens_of, tokens_of_rows
from ebla.storage.codec.key_codec import TOKEN_BYTES, KeyKind
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Bytes,
    Positions,
    ValuePart,
    as_matrix,
    byte_run,
    concat_parts,
    gather,
    gather_numbers,
    repeat_value,
    slice_values,
    value_lengths,
)
from ebla.storage.columns.comparable_columns import KeyCursor, decode_component, encode_component
from ebla.storage.columns.wire_columns import fixed_from_wire, fixed_to_wire, fixed_width, from_wire, to_wire

_SIGN = np.uint64(1 << 63)
TypedColumns = Mapping[str, pa.Array]
"""Columns by name, each in the Arrow type of its CQL type."""


def encode_keys(schema: TableSchema, columns: TypedColumns, count: int) -> pa.Array:
    """The keys of rows, in the order of the rows. `InvalidRequest` where a key column is missing, null or empty."""
    for column in schema.clustering:
        _check_key_column(schema, column, columns)
    prefix = _partition_pieces(schema, columns, count)
    clustering = [encode_component(column, columns[column.name]) for column in schema.clustering]
    kind = repeat_value(bytes((KeyKind.ROW,)), count)
    return concat_parts((*prefix, kind, *clustering), count)


def encode_head_keys(schema: TableSchema, columns: TypedColumns, count: int) -> pa.Array:
    """The keys of the rows' partition heads. `InvalidRequest` where a column of the partition key is missing, null or
    empty."""
    kind = repeat_value(bytes((KeyKind.PARTITION_HEAD,)), count)
    return concat_parts((*_partition_pieces(schema, columns, count), kind), count)


def token_words(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each key as numbers of the same order."""
    run = byte_run(keys)
    return gather(run.data, run.starts, TOKEN_BYTES).view(">u8").reshape(len(run)).astype(np.uint64)


def key_kinds(keys: pa.Array) -> Bytes:
    """The kind byte of each key."""
    run = byte_run(keys)
    return run.data[_partition_ends(run)]


def decode_keys(schema: TableSchema, keys: pa.Array, wanted: Sequence[str]) -> dict[str, pa.Array]:
    """The wanted key columns, by name. Clustering columns of partition heads are null."""
    if not wanted:
        return {}
    run = byte_run(keys)
    try:
        found = _decode_partition(schema, run, wanted)
        if any(column.name in wanted for column in schema.clustering):
            found.update(_decode_clustering(schema, keys))
    except IndexError as error:
        raise Corruption(f"a key of {schema.full_name} ends too early ({error})") from error
    return {name: found[name] for name in wanted}


def _partition_pieces(schema: TableSchema, columns: TypedColumns, count: int) -> tuple[ValuePart, ...]:
    for column in schema.partition_key:
        _check_key_column(schema, column, columns)
    partition = _partition_key(schema, columns, count)
    tokens = tokens_of(partition) if isinstance(partition, pa.Array) else tokens_of_rows(partition)
    return as_matrix(tokens.view(np.uint64) ^ _SIGN, ">u8"), _length_of(partition), partition


def _check_key_column(schema: TableSchema, column: Column, columns: TypedColumns) -> None:
    values = columns.get(column.name)
    if values is None:
        raise InvalidRequest(f"key column {column.name!r} of {schema.full_name} is missing")
    if values.null_count:
        raise InvalidRequest(f"key column {column.name!r} of {schema.full_name} is null in {values.null_count} rows")


def _partition_key(schema: TableSchema, columns: TypedColumns, count: int) -> ValuePart:
    parts = [_wire_piece(column, columns[column.name]) for column in schema.partition_key]
    if len(parts) == 1:
        if isinstance(parts[0], pa.Array) and not value_lengths(parts[0]).all():
            raise InvalidRequest(f"the partition key of {schema.full_name} is empty in some rows")
        return parts[0]
    pieces: list[ValuePart] = []
    for part in parts:
        pieces += (_length_of(part), part, repeat_value(b"\0", count))
    if all(not isinstance(piece, pa.Array) for piece in pieces):
        return np.concatenate(pieces, axis=1)
    return concat_parts(pieces, count)


def _wire_piece(column: Column, values: pa.Array) -> ValuePart:
    if fixed_width(column.type) is None:
        return to_wire(column.type, values)
    assert isinstance(column.type, ScalarType)
    return fixed_to_wire(column.type.scalar, values)


def _length_of(part: ValuePart) -> Bytes:
    """The length of each part in two bytes."""
    if not isinstance(part, pa.Array):
        return repeat_value(part.shape[1].to_bytes(2), len(part))
    sizes = value_lengths(part)
    if len(sizes) and sizes.max() > COMPONENT_BYTES_MAX:
        raise TooLarge(f"a partition key has {sizes.max()} bytes, at most {COMPONENT_BYTES_MAX} are allowed")
    return as_matrix(sizes, ">u2")


def _partition_ends(run: ByteRun) -> Positions:
    starts = run.starts + TOKEN_BYTES
    return starts + 2 + gather_numbers(run.data, starts, ">u2")


def _decode_partition(schema: TableSchema, run: ByteRun, wanted: Sequence[str]) -> dict[str, pa.Array]:
    starts = run.starts + TOKEN_BYTES + 2
    columns = schema.partition_key
    if len(columns) == 1:
        return {columns[0].name: _wire_values(columns[0], run, (starts, _partition_ends(run)))}
    found = {}
    for column in columns:
        ends = starts + 2 + gather_numbers(run.data, starts, ">u2")
        if column.name in wanted:
            found[column.name] = _wire_values(column, run, (starts + 2, ends))
        starts = ends + 1
    return found


def _wire_values(column: Column, run: ByteRun, bounds: tuple[Positions, Positions]) -> pa.Array:
    starts, ends = bounds
    width = fixed_width(column.type)
    if width is None:
        return from_wire(column.type, slice_values(run, starts, ends))
    assert isinstance(column.type, ScalarType)
    return fixed_from_wire(column.type.scalar, gather(run.data, starts, width))


def _decode_clustering(schema: TableSchema, keys: pa.Array) -> dict[str, pa.Array]:
    is_row = key_kinds(keys) == KeyKind.ROW
    if is_row.all():
        return _decode_row_clustering(schema, byte_run(keys))
    found = _decode_row_clustering(schema, byte_run(keys.filter(pa.array(is_row))))
    positions = pa.array(np.cumsum(is_row) - 1, mask=~is_row)
    return {name: values.take(positions) for name, values in found.items()}


def _decode_row_clustering(schema: TableSchema, run: ByteRun) -> dict[str, pa.Array]:
    """Decodes all of them: each one's start depends on the end of the one before."""
    flipped = run.inverted() if any(column.descending for column in schema.clustering) else None
    cursor = KeyCursor(run, flipped, _partition_ends(run) + 1)
    found = {}
    for column in schema.clustering:
        found[column.name], cursor = decode_component(column, cursor)
    if not (cursor.positions == run.ends).all():
        raise Corruption(f"a key of {schema.full_name} holds other bytes than its clustering columns")
    return found


def partition_prefixes(keys: pa.Array) -> pa.Array:
    """The partition prefix of each key."""
    run = byte_run(keys)
    return slice_values(run, run.starts, _partition_ends(run))
