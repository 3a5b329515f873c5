"""Random clusters through random requests, failures and stage moves; after every commit everything is checked.

`World` compares the proposer's snapshot with the one made from the feed and the one made from all rows, and asks the
invariants of nodes and tablets (INV-NODE-*, INV-TABL-2, INV-TABL-3); `StoredTablets` checks INV-TABL-1 under the
slowest writers the fence allows. In the end every cluster is idle with all its requests answered.
"""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.properties.stored_tablets import StoredTablets
from tests.unit.topology.world import Coordinator, World, host

from ebla.model.identity import HostId, Replica, RequestId, ShardNumber, TableId
from ebla.topology.apply.command import Rejection, apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import (
    AbortRequest,
    AlterKeyspace,
    AlterTable,
    Command,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DropCdcGenerations,
    DropTable,
    ExcludeHosts,
    FencePredecessor,
    IncludeHost,
    RaiseFence,
    RecordRepair,
    ReportResizeReady,
    SetBalancing,
    SetIgnoredNodes,
    StartMoves,
    StartNodeRequest,
    SubmitGlobalRequest,
    SubmitJoin,
    SubmitNodeRequest,
    TabletMove,
)
from ebla.topology.next_step import DropAbandoned, Rest, side_steps
from ebla.topology.request_queue import pending_requests
from ebla.topology.routing.replica_sets import token_replicas
from ebla.topology.snapshot import Exclusion, GlobalRequest, Keyspace, Replication, Snapshot, Table
from ebla.topology.snapshot_builder import advance
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    ResizeType,
    Strategy,
    TransitionKind,
)

NUMBER = st.integers(0, 7)
MEMBER_REQUESTS = st.sampled_from([NodeRequestKind.LEAVE, NodeRequestKind.REMOVE, NodeRequestKind.REBUILD])
NODES_MAX = 7


