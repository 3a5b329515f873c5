"""`writeStream.format("ebla")`: each batch of a stream is a job of its own, named by the stream's id and its number.

Only the tasks and the commit know the number of the batch, so the tasks open the write. All tasks of a batch derive the
same session id, so they open the same write. A batch that Spark runs again, after a restart from its checkpoint, has
another session, the same timestamp, and nothing to do if it was committed before.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.model.errors import EblaError, InternalError, InvalidRequest
from ebla.model.identity import SessionId, TableId
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.options import WriteOptions, parse_write_options
from ebla.source.write.commit import with_rerun_advice
from ebla.source.write.open_write import abort_job, check_columns, describe, open_job
from ebla.source.write.write_job import WriteJob, WriteTaskResult
from ebla.source.write.writer import TaskCommitMessage, commit_job, task_results, task_spec_of, write_task
from ebla.transfers.spark_worker import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StreamWriterState(msgspec.Struct, frozen=True):
    """What a copy of a writer is restored from."""

    options: WriteOptions
    table: TableId
    run: uuid.UUID
    """New whenever Spark plans the stream: sessions of an earlier run stay closed."""


def stream_batch(state: StreamWriterState, query: str | None, number: str | None) -> WriteJob:
    if query is None or number is None:
        raise InternalError("Spark does not say which batch of which stream a task belongs to")
    return WriteJob(
        session=SessionId(uuid.uuid5(state.run, f"{query} {number}")),
        table=state.table,
        job=state.options.job or f"stream-{query}",
        level=state.options.access.level,
        batch=int(number),
    )


class EblaStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, state: StreamWriterState) -> None:
        self._state, self._options = state, state.options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskCommitMessage:
        prepare_worker()
        context = TaskContext.get()
        assert context is not None
        job = stream_batch(self._state, context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH))
        with CqlClient(self._options.access.contact) as client:
            plan = open_job(client, self._options, job)
        return write_task(self._options, task_spec_of(self._options, plan, job), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        tasks = task_results(messages)
        if not tasks:
            return
        job = _job_of(tasks, batchId)
        with CqlClient(self._options.access.contact) as client:
            try:
                commit_job(client, self._options, job, open_job(client, self._options, job), tasks)
            except EblaError as error:
                raise with_rerun_advice(error, job.job) from error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        """Where no task ended, the driver does not know the session; it ends by its deadline."""
        tasks = task_results(messages)
        if tasks:
            with CqlClient(self._options.access.contact) as client:
                abort_job(client, self._options, _job_of(tasks, batchId))

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, restore_stream_writer.__name__, msgspec.msgpack.encode(self._state))


def _job_of(tasks: Sequence[WriteTaskResult], number: int) -> WriteJob:
    job = tasks[0].job
    assert job.batch == number
    return job


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
