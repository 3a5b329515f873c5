"""Encodes Spark's batches as stored rows: storage's types, the job's timestamp and TTL, and the operation of each row.

With an operation column each row says what to do: `upsert` writes its columns, `delete` deletes the row of its key
whatever the other columns hold, `delete_partition` deletes the partition and uses the partition key alone. A job has
one timestamp, so a deletion also covers what the same job writes to that row or partition.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.source.arrow_conversion import column_to_stored
from ebla.source.options import NullHandling, TimestampPrecision, WriteOptions
from ebla.source.suggestions import find_column
from ebla.storage.columns.binary_columns import Mask, concat_columns
from ebla.storage.columns.load_encoding import (
    EncodedRows,
    WriteStamp,
    encode_partition_deletions,
    encode_row_deletions,
    encode_upserts,
)
from ebla.storage.columns.row_columns import Seconds
from ebla.storage.columns.wire_columns import valid_of
from ebla.wire.table_calls import StagingPlan

SHOWN_CHARACTERS = 80


class RowOperation(enum.StrEnum):
    UPSERT = "upsert"
    """Also where the column is null."""
    DELETE = "delete"
    DELETE_PARTITION = "delete_partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEncoding:
    """How Spark's rows become rows of the table."""

    schema: TableSchema
    stamp: WriteStamp
    ttl_column: str = ""
    """Holds the TTL of each row in seconds; where it is null, the stamp's TTL applies. Empty: no such column."""
    op_column: str = ""
    cuts_timestamps: bool = False

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Columns of the DataFrame that are not columns of the table."""
        return tuple(name for name in (self.ttl_column, self.op_column) if name)


def row_encoding(options: WriteOptions, plan: StagingPlan) -> RowEncoding:
    """All times follow from the job's timestamp, so a job that runs again writes exactly the same."""
    schema = plan.schema
    stamp = WriteStamp(
        timestamp_us=plan.timestamp_us,
        at_s=plan.timestamp_us // 1_000_000,
        nulls_delete=options.nulls is NullHandling.DELETE,
        ttl_s=schema.options.default_ttl_s if options.ttl_s is None else options.ttl_s,
    )
    return RowEncoding(
        schema=schema,
        stamp=stamp,
        ttl_column=options.ttl_column,
        op_column=options.op_column,
        cuts_timestamps=options.timestamps is TimestampPrecision.CUT,
    )


def encode_rows(encoding: RowEncoding, batch: pa.RecordBatch) -> EncodedRows:
    """In no order; a key may occur several times. `InvalidRequest` names the column, and the row by its key."""
    typed, ttls_s = stored_columns(encoding, batch)
    parts = [
        _encoded(encoding, operation, *_chosen(typed, ttls_s, members))
        for operation, members in rows_by_operation(encoding, batch).items()
    ]
    return concat_columns([keys for keys, _ in parts]), concat_columns([values for _, values in parts])


def stored_columns(encoding: RowEncoding, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Seconds | None]:
    """The table's columns in storage's types, and the TTL of each row where rows have their own."""
    columns = {
        name: find_column(encoding.schema, name) for name in batch.schema.names if name not in encoding.own_columns
    }
    arrays = [
        column_to_stored(column.type, batch.column(name), name, cuts_timestamps=encoding.cuts_timestamps)
        for name, column in columns.items()
    ]
    ttls_s = _ttls(encoding, batch.column(encoding.ttl_column)) if encoding.ttl_column else None
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns.values()]), ttls_s


def rows_by_operation(encoding: RowEncoding, batch: pa.RecordBatch) -> dict[RowOperation, Mask | None]:
    """The rows of each operation; None: all of them."""
    if not encoding.op_column:
        return {RowOperation.UPSERT: None}
    words = pc.utf8_lower(batch.column(encoding.op_column).cast(pa.string())).fill_null(RowOperation.UPSERT.value)
    by_operation: dict[RowOperation, Mask | None] = {}
    for word in pc.unique(words).to_pylist():
        if word not in list(RowOperation):
            raise InvalidRequest(
                f"column {encoding.op_column!r} holds {word[:SHOWN_CHARACTERS]!r}",
                advice=f"it may hold {', '.join(RowOperation)}; null is upsert",
            )
        by_operation[RowOperation(word)] = np.asarray(pc.equal(words, word).to_numpy(zero_copy_only=False))
    return by_operation if len(by_operation) > 1 else dict.fromkeys(by_operation)


