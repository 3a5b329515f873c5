"""Layers of staged rows, made in processes of their own; the child's half is `python -m
ebla.bulk.workers.build_worker`. Nothing counts until the transfer is sealed."""

import os

import msgspec

from ebla.bulk.workers.fork_pool import ForkPool
from ebla.bulk.workers.subprocess_job import WorkerFailed
from ebla.model.errors import EblaError, Outcome
from ebla.storage.compaction.layer_build import BuildJob, BuildResult
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import FailureFrame

CONCURRENT_BUILDS_MAX = max(1, min(4, os.cpu_count() or 1))
IDLE_S = 600.0
"""So long the process that is ready for builds waits for another: a job that comes every few minutes finds it. What it
holds for itself are 40 MB."""


class BuildFailed(EblaError):
    """No layer was made of the rows; they are as they were."""

    outcome = Outcome.NOT_APPLIED


class BuildOutcome(msgspec.Struct, frozen=True, array_like=True):
    """One of the two."""

    result: BuildResult | None
    failure: FailureFrame | None = None


class LayerBuildPool:
    """`bulk.staging.LayerBuilding`. A job of Spark brings rows for every tablet at once: few of them are worked on at a
    time, by processes that stay for the next."""

    def __init__(self, at_once: int = CONCURRENT_BUILDS_MAX) -> None:
        self._processes = ForkPool("ebla.bulk.workers.build_worker", at_once, IDLE_S)

    async def close(self) -> None:
        await self._processes.close()

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        """Raises `BuildFailed`, and what went wrong in the child as it is: a full disk, rows that are none."""
        try:
            answer = await self._processes.run(msgspec.msgpack.encode(job), deadline_s)
        except WorkerFailed as failure:
            raise BuildFailed(f"the layer of {job.rows_files[0]}: {failure.message}", advice="seal again") from failure
        outcome = msgspec.msgpack.decode(answer, type=BuildOutcome)
        if outcome.failure is not None:
            raise error_from_frame(outcome.failure)
        assert outcome.result is not None
        return outcome.result
