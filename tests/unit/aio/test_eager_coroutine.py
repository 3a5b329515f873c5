"""Work that begins at once, whether or not it has to wait."""

import asyncio

import pytest

from ebla.aio.eager_coroutine import EagerCoroutine


def test_what_never_waits_is_done_at_once() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    assert EagerCoroutine(work()).is_done
    assert done == [1]


def test_what_fails_before_it_waits_fails_at_once() -> None:
    async def work() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        EagerCoroutine(work())


async def test_what_waits_goes_on_in_the_task_that_finishes_it() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        seen.append(await gate)
        await asyncio.sleep(0)
        seen.append("ended")

    begun = EagerCoroutine(work())
    assert seen == ["begun"]
    assert not begun.is_done
    gate.set_result("told")
    await begun.finish()
    assert seen == ["begun", "told", "ended"]
    assert begun.is_done


async def test_a_failure_and_a_cancellation_reach_the_work_and_its_waiter() -> None:
    seen: list[str] = []

    async def work(gate: "asyncio.Future[None]") -> None:
        try:
            await gate
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    begun = EagerCoroutine(work(broken))
    broken.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await begun.finish()

    begun = EagerCoroutine(work(loop.create_future()))

    async def waiter() -> None:
        await begun.finish()

    task = loop.create_task(waiter())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["OSError", "CancelledError"]
