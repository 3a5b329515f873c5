"""Who is skipped: peers that fell silent or left, not those who had no time to answer yet."""

import uuid

from ebla.control.down_hosts import down_hosts
from ebla.control.failure_detector import Opinion, Standing
from ebla.group0.members import Member, Role
from ebla.model.identity import Address, HostId

OWN, UP, SILENT, FRESH, NEVER, LEFT, UNWATCHED = (HostId(uuid.UUID(int=number)) for number in range(1, 8))


def address(host: HostId) -> Address:
    return Address(f"10.0.0.{host.int}", 7000)


def member(host: HostId, role: Role = Role.VOTER) -> Member:
    return Member(host, role, address(host))


def test_silent_ones_and_those_who_left_are_down() -> None:
    members = [*(member(host) for host in (OWN, UP, SILENT, FRESH, NEVER, UNWATCHED)), member(LEFT, Role.REMOVED)]
    opinions = (
        Opinion(address(UP), Standing.UP, 900, UP, heard_ms=990),
        Opinion(address(SILENT), Standing.DOWN, 900, SILENT, heard_ms=500),
        Opinion(address(FRESH), Standing.DOWN, 800),
        Opinion(address(NEVER), Standing.DOWN, 100),
    )
    assert down_hosts(members, opinions, OWN, watched_since_ms=700) == (SILENT, NEVER, LEFT)


def test_another_host_at_the_address_does_not_make_up_for_its_owner() -> None:
    opinions = (Opinion(address(SILENT), Standing.UP, 900, UP, heard_ms=990),)
    assert down_hosts([member(SILENT), member(UP)], opinions, OWN, watched_since_ms=700) == (SILENT,)
