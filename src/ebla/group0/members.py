"""Who belongs to group 0, in which role, and how a host is numbered in its Raft core."""

import enum
import uuid

import msgspec

from ebla.model.identity import Address, HostId


class MemberRole(enum.StrEnum):
    """A member's say in group 0. A removed host keeps its entry for ever, so that it can never come back."""

    VOTER = "voter"
    LEARNER = "learner"
    REMOVED = "removed"


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
    """Drawn once by the node that asked to be taken in. The same host with another one has lost what it held."""

    @property
    def present(self) -> bool:
        return self.role is not MemberRole.REMOVED


def peer_number(host: HostId) -> int:
    """The host's number in the Raft core: a positive 63-bit part of its id, the same on every node and for ever.

    A change that would give two hosts one number is refused when it is applied.
    """
    return (host.int >> 65) | 1
