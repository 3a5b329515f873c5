"""The states of the staging of one transfer. Pure.

    open ──seal──▶ sealing ──done──▶ sealed ──release──▶ released
      ▲               │
      └────failed─────┘

Attempts write while it is open. The seal names one attempt or, for rows, several that count together; from then on no
other counts (INV-XFER-2), and none may write. A seal that fails has sealed nothing, so the same attempts, or others,
may be named again.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ebla.model.errors import Refused
from ebla.model.identity import AttemptId


class TransferPhase(enum.StrEnum):
    OPEN = "open"
    SEALING = "sealing"
    SEALED = "sealed"
    RELEASED = "released"


class StagingEvent(enum.StrEnum):
    OPENED = "opened"
    """Again: the caller that opened it did not get the answer."""
    PUT = "put"
    SEAL = "seal"
    """Of attempts while none are named, or of the named ones again."""
    SEAL_OTHER = "seal_other"
    """Of other attempts than the named ones."""
    SEAL_DONE = "seal_done"
    SEAL_FAILED = "seal_failed"
    RELEASE = "release"


class StagingRefusal(enum.StrEnum):
    BEING_SEALED = "it is being sealed with other attempts"
    SEALED_ALREADY = "it is sealed with other attempts"
    CLOSED_TO_PUTS = "an attempt at it was named, so nothing more is accepted"
    RELEASED = "it was released"
    NOT_SEALING = "no seal of it is running"


_OPEN, _SEALING, _SEALED, _RELEASED = TransferPhase
_PHASES_AFTER: Mapping[StagingEvent, tuple[TransferPhase | StagingRefusal, ...]] = {
    # while it is             open, sealing, sealed, released
    StagingEvent.OPENED: (_OPEN, _SEALING, _SEALED, StagingRefusal.RELEASED),
    StagingEvent.PUT: (_OPEN, StagingRefusal.CLOSED_TO_PUTS, StagingRefusal.CLOSED_TO_PUTS, StagingRefusal.RELEASED),
    StagingEvent.SEAL: (_SEALING, _SEALING, _SEALED, StagingRefusal.RELEASED),
    StagingEvent.SEAL_OTHER: (
        _SEALING, StagingRefusal.BEING_SEALED, StagingRefusal.SEALED_ALREADY, StagingRefusal.RELEASED
    ),
    StagingEvent.SEAL_DONE: (
        StagingRefusal.NOT_SEALING, _SEALED, StagingRefusal.NOT_SEALING, StagingRefusal.NOT_SEALING
    ),
    StagingEvent.SEAL_FAILED: (
        StagingRefusal.NOT_SEALING, _OPEN, StagingRefusal.NOT_SEALING, StagingRefusal.NOT_SEALING
    ),
    StagingEvent.RELEASE: (_RELEASED, StagingRefusal.BEING_SEALED, _RELEASED, _RELEASED),
}  # fmt: skip
TRANSITIONS: Mapping[tuple[TransferPhase, StagingEvent], TransferPhase | StagingRefusal] = {
    (phase, event): after
    for event, row in _PHASES_AFTER.items()
    for phase, after in zip(TransferPhase, row, strict=True)
}


class SealRefused(Refused):
    """`winners` are the attempts that count, where there are any."""

    def __init__(self, message: str, *, advice: str = "", winners: tuple[AttemptId, ...] = ()) -> None:
        super().__init__(message, advice=advice)
        self.winners = winners


WINNERS_SHOWN_MAX = 3
"""Attempts that an error message names."""


@dataclass(frozen=True, slots=True)
class StagingState:
    phase: TransferPhase = TransferPhase.OPEN
    attempts: frozenset[AttemptId] = frozenset()
    """That have put something over Flight. Attempts that link files locally show up only at the seal."""
    winners: tuple[AttemptId, ...] = ()
    """Named by a seal that runs or is done, sorted by id."""

    def opened(self) -> "StagingState":
        return self._after(StagingEvent.OPENED)

    def put(self, attempt: AttemptId, attempts_max: int) -> "StagingState":
        after = self._after(StagingEvent.PUT)
        if attempt in self.attempts:
            return after
        if len(self.attempts) >= attempts_max:
            raise Refused(f"{len(self.attempts)} attempts were made at this transfer", advice="find out why they fail")
        return replace(after, attempts=self.attempts | {attempt})

    def sealing(self, attempts: Iterable[AttemptId]) -> "StagingState":
        """From now on these attempts are sealed: all of them and no other. Idempotent."""
        winners = sorted_attempts(attempts)
        assert winners
        is_named = not self.winners or self.winners == winners
        return replace(self._after(StagingEvent.SEAL if is_named else StagingEvent.SEAL_OTHER), winners=winners)

    def sealed(self) -> "StagingState":
        assert self.winners
        return replace(self._after(StagingEvent.SEAL_DONE), attempts=frozenset(self.winners))

    def failed(self) -> "StagingState":
        return replace(self._after(StagingEvent.SEAL_FAILED), winners=())

    def without(self, attempt: AttemptId) -> "StagingState":
        """Its files are gone."""
        assert attempt not in self.winners
        return replace(self, attempts=self.attempts - {attempt})

    def released(self) -> "StagingState":
        return replace(self._after(StagingEvent.RELEASE), attempts=frozenset())

    def _after(self, event: StagingEvent) -> "StagingState":
        outcome = TRANSITIONS[self.phase, event]
        match outcome:
            case TransferPhase():
                return replace(self, phase=outcome)
            case StagingRefusal():
                shown = ", ".join(str(one) for one in self.winners[:WINNERS_SHOWN_MAX])
                left = len(self.winners) - WINNERS_SHOWN_MAX
                more = f" and {left} more" if left > 0 else ""
                named = f" ({shown}{more})" if shown else ""
                raise SealRefused(f"the staging accepts no {event} any more: {outcome}{named}", winners=self.winners)


def sorted_attempts(attempts: Iterable[AttemptId]) -> tuple[AttemptId, ...]:
    """The same tuple for the same set of attempts."""
    return tuple(sorted(attempts, key=lambda one: one.int))
