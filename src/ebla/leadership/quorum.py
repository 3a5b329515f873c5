"""Quorums of leases: until when the leases that a leader holds satisfy what an activity requires.

A lease counts until its deadline. So does a quorum, and whether it holds is a comparison with the clock. No timer has
to fire for it to be lost: after a pause of the process any callback may run before the timer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebla.model.identity import HostId

FOREVER_MS = 1 << 62

Deadlines = Mapping[HostId, int]
"""Until when the leader counts each node's lease, by its boot clock."""

VoterSets = tuple[tuple[HostId, ...], ...]
"""The voters of group 0 as applied: one set, or both while the membership is joint."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """The leases of all these hosts; without hosts: of all voters."""

    hosts: tuple[HostId, ...] | None = None


@dataclass(frozen=True, slots=True)
class MajorityOf:
    """The leases of more than half of these hosts; without hosts: of the voters. No majority of an empty set holds."""

    hosts: tuple[HostId, ...] | None = None


Quorum = tuple[AllOf | MajorityOf, ...]
"""All parts must hold at once."""

FOLLOWER: Quorum = ()
"""Needs only this node's own lease, and so no part."""
MAJORITY: Quorum = (MajorityOf(),)


def quorum_until_ms(quorum: Quorum, voters: VoterSets, deadlines: Deadlines) -> int:
    """When the quorum is lost if no lease is renewed: 0 if never held, `FOREVER_MS` if it needs no lease."""
    untils = [_set_until_ms(part, hosts, deadlines) for part in quorum for hosts in host_sets(part, voters)]
    return min(untils, default=FOREVER_MS)


def host_sets(part: AllOf | MajorityOf, voters: VoterSets) -> Sequence[tuple[HostId, ...]]:
    """The sets that must each satisfy the part. Voters are looked up now: they may change while an activity runs."""
    if part.hosts is not None:
        return (part.hosts,)
    return voters or ((),)


def _set_until_ms(part: AllOf | MajorityOf, hosts: tuple[HostId, ...], deadlines: Deadlines) -> int:
    newest_first = sorted([deadlines.get(host, 0) for host in hosts], reverse=True)
    needed = leases_needed(part, hosts)
    if needed == 0:
        return FOREVER_MS
    return newest_first[needed - 1] if needed <= len(newest_first) else 0


def leases_needed(part: AllOf | MajorityOf, hosts: Sequence[HostId]) -> int:
    return len(hosts) if isinstance(part, AllOf) else len(hosts) // 2 + 1


def missing_hosts(quorum: Quorum, voters: VoterSets, deadlines: Deadlines, now_ms: int) -> tuple[HostId, ...]:
    """The hosts whose lease a part that does not hold lacks, sorted."""
    missing = {
        host
        for part in quorum
        for hosts in host_sets(part, voters)
        if _set_until_ms(part, hosts, deadlines) <= now_ms
        for host in hosts
        if deadlines.get(host, 0) <= now_ms
    }
    return tuple(sorted(missing))


def describe_quorum(quorum: Quorum) -> str:
    return " and ".join(_describe(part) for part in quorum) or "follower"


def _describe(part: AllOf | MajorityOf) -> str:
    name = "all" if isinstance(part, AllOf) else "majority"
    return name if part.hosts is None else f"{name} of {', '.join(map(str, part.hosts)) or 'no host'}"
