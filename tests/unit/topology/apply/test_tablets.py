"""Tablets on the move: what may start, every edge of the stage table by `apply`, repair times."""

import pytest
from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.model.identity import Replica, SessionId, ShardNumber, TableId, TopologyVersion
from ebla.topology.commands import (
    AbortRequest,
    AdvanceTablets,
    DropTable,
    ExcludeHosts,
    IncludeHost,
    LeaveMigrationTrack,
    RecordRepair,
    SetIgnoredNodes,
    StartMoves,
    StartRfChange,
    TabletAdvance,
    TabletMove,
)
from ebla.topology.snapshot import Exclusion
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    RequestOutcome,
    SessionKind,
    TabletStage,
    TransitionKind,
    TransitionState,
)
from ebla.topology.tablet_stages import STAGES, EdgeCause, stage_edges

MIGRATION = TransitionKind.MIGRATION
INTRANODE = TransitionKind.INTRANODE_MIGRATION
REBUILD = TransitionKind.REBUILD


def at(number: int, shard: int = 0) -> Replica:
    return Replica(host(number), ShardNumber(shard))


def small() -> tuple[World, Coordinator, TableId]:
    """Four nodes; tablet 0 is at (1, 0) and (2, 1)."""
    world, coordinator = cluster(4)
    table = world.create_table(4, 2)
    assert world.snapshot.tablets[table].replicas(0) == (at(1, 0), at(2, 1))
    return world, coordinator, table


def move(table: TableId, kind: TransitionKind, *replicas: Replica, tablet: int = 0) -> StartMoves:
    return StartMoves((TabletMove(table=table, tablet=tablet, kind=kind, new_replicas=replicas),))


def step(
    world: World, table: TableId, *, failed: bool = False, hopeless: bool = False, tablet: int = 0
) -> AdvanceTablets:
    transition = world.snapshot.tablets[table].transition(tablet)
    assert transition is not None
    advance = TabletAdvance(
        table=table,
        tablet=tablet,
        leaving=transition.stage,
        session=world.new_session(),
        failed=failed,
        hopeless=hopeless,
    )
    return AdvanceTablets((advance,), fence=world.snapshot.version)


def stage(world: World, table: TableId, tablet: int = 0) -> TabletStage | None:
    transition = world.snapshot.tablets[table].transition(tablet)
    return None if transition is None else transition.stage


def to_stage(world: World, table: TableId, wanted: TabletStage) -> None:
    for _ in range(12):
        if stage(world, table) is wanted:
            return
        world.do(step(world, table))
    raise AssertionError(f"never in {wanted}")


@pytest.mark.parametrize(
    ("kind", "replicas", "reason"),
    [
        (MIGRATION, (at(3), at(4)), "exactly one replica"),
        (MIGRATION, (at(1, 1), at(2, 1)), "intranode"),
        (MIGRATION, (at(1), at(2, 1)), "exactly one replica"),
        (INTRANODE, (at(3), at(2, 1)), "stays on its node"),
        (REBUILD, (at(1), at(2, 1)), "changes one replica"),
        (REBUILD, (at(3), at(4)), "changes one replica"),
        (REBUILD, (at(1), at(2, 1), at(3)), "further from"),
        (REBUILD, (at(1),), "further from"),
        (MIGRATION, (at(1), at(1, 1)), "at most one replica"),
        (MIGRATION, (at(1), at(77)), "takes no tablets"),
        (MIGRATION, (at(1), at(3, 2)), "no shard 2"),
    ],
)
def test_which_moves_are_refused(kind: TransitionKind, replicas: tuple[Replica, ...], reason: str) -> None:
    world, _, table = small()
    assert reason in world.refused(move(table, kind, *replicas))


def test_a_move_names_a_tablet_that_is_there_and_at_rest() -> None:
    world, _, table = small()
    assert "no moves" in world.refused(StartMoves(()))
    assert "no tablet 9" in world.refused(move(table, MIGRATION, at(1), at(3), tablet=9))
    assert "has no tablets" in world.refused(move(TableId(world.new_id()), MIGRATION, at(1), at(3)))
    once = TabletMove(table=table, tablet=0, kind=MIGRATION, new_replicas=(at(1), at(3)))
    assert "named twice" in world.refused(StartMoves((once, once)))
    world.do(StartMoves((once,)))
    assert "INV-TABL-2" in world.refused(StartMoves((once,)))


