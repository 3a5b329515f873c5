"""Runs compactions for the shards of a node: a few at a time, the others wait, and the queue is bounded.

A compaction reads checkpoints and writes a folder that no manifest names yet. It has an effect only when the shard that
requested it swaps the result in, and the shard decides that (`INV-LAYER-GC`). So a compaction needs neither a topology
version nor a session, and one that is abandoned at any point has changed nothing.
"""

import asyncio
from typing import Protocol

from ebla.model.errors import EblaError, Overloaded
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeLimits
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.wire.server import IncomingCall


class CompactionRunner(Protocol):
    """Carries out a compaction. Cancelled, late or failed, it leaves no output folder and no running process."""

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult: ...


WAITING_MAX = 256
"""Compactions that wait for a slot."""


class CompactionService:
    """`serve` answers the verb. A shard that dies loses its connection, which cancels its compactions. So many run at a
    time, of all shards together, as the node allows: each takes a core for as long as it lasts."""

    def __init__(
        self, runner: CompactionRunner, limits: NodeLimits, report: EventReporter, waiting_max: int = WAITING_MAX
    ) -> None:
        self._runner = runner
        self._report = report
        self._waiting_max = waiting_max
        self._slots = asyncio.Semaphore(limits.compactions_max)
        self.running = 0
        self.waiting = 0

    async def serve(self, job: CompactionJob, call: IncomingCall) -> CompactionResult:
        if self.waiting >= self._waiting_max:
            raise Overloaded(
                f"{self.waiting} compactions are waiting already", advice="compact later; the layers stay as they are"
            )
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            return await self._compact(job, call.work_ms() / 1000)
        finally:
            self.running -= 1
            self._slots.release()

    async def _compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        try:
            result = await self._runner.compact(job, deadline_s)
        except EblaError as error:
            self._report("compaction.failed", {"output": job.output_folder, "cause": error.message})
            raise
        details = {"output": job.output_folder, "layers": len(job.inputs), "rows": result.facts.rows}
        self._report("compaction.done", details)
        return result
