"""Leaders that run operations on one real store of group 0: each stops, dies or is overtaken at any of its entries.

After every entry the rig checks that no step under a revoked lock has an effect, and that one operation at most is
unfinished.
"""

import asyncio
import copy
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.node import Group0Node
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.operations.janitor import Janitor
from ebla.control.operations.runner import OperationDeps, OperationHandle, OperationRunner
from ebla.control.topology.committed_topology import CommittedTopology, topology_of
from ebla.group0.commands import (
    AcquireLock,
    CallId,
    ChangeMembers,
    CommandAnswer,
    CommandBody,
    Done,
    Group0Command,
    encode_command,
)
from ebla.group0.members import Member, MemberRole, member_key
from ebla.group0.operations import (
    ENDED_OPERATION_PREFIX,
    UNFINISHED_OPERATION_KEY,
    EndedOperation,
    Operation,
    OperationFailed,
    OperationKind,
    UnfinishedOperation,
    read_record,
)
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.leadership.quorum import Quorum
from ebla.model.identity import Address, HistoryId, HostId, RequestId, SessionId, TopologyVersion
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import Change, PutKey, Revision, Transaction
from ebla.ports.rng import Rng
from ebla.raft.membership import MembershipChange
from ebla.raft.messages import Entry, EntryKind
from ebla.sim.checkers.operations import OperationSteps, settled_problem
from ebla.sim.clock import SimClock
from ebla.sim.rng import SimRng
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.cdc_generations import generation_commits
from ebla.topology.commands import (
    AdvanceNode,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    CreateCluster,
    ResetFailoverCount,
    SubmitJoin,
)
from ebla.topology.next_step import DriveNode, next_step
from ebla.topology.node_states import NodeAction
from ebla.topology.request_queue import LivenessView
from ebla.topology.snapshot import CdcGenerationPart, GenerationId, Node, NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, TransitionState
from ebla.topology.token_allocation import choose_tokens
from ebla.version import Feature

HISTORY = HistoryId(uuid.UUID(int=7))
FEATURES = tuple(sorted(feature.value for feature in Feature))
JANITOR_DELAY_MS = 1_000
NEWCOMER = 5


class Died(Exception):
    """The process of a leader is gone: nothing after this point happens."""


Hook = Callable[[], Awaitable[None]]


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number << 100))


def member(number: int, role: MemberRole = MemberRole.LEARNER, **fields: object) -> Member:
    plain = Member(
        host=host(number),
        role=role,
        address=Address("h", number),
        features=FEATURES,
        release="1",
        join_id=uuid.UUID(int=1_000 + number),
    )
    return msgspec.structs.replace(plain, **fields)


def node(number: int) -> Node:
    return Node(
        host=host(number),
        datacenter="dc1",
        rack="r1",
        shard_count=1,
        ignore_msb=0,
        release_version="1",
        address=f"h{number}",
        num_tokens=1,
        supported_features=FEATURES,
    )


def add(number: int) -> Operation:
    return Operation(
        id=uuid.UUID(int=1_000 + number),
        kind=OperationKind.ADD_LEARNER,
        hosts=(host(number),),
        member=member(number),
    )


def submit(number: int) -> SubmitJoin:
    """What a member commits when the node asks to join; the coordinator then runs `add`."""
    request = NodeRequest(
        id=RequestId(add(number).id),
        kind=NodeRequestKind.JOIN,
        host=host(number),
        initiator=host(number),
        start_ms=1,
    )
    return SubmitJoin(node(number), request)


def remove(number: int, operation_id: int = 1, fence: int = 0) -> Operation:
    return Operation(
        id=uuid.UUID(int=operation_id),
        kind=OperationKind.REMOVE,
        hosts=(host(number),),
        fence=TopologyVersion(fence),
    )


def change_roles(roles: dict[int, MemberRole], operation_id: int = 2) -> Operation:
    hosts = tuple(host(number) for number in roles)
    return Operation(
        id=uuid.UUID(int=operation_id), kind=OperationKind.CHANGE_ROLES, hosts=hosts, roles=tuple(roles.values())
    )