def test_an_ignored_node_takes_no_tablets_and_gives_none_by_migration() -> None:
    world, _, table = small()
    world.do(SetIgnoredNodes((host(2), host(3))))
    assert "is ignored" in world.refused(move(table, MIGRATION, at(3), at(2, 1)))
    assert "rebuilt, not migrated" in world.refused(move(table, MIGRATION, at(1), at(4)))
    world.do(move(table, REBUILD, at(1), at(4)))


def test_the_first_move_enters_the_track_and_the_last_end_lets_it_be_left() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    assert world.snapshot.transition is TransitionState.TABLET_MIGRATION
    world.do(move(table, MIGRATION, at(2, 1), at(4), tablet=1))
    assert "still in transition" in world.refused(LeaveMigrationTrack())
    for tablet in (0, 1):
        while stage(world, table, tablet) is not None:
            world.do(step(world, table, tablet=tablet))
    world.do(LeaveMigrationTrack())
    assert "topology is in None" in world.refused(LeaveMigrationTrack())


def test_no_move_starts_while_a_node_is_in_transition() -> None:
    """INV-TABL-3."""
    world, coordinator, table = small()
    world.ask_to_join(world.node(5))
    command = move(table, MIGRATION, at(1), at(3))
    for transition in (
        TransitionState.JOIN_GROUP0,
        TransitionState.COMMIT_CDC_GENERATION,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
    ):
        coordinator.until(transition)
        assert f"in {transition}" in world.refused(command)
    coordinator.settle()
    world.ask(NodeRequestKind.REBUILD, 3)
    coordinator.step()
    assert "in transition" in world.refused(command)


def test_while_a_node_is_drained_tablets_move_only_off_those_that_go() -> None:
    """INV-NODE-13."""
    world, coordinator, table = small()
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    assert "only move off" in world.refused(move(table, MIGRATION, at(3), at(2, 1)))
    assert "takes no tablets" in world.refused(move(table, MIGRATION, at(3), at(2, 0), tablet=2))
    world.do(move(table, MIGRATION, at(1), at(4)))


def test_a_stage_with_a_barrier_is_left_only_behind_it() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    behind = TopologyVersion(world.snapshot.version - 1)
    for row in (STAGES[MIGRATION, each] for each in TabletStage):
        if not row.barrier or row.stage in (
            TabletStage.CLEANUP_TARGET,
            TabletStage.REVERT_MIGRATION,
            TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        ):
            continue
        to_stage(world, table, row.stage)
        (advance,) = step(world, table).steps
        assert "no barrier yet" in world.refused(AdvanceTablets((advance,), fence=TopologyVersion(0)))
        behind = TopologyVersion(max(world.snapshot.version - 1, world.snapshot.fence))
        assert "no barrier yet" in world.refused(AdvanceTablets((advance,), fence=behind))
    world.do(step(world, table))
    assert world.snapshot.tablets[table].replicas(0) == (at(1), at(3))


def test_a_session_is_open_exactly_in_stages_that_act() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    seen: list[SessionId] = []
    while (current := world.snapshot.tablets[table].transition(0)) is not None:
        row = STAGES[MIGRATION, current.stage]
        assert (current.session is not None) is row.session
        if current.session is not None:
            session = world.snapshot.sessions[current.session]
            assert (session.kind, session.table, session.tablet) == (SessionKind.STAGE, table, 0)
            seen.append(session.id)
        assert len(world.snapshot.sessions) == row.session
        world.do(step(world, table))
    assert len(seen) == len(set(seen)) == 2
    assert not world.snapshot.sessions


def test_a_session_id_is_not_used_twice() -> None:
    world, _, table = small()
    world.do(
        StartMoves(
            tuple(
                TabletMove(table=table, tablet=n, kind=MIGRATION, new_replicas=r)
                for n, r in ((0, (at(1), at(3))), (1, (at(2, 1), at(4))))
            )
        )
    )
    to_stage(world, table, TabletStage.STREAMING)
    (open_one,) = world.snapshot.sessions
    world.do(step(world, table, tablet=1))
    twin = TabletAdvance(table=table, tablet=1, leaving=TabletStage.WRITE_BOTH_READ_OLD, session=open_one)
    assert "already open" in world.refused(AdvanceTablets((twin,), fence=world.snapshot.version))