class WatchedWorld(World):
    """Tells the storage of every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = StoredTablets()
        self.committed: list[Command] = []

    def try_(self, command: Command) -> Rejection | None:
        refused = super().try_(command)
        if refused is None:
            self.committed.append(command)
        return refused

    def commit(self, applied: ProposedChange) -> None:
        before = self.snapshot
        super().commit(applied)
        self.stored.follow(before, self.snapshot)
        assert self.stored.violations(self.snapshot) == []


class TopologyMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = WatchedWorld()
        self.coordinator = Coordinator(self.world)
        self.next_node = 1
        self.idle: ProposedChange | None = None
        self.idle_at: Snapshot | None = None

    def new_number(self) -> int:
        self.next_node += 1
        return self.next_node

    def pick(self, number: int, *states: NodeState) -> HostId | None:
        nodes = [node.host for node in self.world.snapshot.nodes_in(*states)]
        return nodes[number % len(nodes)] if nodes else None

    @initialize(nodes=st.integers(1, 3), tablets=st.sampled_from([1, 2, 4, 8]), factor=st.integers(1, 3))
    def create(self, nodes: int, tablets: int, factor: int) -> None:
        self.world.create(self.world.node(1))
        for _ in range(nodes):
            self.world.ask_to_join(self.world.node(self.new_number()))
            self.coordinator.settle()
        self.world.create_table(tablets, min(factor, nodes + 1))
        self.world.do(CreateKeyspace(self.on_vnodes(factor)))
        self.world.do(CreateTable(Table(id=TableId(self.world.new_id()), keyspace="v", name="v")))

    @staticmethod
    def on_vnodes(factor: int) -> Keyspace:
        replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
        return Keyspace(name="v", replication=replication, on_tablets=False)

    @rule(features=st.booleans())
    def join(self, features: bool) -> None:
        if sum(1 for _ in self.world.snapshot.members()) < NODES_MAX:
            node = self.world.node(self.new_number())
            lacking = self.world.node(self.next_node, supported_features=("alpha",))
            self.world.ask_to_join(node if features else lacking)

    @rule(number=NUMBER)
    def join_again_after_leaving(self, number: int) -> None:
        left = self.pick(number, NodeState.LEFT)
        if left is not None:
            request = self.world.request(NodeRequestKind.JOIN, left.int)
            assert "cannot come back" in self.world.refused(SubmitJoin(self.world.node(left.int), request))

    @rule(number=NUMBER)
    def replace(self, number: int) -> None:
        old = self.pick(number, NodeState.NORMAL)
        if old is None:
            return
        new = self.world.node(self.new_number(), rack=self.world.snapshot.node(old).rack)
        request = self.world.request(NodeRequestKind.REPLACE, new.host.int, replaced=old)
        if self.world.try_(SubmitJoin(new, request)) is None:
            self.world.dead.add(old)

    @rule(number=NUMBER, kind=MEMBER_REQUESTS, dies=st.booleans())
    def ask(self, number: int, kind: NodeRequestKind, dies: bool) -> None:
        target = self.pick(number, NodeState.NORMAL)
        if target is None:
            return
        refused = self.world.try_(SubmitNodeRequest(self.world.request(kind, target.int)))
        if refused is None and (kind is NodeRequestKind.REMOVE or dies):
            self.world.dead.add(target)

    @rule(number=NUMBER)
    def abort(self, number: int) -> None:
        ids = sorted(self.world.snapshot.node_requests)
        if ids:
            self.world.try_(AbortRequest(ids[number % len(ids)], "the operator says so", self.world.now_ms))

    @rule(factor=st.integers(1, 3), streams=st.booleans())
    def ask_global(self, factor: int, streams: bool) -> None:
        kind = GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS if streams else GlobalRequestKind.KEYSPACE_RF_CHANGE
        factors = () if streams else (("dc1", factor),)
        request_id = RequestId(self.world.new_id())
        request = GlobalRequest(
            id=request_id,
            kind=kind,
            initiator=host(1),
            start_ms=self.world.now_ms,
            keyspace="" if streams else "ks",
            new_factors=factors,
        )
        self.world.try_(SubmitGlobalRequest(request))

    @rule(number=NUMBER)
    def die(self, number: int) -> None:
        target = self.pick(number, NodeState.NORMAL, NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.DECOMMISSIONING)
        if target is not None:
            self.world.dead.add(target)

    @rule(number=NUMBER)
    def lose_a_joining_node(self, number: int) -> None:
        """It is rolled back, unless reads use the new ring already."""
        target = self.pick(number, NodeState.BOOTSTRAPPING, NodeState.REPLACING)
        if target is not None:
            self.world.lost.add(target)

    @rule()
    def change_the_leader(self) -> None:
        before = self.world.snapshot
        self.world.do(FencePredecessor())
        assert self.world.snapshot == before

    @rule(factor=st.integers(1, 3))
    def alter_replication_on_vnodes(self, factor: int) -> None:
        snapshot = self.world.snapshot
        wanted = self.on_vnodes(factor)
        is_idle = snapshot.transition is None and snapshot.node_in_transition() is None
        refused = self.world.try_(AlterKeyspace(wanted))
        assert (refused is None) is (is_idle or wanted == snapshot.keyspaces["v"])

    @rule(number=NUMBER)
    def come_back(self, number: int) -> None:
        dead = sorted(self.world.dead)
        if dead:
            self.world.dead.discard(dead[number % len(dead)])

    @rule(number=NUMBER, none=st.booleans())
    def ignore(self, number: int, none: bool) -> None:
        dead = sorted(self.world.dead)
        chosen = () if none or not dead else (*self.world.snapshot.state.ignored_nodes, dead[number % len(dead)])
        self.world.try_(SetIgnoredNodes(tuple(chosen)))

    @rule(number=NUMBER, automatic=st.booleans())
    def exclude(self, number: int, automatic: bool) -> None:
        dead = sorted(self.world.dead)
        if dead:
            chosen = dead[number % len(dead)]
            self.world.try_(ExcludeHosts((Exclusion(host=chosen, since_ms=1, by=host(1), is_automatic=automatic),)))

    @rule(number=NUMBER)
    def include(self, number: int) -> None:
        excluded = self.world.snapshot.excluded_hosts
        if excluded:
            self.world.try_(IncludeHost(excluded[number % len(excluded)]))

    @rule(times=st.integers(1, 4))
    def work(self, times: int) -> None:
        for _ in range(times):
            self.coordinator.step()

    @rule(times=st.integers(4, 12))
    def work_hard(self, times: int) -> None:
        self.work(times)

    @rule()
    def work_in_vain(self) -> None:
        """The current action fails."""
        self.coordinator.step(fails=True)

    @rule(number=NUMBER, fails_after=st.integers(0, 6), ignored=st.booleans())
    def move_and_fail(self, number: int, fails_after: int, ignored: bool) -> None:
        """A migration whose target is lost, or just cannot go on, at some stage."""
        snapshot = self.world.snapshot
        for table in sorted(snapshot.tablets)[:1]:
            tablet = number % snapshot.tablets[table].tablet_count
            for node in snapshot.nodes_in(NodeState.NORMAL):
                replicas = snapshot.tablets[table].replicas(tablet)
                new = (*replicas[:-1], Replica(node.host, ShardNumber(0)))
                move = TabletMove(table=table, tablet=tablet, kind=TransitionKind.MIGRATION, new_replicas=new)
                if self.world.try_(StartMoves((move,))) is not None:
                    continue
                for _ in range(fails_after):
                    self.coordinator.advance_tablets(((table, tablet),))
                if ignored:
                    self.world.try_(SetIgnoredNodes((*snapshot.state.ignored_nodes, node.host)))
                    self.world.dead.add(node.host)
                self.coordinator.advance_tablets(((table, tablet),), fails=True)
                return

    @rule(tablet=NUMBER, source=NUMBER, to_node=NUMBER, kind=st.sampled_from(list(TransitionKind)))
    def move(self, tablet: int, source: int, to_node: int, kind: TransitionKind) -> None:
        for table in sorted(self.world.snapshot.tablets)[:1]:
            tablets = self.world.snapshot.tablets[table]
            number = tablet % tablets.tablet_count
            replicas = list(tablets.replicas(number))
            position = source % len(replicas)
            to = self.pick(to_node, NodeState.NORMAL)
            if kind is TransitionKind.INTRANODE_MIGRATION:
                to = replicas[position].host
            if to is not None:
                replicas[position] = Replica(to, ShardNumber(1 - replicas[position].shard % 2))
                self.world.try_(
                    StartMoves((TabletMove(table=table, tablet=number, kind=kind, new_replicas=tuple(replicas)),))
                )

    @rule(kind=st.sampled_from(list(ResizeType)), ready=st.booleans())
    def resize(self, kind: ResizeType, ready: bool) -> None:
        for table, tablets in self.world.snapshot.tablets.items():
            if kind is not ResizeType.SPLIT or tablets.tablet_count <= 8:
                self.world.try_(DecideResize(table, kind))
            if ready:
                self.world.try_(ReportResizeReady(table, self.world.snapshot.tablets[table].resize.number))

    @rule(tablet=NUMBER)
    def repair(self, tablet: int) -> None:
        for table, tablets in self.world.snapshot.tablets.items():
            self.world.try_(RecordRepair(table, ((tablet % tablets.tablet_count, self.world.now_ms),)))

    @rule(create=st.booleans(), number=NUMBER, cdc=st.booleans())
    def change_schema(self, create: bool, number: int, cdc: bool) -> None:
        snapshot = self.world.snapshot
        if not create and len(snapshot.tables) > 1:
            self.world.do(DropTable(sorted(snapshot.tables)[number % len(snapshot.tables)]))
        elif create and len(snapshot.tables) < 4:
            factor = snapshot.keyspaces["ks"].replication.total
            if len(self.world.placeable()) >= factor:
                name = f"t{self.world.new_id().int}"
                self.world.create_table(2, factor, name=name, cdc=cdc)

    @rule(number=NUMBER, cdc=st.booleans())
    def capture_changes(self, number: int, cdc: bool) -> None:
        tables = sorted(self.world.snapshot.tables)
        if tables:
            table = msgspec.structs.replace(self.world.snapshot.tables[tables[number % len(tables)]], cdc=cdc)
            self.world.do(AlterTable(table, self.world.new_streams()))

    @rule(enabled=st.booleans())
    def switch_balancing(self, enabled: bool) -> None:
        self.world.do(SetBalancing(enabled))

    @rule()
    def raise_fence(self) -> None:
        self.world.do(RaiseFence(self.world.snapshot.version))

    @rule(number=st.integers(0, 30))
    def repeat_an_old_command(self, number: int) -> None:
        """Commands of a leader that does not know its successor are refused, or at least harmless.

        A table's creation has an id drawn for the attempt, so it is not recomputed.
        """
        repeatable = [command for command in self.world.committed if not isinstance(command, CreateTable)]
        if repeatable:
            self.world.try_(repeatable[-1 - number % len(repeatable)])

    @rule()
    def prepare_from_this_view(self) -> None:
        result = apply_command(self.world.snapshot, SetBalancing(True))
        assert isinstance(result, ProposedChange)
        self.idle, self.idle_at = result, self.world.snapshot

    @precondition(lambda self: self.idle is not None)
    @rule()
    def commit_what_was_prepared(self) -> None:
        """Nothing commits that was computed on an outdated view."""
        assert self.idle is not None
        assert self.idle_at is not None
        stale = any(
            self.world.snapshot.revisions.get(condition.key) != self.idle_at.revisions.get(condition.key)
            for condition in self.idle.transaction.conditions
        )
        entries = self.world.group0.commit(self.idle.transaction)
        assert (entries is None) is stale
        if entries is not None:
            self.world.snapshot = advance(self.world.snapshot, entries)
        self.idle = None

    @rule(number=NUMBER)
    def start_out_of_turn(self, number: int) -> None:
        """A start never succeeds beside another operation, whichever node requests it."""
        ids = [request.id for request in pending_requests(self.world.snapshot)]
        if not ids:
            return
        busy = self.world.snapshot.node_in_transition() is not None or self.world.snapshot.transition is not None
        command = StartNodeRequest(ids[number % len(ids)], self.world.new_session())
        if busy:
            self.world.refused(command)
        else:
            self.world.try_(command)

    @invariant()
    def every_token_is_served(self) -> None:
        snapshot = self.world.snapshot
        for table, tablets in snapshot.tablets.items():
            for number in range(tablets.tablet_count):
                self.served(snapshot, table, tablets.last_token(number))

    @staticmethod
    def served(snapshot: Snapshot, table: TableId, token: int) -> None:
        found = token_replicas(snapshot, table, token)
        assert found.reading
        assert found.natural
        assert len(found.pending) <= 1

    def teardown(self) -> None:
        if not self.world.snapshot.nodes:
            return
        self.world.dead.clear()
        self.world.lost.clear()
        self.coordinator.settle(limit=600)
        step = self.coordinator.step()
        assert isinstance(step, Rest)
        for side in side_steps(self.world.snapshot, self.world.liveness):
            if isinstance(side, DropAbandoned):
                self.world.do(DropCdcGenerations(side.generations))
        snapshot = self.world.snapshot
        assert all(each.timestamp_ms is not None for each in snapshot.cdc_generations.values())
        assert not any(request.is_open for request in snapshot.node_requests.values())
        assert not any(request.is_open for request in snapshot.global_requests.values())
        assert not snapshot.sessions
        assert not snapshot.any_tablet_transition
        assert {node.state for node in snapshot.nodes.values()} <= {NodeState.NORMAL, NodeState.LEFT}


TopologyMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestTopology = TopologyMachine.TestCase
