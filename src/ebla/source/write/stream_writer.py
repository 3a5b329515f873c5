"""`writeStream.format("ebla")`: each batch of a stream is a job of its own, named by the stream's id and its number.

Only the tasks and the commit know the number of the batch, so the tasks open the write. All tasks of a batch derive the
same session id, so they open the same write. A batch that Spark runs again, after a restart from its checkpoint, has
another session, the same timestamp, and nothing to do if it was committed before.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.model.errors import EblaError, InternalError, InvalidRequest
from ebla.model.identity import SessionId, TableId
from ebla.model.records.write_jobs import WriteJobState
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.write.commit import commit_rows, with_rerun_advice
from ebla.source.write.open_write import check_columns, describe
from ebla.source.write.write_job import WriteJob, WriteTaskResult
from ebla.source.write.write_options import WriteOptions, parse_write_options
from ebla.source.write.writer import (
    TaskCommitMessage,
    commit_deps_of,
    row_encoding_of,
    task_results,
    task_spec_of,
    to_commit_message,
    warn_left_to_repair,
    write_task,
)
from ebla.transfers.spark_worker import prepare_worker
from ebla.wire.table_calls import (
    ABORT_WRITE,
    OPEN_WRITE,
    AbortWriteRequest,
    OpenWriteRequest,
    StagingPlan,
)

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One batch of one stream, in one run of the stream."""

    session: SessionId
    job: str
    number: int


def stream_batch(run: uuid.UUID, job: str, query: str | None, number: str | None) -> StreamBatch:
    """`run` is new whenever Spark plans the stream: sessions of an earlier run stay closed."""
    if query is None or number is None:
        raise InternalError("Spark does not say which batch of which stream a task belongs to")
    return StreamBatch(SessionId(uuid.uuid5(run, f"{query} {number}")), job or f"stream-{query}", int(number))


class StreamWriterState(msgspec.Struct, frozen=True):
    """What a copy of a writer is restored from."""

    options: WriteOptions
    table: TableId
    run: uuid.UUID


class EblaStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, state: StreamWriterState) -> None:
        self._state = state
        self._options, self._table, self._run = state.options, state.table, state.run

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskCommitMessage:
        prepare_worker()
        context = TaskContext.get()
        assert context is not None
        batch = stream_batch(
            self._run, self._options.job, context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        )
        with CqlClient(self._options.access.contact) as client:
            plan = self._open(client, batch)
        if plan.state is WriteJobState.DONE:
            result = WriteTaskResult(session=batch.session, rows=sum(map(len, iterator)))
        else:
            result = write_task(self._options, task_spec_of(self._options, plan, batch.session), iterator)
        return to_commit_message(result.of_stream(batch.job, batch.number))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        tasks = task_results(messages)
        if not tasks:
            return
        batch = _batch_of(tasks[0], batchId)
        with CqlClient(self._options.access.contact) as client:
            try:
                plan = self._open(client, batch)
                if plan.state is WriteJobState.DONE:
                    return
                job = WriteJob(
                    session=batch.session,
                    table=self._table,
                    job=batch.job,
                    level=self._options.access.level,
                    batch=batch.number,
                )
                deps = commit_deps_of(self._options, client, plan.authority)
                answer = commit_rows(deps, job, plan, lambda: row_encoding_of(self._options, plan), tasks)
            except EblaError as error:
                raise with_rerun_advice(error, batch.job) from error
        warn_left_to_repair(answer)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        """Where no task ended, the driver does not know the session; it ends by its deadline."""
        tasks = task_results(messages)
        if tasks:
            batch = _batch_of(tasks[0], batchId)
            with CqlClient(self._options.access.contact) as client:
                request = AbortWriteRequest(batch.session, self._table, batch.job)
                client.call(ABORT_WRITE, request, self._options.access.timeout_s)

    def _open(self, client: CqlClient, batch: StreamBatch) -> StagingPlan:
        access = self._options.access
        request = OpenWriteRequest(
            session=batch.session,
            table=self._table,
            level=access.level,
            job=batch.job,
            batch=batch.number,
            life_ms=self._options.life_ms,
        )
        return client.call(OPEN_WRITE, request, access.timeout_s)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, restore_stream_writer.__name__, msgspec.msgpack.encode(self._state))


def _batch_of(task: WriteTaskResult, number: int) -> StreamBatch:
    assert task.batch == number
    return StreamBatch(task.session, task.job, number)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EblaStreamWriter:
    """Called for the tasks, and again at each commit."""
    if overwrite:
        raise InvalidRequest(
            "a stream in output mode complete would replace the whole table with each batch",
            advice="use output mode append or update: rows are replaced by their keys",
        )
    parsed = parse_write_options(options)
    with CqlClient(parsed.access.contact) as client:
        table = describe(client, parsed)
    check_columns(table, schema, parsed)
    return EblaStreamWriter(StreamWriterState(parsed, table.id, uuid.uuid4()))


def restore_stream_writer(state: bytes) -> EblaStreamWriter:
    return EblaStreamWriter(msgspec.msgpack.decode(state, type=StreamWriterState))
