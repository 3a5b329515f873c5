"""Small writes: rows travel in the message of a task, and the commit sends them as CQL statements in batches.

A statement means the same as the staged form of its row: the job's timestamp, its TTL, its rule for nulls. Only list
elements would get other names than in a run, and a job that runs again may take the other path: rows of tables with
such columns are always staged.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import ListType, is_multi_cell
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.source.contact_points import CqlClient
from ebla.source.cql_client import BoundStatement
from ebla.source.write.encode_rows import (
    RowEncoding,
    RowOperation,
    check_keys_not_null,
    rows_by_operation,
    stored_columns,
)
from ebla.storage.columns.key_columns import encode_head_keys, token_words
from ebla.storage.columns.wire_columns import to_wire
from ebla.wire.cql.messages import UNSET, BoundValue

SMALL_BYTES_MAX = 256 << 10
"""Of the rows of one task: Spark's driver keeps the messages in memory."""
BY_CQL_ROWS_MAX = 5_000
BY_CQL_BYTES_MAX = 4 << 20
"""Of all tasks together. More rows are staged: a run costs less per row."""
BATCH_STATEMENTS = 100
BATCH_BYTES = 128 << 10


_OF_PARTITION = (ColumnKind.PARTITION_KEY, ColumnKind.STATIC)
"""The columns that a row without a clustering key writes."""


def pack_batches(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_batches(packed: bytes) -> list[pa.RecordBatch]:
    if not packed:
        return []
    with pa.ipc.open_stream(pa.py_buffer(packed)) as reader:
        return [batch for batch in reader if len(batch)]


def can_write_by_cql(schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> bool:
    rows, size_bytes = sum(map(len, batches)), sum(batch.nbytes for batch in batches)
    if rows > BY_CQL_ROWS_MAX or size_bytes > BY_CQL_BYTES_MAX:
        return False
    names = {name.lower() for batch in batches for name in batch.schema.names}
    return not any(
        column.name.lower() in names and is_multi_cell(column.type) and isinstance(column.type, ListType)
        for column in schema.columns
    )


def write_by_cql(
    client: CqlClient,
    encoding: RowEncoding,
    batches: Sequence[pa.RecordBatch],
    level: ConsistencyLevel,
    timeout_s: float,
) -> int:
    """Returns the number of statements. Rows of one partition are in one batch, or in neighbouring ones. Sending the
    same again changes nothing: everything has the job's timestamp."""
    statements = [one for batch in batches for one in to_statements(encoding, batch)]
    statements.sort(key=lambda one: one[0])
    for part in _cut([statement for _, statement in statements]):
        client.batch(part, level, timeout_s, encoding.stamp.timestamp_us)
    return len(statements)


def to_statements(encoding: RowEncoding, batch: pa.RecordBatch) -> Iterator[tuple[int, BoundStatement]]:
    """One for each row, with a number that sorts rows of one partition together."""
    typed, ttls_s = stored_columns(encoding, batch)
    for operation, members in rows_by_operation(encoding, batch).items():
        chosen = typed if members is None else typed.filter(pa.array(members))
        check_keys_not_null(encoding.schema, operation, chosen)
        if operation is not RowOperation.UPSERT:
            yield from _deletions(encoding.schema, operation, chosen)
            continue
        ttls = np.full(len(chosen), encoding.stamp.ttl_s) if ttls_s is None else ttls_s
        if ttls_s is not None and members is not None:
            ttls = ttls_s[members]
        yield from _inserts(encoding, chosen, ttls.tolist())


def _inserts(
    encoding: RowEncoding, typed: pa.RecordBatch, ttls_s: Sequence[int]
) -> Iterator[tuple[int, BoundStatement]]:
    schema, names = encoding.schema, typed.schema.names
    clustering = [name for name in names if schema.column(name).kind is ColumnKind.CLUSTERING]
    of_partition = [name for name in names if schema.column(name).kind in _OF_PARTITION]
    absent = None if encoding.stamp.nulls_delete else UNSET
    into = f"INSERT INTO {_table(schema)} "
    for token, ttl_s, values in zip(_tokens(schema, typed), ttls_s, zip(*_wire_columns(schema, typed, names))):
        row = dict(zip(names, values))
        is_row = not schema.clustering or any(row[name] is not None for name in clustering)
        written = names if is_row else of_partition
        columns, places = ", ".join(map(_quoted, written)), ", ".join("?" * len(written))
        bound: list[BoundValue] = [absent if row[name] is None else row[name] for name in written]
        yield token, BoundStatement(f"{into}({columns}) VALUES ({places}) USING TTL {ttl_s}", bound)


def _deletions(
    schema: TableSchema, operation: RowOperation, typed: pa.RecordBatch
) -> Iterator[tuple[int, BoundStatement]]:
    columns: tuple[Column, ...] = schema.partition_key
    if operation is RowOperation.DELETE:
        columns += schema.clustering
    names = [column.name for column in columns]
    conditions = " AND ".join(f"{_quoted(name)} = ?" for name in names)
    text = f"DELETE FROM {_table(schema)} WHERE {conditions}"  # noqa: S608 # names are quoted, values are bound
    for token, values in zip(_tokens(schema, typed), zip(*_wire_columns(schema, typed, names))):
        yield token, BoundStatement(text, values)


def _wire_columns(schema: TableSchema, typed: pa.RecordBatch, names: Sequence[str]) -> list[list[bytes | None]]:
    return [to_wire(schema.column(name).type, typed.column(name)).to_pylist() for name in names]


def _tokens(schema: TableSchema, typed: pa.RecordBatch) -> list[int]:
    columns = {column.name: typed.column(column.name) for column in schema.partition_key}
    tokens: list[int] = token_words(encode_head_keys(schema, columns, len(typed))).tolist()
    return tokens


def _cut(statements: Sequence[BoundStatement]) -> Iterator[list[BoundStatement]]:
    part: list[BoundStatement] = []
    size_bytes = 0
    for statement in statements:
        size = len(statement.text) + sum(len(value) for value in statement.values if isinstance(value, bytes))
        if part and (len(part) >= BATCH_STATEMENTS or size_bytes + size > BATCH_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(statement)
        size_bytes += size
    if part:
        yield part


def _table(schema: TableSchema) -> str:
    return f"{_quoted(schema.keyspace)}.{_quoted(schema.name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
