"""A coroutine that finishes in its first step needs no task; the rest of any other one does."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ebla.aio.eager import Suspended, needs_task, run_eagerly


async def _value(value: int) -> int:
    return value


async def _after(future: "asyncio.Future[int]", log: list[str]) -> int:
    log.append("began")
    try:
        return await future + 1
    finally:
        log.append("ended")


def _suspended(work: Coroutine[Any, Any, int]) -> Suspended[int]:
    outcome = run_eagerly(work)
    assert type(outcome) is Suspended
    return outcome


async def test_work_that_need_not_wait_is_done_at_once() -> None:
    assert run_eagerly(_value(7)) == 7


async def test_an_error_before_the_first_wait_is_raised_at_once() -> None:
    async def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_eagerly(fails())


async def test_the_first_step_runs_at_once_and_the_rest_in_a_task() -> None:
    log: list[str] = []
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    rest = _suspended(_after(future, log))
    assert log == ["began"]
    future.set_result(1)
    async with asyncio.TaskGroup() as tasks:
        task: asyncio.Task[int] = tasks.create_task(rest)
    assert task.result() == 2


async def test_the_rest_can_be_awaited() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    rest = _suspended(_after(future, []))
    asyncio.get_running_loop().call_soon(future.set_result, 4)
    assert await rest == 5


async def test_a_bare_yield_is_a_wait() -> None:
    async def yields() -> int:
        await asyncio.sleep(0)
        return 3

    assert await _suspended(yields()) == 3


async def test_a_task_cancelled_before_its_first_step_runs_the_cleanup() -> None:
    log: list[str] = []
    task = asyncio.ensure_future(_suspended(_after(asyncio.get_running_loop().create_future(), log)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["began", "ended"]


async def test_closing_runs_the_cleanup() -> None:
    log: list[str] = []
    _suspended(_after(asyncio.get_running_loop().create_future(), log)).close()
    assert log == ["began", "ended"]


async def test_needs_task_ends_the_eager_step() -> None:
    async def bounded() -> int:
        await needs_task()
        async with asyncio.timeout(1):
            await asyncio.sleep(0)
        return 9

    async with asyncio.TaskGroup() as tasks:
        task: asyncio.Task[int] = tasks.create_task(_suspended(bounded()))
    assert task.result() == 9


async def test_needs_task_ends_every_eager_step_around_it() -> None:
    steps: list[str] = []

    async def inner() -> int:
        await needs_task()
        steps.append("in a task")
        return 3

    async def outer() -> int:
        return await _suspended(inner())

    rest = _suspended(outer())
    assert steps == [], "an outer caller may close what it started: nothing may have begun outside a task"
    assert await rest == 3


async def test_needs_task_inside_a_task_waits_for_nothing() -> None:
    steps: list[int] = []

    async def work() -> None:
        await needs_task()
        steps.append(1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        await asyncio.sleep(0)
        assert steps == [1]


async def test_an_eager_step_inside_another_leaves_it_eager() -> None:
    async def outer() -> int:
        run_eagerly(_value(1))
        await needs_task()
        return 2

    assert await _suspended(outer()) == 2
