"""The retry loop: call, wait, call again with growing pauses, until a call succeeds or the time is over.

Only an idempotent call may be retried: after a transient error its outcome can be unknown (`Outcome.UNKNOWN`). Which
errors are worth a retry is a property of the error, `EblaError.is_transient`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ebla.model.errors import EblaError
from ebla.ports.rng import Rng

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential: `first_s`, then twice as long each time, up to `max_s`."""

    first_s: float
    max_s: float

    def pause_s(self, failures: int, rng: Rng | None = None) -> float:
        """The pause after so many failures in a row. With `rng`, between half of it and all of it, so that many callers
        that failed together do not come back together."""
        assert failures > 0
        pause_s = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return pause_s if rng is None else pause_s * (0.5 + rng.random() / 2)


def is_transient(error: EblaError) -> bool:
    return error.is_transient


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    *,
    timeout_s: float | None,
    rng: Rng | None = None,
    is_retryable: Callable[[EblaError], bool] = is_transient,
    on_error: Callable[[EblaError], None] | None = None,
) -> T:
    """Raises the last error once `timeout_s` is over (None: never, until cancelled), and at once an error that is not
    retryable. A call that is under way is not cut short: it has a deadline of its own."""
    loop = asyncio.get_running_loop()
    give_up_at = None if timeout_s is None else loop.time() + timeout_s
    failures = 0
    while True:
        try:
            return await call()
        except EblaError as error:
            if not is_retryable(error) or (give_up_at is not None and loop.time() >= give_up_at):
                raise
            if on_error is not None:
                on_error(error)
        failures += 1
        await asyncio.sleep(backoff.pause_s(failures, rng))


def retry_blocking(
    call: Callable[[], T],
    backoff: Backoff,
    *,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    is_retryable: Callable[[EblaError], bool] = is_transient,
) -> T:
    """The same in a thread without an event loop, such as a task of Spark's. Raises the last error instead of starting
    a pause that would end after `timeout_s`."""
    began = clock()
    failures = 0

    def pause_after(error: EblaError) -> float | None:
        nonlocal failures
        failures += 1
        pause_s = backoff.pause_s(failures)
        return pause_s if is_retryable(error) and clock() - began + pause_s <= timeout_s else None

    return retry_with_policy(call, pause_after, sleep)


def retry_with_policy(
    call: Callable[[], T], pause_after: Callable[[EblaError], float | None], sleep: Callable[[float], object]
) -> T:
    """For a bound that is not a time: `pause_after` says how long to pause after an error; None: raise it."""
    while True:
        try:
            return call()
        except EblaError as error:
            pause_s = pause_after(error)
            if pause_s is None:
                raise
        sleep(pause_s)