def refresh(number: int, operation_id: int = 3) -> Operation:
    return Operation(
        id=uuid.UUID(int=operation_id),
        kind=OperationKind.REFRESH,
        hosts=(host(number),),
        member=member(number, release="2"),
    )


def exclude(number: int, operation_id: int = 4) -> Operation:
    return Operation(
        id=uuid.UUID(int=operation_id), kind=OperationKind.EXCLUDE, hosts=(host(number),), is_automatic=True
    )


def include(number: int, operation_id: int = 5) -> Operation:
    return Operation(
        id=uuid.UUID(int=operation_id),
        kind=OperationKind.INCLUDE,
        hosts=(host(number),),
        roles=(MemberRole.VOTER,),
    )


class Leader:
    """One control process that believes that it leads. Its entries are counted from 1 in each run."""

    def __init__(self, rig: "OperationRig", number: int) -> None:
        self.rig = rig
        self.host = host(number)
        self.name = f"leader {number}"
        self.sent = 0
        self.before: dict[int, Hook] = {}
        self.after: dict[int, Hook] = {}
        self.is_dead = False
        self.reports: list[str] = []
        config = SimpleNamespace(member=SimpleNamespace(host=self.host))
        raft = SimpleNamespace(core=SimpleNamespace(term=number))
        running = SimpleNamespace(client=self, store=rig.machine.store, raft=raft)
        self.group0 = SimpleNamespace(config=config, running=running, is_running=True, leads=True)
        clock = SimClock(asyncio.get_running_loop().time, SimRng(f"clock {number}").random)
        deps = OperationDeps(
            group0=cast("Group0Node", self.group0),
            topology=rig.topology,
            run_activity=self._run_activity,
            quorum_wait_ms=lambda: 0,
            rng=SimRng(f"leader {number}"),
            clock=clock,
            report=lambda event, _fields: self.reports.append(event),
            reach=self._reach,
        )
        self.runner = OperationRunner(deps)
        self.janitor = Janitor(deps, self.runner, lambda: JANITOR_DELAY_MS)
        self._turn = asyncio.Lock()

    async def _run_activity(
        self, _name: str, body: Callable[[OperationHandle], Awaitable[EndedOperation | None]]
    ) -> EndedOperation | None:
        async with self._turn:
            return await body(self)

    def check_effect(self) -> None:
        pass

    async def switch_quorum(self, quorum: Quorum, wait_ms: int) -> None:
        pass

    async def _reach(self, _point: FaultPoint) -> None:
        pass

    def die(self) -> None:
        self.is_dead = True
        self.group0.leads = False

    # ---- as the client of group 0

    async def acquire_lock(self, rng: Rng, _within_ms: int, _before_offer: object = None) -> tuple[bytes, Revision]:
        lock = rng.bytes(16)
        answer = await self._apply(AcquireLock(lock))
        assert isinstance(answer, Done)
        return lock, answer.revision

    async def read_barrier(self, _within_ms: int, _before_offer: object = None) -> Revision:
        return self.rig.machine.store.revision

    async def transact(self, transaction: Transaction, _within_ms: int, _before_offer: object = None) -> CommandAnswer:
        return await self._apply(transaction)

    async def change_members(
        self, members: tuple[Member, ...], lock: bytes, _within_ms: int, _before_offer: object = None
    ) -> CommandAnswer:
        return await self._apply(ChangeMembers(members, lock))

    async def _apply(self, body: CommandBody) -> CommandAnswer:
        self.sent += 1
        number = self.sent
        if number in self.before:
            await self.before.pop(number)()
        if self.is_dead:
            raise Died
        answer = self.rig.apply(body)
        outcome = "" if isinstance(answer, Done) else f": {type(answer).__name__}"
        self.rig.log.append(f"{self.name}: {describe(body)}{outcome}")
        if number in self.after:
            await self.after.pop(number)()
        if self.is_dead:
            raise Died
        return answer


