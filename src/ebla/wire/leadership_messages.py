"""What a node tells of its leases and activities, for `ebla leases` and `ebla activities`."""

import msgspec

from ebla.leadership.messages import LeaseGrant, LeaseState
from ebla.model.identity import HostId


class LeadershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """The view of this node, from its own state alone."""


class HeldLeaseReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One node's lease as the leader sees it."""

    host: HostId
    is_held: bool
    rtt_us: int | None
    timeout_ms: int
    renewed_ms_ago: int | None
    trouble: str = ""
    """Why it is not held, or the last refusal."""


class ActivityReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    domain: str
    quorum: str
    state: str
    age_ms: int
    waits_for: str = ""
    leases_held: int = 0
    leases_needed: int = 0
    ending_ms: int = 0
    """Since it was cancelled, while it has not ended."""


class EndedActivityReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    domain: str
    reason: str
    ran_ms: int
    ended_ms_ago: int


class LeadershipReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    address: str
    state: LeaseState
    lease: LeaseGrant | None
    left_ms: int
    on_disk_ms: int
    leads: bool
    term: int
    held: tuple[HeldLeaseReport, ...] = ()
    """On the leader: the leases of all present members."""
    voters: tuple[tuple[HostId, ...], ...] = ()
    lease_id: str = ""
    activities: tuple[ActivityReport, ...] = ()
    ended: tuple[EndedActivityReport, ...] = ()
    slow_turns: int = 0
    longest_turn_ms: int = 0


class ClusterLeadershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """The reports of all members that answer this node in time."""


class SilentNode(msgspec.Struct, frozen=True, array_like=True):
    host: HostId
    address: str
    cause: str


class ClusterLeadershipAnswer(msgspec.Struct, frozen=True, array_like=True):
    reports: tuple[LeadershipReport, ...]
    silent: tuple[SilentNode, ...] = ()
