import asyncio

import pytest

from ebla.aio.eager_future import EagerFuture
from ebla.model.errors import Stale


def test_whoever_waits_is_told_in_the_step_that_gives_it() -> None:
    called: list[EagerFuture[str]] = []
    reply: EagerFuture[str] = EagerFuture()
    reply.add_done_callback(called.append)
    assert not reply.done()
    reply.set_result("clay")
    assert called == [reply]
    assert (reply.done(), reply.cancelled(), reply.exception(), reply.result()) == (True, False, None, "clay")
    reply.add_done_callback(called.append)
    assert called == [reply, reply]
    assert not reply.cancel()


def test_an_error_is_given_as_it_is() -> None:
    reply: EagerFuture[str] = EagerFuture()
    reply.set_exception(Stale("revoked"))
    assert isinstance(reply.exception(), Stale)
    with pytest.raises(Stale):
        reply.result()


async def test_a_task_may_wait_for_it() -> None:
    reply: EagerFuture[str] = EagerFuture()
    asyncio.get_running_loop().call_soon(reply.set_result, "clay")
    assert await reply == "clay"
    assert await reply == "clay"
    failing: EagerFuture[str] = EagerFuture()
    asyncio.get_running_loop().call_soon(failing.set_exception, Stale("revoked"))
    with pytest.raises(Stale):
        await failing


async def test_whoever_gives_up_waiting_withdraws_it() -> None:
    reply: EagerFuture[str] = EagerFuture()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await reply
    assert reply.cancelled()
    with pytest.raises(asyncio.CancelledError):
        reply.result()


async def test_given_and_given_up_in_one_step_it_stays_given() -> None:
    reply: EagerFuture[str] = EagerFuture()

    async def wait() -> str:
        return await reply

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    reply.set_result("clay")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert reply.result() == "clay"
