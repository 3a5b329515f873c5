"""Messages of the verbs of failover."""

import msgspec

from ebla.model.identity import HostId
from ebla.model.opinions import Opinion


class OpinionsRequest(msgspec.Struct, frozen=True, array_like=True):
    """What the failure detector of this node believes of each member."""


class OpinionsAnswer(msgspec.Struct, frozen=True, array_like=True):
    opinions: tuple[Opinion, ...]


class FailoverCheckRequest(msgspec.Struct, frozen=True, array_like=True):
    """Whether these hosts could be excluded now. Changes nothing."""

    hosts: tuple[HostId, ...]


class CheckReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    is_met: bool
    text: str
    can_force: bool


class FailoverCheckAnswer(msgspec.Struct, frozen=True, array_like=True):
    checks: tuple[CheckReport, ...]
    losses: tuple[str, ...] = ()
    """Per keyspace, how many ranges would have fewer live replicas than a quorum, and how many none."""


class FailoverStatusRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Answered by the leader, if one is known."""

    reset: bool = False
    """Set the count of automatic failovers to 0 first."""
    forward: bool = True


class ExclusionReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    address: str
    since_ms: int
    """Wall time."""
    by: str
    """The address of the leader that excluded it."""
    is_automatic: bool
    is_forced: bool
    opinions: tuple[str, ...]


class DownReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A host that is down and not excluded."""

    host: HostId
    address: str
    why: str
    text: str
    remaining_ms: int


class FailoverStatusAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    is_leader: bool
    """False: no leader is known, and only what is in group 0 is shown."""
    is_enabled: bool
    after_ms: int
    max_count: int
    count: int
    now_ms: int
    """Wall time of the node that answers."""
    excluded: tuple[ExclusionReport, ...] = ()
    down: tuple[DownReport, ...] = ()
