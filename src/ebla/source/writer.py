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
from ebla.pipeline.attempts import prepare_worker
from ebla.source.commit import commit_rows, told
from ebla.source.contact import Contact
from ebla.source.open_write import open_write
from ebla.source.shipped import Reduced, ship
from ebla.source.task_order import TaskOrder, TaskRows
from ebla.source.write_options import WriteOptions, write_options
from ebla.source.write_ways import Carrier, Ways, WriteJob
from ebla.wire.table_access import ABORT_WRITE, AbortWriteRequest, CommitWriteAnswer, WritePlan, WriteState

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.source.encode_rows import RowForm

_log = logging.getLogger("ebla.source")
_messages = msgspec.msgpack.Decoder(TaskRows)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Of one task: `TaskRows` as bytes, so that Spark carries nothing that it could take apart."""

    data: bytes


def message_of(rows: TaskRows) -> Written:
    return Written(msgspec.msgpack.encode(rows))


def rows_in(messages: Sequence[WriterCommitMessage | None]) -> list[TaskRows]:
    """Tasks that failed have none."""
    return [_messages.decode(one.data) for one in messages if isinstance(one, Written)]


class WriterState(msgspec.Struct, frozen=True):
    """All that a copy of a writer is made of."""

    options: WriteOptions
    order: TaskOrder
    job: str


class EblaWriter(DataSourceArrowWriter):
    """Made in the driver; copies of it work in the tasks and at the commit."""

    def __init__(self, state: WriterState) -> None:
        self._state = state
        self._options, self._order, self._job = state.options, state.order, state.job

    @property
    def is_done(self) -> bool:
        """The job has ended well before: there is nothing to write."""
        return self._order.plan.state is WriteState.DONE

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        prepare_worker()
        order = self._order
        if self.is_done:
            # Read to the end: a worker that leaves rows behind is not used again.
            return message_of(TaskRows(order.session, sum(map(len, iterator))))
        return message_of(write_task(self._options, order, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.is_done:
            return
        plan = self._order.plan
        job = WriteJob(self._order.session, plan.schema.id, self._job, self._options.access.level)
        with Contact(self._options.access.contact) as contact:
            ways = ways_of(self._options, contact, plan.authority)
            try:
                answer = commit_rows(ways, job, plan, lambda: form_of(self._options, plan), rows_in(messages))
            except EblaError as error:
                raise told(error, self._options.job) from error
        note_outcome(answer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # Spark's name
        if self.is_done:
            return
        request = AbortWriteRequest(self._order.session, self._order.plan.schema.id, self._job)
        with Contact(self._options.access.contact) as contact:
            contact.call(ABORT_WRITE, request, self._options.access.timeout_s)

    def __reduce__(self) -> Reduced:
        return ship(__name__, restored_writer.__name__, msgspec.msgpack.encode(self._state))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EblaWriter:
    """Of what Spark gives a data source."""
    given = write_options(options)
    with Contact(given.access.contact) as contact:
        opened = open_write(contact, given, schema, overwrite=overwrite)
    return EblaWriter(WriterState(given, order_of(given, opened.plan, opened.session), opened.job))


def restored_writer(state: bytes) -> EblaWriter:
    return EblaWriter(msgspec.msgpack.decode(state, type=WriterState))


def order_of(options: WriteOptions, plan: WritePlan, session: SessionId) -> TaskOrder:
    return TaskOrder(plan, session, options.small_rows, options.run_bytes, options.access.uses_short_cut)


def ways_of(options: WriteOptions, contact: Contact, authority: bytes) -> Ways:
    access = options.access
    return Ways(contact, lambda: connect(authority), access.timeout_s, access.uses_short_cut)


# ---- loaded in tasks, and where a commit has rows in its own hands: with it Arrow, Flight and all that rows are made
# with, which takes longer to load than a plan or a commit takes


def write_task(options: WriteOptions, order: TaskOrder, batches: "Iterable[pa.RecordBatch]") -> TaskRows:
    found: TaskRows = importlib.import_module("ebla.source.task_write").write_task(options, order, batches)
    return found


def form_of(options: WriteOptions, plan: WritePlan) -> "RowForm":
    found: RowForm = importlib.import_module("ebla.source.row_form").row_form(options, plan)
    return found


def connect(authority: bytes) -> Carrier:
    found: Carrier = importlib.import_module("ebla.source.flight_sink").FlightSink(authority)
    return found


def note_outcome(answer: CommitWriteAnswer) -> None:
    if answer.left_to_repair:
        hosts = ", ".join(str(host) for host in answer.left_to_repair)
        _log.warning("replicas on %s could not be reached in time, and are left to repair", hosts)