def given_up_for(kind: TransitionKind, cause: EdgeCause) -> int | None:
    """Whom to ignore so that a failure leads along this edge."""
    if cause is EdgeCause.CHOSE_BACK:
        return 3
    return {MIGRATION: 3, REBUILD: 3, INTRANODE: 2}[kind] if cause is EdgeCause.FAILED else None


@pytest.mark.parametrize("kind", list(TransitionKind))
def test_every_edge_of_the_stage_table_is_committed_by_apply(kind: TransitionKind) -> None:
    target = (at(1), at(2, 0)) if kind is INTRANODE else (at(1), at(3))
    for edge in stage_edges(kind):
        if edge.source is None or edge.cause is EdgeCause.CHOSE_FORWARD:
            continue
        world, _, table = small()
        world.do(move(table, kind, *target))
        if edge.source in (TabletStage.CLEANUP_TARGET, TabletStage.REVERT_MIGRATION):
            to_stage(world, table, TabletStage.STREAMING)
            world.do(step(world, table, failed=True, hopeless=True))
        elif edge.source is TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP:
            to_stage(world, table, TabletStage.WRITE_BOTH_READ_NEW)
            world.do(SetIgnoredNodes((host(3),)))
            world.do(step(world, table, failed=True))
        to_stage(world, table, edge.source)
        lost = given_up_for(kind, edge.cause)
        if lost is not None:
            assert "is repeated" in world.refused(step(world, table, failed=True)), "no replica was given up yet"
            world.do(SetIgnoredNodes((host(lost),)))
        world.do(step(world, table, failed=lost is not None))
        assert stage(world, table) is edge.target


def test_who_was_ignored_is_not_waited_for_again_in_the_middle_of_a_move() -> None:
    """`cleanup_target` went by without it: once the transition is over, it drops what it is no replica of."""
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    to_stage(world, table, TabletStage.STREAMING)
    world.do(SetIgnoredNodes((host(3),)))
    world.do(step(world, table, failed=True))
    to_stage(world, table, TabletStage.REVERT_MIGRATION)
    assert "part of moves under way" in world.refused(SetIgnoredNodes(()))
    world.do(step(world, table))
    world.do(SetIgnoredNodes(()))


def test_an_excluded_host_is_not_included_in_the_middle_of_a_move() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    world.do(ExcludeHosts((Exclusion(host=host(3), since_ms=1, by=host(1)),)))
    assert "part of moves under way" in world.refused(IncludeHost(host(3)))


def test_an_aborted_remove_leaves_its_target_ignored_while_tablets_of_it_move() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    request = world.ask(NodeRequestKind.REMOVE, 3)
    world.do(AbortRequest(request.id, "never mind", world.now_ms))
    assert host(3) in world.snapshot.state.ignored_nodes
    at_rest = world.ask(NodeRequestKind.REMOVE, 4)
    world.do(AbortRequest(at_rest.id, "never mind", world.now_ms))
    assert host(4) not in world.snapshot.state.ignored_nodes


def test_at_write_both_read_new_it_goes_on_unless_more_new_replicas_are_lost() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    to_stage(world, table, TabletStage.WRITE_BOTH_READ_NEW)
    world.do(SetIgnoredNodes((host(2),)))
    assert "is repeated" in world.refused(step(world, table, failed=True))
    world.do(step(world, table))
    assert stage(world, table) is TabletStage.USE_NEW


def test_a_failed_move_leaves_the_replicas_as_they_were() -> None:
    world, _, table = small()
    before = list(world.snapshot.tablets[table].replica_sets())
    world.do(move(table, MIGRATION, at(1), at(3)))
    to_stage(world, table, TabletStage.STREAMING)
    world.do(step(world, table, failed=True, hopeless=True))
    while stage(world, table) is not None:
        world.do(step(world, table))
    assert list(world.snapshot.tablets[table].replica_sets()) == before
    assert not world.snapshot.sessions


