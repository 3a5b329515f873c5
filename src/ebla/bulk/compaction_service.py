"""Folds for the shards of a node: so many at a time, the others in line, and a bound on the line.

A fold reads checkpoints and writes a folder that no manifest names yet; it has an effect only when the shard that
asked swaps it in, and that is decided there (`INV-LAYER-GC`). So it needs neither a version nor a session, and one
that is given up at any point has changed nothing.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from ebla.model.errors import EblaError, Overloaded
from ebla.observe.event_reporter import EventReporter
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.wire.server import IncomingCall


class CompactionRunner(Protocol):
    """Carries a fold out. Cancelled, late or failed, it leaves no output folder and nothing that still runs."""

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult: ...


@dataclass(frozen=True, slots=True)
class CompactionServiceLimits:
    folds_max: int = 2
    """At a time, of all shards together: each takes a core for as long as it lasts."""
    waiting_max: int = 256
    fold_ms: int = 3_600_000


class CompactionService:
    """`serve` answers the verb. A shard that dies loses its connection, and with it what it asked for."""

    def __init__(self, folding: CompactionRunner, limits: CompactionServiceLimits, report: EventReporter) -> None:
        self._folding = folding
        self._limits = limits
        self._report = report
        self._room = asyncio.Semaphore(limits.folds_max)
        self.running = 0
        self.waiting = 0

    async def serve(self, job: CompactionJob, call: IncomingCall) -> CompactionResult:
        if self.waiting >= self._limits.waiting_max:
            raise Overloaded(f"{self.waiting} folds wait already", advice="fold later; the layers stay as they are")
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            return await self._fold(job, min(call.remaining_ms(), self._limits.fold_ms) / 1000)
        finally:
            self.running -= 1
            self._room.release()

    async def _fold(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        try:
            result = await self._folding.compact(job, deadline_s)
        except EblaError as error:
            self._report("fold.failed", {"output": job.output_folder, "cause": error.message})
            raise
        details = {"output": job.output_folder, "layers": len(job.inputs), "rows": result.facts.rows}
        self._report("fold.done", details)
        return result