class OperationRig:
    def __init__(self, store: Group0Store) -> None:
        self.machine = Group0StateMachine(store)
        self.topology = CommittedTopology(lambda _event, _fields: None)
        self.topology.attach(self.machine)
        self.serials = store.index  # never one that the store has answered
        self.rng = SimRng("rig")
        self.log: list[str] = []
        """The entries of all leaders, for people."""
        self._steps = OperationSteps(store)

    def leader(self, number: int) -> Leader:
        return Leader(self, number)

    def apply(self, body: CommandBody) -> CommandAnswer:
        self.serials += 1
        call = CallId(client=uuid.UUID(int=9), incarnation=1, serial=self.serials, answered_through=self.serials - 1)
        data = encode_command(Group0Command(call, body))
        answers: list[CommandAnswer] = []
        self.machine.on_answer(call, answers.append)
        index = self.machine.store.index + 1
        if isinstance(body, ChangeMembers):
            entry = Entry(index=index, term=1, kind=EntryKind.MEMBERS)
            changes_members = self.machine.apply_membership(entry, MembershipChange(context=data))
        else:
            changes_members = False
            self.machine.apply(Entry(index=index, term=1, data=data))
        problem = self._steps.follow(self.machine.store, changes_members=changes_members)
        assert problem is None, problem
        return answers[0]

    # ---- what there is

    @property
    def snapshot(self) -> Snapshot:
        return self.topology.snapshot

    def role(self, number: int) -> MemberRole | None:
        known = self.machine.store.members.get(member_key(host(number)))
        return None if known is None else known.role

    def row(self, number: int) -> NodeState | None:
        known = self.snapshot.nodes.get(host(number))
        return None if known is None else known.state

    @property
    def record(self) -> UnfinishedOperation | None:
        found = read_record(self.machine.store)
        return None if found is None else found.value

    def check_settled(self) -> None:
        assert self.record is None, "INV-ATOM-1: the record is gone"
        problem = settled_problem(self.machine.store, self.snapshot)
        assert problem is None, problem

    # ---- preparing

    def commit(self, *commands: Command) -> None:
        applied = apply_commands(self.snapshot, commands)
        assert not isinstance(applied, Rejection), applied
        answer = self.apply(applied.transaction)
        assert isinstance(answer, Done), answer

    def found_cluster(self, founder: Node) -> None:
        tokens = choose_tokens(self.snapshot, founder)
        generation, parts = self._new_generation()
        self.commit(*parts, CreateCluster(node=founder, tokens=tokens, generation=generation, timestamp_ms=self._now()))

    def drive(self, until: TransitionState | None = None) -> None:
        """Drives the join that runs as the coordinator does, until it ends or the topology is in this state."""
        liveness = LivenessView(frozenset(self.snapshot.nodes), 1)
        while until is None or self.snapshot.transition is not until:
            step = next_step(self.snapshot, liveness, plan_is_empty=True)
            if not isinstance(step, DriveNode):
                return
            self.commit(*self._done(step))

    def _done(self, step: DriveNode) -> tuple[Command, ...]:
        snapshot, session, now_ms = self.snapshot, SessionId(self.rng.uuid()), self._now()
        match step.row.action:
            case NodeAction.ADMIT:
                tokens = choose_tokens(snapshot, snapshot.node(step.host))
                if snapshot.node(step.host).state is NodeState.REPLACING:
                    return (ChooseTokens(step.host, tokens, None),)
                generation, parts = self._new_generation()
                return (*parts, ChooseTokens(step.host, tokens, generation))
            case NodeAction.COMMIT_GENERATION:
                fence = snapshot.version
                return (CommitCdcGeneration(timestamp_ms=now_ms, session=session, now_ms=now_ms, fence=fence),)
            case _:
                here, fence = snapshot.transition, snapshot.version
                return (AdvanceNode(host=step.host, leaving=here, session=session, now_ms=now_ms, fence=fence),)

    def _new_generation(self) -> tuple[GenerationId, tuple[Command, ...]]:
        generation = GenerationId(bytes=self.rng.bytes(16))
        (commit,) = generation_commits(generation, [CdcGenerationPart(())])
        return generation, commit

    def _now(self) -> int:
        """Later than every generation so far."""
        return 1 + max((each.timestamp_ms or 0 for each in self.snapshot.cdc_generations.values()), default=0)


