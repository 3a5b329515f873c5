"""The leader keeps the right members voting: `group0/voters.py` decides which, and changes are made one at a time."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from ebla.control.group0.member_features import topology_state, unsettled_hosts
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.failover import LAG_ENTRIES_MAX
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.operation_table import excluded_hosts
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, EndedOperation, Operation, OperationKind
from ebla.group0.voters import VoterCandidate, choose_voters
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.ports.rng import Rng
from ebla.raft.core import RaftCore
from ebla.raft.messages import PeerId
from ebla.raft.roles import Leader

CHECK_MS = 1_000
Alive = Callable[[HostId], bool]


class RunsOperations(Protocol):
    """Both raise `EblaError`."""

    async def request(self, operation: Operation) -> EndedOperation | None:
        """At the leader, and at the next one if that changes."""

    async def run_here(self, operation: Operation) -> EndedOperation | None:
        """If this node leads. For what the leader has decided itself: the next leader makes its own decision."""


def next_voter_change(
    members: Mapping[str, Member],
    core: RaftCore,
    alive: Alive,
    excluded: Collection[HostId] = (),
    unsettled: Collection[HostId] = (),
) -> tuple[Member, ...]:
    """The members whose role should change, with their new role. Empty if nothing should change now.

    A learner that has not caught up is not promoted: it would count towards the quorum and delay every commit until it
    has. Neither is one that is down, which the choice may name for the seat of an excluded host. A voter is demoted
    only in the same change that promotes its replacement, unless it must not vote at all: it is excluded, or about to
    leave, and its replacement may never catch up.
    """
    role = core.role
    if not isinstance(role, Leader) or core.membership.is_joint:
        return ()
    present = [member for member in members.values() if member.present]
    wanted = choose_voters(
        VoterCandidate(
            member=member,
            alive=alive(member.host),
            excluded=member.host in excluded,
            unsettled=member.host in unsettled,
        )
        for member in present
    )
    ready = tuple(member for member in present if member.host in wanted and _may_vote(member, role, core))
    promoted = tuple(member for member in ready if member.role is MemberRole.LEARNER and alive(member.host))
    surplus = [member for member in present if member.role is MemberRole.VOTER and member.host not in wanted]
    barred = [member for member in surplus if member.host in excluded or member.host in unsettled]
    others = [member for member in surplus if member not in barred]
    voters_after = sum(member.role is MemberRole.VOTER for member in present) + len(promoted) - len(barred)
    demoted = (*barred, *others[: max(0, voters_after - len(wanted))])
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
    core: RaftCore, machine: Group0StateMachine, alive: Alive, operations: RunsOperations, rng: Rng
) -> None:
    """Until cancelled. Does nothing unless this node leads, nor while an operation is unfinished: its run would repair
    that operation at once, and a joiner whose leader died could not ask again any more."""
    while True:
        await asyncio.sleep(CHECK_MS / 1000)
        store = machine.store
        if store.get(UNFINISHED_OPERATION_KEY) is not None:
            continue
        if not isinstance(core.role, Leader):
            continue
        excluded = excluded_hosts(topology_state(store))
        wanted = next_voter_change(store.members, core, alive, excluded, unsettled_hosts(store))
        if wanted:
            operation = Operation(
                id=rng.uuid(),
                kind=OperationKind.CHANGE_ROLES,
                hosts=tuple(member.host for member in wanted),
                roles=tuple(member.role for member in wanted),
            )
            try:
                await operations.run_here(operation)
            except EblaError:
                continue  # the next leader, or this one, tries again in a second
