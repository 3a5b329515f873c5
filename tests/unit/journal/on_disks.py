"""A machine with a simulated disk, for tests of what a log keeps over crashes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ebla.sim.chance import SimChance
from ebla.sim.disk import LifeDisk, SimDisk
from ebla.sim.life import Life
from ebla.sim.loop import simulated_loop
from ebla.sim.narrative import Narrative

T = TypeVar("T")
Main = Callable[[LifeDisk], Coroutine[Any, Any, T]]


class Machine:
    """Processes run on it one after the other, each to its end or to a crash at some moment."""

    def __init__(self, seed: int) -> None:
        self.chance = SimChance(f"machine {seed}")
        self.loop = simulated_loop(self.chance.fork("loop"))
        self.disk = SimDisk(self.chance.fork("disk"), Narrative(self.loop.time), "machine")

    def run(self, main: Main[T]) -> T:
        """One process, to its end."""
        life = Life("process")
        task = self.loop.create_task(main(self.disk.of(life)), context=life.new_context())
        try:
            result: T = self.loop.run_until_complete(task)
        finally:
            self.loop.end(life)
        return result

    def run_until(self, seconds: float, main: Main[T]) -> None:
        """One process, which is killed after so long, unless it has ended. Its page cache stays."""
        life = Life("process")
        task = self.loop.create_task(main(self.disk.of(life)), context=life.new_context())
        self.loop.run_until_complete(_wait_at_most(task, seconds))
        self.loop.end(life)
        if task.done() and not task.cancelled():
            task.result()

    def lose_power(self) -> None:
        self.disk.lose_power()


async def _wait_at_most(task: "asyncio.Task[Any]", seconds: float) -> None:
    await asyncio.wait([task], timeout=seconds)
