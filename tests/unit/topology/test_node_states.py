"""The node table: total, every row reachable, every edge committed once by `apply`."""

import itertools

import pytest
from tests.unit.topology.world import Coordinator, World, host

from ebla.topology.commands import (
    AdvanceNode,
    CommitCdcGeneration,
    DropTable,
    RejectNode,
    RemoveNodeWithoutData,
    RollBackNode,
)
from ebla.topology.node_states import (
    NODE_TABLE,
    REQUEST_STARTS,
    TRANSITIONS_WITH_TABLETS_MOVING,
    NodeAction,
    NodeEdge,
    NodeEdgeCause,
    StatePair,
    node_edges,
    node_row,
)
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState, RequestOutcome, TransitionState

PAIRS = list(itertools.product([*NodeState, None], [*TransitionState, None]))
Pair = tuple[NodeState | None, TransitionState | None]


def pairs(states: tuple[NodeState | None, ...], transitions: tuple[TransitionState | None, ...]) -> list[Pair]:
    return list(itertools.product(states, transitions))


IMPOSSIBLE: list[Pair] = [
    # At rest or gone, a node has no part in a transition: the topology's own rows say what goes on.
    *pairs((NodeState.NONE, NodeState.NORMAL, NodeState.LEFT), (*TransitionState, None)),
    *pairs((NodeState.REBUILDING,), tuple(TransitionState)),
    *pairs(
        (NodeState.BOOTSTRAPPING, NodeState.REPLACING),
        (
            None,
            TransitionState.ROLLBACK_TO_NORMAL,
            TransitionState.TABLET_MIGRATION,
            TransitionState.TABLET_SPLIT_FINALIZATION,
        ),
    ),
    (NodeState.BOOTSTRAPPING, TransitionState.TABLET_DRAINING),
    (NodeState.REPLACING, TransitionState.COMMIT_CDC_GENERATION),
    *pairs(
        (NodeState.DECOMMISSIONING, NodeState.REMOVING),
        (
            None,
            TransitionState.JOIN_GROUP0,
            TransitionState.COMMIT_CDC_GENERATION,
            TransitionState.TABLET_SPLIT_FINALIZATION,
        ),
    ),
    (NodeState.REMOVING, TransitionState.LEFT_TOKEN_RING),
    *pairs(
        (None,),
        (
            TransitionState.JOIN_GROUP0,
            TransitionState.TABLET_DRAINING,
            TransitionState.WRITE_BOTH_READ_OLD,
            TransitionState.WRITE_BOTH_READ_NEW,
            TransitionState.LEFT_TOKEN_RING,
            TransitionState.ROLLBACK_TO_NORMAL,
        ),
    ),
]


@pytest.mark.parametrize(("state", "transition"), PAIRS)
def test_every_pair_has_a_row_or_cannot_occur(state: NodeState | None, transition: TransitionState | None) -> None:
    assert ((state, transition) in NODE_TABLE) is not ((state, transition) in IMPOSSIBLE)
    row = node_row(state, transition)
    assert (row is None) is ((state, transition) in IMPOSSIBLE)


def test_every_edge_leads_to_a_row_or_to_the_end() -> None:
    for edge in node_edges():
        ends = edge.target.transition is None and edge.target.state in (NodeState.NORMAL, NodeState.LEFT)
        assert ends or node_row(edge.target.state, edge.target.transition) is not None, edge


def test_every_row_is_reached_from_the_start_of_a_request() -> None:
    reached = {(start.target.state, start.target.transition) for start in REQUEST_STARTS.values()}
    for _ in NODE_TABLE:
        reached |= {
            (edge.target.state, edge.target.transition)
            for edge in node_edges()
            if (edge.source.state, edge.source.transition) in reached
        }
    of_nodes = {pair for pair in NODE_TABLE if pair[0] is not None}
    assert of_nodes <= reached
    assert reached - of_nodes == {(NodeState.NORMAL, None), (NodeState.LEFT, None)}


def test_every_request_has_a_start() -> None:
    assert set(REQUEST_STARTS) == set(NodeRequestKind)


def test_rows_keep_their_word() -> None:
    for row in NODE_TABLE.values():
        assert row.label.startswith("INV-NODE-")
        assert row.promise
        # Streaming needs a session, and every other right to have effects ends with it.
        assert row.session is (row.action is NodeAction.STREAM)
        # Where reads use the new ring there is no way back (INV-NODE-15).
        if row.here.transition is TransitionState.WRITE_BOTH_READ_NEW:
            assert row.on_failure is None
        # A state that changes what requests use is left behind a barrier only.
        if row.here.transition in (TransitionState.WRITE_BOTH_READ_OLD, TransitionState.WRITE_BOTH_READ_NEW):
            assert row.barrier
    moving = {row.here.transition for row in NODE_TABLE.values() if row.action is NodeAction.MOVE_TABLETS}
    draining = {row.here.transition for row in NODE_TABLE.values() if row.action is NodeAction.DRAIN_TABLETS}
    assert moving | draining == set(TRANSITIONS_WITH_TABLETS_MOVING)


