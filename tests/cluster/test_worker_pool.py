"""Jobs on forked workers: reused, killed, dead, and no process left behind."""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable

import psutil
import pytest

from ebla.bulk.workers.bulk_workers import run_in_worker
from ebla.bulk.workers.messages import WorkerFrameKind
from ebla.bulk.workers.pool import NICENESS, WorkerFailed, WorkerPool

MODULE = "tests.cluster.worker_pool_process"
WAIT_S = 60.0
Story = Callable[[WorkerPool], Awaitable[None]]
Run = Callable[[Story], None]
Loop = Callable[[], asyncio.AbstractEventLoop]


def loops() -> list[Loop | None]:
    """Asyncio's own loop, and uvloop if it is installed."""
    found: list[Loop | None] = [None]
    if importlib.util.find_spec("uvloop"):
        found.append(importlib.import_module("uvloop").new_event_loop)
    return found


IDLE_S = (WAIT_S, WAIT_S)
"""Of a worker, and of the server."""


@pytest.fixture
def idle_s() -> tuple[float, float]:
    return IDLE_S


@pytest.fixture(params=loops())
def run(request: pytest.FixtureRequest, idle_s: tuple[float, float]) -> Run:
    async def main(story: Story) -> None:
        pool = WorkerPool(MODULE, worker_idle_s=idle_s[0], server_idle_s=idle_s[1])
        try:
            await story(pool)
        finally:
            await pool.close()
        assert psutil.Process().children() == []

    def on_loop(story: Story) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main(story))

    return on_loop


async def call(pool: WorkerPool, job: bytes, deadline_s: float = WAIT_S) -> bytes:
    return bytes(await run_in_worker(pool, WorkerFrameKind.BUILD, job, deadline_s))


def workers() -> list[psutil.Process]:
    return [worker for server in psutil.Process().children() for worker in server.children()]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():  # noqa: ASYNC110 # other processes set no event here
            await asyncio.sleep(0.01)


def test_a_worker_takes_one_job_after_another(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        first = await call(pool, b"pid")
        assert await call(pool, b"pid") == first
        (worker,) = workers()
        assert worker.pid == int(first)
        assert worker.nice() == psutil.Process().nice() + NICENESS
        large = bytes(range(256)) * 8192
        assert await call(pool, large) == large
        assert await call(pool, b"pandas") == b"False"

    run(story)


def test_jobs_at_the_same_time_have_a_worker_each(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(call(pool, b"wait")) for _ in range(2)]
            await until(lambda: len(workers()) == 2)
            assert await call(pool, b"pid")
            for task in waiting:
                task.cancel()
        assert len(workers()) == 1, "a cancelled job's worker is killed and reaped"

    run(story)


def test_a_worker_that_dies_takes_no_other_along(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        for job in (b"die", b"fail"):
            with pytest.raises(WorkerFailed, match="its process died"):
                await call(pool, job)
            assert await call(pool, b"pid")

    run(story)


def test_a_late_worker_is_dead_before_the_caller_knows(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        await call(pool, b"pid")
        with pytest.raises(WorkerFailed, match=r"longer than 0\.05 s"):
            await call(pool, b"wait", 0.05)
        assert workers() == []

    run(story)


def test_the_fork_server_dies_with_its_workers_and_is_started_again(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_failure(pool, b"wait"))
            await until(lambda: len(workers()) == 1)
            server, (worker,) = psutil.Process().children()[0], workers()
            server.kill()
            assert "its process died" in await waiting
        await until(lambda: not worker.is_running())
        assert await call(pool, b"pid")

    run(story)


async def _failure(pool: WorkerPool, job: bytes) -> str:
    with pytest.raises(WorkerFailed) as failure:
        await call(pool, job)
    return failure.value.message


@pytest.mark.parametrize("idle_s", [(0.01, WAIT_S)])
def test_idle_workers_end_and_are_forked_again(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        first = await call(pool, b"pid")
        await until(lambda: not workers())
        assert len(psutil.Process().children()) == 1
        assert await call(pool, b"pid") != first

    run(story)


@pytest.mark.parametrize("idle_s", [(WAIT_S, 0.01)])
def test_an_idle_server_ends_with_its_workers(run: Run) -> None:
    async def story(pool: WorkerPool) -> None:
        await call(pool, b"pid")
        await until(lambda: not psutil.Process().children())
        assert await call(pool, b"pid")

    run(story)
