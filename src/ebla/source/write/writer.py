"""`df.write.format("ebla")`, as Spark calls it.

The driver plans where rows go, each task stages its rows, and the commit in the driver names the runs that count.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.model.errors import EblaError
from ebla.model.identity import SessionId
from ebla.model.records.write_jobs import WriteJobState
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.write.commit import commit_rows, with_rerun_advice
from ebla.source.write.open_write import open_write
from ebla.source.write.write_job import CommitDeps, StagingClient, WriteJob, WriteTaskResult, WriteTaskSpec
from ebla.source.write.write_options import WriteOptions, parse_write_options
from ebla.transfers.spark_worker import prepare_worker
from ebla.wire.table_calls import ABORT_WRITE, AbortWriteRequest, CommitWriteAnswer, StagingPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.source.write.encode_rows import RowEncoding

_log = logging.getLogger("ebla.source")
_messages = msgspec.msgpack.Decoder(WriteTaskResult)


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The `WriteTaskResult` of one task as bytes: opaque to Spark."""

    data: bytes


def to_commit_message(result: WriteTaskResult) -> TaskCommitMessage:
    return TaskCommitMessage(msgspec.msgpack.encode(result))


def task_results(messages: Sequence[WriterCommitMessage | None]) -> list[WriteTaskResult]:
    """A task that failed has no message."""
    return [_messages.decode(one.data) for one in messages if isinstance(one, TaskCommitMessage)]


class WriterState(msgspec.Struct, frozen=True):
    """What a copy of a writer is restored from."""

    options: WriteOptions
    spec: WriteTaskSpec
    job: str


class EblaWriter(DataSourceArrowWriter):
    """Made in the driver; copies of it run in the tasks and at the commit."""

    def __init__(self, state: WriterState) -> None:
        self._state = state
        self._options, self._spec, self._job = state.options, state.spec, state.job

    @property
    def is_done(self) -> bool:
        """The job was committed by an earlier run: there is nothing to write."""
        return self._spec.plan.state is WriteJobState.DONE

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskCommitMessage:
        prepare_worker()
        if self.is_done:
            # Read to the end: Spark does not reuse a worker that leaves rows unread.
            return to_commit_message(WriteTaskResult(session=self._spec.session, rows=sum(map(len, iterator))))
        return to_commit_message(write_task(self._options, self._spec, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.is_done:
            return
        options, plan = self._options, self._spec.plan
        job = WriteJob(session=self._spec.session, table=plan.schema.id, job=self._job, level=options.access.level)
        with CqlClient(options.access.contact) as client:
            deps = commit_deps_of(options, client, plan.authority)
            try:
                answer = commit_rows(deps, job, plan, lambda: row_encoding_of(options, plan), task_results(messages))
            except EblaError as error:
                raise with_rerun_advice(error, options.job) from error
        warn_left_to_repair(answer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # Spark's name
        if self.is_done:
            return
        request = AbortWriteRequest(self._spec.session, self._spec.plan.schema.id, self._job)
        with CqlClient(self._options.access.contact) as client:
            client.call(ABORT_WRITE, request, self._options.access.timeout_s)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, restore_writer.__name__, msgspec.msgpack.encode(self._state))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EblaWriter:
    """From what Spark gives a data source."""
    parsed = parse_write_options(options)
    with CqlClient(parsed.access.contact) as client:
        opened = open_write(client, parsed, schema, overwrite=overwrite)
    return EblaWriter(WriterState(parsed, task_spec_of(parsed, opened.plan, opened.session), opened.job))


def restore_writer(state: bytes) -> EblaWriter:
    return EblaWriter(msgspec.msgpack.decode(state, type=WriterState))


def task_spec_of(options: WriteOptions, plan: StagingPlan, session: SessionId) -> WriteTaskSpec:
    return WriteTaskSpec(
        plan=plan,
        session=session,
        small_rows=options.small_rows,
        run_bytes=options.run_bytes,
        uses_local_files=options.access.uses_local_files,
    )


def commit_deps_of(options: WriteOptions, client: CqlClient, authority: bytes) -> CommitDeps:
    access = options.access
    return CommitDeps(
        client=client,
        connect=lambda: _connect(authority),
        timeout_s=access.timeout_s,
        uses_local_files=access.uses_local_files,
    )


# ---- Imported in tasks, and in a commit that has rows itself. Arrow, Flight and the row encoding take longer to import
# than a plan or a commit takes.


def write_task(options: WriteOptions, spec: WriteTaskSpec, batches: "Iterable[pa.RecordBatch]") -> WriteTaskResult:
    from ebla.source.write import task_writer  # start-up time, see above

    return task_writer.write_task(options, spec, batches)


def row_encoding_of(options: WriteOptions, plan: StagingPlan) -> "RowEncoding":
    from ebla.source.write.encode_rows import row_encoding  # start-up time, see above

    return row_encoding(options, plan)


def _connect(authority: bytes) -> StagingClient:
    from ebla.source.write.run_staging import FlightSink  # start-up time, see above

    return FlightSink(authority)


def warn_left_to_repair(answer: CommitWriteAnswer) -> None:
    if answer.left_to_repair:
        hosts = ", ".join(str(host) for host in answer.left_to_repair)
        _log.warning("replicas on %s could not be reached in time, and are left to repair", hosts)
