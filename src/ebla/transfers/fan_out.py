"""One question to each of several places, asked again where that may help, until all have answered or enough have.

A place that works on it is waited for. One that cannot be reached is asked again, and holds nobody up for longer than a
while once the others are enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ebla.model.errors import EblaError
from ebla.transfers.deadline import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

POLL_S = 0.1
PAUSE_S = 0.3
CONNECTED_AFTER_S = 4.0
"""Longer than an attempt to connect: a question that has not failed by then was taken up."""


@dataclass(frozen=True, slots=True)
class FanOutLimits:
    at_once_max: int
    stragglers_ms: int
    """How long those that cannot be reached are tried once the others are enough."""
    patience_ms: int
    """And where they are not."""


@dataclass(slots=True)
class FanOutResult(Generic[K, T]):
    found: dict[K, T] = field(default_factory=dict)
    failures: dict[K, EblaError] = field(default_factory=dict)
    """Of those that have not answered as they should, what was last heard."""


@dataclass(frozen=True, slots=True)
class FanOutCall(Generic[K, T]):
    ask: Callable[[K], Awaitable[T]]
    enough: Callable[[Mapping[K, T]], bool]
    """Whether those that have answered do."""
    is_down: Callable[[K], bool]
    """Held to be down: not waited for as one that works."""


async def fan_out(
    items: Sequence[K], questions: FanOutCall[K, T], pace: FanOutLimits, deadline: Deadline
) -> FanOutResult[K, T]:
    """Errors that do not pass are final for their place; none is raised."""
    outcome: FanOutResult[K, T] = FanOutResult()
    working: dict[K, float] = {}
    room = asyncio.Semaphore(pace.at_once_max)
    loop = asyncio.get_running_loop()

    def is_at_work(item: K) -> bool:
        """Not one that has failed before and is only being knocked at again."""
        if item not in outcome.failures:
            return not questions.is_down(item)
        return loop.time() - working.get(item, loop.time()) >= CONNECTED_AFTER_S and not questions.is_down(item)

    async def one(item: K) -> None:
        while not deadline.is_over:
            async with room:
                working[item] = loop.time()
                try:
                    outcome.found[item] = await questions.ask(item)
                    outcome.failures.pop(item, None)
                    return
                except EblaError as error:
                    outcome.failures[item] = error
                    if not error.is_transient:
                        return
                finally:
                    del working[item]
            await asyncio.sleep(PAUSE_S)

    idle_since: float | None = None
    async with asyncio.TaskGroup() as tasks:
        running = {item: tasks.create_task(one(item)) for item in items}
        while open_items := [item for item, task in running.items() if not task.done()]:
            if any(is_at_work(item) for item in open_items):
                idle_since = None
            elif idle_since is None:
                idle_since = loop.time()
            bound_ms = pace.stragglers_ms if questions.enough(outcome.found) else pace.patience_ms
            is_given_up = idle_since is not None and (loop.time() - idle_since) * 1000 >= bound_ms
            if deadline.is_over or is_given_up:
                break
            await asyncio.wait([running[item] for item in open_items], timeout=POLL_S)
        for task in running.values():
            task.cancel()
    return outcome
