"""Which changes of the members are legal, decided where they are applied, so that every node decides alike."""

from collections.abc import Mapping

from ebla.group0.members import Member, MemberRole, peer_number
from ebla.model.identity import HostId

MEMBERS_PREFIX = "members/"


def member_key(host: HostId) -> str:
    return f"{MEMBERS_PREFIX}{host}"


def why_illegal(known: Mapping[str, Member], wanted: tuple[Member, ...]) -> str | None:
    """Why the change is refused, in words; None where it is legal."""
    if not wanted:
        return "a membership change names no host"
    if len({member.host for member in wanted}) != len(wanted):
        return "a membership change names a host twice"
    after = dict(known)
    for member in wanted:
        if reason := _refuse_one(known, member):
            return reason
        after[member_key(member.host)] = member
    if not any(member.role is MemberRole.VOTER for member in after.values()):
        return "the change would leave group 0 without a voter"
    return None


def _refuse_one(known: Mapping[str, Member], member: Member) -> str | None:
    before = known.get(member_key(member.host))
    if before is None:
        if member.role is MemberRole.REMOVED:
            return f"{member.host} is not a member"
        return _refuse_newcomer(known, member)
    if before.role is MemberRole.REMOVED and member.role is not MemberRole.REMOVED:
        return f"{member.host} was removed and can never come back; start the node with a new, empty folder"
    return None


def _refuse_newcomer(known: Mapping[str, Member], member: Member) -> str | None:
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
