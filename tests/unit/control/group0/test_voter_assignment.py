"""The leader's care for the vote, against a core that says how far each learner is."""

import asyncio
import uuid

import msgspec
import pytest

from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.group0.voter_assignment import CHECK_MS, assign_voters, next_voter_change
from ebla.group0.failover import LAG_ENTRIES_MAX
from ebla.group0.members import Member, MemberRole, member_key, peer_number
from ebla.group0.operations import (
    UNFINISHED_OPERATION_KEY,
    EndedOperation,
    Operation,
    OperationKind,
    UnfinishedOperation,
)
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.raft.core import RaftCore
from ebla.raft.events import Campaign
from ebla.raft.messages import Entry, HardState, Membership, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions
from ebla.raft.roles import Leader
from ebla.raft.state import RecoveredState
from ebla.sim.rng import SimRng
from ebla.topology.keys import STATE, encode, node_key
from ebla.topology.snapshot import Node, TopologyState
from ebla.topology.states import NodeState


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number << 100))


def member(number: int, role: MemberRole) -> Member:
    return Member(host=host(number), role=role, address=Address("h", number), rack=f"r{number}")


def peer(number: int) -> PeerId:
    return PeerId(peer_number(host(number)))


def leader_of(voters: tuple[int, ...], learners: tuple[int, ...], matches: dict[int, int], last: int) -> RaftCore:
    """Host 1 as the only active voter's leader, its log `last` long, others as far as `matches` says."""
    membership = Membership(voters=(peer(1),), learners=tuple(sorted(peer(one) for one in (*voters[1:], *learners))))
    entries = tuple(Entry(index=index, term=1) for index in range(2, last + 1))
    past = RecoveredState(HardState(1, PeerId(0), 1), SnapshotMeta(1, 1, membership), entries)
    core = RaftCore(RaftOptions(peer=peer(1)), past, SimRng("test"), 0)
    core.step(Campaign(), 0)
    while core.has_effects:
        effects = core.take()
        for answer in effects.write.answers if effects.write is not None else ():
            if answer.to == core.peer:
                core.step(answer, 0)
        if effects.apply is not None:
            core.step(effects.apply.answer, 0)
    assert isinstance(core.role, Leader)
    for number, match in matches.items():
        core.role.progress[peer(number)].match = match
    return core


def known(*members: Member) -> dict[str, Member]:
    return {member_key(one.host): one for one in members}


LAST = 500


@pytest.mark.parametrize(
    ("match", "promoted"),
    [(LAST, True), (LAST - LAG_ENTRIES_MAX, False), (0, False), (LAST + 1 - LAG_ENTRIES_MAX, True)],
)
def test_a_learner_votes_once_it_is_caught_up(match: int, promoted: bool) -> None:
    core = leader_of((1,), (2, 3), {2: match, 3: match}, LAST)
    members = known(member(1, MemberRole.VOTER), member(2, MemberRole.LEARNER), member(3, MemberRole.LEARNER))
    change = next_voter_change(members, core, lambda _: True)
    wanted = {host(2): MemberRole.VOTER, host(3): MemberRole.VOTER} if promoted else {}
    assert {one.host: one.role for one in change} == wanted


def test_a_dead_voter_gives_its_seat_only_to_one_that_is_ready() -> None:
    core = leader_of((1, 2, 3), (4,), {2: 0, 3: LAST, 4: 0}, LAST)
    members = known(*(member(number, MemberRole.VOTER) for number in (1, 2, 3)), member(4, MemberRole.LEARNER))
    assert next_voter_change(members, core, lambda one: one != host(2)) == ()
    assert isinstance(core.role, Leader)
    core.role.progress[peer(4)].match = core.last_index
    change = next_voter_change(members, core, lambda one: one != host(2))
    assert {one.host: one.role for one in change} == {host(4): MemberRole.VOTER, host(2): MemberRole.LEARNER}


def test_a_joining_member_neither_votes_nor_counts() -> None:
    core = leader_of((1,), (2, 3), {2: LAST, 3: LAST}, LAST)
    members = known(member(1, MemberRole.VOTER), member(2, MemberRole.LEARNER), member(3, MemberRole.LEARNER))
    assert next_voter_change(members, core, lambda _: True, (), (host(3),)) == (), "of two, one votes"
    assert next_voter_change(members, core, lambda _: True, (), (host(2), host(3))) == ()
    core = leader_of((1, 2, 3), (), {2: LAST, 3: LAST}, LAST)
    members = known(*(member(number, MemberRole.VOTER) for number in (1, 2, 3)))
    change = next_voter_change(members, core, lambda _: True, (), (host(2), host(3)))
    assert {one.host: one.role for one in change} == {host(2): MemberRole.LEARNER, host(3): MemberRole.LEARNER}


