"""The retry loop, on the simulated loop and in a thread."""

import asyncio
import itertools

import pytest

from ebla.aio.retry import Backoff, retry, retry_blocking
from ebla.model.errors import EblaError, InvalidRequest, Overloaded, Unreachable
from ebla.sim.rng import SimRng

BACKOFF = Backoff(first_s=1.0, max_s=4.0)


class Calls:
    """Fails with these errors in turn, then returns how often it was called."""

    def __init__(self, *errors: EblaError) -> None:
        self._errors = list(errors)
        self.at: list[float] = []

    def now(self, at: float) -> int:
        self.at.append(at)
        if self._errors:
            raise self._errors.pop(0)
        return len(self.at)

    async def __call__(self) -> int:
        return self.now(asyncio.get_running_loop().time())


def pauses(at: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(at)]


async def test_pauses_double_up_to_the_longest() -> None:
    calls = Calls(*(Unreachable("down") for _ in range(4)))
    assert await retry(calls, BACKOFF, timeout_s=60.0) == 5
    assert pauses(calls.at) == [1.0, 2.0, 4.0, 4.0]


async def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    calls = Calls(Overloaded("busy"), InvalidRequest("wrong"))
    with pytest.raises(InvalidRequest):
        await retry(calls, BACKOFF, timeout_s=None)
    assert len(calls.at) == 2


async def test_after_the_timeout_the_last_error_is_raised() -> None:
    seen: list[EblaError] = []
    calls = Calls(*(Unreachable(f"down {number}") for number in range(9)))
    with pytest.raises(Unreachable, match="down 3"):
        await retry(calls, BACKOFF, timeout_s=6.0, on_error=seen.append)
    assert len(seen) == 3


def test_jitter_halves_a_pause_at_most() -> None:
    rng = SimRng("jitter")
    drawn = [BACKOFF.pause_s(1, rng) for _ in range(100)]
    assert 0.5 <= min(drawn) < max(drawn) <= 1.0


def test_blocking_no_pause_ends_after_the_timeout() -> None:
    now = [0.0]

    def sleep(pause_s: float) -> None:
        now[0] += pause_s

    calls = Calls(*(Unreachable("down") for _ in range(9)))
    with pytest.raises(Unreachable):
        retry_blocking(lambda: calls.now(now[0]), BACKOFF, timeout_s=5.0, clock=lambda: now[0], sleep=sleep)
    assert calls.at == [0.0, 1.0, 3.0]
