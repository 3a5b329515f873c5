"""The `ebla` command with a small group 0, and a pipeline whose runs have scripted outcomes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from tests.unit.pipeline.jobs_rig import (
    HOSTS,
    LoopClock,
    ScriptedEngine,
    SmallGroup0,
    T,
    a_snapshot,
    in_simulated_time,
)
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.jobs import job_following, pipeline, transfers
from ebla.cli.jobs.job_context import JobCommandContext
from ebla.client.job_client import JobClient
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HistoryId, HostId, SessionId, TopologyVersion
from ebla.model.records.jobs import JobProgress, JobRecord, JobResult
from ebla.observe.event_reporter import discard_event
from ebla.pipeline.job_queue import JobQueue, QueueConfig
from ebla.pipeline.job_runner import JobHandle, JobRunner, NewSession
from ebla.sim.rng import SimRng
from ebla.wire.group0_messages import Group0Report
from ebla.wire.verbs import PeerStatus, StatusAnswer


class Outcomes:
    """`job_queue.Runner`: each run takes a while and gives the next outcome."""

    def __init__(self) -> None:
        self._rng = SimRng("outcomes")
        self.next: list[JobResult | EblaError] = []
        self.takes_s = 2.0

    def new_session(self) -> NewSession:
        return NewSession(SessionId(self._rng.uuid()), TopologyVersion(1))

    async def run(self, job: JobRecord, new: NewSession, handle: JobHandle) -> JobResult:
        handle.report(JobProgress(step="copying files", bytes_done=512, bytes_total=1024))
        await asyncio.sleep(self.takes_s)
        outcome = self.next.pop(0)
        if isinstance(outcome, EblaError):
            raise outcome
        return outcome

    async def close(self, session: SessionId) -> None:
        pass


class JobsShell:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.group0 = SmallGroup0()
        self.outcomes = Outcomes()
        self.engine = ScriptedEngine(SimRng("engine"))
        self.rng = SimRng("shell")
        self.down: tuple[HostId, ...] = ()
        self.copies = 2
        self.leader_status: StatusAnswer | None = None
        for module in (job_following, pipeline, transfers):
            patch.setattr(module, "with_job_context", self.with_job_context)

    def with_job_context(self, _data: Path, _name: str | None, work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
        """In the place of `with_job_context`: every call is a life of the pipeline."""

        async def run() -> T:
            self.group0.new_loop()
            jobs = JobClient(self.group0.ask, clock=LoopClock(), rng=self.rng)
            access = JobCommandContext(
                jobs=jobs,
                snapshot=a_snapshot(copies=self.copies),
                status=self._status(),
                leader_status=self.leader_status,
                names=(("node1", HOSTS[0]),),
            )
            setup = QueueConfig(host=HOSTS[0], pid=7, clock=LoopClock(), rng=self.rng, report=discard_event)
            queue = JobQueue(self.group0.ask, cast("JobRunner", self.outcomes), self.engine, setup)
            async with asyncio.TaskGroup() as tasks:
                acting = tasks.create_task(queue.run())
                try:
                    return await work(access)
                except EblaError as error:
                    failure = error
                finally:
                    acting.cancel()
            raise failure

        return in_simulated_time(run())

    def with_jobs_for(self, seconds: float) -> None:
        """The pipeline alone, for a while."""

        async def wait(_access: JobCommandContext) -> None:
            await asyncio.sleep(seconds)

        self.with_job_context(Path(), None, wait)

    def _status(self) -> StatusAnswer:
        peers = tuple(PeerStatus(host=host, address="", up=host not in self.down) for host in HOSTS[1:])
        group0 = Group0Report(
            history=HistoryId(UUID(int=5)), role="leader", term=1, leader=HOSTS[0], commit=1, applied=1, first=1, last=1
        )
        return StatusAnswer(
            host=HOSTS[0],
            cluster=ClusterId(UUID(int=1)),
            cluster_name="ebla",
            address="",
            started_wall_us=0,
            processes=(),
            peers=peers,
            group0=group0,
        )

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    def ok(self, *arguments: str) -> str:
        output = self.run(*arguments)
        assert output.exit_code == 0, output.output
        return output.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def failed(self, *arguments: str) -> str:
        output = self.run(*arguments)
        assert output.exit_code == 1, output.output
        return output.stderr
