"""What a voter says of the others."""

import uuid

from ebla.control.liveness.failure_detector import PeerLiveness, PeerState, opinions_of
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, HostId
from ebla.model.opinions import OpinionState

SILENCE_MS = 3_000
NOW_MS = 100_000


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number))


def member(number: int, role: MemberRole = MemberRole.VOTER) -> Member:
    return Member(host=host(number), role=role, address=Address(f"10.0.0.{number}", 7000))


def peer(number: int, state: PeerState, since_ms: int, *, is_heard: bool = True) -> PeerLiveness:
    return PeerLiveness(
        peer=Address(f"10.0.0.{number}", 7000),
        state=state,
        since_ms=since_ms,
        host=host(number) if is_heard else None,
        heard_ms=since_ms if is_heard else None,
    )


def test_each_present_member_has_an_opinion_with_its_duration() -> None:
    members = [member(number) for number in (1, 2, 3, 4, 5)] + [member(6, MemberRole.REMOVED)]
    peers = [
        peer(2, PeerState.UP, 60_000),
        peer(3, PeerState.DOWN, 70_000),
        peer(4, PeerState.DOWN, NOW_MS - SILENCE_MS, is_heard=False),
        peer(5, PeerState.DOWN, NOW_MS - SILENCE_MS + 1, is_heard=False),
    ]
    found = opinions_of(members, peers, host(1), NOW_MS, SILENCE_MS)
    assert [(one.host.int, one.state, one.for_ms) for one in found] == [
        (1, OpinionState.UP, 0),
        (2, OpinionState.UP, 40_000),
        (3, OpinionState.DOWN, 30_000),
        (4, OpinionState.DOWN, SILENCE_MS),
        (5, OpinionState.NONE, 0),
    ]
    assert {one.voter for one in found} == {host(1)}
