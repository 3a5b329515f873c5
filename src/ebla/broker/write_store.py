"""Records of write jobs in group 0, changed by compare-and-set through the node's control."""

from collections.abc import Callable

from ebla.broker.broker_parts import BrokerParts
from ebla.broker.deadline import Deadline
from ebla.broker.write_book import to_forget
from ebla.client.topology import read_whole
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.errors import EblaError, Outcome, Refused, Unavailable
from ebla.model.identity import TableId
from ebla.model.stored import Stored, decode_stored, encode_stored
from ebla.model.transaction import Condition, Delete, Missing, Put, Revision, Transaction, Unchanged
from ebla.wire.group0_messages import ExecuteRequest, ReadRequest
from ebla.wire.verbs import GROUP0_EXECUTE
from ebla.wire.write_records import WRITES_PREFIX, WriteRecord, write_key

TRIES_MAX = 20
FORGOTTEN_MAX = 100
"""In one sweep."""

Found = tuple[Stored[WriteRecord], Revision]
Decide = Callable[[WriteRecord | None], WriteRecord | None]
"""What the record becomes; the same, or None: it stays as it is. Asked again where something else was written first."""


class WriteStore:
    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    async def change(self, table: TableId, job: str, decide: Decide, deadline: Deadline) -> WriteRecord | None:
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

    async def _read(self, table: TableId, job: str, deadline: Deadline) -> Found | None:
        request = ReadRequest((write_key(table, job),))
        answer = await read_whole(self._parts.doors.control, request, self._within(deadline))
        if not answer.found:
            return None
        return decode_stored(WriteRecord, answer.found[0].value), answer.found[0].revision

    async def _put(self, record: WriteRecord, found: Found | None, deadline: Deadline) -> bool:
        key = write_key(record.table, record.job)
        condition: Condition = Missing(key) if found is None else Unchanged(key, found[1])
        stored = Stored(record) if found is None else found[0].with_value(record)
        transaction = Transaction((condition,), (Put(key, encode_stored(stored)),))
        request = ExecuteRequest(transaction)
        answer = (await self._parts.doors.control(GROUP0_EXECUTE, request, self._within(deadline))).answer
        if isinstance(answer, Done | ConditionFailed):
            return isinstance(answer, Done)
        raise Refused(f"the record of job {record.job!r} was not written: {answer}")

    async def forget_old(self, deadline: Deadline) -> int:
        """How many went. For whoever opens a job now and then."""
        prefix = ReadRequest((), (WRITES_PREFIX,))
        answer = await read_whole(self._parts.doors.control, prefix, self._within(deadline))
        revisions = {one.key: one.revision for one in answer.found}
        records = [decode_stored(WriteRecord, one.value).value for one in answer.found]
        now_ms = self._parts.clock.wall_us() // 1000
        going = to_forget(records, self._parts.view.current.snapshot.tables, now_ms)[:FORGOTTEN_MAX]
        for record in going:
            key = write_key(record.table, record.job)
            request = ExecuteRequest(Transaction((Unchanged(key, revisions[key]),), (Delete(key),)))
            await self._parts.doors.control(GROUP0_EXECUTE, request, self._within(deadline))
        return len(going)

    def _within(self, deadline: Deadline) -> int:
        return deadline.at_most_ms(self._parts.limits.group0_ms)
