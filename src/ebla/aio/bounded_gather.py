"""Several coroutines at once, with a bound on how many."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ebla.aio.eager import needs_task
from ebla.model.errors import leaf_errors

T = TypeVar("T")


async def gather_bounded(works: Sequence[Callable[[], Awaitable[T]]], at_once_max: int) -> list[T]:
    """At most `at_once_max` run at a time; results keep their order. The first error cancels the others and is raised
    without a group around it."""
    room = asyncio.Semaphore(at_once_max)

    async def within(work: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await work()

    await needs_task()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(within(work)) for work in works]
    except BaseExceptionGroup as group:
        raise next(leaf_errors(group)) from group
    return [task.result() for task in running]
