"""Many writers, one sync: while a batch is being synced the next one gathers."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ebla.journal.segments import LogFailed, SegmentedLog
from ebla.model.errors import DiskFull, EblaError, Overloaded


@dataclass(frozen=True, slots=True)
class CommitLimits:
    batch_bytes: int = 4 << 20
    """A batch is closed before it would exceed this; a single commit may be larger."""
    batch_records: int = 65_536
    waiting_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True)
class _Commit:
    records: Sequence[bytes]
    size_bytes: int
    durable: asyncio.Future[int]


class GroupCommit:
    """`run` must be running in the owner's task group. When it ends, every waiting commit fails, outcome unknown."""

    def __init__(self, log: SegmentedLog, limits: CommitLimits) -> None:
        self._log = log
        self._limits = limits
        self._waiting: deque[_Commit] = deque()
        self._waiting_bytes = 0
        self._work = asyncio.Event()
        self._ended = False

    async def commit(self, records: Sequence[bytes]) -> int:
        """Durable on return, and all of these records or none; the last one's sequence.

        Raises `Overloaded` and `DiskFull` with nothing done, `LogFailed` when the log failed. A cancelled caller's
        records may still be written.
        """
        assert records
        size_bytes = self._log.check_batch(records)
        if self._ended:
            raise _log_ended()
        if self._waiting and self._waiting_bytes + size_bytes > self._limits.waiting_bytes_max:
            raise Overloaded(f"{self._waiting_bytes} bytes already wait to be synced", advice="try again later")
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Commit(records, size_bytes, durable))
        self._waiting_bytes += size_bytes
        self._work.set()
        return await durable

    async def run(self) -> NoReturn:
        batch: list[_Commit] = []
        try:
            while True:
                await self._work.wait()
                batch = self._take_batch()
                await self._write(batch)
        except EblaError as failure:
            self._fail_all(batch, failure)
            raise
        finally:
            self._fail_all(batch, _log_ended())

    def _take_batch(self) -> list[_Commit]:
        batch: list[_Commit] = []
        size_bytes = 0
        count = 0
        while self._waiting:
            commit = self._waiting[0]
            size_bytes += commit.size_bytes
            count += len(commit.records)
            if batch and (size_bytes > self._limits.batch_bytes or count > self._limits.batch_records):
                break
            batch.append(self._waiting.popleft())
        self._waiting_bytes -= sum(commit.size_bytes for commit in batch)
        if not self._waiting:
            self._work.clear()
        return batch

    async def _write(self, batch: list[_Commit]) -> None:
        try:
            last = await self._log.append([record for commit in batch for record in commit.records])
        except DiskFull as failure:
            # Nothing of the batch happened, and the next one may find space again.
            _settle(batch, failure)
            return
        sequence = last - sum(len(commit.records) for commit in batch)
        for commit in batch:
            sequence += len(commit.records)
            if not commit.durable.done():
                commit.durable.set_result(sequence)

    def _fail_all(self, batch: list[_Commit], failure: EblaError) -> None:
        self._ended = True
        _settle(batch, failure)
        _settle(list(self._waiting), failure)
        self._waiting.clear()


def _settle(batch: list[_Commit], failure: EblaError) -> None:
    for commit in batch:
        if not commit.durable.done():
            commit.durable.set_exception(failure)
            # Counts as seen: whoever still waits gets it, and a caller that is gone must not make asyncio complain.
            commit.durable.exception()


def _log_ended() -> LogFailed:
    return LogFailed("the log takes no more records: its writer has ended", advice="start this process again")
