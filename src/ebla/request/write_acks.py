"""Counting replica acknowledgements of a write: when its consistency level is met, and when it can no longer be. Pure.

A level is one or more requirements. Each is a number of acknowledgements from the replicas that count for it: all
replicas, or those of one datacenter. A write is acknowledged only once every requirement has its number. It is given
up early only once so many replicas have refused that some requirement can no longer get its number.
"""

from collections.abc import Sequence

import msgspec


class AckRule(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of one write must acknowledge; shared by all writes with the same targets. A replica is known
    by its position among the targets. Made by `make_ack_rule`."""

    needed: tuple[int, ...]
    """Acknowledgements of each requirement."""
    counts_for: tuple[tuple[int, ...], ...]
    """By position: the requirements that this replica's acknowledgement counts for."""
    spare: tuple[int, ...]
    """How many replicas of each requirement may refuse; below zero: it cannot be met."""
    lacking: int
    """Requirements that need any acknowledgement at all."""

    @property
    def can_be_met(self) -> bool:
        """False without targets at any level: a write without a replica is not a write."""
        return bool(self.counts_for) and all(spare >= 0 for spare in self.spare)


def make_ack_rule(needed: Sequence[int], counts_for: Sequence[tuple[int, ...]]) -> AckRule:
    counting = [0] * len(needed)
    for requirements in counts_for:
        for requirement in requirements:
            counting[requirement] += 1
    spare = tuple(have - want for have, want in zip(counting, needed))
    return AckRule(
        needed=tuple(needed),
        counts_for=tuple(counts_for),
        spare=spare,
        lacking=sum(1 for want in needed if want > 0),
    )


class AckCounter:
    """The replies to one write. Each position replies at most once, by `acknowledge` or `refuse`."""

    __slots__ = ("_lacking", "_missing", "_replied", "_rule", "_spare", "is_impossible", "refused")

    def __init__(self, rule: AckRule) -> None:
        self._rule = rule
        self._missing = list(rule.needed)
        self._spare = list(rule.spare)
        self._lacking = rule.lacking
        self._replied = 0
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
        """Of those required: a surplus in one datacenter does not make up for another."""
        return self.required - sum(missing for missing in self._missing if missing > 0)

    def acknowledge(self, position: int) -> bool:
        """True if this reply met the level."""
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
        """True if this reply made the level impossible."""
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
        assert not self._replied & bit, "a replica replies once"
        self._replied |= bit
