"""What a change of the ring moves: per range of tokens, from whom to whom."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.model.token import Token, TokenRange
from ebla.topology.routing.replication_strategies import RingReplicas


@dataclass(frozen=True, slots=True)
class RangeStream:
    """Each destination gets, for this range, whatever any of the sources has."""

    range: TokenRange
    sources: tuple[HostId, ...]
    destinations: tuple[HostId, ...]


def range_streams(previous: RingReplicas, after: RingReplicas, given_up: Collection[HostId]) -> Iterator[RangeStream]:
    """In ring order, the range that goes over the top first. Ranges nobody gets are left out."""
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
    """The host that loses the range, if it is there: its copy takes its place, and quorums stay quorums. Where it is
    given up, or nobody loses the range, every remaining replica, since any one of them may lack a write that two
    others acknowledged."""
    losing = tuple(host for host in before if host not in later)
    if losing and not any(host in given_up for host in losing):
        return losing
    return tuple(host for host in before if host not in losing and host not in given_up)
