"""A resize from its decision to the new map."""

from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.model.identity import Replica, ShardNumber, TableId
from ebla.topology.apply.resize import tables_to_finalize
from ebla.topology.commands import (
    DecideResize,
    FinalizeResize,
    LeaveMigrationTrack,
    ReportResizeReady,
    StartMoves,
    StartResizeFinalization,
    TabletMove,
)
from ebla.topology.states import NodeRequestKind, ResizeType, TransitionKind, TransitionState


def test_a_split_doubles_the_tablets_and_keeps_their_replicas() -> None:
    world, coordinator = cluster(3)
    table = world.create_table(256, 2)
    before = list(world.snapshot.tablets[table].replica_sets())
    world.do(DecideResize(table, ResizeType.SPLIT))
    assert "already split" in world.refused(DecideResize(table, ResizeType.SPLIT))
    assert tables_to_finalize(world.snapshot) == ()
    assert "not the decision" in world.refused(ReportResizeReady(table, 7))
    world.do(ReportResizeReady(table, 1))
    assert "known to be ready" in world.refused(ReportResizeReady(table, 1))
    assert tables_to_finalize(world.snapshot) == (table,)
    coordinator.settle()
    after = world.snapshot.tablets[table]
    assert after.tablet_count == 512
    assert [after.replicas(2 * number) for number in range(256)] == before
    assert [after.replicas(2 * number + 1) for number in range(256)] == before
    assert (after.resize.kind, after.resize.ready) == (ResizeType.NONE, False)


def test_a_merge_halves_them_and_leaves_no_key_behind() -> None:
    world, coordinator = cluster(1)
    table = world.create_table(256, 1)
    for number in range(1, 256, 2):
        same = world.snapshot.tablets[table].replicas(number - 1)
        if world.snapshot.tablets[table].replicas(number) != same:
            world.do(
                StartMoves(
                    (
                        TabletMove(
                            table=table, tablet=number, kind=TransitionKind.INTRANODE_MIGRATION, new_replicas=same
                        ),
                    )
                )
            )
    coordinator.settle()
    world.do(DecideResize(table, ResizeType.MERGE))
    world.do(ReportResizeReady(table, 1))
    coordinator.settle()
    assert world.snapshot.tablets[table].tablet_count == 128
    assert len([key for key in world.group0.values if "/chunk/" in key]) == 1


def test_siblings_apart_are_not_merged() -> None:
    world, _ = cluster(3)
    table = world.create_table(4, 2)
    world.do(DecideResize(table, ResizeType.MERGE))
    assert "different replicas" in world.refused(ReportResizeReady(table, 1))


def test_a_merge_that_was_ready_is_not_finalised_after_siblings_parted() -> None:
    world, coordinator = cluster(3)
    table = world.create_table(2, 1)
    even = world.snapshot.tablets[table].replicas(0)
    world.do(StartMoves((TabletMove(table=table, tablet=1, kind=TransitionKind.MIGRATION, new_replicas=even),)))
    coordinator.settle()
    world.do(DecideResize(table, ResizeType.MERGE))
    world.do(ReportResizeReady(table, 1))
    assert tables_to_finalize(world.snapshot) == (table,)
    apart = (Replica(host(3), ShardNumber(1)),)
    world.do(StartMoves((TabletMove(table=table, tablet=1, kind=TransitionKind.MIGRATION, new_replicas=apart),)))
    coordinator.settle()
    assert tables_to_finalize(world.snapshot) == ()
    assert world.snapshot.tablets[table].tablet_count == 2


def ready_split() -> tuple[World, TableId]:
    world, _ = cluster(3)
    table = world.create_table(2, 2)
    world.do(DecideResize(table, ResizeType.SPLIT))
    world.do(ReportResizeReady(table, 1))
    return world, table


def test_finalisation_needs_rest_and_a_barrier() -> None:
    world, table = ready_split()
    assert "topology is in None" in world.refused(FinalizeResize())
    world.do(StartResizeFinalization())
    assert "no barrier yet" in world.refused(FinalizeResize())
    assert "being finalised" in world.refused(DecideResize(table, ResizeType.NONE))
    assert "topology is in" in world.refused(StartResizeFinalization())
    world.do(FinalizeResize(fence=world.snapshot.version))
    assert world.snapshot.transition is None


def test_the_track_leads_to_a_waiting_resize() -> None:
    world, table = ready_split()
    replicas = world.snapshot.tablets[table].replicas(0)
    move = TabletMove(
        table=table,
        tablet=0,
        kind=TransitionKind.MIGRATION,
        new_replicas=(replicas[0], Replica(host(3), ShardNumber(0))),
    )
    world.do(StartMoves((move,)))
    assert "topology is in" in world.refused(StartResizeFinalization())
    coordinator = Coordinator(world)
    while world.snapshot.any_tablet_transition:
        coordinator.advance_tablets(((table, 0),))
    world.do(LeaveMigrationTrack())
    assert world.snapshot.transition is TransitionState.TABLET_SPLIT_FINALIZATION


def test_a_decision_is_revoked_and_counted() -> None:
    world, table = ready_split()
    world.do(DecideResize(table, ResizeType.NONE))
    resize = world.snapshot.tablets[table].resize
    assert (resize.kind, resize.number, resize.ready) == (ResizeType.NONE, 2, False)
    assert "not the decision" in world.refused(ReportResizeReady(table, 2))
    assert "no resize is ready" in world.refused(StartResizeFinalization())


def test_what_cannot_be_decided() -> None:
    world, _ = cluster(2)
    table = world.create_table(1, 1)
    assert "nothing to merge" in world.refused(DecideResize(table, ResizeType.MERGE))
    assert "has no tablets" in world.refused(DecideResize(TableId(world.new_id()), ResizeType.SPLIT))


def test_no_finalisation_while_a_node_rebuilds() -> None:
    world, _ = ready_split()
    world.ask(NodeRequestKind.REBUILD, 2)
    Coordinator(world).step()
    assert "node is in transition" in world.refused(StartResizeFinalization())
