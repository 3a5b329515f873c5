"""Counting what replicas say to a write: when its level is reached, and when it no longer can be. Pure.

A level is one or several requirements, each a number of acknowledgements from the replicas that count for it: all of
them, or those of one datacenter. A write is acknowledged only once every requirement has its number. It is given up
before its time only once so many replicas refused that some requirement cannot get its number any more.
"""

import enum
from collections.abc import Sequence

import msgspec

from ebla.model.errors import EblaError
from ebla.model.identity import Replica
from ebla.wire.errors import failure_frame


class AckRule(msgspec.Struct, frozen=True, kw_only=True):
    """What the copies of one write must bring; shared by all writes that go the same way. A copy is known by its
    position among the targets. Made by `make_ack_rule`."""

    needed: tuple[int, ...]
    """Of each requirement."""
    counts_for: tuple[tuple[int, ...], ...]
    """By position: the requirements that this copy's acknowledgement counts for."""
    spare: tuple[int, ...]
    """How many of those that count for each requirement may refuse; below zero: it cannot be met."""
    lacking: int
    """Requirements that need anything at all."""

    @property
    def can_be_met(self) -> bool:
        """A write that goes to nobody is none, whatever the level says."""
        return bool(self.counts_for) and all(spare >= 0 for spare in self.spare)


def make_ack_rule(needed: Sequence[int], counts_for: Sequence[tuple[int, ...]]) -> AckRule:
    counting = [0] * len(needed)
    for requirements in counts_for:
        for requirement in requirements:
            counting[requirement] += 1
    spare = tuple(have - want for have, want in zip(counting, needed))
    return AckRule(
        needed=tuple(needed), counts_for=tuple(counts_for), spare=spare, lacking=sum(1 for want in needed if want > 0)
    )


class AckCounter:
    """The answers to one write. Each position answers once, by `acknowledge` or `refuse`, or never."""

    __slots__ = ("_answered", "_lacking", "_missing", "_rule", "_spare", "is_impossible", "refused")

    def __init__(self, rule: AckRule) -> None:
        self._rule = rule
        self._missing = list(rule.needed)
        self._spare = list(rule.spare)
        self._lacking = rule.lacking
        self._answered = 0
        self.is_impossible = False
        self.refused = 0

    @property
    def is_met(self) -> bool:
        return self._lacking == 0

    @property
    def required(self) -> int:
        return sum(self._rule.needed)

    @property
    def received(self) -> int:
        """Of those required: more than enough from one datacenter makes up for nothing in another."""
        return self.required - sum(missing for missing in self._missing if missing > 0)

    def acknowledge(self, position: int) -> bool:
        """True where this one made the level full."""
        self._note(position)
        missing = self._missing
        is_full = False
        for requirement in self._rule.counts_for[position]:
            missing[requirement] -= 1
            if missing[requirement] == 0:
                self._lacking -= 1
                is_full = self._lacking == 0
        return is_full

    def refuse(self, position: int) -> bool:
        """True where this one made the level impossible."""
        self._note(position)
        self.refused += 1
        was_impossible = self.is_impossible
        for requirement in self._rule.counts_for[position]:
            self._spare[requirement] -= 1
            if self._spare[requirement] < 0:
                self.is_impossible = True
        return self.is_impossible and not was_impossible

    def _note(self, position: int) -> None:
        bit = 1 << position
        assert not self._answered & bit, "a copy answers once"
        self._answered |= bit


class ReplicaRefusal(enum.Enum):
    """Why a copy was not acknowledged, as far as it decides what is done next."""

    STALE = enum.auto()
    """Routed by an outdated version: the write goes again, by a newer one."""
    SILENT = enum.auto()
    """Nothing was said in time. No reason to give up before the request's own time is over."""
    REFUSED = enum.auto()
    """This copy will not be acknowledged any more: refused, not sent, or the connection ended."""


class ReplicaWriteFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a write that was not acknowledged. Error and outcome as in a `Failure` frame."""

    target: Replica
    error: str
    message: str
    advice: str = ""

    @property
    def refusal(self) -> ReplicaRefusal:
        return _REFUSALS.get(self.error, ReplicaRefusal.REFUSED)


_REFUSALS = {"stale": ReplicaRefusal.STALE, "deadline_exceeded": ReplicaRefusal.SILENT}


def replica_write_failure(target: Replica, error: EblaError) -> ReplicaWriteFailure:
    """For a whole frame that was not answered."""
    told = failure_frame(0, error)
    return ReplicaWriteFailure(target=target, error=told.error, message=told.message, advice=told.advice)
