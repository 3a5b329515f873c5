"""Which members vote."""

import uuid

import pytest

from ebla.group0.members import Member, MemberRole
from ebla.group0.voters import VoterCandidate, choose_voters
from ebla.model.identity import Address, HostId


def candidate(
    number: int,
    place: str = "dc1/r1",
    *,
    alive: bool = True,
    votes: bool = False,
    excluded: bool = False,
    unsettled: bool = False,
) -> VoterCandidate:
    datacenter, rack = place.split("/")
    role = MemberRole.VOTER if votes else MemberRole.LEARNER
    return VoterCandidate(
        member=Member(
            host=HostId(uuid.UUID(int=number)),
            role=role,
            address=Address("h", number),
            datacenter=datacenter,
            rack=rack,
        ),
        alive=alive,
        excluded=excluded,
        unsettled=unsettled,
    )


def chosen(*candidates: VoterCandidate) -> list[int]:
    return [host.int for host in choose_voters(candidates)]


@pytest.mark.parametrize(("members", "seats"), [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_an_odd_number_of_at_most_five(members: int, seats: int) -> None:
    assert len(chosen(*(candidate(number) for number in range(1, members + 1)))) == seats


@pytest.mark.parametrize(("settled", "joining", "seats"), [(1, 2, 1), (2, 3, 1), (3, 1, 3), (4, 5, 3), (5, 1, 5)])
def test_a_joining_node_takes_no_seat_and_does_not_count(settled: int, joining: int, seats: int) -> None:
    members = [candidate(number) for number in range(10, 10 + settled)]
    voters = chosen(
        *members, *(candidate(number, f"dc2/r{number}", unsettled=True) for number in range(1, joining + 1))
    )
    assert len(voters) == seats
    assert min(voters) >= 10


def test_racks_share_the_seats() -> None:
    pool = [candidate(number, f"dc1/r{number % 3}") for number in range(1, 10)]
    racks = [next(one.member.rack for one in pool if one.member.host.int == number) for number in chosen(*pool)]
    assert max(racks.count(rack) for rack in racks) == 2


def test_no_datacenter_of_three_holds_a_majority() -> None:
    pool = [candidate(number, f"dc{min(number, 3)}/r{number}") for number in range(1, 10)]
    voters = chosen(*pool)
    homes = [next(one.member.datacenter for one in pool if one.member.host.int == number) for number in voters]
    assert max(homes.count(home) for home in homes) <= 3
    assert {1, 2} <= set(voters)


def test_a_dead_voter_is_replaced_only_when_a_living_one_can_take_its_seat() -> None:
    three = [candidate(1, votes=True, alive=False), candidate(2, votes=True), candidate(3, votes=True)]
    assert chosen(*three) == [1, 2, 3]
    assert chosen(*three, candidate(4)) == [2, 3, 4]


def test_a_voter_keeps_its_seat_where_nothing_is_gained() -> None:
    assert chosen(candidate(1), candidate(2, votes=True), candidate(3, votes=True), candidate(4, votes=True)) == [
        2,
        3,
        4,
    ]


def test_removed_members_do_not_vote() -> None:
    gone = VoterCandidate(
        member=Member(host=HostId(uuid.UUID(int=1)), role=MemberRole.REMOVED, address=Address("h", 1)), alive=True
    )
    assert chosen(gone, candidate(2)) == [2]


def test_an_excluded_host_takes_no_seat_and_its_seat_stays_empty() -> None:
    """Of three nodes two go on voting. With the excluded one left out of the count, one would be left."""
    three = [candidate(1, excluded=True), candidate(2, votes=True), candidate(3, votes=True)]
    assert chosen(*three) == [2, 3]
    assert chosen(*three, candidate(4)) == [2, 3, 4]
    assert chosen(*three, candidate(4), candidate(5)) == [2, 3, 4, 5], "of five seats one is empty"