@pytest.mark.parametrize("excluded", [False, True])
def test_who_must_not_vote_is_demoted_before_anybody_takes_its_seat(excluded: bool) -> None:
    """Host 4 has not caught up, and may never do."""
    core = leader_of((1, 2, 3), (4,), {2: LAST, 3: LAST}, LAST)
    voters = [member(number, MemberRole.VOTER) for number in (1, 2, 3)]
    members = known(*voters, member(4, MemberRole.LEARNER))
    assert next_voter_change(members, core, lambda _: True) == ()
    barred = (host(3),)
    change = next_voter_change(members, core, lambda _: True, barred if excluded else (), () if excluded else barred)
    assert {one.host: one.role for one in change} == {host(3): MemberRole.LEARNER}


async def test_the_leader_reads_who_is_joining_from_the_rows() -> None:
    core = leader_of((1,), (2, 3), {2: LAST, 3: LAST}, LAST)
    store = Group0Store((HistoryStart(HistoryId(uuid.UUID(int=7)), 0),))
    store.index = 1
    store.members = known(member(1, MemberRole.VOTER), member(2, MemberRole.LEARNER), member(3, MemberRole.LEARNER))
    store.entries[STATE] = KeyEntry(encode(TopologyState()), store.revision)
    put_row(store, 1, NodeState.NORMAL)
    put_row(store, 2, NodeState.BOOTSTRAPPING)
    recorder = Recorder()
    choosing = asyncio.get_running_loop().create_task(
        assign_voters(core, Group0StateMachine(store), lambda _: True, recorder, SimRng("choice"))
    )
    await asyncio.sleep(2.5 * CHECK_MS / 1000)
    assert recorder.ran == []
    put_row(store, 2, NodeState.NORMAL)
    put_row(store, 3, NodeState.NORMAL)
    await asyncio.sleep(CHECK_MS / 1000)
    choosing.cancel()
    assert [operation.hosts for operation in recorder.ran] == [(host(2), host(3))]


def put_row(store: Group0Store, number: int, state: NodeState) -> None:
    row = Node(
        host=host(number),
        datacenter="dc1",
        rack="r1",
        shard_count=1,
        ignore_msb=0,
        release_version="1",
        address="h",
        num_tokens=1,
        state=state,
    )
    store.entries[node_key(row.host)] = KeyEntry(encode(row), store.revision)


def test_nobody_but_the_leader_changes_anything() -> None:
    core = leader_of((1,), (2, 3), {2: LAST, 3: LAST}, LAST)
    members = known(member(1, MemberRole.VOTER), member(2, MemberRole.LEARNER), member(3, MemberRole.LEARNER))
    core.state.become_follower(core.term, PeerId(0))
    assert next_voter_change(members, core, lambda _: True) == ()


def test_a_settled_vote_is_left_alone() -> None:
    core = leader_of((1, 2, 3), (), {2: LAST, 3: LAST}, LAST)
    members = known(*(member(number, MemberRole.VOTER) for number in (1, 2, 3)))
    assert next_voter_change(members, core, lambda _: True) == ()
    removed = msgspec.structs.replace(member(4, MemberRole.REMOVED))
    assert next_voter_change({**members, **known(removed)}, core, lambda _: True) == ()


class Recorder:
    """Counts what the leader's choice asks for."""

    def __init__(self) -> None:
        self.ran: list[Operation] = []

    async def request(self, operation: Operation) -> EndedOperation | None:
        raise AssertionError(f"{operation} was sent on, though the next leader makes its own decision")

    async def run_here(self, operation: Operation) -> EndedOperation | None:
        self.ran.append(operation)
        return None


async def test_nothing_is_chosen_while_an_operation_is_unfinished() -> None:
    """Its run would repair that operation at once, and a joiner whose leader died could not ask again any more."""
    core = leader_of((1,), (2, 3), {2: LAST, 3: LAST}, LAST)
    store = Group0Store((HistoryStart(HistoryId(uuid.UUID(int=7)), 0),))
    store.index = 1
    store.members = known(member(1, MemberRole.VOTER), member(2, MemberRole.LEARNER), member(3, MemberRole.LEARNER))
    record = UnfinishedOperation(kind=OperationKind.ADD_LEARNER, members=(member(4, MemberRole.LEARNER),), lock=b"")
    store.entries[UNFINISHED_OPERATION_KEY] = KeyEntry(encode_stored(StoredValue(record)), store.revision)
    recorder = Recorder()
    choosing = asyncio.get_running_loop().create_task(
        assign_voters(core, Group0StateMachine(store), lambda _: True, recorder, SimRng("choice"))
    )
    await asyncio.sleep(3 * CHECK_MS / 1000)
    assert recorder.ran == []
    del store.entries[UNFINISHED_OPERATION_KEY]
    await asyncio.sleep(1.5 * CHECK_MS / 1000)
    choosing.cancel()
    assert [operation.hosts for operation in recorder.ran] == [(host(2), host(3))]
