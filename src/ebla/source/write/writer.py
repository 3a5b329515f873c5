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
from ebla.model.records.write_jobs import WriteJobState
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.options import WriteOptions, parse_write_options
from ebla.source.write.commit import commit_rows, with_rerun_advice
from ebla.source.write.open_write import abort_job, open_write
from ebla.source.write.write_job import CommitDeps, WriteJob, WriteTaskResult, WriteTaskSpec
from ebla.transfers.spark_worker import prepare_worker
from ebla.wire.table_calls import StagingPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.source.write.encode_rows import RowEncoding
    from ebla.transfers.flight_client import FlightClient

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


class EblaWriter(DataSourceArrowWriter):
    """Made in the driver; copies of it run in the tasks and at the commit."""

    def __init__(self, state: WriterState) -> None:
        self._state = state
        self._options, self._spec = state.options, state.spec

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskCommitMessage:
        prepare_worker()
        return write_task(self._options, self._spec, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with CqlClient(self._options.access.contact) as client:
            try:
                commit_job(client, self._options, self._spec.job, self._spec.plan, task_results(messages))
            except EblaError as error:
                raise with_rerun_advice(error, self._options.job) from error

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # Spark's name
        if not is_done(self._spec.plan):
            with CqlClient(self._options.access.contact) as client:
                abort_job(client, self._options, self._spec.job)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, restore_writer.__name__, msgspec.msgpack.encode(self._state))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EblaWriter:
    """From what Spark gives a data source."""
    parsed = parse_write_options(options)
    with CqlClient(parsed.access.contact) as client:
        opened = open_write(client, parsed, schema, overwrite=overwrite)
    return EblaWriter(WriterState(parsed, task_spec_of(parsed, opened.plan, opened.job)))


def restore_writer(state: bytes) -> EblaWriter:
    return EblaWriter(msgspec.msgpack.decode(state, type=WriterState))


def is_done(plan: StagingPlan) -> bool:
    """The job was committed by an earlier run: there is nothing to write."""
    return plan.state is WriteJobState.DONE


def task_spec_of(options: WriteOptions, plan: StagingPlan, job: WriteJob) -> WriteTaskSpec:
    return WriteTaskSpec(
        plan=plan,
        job=job,
        small_rows=options.small_rows,
        run_bytes=options.run_bytes,
        uses_local_files=options.access.uses_local_files,
    )


def commit_job(
    client: CqlClient, options: WriteOptions, job: WriteJob, plan: StagingPlan, tasks: Sequence[WriteTaskResult]
) -> None:
    if is_done(plan):
        return
    deps = CommitDeps(
        client=client,
        connect=lambda: _connect(plan.authority),
        timeout_s=options.access.timeout_s,
        uses_local_files=options.access.uses_local_files,
    )
    answer = commit_rows(deps, job, plan, lambda: _row_encoding(options, plan), tasks)
    if answer.left_to_repair:
        hosts = ", ".join(str(host) for host in answer.left_to_repair)
        _log.warning("replicas on %s could not be reached in time, and are left to repair", hosts)


# ---- Imported in tasks, and in a commit that has rows itself. Arrow, Flight and the row encoding take longer to import
# than a plan or a commit takes.


def write_task(options: WriteOptions, spec: WriteTaskSpec, batches: "Iterable[pa.RecordBatch]") -> TaskCommitMessage:
    if is_done(spec.plan):
        # Read to the end: Spark does not reuse a worker that leaves rows unread.
        return to_commit_message(WriteTaskResult(job=spec.job, rows=sum(map(len, batches))))
    from ebla.source.write import task_writer  # start-up time, see above

    return to_commit_message(task_writer.write_task(options, spec, batches))


def _row_encoding(options: WriteOptions, plan: StagingPlan) -> "RowEncoding":
    from ebla.source.write.encode_rows import row_encoding  # start-up time, see above

    return row_encoding(options, plan)


def _connect(authority: bytes) -> "FlightClient":
    from ebla.transfers.flight_client import FlightClient  # start-up time, see above

    return FlightClient(authority)
