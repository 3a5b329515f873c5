"""Which peers are down: those that fell silent or left, not those that had no time to answer yet."""

import uuid

import msgspec

from ebla.control.liveness.failure_detector import PeerLiveness, PeerState, down_hosts
from ebla.group0.members import RELEASED_ADDRESS, Member, MemberRole
from ebla.model.identity import Address, HostId

OWN, UP, SILENT, FRESH, NEVER, LEFT, UNWATCHED = (HostId(uuid.UUID(int=number)) for number in range(1, 8))


def address(host: HostId) -> Address:
    return Address(f"10.0.0.{host.int}", 7000)


def member(host: HostId, role: MemberRole = MemberRole.VOTER) -> Member:
    return Member(host=host, role=role, address=address(host))


def test_silent_ones_and_those_who_left_are_down() -> None:
    members = [*(member(host) for host in (OWN, UP, SILENT, FRESH, NEVER, UNWATCHED)), member(LEFT, MemberRole.REMOVED)]
    opinions = (
        PeerLiveness(peer=address(UP), state=PeerState.UP, since_ms=900, host=UP, heard_ms=990),
        PeerLiveness(peer=address(SILENT), state=PeerState.DOWN, since_ms=900, host=SILENT, heard_ms=500),
        PeerLiveness(peer=address(FRESH), state=PeerState.DOWN, since_ms=800),
        PeerLiveness(peer=address(NEVER), state=PeerState.DOWN, since_ms=100),
    )
    assert down_hosts(members, opinions, OWN, watched_since_ms=700) == (SILENT, NEVER, LEFT)


def test_another_host_at_the_address_does_not_make_up_for_its_owner() -> None:
    opinions = (PeerLiveness(peer=address(SILENT), state=PeerState.UP, since_ms=900, host=UP, heard_ms=990),)
    assert down_hosts([member(SILENT), member(UP)], opinions, OWN, watched_since_ms=700) == (SILENT,)


def test_a_member_whose_address_was_released_is_down() -> None:
    """The node that replaces it answers there, and nobody watches the old host any more."""
    released = msgspec.structs.replace(member(SILENT), address=RELEASED_ADDRESS)
    new = msgspec.structs.replace(member(UP), address=address(SILENT))
    opinions = (PeerLiveness(peer=address(SILENT), state=PeerState.UP, since_ms=900, host=UP, heard_ms=990),)
    assert down_hosts([released, new], opinions, OWN, watched_since_ms=0) == (SILENT,)
