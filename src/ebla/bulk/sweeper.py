"""Garbage-collects staging and checkpoints of closed sessions (INV-XFER-5).

A session that this process does not find listed may also be one that it does not know yet, after a start or behind a
slow feed. So nothing is removed before a read barrier was reached, and nothing while a guard of the session is held.

Checkpoints for reads of tables have no session. They are removed when they were not used for a while.
"""

import asyncio

from ebla.bulk.checkpoint_store import CheckpointStore
from ebla.bulk.staging import Staging
from ebla.bulk.table_snapshots import TableSnapshots
from ebla.bulk.transfer_context import TransferContext
from ebla.bulk.transfer_streams import TransferStreams
from ebla.model.errors import DiskFull, EblaError
from ebla.model.identity import SessionId


class Sweeper:
    def __init__(
        self,
        context: TransferContext,
        staging: Staging,
        streams: TransferStreams,
        checkpoints: CheckpointStore,
        reads: TableSnapshots,
    ) -> None:
        self._context = context
        self._guards = context.guards
        self._staging = staging
        self._streams = streams
        self._checkpoints = checkpoints
        self._reads = reads
        self._news = asyncio.Event()
        self.failures: dict[SessionId, OSError | DiskFull] = {}
        """Of the last sweep; the next one retries."""

    def notice(self) -> None:
        """The list of sessions may have changed."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        limits, report = self._context.limits, self._context.report
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
        """Raises `Unavailable` where no read barrier was reached."""
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
        """Without a barrier: at worst a checkpoint is removed too early and taken again."""
        self._reads.expire_snapshots()
        self._streams.end_reads()
        await self._reads.drop_idle()

    async def _sweep_one(self, session: SessionId) -> None:
        if session in self._guards.closing:
            return  # the next sweep tries again
        self._streams.end_session(session)
        try:
            await self._staging.drop_session(session)
            await self._checkpoints.drop_session(session)
        except (OSError, DiskFull) as failure:
            # An abandoned task may be creating files in the folder that is being removed.
            self.failures[session] = failure
        else:
            self._context.metrics.swept.add()

    def _unlisted(self) -> list[SessionId]:
        held = dict.fromkeys((*self._staging.sessions, *self._checkpoints.sessions))
        return [session for session in held if self._guards.listed(session) is None]
