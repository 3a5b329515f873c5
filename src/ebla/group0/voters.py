"""Which members should vote: an odd number, at most five, spread over datacenters and racks, live ones first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ebla.group0.members import Member, MemberRole
from ebla.model.identity import HostId
from ebla.topology.states import JOINING_STATES, NodeState, TransitionState

VOTERS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterCandidate:
    member: Member
    alive: bool
    excluded: bool = False
    """It takes no seat, but counts in the number of seats."""
    unsettled: bool = False
    """`is_unsettled`: it takes no seat and does not count either."""


def is_unsettled(state: NodeState, transition: TransitionState | None) -> bool:
    """Not in the ring yet: its join may still be rolled back, and if it counted, the loss of a node that has never
    served would cost a majority its margin. Or on its way out with no way back. Before that, a node that leaves stays a
    candidate, and so does one that is rebuilt: a long operation must not shrink the vote."""
    if state in (NodeState.DECOMMISSIONING, NodeState.REMOVING):
        return transition in (TransitionState.WRITE_BOTH_READ_NEW, TransitionState.LEFT_TOKEN_RING)
    return state in JOINING_STATES


def choose_voters(candidates: Iterable[VoterCandidate], voters_max: int = VOTERS_MAX) -> tuple[HostId, ...]:
    """The hosts that should vote, sorted.

    Greedy, one voter after another: a live host before a dead one, then the datacenter with the fewest voters, then the
    rack with the fewest, then a host that votes already (to avoid pointless changes), then the lowest id. Of two
    datacenters of equal size one must hold the majority; of three or more none does.
    """
    assert voters_max % 2 == 1, "an even number of voters tolerates no more failures than one less"
    settled = (one for one in candidates if one.member.present and not one.unsettled)
    present = sorted(settled, key=lambda one: one.member.host)
    pool = [one for one in present if not one.excluded]
    # A seat without a candidate stays empty. If the number of seats shrank with an exclusion, it would demote a live
    # voter: of three nodes with one excluded, one would be left to vote.
    count = min(_voter_count(len(present), voters_max), len(pool))
    chosen: list[VoterCandidate] = []
    while len(chosen) < count:
        datacenters = Counter(one.member.datacenter for one in chosen)
        racks = Counter((one.member.datacenter, one.member.rack) for one in chosen)
        best = min((one for one in pool if one not in chosen), key=lambda one: _cost(one, datacenters, racks))
        chosen.append(best)
    assert len(pool) < len(present) or not pool or len(chosen) % 2 == 1, "the number of voters is odd"
    return tuple(sorted(one.member.host for one in chosen))


def _voter_count(members: int, voters_max: int) -> int:
    """Odd, within the limit. Counts all members, not only live ones: if the number of voters shrank while a node is
    down, the loss of the next one would be fatal."""
    count = min(members, voters_max)
    return count if count % 2 == 1 else max(count - 1, 0)


def _cost(
    one: VoterCandidate, datacenters: Mapping[str, int], racks: Mapping[tuple[str, str], int]
) -> tuple[bool, int, int, bool, int]:
    member = one.member
    return (
        not one.alive,
        datacenters[member.datacenter],
        racks[(member.datacenter, member.rack)],
        member.role is not MemberRole.VOTER,
        member.host.int,
    )
