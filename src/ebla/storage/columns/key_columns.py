"""Encodes and decodes stored keys for whole columns: `key_codec.py` and `model/byte_comparable.py` by vector
operations, bit by bit the same.

Types of fixed width, texts and blobs use vector operations; other clustering columns are converted one value at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.byte_comparable import decode_comparable, encode_comparable
from ebla.model.cql_types import CqlType, Scalar, ScalarType
from ebla.model.errors import Corruption, InvalidRequest, TooLarge
from ebla.model.schema import Column, TableSchema
from ebla.model.token import COMPONENT_BYTES_MAX
from ebla.model.token_columns import tokens_of, tokens_of_rows
from ebla.storage.codec.key_codec import TOKEN_BYTES, KeyKind
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Bytes,
    Mask,
    Positions,
    ValuePart,
    as_matrix,
    byte_run,
    concat_parts,
    gather,
    gather_numbers,
    inverted,
    repeat_value,
    slice_values,
    value_lengths,
)
from ebla.storage.columns.wire_columns import (
    fixed_from_wire,
    fixed_to_wire,
    fixed_width,
    from_wire,
    slices_from_wire,
    to_wire,
    wire_part,
)

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
    parts = [wire_part(column.type, columns[column.name]) for column in schema.partition_key]
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
        return {columns[0].name: slices_from_wire(columns[0].type, run, starts, _partition_ends(run))}
    found = {}
    for column in columns:
        ends = starts + 2 + gather_numbers(run.data, starts, ">u2")
        if column.name in wanted:
            found[column.name] = slices_from_wire(column.type, run, starts + 2, ends)
        starts = ends + 1
    return found


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


# -- clustering columns as ordered bytes -------------------------------------------------------------------------------


_SIGNED = (Scalar.BIGINT, Scalar.INT, Scalar.SMALLINT, Scalar.TIME, Scalar.TIMESTAMP, Scalar.TINYINT)
_FLOATING = (Scalar.DOUBLE, Scalar.FLOAT)
_ESCAPED = (Scalar.ASCII, Scalar.BLOB, Scalar.INET, Scalar.TEXT)
_TIME_FIRST = np.array([6, 7, 4, 5, 0, 1, 2, 3, *range(8, 16)])
_TIME_BACK = np.argsort(_TIME_FIRST)
_TOP_BIT = np.uint8(0x80)
_NANS = {8: np.frombuffer(b"\x7f\xf8" + bytes(6), np.uint8), 4: np.frombuffer(b"\x7f\xc0" + bytes(2), np.uint8)}


@dataclass(frozen=True, slots=True)
class KeyCursor:
    """Where the next clustering component of each key starts. `flipped` is the same bytes inverted, for descending
    components."""

    run: ByteRun
    flipped: ByteRun | None
    positions: Positions

    def moved(self, positions: Positions) -> "KeyCursor":
        return KeyCursor(self.run, self.flipped, positions)


def encode_component(column: Column, values: pa.Array) -> ValuePart:
    part = encode_ascending(column.type, values)
    return inverted(part) if column.descending else part


def decode_component(column: Column, cursor: KeyCursor) -> tuple[pa.Array, KeyCursor]:
    """The typed values of one clustering column, and the cursor after them."""
    run = cursor.flipped if column.descending else cursor.run
    assert run is not None
    width = fixed_width(column.type)
    if width is not None:
        assert isinstance(column.type, ScalarType)
        scalar = column.type.scalar
        stored = width + 1 if scalar is Scalar.UUID else width
        matrix = _fixed_back(scalar, gather(run.data, cursor.positions, stored))
        return fixed_from_wire(column.type, matrix), cursor.moved(cursor.positions + stored)
    if isinstance(column.type, ScalarType) and column.type.scalar in _ESCAPED:
        wire, ends = _unescaped(run, cursor.positions)
        return from_wire(column.type, wire), cursor.moved(ends)
    found = _one_by_one(column.type, run, cursor)
    wire = pa.array([value for value, _ in found], pa.binary())
    return from_wire(column.type, wire), cursor.moved(np.array([end for _, end in found], np.int64))


def _one_by_one(kind: CqlType, run: ByteRun, cursor: KeyCursor) -> list[tuple[bytes, int]]:
    """Each key's bytes are cut out first: some types search for their end in all that follows."""
    found = []
    data = run.data.tobytes()
    for position, end in zip(cursor.positions.tolist(), run.ends.tolist()):
        value, used = decode_comparable(kind, data[position:end], 0)
        found.append((value, position + used))
    return found


