"""Filters rows by conditions on key columns, by vector operations and in CQL's order of each type; and finds the part
of
a partition outside of which no row can match."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.byte_comparable import canonical
from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.selection import KeyCondition, KeyOperator
from ebla.model.values import validation_error
from ebla.storage.codec.key_codec import KeySpan, encode_clustering, head_key, prefix_end, row_key
from ebla.storage.columns.binary_columns import Mask, as_binary, byte_run
from ebla.storage.columns.chunks import KEY, ChunkFlag, ChunkShape, field_name, flags_of
from ebla.storage.columns.key_columns import decode_keys, encode_ascending
from ebla.storage.columns.wire_columns import slices_from_wire, wire_part

_IN_ARROWS_ORDER = (
    Scalar.ASCII, Scalar.BIGINT, Scalar.BLOB, Scalar.DATE, Scalar.INT, Scalar.SMALLINT, Scalar.TEXT, Scalar.TIME,
    Scalar.TIMESTAMP, Scalar.TINYINT,
)  # fmt: skip
_EQUAL_IN_ARROW = (*_IN_ARROWS_ORDER, Scalar.BOOLEAN, Scalar.TIMEUUID, Scalar.UUID)
_COMPARE: dict[KeyOperator, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    KeyOperator.EQUAL: pc.equal,
    KeyOperator.LESS: pc.less,
    KeyOperator.LESS_OR_EQUAL: pc.less_equal,
    KeyOperator.GREATER: pc.greater,
    KeyOperator.GREATER_OR_EQUAL: pc.greater_equal,
}
_EQUALITIES = (KeyOperator.EQUAL, KeyOperator.IN)
_LOWER = (KeyOperator.GREATER, KeyOperator.GREATER_OR_EQUAL)
_UPPER = (KeyOperator.LESS, KeyOperator.LESS_OR_EQUAL)


@dataclass(frozen=True, slots=True)
class _Test:
    """A condition with its typed operands."""

    column: Column
    operator: KeyOperator
    against: pa.Array

    @property
    def of_rows(self) -> bool:
        """Whether the column is a clustering column, which heads do not have."""
        return self.column.kind is ColumnKind.CLUSTERING

    def met(self, values: pa.Array) -> Mask:
        """A null never matches."""
        valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        found: Mask = np.zeros(len(values), np.bool_)
        found[valid] = self._compared(values.drop_null() if values.null_count else values)
        return found

    def _compared(self, values: pa.Array) -> Mask:
        values = _comparable(self.column, values, self.operator)
        if self.operator is KeyOperator.IN:
            answers = pc.is_in(values, value_set=self.against)
        else:
            answers = _COMPARE[self.operator](values, self.against[0])
        return np.asarray(answers.to_numpy(zero_copy_only=False))


class KeyFilter:
    """All conditions of a query. Raises `InvalidRequest` where one is not possible."""

    def __init__(self, schema: TableSchema, conditions: Sequence[KeyCondition]) -> None:
        self._schema = schema
        self._tests = [_test(schema, one) for one in conditions]

    @property
    def needs_rows(self) -> bool:
        """Whether a partition without rows cannot match."""
        return any(test.of_rows for test in self._tests)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(test.column.number for test in self._tests))

    def kept(self, shape: ChunkShape, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match. The head of a partition is kept where rows of it may match, since it applies to them."""
        if not self._tests or not len(chunk):
            return chunk
        columns = self._columns(shape, chunk)
        is_head: Mask = (flags_of(chunk) & ChunkFlag.HEAD) != 0
        keep: Mask = np.ones(len(chunk), np.bool_)
        for test in self._tests:
            met = test.met(columns[test.column.name])
            keep &= (met | is_head) if test.of_rows else met
        return chunk if keep.all() else chunk.filter(pa.array(keep))

    def _columns(self, shape: ChunkShape, chunk: pa.RecordBatch) -> dict[str, pa.Array]:
        wanted = {test.column.name: test.column.number for test in self._tests}
        if all(number in shape.numbers for number in wanted.values()):
            return {name: chunk.column(field_name(number)) for name, number in wanted.items()}
        return decode_keys(self._schema, chunk.column(KEY), list(wanted))


