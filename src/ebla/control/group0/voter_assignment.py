"""The leader keeps the right members voting: `group0/voters.py` decides which, and changes are made one at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from ebla.control.group0.client import Group0Client
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.voters import VoterCandidate, choose_voters
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.raft.core import RaftCore
from ebla.raft.messages import PeerId
from ebla.raft.roles import Leader

CHECK_MS = 1_000
CHANGE_DEADLINE_MS = 5_000
LAG_ENTRIES_MAX = 64
"""A learner within this distance of the leader has caught up: a busy group commits as much in a few rounds."""

Alive = Callable[[HostId], bool]

ChangeVoters = Callable[[tuple[HostId, ...], Callable[[], Awaitable[None]]], Awaitable[None]]
"""Makes a change under the leases of the present voters and of those that it leads to. Raises `EblaError`."""


def next_voter_change(members: Mapping[str, Member], core: RaftCore, alive: Alive) -> tuple[Member, ...]:
    """The members whose role should change, with their new role. Empty if nothing should change now.

    A learner that has not caught up is not promoted: it would count towards the quorum and delay every commit until it
    has. A voter is demoted only in the same change that promotes its replacement.
    """
    role = core.role
    if not isinstance(role, Leader) or core.membership.is_joint:
        return ()
    present = [member for member in members.values() if member.present]
    wanted = choose_voters(VoterCandidate(member, alive(member.host)) for member in present)
    ready = tuple(member for member in present if member.host in wanted and _may_vote(member, role, core))
    promoted = tuple(member for member in ready if member.role is MemberRole.LEARNER)
    surplus = [member for member in present if member.role is MemberRole.VOTER and member.host not in wanted]
    voters_after = sum(member.role is MemberRole.VOTER for member in present) + len(promoted)
    demoted = surplus[: max(0, voters_after - len(wanted))]
    return (
        *(msgspec.structs.replace(member, role=MemberRole.VOTER) for member in promoted),
        *(msgspec.structs.replace(member, role=MemberRole.LEARNER) for member in demoted),
    )


def _may_vote(member: Member, role: Leader, core: RaftCore) -> bool:
    if member.role is MemberRole.VOTER:
        return True
    progress = role.progress.get(PeerId(peer_number(member.host)))
    return progress is not None and progress.match + LAG_ENTRIES_MAX >= core.last_index and progress.match > 0


async def assign_voters(
    client: Group0Client, core: RaftCore, machine: Group0StateMachine, alive: Alive, under_leases: ChangeVoters
) -> None:
    """Until cancelled. Does nothing unless this node leads."""

    async def change() -> None:
        """Decided again: the members may have changed while the leases were collected."""
        members = next_voter_change(machine.store.members, core, alive)
        if members:
            await client.change_members(members, None, CHANGE_DEADLINE_MS)

    while True:
        await asyncio.sleep(CHECK_MS / 1000)
        wanted = next_voter_change(machine.store.members, core, alive)
        if wanted:
            try:
                await under_leases(voters_after(machine.store.members, wanted), change)
            except EblaError:
                continue  # the next leader, or this one, tries again in a second


def voters_after(members: Mapping[str, Member], change: tuple[Member, ...]) -> tuple[HostId, ...]:
    after = {member.host: member.role for member in (*members.values(), *change)}
    return tuple(sorted(host for host, role in after.items() if role is MemberRole.VOTER))
