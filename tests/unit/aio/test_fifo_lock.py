import asyncio

from ebla.aio.fifo_lock import FifoLock


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


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
            await turns()
            assert had == []
            turn.release()
            await asyncio.sleep(0)
            assert not turn.try_acquire(), "it was given to whoever waited"
        assert turn.try_acquire()
        return had

    assert asyncio.run(story()) == [0, 1, 2, 3]


def test_whoever_is_cancelled_gives_way() -> None:
    """Before the turn came, and in the very step in which it came."""

    async def story() -> None:
        turn = FifoLock()
        assert turn.try_acquire()
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(turn.acquire())
            given_and_gone = tasks.create_task(turn.acquire())
            last = tasks.create_task(turn.acquire())
            await turns()
            gone.cancel()
            await turns()
            turn.release()
            given_and_gone.cancel()
            async with asyncio.timeout(10):
                await last
        assert given_and_gone.cancelled()
        turn.release()
        assert not turn.is_held

    asyncio.run(story())
