import asyncio

from tests.async_tests import settled

from ebla.aio.fifo_lock import FifoLock


def test_it_goes_round_in_the_order_they_asked() -> None:
    async def story() -> list[int]:
        turn, had = FifoLock(), []

        async def acquire(number: int) -> None:
            async with turn:
                had.append(number)
                await asyncio.sleep(0)

        assert turn.try_acquire()
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(acquire(number))
            await settled()
            assert had == []
            turn.release()
            await asyncio.sleep(0)
            assert not turn.try_acquire(), "it was given to the waiter"
        assert turn.try_acquire()
        return had

    assert asyncio.run(story()) == [0, 1, 2, 3]


async def test_whoever_is_cancelled_gives_way() -> None:
    """Before the turn came, and in the very step in which it came."""
    turn = FifoLock()
    assert turn.try_acquire()
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(turn.acquire())
        given_and_gone = tasks.create_task(turn.acquire())
        last = tasks.create_task(turn.acquire())
        await settled()
        gone.cancel()
        await settled()
        turn.release()
        given_and_gone.cancel()
        async with asyncio.timeout(10):
            await last
    assert given_and_gone.cancelled()
    turn.release()
    assert not turn.is_held
