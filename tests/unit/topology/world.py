"""A cluster made of rows: a key-value store in place of group 0, and a coordinator that acts by committing only.

Every commit is checked: what the proposer made of it, what the feed makes of it and what all the rows together make of
it must be equal, and no invariant may be broken.
"""

import uuid
from typing import Any, assert_never

from ebla.model.identity import (
    HistoryId,
    HostId,
    Replica,
    RequestId,
    SessionId,
    ShardNumber,
    TableId,
    TopologyVersion,
)
from ebla.model.transaction import Condition, KeyMissing, KeyUnchanged, MembersUnchanged, PutKey, Revision, Transaction
from ebla.topology import next_step as steps
from ebla.topology.apply.command import Rejection, apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.cdc_generations import RANDOM_BITS, has_current_streams
from ebla.topology.commands import (
    AdvanceNode,
    AdvanceTablets,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    CompleteRequest,
    CreateCluster,
    CreateKeyspace,
    CreateTable,
    EnableFeatures,
    FailDraining,
    FinalizeResize,
    FinishGlobalRequest,
    LeaveMigrationTrack,
    NewStreams,
    RejectNode,
    RollBackNode,
    StartCdcCommit,
    StartMoves,
    StartNodeRequest,
    StartResizeFinalization,
    StartRfChange,
    SubmitGlobalRequest,
    SubmitJoin,
    SubmitNodeRequest,
    TabletAdvance,
    TabletMove,
    WriteCdcPart,
)
from ebla.topology.invariants import violations, violations_between
from ebla.topology.node_states import NodeAction
from ebla.topology.request_queue import BlockedQueue, LivenessView, RejectRequest, StartRequest, cancellation
from ebla.topology.snapshot import (
    CdcGenerationPart,
    CdcRange,
    GenerationId,
    GlobalRequest,
    Keyspace,
    Node,
    NodeRequest,
    Replication,
    Snapshot,
    Table,
)
from ebla.topology.snapshot_builder import FeedEntry, advance, from_group0
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    Strategy,
    TransitionKind,
    TransitionState,
)
from ebla.topology.tablet_stages import stage_row
from ebla.topology.token_allocation import choose_tokens

HISTORY = HistoryId(uuid.UUID(int=1 << 100))
FEATURES = ("alpha", "beta")


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number))


