"""What may happen to the staging of one transfer, and when. Pure.

    open ──seal──▶ sealing ──done──▶ sealed ──release──▶ released
      ▲               │
      └────failed─────┘

Attempts write while it is open. The seal names one of them; from then on no other counts (INV-XFER-2), and none may
write. A seal that fails has sealed nothing, so the same attempt, or another, may be named again.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ebla.model.errors import Refused
from ebla.model.identity import AttemptId


class Phase(enum.StrEnum):
    OPEN = "open"
    SEALING = "sealing"
    SEALED = "sealed"
    RELEASED = "released"


class Event(enum.StrEnum):
    OPENED = "opened"
    """Again: whoever opened it has not heard the answer."""
    PUT = "put"
    SEAL = "seal"
    """Of an attempt while none is named, or of the one that is."""
    SEAL_OTHER = "seal_other"
    """Of another than the one that is named."""
    SEAL_DONE = "seal_done"
    SEAL_FAILED = "seal_failed"
    RELEASE = "release"


class Refusal(enum.StrEnum):
    BEING_SEALED = "it is being sealed with another attempt"
    SEALED_ALREADY = "it is sealed with another attempt"
    CLOSED_TO_PUTS = "an attempt at it was named, so nothing more is taken"
    RELEASED = "it was released"
    NOT_SEALING = "no seal of it is under way"


TRANSITIONS: Mapping[tuple[Phase, Event], Phase | Refusal] = MappingProxyType(
    {
        (Phase.OPEN, Event.OPENED): Phase.OPEN,
        (Phase.OPEN, Event.PUT): Phase.OPEN,
        (Phase.OPEN, Event.SEAL): Phase.SEALING,
        (Phase.OPEN, Event.SEAL_OTHER): Phase.SEALING,
        (Phase.OPEN, Event.SEAL_DONE): Refusal.NOT_SEALING,
        (Phase.OPEN, Event.SEAL_FAILED): Refusal.NOT_SEALING,
        (Phase.OPEN, Event.RELEASE): Phase.RELEASED,
        (Phase.SEALING, Event.OPENED): Phase.SEALING,
        (Phase.SEALING, Event.PUT): Refusal.CLOSED_TO_PUTS,
        (Phase.SEALING, Event.SEAL): Phase.SEALING,
        (Phase.SEALING, Event.SEAL_OTHER): Refusal.BEING_SEALED,
        (Phase.SEALING, Event.SEAL_DONE): Phase.SEALED,
        (Phase.SEALING, Event.SEAL_FAILED): Phase.OPEN,
        (Phase.SEALING, Event.RELEASE): Refusal.BEING_SEALED,
        (Phase.SEALED, Event.OPENED): Phase.SEALED,
        (Phase.SEALED, Event.PUT): Refusal.CLOSED_TO_PUTS,
        (Phase.SEALED, Event.SEAL): Phase.SEALED,
        (Phase.SEALED, Event.SEAL_OTHER): Refusal.SEALED_ALREADY,
        (Phase.SEALED, Event.SEAL_DONE): Refusal.NOT_SEALING,
        (Phase.SEALED, Event.SEAL_FAILED): Refusal.NOT_SEALING,
        (Phase.SEALED, Event.RELEASE): Phase.RELEASED,
        (Phase.RELEASED, Event.OPENED): Refusal.RELEASED,
        (Phase.RELEASED, Event.PUT): Refusal.RELEASED,
        (Phase.RELEASED, Event.SEAL): Refusal.RELEASED,
        (Phase.RELEASED, Event.SEAL_OTHER): Refusal.RELEASED,
        (Phase.RELEASED, Event.SEAL_DONE): Refusal.NOT_SEALING,
        (Phase.RELEASED, Event.SEAL_FAILED): Refusal.NOT_SEALING,
        (Phase.RELEASED, Event.RELEASE): Phase.RELEASED,
    }
)


class SealRefused(Refused):
    """`winner` is the attempt that counts, where there is one."""

    def __init__(self, message: str, *, advice: str = "", winner: AttemptId | None = None) -> None:
        super().__init__(message, advice=advice)
        self.winner = winner


@dataclass(frozen=True, slots=True)
class StagingState:
    phase: Phase = Phase.OPEN
    attempts: tuple[AttemptId, ...] = ()
    """That have put something, in the order in which they came. Those by the short cut show only at the seal."""
    winner: AttemptId | None = None
    """Named by a seal that is under way or done."""

    def opened(self) -> "StagingState":
        return self._after(Event.OPENED)

    def put(self, attempt: AttemptId, attempts_max: int) -> "StagingState":
        after = self._after(Event.PUT)
        if attempt in self.attempts:
            return after
        if len(self.attempts) >= attempts_max:
            raise Refused(f"{len(self.attempts)} attempts were made at this transfer", advice="find out why they fail")
        return replace(after, attempts=(*self.attempts, attempt))

    def sealing(self, attempt: AttemptId) -> "StagingState":
        """From now on, or still, this attempt is the one that is sealed."""
        is_named = self.winner is None or self.winner == attempt
        return replace(self._after(Event.SEAL if is_named else Event.SEAL_OTHER), winner=attempt)

    def sealed(self) -> "StagingState":
        assert self.winner is not None
        return replace(self._after(Event.SEAL_DONE), attempts=(self.winner,))

    def failed(self) -> "StagingState":
        return replace(self._after(Event.SEAL_FAILED), winner=None)

    def without(self, attempt: AttemptId) -> "StagingState":
        """What it brought is gone."""
        assert attempt != self.winner
        return replace(self, attempts=tuple(one for one in self.attempts if one != attempt))

    def released(self) -> "StagingState":
        return replace(self._after(Event.RELEASE), attempts=())

    def _after(self, event: Event) -> "StagingState":
        outcome = TRANSITIONS[self.phase, event]
        match outcome:
            case Phase():
                return replace(self, phase=outcome)
            case Refusal():
                named = f" ({self.winner})" if self.winner is not None else ""
                raise SealRefused(f"the staging takes no {event} any more: {outcome}{named}", winner=self.winner)
