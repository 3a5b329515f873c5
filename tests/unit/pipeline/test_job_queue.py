"""The job queue: what it writes when, what it closes first, and which jobs it resumes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.pipeline.jobs_rig import HOSTS, LoopClock, ScriptedEngine, SmallGroup0, a_job, in_simulated_time
from tests.unit.topology.small_cluster import TABLE

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, InvalidRequest, Stale, Unreachable
from ebla.model.identity import JobId, SessionId, TopologyVersion
from ebla.model.records.jobs import (
    ENDED_STATES,
    JOBS_PREFIX,
    PIPELINE_KEY,
    CompareReplicas,
    CopyTablets,
    JobProgress,
    JobRecord,
    JobResult,
    JobState,
    PipelineState,
    job_key,
)
from ebla.model.stored_value import decode_stored
from ebla.observe.event_reporter import discard_event
from ebla.pipeline.job_queue import JobQueue, QueueConfig
from ebla.pipeline.job_runner import JobHandle, JobRunner, NewSession
from ebla.pipeline.job_scheduler import JobLimits
from ebla.ports.transfer_engine import EngineState, EngineStatus, PipelineUnavailable
from ebla.sim.rng import SimRng
from ebla.wire.verbs import Verb

A, B, C = HOSTS
COPY = CopyTablets(table=TABLE, tablets=(0,), source=A, target=B)
RESULT = JobResult(bytes_moved=3)
LIMITS = JobLimits(runs_max=3)


class ScriptedRunner:
    """`outcomes` are used one by one: an error, or how long the run takes. `story` records what it does."""

    def __init__(self, group0: SmallGroup0, name: str = "") -> None:
        self._rng = SimRng(f"runner {name}")
        self._group0 = group0
        self.story: list[str] = []
        self.closed: list[SessionId] = []
        self.outcomes: list[EblaError | float] = []
        self.close_takes_s = 0.1
        self.close_errors = 0
        self.confirms = False
        self.sessions: list[SessionId] = []

    def new_session(self) -> NewSession:
        return NewSession(SessionId(self._rng.uuid()), TopologyVersion(1))

    async def run(self, job: JobRecord, new: NewSession, handle: JobHandle) -> JobResult:
        written = self._group0.job(job.id)
        assert (written.state, written.session) == (JobState.RUNNING, new.session), "the record goes first"
        self.sessions.append(new.session)
        self.story.append("begun")
        handle.report(JobProgress(step="moving", bytes_done=1, bytes_total=3))
        outcome = self.outcomes.pop(0) if self.outcomes else 1.0
        try:
            if self.confirms:
                await handle.confirm()
            if isinstance(outcome, EblaError):
                raise outcome
            await asyncio.sleep(outcome)
        except asyncio.CancelledError:
            self.story.append("cancelled")
            raise
        except EblaError:
            self.story.append("broke")
            raise
        self.story.append("done")
        return RESULT

    async def close(self, session: SessionId) -> None:
        await asyncio.sleep(self.close_takes_s)
        self.story.append("closed")
        self.closed.append(session)


class Rig:
    def __init__(self) -> None:
        self.group0 = SmallGroup0()
        self.runner = ScriptedRunner(self.group0)
        self.engine = ScriptedEngine(SimRng("engine"))

    def queue(self, runner: ScriptedRunner | None = None, pid: int = 1) -> JobQueue:
        setup = QueueConfig(
            host=A, pid=pid, clock=LoopClock(), rng=SimRng(f"queue {pid}"), report=discard_event, limits=LIMITS
        )
        return JobQueue(self.group0.ask, cast("JobRunner", runner or self.runner), self.engine, setup)

    @asynccontextmanager
    async def running(self, queue: JobQueue | None = None) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            acting = tasks.create_task((queue or self.queue()).run())
            yield
            acting.cancel()

    async def until(self, holds: Callable[[], bool], seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110  # in simulated time, and of whatever a test may want to hold
                await asyncio.sleep(0.05)

    async def ended(self, job: JobRecord) -> JobRecord:
        await self.until(lambda: self.group0.job(job.id).state in ENDED_STATES)
        return self.group0.job(job.id)

    def check_closed_before_ended(self, job: JobId) -> None:
        """INV-XFER-1: whatever the course, every session that a record named was closed before it was left."""
        before: JobRecord | None = None
        for record in self.group0.history_of(job):
            if before is not None and before.session is not None and record.session != before.session:
                assert before.session in self.runner.closed
            before = record


def in_rig(work: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        await work(Rig())

    in_simulated_time(run())


pytestmark = runs_in(in_rig)


async def test_a_job_is_run_and_its_session_closed_before_it_is_done(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    async with rig.running():
        done = await rig.ended(job)
    assert (done.state, done.result, done.runs, done.session) == (JobState.DONE, RESULT, 1, None)
    assert rig.runner.story == ["begun", "done", "closed"]
    states = [(one.state, one.progress.step) for one in rig.group0.history_of(job.id)]
    assert states == [
        (JobState.WAITING, ""),
        (JobState.RUNNING, ""),
        (JobState.RUNNING, "moving"),
        (JobState.DONE, "moving"),
    ]
    rig.check_closed_before_ended(job.id)


async def test_one_that_comes_later_is_taken_up_too(rig: Rig, /) -> None:
    async with rig.running():
        await asyncio.sleep(30)
        job = a_job(1, COPY)
        rig.group0.put_job(job)
        began = asyncio.get_running_loop().time()
        assert (await rig.ended(job)).state is JobState.DONE
        assert asyncio.get_running_loop().time() - began < 2, "the watch tells of it at once"


async def test_cancel_closes_the_session_first_and_then_ends_the_run(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.outcomes = [1e6]
    async with rig.running():
        await rig.until(lambda: rig.runner.story == ["begun"])
        await asyncio.sleep(5)
        rig.group0.put_job(msgspec.structs.replace(rig.group0.job(job.id), cancel_requested=True))
        ended = await rig.ended(job)
    assert ended.state is JobState.CANCELLED
    assert rig.runner.story == ["begun", "closed", "cancelled", "closed"]
    rig.check_closed_before_ended(job.id)


async def test_a_run_that_came_to_its_end_while_it_was_cancelled_is_done(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.outcomes = [5.0]
    rig.runner.close_takes_s = 10
    async with rig.running():
        await rig.until(lambda: rig.runner.story == ["begun"])
        await asyncio.sleep(3)
        rig.group0.put_job(msgspec.structs.replace(rig.group0.job(job.id), cancel_requested=True))
        ended = await rig.ended(job)
    assert (ended.state, ended.result) == (JobState.DONE, RESULT)


async def test_what_waits_is_cancelled_without_a_run(rig: Rig, /) -> None:
    job = a_job(1, COPY, cancel_requested=True)
    rig.group0.put_job(job)
    async with rig.running():
        assert (await rig.ended(job)).state is JobState.CANCELLED
    assert rig.runner.story == []


async def test_a_run_that_another_leader_began_is_closed_and_run_again(rig: Rig, /) -> None:
    former = SessionId(UUID(int=404))
    job = a_job(1, COPY, state=JobState.RUNNING, session=former, owner=UUID(int=9), runs=1)
    rig.group0.put_job(job)
    async with rig.running():
        done = await rig.ended(job)
    assert (done.state, done.runs) == (JobState.DONE, 2)
    assert rig.runner.closed[0] == former
    assert rig.runner.story == ["closed", "begun", "done", "closed"]
    assert rig.runner.sessions[0] != former
    rig.check_closed_before_ended(job.id)


async def test_a_run_that_is_left_again_and_again_fails(rig: Rig, /) -> None:
    job = a_job(1, COPY, state=JobState.RUNNING, session=SessionId(UUID(int=404)), owner=UUID(int=9), runs=3)
    rig.group0.put_job(job)
    async with rig.running():
        failed = await rig.ended(job)
    assert (failed.state, failed.cause) == (JobState.FAILED, "the pipeline that ran it went away (tried 3 times)")
    assert rig.runner.story == ["closed"]


async def test_with_the_engine_away_a_job_waits_with_the_cause_and_goes_on_by_itself(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.engine.state = EngineStatus(state=EngineState.UNAVAILABLE, cause="no Java was found")
    rig.group0.put_job(job)
    async with rig.running():
        await rig.until(lambda: rig.group0.job(job.id).cause == "pipeline unavailable: no Java was found")
        await asyncio.sleep(60)
        assert rig.runner.story == []
        rig.engine.state = EngineStatus(state=EngineState.READY)
        done = await rig.ended(job)
    assert (done.state, done.runs, done.cause) == (JobState.DONE, 1, "")


async def test_a_run_that_the_engine_broke_off_is_not_counted(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.runner.outcomes = [PipelineUnavailable("Spark's Java process ended")] * 5
    rig.group0.put_job(job)
    async with rig.running():
        done = await rig.ended(job)
    assert (done.state, done.runs) == (JobState.DONE, 1)
    causes = {one.cause for one in rig.group0.history_of(job.id) if one.state is JobState.WAITING and one.cause}
    assert causes == {"pipeline unavailable: Spark's Java process ended"}
    rig.check_closed_before_ended(job.id)


async def test_what_broke_is_tried_again_more_and_more_slowly_and_then_fails(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.runner.outcomes = [Unreachable("no way to 127.0.0.2")] * 9
    rig.group0.put_job(job)
    async with rig.running():
        failed = await rig.ended(job)
    assert (failed.state, failed.cause) == (JobState.FAILED, "no way to 127.0.0.2 (tried 3 times)")
    assert rig.runner.story == ["begun", "broke", "closed"] * 3
    begun = [at for at, key, value in rig.group0.writes if key == job_key(job.id) and _is_running(value)]
    assert begun[-1] - begun[0] > 6, "it rested in between"
    rig.check_closed_before_ended(job.id)


def _is_running(value: bytes | None) -> bool:
    return value is not None and decode_stored(JobRecord, value).value.state is JobState.RUNNING


async def test_what_cannot_be_done_fails_at_once(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.runner.outcomes = [InvalidRequest("ks.t has no tablet 9")]
    rig.group0.put_job(job)
    async with rig.running():
        failed = await rig.ended(job)
    assert (failed.state, failed.cause, failed.runs) == (JobState.FAILED, "ks.t has no tablet 9", 1)


async def test_progress_is_written_at_most_once_a_second(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)

    async def busy(_job: JobRecord, _drawn: NewSession, handle: JobHandle) -> JobResult:
        for number in range(1000):
            handle.report(JobProgress(step="moving", bytes_done=number, bytes_total=1000))
            await asyncio.sleep(0.01)
        return RESULT

    rig.runner.run = busy  # type: ignore[method-assign, assignment]  # a runner with much to tell
    async with rig.running():
        await rig.ended(job)
    assert len(rig.group0.history_of(job.id)) <= 3 + 11


async def test_progress_does_not_undo_a_cancel_that_came_before_it(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.outcomes = [60.0]
    ask = rig.group0.ask
    raced: list[str] = []

    async def race(verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        record = rig.group0.job(job.id)
        if verb.name == "group0_execute" and record.state is JobState.RUNNING and not raced:
            raced.append(verb.name)
            rig.group0.put_job(msgspec.structs.replace(record, cancel_requested=True))
        return await ask(verb, request, deadline_ms)

    rig.group0.ask = race  # type: ignore[method-assign]  # another writer is quicker
    async with rig.running():
        assert (await rig.ended(job)).state is JobState.CANCELLED


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), ConnectionLost("gone")])
async def test_an_answer_that_is_lost_begins_nothing_twice(rig: Rig, /, error: EblaError) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.group0.lost_answers = [error] * 8
    async with rig.running():
        done = await rig.ended(job)
    assert (done.state, done.runs) == (JobState.DONE, 1)
    assert rig.runner.story.count("begun") == 1


async def test_a_group_0_without_a_quorum_is_waited_for(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.group0.refusals = [Unreachable("no leader")] * 20
    async with rig.running():
        assert (await rig.ended(job)).state is JobState.DONE


async def test_a_job_whose_record_is_gone_is_ended(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.outcomes = [1e6]
    async with rig.running():
        await rig.until(lambda: rig.runner.story == ["begun"])
        rig.group0.delete(job_key(job.id))
        await rig.until(lambda: "cancelled" in rig.runner.story)
    assert rig.runner.story[:3] == ["begun", "closed", "cancelled"]
    assert job_key(job.id) not in rig.group0.values


async def test_two_pipelines_never_both_end_a_job(rig: Rig, /) -> None:
    """The former leader's still acts when the next one takes over, although its permit should have ended: it finds its
    record taken and lets go."""
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.outcomes = [20.0]
    other = ScriptedRunner(rig.group0, "other")
    async with asyncio.TaskGroup() as tasks:
        former = tasks.create_task(rig.queue(pid=1).run())
        await rig.until(lambda: rig.runner.story == ["begun"])
        taken = rig.group0.job(job.id)
        async with rig.running(rig.queue(other, pid=2)):
            await rig.until(lambda: "cancelled" in rig.runner.story)
            former.cancel()
            await rig.until(lambda: rig.group0.job(job.id).state in ENDED_STATES)
    done = rig.group0.job(job.id)
    assert done.state is JobState.DONE
    assert taken.session in other.closed, "closed by who took over, before it ran the job again"
    assert other.story[0] == "closed"
    assert rig.runner.story[:3] == ["begun", "closed", "cancelled"]


async def test_a_run_that_was_taken_over_while_its_session_was_opened_is_told_so(rig: Rig, /) -> None:
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    rig.runner.confirms = True
    refused: list[EblaError] = []

    async def taken_over(found: JobRecord, new: NewSession, handle: JobHandle) -> JobResult:
        rig.group0.put_job(msgspec.structs.replace(rig.group0.job(found.id), owner=UUID(int=9)))
        try:
            await handle.confirm()
        except Stale as error:
            refused.append(error)
            raise
        return RESULT

    rig.runner.run = taken_over  # type: ignore[method-assign, assignment]  # another writer is quicker
    async with rig.running():
        await rig.until(lambda: bool(refused))


async def test_the_state_of_the_pipeline_is_told_when_it_changes(rig: Rig, /) -> None:
    rig.engine.state = EngineStatus(state=EngineState.STARTING, cause="Spark is starting", master="local[2]")
    async with rig.running():
        await asyncio.sleep(20)
        rig.engine.state = EngineStatus(state=EngineState.READY, cause="", master="local[2]", version="4.1")
        await asyncio.sleep(20)
    written = [value for _, key, value in rig.group0.writes if key == PIPELINE_KEY and value is not None]
    reported = [decode_stored(PipelineState, value).value for value in written]
    assert [(one.host, one.state, one.version) for one in reported] == [(A, "starting", ""), (A, "ready", "4.1")]


async def test_only_the_latest_of_the_ended_are_kept(rig: Rig, /) -> None:
    for number in range(1, 206):
        rig.group0.put_job(a_job(number, CompareReplicas(TABLE), state=JobState.DONE, ended_ms=number))
    async with rig.running():
        await rig.until(lambda: sum(key.startswith(JOBS_PREFIX) for key in rig.group0.values) == 200)
    assert job_key(JobId(UUID(int=5))) not in rig.group0.values
    assert job_key(JobId(UUID(int=6))) in rig.group0.values


async def test_what_cannot_be_read_is_nobodys_job(rig: Rig, /) -> None:
    rig.group0.put(f"{JOBS_PREFIX}of-a-later-release", b"\x91\xc0")
    job = a_job(1, COPY)
    rig.group0.put_job(job)
    async with rig.running():
        assert (await rig.ended(job)).state is JobState.DONE
