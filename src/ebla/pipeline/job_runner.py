"""One run of a job, from the opening of its session to the adoption of what it brought.

The session is not closed here but by whoever attends to the run, before it is written that the run has ended: then a
job that has ended has no effect any more, however its run went.
"""

import asyncio
from typing import assert_never

from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest
from ebla.model.identity import SessionId
from ebla.pipeline.comparing import compare
from ebla.pipeline.moving import Brought, RowsWanted, copy_files, move_rows
from ebla.pipeline.plan_jobs import ComparePlan, FilePlan, Plan, RowPlan, plan_job
from ebla.pipeline.runs import Attendant, Drawn, Meter, Run, RunParts
from ebla.wire.jobs import CopyTablets, Job, JobResult


class OutOfTime(InvalidRequest):
    """The job's life is over. Another try would not have more of it."""


class JobRunner:
    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    def draw(self) -> Drawn:
        parts = self._parts
        return Drawn(SessionId(parts.chance.uuid()), parts.view.current.version)

    async def run(self, job: Job, drawn: Drawn, attendant: Attendant) -> JobResult:
        """Raises `InvalidRequest` for what cannot be done at all, `PipelineUnavailable`, and any other `EblaError` for
        what broke on the way."""
        run = Run(job, drawn, Meter(attendant.tell), self._parts)
        try:
            async with asyncio.timeout(job.life_ms / 1000):
                return await self._run(run, attendant)
        except TimeoutError:
            raise OutOfTime(f"not done within {job.life_ms // 1000} s") from None

    async def close(self, session: SessionId) -> None:
        """Returns once nothing can happen under it any more."""
        await self._parts.steps.close_session(session)

    async def _run(self, run: Run, attendant: Attendant) -> JobResult:
        parts = self._parts
        run.meter.step("opening a session")
        self._plan(run)  # what makes no sense is refused before anything is opened
        opened = await parts.steps.open_session(run.scope, run.job.life_ms, run.drawn.asked_at)
        await attendant.confirm()
        if not await parts.view.wait_version(opened.version, parts.limits.topology_ms / 1000):
            raise DeadlineExceeded(f"version {opened.version} of the topology has not come to the pipeline in time")
        plan = self._plan(run)
        match plan:
            case FilePlan():
                assert isinstance(run.job.wish, CopyTablets)
                return _result(await copy_files(run, plan, short_cut=run.job.wish.short_cut))
            case RowPlan():
                return _result(await self._stream(run, plan))
            case ComparePlan():
                return await compare(run, plan)
            case _:
                assert_never(plan)

    def _plan(self, run: Run) -> Plan:
        view = self._parts.view
        return plan_job(view.current.sets, run.job.wish, view.down)

    async def _stream(self, run: Run, plan: RowPlan) -> Brought:
        wanted = []
        for piece in plan.pieces:
            target = piece.replica_on(plan.target)
            assert target is not None, "the plan has made sure"
            wanted.append(RowsWanted(piece.range, plan.sources, (target,)))
        brought, size = Brought(), self._parts.limits.pieces_at_once_max
        for start in range(0, len(wanted), size):
            group = wanted[start : start + size]
            words = f"streaming ranges {start + 1} to {start + len(group)} of {len(wanted)}"
            brought += await move_rows(run, group, words)
        return brought


def _result(brought: Brought) -> JobResult:
    return JobResult(
        bytes_moved=brought.size_bytes, rows=brought.rows, layers=brought.layers, short_cut=brought.short_cut
    )


def is_final(error: EblaError) -> bool:
    """Whether another run would meet the same."""
    return isinstance(error, InvalidRequest)
