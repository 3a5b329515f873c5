"""A machine with a simulated disk, for tests of what a log keeps over crashes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ebla.sim.disk import ProcessDisk, SimDisk
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.loop import simulated_loop
from ebla.sim.rng import SimRng
from ebla.sim.trace import RunTrace

T = TypeVar("T")
Main = Callable[[ProcessDisk], Coroutine[Any, Any, T]]


class Machine:
    """Processes run on it one after the other, each to its end or to a crash at some moment."""

    def __init__(self, seed: int) -> None:
        self.rng = SimRng(f"machine {seed}")
        self.loop = simulated_loop(self.rng.fork("loop"))
        self.disk = SimDisk(self.rng.fork("disk"), RunTrace(self.loop.time), "machine")

    def run(self, main: Main[T]) -> T:
        """One process, to its end."""
        incarnation = ProcessIncarnation("process")
        task = self.loop.create_task(main(self.disk.of(incarnation)), context=incarnation.new_context())
        try:
            result: T = self.loop.run_until_complete(task)
        finally:
            self.loop.end(incarnation)
        return result

    def run_until(self, seconds: float, main: Main[T]) -> None:
        """One process, which is killed after so long, unless it has ended. Its page cache stays."""
        incarnation = ProcessIncarnation("process")
        task = self.loop.create_task(main(self.disk.of(incarnation)), context=incarnation.new_context())
        self.loop.run_until_complete(_wait_at_most(task, seconds))
        self.loop.end(incarnation)
        if task.done() and not task.cancelled():
            task.result()

    def lose_power(self) -> None:
        self.disk.lose_power()


async def _wait_at_most(task: "asyncio.Task[Any]", seconds: float) -> None:
    await asyncio.wait([task], timeout=seconds)