class EdgeRecorder(World):
    """Notes which edges of the table commits took."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[tuple[StatePair, StatePair]] = set()

    def watch(self, before: Snapshot) -> None:
        for node in before.nodes.values():
            after = self.snapshot.nodes[node.host]
            source = self._place(before, node.state)
            target = self._place(self.snapshot, after.state)
            if (source != target or node.state is not after.state) and (
                node.in_transition or after.state != node.state
            ):
                self.taken.add((source, target))

    @staticmethod
    def _place(snapshot: Snapshot, state: NodeState) -> StatePair:
        at_rest = state in (NodeState.NONE, NodeState.NORMAL, NodeState.LEFT)
        return StatePair(state, None if at_rest else snapshot.transition)


def recorded(number_of_nodes: int = 4) -> tuple[EdgeRecorder, Coordinator]:
    world = EdgeRecorder()
    world.create(world.node(1))
    coordinator = Coordinator(world)
    for number in range(2, number_of_nodes + 1):
        world.ask_to_join(world.node(number))
        run(world, coordinator)
    return world, coordinator


def run(world: EdgeRecorder, coordinator: Coordinator, *, fail_in: TransitionState | None = None) -> None:
    """To rest; in `fail_in` the action fails once."""
    failed = False
    for _ in range(300):
        before = world.snapshot
        fails = not failed and fail_in is not None and before.transition is fail_in
        failed = failed or fails
        coordinator.step(fails=fails)
        world.watch(before)
        if world.snapshot is before:
            return
    raise AssertionError("no rest")


def run_case(kind: NodeRequestKind, fail_in: TransitionState | None) -> set[tuple[StatePair, StatePair]]:
    world, coordinator = recorded()
    world.taken.clear()
    match kind:
        case NodeRequestKind.JOIN:
            world.ask_to_join(world.node(9))
        case NodeRequestKind.REPLACE:
            world.dead.add(host(2))
            world.ask_to_join(world.node(9, rack=world.snapshot.node(host(2)).rack), replaced=host(2))
        case NodeRequestKind.REMOVE:
            world.dead.add(host(2))
            world.ask(kind, 2)
        case _:
            world.ask(kind, 2)
    run(world, coordinator, fail_in=fail_in)
    assert world.snapshot.transition is None
    assert world.snapshot.node_in_transition() is None
    return world.taken


def rejected_cases() -> set[tuple[StatePair, StatePair]]:
    """Rejected before it starts, and while in `join_group0`, for a join and a replace."""
    taken = set()
    for replaced in (None, host(2)):
        for started in (False, True):
            world, coordinator = recorded()
            world.taken.clear()
            if replaced is not None:
                world.dead.add(replaced)
            world.ask_to_join(world.node(9, rack="r2"), replaced=replaced)
            if started:
                coordinator.until(TransitionState.JOIN_GROUP0)
            before = world.snapshot
            world.do(RejectNode(host(9), "it did not answer", world.now_ms))
            world.watch(before)
            assert world.snapshot.node(host(9)).state is NodeState.LEFT
            taken |= world.taken
    return taken


def rebuild_failed() -> set[tuple[StatePair, StatePair]]:
    world, coordinator = recorded()
    world.taken.clear()
    request = world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    before = world.snapshot
    coordinator.step(fails=True)
    world.watch(before)
    assert world.outcome(request.id) is RequestOutcome.FAILED
    return world.taken


def removed_without_data() -> set[tuple[StatePair, StatePair]]:
    world, _ = recorded()
    for table in world.snapshot.tables.values():
        assert "tables" in world.refused(RemoveNodeWithoutData(host(2), world.now_ms))
        world.do(DropTable(table.id))
    world.taken.clear()
    before = world.snapshot
    world.do(RemoveNodeWithoutData(host(2), world.now_ms))
    world.watch(before)
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert not world.snapshot.node(host(2)).tokens
    return world.taken


def test_every_edge_of_the_table_is_committed_by_apply_and_no_other() -> None:
    taken: set[tuple[StatePair, StatePair]] = rejected_cases() | rebuild_failed() | removed_without_data()
    for kind in NodeRequestKind:
        taken |= run_case(kind, None)
        for fail_in in TransitionState:
            taken |= run_case(kind, fail_in)
    expected = {(edge.source, edge.target) for edge in node_edges()}
    assert taken == expected


def edges_with_failure() -> list[NodeEdge]:
    return [edge for edge in node_edges() if edge.cause is NodeEdgeCause.FAILED]


def test_the_failure_column() -> None:
    """Joins end in `left`, what goes comes back to normal, and past the switch of reads there is no way back."""
    for edge in edges_with_failure():
        joins = edge.source.state in (NodeState.BOOTSTRAPPING, NodeState.REPLACING)
        if edge.source.state is NodeState.REBUILDING:
            assert edge.target == StatePair(NodeState.NORMAL, None)
        elif joins:
            assert edge.target == StatePair(edge.source.state, TransitionState.LEFT_TOKEN_RING)
        else:
            assert edge.target == StatePair(edge.source.state, TransitionState.ROLLBACK_TO_NORMAL)
    repeated = {row.here.transition for row in NODE_TABLE.values() if row.on_failure is None and row.here.state}
    assert repeated == {
        TransitionState.WRITE_BOTH_READ_NEW,
        TransitionState.LEFT_TOKEN_RING,
        TransitionState.ROLLBACK_TO_NORMAL,
        TransitionState.TABLET_MIGRATION,
    }


def test_no_way_back_is_refused_with_the_reason() -> None:
    world, coordinator = recorded()
    world.ask_to_join(world.node(9))
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    reason = world.refused(
        RollBackNode(host=host(9), leaving=TransitionState.WRITE_BOTH_READ_NEW, reason="no", now_ms=world.now_ms)
    )
    assert "no way back" in reason


def test_rows_of_the_topology_alone_are_used() -> None:
    world, coordinator = recorded()
    world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    row = node_row(None, TransitionState.COMMIT_CDC_GENERATION)
    assert row is not None
    assert row.action is NodeAction.COMMIT_GENERATION
    world.do(
        CommitCdcGeneration(
            timestamp_ms=world.now_ms, session=world.new_session(), now_ms=1, fence=world.snapshot.version
        )
    )
    assert world.snapshot.transition is None
    assert "not in transition" in world.refused(
        AdvanceNode(host=host(1), leaving=None, session=world.new_session(), now_ms=1)
    )
