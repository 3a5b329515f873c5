"""Jobs submitted and cancelled while answers get lost and others write, too."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.pipeline.jobs_rig import LoopClock, SmallGroup0, a_job, in_simulated_time
from tests.unit.topology.small_cluster import TABLE

from ebla.client.job_client import JobClient
from ebla.model.errors import ConnectionLost, DeadlineExceeded, InvalidRequest, NotFound, Refused, Unreachable
from ebla.model.identity import JobId, SessionId
from ebla.model.records.jobs import CompareReplicas, JobProgress, JobRecord, JobState, job_key
from ebla.sim.rng import SimRng
from ebla.wire.verbs import Verb

SPEC = CompareReplicas(TABLE)


def run(work: Callable[[JobClient, SmallGroup0], Awaitable[None]]) -> None:
    async def within() -> None:
        group0 = SmallGroup0()
        await work(JobClient(group0.ask, clock=LoopClock(), rng=SimRng("client")), group0)

    in_simulated_time(within())


pytestmark = runs_in(run)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), DeadlineExceeded("late")])
async def test_a_job_whose_answer_is_lost_is_written_once(
    client: JobClient, group0: SmallGroup0, /, error: ConnectionLost | DeadlineExceeded
) -> None:
    group0.lost_answers = [error]
    job = await client.submit(SPEC, "compare")
    assert [one.id for one in await client.jobs()] == [job.id]
    assert len(group0.history_of(job.id)) == 1


async def test_a_job_that_could_not_be_sent_is_told_of(client: JobClient, group0: SmallGroup0, /) -> None:
    group0.refusals = [Unreachable("no way")]
    with pytest.raises(Unreachable):
        await client.submit(SPEC, "compare")
    assert await client.jobs() == []


async def test_a_cancel_does_not_undo_what_the_pipeline_writes_meanwhile(
    client: JobClient, group0: SmallGroup0, /
) -> None:
    job = a_job(1, SPEC, state=JobState.RUNNING)
    group0.put_job(job)
    progressed = msgspec.structs.replace(job, progress=JobProgress(step="comparing"))
    ask = group0.ask

    async def raced(verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        if verb.name == "group0_execute" and group0.job(job.id) == job:
            group0.put_job(progressed)
        return await ask(verb, request, deadline_ms)

    cancelled = await JobClient(raced, clock=LoopClock(), rng=SimRng("raced")).cancel(job.id)
    assert cancelled == group0.job(job.id)
    assert (cancelled.cancel_requested, cancelled.progress.step) == (True, "comparing")


async def test_one_that_was_never_begun_is_cancelled_at_once_whether_or_not_a_pipeline_runs(
    client: JobClient, group0: SmallGroup0, /
) -> None:
    waiting = await client.submit(SPEC, "compare ks.t")
    assert (await client.cancel(waiting.id)).state is JobState.CANCELLED
    begun = a_job(2, SPEC, session=SessionId(UUID(int=5)), runs=1)
    group0.put_job(begun)
    assert (await client.cancel(begun.id)).state is JobState.WAITING


async def test_what_has_ended_or_is_not_there_cannot_be_cancelled(client: JobClient, group0: SmallGroup0, /) -> None:
    with pytest.raises(NotFound):
        await client.cancel(a_job(1, SPEC).id)
    group0.put_job(a_job(1, SPEC, state=JobState.DONE))
    with pytest.raises(Refused, match="it is done"):
        await client.cancel(a_job(1, SPEC).id)


async def test_a_job_is_found_by_as_much_of_its_id_as_tells_it_apart(client: JobClient, group0: SmallGroup0, /) -> None:
    first, second = (
        a_job(number, SPEC, id=JobId(UUID(int=start << 96))) for number, start in enumerate((0x11110000, 0x11112222), 1)
    )
    group0.put_job(first)
    group0.put_job(second)
    assert await client.find("11110") == first
    assert await client.find(str(second.id).upper()) == second
    with pytest.raises(InvalidRequest, match="2 jobs begin with '1111'"):
        await client.find("1111")
    for text in ("111", ""):
        with pytest.raises(InvalidRequest, match="too little"):
            await client.find(text)
    with pytest.raises(NotFound):
        await client.find("2222")


async def test_a_job_is_followed_to_its_end(client: JobClient, group0: SmallGroup0, /) -> None:
    job = a_job(1, SPEC)
    group0.put_job(job)
    seen: list[JobRecord] = []

    async def follow() -> None:
        seen.extend([record async for record in client.follow(job.id)])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        for state in (JobState.RUNNING, JobState.DONE):
            await asyncio.sleep(20)
            group0.put_job(msgspec.structs.replace(job, state=state))
    assert [one.state for one in seen] == [JobState.WAITING, JobState.RUNNING, JobState.DONE]


async def test_a_job_that_goes_while_it_is_followed_is_told_of(client: JobClient, group0: SmallGroup0, /) -> None:
    job = a_job(1, SPEC)
    group0.put_job(job)
    records = client.follow(job.id)
    assert await anext(records) == job
    group0.delete(job_key(job.id))
    with pytest.raises(NotFound):
        await anext(records)
