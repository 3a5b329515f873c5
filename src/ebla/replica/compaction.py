"""Compacts a shard's stacks: one at a time, planned here, carried out in the bulk process, swapped in here.

A compaction that fails (no bulk process, a full disk, a bulk process that was killed) leaves the stack unchanged and is
retried after a pause. Stacks take turns, so that a failing one does not hold up the others.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ebla.feed.topology_view import View
from ebla.model.errors import DeadlineExceeded, EblaError, Refused, Stale
from ebla.model.token import WHOLE_RING, subtract_ranges
from ebla.observe.event_reporter import EventReporter
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.shard_metrics import ShardMetrics
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult, SwapOutcome
from ebla.storage.compaction.tombstone_gc import GcContext, RepairedRange
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.wire.server import IncomingCall
from ebla.wire.verbs import CleanupAnswer, CleanupRequest

CHECK_S = 1.0
"""How often the stacks are checked."""
RETRY_PAUSE_S = 5.0
"""After a compaction that failed."""
CLEANUP_RETRY_S = 1.0
"""After a compaction whose result could not be used, and while another one of the stack runs."""
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

    async def serve_cleanup(self, _request: CleanupRequest, call: IncomingCall) -> CleanupAnswer:
        return await self.clean_up(call.work_ms())

    async def clean_up(self, deadline_ms: int) -> CleanupAnswer:
        """Drops from tables on vnodes what the node does not hold, now. Raises `Refused` while a node operation runs,
        and `DeadlineExceeded`."""
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + deadline_ms / 1000
        stacks = [stack for stack in self._stacks.served() if stack.entry.held is not None]
        before_bytes = sum(self._store.bytes_of(stack) for stack in stacks)
        for stack in stacks:
            while not self._is_clean(stack):
                if loop.time() >= expires_at:
                    raise DeadlineExceeded(
                        f"{stack.schema.full_name} was not cleaned up in time", advice="run the command again"
                    )
                end = await self.compact(stack, whole=True)
                if end == SwapOutcome.SWAPPED.value or (end is None and stack.compacting is None):
                    break
                await asyncio.sleep(CLEANUP_RETRY_S)
        after_bytes = sum(self._store.bytes_of(stack) for stack in stacks if not stack.dropped)
        return CleanupAnswer(before_bytes=before_bytes, after_bytes=after_bytes)

    def _is_clean(self, stack: Stack) -> bool:
        if stack.dropped:
            return True
        kept = stack.kept
        if kept is None:
            operation = self._stacks.running_operation
            raise Refused(
                f"the cleanup stops: {operation or 'this shard does not know yet whether its topology is recent'}",
                advice="run it again when it has ended, see `ebla topology`" if operation else "try again in a moment",
            )
        return not subtract_ranges((WHOLE_RING,), kept) and not any(base.hidden for base in stack.entry.bases)

    async def compact(self, stack: Stack, *, whole: bool = False) -> str | None:
        """How it ended; None: there was nothing to compact, or another compaction of the stack runs."""
        self._last = stack
        job = await self._store.begin_compaction(stack, self._terms(stack), whole=whole)
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