def describe(body: CommandBody) -> str:
    match body:
        case AcquireLock():
            return "lock"
        case ChangeMembers(members=members):
            return "members " + ", ".join(f"{one.host.int >> 100} {one.role}" for one in members)
        case Transaction(changes=changes):
            others = [change for change in changes if not change.key.startswith("operation/")]
            return ", ".join([*_described(changes), *(["keys"] if others else [])])


def _described(changes: tuple[Change, ...]) -> list[str]:
    said = []
    for change in changes:
        if isinstance(change, PutKey) and change.key == UNFINISHED_OPERATION_KEY:
            record = decode_stored(UnfinishedOperation, change.value).value
            said.append(f"record {record.kind} {', '.join(str(one.int >> 100) for one in record.hosts)}")
        elif isinstance(change, PutKey) and change.key.startswith(ENDED_OPERATION_PREFIX):
            ended = decode_stored(EndedOperation, change.value).value
            said.append(f"{ended.kind} {ended.result}")
    return said


async def prepared(*, joining: TransitionState | None = None, excluded: tuple[int, ...] = ()) -> OperationRig:
    """Hosts 1, 2 and 3 are voters and own tokens, except for excluded ones. Host 4 is a learner, as far as `joining`
    or else normal. The newcomer has requested to join."""
    store = Group0Store((HistoryStart(HISTORY, 0),))
    store.index = 1
    founder = encode_stored(StoredValue(member(1, MemberRole.VOTER)))
    store.entries = {member_key(host(1)): KeyEntry(founder, store.revision)}
    store.rebuild_indexes()
    rig = OperationRig(store)
    rig.found_cluster(node(1))
    leader = rig.leader(1)
    for number in (2, 3, 4):
        rig.commit(submit(number))
        await leader.runner.run(add(number))
        rig.drive(until=joining if number == 4 else None)
    await leader.runner.run(change_roles({2: MemberRole.VOTER, 3: MemberRole.VOTER}, operation_id=90))
    rig.commit(submit(NEWCOMER))
    for number in excluded:
        await leader.runner.run(exclude(number, operation_id=91))
        rig.commit(ResetFailoverCount())
    rig.check_settled()
    return rig


def cloned(rig: OperationRig) -> OperationRig:
    store = copy.deepcopy(rig.machine.store)
    assert topology_of(store) == rig.snapshot
    return OperationRig(store)


# ---- runs that end early


ENTRIES = 4
"""Lock, keys, members, deletion."""
POINTS = [(number, when) for number in range(1, ENTRIES + 1) for when in ("before", "after")]


def stop_at(leader: Leader, point: tuple[int, str], what: Callable[[], object]) -> None:
    async def hook() -> None:
        what()

    number, when = point
    (leader.before if when == "before" else leader.after)[number] = hook


async def call(rig: OperationRig, leader: Leader, operation: Operation) -> EndedOperation | OperationFailed | None:
    """What the caller gets, which must be true at that moment."""
    leader.sent = 0
    try:
        ended = await leader.runner.run(operation)
    except OperationFailed as error:
        return error
    found = read_record(rig.machine.store)
    assert found is None or found.value.id != operation.id, "success is reported after the record is gone"
    if operation.kind is OperationKind.ADD_LEARNER and found is None:
        assert member_key(operation.hosts[0]) in rig.machine.store.members
    return ended


async def within_one_delay(rig: OperationRig, *leaders: Leader) -> None:
    """The janitors of the leaders that live run for one delay, and a little."""
    async with asyncio.TaskGroup() as tasks:
        janitors = [tasks.create_task(leader.janitor.run()) for leader in leaders if not leader.is_dead]
        await asyncio.sleep(1.2 * JANITOR_DELAY_MS / 1000)
        for janitor in janitors:
            janitor.cancel()
    rig.check_settled()


async def died_at(rig: OperationRig, operation: Operation, point: tuple[int, str]) -> Leader:
    leader = rig.leader(1)
    stop_at(leader, point, leader.die)
    with pytest.raises(Died):
        await leader.runner.run(operation)
    return leader
