"""One run of a unit, from its start to its end: what ties code to the machine it runs on.

A killed process has no last words. Python would give it some: `finally` blocks run when a coroutine is collected. So
every handle, task, file and link belongs to a life, and once the life is over the loop drops its handles and the
ports refuse its calls with `IncarnationEnded`, whatever the code still tries.
"""

import contextvars
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebla.sim.loop import SimHandle, SimTask

TASKS_KEPT_MIN = 64


class IncarnationEnded(BaseException):
    """The life that asks is over. Not an `Exception`, so that no retry loop of dead code survives it."""


class ProcessIncarnation:
    """`alive` and `paused` are read by the loop before each callback."""

    __slots__ = ("_kept_max", "alive", "context", "deferred", "name", "paused", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.deferred: list[SimHandle] = []
        self.tasks: list[SimTask[object]] = []
        self.context = contextvars.Context()
        self.context.run(CURRENT_INCARNATION.set, self)
        self._kept_max = TASKS_KEPT_MIN

    def __repr__(self) -> str:
        return f"<life of {self.name}{'' if self.alive else ', over'}>"

    def check(self) -> None:
        if not self.alive:
            raise IncarnationEnded(self.name)

    def adopt(self, task: "SimTask[object]") -> None:
        """Keeps every unfinished task, so that the end of the life finds them all."""
        self.tasks.append(task)
        if len(self.tasks) > self._kept_max:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
            self._kept_max = max(TASKS_KEPT_MIN, 2 * len(self.tasks))

    def new_context(self) -> contextvars.Context:
        return self.context.copy()


CURRENT_INCARNATION: contextvars.ContextVar[ProcessIncarnation] = contextvars.ContextVar("owner")