class Group0:
    """Keys, values, revisions, and conditional transactions."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, Revision]] = {}
        self.index = 0

    def commit(self, transaction: Transaction) -> list[FeedEntry] | None:
        """The feed of it; None if a condition did not hold."""
        if not all(self._holds(condition) for condition in transaction.conditions):
            return None
        self.index += 1
        revision = Revision(HISTORY, self.index)
        entries = []
        for change in transaction.changes:
            if isinstance(change, PutKey):
                self.values[change.key] = (change.value, revision)
                entries.append(FeedEntry(change.key, change.value, revision))
            else:
                self.values.pop(change.key, None)
                entries.append(FeedEntry(change.key, None, revision))
        return entries

    def _holds(self, condition: Condition) -> bool:
        match condition:
            case KeyMissing(key):
                return key not in self.values
            case KeyUnchanged(key, revision):
                return key in self.values and self.values[key][1] == revision
            case MembersUnchanged():
                raise AssertionError("the topology has no conditions on the members")
            case _:
                assert_never(condition)


class World:
    """One cluster. Ids are drawn in order, so a run is the same every time."""

    def __init__(self, *, checking: bool = True) -> None:
        self.group0 = Group0()
        self.snapshot = Snapshot()
        self.now_ms = 1_000_000
        self.dead: set[HostId] = set()
        self.lost: set[HostId] = set()
        self._checking = checking
        self._ids = 1 << 64

    def new_id(self) -> uuid.UUID:
        self._ids += 1
        return uuid.UUID(int=self._ids)

    def new_session(self) -> SessionId:
        return SessionId(self.new_id())

    @property
    def liveness(self) -> LivenessView:
        alive = [node for node in self.snapshot.nodes if node not in self.dead]
        return LivenessView(frozenset(alive), self.now_ms, frozenset(self.lost))

    def try_(self, command: Command) -> Rejection | None:
        """Commits the command, or gives the refusal."""
        before = self.snapshot
        result = apply_command(before, command)
        if isinstance(result, Rejection):
            return result
        self.commit(result)
        assert not violations_between(before, self.snapshot)
        return None

    def commit(self, applied: ProposedChange) -> None:
        entries = self.group0.commit(applied.transaction)
        assert entries is not None, "a fresh snapshot's conditions hold"
        self.snapshot = advance(self.snapshot, entries)
        self.now_ms += 1
        if self._checking:
            assert self.snapshot == applied.snapshot, "the feed and the proposer differ"
            whole = from_group0(self.group0.values)
            assert self.snapshot == whole, "the feed and the whole differ"
            assert self.snapshot.revisions == whole.revisions
            followed = applied.at(Revision(HISTORY, self.group0.index))
            assert followed.revisions == whole.revisions
            assert followed.unknown_fields == self.snapshot.unknown_fields == whole.unknown_fields
            assert violations(self.snapshot) == ()

    def do(self, command: Command) -> Snapshot:
        refused = self.try_(command)
        assert refused is None, f"{command}: {refused}"
        return self.snapshot

    def refused(self, command: Command) -> str:
        refused = self.try_(command)
        assert refused is not None, f"{command} was not refused"
        return refused.reason

    def node(self, number: int, **changes: Any) -> Node:
        defaults: dict[str, Any] = {
            "host": host(number),
            "datacenter": "dc1",
            "rack": f"r{number % 3}",
            "shard_count": 2,
            "ignore_msb": 12,
            "release_version": "1.0",
            "address": f"127.0.0.{number}",
            "num_tokens": 4,
            "supported_features": FEATURES,
        }
        return Node(**{**defaults, **changes})

    def write_generation(self, count: int = 2) -> GenerationId:
        generation = self.new_id()
        for number in range(count):
            part = CdcGenerationPart((CdcRange(number, (b"0123456789abcdef",), 12),))
            self.do(WriteCdcPart(generation=generation, part_count=count, number=number, part=part))
        return generation

    def create(self, node: Node) -> None:
        generation = self.write_generation()
        self.do(
            CreateCluster(
                node=node, tokens=choose_tokens(self.snapshot, node), generation=generation, timestamp_ms=self.now_ms
            )
        )

    def request(self, kind: NodeRequestKind, number: int, **changes: Any) -> NodeRequest:
        return NodeRequest(
            id=RequestId(self.new_id()),
            kind=kind,
            host=host(number),
            initiator=host(number),
            start_ms=self.now_ms,
            **changes,
        )

    def ask_to_join(self, node: Node, **changes: Any) -> NodeRequest:
        kind = NodeRequestKind.REPLACE if changes.get("replaced") else NodeRequestKind.JOIN
        request = self.request(kind, node.host.int, **changes)
        self.do(SubmitJoin(node, request))
        return request

    def ask(self, kind: NodeRequestKind, number: int, **changes: Any) -> NodeRequest:
        request = self.request(kind, number, **changes)
        self.do(SubmitNodeRequest(request))
        return request

    def ask_global(self, kind: GlobalRequestKind, **changes: Any) -> GlobalRequest:
        request = GlobalRequest(
            id=RequestId(self.new_id()), kind=kind, initiator=host(1), start_ms=self.now_ms, **changes
        )
        self.do(SubmitGlobalRequest(request))
        return request

    def placeable(self) -> list[Node]:
        """Who takes new tablets."""
        gone = (*self.dead, *self.snapshot.state.ignored_nodes)
        return [node for node in self.snapshot.nodes_in(NodeState.NORMAL) if node.host not in gone]

    def new_streams(self) -> NewStreams:
        return NewStreams(self.now_ms, self.new_id().int % (1 << RANDOM_BITS))

    def create_table(
        self, tablets: int, factor: int, keyspace: str = "ks", name: str = "t", *, cdc: bool = False
    ) -> TableId:
        if keyspace not in self.snapshot.keyspaces:
            replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
            self.do(CreateKeyspace(Keyspace(name=keyspace, replication=replication, on_tablets=True)))
        nodes = self.placeable()
        sets = tuple(
            tuple(Replica(nodes[(tablet + i) % len(nodes)].host, ShardNumber((tablet + i) % 2)) for i in range(factor))
            for tablet in range(tablets)
        )
        table = Table(id=TableId(self.new_id()), keyspace=keyspace, name=name, cdc=cdc)
        self.do(CreateTable(table, sets, self.new_streams() if cdc else None))
        return table.id

    def outcome(self, request: RequestId) -> RequestOutcome:
        found = self.snapshot.node_requests.get(request) or self.snapshot.global_requests[request]
        return found.outcome


class Coordinator:
    """Takes the next step of a world and commits its outcome, as if every action had succeeded or optionally failed."""

    def __init__(self, world: World, moves_at_once: int = 2) -> None:
        self._world = world
        self._moves_at_once = moves_at_once

    def settle(self, limit: int = 400) -> None:
        """Until nothing is to be done."""
        for _ in range(limit):
            if isinstance(self.step(), steps.Rest):
                return
        raise AssertionError("the topology did not come to rest")

    def until(self, transition: TransitionState, limit: int = 200) -> None:
        for _ in range(limit):
            if self._world.snapshot.transition is transition:
                return
            self.step()
        raise AssertionError(f"never in {transition}")

    def step(self, *, fails: bool = False, plan: tuple[TabletMove, ...] = ()) -> steps.Step:
        world = self._world
        step = steps.next_step(world.snapshot, world.liveness)
        if isinstance(step, steps.AskBalancer):
            if plan:
                world.do(StartMoves(plan))
                return step
            step = steps.next_step(world.snapshot, world.liveness, plan_is_empty=True)
        self._take(step, fails)
        return step

    def _take(self, step: steps.Step, fails: bool) -> None:
        world = self._world
        now = world.now_ms
        match step:
            case steps.DriveNode():
                self._drive_node(step, fails)
            case steps.RollBack():
                world.do(RollBackNode(host=step.host, leaving=step.row.here.transition, reason=step.why, now_ms=now))
            case steps.MoveTablets():
                self._move_tablets(step, fails)
            case steps.LeaveTrack():
                world.do(LeaveMigrationTrack())
            case StartRequest():
                world.do(StartNodeRequest(step.request.id, world.new_session()))
            case RejectRequest():
                world.do(RejectNode(step.request.host, step.why, now))
            case BlockedQueue():
                for verdict in step.verdicts:
                    world.do(cancellation(world.snapshot, verdict, now))
            case steps.DriveGlobal():
                self._drive_global(step, fails)
            case steps.TurnOnFeatures():
                world.do(EnableFeatures(step.features, world.snapshot.version))
            case steps.BeginResize():
                world.do(StartResizeFinalization())
            case steps.FinishResize():
                world.do(FinalizeResize(world.snapshot.version, world.new_streams()))
            case steps.Rest() | steps.BuildState() | steps.AskBalancer():
                pass
            case _:
                assert_never(step)

    def _drive_node(self, step: steps.DriveNode, fails: bool) -> None:
        world, row = self._world, step.row
        node = world.snapshot.node(step.host)
        here, now, fence = row.here.transition, world.now_ms, world.snapshot.version
        if fails and row.on_failure is not None:
            world.do(RollBackNode(host=step.host, leaving=here, reason="failed by the test", now_ms=now))
        elif row.action is NodeAction.ADMIT:
            generation = None if node.state is NodeState.REPLACING else world.write_generation()
            world.do(ChooseTokens(node.host, choose_tokens(world.snapshot, node), generation))
        elif row.action is NodeAction.COMMIT_GENERATION:
            world.do(CommitCdcGeneration(timestamp_ms=now, session=world.new_session(), now_ms=now, fence=fence))
        else:
            if row.action is NodeAction.LEAVE_GROUP0 and node.request is not None:
                world.do(CompleteRequest(step.host, now))
            session = world.new_session()
            world.do(
                AdvanceNode(
                    host=step.host,
                    leaving=here,
                    session=session,
                    now_ms=now,
                    fence=fence if row.barrier else TopologyVersion(0),
                )
            )

    def _move_tablets(self, step: steps.MoveTablets, fails: bool) -> None:
        world = self._world
        if step.tablets:
            self.advance_tablets(step.tablets, fails)
        elif fails and step.draining:
            node = world.snapshot.node_in_transition()
            assert node is not None
            world.do(FailDraining(node.host, "failed by the test"))
            return
        if not step.ask_balancer:
            return
        on_track = world.snapshot.transition is TransitionState.TABLET_MIGRATION
        moves, stuck = self.drain_plan(step.draining)
        if moves:
            world.do(StartMoves(moves))
        elif stuck and not world.snapshot.any_tablet_transition:
            node = world.snapshot.node_in_transition()
            assert node is not None
            world.do(FailDraining(node.host, "no node can take its tablets"))
        elif on_track and not world.snapshot.any_tablet_transition:
            world.do(LeaveMigrationTrack())

    def advance_tablets(self, tablets: tuple[tuple[TableId, int], ...], fails: bool = False) -> None:
        """One stage each; those that fail and may go back do."""
        world = self._world
        snapshot = world.snapshot
        advances = []
        fence = TopologyVersion(0)
        for table, number in tablets:
            transition = snapshot.tablets[table].transition(number)
            assert transition is not None
            if stage_row(transition).barrier:
                fence = snapshot.version
            session = world.new_session()
            advances.append(TabletAdvance(table=table, tablet=number, leaving=transition.stage, session=session))
        if fails:
            for each in advances:
                failed = TabletAdvance(
                    table=each.table,
                    tablet=each.tablet,
                    leaving=each.leaving,
                    session=each.session,
                    failed=True,
                    hopeless=True,
                )
                world.try_(AdvanceTablets((failed,)))
            return
        world.do(AdvanceTablets(tuple(advances), fence=fence))

    def drain_plan(self, draining: tuple[HostId, ...]) -> tuple[tuple[TabletMove, ...], bool]:
        """Some moves off these hosts, and whether the one that goes now has tablets that no move was found for."""
        snapshot = self._world.snapshot
        node = snapshot.node_in_transition()
        going = node.host if node is not None else None
        moves: list[TabletMove] = []
        stuck = False
        for table in sorted(snapshot.tablets):
            for leaving in draining:
                for number in snapshot.tablets[table].tablets_on(leaving):
                    if len(moves) >= self._moves_at_once or snapshot.tablets[table].transition(number) is not None:
                        continue
                    if any(move.table == table and move.tablet == number for move in moves):
                        continue
                    move = self._away(table, number, leaving, draining)
                    stuck = stuck or (move is None and leaving == going)
                    moves.extend([move] if move is not None else [])
        return tuple(moves), stuck

    def _away(self, table: TableId, number: int, leaving: HostId, draining: tuple[HostId, ...]) -> TabletMove | None:
        snapshot = self._world.snapshot
        replicas = snapshot.tablets[table].replicas(number)
        taken = {replica.host for replica in replicas}
        for node in snapshot.nodes_in(NodeState.NORMAL):
            usable = node.host not in snapshot.state.ignored_nodes and node.host not in draining
            if node.host not in taken and usable and node.datacenter == snapshot.node(leaving).datacenter:
                new = Replica(node.host, ShardNumber(0))
                gone = leaving in snapshot.state.ignored_nodes
                kind = TransitionKind.REBUILD if gone else TransitionKind.MIGRATION
                return TabletMove(
                    table=table,
                    tablet=number,
                    kind=kind,
                    new_replicas=tuple(new if r.host == leaving else r for r in replicas),
                )
        return None

    def _drive_global(self, step: steps.DriveGlobal, fails: bool) -> None:
        world, request = self._world, step.request
        now, fence = world.now_ms, world.snapshot.version
        if step.row.action is NodeAction.COMMIT_GENERATION:
            if fails:
                world.do(FinishGlobalRequest(request.id, "failed by the test", now))
            else:
                world.do(CommitCdcGeneration(timestamp_ms=now, session=world.new_session(), now_ms=now, fence=fence))
        elif request.outcome is RequestOutcome.RUNNING or (
            request.kind is GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS and has_current_streams(world.snapshot)
        ):
            world.do(FinishGlobalRequest(request.id, "", now))
        elif request.kind is GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
            world.do(StartCdcCommit(request.id, world.write_generation()))
        else:
            refused = world.try_(StartRfChange(request.id, self.rf_moves(request)))
            if refused is not None:
                world.do(FinishGlobalRequest(request.id, refused.reason, now))

    def rf_moves(self, request: GlobalRequest) -> tuple[TabletMove, ...]:
        """One replica more or less for each tablet of the keyspace."""
        snapshot = self._world.snapshot
        wanted = sum(factor for _, factor in request.new_factors)
        moves = []
        for table, tablets in snapshot.tablets.items():
            if snapshot.tables[table].keyspace != request.keyspace:
                continue
            for number in range(tablets.tablet_count):
                replicas = tablets.replicas(number)
                free = [
                    Replica(node.host, ShardNumber(0))
                    for node in snapshot.nodes_in(NodeState.NORMAL)
                    if node.host not in {each.host for each in replicas}
                    and node.host not in snapshot.state.ignored_nodes
                ]
                new = replicas[:wanted] if wanted < len(replicas) else (*replicas, *free[: wanted - len(replicas)])
                if new != replicas:
                    moves.append(TabletMove(table=table, tablet=number, kind=TransitionKind.REBUILD, new_replicas=new))
        return tuple(moves)


def cluster(size: int = 4, *, checking: bool = True) -> tuple[World, Coordinator]:
    """Normal nodes 1 to `size`."""
    world = World(checking=checking)
    world.create(world.node(1))
    coordinator = Coordinator(world)
    for number in range(2, size + 1):
        world.ask_to_join(world.node(number))
        coordinator.settle()
    return world, coordinator
