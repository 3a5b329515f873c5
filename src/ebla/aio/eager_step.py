"""A coroutine whose first step runs without a task. Where it must wait it says so, and the rest becomes a task.

A task costs more than many requests need altogether. But what waits inside one (a timeout, a task group) wants to be
in a task from its first step on: so whoever runs at once awaits `NEEDS_TASK` before anything of that kind, and
nothing else.
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class NeedsTask:
    """Awaited once: it comes out of the coroutine's first `send`, and the next one goes on behind it."""

    __slots__ = ()

    def __await__(self) -> Generator["NeedsTask", None, None]:
        yield self


NEEDS_TASK = NeedsTask()


async def resume_in_task(work: Coroutine[Any, Any, T]) -> T:
    """What is left of a coroutine that stands at `NEEDS_TASK`, to be run as a task."""
    return await _going_on(work)


@types.coroutine
def _going_on(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    # Awaiting it once more is not allowed: it is suspended in an await already.
    return (yield from work.__await__())
