"""What closed sessions have left goes, whoever forgot it: staging and checkpoints (INV-XFER-5).

A session that this process does not find listed may also be one that it has not heard of yet, after a start or behind
a slow feed. So nothing is removed before a read barrier was reached; and nothing while a guard of it is still held.

Checkpoints of reads of tables have no session. They go when nobody has used them for a while.
"""

import asyncio
from dataclasses import dataclass

from ebla.bulk.checkpoint_store import CheckpointStore
from ebla.bulk.staging import Staging
from ebla.bulk.table_snapshots import TableSnapshots
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.bulk.transfer_streams import TransferStreams
from ebla.feed.session_guards import SessionGuards
from ebla.model.errors import DiskFull, EblaError
from ebla.model.identity import SessionId
from ebla.observe.event_reporter import EventReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperDeps:
    guards: SessionGuards
    staging: Staging
    stream_service: TransferStreams
    checkpoints: CheckpointStore
    reads: TableSnapshots
    counts: TransferMetrics


class Sweeper:
    def __init__(self, parts: SweeperDeps) -> None:
        self._guards = parts.guards
        self._staging = parts.staging
        self._plane = parts.stream_service
        self._checkpoints = parts.checkpoints
        self._reads = parts.reads
        self._counts = parts.counts
        self._news = asyncio.Event()
        self.failures: dict[SessionId, OSError | DiskFull] = {}
        """Of the last sweep; the next one tries again."""

    def notice(self) -> None:
        """The list of sessions may have changed."""
        self._news.set()

    async def run(self, limits: TransferLimits, report: EventReporter) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(limits.sweep_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                await self.sweep(limits.barrier_ms)
            except (EblaError, OSError) as error:
                report("staging.not_swept", {"cause": str(error)})
            for session, failure in self.failures.items():
                report("staging.not_swept", {"session": str(session), "cause": str(failure)})

    async def sweep(self, barrier_ms: int) -> None:
        """Raises `Unavailable` where there was no barrier."""
        self.failures = {}
        self._staging.notice_orphans()
        await self._sweep_reads()
        if self._unlisted():
            await self._guards.catch_up(barrier_ms)
            for session in self._unlisted():
                await self._sweep_one(session)
        await self._staging.remove_leftovers()
        await self._checkpoints.remove_orphans()

    async def _sweep_reads(self) -> None:
        """No barrier is needed: at worst one is taken again that need not have gone."""
        self._reads.expire_snapshots()
        self._plane.end_reads()
        await self._reads.drop_idle()

    async def _sweep_one(self, session: SessionId) -> None:
        if session in self._guards.closing:
            return  # there is a next time
        self._plane.end_session(session)
        try:
            await self._staging.drop_session(session)
            await self._checkpoints.drop_session(session)
        except (OSError, DiskFull) as failure:
            # A task that was given up may be making files in the very folder that is removed.
            self.failures[session] = failure
        else:
            self._counts.swept.add()

    def _unlisted(self) -> list[SessionId]:
        held = dict.fromkeys((*self._staging.sessions, *self._checkpoints.sessions))
        return [session for session in held if self._guards.listed(session) is None]