def _test(schema: TableSchema, condition: KeyCondition) -> _Test:
    column = schema.column(condition.column)
    if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(
            f"{column.name!r} is not part of the key of {schema.full_name}: it cannot have a condition"
        )
    if condition.operator is not KeyOperator.IN and len(condition.values) != 1:
        raise InvalidRequest(
            f"a condition {condition.operator} on {column.name!r} takes one value, not {len(condition.values)}"
        )
    for value in condition.values:
        if (wrong := validation_error(column.type, value)) is not None:
            raise InvalidRequest(f"a condition on {column.name!r} has a value that is not a {column.type}: {wrong}")
    run = byte_run(pa.array([canonical(column.type, value) for value in condition.values], pa.binary()))
    typed = slices_from_wire(column.type, run, run.starts, run.ends)
    return _Test(column, condition.operator, _comparable(column, typed, condition.operator))


def _comparable(column: Column, values: pa.Array, operator: KeyOperator) -> pa.Array:
    """Values in a form that Arrow compares as CQL does: most unchanged, others as byte-comparable encodings.

    Partition keys are equal where their bytes are (0.0 and -0.0 differ); clustering keys where neither sorts before the
    other."""
    kind = column.type
    by_value = _EQUAL_IN_ARROW if operator in _EQUALITIES else _IN_ARROWS_ORDER
    if isinstance(kind, ScalarType) and kind.scalar in by_value:
        return values
    if operator in _EQUALITIES and column.kind is ColumnKind.PARTITION_KEY:
        return as_binary(wire_part(kind, values))
    return as_binary(encode_ascending(kind, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringSlice:
    """Rows of a partition whose clustering bytes begin with `start` or sort later, and begin with `end` or sort
    earlier;
    the flags exclude those that begin with the bound."""

    start: bytes = b""
    end: bytes = b""
    is_after_start: bool = False
    is_before_end: bool = False

    def spans(self, prefix: bytes) -> list[KeySpan]:
        """The spans of one partition. Its head is included, since it applies to every slice."""
        if self == _ALL_ROWS:
            return [(prefix, prefix_end(prefix))]
        first, last = row_key(prefix, self.start), row_key(prefix, self.end)
        first = prefix_end(first) if self.is_after_start else first
        last = last if self.is_before_end else prefix_end(last)
        head = head_key(prefix)
        return [(head, head + b"\0"), *([(first, last)] if first < last else [])]


_ALL_ROWS = ClusteringSlice()


def clustering_slice(schema: TableSchema, conditions: Sequence[KeyCondition]) -> ClusteringSlice:
    """Uses equalities on the first clustering columns, then bounds on the next one; conditions on other columns do not
    narrow the slice. A `KeyFilter` must have checked the conditions."""
    equal: list[bytes] = []
    for position, column in enumerate(schema.clustering):
        of_column = [one for one in conditions if one.column == column.name]
        same = next((one for one in of_column if one.operator is KeyOperator.EQUAL), None)
        if same is None:
            columns = schema.clustering[: position + 1]
            return _bounded(columns, equal, of_column)
        equal.append(canonical(column.type, same.values[0]))
    prefix = encode_clustering(schema.clustering, equal)
    return ClusteringSlice(start=prefix, end=prefix)


def _bounded(columns: Sequence[Column], equal: Sequence[bytes], conditions: Sequence[KeyCondition]) -> ClusteringSlice:
    """If the last column is descending, its greater values come first."""
    prefix = encode_clustering(columns, equal)
    column = columns[-1]
    from_below, from_above = (_UPPER, _LOWER) if column.descending else (_LOWER, _UPPER)
    start = end = prefix
    is_after_start = is_before_end = False
    for one in conditions:
        if one.operator in (KeyOperator.EQUAL, KeyOperator.IN):
            continue
        bound = encode_clustering(columns, [*equal, canonical(column.type, one.values[0])])
        is_open = one.operator in (KeyOperator.LESS, KeyOperator.GREATER)
        if one.operator in from_below and (bound, is_open) >= (start, is_after_start):
            start, is_after_start = bound, is_open
        elif one.operator in from_above and (end == prefix or (bound, not is_open) <= (end, not is_before_end)):
            end, is_before_end = bound, is_open
    return ClusteringSlice(start=start, end=end, is_after_start=is_after_start, is_before_end=is_before_end)
