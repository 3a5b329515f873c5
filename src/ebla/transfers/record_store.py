"""Records of jobs in group 0: read, listed, changed by compare-and-set, and followed by a watch.

Each write names the revision that it is based on. So two processes that both believe to own a record cannot undo each
other's writes: the one that lost reads again and finds out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from ebla.aio.retry import Backoff, retry
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.errors import EblaError, Outcome, Refused, Unavailable
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import (
    Condition,
    DeleteKey,
    KeyMissing,
    KeyUnchanged,
    PutKey,
    Revision,
    Transaction,
)
from ebla.observe.event_reporter import EventReporter
from ebla.transfers.deadline import Deadline
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest, KeyValue, WatchAnswer
from ebla.wire.group0_pages import ReadPager, WatchPager
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_READ, GROUP0_WATCH, A, Q, Verb

T = TypeVar("T", bound=msgspec.Struct)

ATTEMPTS_MAX = 20


class ControlCall(Protocol):
    """A call to a node's control process."""

    def __call__(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> Awaitable[A]: ...


@dataclass(frozen=True, slots=True)
class VersionedRecord(Generic[T]):
    stored: StoredValue[T]
    revision: Revision

    @property
    def value(self) -> T:
        return self.stored.value


class RecordStore(Generic[T]):
    """Records of one type."""

    def __init__(self, call: ControlCall, record_type: type[T], timeout_ms: int) -> None:
        self._call = call
        self._record_type = record_type
        self._timeout_ms = timeout_ms

    async def read(self, key: str, deadline: Deadline | None = None) -> VersionedRecord[T] | None:
        """As a quorum knows it; None: it does not exist."""
        found = await self._read_all(Group0ReadRequest(keys=(key,)), deadline)
        return self._decode(found[0]) if found else None

    async def list(self, prefix: str, deadline: Deadline | None = None) -> dict[str, VersionedRecord[T]]:
        found = await self._read_all(Group0ReadRequest(prefixes=(prefix,)), deadline)
        return {one.key: self._decode(one) for one in found}

    async def change(
        self, key: str, decide: Callable[[T | None], T | None], deadline: Deadline | None = None
    ) -> T | None:
        """Writes what `decide` makes of the current record, and returns it; None if `decide` declines. If another
        writer was first, or the answer to a write was lost, `decide` is called again with what is there by then; so it
        must recognise what it has decided before."""
        unanswered: EblaError | None = None
        for _ in range(ATTEMPTS_MAX):
            before = await self.read(key, deadline)
            current = None if before is None else before.value
            wanted = decide(current)
            if wanted is None or wanted == current:
                return wanted
            try:
                if await self.put(key, wanted, before, deadline):
                    return wanted
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED or (deadline is not None and deadline.is_over):
                    raise
                unanswered = error
        raise unanswered or Unavailable(f"record {key} changes too quickly", advice="try again")

    async def put(
        self, key: str, record: T, before: VersionedRecord[T] | None, deadline: Deadline | None = None
    ) -> bool:
        """False: another writer was first. Fields of a newer release that this one does not know are kept."""
        stored = StoredValue(record) if before is None else before.stored.with_value(record)
        condition: Condition = KeyMissing(key) if before is None else KeyUnchanged(key, before.revision)
        revision = await self.execute(Transaction((condition,), (PutKey(key, encode_stored(stored)),)), deadline)
        if revision is not None:
            self._noted(key, VersionedRecord(stored, revision))
        return revision is not None

    async def delete(self, key: str, revision: Revision, deadline: Deadline | None = None) -> bool:
        """False: it was changed meanwhile."""
        deleted = await self.execute(Transaction((KeyUnchanged(key, revision),), (DeleteKey(key),)), deadline)
        if deleted is not None:
            self._noted(key, None)
        return deleted is not None

    async def execute(self, transaction: Transaction, deadline: Deadline | None = None) -> Revision | None:
        """None: a condition failed."""
        answer = (await self._call(GROUP0_EXECUTE, ExecuteRequest(transaction), self._within_ms(deadline))).answer
        match answer:
            case Done():
                return answer.revision
            case ConditionFailed():
                return None
        raise Refused(f"the record was not written: {answer}")

    async def _read_all(self, request: Group0ReadRequest, deadline: Deadline | None) -> tuple[KeyValue, ...]:
        pages = ReadPager(request)
        while True:
            page = await self._call(GROUP0_READ, pages.request(), self._within_ms(deadline))
            if (whole := pages.take(page)) is not None:
                return whole.found

    def _decode(self, found: KeyValue) -> VersionedRecord[T]:
        return VersionedRecord(decode_stored(self._record_type, found.value), found.revision)

    def _noted(self, key: str, record: VersionedRecord[T] | None) -> None:
        """For a store that keeps a copy."""

    def _within_ms(self, deadline: Deadline | None) -> int:
        return self._timeout_ms if deadline is None else deadline.at_most_ms(self._timeout_ms)


@dataclass(frozen=True, slots=True)
class WatchLimits:
    watch_ms: int = 10_000
    """How long control may hold a watch that has nothing to report."""
    answer_ms: int = 10_000
    retry_ms: int = 500
    """The pause after a call that failed."""


class WatchedRecords(RecordStore[T]):
    """A local copy of all records of a type below a prefix, kept up to date by a watch and by the own writes."""

    def __init__(
        self,
        call: ControlCall,
        record_type: type[T],
        limits: WatchLimits,
        report: EventReporter,
        *,
        prefix: str,
        key_of: Callable[[T], str],
    ) -> None:
        super().__init__(call, record_type, limits.answer_ms)
        self._prefix = prefix
        self._key_of = key_of
        self._limits = limits
        self._report = report
        self._backoff = Backoff(first_s=limits.retry_ms / 1000, max_s=limits.retry_ms / 1000)
        self._records: dict[str, VersionedRecord[T]] = {}
        self.loaded = asyncio.Event()
        self.on_change: Callable[[], None] = _nothing

    def records(self) -> Mapping[str, VersionedRecord[T]]:
        return self._records

    # ---- following

    async def follow(self) -> None:
        """Until cancelled."""
        limits = self._limits
        pages = WatchPager(self._prefix)
        while True:
            try:
                page = await self._call(
                    GROUP0_WATCH, pages.request(limits.watch_ms), limits.watch_ms + limits.answer_ms
                )
                answer = pages.take(page)
            except EblaError:
                pages = WatchPager(self._prefix)
                await asyncio.sleep(limits.retry_ms / 1000)
                continue
            if answer is not None:
                self._take(answer)

    def _take(self, answer: WatchAnswer) -> None:
        if answer.reset:
            there = {change.key for change in answer.changes}
            # A node that lags may not have yet what this process wrote through another.
            gone = [
                key
                for key, known in self._records.items()
                if key not in there and not _is_newer(known.revision, answer.revision)
            ]
            for key in gone:
                del self._records[key]
        for change in answer.changes:
            self._received(change.key, change.value, Revision(answer.revision.history, change.index))
        self.loaded.set()
        self.on_change()

    def _received(self, key: str, value: bytes | None, revision: Revision) -> None:
        """The own writes are known before the watch reports them, and an older report must not undo them."""
        known = self._records.get(key)
        if known is not None and known.revision.history == revision.history and known.revision.index >= revision.index:
            return
        stored = None if value is None else self._readable(key, value)
        self._noted(key, None if stored is None else VersionedRecord(stored, revision))

    def _readable(self, key: str, value: bytes) -> StoredValue[T] | None:
        """None: a newer release wrote it in a form that this one cannot read, so it is none of its records."""
        try:
            stored = decode_stored(self._record_type, value)
        except (msgspec.MsgspecError, ValueError) as error:
            self._report("jobs.unreadable", {"key": key, "cause": str(error)})
            return None
        return stored if self._key_of(stored.value) == key else None

    def _noted(self, key: str, record: VersionedRecord[T] | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record

    # ---- reading and writing

    async def read(self, key: str, deadline: Deadline | None = None) -> VersionedRecord[T] | None:
        found = await self._read_all(Group0ReadRequest(keys=(key,)), deadline)
        if found:
            self._received(key, found[0].value, found[0].revision)
        else:
            self._records.pop(key, None)
        return self._records.get(key)

    async def read_until_known(self, key: str) -> T | None:
        """Retries until group 0 answers."""
        found = await retry(lambda: self.read(key), self._backoff, timeout_s=None, is_retryable=lambda _: True)
        return None if found is None else found.value

    async def change_until_known(self, key: str, decide: Callable[[T], T | None]) -> T | None:
        """`change` of a record that exists, retried until it is known what became of it; None also if it is gone."""
        wanted: T | None = None

        def once(current: T | None) -> T | None:
            nonlocal wanted
            if current is not None and current != wanted:
                wanted = decide(current)
                return wanted
            return current  # gone, or written by an attempt whose answer was lost

        return await retry(lambda: self.change(key, once), self._backoff, timeout_s=None, is_retryable=lambda _: True)

    async def try_change(self, key: str, decide: Callable[[T], T | None]) -> None:
        """One attempt, based on the local copy; the watch reports what came of it."""
        known = self._records.get(key)
        wanted = None if known is None else decide(known.value)
        if known is not None and wanted is not None and wanted != known.value:
            await self.attempt(lambda: self.put(key, wanted, known))

    async def try_delete(self, key: str) -> None:
        known = self._records.get(key)
        if known is not None:
            await self.attempt(lambda: self.delete(key, known.revision))

    async def attempt(self, write: Callable[[], Awaitable[object]]) -> bool:
        """False: it failed, or may have; then after a pause."""
        try:
            return bool(await write())
        except EblaError:
            await asyncio.sleep(self._limits.retry_ms / 1000)
            return False


def _is_newer(revision: Revision, than: Revision) -> bool:
    return revision.history == than.history and revision.index > than.index


def _nothing() -> None:
    pass
