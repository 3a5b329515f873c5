"""`df.write.format("ebla")`: what Spark calls.

Where rows go is decided in the driver, each task stages its own, and the driver's commit names those that count.
"""

import importlib
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
from ebla.source.write.commit_deps import CommitDeps, StagingClient, WriteJob
from ebla.source.write.open_write import open_write
from ebla.source.write.task_messages import WriteTaskResult, WriteTaskSpec
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
    """Of one task: `WriteTaskResult` as bytes, so that Spark carries nothing that it could take apart."""

    data: bytes


def to_commit_message(rows: WriteTaskResult) -> TaskCommitMessage:
    return TaskCommitMessage(msgspec.msgpack.encode(rows))


def task_results(messages: Sequence[WriterCommitMessage | None]) -> list[WriteTaskResult]:
    """Tasks that failed have none."""
    return [_messages.decode(one.data) for one in messages if isinstance(one, TaskCommitMessage)]


class WriterState(msgspec.Struct, frozen=True):
    """All that a copy of a writer is made of."""

    options: WriteOptions
    order: WriteTaskSpec
    job: str


class EblaWriter(DataSourceArrowWriter):
    """Made in the driver; copies of it work in the tasks and at the commit."""

    def __init__(self, state: WriterState) -> None:
        self._state = state
        self._options, self._order, self._job = state.options, state.order, state.job

    @property
    def is_done(self) -> bool:
        """The job has ended well before: there is nothing to write."""
        return self._order.plan.state is WriteJobState.DONE

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskCommitMessage:
        prepare_worker()
        order = self._order
        if self.is_done:
            # Read to the end: a worker that leaves rows behind is not used again.
            return to_commit_message(WriteTaskResult(session=order.session, rows=sum(map(len, iterator))))
        return to_commit_message(write_task(self._options, order, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.is_done:
            return
        plan = self._order.plan
        job = WriteJob(
            session=self._order.session, table=plan.schema.id, job=self._job, level=self._options.access.level
        )
        with CqlClient(self._options.access.contact) as contact:
            ways = commit_deps_of(self._options, contact, plan.authority)
            try:
                answer = commit_rows(
                    ways, job, plan, lambda: row_encoding_of(self._options, plan), task_results(messages)
                )
            except EblaError as error:
                raise with_rerun_advice(error, self._options.job) from error
        warn_left_to_repair(answer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # Spark's name
        if self.is_done:
            return
        request = AbortWriteRequest(self._order.session, self._order.plan.schema.id, self._job)
        with CqlClient(self._options.access.contact) as contact:
            contact.call(ABORT_WRITE, request, self._options.access.timeout_s)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, restore_writer.__name__, msgspec.msgpack.encode(self._state))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EblaWriter:
    """Of what Spark gives a data source."""
    given = parse_write_options(options)
    with CqlClient(given.access.contact) as contact:
        opened = open_write(contact, given, schema, overwrite=overwrite)
    return EblaWriter(WriterState(given, task_spec_of(given, opened.plan, opened.session), opened.job))


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


def commit_deps_of(options: WriteOptions, contact: CqlClient, authority: bytes) -> CommitDeps:
    access = options.access
    return CommitDeps(
        contact=contact,
        connect=lambda: connect(authority),
        timeout_s=access.timeout_s,
        uses_local_files=access.uses_local_files,
    )


# ---- loaded in tasks, and where a commit has rows in its own hands: with it Arrow, Flight and all that rows are made
# with, which takes longer to load than a plan or a commit takes


def write_task(options: WriteOptions, order: WriteTaskSpec, batches: "Iterable[pa.RecordBatch]") -> WriteTaskResult:
    found: WriteTaskResult = importlib.import_module("ebla.source.write.task_writer").write_task(
        options, order, batches
    )
    return found


def row_encoding_of(options: WriteOptions, plan: StagingPlan) -> "RowEncoding":
    found: RowEncoding = importlib.import_module("ebla.source.write.row_encoding").row_encoding(options, plan)
    return found


def connect(authority: bytes) -> StagingClient:
    found: StagingClient = importlib.import_module("ebla.source.write.flight_sink").FlightSink(authority)
    return found


def warn_left_to_repair(answer: CommitWriteAnswer) -> None:
    if answer.left_to_repair:
        hosts = ", ".join(str(host) for host in answer.left_to_repair)
        _log.warning("replicas on %s could not be reached in time, and are left to repair", hosts)