def test_a_repeated_or_wild_step_is_refused() -> None:
    world, _, table = small()
    world.do(move(table, MIGRATION, at(1), at(3)))
    first = step(world, table)
    world.do(first)
    assert "any more" in world.refused(first)
    assert "no steps" in world.refused(AdvanceTablets(()))
    assert "named twice" in world.refused(AdvanceTablets(step(world, table).steps * 2, fence=world.snapshot.version))
    wild = TabletAdvance(table=table, tablet=1, leaving=TabletStage.STREAMING, session=world.new_session())
    assert "not in transition" in world.refused(AdvanceTablets((wild,)))
    far = TabletAdvance(table=table, tablet=99, leaving=TabletStage.STREAMING, session=world.new_session())
    assert "not in transition" in world.refused(AdvanceTablets((far,)))
    nowhere = TabletAdvance(
        table=TableId(world.new_id()), tablet=1, leaving=TabletStage.STREAMING, session=world.new_session()
    )
    assert "has no tablets" in world.refused(AdvanceTablets((nowhere,)))


def test_ends_of_two_tablets_of_one_chunk_in_one_step() -> None:
    world, _, table = small()
    moves = ((0, (at(1), at(3))), (1, (at(2, 1), at(4))))
    world.do(
        StartMoves(
            tuple(
                TabletMove(table=table, tablet=number, kind=MIGRATION, new_replicas=replicas)
                for number, replicas in moves
            )
        )
    )
    while world.snapshot.any_tablet_transition:
        advances = tuple(each for tablet in (0, 1) for each in step(world, table, tablet=tablet).steps)
        world.do(AdvanceTablets(advances, fence=world.snapshot.version))
    for number, replicas in moves:
        assert world.snapshot.tablets[table].replicas(number) == replicas


def test_a_repair_counts_only_for_a_tablet_at_rest_and_never_backwards() -> None:
    world, _, table = small()
    version = world.snapshot.version
    world.do(RecordRepair(table, ((0, 50), (3, 60))))
    assert world.snapshot.version == version
    assert [world.snapshot.tablets[table].repair_time_ms(number) for number in range(4)] == [50, 0, 0, 60]
    assert "repaired later" in world.refused(RecordRepair(table, ((0, 49),)))
    assert "no tablet 9" in world.refused(RecordRepair(table, ((9, 49),)))
    assert "has no tablets" in world.refused(RecordRepair(TableId(world.new_id()), ((0, 1),)))
    world.do(move(table, MIGRATION, at(1), at(3)))
    assert "does not count" in world.refused(RecordRepair(table, ((0, 70),)))
    while stage(world, table) is not None:
        world.do(step(world, table))
    assert world.snapshot.tablets[table].repair_time_ms(3) == 60


def test_a_change_of_replication_names_every_tablet_and_rebuilds() -> None:
    world, coordinator, table = small()
    request = world.ask_global(GlobalRequestKind.KEYSPACE_RF_CHANGE, keyspace="ks", new_factors=(("dc1", 3),))
    moves = coordinator.rf_moves(request)
    assert len(moves) == 4
    assert "left out" in world.refused(StartRfChange(request.id, moves[1:]))
    wrong = tuple(
        TabletMove(table=each.table, tablet=each.tablet, kind=MIGRATION, new_replicas=each.new_replicas)
        for each in moves
    )
    assert "rebuilds" in world.refused(StartRfChange(request.id, wrong))
    world.do(StartRfChange(request.id, moves))
    assert "already running" in world.refused(StartRfChange(request.id, moves))
    assert stage(world, table) is TabletStage.ALLOW_WRITE_BOTH_READ_OLD
    assert world.snapshot.keyspaces["ks"].replication.factor("dc1") == 3


def test_a_change_of_replication_without_tables_needs_no_moves() -> None:
    world, coordinator, table = small()
    world.do(DropTable(table))
    request = world.ask_global(GlobalRequestKind.KEYSPACE_RF_CHANGE, keyspace="ks", new_factors=(("dc1", 3),))
    coordinator.step()
    assert world.snapshot.transition is None
    coordinator.settle()
    assert world.outcome(request.id) is RequestOutcome.DONE
    assert world.snapshot.keyspaces["ks"].replication.factor("dc1") == 3
