import asyncio

from ebla.journal.turn import Turn


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_it_goes_round_in_the_order_they_asked() -> None:
    async def story() -> list[int]:
        turn, had = Turn(), []

        async def take(number: int) -> None:
            async with turn:
                had.append(number)
                await asyncio.sleep(0)

        assert turn.try_take()
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(take(number))
            await turns()
            assert had == []
            turn.leave()
            await asyncio.sleep(0)
            assert not turn.try_take(), "it was given to whoever waited"
        assert turn.try_take()
        return had

    assert asyncio.run(story()) == [0, 1, 2, 3]


def test_whoever_is_cancelled_gives_way() -> None:
    """Before the turn came, and in the very step in which it came."""

    async def story() -> None:
        turn = Turn()
        assert turn.try_take()
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(turn.take())
            given_and_gone = tasks.create_task(turn.take())
            last = tasks.create_task(turn.take())
            await turns()
            gone.cancel()
            await turns()
            turn.leave()
            given_and_gone.cancel()
            async with asyncio.timeout(10):
                await last
        assert given_and_gone.cancelled()
        turn.leave()
        assert not turn.is_taken

    asyncio.run(story())
