"""Run a coroutine now, as far as it gets without waiting; only the rest of it becomes a task.

A task costs more than many requests do altogether, and a coroutine given to a task begins one loop step later. So a
caller that expects its work to finish at once runs it eagerly:

    outcome = run_eagerly(work())
    if type(outcome) is Suspended:
        tasks.create_task(outcome)  # or: await outcome, inside a task

This is the one idiom for "now if possible, else asynchronously". `asyncio.eager_task_factory` does the same from
Python 3.12 on.

A coroutine that is run eagerly has no current task yet, or worse, its caller's. `asyncio.timeout` and
`asyncio.TaskGroup` bind to the current task, so a coroutine awaits `needs_task()` before it uses one of them.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


class _CurrentStep:
    """Whether an eager first step is running. One flag is enough, for simulated nodes too: such a step never awaits,
    and the flag is restored at its end."""

    __slots__ = ("is_eager",)

    def __init__(self) -> None:
        self.is_eager = False


_step = _CurrentStep()


@final
class Suspended(Coroutine[Any, Any, T], Generic[T]):
    """The rest of a coroutine whose first step ended in a wait. Give it to a task, await it in one, or close it.

    A coroutine of its own and not a wrapper around one: a task that is cancelled before its first step throws the
    cancellation into the waiting code, whose `finally` blocks then run."""

    __slots__ = ("_is_resumed", "_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for
        self._is_resumed = False

    def send(self, value: Any) -> Any:
        if not self._is_resumed:
            self._is_resumed = True
            waits_for, self._waits_for = self._waits_for, None
            if waits_for is not None or _step.is_eager:  # awaited in an eager step, which ends with it
                return waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._is_resumed = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> "Suspended[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)


def run_eagerly(work: Coroutine[Any, Any, T]) -> T | Suspended[T]:
    """The result, or the rest if `work` has to wait. Raises what `work` raises before its first wait."""
    before, _step.is_eager = _step.is_eager, True
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        _step.is_eager = before
    return Suspended(work, waits_for)


@types.coroutine
def needs_task() -> Generator[None, None, None]:
    """Ends the eager step, and every eager step around it. Inside a task it does nothing."""
    while _step.is_eager:
        yield


async def run_within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Runs `work` eagerly, and bounds it if it has to wait. Raises `TimeoutError`."""
    outcome = run_eagerly(work)
    if type(outcome) is not Suspended:
        return outcome
    try:
        await needs_task()
        async with asyncio.timeout(timeout_s):
            return await outcome
    finally:
        outcome.close()
