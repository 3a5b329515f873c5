"""Several works at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ebla.model.error_groups import leaf_errors

T = TypeVar("T")


async def gather_bounded(works: Sequence[Callable[[], Awaitable[T]]], at_once_max: int) -> list[T]:
    """So many at a time, the results in their order. The first error ends the others and is raised by itself."""
    room = asyncio.Semaphore(at_once_max)

    async def within(work: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await work()

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(within(work)) for work in works]
    except BaseExceptionGroup as group:
        raise next(leaf_errors(group)) from group
    return [task.result() for task in running]
