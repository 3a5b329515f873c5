"""Consistency levels as data, and how many acknowledgements each needs.

A write also goes to *pending* replicas, which are being filled and are not read yet. Each of them adds one to what the
level needs. So of natural and pending replicas together at most as many may miss the write as of the natural ones
alone, and the level is reached in the replica set before a change as well as in the one after it.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


class ConsistencyLevel(enum.IntEnum):
    """With the numbers of the CQL protocol."""

    ONE = 1
    TWO = 2
    THREE = 3
    QUORUM = 4
    ALL = 5
    LOCAL_QUORUM = 6
    EACH_QUORUM = 7
    LOCAL_ONE = 10

    __hash__ = int.__hash__  # that of `Enum` is Python code, and every request looks up plans by its level


class ReplicaScope(enum.StrEnum):
    """Whose replicas count."""

    CLUSTER = "cluster"
    LOCAL_DATACENTER = "local_datacenter"
    EACH_DATACENTER = "each_datacenter"


@dataclass(frozen=True, slots=True)
class LevelRule:
    scope: ReplicaScope
    needed: Callable[[int], int]
    """How many of so many replicas."""


def quorum_of(replicas: int) -> int:
    """The least number such that any two sets of that size overlap."""
    return replicas // 2 + 1


LEVELS: Mapping[ConsistencyLevel, LevelRule] = MappingProxyType(
    {
        ConsistencyLevel.ONE: LevelRule(ReplicaScope.CLUSTER, lambda _: 1),
        ConsistencyLevel.TWO: LevelRule(ReplicaScope.CLUSTER, lambda _: 2),
        ConsistencyLevel.THREE: LevelRule(ReplicaScope.CLUSTER, lambda _: 3),
        ConsistencyLevel.QUORUM: LevelRule(ReplicaScope.CLUSTER, quorum_of),
        ConsistencyLevel.ALL: LevelRule(ReplicaScope.CLUSTER, lambda replicas: replicas),
        ConsistencyLevel.LOCAL_ONE: LevelRule(ReplicaScope.LOCAL_DATACENTER, lambda _: 1),
        ConsistencyLevel.LOCAL_QUORUM: LevelRule(ReplicaScope.LOCAL_DATACENTER, quorum_of),
        ConsistencyLevel.EACH_QUORUM: LevelRule(ReplicaScope.EACH_DATACENTER, quorum_of),
    }
)


@dataclass(frozen=True, slots=True)
class RequiredReplies:
    """This many replies from replicas of this datacenter; None: from anywhere."""

    datacenter: str | None
    count: int


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """How many replicas quorums are counted of.

    `total` is separate from the datacenters' numbers because SimpleStrategy has a factor only for the cluster.
    """

    total: int
    by_datacenter: Mapping[str, int]


def required_replies(
    level: ConsistencyLevel, counts: ReplicaCounts, local_datacenter: str, pending: Mapping[str, int] | None = None
) -> tuple[RequiredReplies, ...]:
    """All of them must be met. Reads have no pending replicas; for a write, `pending` counts them by datacenter."""
    rule = LEVELS[level]
    added = pending or {}
    match rule.scope:
        case ReplicaScope.CLUSTER:
            return (RequiredReplies(None, rule.needed(counts.total) + sum(added.values())),)
        case ReplicaScope.LOCAL_DATACENTER:
            here = rule.needed(counts.by_datacenter.get(local_datacenter, 0))
            return (RequiredReplies(local_datacenter, here + added.get(local_datacenter, 0)),)
        case ReplicaScope.EACH_DATACENTER:
            names = sorted(counts.by_datacenter.keys() | added.keys())
            return tuple(RequiredReplies(name, _each(rule, counts, name) + added.get(name, 0)) for name in names)


def _each(rule: LevelRule, counts: ReplicaCounts, datacenter: str) -> int:
    """A datacenter that gets its first replica has none to wait for yet."""
    replicas = counts.by_datacenter.get(datacenter, 0)
    return rule.needed(replicas) if replicas else 0


def is_met(needed: Sequence[RequiredReplies], answered_datacenters: Iterable[str]) -> bool:
    """Whether replies from replicas in these datacenters (one entry each) are enough."""
    answered = list(answered_datacenters)
    return all(
        (len(answered) if each.datacenter is None else answered.count(each.datacenter)) >= each.count for each in needed
    )
