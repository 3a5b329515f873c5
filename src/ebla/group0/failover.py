"""Whether hosts may be excluded from the cluster, or an excluded one included again.

A host counts as down when a majority of all voters reports it down; a voter that gave no opinion counts as one that
reports it up. The leader's opinion alone excludes no host: with one broken link it would be the leader that is cut off.
INV-FAIL-1: no exclusion without force lacks that majority, so a minority cannot exclude a host.
"""

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ebla.group0.members import Member, MemberRole
from ebla.model.identity import HostId
from ebla.model.opinions import Opinion, OpinionState
from ebla.topology.routing.replica_losses import KeyspaceLosses, keyspace_losses
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState

LAG_ENTRIES_MAX = 64
"""A member within this distance of the leader has caught up: a busy group commits as much in a few rounds."""


class Opinions:
    """The opinions of the voters; those of other hosts do not count."""

    def __init__(self, voters: Iterable[HostId], opinions: Iterable[Opinion]) -> None:
        self.voters = tuple(sorted(voters))
        self._opinions = sorted(
            (one for one in opinions if one.voter in self.voters), key=lambda one: (one.host, one.voter)
        )
        self.answered = tuple(sorted({one.voter for one in self._opinions}))

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def about(self, host: HostId) -> tuple[Opinion, ...]:
        return tuple(one for one in self._opinions if one.host == host)

    def down(self, host: HostId) -> tuple[Opinion, ...]:
        """Of the voters that report it down."""
        return tuple(one for one in self.about(host) if one.state is OpinionState.DOWN)

    def is_down(self, host: HostId) -> bool:
        return len(self.down(host)) >= self.majority

    def suspected(self) -> tuple[HostId, ...]:
        """The hosts that any voter reports down, sorted."""
        return tuple(sorted({one.host for one in self._opinions if one.state is OpinionState.DOWN}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverFacts:
    """What a decision is based on. The commit is conditional on this snapshot."""

    snapshot: Snapshot
    members: tuple[Member, ...]
    leader: HostId
    opinions: Opinions

    def name(self, host: HostId) -> str:
        """Its address, for people."""
        return next((one.address.host for one in self.members if one.host == host and one.listens), str(host))

    def names(self, hosts: Iterable[HostId]) -> str:
        return ", ".join(self.name(host) for host in hosts)


def voters_of(members: Iterable[Member]) -> tuple[HostId, ...]:
    return tuple(sorted(member.host for member in members if member.role is MemberRole.VOTER))


class CheckKind(enum.StrEnum):
    MEMBER = "member"
    DOWN = "down"
    VOTERS = "voters"
    REPLICAS = "replicas"
    RECOVERY = "recovery"


FORCIBLE = (CheckKind.DOWN, CheckKind.REPLICAS)
"""What `--force` overrides. Without a majority of voters nothing could be committed afterwards."""


@dataclass(frozen=True, slots=True)
class Check:
    """One condition and what was found, for people."""

    kind: CheckKind
    is_met: bool
    text: str


def check_exclusion(facts: FailoverFacts, hosts: tuple[HostId, ...]) -> tuple[Check, ...]:
    """What must hold before these hosts are excluded together. They are not excluded yet."""
    return (
        *(_check_member(facts, host) for host in hosts),
        *(_check_down(facts, host) for host in hosts),
        _check_remaining(facts, hosts),
        *_check_replicas(facts, hosts),
    )


def unmet_checks(checks: Iterable[Check], *, force: bool) -> tuple[Check, ...]:
    return tuple(check for check in checks if not check.is_met and not (force and check.kind in FORCIBLE))


def _check_member(facts: FailoverFacts, host: HostId) -> Check:
    node, name = facts.snapshot.nodes.get(host), facts.name(host)
    if node is None or node.state in (NodeState.NONE, NodeState.LEFT):
        return Check(CheckKind.MEMBER, False, f"{name} is not in the ring ({'no row' if node is None else node.state})")
    if host == facts.leader:
        return Check(
            CheckKind.MEMBER, False, f"{name} is the leader; transfer that first: ebla group0 transfer-leader HOST"
        )
    return Check(CheckKind.MEMBER, True, f"{name} is a member ({node.state}) and not the leader")


def _check_down(facts: FailoverFacts, host: HostId) -> Check:
    down, voters = facts.opinions.down(host), facts.opinions.voters
    said = ", ".join(f"{facts.name(one.voter)} ({one.for_ms // 1000} s)" for one in down)
    text = f"{facts.name(host)} is down for {len(down)} of {len(voters)} voters{': ' if said else ''}{said}"
    if facts.opinions.is_down(host):
        return Check(CheckKind.DOWN, True, text)
    return Check(CheckKind.DOWN, False, f"{text}; {facts.opinions.majority} are needed")


def _check_remaining(facts: FailoverFacts, hosts: tuple[HostId, ...]) -> Check:
    remaining = [voter for voter in facts.opinions.voters if voter not in hosts]
    up = [voter for voter in remaining if voter in facts.opinions.answered and not facts.opinions.is_down(voter)]
    needed = len(remaining) // 2 + 1
    text = f"{len(up)} of {len(remaining)} remaining voters are up"
    if len(up) < needed:
        missing = facts.names(voter for voter in remaining if voter not in up)
        return Check(CheckKind.VOTERS, False, f"{text}, and a majority is needed; missing: {missing or 'any voter'}")
    return Check(CheckKind.VOTERS, True, f"{text}; after this the quorum tolerates {len(up) - needed} more failures")


def _check_replicas(facts: FailoverFacts, hosts: tuple[HostId, ...]) -> tuple[Check, ...]:
    tables = tables_without_replica(facts.snapshot, hosts, _gone(facts, hosts))
    if not tables:
        return (Check(CheckKind.REPLICAS, True, "every table keeps a live replica"),)
    return tuple(
        Check(CheckKind.REPLICAS, False, f"{name} would lose its last live replica (--force excludes the node anyway)")
        for name in tables
    )


def losses_of_exclusion(facts: FailoverFacts, hosts: tuple[HostId, ...]) -> tuple[KeyspaceLosses, ...]:
    """What lacks live replicas once these hosts are excluded."""
    return keyspace_losses(facts.snapshot, _gone(facts, hosts))


def _gone(facts: FailoverFacts, hosts: tuple[HostId, ...]) -> tuple[HostId, ...]:
    down = (host for host in facts.snapshot.nodes if facts.opinions.is_down(host))
    return tuple(sorted({*hosts, *facts.snapshot.excluded_hosts, *down}))


def tables_without_replica(snapshot: Snapshot, hosts: Iterable[HostId], gone: Collection[HostId]) -> tuple[str, ...]:
    """The tables with a range on these hosts that has all its replicas on hosts that are gone, sorted by name."""
    sets, found = ReplicaSets(snapshot), []
    for table in snapshot.tables.values():
        if snapshot.on_tablets(table.id) and table.id not in snapshot.tablets:
            continue
        replicas = sets.of(table.id)
        ends = (span.end for host in hosts for span in replicas.read_ranges_of(host))
        if any(all(replica.host in gone for replica in replicas.reading(end)) for end in ends):
            found.append(table.full_name)
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """What the leader knows of a host that is to be included again."""

    is_up: bool
    behind_entries: int | None
    """How far its log is behind the leader's; None: not known."""
    is_leased: bool
    """Whether this leader holds its lease. Otherwise activities that need it would wait for it after the recovery."""


def check_inclusion(facts: FailoverFacts, host: HostId, recovery: RecoveryFacts) -> tuple[Check, ...]:
    """What must hold before this host is included; the topology checks rows, transitions and requests itself."""
    name, behind = facts.name(host), recovery.behind_entries
    lag = "an unknown number of entries" if behind is None else f"{behind} entries"
    is_excluded = host in facts.snapshot.excluded_hosts
    return (
        _recovery_check(is_excluded, f"{name} is excluded", f"{name} is not excluded"),
        _recovery_check(recovery.is_up, f"{name} is up", f"{name} is down"),
        _recovery_check(
            behind is not None and behind <= LAG_ENTRIES_MAX,
            f"{name} is {lag} behind the leader",
            f"{name} is {lag} behind the leader, and {LAG_ENTRIES_MAX} are allowed",
        ),
        _recovery_check(
            recovery.is_leased,
            f"{name} has granted its lease to this leader",
            f"{name} has not granted its lease to this leader yet",
        ),
    )


def _recovery_check(is_met: bool, text: str, otherwise: str) -> Check:
    return Check(CheckKind.RECOVERY, is_met, text if is_met else otherwise)
