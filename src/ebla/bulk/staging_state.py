"""What may happen to the staging of one transfer, and when. Pure.

    open ──seal──▶ sealing ──done──▶ sealed ──release──▶ released
      ▲               │
      └────failed─────┘

Attempts write while it is open. The seal names one of them, or of rows several that count together; from then on no
other counts (INV-XFER-2), and none may write. A seal that fails has sealed nothing, so the same attempts, or others,
may be named again.
"""

import enum
from collections.abc import Iterable, Mapping
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
    """Of attempts while none are named, or of those that are."""
    SEAL_OTHER = "seal_other"
    """Of others than those that are named."""
    SEAL_DONE = "seal_done"
    SEAL_FAILED = "seal_failed"
    RELEASE = "release"


class Refusal(enum.StrEnum):
    BEING_SEALED = "it is being sealed with other attempts"
    SEALED_ALREADY = "it is sealed with other attempts"
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
    """`winners` are the attempts that count, where there are any."""

    def __init__(self, message: str, *, advice: str = "", winners: tuple[AttemptId, ...] = ()) -> None:
        super().__init__(message, advice=advice)
        self.winners = winners


NAMED_TOLD = 3
"""So many of the attempts that count are told by name."""


@dataclass(frozen=True, slots=True)
class StagingState:
    phase: Phase = Phase.OPEN
    attempts: frozenset[AttemptId] = frozenset()
    """That have put something. Those by the short cut show only at the seal."""
    winners: tuple[AttemptId, ...] = ()
    """Named by a seal that is under way or done, in the order of their ids."""

    def opened(self) -> "StagingState":
        return self._after(Event.OPENED)

    def put(self, attempt: AttemptId, attempts_max: int) -> "StagingState":
        after = self._after(Event.PUT)
        if attempt in self.attempts:
            return after
        if len(self.attempts) >= attempts_max:
            raise Refused(f"{len(self.attempts)} attempts were made at this transfer", advice="find out why they fail")
        return replace(after, attempts=self.attempts | {attempt})

    def sealing(self, attempts: Iterable[AttemptId]) -> "StagingState":
        """From now on, or still, these attempts are the ones that are sealed: all of them and no other."""
        winners = in_order(attempts)
        assert winners
        is_named = not self.winners or self.winners == winners
        return replace(self._after(Event.SEAL if is_named else Event.SEAL_OTHER), winners=winners)

    def sealed(self) -> "StagingState":
        assert self.winners
        return replace(self._after(Event.SEAL_DONE), attempts=frozenset(self.winners))

    def failed(self) -> "StagingState":
        return replace(self._after(Event.SEAL_FAILED), winners=())

    def without(self, attempt: AttemptId) -> "StagingState":
        """What it brought is gone."""
        assert attempt not in self.winners
        return replace(self, attempts=self.attempts - {attempt})

    def released(self) -> "StagingState":
        return replace(self._after(Event.RELEASE), attempts=frozenset())

    def _after(self, event: Event) -> "StagingState":
        outcome = TRANSITIONS[self.phase, event]
        match outcome:
            case Phase():
                return replace(self, phase=outcome)
            case Refusal():
                told = ", ".join(str(one) for one in self.winners[:NAMED_TOLD])
                more = f" and {len(self.winners) - NAMED_TOLD} more" if len(self.winners) > NAMED_TOLD else ""
                named = f" ({told}{more})" if told else ""
                raise SealRefused(f"the staging takes no {event} any more: {outcome}{named}", winners=self.winners)


def in_order(attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
    """A set of attempts, the same however it was named."""
    return tuple(sorted(attempts, key=lambda one: one.int))
