"""The pipeline: runs work that moves data between nodes. Spark in reality, a twin in simulation, one contract test.

It is not to be trusted. It may run a piece of work twice, at the same time or one after the other; go on with one long
after it was cancelled, frozen in between; lose one without any of its clean-up having run. What makes that harmless is
not here: sessions, staging by attempt, and the seal that names the attempt that counts.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.model.errors import EblaError, Fault
from ebla.model.identity import JobId
from ebla.model.transfers import TransferResult, TransferTask


class PipelineUnavailable(EblaError):
    """Spark is missing, not started yet, or gone. Nothing that it had begun counts; run again when it is back."""

    fault = Fault.US


class WorkFailed(EblaError):
    """Some work failed in every attempt that was made at it. Whatever it staged is not sealed, so it is not applied."""

    fault = Fault.PEER


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    state: EngineState
    cause: str = ""
    """Why it cannot be used, in words."""
    master: str = ""
    version: str = ""
    user_interface: str = ""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Of one job, as the engine knows it. Bytes are told by the targets."""

    done: int = 0
    running: int = 0
    total: int = 0


class TransferEngine(Protocol):
    def status(self) -> EngineStatus: ...

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        """All of it is done on return, and each transfer is told of at least once. Raises `PipelineUnavailable` and
        `WorkFailed`. Cancelled, it cancels; tasks may then go on for a while all the same."""
        ...

    def tasks(self, job: JobId) -> TaskCounts: ...
