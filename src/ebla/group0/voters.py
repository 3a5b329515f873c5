"""Which members should vote: at most five, an odd number, spread over datacenters and racks, living ones first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ebla.group0.members import Member, MemberRole
from ebla.model.identity import HostId

VOTERS_MAX = 5


@dataclass(frozen=True, slots=True)
class VoterCandidate:
    member: Member
    alive: bool


def choose_voters(candidates: Iterable[VoterCandidate], voters_max: int = VOTERS_MAX) -> tuple[HostId, ...]:
    """The hosts that should vote, sorted.

    Greedy, one seat after another: a living host before a dead one, then the datacenter with the fewest seats, then
    the rack with the fewest, then one that votes already (a change that gains nothing is not made), then the lowest
    id. With two datacenters of equal size one of them must hold the majority; with three or more none does.
    """
    assert voters_max % 2 == 1, "an even number of voters adds a way to fail and no way to survive"
    pool = sorted((one for one in candidates if one.member.present), key=lambda one: one.member.host)
    seats = _seats(len(pool), voters_max)
    chosen: list[VoterCandidate] = []
    while len(chosen) < seats:
        datacenters = Counter(one.member.datacenter for one in chosen)
        racks = Counter((one.member.datacenter, one.member.rack) for one in chosen)
        best = min((one for one in pool if one not in chosen), key=lambda one: _cost(one, datacenters, racks))
        chosen.append(best)
    return tuple(sorted(one.member.host for one in chosen))


def _seats(members: int, voters_max: int) -> int:
    """Odd, within the bound. Counted by members, not by living ones: shrinking the vote because a node is down for a
    while would make the loss of the next one fatal."""
    wanted = min(members, voters_max)
    return wanted if wanted % 2 == 1 else max(wanted - 1, 0)


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
