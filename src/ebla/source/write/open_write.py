"""Opens a write, in Spark's driver: compares the DataFrame with the table, and has the nodes open staging targets."""

import uuid
from collections import Counter
from dataclasses import dataclass

from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, NullType, ShortType, StringType, StructType

from ebla.model.errors import InvalidRequest, Refused
from ebla.model.identity import SessionId
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableSchema
from ebla.source.contact_points import CqlClient
from ebla.source.cql_client import BoundStatement
from ebla.source.options import WriteOptions, suggest_name
from ebla.source.spark_types import write_mismatch
from ebla.source.suggestions import describe_table, find_column
from ebla.source.write.write_job import WriteJob
from ebla.wire.table_calls import (
    ABORT_WRITE,
    OPEN_WRITE,
    AbortWriteRequest,
    OpenWriteRequest,
    StagingPlan,
)

_WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType, NullType)
_TEXTS = (StringType, NullType)


@dataclass(frozen=True, slots=True)
class OpenedWrite:
    plan: StagingPlan
    job: WriteJob


def describe(client: CqlClient, options: WriteOptions) -> TableSchema:
    """Raises `Refused` for a table with CDC: staged layers would bypass it."""
    access = options.access
    answer = describe_table(client, access)
    if answer.is_cdc_enabled:
        raise Refused(
            f"changes of {access.full_name} are captured (CDC), and rows written by Spark would not be captured",
            advice="write to it over CQL, or turn capturing off for the table",
        )
    return answer.schema


def open_write(client: CqlClient, options: WriteOptions, given: StructType, *, overwrite: bool) -> OpenedWrite:
    """With `overwrite` the table is truncated first, unless the job was committed before."""
    schema = describe(client, options)
    check_columns(schema, given, options)
    if not overwrite:
        return _open_new(client, options, schema)
    if not options.may_truncate:
        raise InvalidRequest(
            f"mode overwrite deletes all rows of {schema.full_name} first, in all its replicas",
            advice="confirm it with confirm.truncate=true, or use mode append, which replaces rows by their keys",
        )
    if options.job:
        opened = _open_new(client, options, schema)
        if opened.plan.state is WriteJobState.DONE:
            return opened
        # A truncated table gets a new id, and these targets belong to the old one.
        abort_job(client, options, opened.job)
    names = ".".join('"' + name.replace('"', '""') + '"' for name in (schema.keyspace, schema.name))
    client.query(BoundStatement(f"TRUNCATE {names}"), options.access.timeout_s, is_idempotent=True)
    return _open_new(client, options, describe(client, options))


def _open_new(client: CqlClient, options: WriteOptions, schema: TableSchema) -> OpenedWrite:
    session = SessionId(uuid.uuid4())
    job = WriteJob(session=session, table=schema.id, job=options.job or str(session), level=options.access.level)
    return OpenedWrite(open_job(client, options, job), job)


def open_job(client: CqlClient, options: WriteOptions, job: WriteJob) -> StagingPlan:
    """Opening a job twice in one session opens it once."""
    request = OpenWriteRequest(
        session=job.session,
        table=job.table,
        level=job.level,
        job=job.job,
        batch=job.batch,
        life_ms=options.life_ms,
    )
    return client.call(OPEN_WRITE, request, options.access.timeout_s)


def abort_job(client: CqlClient, options: WriteOptions, job: WriteJob) -> None:
    client.call(ABORT_WRITE, AbortWriteRequest(job.session, job.table, job.job), options.access.timeout_s)


# ---- the DataFrame and the table


def check_columns(schema: TableSchema, given: StructType, options: WriteOptions) -> None:
    """Raises `InvalidRequest` for what is wrong whatever the rows hold."""
    for name, count in Counter(given.names).items():
        if count > 1:
            raise InvalidRequest(f"the DataFrame has {count} columns named {name!r}")
    _check_own(given, "ttl_column", options.ttl_column, _WHOLE_NUMBERS)
    _check_own(given, "op", options.op_column, _TEXTS)
    own = (options.ttl_column, options.op_column)
    names = [_checked_column(schema, field.name, field.dataType) for field in given if field.name not in own]
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidRequest(f"{count} columns of the DataFrame are meant for {name!r} of {schema.full_name}")
    static = any(column.name in names for column in schema.static)
    some_clustering = any(column.name in names for column in schema.clustering)
    needed = schema.partition_key
    if some_clustering or not (static or options.op_column):
        needed += schema.clustering
    missing = [column.name for column in needed if column.name not in names]
    if missing:
        raise InvalidRequest(
            f"the DataFrame lacks key columns of {schema.full_name}: {', '.join(missing)}",
            advice="every row needs its whole key",
        )


def _checked_column(schema: TableSchema, name: str, kind: DataType) -> str:
    """Its name in the table."""
    column = find_column(schema, name)
    reason = write_mismatch(column.type, kind)
    if reason is not None:
        raise InvalidRequest(f"column {name!r}: {reason}", advice="cast it")
    return column.name


def _check_own(given: StructType, option: str, name: str, kinds: tuple[type[DataType], ...]) -> None:
    if not name:
        return
    if name not in given.names:
        raise InvalidRequest(
            f"option {option}={name!r} names no column of the DataFrame", advice=suggest_name(name, tuple(given.names))
        )
    if not isinstance(given[name].dataType, kinds):
        wanted = "text" if kinds is _TEXTS else "whole numbers"
        raise InvalidRequest(
            f"column {name!r} of option {option} is {given[name].dataType.simpleString()}, not {wanted}"
        )
