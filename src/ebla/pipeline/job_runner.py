"""One run of a job, from the opening of its session to the adoption of what it brought.

The session is not closed here but by whoever attends to the run, before it is written that the run has ended: then a
job that has ended has no effect any more, however its run went.
"""

import asyncio
from typing import assert_never

from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest
from ebla.model.identity import SessionId
from ebla.model.records.jobs import CopyTablets, JobRecord, JobResult
from ebla.pipeline.compare_replicas import compare_replicas
from ebla.pipeline.copy_steps import RowCopy, TransferTotals, copy_files, copy_rows
from ebla.pipeline.job_plans import ComparePlan, FileCopyPlan, JobPlan, RowStreamPlan, plan_job
from ebla.pipeline.job_run import JobHandle, JobRun, NewSession, ProgressMeter, RunDeps


class JobTimedOut(InvalidRequest):
    """The job's life is over. Another try would not have more of it."""


class JobRunner:
    def __init__(self, parts: RunDeps) -> None:
        self._parts = parts

    def draw(self) -> NewSession:
        parts = self._parts
        return NewSession(SessionId(parts.rng.uuid()), parts.view.current.version)

    async def run(self, job: JobRecord, drawn: NewSession, handle: JobHandle) -> JobResult:
        """Raises `InvalidRequest` for what cannot be done at all, `PipelineUnavailable`, and any other `EblaError` for
        what broke on the way."""
        run = JobRun(job=job, drawn=drawn, meter=ProgressMeter(handle.tell), parts=self._parts)
        try:
            async with asyncio.timeout(job.life_ms / 1000):
                return await self._run(run, handle)
        except TimeoutError:
            raise JobTimedOut(f"not done within {job.life_ms // 1000} s") from None

    async def close(self, session: SessionId) -> None:
        """Returns once nothing can happen under it any more."""
        await self._parts.steps.close_session(session)

    async def _run(self, run: JobRun, handle: JobHandle) -> JobResult:
        parts = self._parts
        run.meter.step("opening a session")
        self._plan(run)  # what makes no sense is refused before anything is opened
        opened = await parts.steps.open_session(run.scope, run.job.life_ms, run.drawn.known_version)
        await handle.confirm()
        if not await parts.view.wait_version(opened.version, parts.limits.topology_ms / 1000):
            raise DeadlineExceeded(f"version {opened.version} of the topology has not come to the pipeline in time")
        plan = self._plan(run)
        match plan:
            case FileCopyPlan():
                assert isinstance(run.job.spec, CopyTablets)
                return _result(await copy_files(run, plan, short_cut=run.job.spec.short_cut))
            case RowStreamPlan():
                return _result(await self._stream(run, plan))
            case ComparePlan():
                return await compare_replicas(run, plan)
            case _:
                assert_never(plan)

    def _plan(self, run: JobRun) -> JobPlan:
        view = self._parts.view
        return plan_job(view.current.sets, run.job.spec, view.down)

    async def _stream(self, run: JobRun, plan: RowStreamPlan) -> TransferTotals:
        wanted = []
        for piece in plan.pieces:
            target = piece.replica_on(plan.target)
            assert target is not None, "the plan has made sure"
            wanted.append(RowCopy(piece.range, plan.sources, (target,)))
        brought, size = TransferTotals(), self._parts.limits.pieces_at_once_max
        for start in range(0, len(wanted), size):
            group = wanted[start : start + size]
            words = f"streaming ranges {start + 1} to {start + len(group)} of {len(wanted)}"
            brought += await copy_rows(run, group, words)
        return brought


def _result(brought: TransferTotals) -> JobResult:
    return JobResult(
        bytes_moved=brought.size_bytes, rows=brought.rows, layers=brought.layers, short_cut=brought.short_cut
    )


def is_final(error: EblaError) -> bool:
    """Whether another run would meet the same."""
    return isinstance(error, InvalidRequest)
