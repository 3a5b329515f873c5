"""Calls several nodes concurrently, retries, and stops when all have answered or enough have.

A node that works on its call is waited for. A node that cannot be reached is retried, and does not delay the result for
long once the others are enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ebla.aio.retry import Backoff, retry
from ebla.model.errors import EblaError
from ebla.transfers.deadline import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

POLL_S = 0.1
BACKOFF = Backoff(first_s=0.3, max_s=0.3)
CONNECTED_AFTER_S = 4.0
"""Longer than a connection attempt: a call that has not failed by then has reached the node."""


@dataclass(slots=True)
class FanOutResult(Generic[K, T]):
    answers: dict[K, T] = field(default_factory=dict)
    failures: dict[K, EblaError] = field(default_factory=dict)
    """The last error of each that has not answered."""


@dataclass(frozen=True, slots=True)
class FanOutCall(Generic[K, T]):
    call: Callable[[K], Awaitable[T]]
    is_enough: Callable[[Mapping[K, T]], bool]
    """Whether these answers suffice."""
    is_down: Callable[[K], bool]
    """Considered down: not waited for like one that works."""


async def fan_out(
    items: Sequence[K],
    calls: FanOutCall[K, T],
    deadline: Deadline,
    *,
    at_once_max: int,
    stragglers_ms: int,
    patience_ms: int,
) -> FanOutResult[K, T]:
    """An error that is not transient is final for its item. Raises none of them.

    Unreachable nodes are retried for `stragglers_ms` once the others are enough, else for `patience_ms`."""
    result: FanOutResult[K, T] = FanOutResult()
    started: dict[K, float] = {}
    slots = asyncio.Semaphore(at_once_max)
    loop = asyncio.get_running_loop()

    def is_working(item: K) -> bool:
        """Unlike one that has failed before and is only being retried."""
        if item not in result.failures:
            return not calls.is_down(item)
        return loop.time() - started.get(item, loop.time()) >= CONNECTED_AFTER_S and not calls.is_down(item)

    async def call_once(item: K) -> T:
        async with slots:
            started[item] = loop.time()
            try:
                return await calls.call(item)
            except EblaError as error:
                result.failures[item] = error
                raise
            finally:
                del started[item]

    async def call_one(item: K) -> None:
        if deadline.is_over:
            return
        try:
            answer = await retry(lambda: call_once(item), BACKOFF, timeout_s=deadline.left_ms / 1000)
        except EblaError:
            return
        result.answers[item] = answer
        result.failures.pop(item, None)

    idle_since: float | None = None
    async with asyncio.TaskGroup() as tasks:
        running = {item: tasks.create_task(call_one(item)) for item in items}
        while open_items := [item for item, task in running.items() if not task.done()]:
            if any(is_working(item) for item in open_items):
                idle_since = None
            elif idle_since is None:
                idle_since = loop.time()
            wait_ms = stragglers_ms if calls.is_enough(result.answers) else patience_ms
            gives_up = idle_since is not None and (loop.time() - idle_since) * 1000 >= wait_ms
            if deadline.is_over or gives_up:
                break
            await asyncio.wait([running[item] for item in open_items], timeout=POLL_S)
        for task in running.values():
            task.cancel()
    return result
