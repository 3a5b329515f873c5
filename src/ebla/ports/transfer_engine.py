"""The engine that runs transfer tasks: Spark in production, a simulated one in the simulator, with one contract test.

It is not trusted. It may run a task twice, concurrently or one after the other; continue a task long after it was
cancelled, frozen in between; lose a task without any clean-up. Sessions, staging by attempt, and the seal that names
the winning attempt make that harmless.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.model.errors import Corruption, EblaError, Fault
from ebla.model.identity import JobId
from ebla.model.transfers import TransferResult, TransferTask


class PipelineUnavailable(EblaError):
    """Spark is missing, not started yet, or gone. Nothing that it had begun has effect; run again when it is back."""

    fault = Fault.US


class WorkFailed(EblaError):
    """A task failed in every attempt. What it staged is not sealed, so it is not applied."""

    fault = Fault.PEER

    def __init__(self, message: str, *, advice: str = "", cause: str = "", transfer: str = "") -> None:
        """`cause`: the class of the error that the task met; `transfer`: what it worked on. Empty: not known."""
        super().__init__(message, advice=advice)
        self.cause = cause
        self.transfer = transfer


class SourceDamaged(Corruption):
    """Data of a source cannot be read. Another attempt would find the same."""


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    state: EngineState
    cause: str = ""
    """Why it cannot be used."""
    master: str = ""
    version: str = ""
    user_interface: str = ""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Of one job, as the engine knows it. The targets report bytes."""

    done: int = 0
    running: int = 0
    total: int = 0


class TransferEngine(Protocol):
    def status(self) -> EngineStatus: ...

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        """On return all tasks are done, and each transfer is reported at least once. Raises `PipelineUnavailable` and
        `WorkFailed`. Cancelling it cancels the job; tasks may still run for a while."""
        ...

    def tasks(self, job: JobId) -> TaskCounts: ...
