"""Which nodes requests need not be sent to, by this node's own opinion. Pure."""

from collections.abc import Iterable, Sequence

from ebla.control.liveness.failure_detector import PeerLiveness, PeerState
from ebla.group0.members import Member
from ebla.model.identity import HostId


def down_hosts(
    members: Iterable[Member], opinions: Sequence[PeerLiveness], own: HostId, watched_since_ms: int
) -> tuple[HostId, ...]:
    """Sorted. A peer that is watched since a later moment than `watched_since_ms` and was never heard counts as up:
    control has just started or the peer has just come, and nobody is given up before he had the time to answer."""
    up = {opinion.host for opinion in opinions if opinion.state is PeerState.UP}
    given_up = {
        opinion.peer for opinion in opinions if opinion.heard_ms is not None or opinion.since_ms <= watched_since_ms
    }
    down = (
        member.host
        for member in members
        if member.host != own and member.host not in up and (not member.present or member.address in given_up)
    )
    return tuple(sorted(down))