_ENCODERS: Mapping[RowOperation, Callable[[TableSchema, pa.RecordBatch, WriteStamp], EncodedRows]] = {
    RowOperation.DELETE: encode_row_deletions,
    RowOperation.DELETE_PARTITION: encode_partition_deletions,
}


def _encoded(
    encoding: RowEncoding, operation: RowOperation, typed: pa.RecordBatch, ttls_s: Seconds | None
) -> EncodedRows:
    check_keys_not_null(encoding.schema, operation, typed)
    if operation is RowOperation.UPSERT:
        return encode_upserts(encoding.schema, typed, encoding.stamp, ttls_s)
    return _ENCODERS[operation](encoding.schema, typed, encoding.stamp)


def _chosen(
    typed: pa.RecordBatch, ttls_s: Seconds | None, members: Mask | None
) -> tuple[pa.RecordBatch, Seconds | None]:
    if members is None:
        return typed, ttls_s
    return typed.filter(pa.array(members)), None if ttls_s is None else ttls_s[members]


def _ttls(encoding: RowEncoding, column: pa.Array) -> Seconds:
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise InvalidRequest(
            f"the TTL column {encoding.ttl_column!r} has type {column.type}; it must hold whole seconds"
        )
    filled = column.cast(pa.int64()).fill_null(encoding.stamp.ttl_s)
    return np.asarray(filled.to_numpy(zero_copy_only=False))


# ---- null keys


def check_keys_not_null(schema: TableSchema, operation: RowOperation, typed: pa.RecordBatch) -> None:
    """Raises `InvalidRequest` with the first row that has a null key."""
    columns = schema.partition_key
    if operation is not RowOperation.DELETE_PARTITION:
        columns += schema.clustering
    names = typed.schema.names
    for column in columns:
        if column.name not in names and not _may_lack(schema, operation, names, column):
            raise InvalidRequest(f"key column {column.name!r} of {schema.full_name} is missing")
    absent = {column: _absent(typed, column) for column in columns}
    wrong = reduce(or_, (absent[column] for column in columns))
    if not wrong.any():
        return
    if operation is RowOperation.UPSERT and _has_static(schema, names):
        alone = reduce(and_, (absent[column] for column in schema.clustering))
        wrong &= ~alone | reduce(or_, (absent[column] for column in schema.partition_key))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        (name, *_) = [column.name for column in columns if absent[column][first]]
        raise InvalidRequest(
            f"key column {name!r} of {schema.full_name} is null in {int(wrong.sum())} rows of a batch, "
            f"the first of which is {_shown(typed, columns, first)}",
            advice="leave such rows out, for example by df.dropna(subset=[…])",
        )


def _may_lack(schema: TableSchema, operation: RowOperation, names: Sequence[str], column: Column) -> bool:
    """Static columns can be written without any clustering column."""
    if operation is not RowOperation.UPSERT or column in schema.partition_key:
        return False
    return _has_static(schema, names) and not any(one.name in names for one in schema.clustering)


def _has_static(schema: TableSchema, names: Sequence[str]) -> bool:
    return any(column.name in names for column in schema.static)


def _absent(typed: pa.RecordBatch, column: Column) -> Mask:
    if column.name not in typed.schema.names:
        return np.ones(len(typed), np.bool_)
    valid = valid_of(typed.column(column.name))
    return np.zeros(len(typed), np.bool_) if valid is None else ~valid


def _shown(typed: pa.RecordBatch, columns: Sequence[Column], place: int) -> str:
    names = [column.name for column in columns if column.name in typed.schema.names]
    values = (str(typed.column(name)[place])[:SHOWN_CHARACTERS] for name in names)
    return ", ".join(f"{name}={value}" for name, value in zip(names, values))