def encode_ascending(kind: CqlType, values: pa.Array) -> ValuePart:
    """Self-delimiting bytes that sort in the order of the values."""
    if fixed_width(kind) is not None:
        assert isinstance(kind, ScalarType)
        return _fixed_forth(kind.scalar, fixed_to_wire(kind, values))
    wire = to_wire(kind, values)
    if isinstance(kind, ScalarType) and kind.scalar in _ESCAPED:
        return _escaped(wire)
    return pa.array([encode_comparable(kind, value) for value in wire.to_pylist()], pa.binary())


def _fixed_forth(scalar: Scalar, matrix: Bytes) -> Bytes:
    if scalar in _SIGNED:
        matrix = matrix.copy()
        matrix[:, 0] ^= _TOP_BIT
        return matrix
    if scalar in _FLOATING:
        return _ordered_floats(matrix)
    if scalar is Scalar.TIMEUUID:
        matrix = matrix[:, _TIME_FIRST]
        matrix[:, 8:] ^= _TOP_BIT
        return matrix
    if scalar is Scalar.UUID:
        versions = matrix[:, 6:7] >> 4
        return np.concatenate((versions, np.where(versions == 1, matrix[:, _TIME_FIRST], matrix)), axis=1)
    return matrix


def _fixed_back(scalar: Scalar, matrix: Bytes) -> Bytes:
    if scalar in _SIGNED:
        matrix[:, 0] ^= _TOP_BIT
    elif scalar in _FLOATING:
        positive = matrix[:, :1] >= _TOP_BIT
        matrix = np.where(positive, matrix, ~matrix)
        matrix[:, 0] ^= np.where(positive[:, 0], _TOP_BIT, np.uint8(0))
    elif scalar is Scalar.TIMEUUID:
        matrix[:, 8:] ^= _TOP_BIT
        matrix = matrix[:, _TIME_BACK]
    elif scalar is Scalar.UUID:
        matrix = np.where(matrix[:, :1] == 1, matrix[:, 1:][:, _TIME_BACK], matrix[:, 1:])
    return matrix


def _ordered_floats(matrix: Bytes) -> Bytes:
    width = matrix.shape[1]
    numbers = np.ascontiguousarray(matrix).view(f">f{width}").reshape(len(matrix))
    matrix = np.where(np.isnan(numbers)[:, None], _NANS[width], matrix)
    negative = matrix[:, :1] >= _TOP_BIT
    matrix = np.where(negative, ~matrix, matrix)
    matrix[:, 0] |= np.where(negative[:, 0], np.uint8(0), _TOP_BIT)
    return matrix


def _escaped(wire: pa.Array) -> ValuePart:
    run = byte_run(wire)
    if len(run) and not run.data[run.starts[0] : run.ends[-1]].all():
        wire = pc.replace_substring(wire, b"\0", b"\0\xff")
    return concat_parts((wire, repeat_value(b"\0\0", len(wire))), len(wire))


def _unescaped(run: ByteRun, positions: Positions) -> tuple[pa.Array, Positions]:
    """Texts and blobs up to their terminators, and the positions after those.

    Every zero byte is either escaped (0xff follows) or begins the terminator. Each key finds its next zero; only keys
    whose zero is escaped search again after it.
    """
    zeros = np.flatnonzero(run.data == 0)
    ends = _next_zero(zeros, positions)
    has_escapes: Mask = np.zeros(len(positions), np.bool_)
    open_ones = np.flatnonzero(run.data[ends + 1] != 0)
    while len(open_ones):
        has_escapes[open_ones] = True
        ends[open_ones] = _next_zero(zeros, ends[open_ones] + 2)
        open_ones = open_ones[run.data[ends[open_ones] + 1] != 0]
    wire = slice_values(run, positions, ends)
    if has_escapes.any():
        wire = pc.replace_substring(wire, b"\0\xff", b"\0")
    return wire, ends + 2


def _next_zero(zeros: Positions, positions: Positions) -> Positions:
    return zeros[np.searchsorted(zeros, positions)]
