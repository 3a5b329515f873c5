"""How much of a node transfers take: streams at a time, bytes per second."""

import asyncio

import pytest
from tests.async_tests import runs_in
from tests.unit.journal.on_disks import Machine

from ebla.bulk.transfer_limits import RateLimiter, StreamLimit, TokenBucket, TransferLimits
from ebla.model.errors import Overloaded
from ebla.sim.disk import ProcessDisk


class LoopClock:
    """By the simulated loop's own time."""

    def boot_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_us(self) -> int:
        raise AssertionError("limits depend only on the time since the start")


def test_a_bucket_gives_what_it_has_and_then_by_the_second() -> None:
    bucket = TokenBucket(1000, now_ms=0)
    assert bucket.wait_ms(1000, 0) == 0
    bucket.take(1000, 0)
    assert bucket.wait_ms(500, 0) == 500
    assert bucket.wait_ms(500, 500) == 0
    bucket.take(500, 500)
    assert bucket.wait_ms(1, 90_000) == 0
    assert bucket.wait_ms(1001, 90_000) == 0, "what is larger than the bucket waits until it is full"
    bucket.take(3000, 90_000)
    assert bucket.wait_ms(1, 90_000) == 2001, "and is owed"


def test_a_clock_that_stands_still_gives_nothing_away() -> None:
    bucket = TokenBucket(1000, now_ms=500)
    bucket.take(1000, 500)
    assert bucket.wait_ms(100, 400) == 100
    assert bucket.wait_ms(100, 500) == 100


@runs_in(lambda work: Machine(1).run(work))
async def test_streams_together_keep_to_the_rate(_disk: ProcessDisk, /) -> None:
    rate = RateLimiter(TransferLimits(bytes_per_s=1000), LoopClock())
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(_stream(rate, pieces=10, size=100))
    assert 4.0 <= loop.time() - began <= 4.3, "the first second's worth was there"


async def _stream(rate: RateLimiter, pieces: int, size: int) -> None:
    for _ in range(pieces):
        await rate.admit(size)


@runs_in(lambda work: Machine(1).run(work))
async def test_a_piece_that_would_wait_too_long_is_refused_at_once(_disk: ProcessDisk, /) -> None:
    rate = RateLimiter(TransferLimits(bytes_per_s=1000, rate_wait_ms=2_000), LoopClock())
    await rate.admit(1000)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(rate.admit(900)) for _ in range(2)]
        await asyncio.sleep(0.001)
        with pytest.raises(Overloaded, match="1000 bytes a second"):
            await rate.admit(900)
        await asyncio.wait(waiting)
    await rate.admit(900)


@runs_in(lambda work: Machine(1).run(work))
async def test_without_a_rate_nothing_waits(_disk: ProcessDisk, /) -> None:
    began = asyncio.get_running_loop().time()
    await RateLimiter(TransferLimits(), LoopClock()).admit(1 << 40)
    assert asyncio.get_running_loop().time() == began


def test_streams_are_counted() -> None:
    streams = StreamLimit("into", 2)
    streams.enter()
    streams.enter()
    with pytest.raises(Overloaded, match="2 streams into this node"):
        streams.enter()
    streams.leave()
    streams.enter()
    assert streams.open == 2
