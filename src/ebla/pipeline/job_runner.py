"""One run of a job, from opening its session to adopting what it has copied.

The queue closes the session, not the runner, and does so before it writes that the run has ended. So a job that has
ended has no more effect, however its run went.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from ebla.feed.topology_view import TopologyView
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest
from ebla.model.identity import SessionId, TableId, TopologyVersion
from ebla.model.records.jobs import JobProgress, JobRecord, JobResult
from ebla.pipeline.compare_replicas import ReplicaComparison
from ebla.pipeline.job_plans import ComparePlan, FileCopyPlan, JobPlan, RowStreamPlan, plan_job
from ebla.pipeline.job_scheduler import JobLimits
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.ports.transfer_engine import TransferEngine
from ebla.transfers.transfer_client import TransferClient
from ebla.transfers.transfer_run import ProgressMeter, TransferRun, TransferTotals


@dataclass(frozen=True, slots=True)
class NewSession:
    """The id of a session that is not open yet, and a version of the topology that was known when the id was drawn. If
    the request to open it arrives late, that version shows that the session has been closed since."""

    session: SessionId
    known_version: TopologyVersion


class JobHandle(Protocol):
    """The queue's side of a run."""

    def report(self, progress: JobProgress) -> None:
        """Quick; never fails."""
        ...

    async def confirm(self) -> None:
        """Raises `Stale` if another pipeline has taken the run over."""
        ...


class JobTimedOut(InvalidRequest):
    """The job has used up its time. Another run would have no more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunner:
    client: TransferClient
    engine: TransferEngine
    topology: TopologyView
    clock: Clock
    rng: Rng
    limits: JobLimits = field(default_factory=JobLimits)

    def new_session(self) -> NewSession:
        return NewSession(SessionId(self.rng.uuid()), self.topology.current.version)

    async def run(self, job: JobRecord, new: NewSession, handle: JobHandle) -> JobResult:
        """Raises `InvalidRequest` if the job cannot be done at all, `PipelineUnavailable`, and any other `EblaError` if
        the run failed on the way."""
        run = TransferRun(
            job=job.id,
            session=new.session,
            client=self.client,
            engine=self.engine,
            topology=self.topology,
            meter=ProgressMeter(handle.report),
        )
        try:
            async with asyncio.timeout(job.life_ms / 1000):
                await self._open(run, job, new, handle)
                return await self._run(run, job.spec.table, self._plan(job))
        except TimeoutError:
            raise JobTimedOut(f"not done within {job.life_ms // 1000} s") from None

    async def close(self, session: SessionId) -> None:
        """Returns once nothing can have an effect under the session."""
        await self.client.close_session(session)

    async def _open(self, run: TransferRun, job: JobRecord, new: NewSession, handle: JobHandle) -> None:
        run.meter.step("opening a session")
        self._plan(job)  # refuse an invalid job before anything is opened
        opened = await self.client.open_session(run.scope(job.spec.table), job.life_ms, new.known_version)
        await handle.confirm()
        if not await self.topology.wait_version(opened.version, self.limits.topology_ms / 1000):
            raise DeadlineExceeded(f"version {opened.version} of the topology has not reached the pipeline in time")

    def _plan(self, job: JobRecord) -> JobPlan:
        return plan_job(self.topology.current.sets, job.spec, self.topology.down)

    async def _run(self, run: TransferRun, table: TableId, plan: JobPlan) -> JobResult:
        match plan:
            case FileCopyPlan():
                return _result(await run.copy_files(table, plan.copies, use_links=plan.use_links))
            case RowStreamPlan():
                return _result(await run.copy_rows(plan.copies, "streaming rows"))
            case ComparePlan():
                return await ReplicaComparison(run, table, self.clock, self.limits).compare(plan)
            case _:
                assert_never(plan)


def _result(totals: TransferTotals) -> JobResult:
    return JobResult(bytes_moved=totals.size_bytes, rows=totals.rows, layers=totals.layers, short_cut=totals.short_cut)


def is_final(error: EblaError) -> bool:
    """Whether another run would fail the same way."""
    return isinstance(error, InvalidRequest)
