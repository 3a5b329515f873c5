"""The leader's care for the vote: who should be a voter is decided in `group0/voters.py`, one change at a time."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from ebla.control.group0.client import Group0Client
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.voters import VoterCandidate, choose_voters
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.raft.core import RaftCore
from ebla.raft.messages import PeerId
from ebla.raft.roles import Leader

LOOK_MS = 1_000
CHANGE_DEADLINE_MS = 5_000
LAG_ENTRIES_MAX = 64
"""A learner this close to the leader is caught up: it is within what a busy group commits in a few rounds."""

Alive = Callable[[HostId], bool]


def next_voter_change(members: Mapping[str, Member], core: RaftCore, alive: Alive) -> tuple[Member, ...]:
    """The members that should have another role, as they should be. Empty where nothing should change now.

    A learner that is not caught up is not promoted: it would count towards the quorum and hold up every commit until
    it is. A voter gives up its seat only in the very change that fills it again.
    """
    role = core.role
    if not isinstance(role, Leader) or core.membership.is_joint:
        return ()
    present = [member for member in members.values() if member.present]
    wanted = choose_voters(VoterCandidate(member, alive(member.host)) for member in present)
    ready = tuple(member for member in present if member.host in wanted and _may_vote(member, role, core))
    promoted = tuple(member for member in ready if member.role is MemberRole.LEARNER)
    surplus = [member for member in present if member.role is MemberRole.VOTER and member.host not in wanted]
    seats_after = sum(member.role is MemberRole.VOTER for member in present) + len(promoted)
    demoted = surplus[: max(0, seats_after - len(wanted))]
    return (
        *(msgspec.structs.replace(member, role=MemberRole.VOTER) for member in promoted),
        *(msgspec.structs.replace(member, role=MemberRole.LEARNER) for member in demoted),
    )


def _may_vote(member: Member, role: Leader, core: RaftCore) -> bool:
    if member.role is MemberRole.VOTER:
        return True
    progress = role.progress.get(PeerId(peer_number(member.host)))
    return progress is not None and progress.match + LAG_ENTRIES_MAX >= core.last_index and progress.match > 0


class VoterAssigner:
    def __init__(self, calls: Group0Client, core: RaftCore, members: Callable[[], Mapping[str, Member]]) -> None:
        self._calls = calls
        self._core = core
        self._members = members

    async def run(self, alive: Alive) -> None:
        """Until cancelled. Does nothing where this node does not lead."""
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            change = next_voter_change(self._members(), self._core, alive)
            if change:
                try:
                    await self._calls.change_members(change, None, CHANGE_DEADLINE_MS)
                except EblaError:
                    continue  # looked at again in a second, by whoever leads then
