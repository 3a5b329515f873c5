"""The streams of a ring change: per token range, its sources and destinations."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.model.token import Token, TokenRange
from ebla.topology.routing.replication_strategies import RingReplicas


@dataclass(frozen=True, slots=True)
class RangeStream:
    """Each destination receives, for this range, the merged rows of all sources."""

    range: TokenRange
    sources: tuple[HostId, ...]
    destinations: tuple[HostId, ...]


def range_streams(previous: RingReplicas, after: RingReplicas, given_up: Collection[HostId]) -> Iterator[RangeStream]:
    """In ring order, the range that wraps around first. Ranges without a destination are left out."""
    bounds = sorted({*previous.ring.tokens, *after.ring.tokens})
    if not bounds:
        return
    start = bounds[-1]
    for end in bounds:
        before = previous.hosts_of(end)
        later = after.hosts_of(end)
        gaining = tuple(host for host in later if host not in before)
        if gaining:
            yield RangeStream(TokenRange(Token(start), Token(end)), stream_sources(before, later, given_up), gaining)
        start = end


def stream_sources(
    before: tuple[HostId, ...], later: tuple[HostId, ...], given_up: Collection[HostId]
) -> tuple[HostId, ...]:
    """The host that loses the range, if it is alive: an exact copy replaces it, so quorums stay intact. If it is given
    up, or no host loses the range, every remaining replica, because any one of them may lack a write that two others
    acknowledged."""
    losing = tuple(host for host in before if host not in later)
    if losing and not any(host in given_up for host in losing):
        return losing
    return tuple(host for host in before if host not in losing and host not in given_up)
