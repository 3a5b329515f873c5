"""One incarnation of a unit: a process from its start to its end, and everything that belongs to it.

A killed process executes nothing more. In Python it would: `finally` blocks run when a coroutine is collected. So every
handle, task, file and link belongs to an incarnation. When it ends, the loop drops its handles, and the ports refuse
its calls with `IncarnationEnded`, whatever its code still tries.
"""

import asyncio
import contextvars
from typing import Any

TASKS_KEPT_MIN = 64


class IncarnationEnded(BaseException):
    """The calling incarnation has ended. Not an `Exception`, so that no retry loop of dead code survives it."""


class ProcessIncarnation:
    """The loop reads `alive` and `paused` before each callback."""

    __slots__ = ("_kept_max", "alive", "context", "deferred", "name", "paused", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.deferred: list[asyncio.TimerHandle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.Context()
        self.context.run(CURRENT_INCARNATION.set, self)
        self._kept_max = TASKS_KEPT_MIN

    def __repr__(self) -> str:
        return f"<incarnation of {self.name}{'' if self.alive else ', ended'}>"

    def check(self) -> None:
        if not self.alive:
            raise IncarnationEnded(self.name)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Keeps every unfinished task, so that the end of the incarnation finds them all."""
        self.tasks.append(task)
        if len(self.tasks) > self._kept_max:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
            self._kept_max = max(TASKS_KEPT_MIN, 2 * len(self.tasks))

    def new_context(self) -> contextvars.Context:
        return self.context.copy()


CURRENT_INCARNATION: contextvars.ContextVar[ProcessIncarnation] = contextvars.ContextVar("incarnation")
