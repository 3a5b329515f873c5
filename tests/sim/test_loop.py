"""The simulated event loop: virtual time, seeded order, refusals, and the end of incarnations."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.async_tests import runs_in

import ebla.sim.loop as loop_module
from ebla.ports.environment import Environment
from ebla.sim.loop import (
    PRIVATE_NAMES,
    REFUSED_NAMES,
    Deadlock,
    Livelock,
    NotSimulated,
    Overrun,
    SimLoop,
    SimTask,
    simulated_loop,
)
from ebla.sim.rng import SimRng
from ebla.sim.world import RunFailed, World


def run(work: Callable[[], Awaitable[Any]], seed: int = 1) -> tuple[Any, SimLoop]:
    loop = simulated_loop(SimRng(str(seed)))
    return loop.run_until_complete(work()), loop


def test_time_is_virtual_and_exact() -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        await asyncio.sleep(86_400.0)
        seen.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.sleep(60)
        seen.append(loop.time())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1.0)
        seen.append(loop.time())
        return seen

    assert run(work)[0] == [0.0, 86_400.0, 86_402.5, 86_403.5]


def test_order_comes_from_the_seed() -> None:
    async def work() -> list[int]:
        order: list[int] = []

        async def member(number: int) -> None:
            await asyncio.sleep(1.0)
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(member(number))
        return order

    orders = [run(work, seed)[0] for seed in range(4)]
    assert orders == [run(work, seed)[0] for seed in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(8)) for order in orders)


def test_worker_threads_are_seeded_delays() -> None:
    async def work() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        thread = await asyncio.to_thread(threading.get_ident)
        assert thread == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7), loop.time()

    (result, took_s), _ = run(work)
    assert result == 7
    assert 0.0 < took_s < 0.01


@runs_in(run)
async def test_work_given_to_a_thread_is_done_even_if_nobody_waits() -> None:
    done: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.0):
            await asyncio.to_thread(done.append, 1)
    assert not done
    await asyncio.sleep(1.0)
    assert done == [1]


def test_nothing_left_to_happen_is_an_error() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"no timer is set at 0.* waiting: scenario in Event.wait line"):
        World(1, 10.0).run(lambda _: work())


def test_a_loop_without_progress_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "STEPS_AT_ONE_TIME_MAX", 20_000)

    async def work() -> None:
        while True:  # noqa: ASYNC110  # the point of the test
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="time did not move"):
        World(1, 10.0).run(lambda _: work())


def test_a_run_that_does_not_end_is_an_error() -> None:
    async def work() -> None:
        while True:  # noqa: ASYNC110  # the point of the test
            await asyncio.sleep(1.0)

    with pytest.raises(Overrun, match="did not end within 700 simulated"):
        World(1, 10.0).run(lambda _: work())


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_real_io_is_refused(name: str) -> None:
    with pytest.raises(NotSimulated, match=name):
        getattr(simulated_loop(SimRng("1")), name)(None)


@runs_in(run)
async def test_sockets_are_refused_where_a_shell_would_open_them() -> None:
    with pytest.raises(NotSimulated):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(NotSimulated):
        await asyncio.create_subprocess_exec("true")


def test_a_foreign_thread_is_refused() -> None:
    loop = simulated_loop(SimRng("1"))
    refused: list[NotSimulated] = []

    def touch() -> None:
        for call in (loop.call_soon, loop.call_soon_threadsafe):
            try:
                call(print)
            except NotSimulated as error:
                refused.append(error)

    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
    assert len(refused) == 2
    assert "another thread" in str(refused[0])


@runs_in(run)
async def test_tasks_and_futures_hash_by_number() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(3)]
    assert [type(task) for task in tasks] == [SimTask] * 3
    assert [hash(task) for task in tasks] == sorted(hash(task) for task in tasks)
    assert hash(loop.create_future()) == hash(tasks[-1]) + 1
    await asyncio.gather(*tasks)


def test_private_names_are_there_and_public_ones_are_answered() -> None:
    """What a new Python version could change. A new public method must be implemented or refused."""
    assert sys.version_info[:2] in {(3, 11), (3, 12), (3, 13), (3, 14)}, "look at the loop for this version"
    assert PRIVATE_NAMES == ("asyncio._set_running_loop", "asyncio.Task._log_destroy_pending")
    assert callable(asyncio._set_running_loop)
    assert hasattr(asyncio.Task, "_log_destroy_pending")
    public = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    assert len(public) > 40
    assert [name for name in public if name not in vars(SimLoop)] == []


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_the_dead_have_no_last_words(world: World, /) -> None:
    said: list[str] = []

    async def main(environment: Environment) -> None:
        file = environment.disk.create("/data/words")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(100))
                await asyncio.sleep(100)
        finally:
            said.append("in finally")
            await asyncio.sleep(0)
            said.append("after an await")
            file.append(b"last words")

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(1.0)
    unit.kill()
    await asyncio.sleep(10.0)
    probe = unit.machine.disk.of(world._incarnation).open("/data/words")
    assert probe.read(0, 100) == b""
    assert said == ["in finally"], "Python runs the block, but nothing it awaits comes back"


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_timers_of_the_dead_do_not_ring(world: World, /) -> None:
    rang: list[str] = []

    async def main(environment: Environment) -> None:
        asyncio.get_running_loop().call_later(2.0, rang.append, "in a life that is over")
        await asyncio.Event().wait()

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(1.0)
    unit.kill()
    await asyncio.sleep(10.0)
    assert rang == []


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_code_that_crashes_its_own_unit_stops_there(world: World, /) -> None:
    went_on: list[str] = []

    async def main(environment: Environment) -> None:
        file = environment.disk.create("/data/file")
        unit.crash()
        went_on.append("running code cannot be stopped in the middle")
        file.append(b"x")
        went_on.append("but it reaches nothing")

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(1.0)
    assert unit.down
    assert went_on == ["running code cannot be stopped in the middle"]


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_a_paused_unit_does_nothing_and_then_everything(world: World, /) -> None:
    ticks: list[float] = []

    async def main(environment: Environment) -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks.append(world.now())

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(2.5)
    unit.pause()
    await asyncio.sleep(10.0)
    assert len(ticks) == 2
    unit.resume()
    await asyncio.sleep(1.6)
    assert ticks == [1.0, 2.0, 12.5, 13.5]


def test_an_error_in_a_unit_fails_the_run_with_its_cause() -> None:
    async def main(environment: Environment) -> None:
        await asyncio.sleep(1.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(broken())

    async def broken() -> None:
        raise KeyError("a bug")

    async def scenario(world: World) -> None:
        world.unit("one", main).start()
        await asyncio.sleep(100.0)

    with pytest.raises(RunFailed, match="one died of KeyError: 'a bug'") as failure:
        World(1, 10.0).run(scenario)
    assert isinstance(failure.value.__cause__, ExceptionGroup)


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_a_process_may_end_itself_over_its_disk(world: World, /) -> None:
    async def main(environment: Environment) -> None:
        await asyncio.sleep(1.0)
        raise OSError(5, "the device is gone")

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(2.0)
    assert unit.down
    unit.start()
    assert unit.start_count == 2


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def scenario(world: World) -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: 1 // 0)
        await asyncio.sleep(2.0)

    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        World(1, 10.0).run(scenario)


def test_a_dropped_generator_is_closed() -> None:
    closed: list[float] = []

    async def numbers() -> Any:
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def scenario(world: World) -> None:
        async for number in numbers():
            if number == 2:
                break
        await asyncio.sleep(1.0)

    World(1, 10.0).run(scenario)
    assert closed == [0.0]


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_a_generator_of_the_dead_is_dropped(world: World, /) -> None:
    said: list[str] = []

    async def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            said.append("last words")

    async def main(environment: Environment) -> None:
        async for _ in numbers():
            await asyncio.sleep(1.0)

    unit = world.unit("one", main)
    unit.start()
    await asyncio.sleep(2.5)
    unit.kill()
    await asyncio.sleep(10.0)
    assert said == []
