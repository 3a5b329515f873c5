"""Records of write jobs in group 0, changed by compare-and-set through the node's control."""

from collections.abc import Callable

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.write_job_states import expired_records
from ebla.client.node_client import read_all_pages
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.errors import EblaError, Outcome, Refused, Unavailable
from ebla.model.identity import TableId
from ebla.model.records.write_jobs import WRITES_PREFIX, WriteJobRecord, write_key
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import Condition, DeleteKey, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.transfers.deadline import Deadline
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest
from ebla.wire.verbs import GROUP0_EXECUTE

TRIES_MAX = 20
DELETED_MAX = 100
"""In one sweep."""

StoredRecord = tuple[StoredValue[WriteJobRecord], Revision]
Decide = Callable[[WriteJobRecord | None], WriteJobRecord | None]
"""What the record becomes; the same, or None: it stays as it is. Asked again where something else was written first."""


class WriteRecordStore:
    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts

    async def change(self, table: TableId, job: str, decide: Decide, deadline: Deadline) -> WriteJobRecord | None:
        """What stands there afterwards. An answer that was lost is looked for: what was decided is decided again, from
        what is there by then."""
        unanswered: EblaError | None = None
        for _ in range(TRIES_MAX):
            found = await self._read(table, job, deadline)
            before = None if found is None else found[0].value
            wanted = decide(before)
            if wanted is None or wanted == before:
                return before
            try:
                if await self._put(wanted, found, deadline):
                    return wanted
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED or deadline.is_over:
                    raise
                unanswered = error
        raise unanswered or Unavailable(f"the record of job {job!r} changes too quickly", advice="try again")

    async def _read(self, table: TableId, job: str, deadline: Deadline) -> StoredRecord | None:
        request = Group0ReadRequest(keys=(write_key(table, job),))
        answer = await read_all_pages(self._parts.doors.control, request, self._within(deadline))
        if not answer.found:
            return None
        return decode_stored(WriteJobRecord, answer.found[0].value), answer.found[0].revision

    async def _put(self, record: WriteJobRecord, found: StoredRecord | None, deadline: Deadline) -> bool:
        key = write_key(record.table, record.job)
        condition: Condition = KeyMissing(key) if found is None else KeyUnchanged(key, found[1])
        stored = StoredValue(record) if found is None else found[0].with_value(record)
        transaction = Transaction((condition,), (PutKey(key, encode_stored(stored)),))
        request = ExecuteRequest(transaction)
        answer = (await self._parts.doors.control(GROUP0_EXECUTE, request, self._within(deadline))).answer
        if isinstance(answer, Done | ConditionFailed):
            return isinstance(answer, Done)
        raise Refused(f"the record of job {record.job!r} was not written: {answer}")

    async def delete_expired(self, deadline: Deadline) -> int:
        """How many went. For whoever opens a job now and then."""
        prefix = Group0ReadRequest(keys=(), prefixes=(WRITES_PREFIX,))
        answer = await read_all_pages(self._parts.doors.control, prefix, self._within(deadline))
        revisions = {one.key: one.revision for one in answer.found}
        records = [decode_stored(WriteJobRecord, one.value).value for one in answer.found]
        now_ms = self._parts.clock.wall_us() // 1000
        going = expired_records(records, self._parts.view.current.snapshot.tables, now_ms)[:DELETED_MAX]
        for record in going:
            key = write_key(record.table, record.job)
            request = ExecuteRequest(Transaction((KeyUnchanged(key, revisions[key]),), (DeleteKey(key),)))
            await self._parts.doors.control(GROUP0_EXECUTE, request, self._within(deadline))
        return len(going)

    def _within(self, deadline: Deadline) -> int:
        return deadline.at_most_ms(self._parts.limits.group0_ms)
