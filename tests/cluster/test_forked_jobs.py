"""Jobs in forks of a process that is ready: kept, killed, dead, and nothing left behind."""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable

import psutil
import pytest

from ebla.bulk.workers.fork_pool import ForkPool
from ebla.bulk.workers.subprocess_job import NICENESS, WorkerFailed

MODULE = "tests.cluster.forking_process"
WAIT_S = 60.0
Story = Callable[[ForkPool], Awaitable[None]]
Run = Callable[[Story], None]
Loop = Callable[[], asyncio.AbstractEventLoop]


def loops() -> list[Loop | None]:
    """Asyncio's own, and uvloop where it is installed."""
    found: list[Loop | None] = [None]
    if importlib.util.find_spec("uvloop"):
        found.append(importlib.import_module("uvloop").new_event_loop)
    return found


@pytest.fixture(params=loops())
def run(request: pytest.FixtureRequest) -> Run:
    async def main(story: Story) -> None:
        jobs = ForkPool(MODULE, 2, WAIT_S)
        try:
            await story(jobs)
        finally:
            await jobs.close()
        assert psutil.Process().children() == []

    def on_loop(story: Story) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main(story))

    return on_loop


def forks() -> list[psutil.Process]:
    return [fork for ready in psutil.Process().children() for fork in ready.children()]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():  # noqa: ASYNC110 # nobody tells this loop
            await asyncio.sleep(0.01)


def test_a_fork_takes_one_job_after_another(run: Run) -> None:
    async def story(jobs: ForkPool) -> None:
        first = await jobs.run(b"who", WAIT_S)
        assert await jobs.run(b"who", WAIT_S) == first
        (fork,) = forks()
        assert fork.pid == int(first)
        assert fork.nice() == psutil.Process().nice() + NICENESS
        large = bytes(range(256)) * 4096
        assert await jobs.run(large, WAIT_S) == large
        assert await jobs.run(b"pandas", WAIT_S) == b"False"

    run(story)


def test_so_many_run_at_once(run: Run) -> None:
    async def story(jobs: ForkPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(jobs.run(b"wait", WAIT_S)) for _ in range(2)]
            third = tasks.create_task(jobs.run(b"who", WAIT_S))
            await until(lambda: len(forks()) == 2)
            assert not third.done()
            waiting[0].cancel()
            assert int(await third) in [fork.pid for fork in forks()]
            waiting[1].cancel()
        assert len(forks()) == 1, "those that were cancelled were killed"

    run(story)


def test_a_fork_that_dies_takes_nobody_along(run: Run) -> None:
    async def story(jobs: ForkPool) -> None:
        for job in (b"die", b"fail"):
            with pytest.raises(WorkerFailed, match="its process died"):
                await jobs.run(job, WAIT_S)
            assert await jobs.run(b"who", WAIT_S)

    run(story)


def test_a_late_fork_is_killed_before_anybody_is_told(run: Run) -> None:
    async def story(jobs: ForkPool) -> None:
        await jobs.run(b"who", WAIT_S)
        with pytest.raises(WorkerFailed, match=r"longer than 0\.05 s"):
            await jobs.run(b"wait", 0.05)
        assert forks() == []

    run(story)


def test_the_process_that_forks_dies_with_its_forks_and_is_started_anew(run: Run) -> None:
    async def story(jobs: ForkPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_refused(jobs, b"wait"))
            await until(lambda: len(forks()) == 1)
            ready, (fork,) = psutil.Process().children()[0], forks()
            ready.kill()
            assert "its process died" in await waiting
        await until(lambda: not fork.is_running())
        assert await jobs.run(b"who", WAIT_S)

    run(story)


async def _refused(jobs: ForkPool, job: bytes) -> str:
    with pytest.raises(WorkerFailed) as failure:
        await jobs.run(job, WAIT_S)
    return failure.value.message


def test_forks_without_a_job_end_and_are_forked_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORK_IDLE_S", "0.01")

    async def story(jobs: ForkPool) -> None:
        first = await jobs.run(b"who", WAIT_S)
        await until(lambda: not forks())
        assert len(psutil.Process().children()) == 1
        assert await jobs.run(b"who", WAIT_S) != first

    run(story)
