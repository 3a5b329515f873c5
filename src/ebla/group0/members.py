"""The members of group 0: their roles, their numbers in the Raft core, and which membership changes are legal.

Legality is checked where changes are applied, so that every node decides alike.
"""

import enum
import uuid
from collections.abc import Mapping

import msgspec

from ebla.model.identity import Address, HostId
from ebla.model.transaction import MEMBERS_PREFIX


class MemberRole(enum.StrEnum):
    """A member's role in group 0. A removed host keeps its entry forever, so that it can never come back."""

    VOTER = "voter"
    LEARNER = "learner"
    REMOVED = "removed"


RELEASED_ADDRESS = Address("", 0)
"""Of a member whose address the node has taken that replaces it. Nobody connects to it."""


class Member(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One host of group 0, as stored under `members/<host id>`."""

    host: HostId
    role: MemberRole
    address: Address
    datacenter: str = "dc1"
    rack: str = "rack1"
    features: tuple[str, ...] = ()
    release: str = ""
    join_id: uuid.UUID | None = None
    """Drawn once by the joining node. The same host with another one has lost its data."""

    @property
    def present(self) -> bool:
        return self.role is not MemberRole.REMOVED

    @property
    def listens(self) -> bool:
        """Whether it is to be found at its address."""
        return self.present and self.address != RELEASED_ADDRESS


def peer_number(host: HostId) -> int:
    """The host's number in the Raft core: a positive 63-bit part of its id, the same on every node, forever.

    A change that would give two hosts the same number is rejected when it is applied.
    """
    return (host.int >> 65) | 1


def member_key(host: HostId) -> str:
    return f"{MEMBERS_PREFIX}{host}"


def why_illegal(known: Mapping[str, Member], members: tuple[Member, ...]) -> str | None:
    """Why the change is rejected; None if it is legal."""
    if not members:
        return "a membership change names no host"
    if len({member.host for member in members}) != len(members):
        return "a membership change names a host twice"
    after = dict(known)
    for member in members:
        if reason := _why_illegal_one(_with_released(known, members), member):
            return reason
        after[member_key(member.host)] = member
    if not any(member.role is MemberRole.VOTER for member in after.values()):
        return "the change would leave group 0 without a voter"
    return None


def _with_released(known: Mapping[str, Member], members: tuple[Member, ...]) -> Mapping[str, Member]:
    """A newcomer may take an address that the same change releases."""
    released = {member_key(one.host): one for one in members if one.address == RELEASED_ADDRESS}
    return {**known, **released} if released else known


def _why_illegal_one(known: Mapping[str, Member], member: Member) -> str | None:
    before = known.get(member_key(member.host))
    if before is None:
        if member.role is MemberRole.REMOVED:
            return f"{member.host} is not a member"
        return _why_illegal_newcomer(known, member)
    if before.role is MemberRole.REMOVED and member.role is not MemberRole.REMOVED:
        return f"{member.host} was removed and can never come back; start the node with a new, empty folder"
    return None


def _why_illegal_newcomer(known: Mapping[str, Member], member: Member) -> str | None:
    number = peer_number(member.host)
    for other in known.values():
        if peer_number(other.host) == number:
            return f"{member.host} has the Raft number of {other.host}; start it with a new, empty folder"
        if other.present and other.address == member.address:
            return (
                f"{member.address} is the address of member {other.host}; if that node lost its folder, "
                f"remove it first: ebla group0 remove {other.host}"
            )
    return None
