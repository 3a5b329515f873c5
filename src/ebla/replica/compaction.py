"""Compacts a shard's stacks: one at a time, planned here, carried out in the bulk process, swapped in here.

A compaction that fails (no bulk process, a full disk, a bulk process that was killed) leaves the stack unchanged and is
retried after a pause. Stacks take turns, so that a failing one does not hold up the others.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, Stale
from ebla.observe.event_reporter import EventReporter
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.shard_metrics import ShardMetrics
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import GcContext, RepairedRange
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore

CHECK_S = 1.0
"""How often the stacks are checked."""
RETRY_PAUSE_S = 5.0
"""After a compaction that failed."""
FAILED = "failed"


Compact = Callable[[CompactionJob], Awaitable[CompactionResult]]
"""Runs one compaction, in the node's bulk process. Raises `EblaError` if it fails; the layers are unchanged then."""


class CompactionLoop:
    """`run` must be running in the shard's task group."""

    def __init__(
        self, store: ShardStore, stacks: ReplicaStacks, run_job: Compact, terms: Callable[[Stack], GcContext]
    ) -> None:
        self._store = store
        self._stacks = stacks
        self._run_job = run_job
        self._terms = terms
        self._last: Stack | None = None

    async def run(self, metrics: ShardMetrics, report: EventReporter) -> None:
        while True:
            await self._wait()
            for stack in self._in_turn():
                try:
                    end = await self.compact(stack)
                except Stale:
                    continue  # it was dropped
                except EblaError as failure:
                    metrics.compactions.series(FAILED).add()
                    report("shard.compaction_failed", {"stack": f"{stack.incarnation:016x}", "cause": failure.message})
                    await asyncio.sleep(RETRY_PAUSE_S)
                    break
                if end is not None:
                    metrics.compactions.series(end).add()

    async def _wait(self) -> None:
        """Waits until a stack has grown, or for `CHECK_S`: only adoptions set the event."""
        wanted = self._store.compaction_wanted
        try:
            async with asyncio.timeout(CHECK_S):
                await wanted.wait()
        except TimeoutError:
            pass
        wanted.clear()

    def _in_turn(self) -> list[Stack]:
        """The stacks that have grown, starting after the one that was compacted last."""
        grown = [stack for stack in self._stacks.served() if self._store.needs_compaction(stack)]
        if self._last in grown:
            at = grown.index(self._last) + 1
            return grown[at:] + grown[:at]
        return grown

    async def compact(self, stack: Stack) -> str | None:
        """How it ended; None: there was nothing to compact."""
        self._last = stack
        job = await self._store.begin_compaction(stack, self._terms(stack))
        if job is None:
            return None
        try:
            result = await self._run_job(job)
        except BaseException:
            # Also when this process stops. The bulk process stops with its connection, and writes to a folder that no
            # manifest names.
            await self._store.abandon_compaction(job)
            raise
        return (await self._store.finish_compaction(job, result)).value


def gc_terms(view: View, stack: Stack, now_s: int) -> GcContext:
    """The rules for purging tombstones of a stack, by the topology. Pure."""
    table, token_range = stack.entry.table, stack.entry.range
    factor = view.snapshot.replication_of(table).total if table in view.snapshot.tables else 0
    tablets = view.snapshot.tablets.get(table)
    time_ms = 0 if tablets is None else tablets.repair_time_ms(tablets.number_of(token_range.end))
    repaired = (RepairedRange(token_range, time_ms // 1000),) if time_ms else ()
    return GcContext(now_s=now_s, replication_factor=factor, repaired=repaired)
