"""Sets of change streams of tables on tablets: when one begins, and when old ones go."""

from dataclasses import replace

import msgspec
from tests.unit.topology.world import World, cluster, host

from ebla.model.identity import Replica, ShardNumber, TableId
from ebla.topology.apply.draft import TopologyDraft
from ebla.topology.apply.resize import with_new_stream_set
from ebla.topology.commands import (
    AlterTable,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DropStreamSets,
    FinalizeResize,
    NewStreams,
    ReportResizeReady,
    StartResizeFinalization,
)
from ebla.topology.snapshot import Keyspace, Replication, Snapshot, Table
from ebla.topology.states import ResizeType, Strategy
from ebla.topology.tablet_map import STREAM_SETS_MAX, TabletStreams, tablet_map


def sets_of(world: World, table: TableId) -> tuple[TabletStreams, ...]:
    return world.snapshot.tablets[table].streams


def captured() -> tuple[World, TableId]:
    world, _ = cluster(1)
    return world, world.create_table(2, 1, cdc=True)


def ready_to_split(world: World, table: TableId) -> None:
    world.do(DecideResize(table, ResizeType.SPLIT))
    world.do(ReportResizeReady(table, world.snapshot.tablets[table].resize.number))
    world.do(StartResizeFinalization())


def switched(world: World, table: TableId, cdc: bool) -> Table:
    return msgspec.structs.replace(world.snapshot.tables[table], cdc=cdc)


def test_a_table_that_captures_changes_begins_with_streams() -> None:
    world, table = captured()
    (first,) = sets_of(world, table)
    assert first.tablet_count == 2
    one = ((Replica(host(1), ShardNumber(0)),),)
    assert "need new streams" in world.refused(
        CreateTable(Table(id=TableId(world.new_id()), keyspace="ks", name="u", cdc=True), one)
    )
    plain = world.create_table(1, 1, name="plain")
    assert sets_of(world, plain) == ()


def test_a_table_on_vnodes_needs_none_of_its_own() -> None:
    world, _ = cluster(1)
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1),))
    world.do(CreateKeyspace(Keyspace(name="old", replication=replication, on_tablets=False)))
    table = TableId(world.new_id())
    world.do(CreateTable(Table(id=table, keyspace="old", name="t", cdc=True)))
    assert world.snapshot.tables[table].cdc
    assert table not in world.snapshot.tablets


def test_a_new_tablet_count_begins_a_new_set() -> None:
    world, table = captured()
    ready_to_split(world, table)
    fence = world.snapshot.version
    (first,) = sets_of(world, table)
    assert "need new streams" in world.refused(FinalizeResize(fence))
    assert "earlier set" in world.refused(FinalizeResize(fence, NewStreams(world.now_ms, first.mark)))
    assert "must be later" in world.refused(FinalizeResize(fence, NewStreams(first.timestamp_ms, 7)))
    assert "38 bits" in world.refused(FinalizeResize(fence, NewStreams(world.now_ms, 1 << 38)))
    world.do(FinalizeResize(fence, NewStreams(world.now_ms + 65_000, 7)))
    assert sets_of(world, table) == (first, TabletStreams(world.now_ms - 1 + 65_000, 4, 7))


def test_capture_turned_on_later_off_and_on_again() -> None:
    world, _ = cluster(1)
    table = world.create_table(2, 1)
    assert "need new streams" in world.refused(AlterTable(switched(world, table, True)))
    world.do(AlterTable(switched(world, table, True), world.new_streams()))
    first = sets_of(world, table)
    world.do(AlterTable(switched(world, table, False)))
    assert sets_of(world, table) == first, "readers still follow them"
    ready_to_split(world, table)
    world.do(FinalizeResize(world.snapshot.version, world.new_streams()))
    world.do(AlterTable(switched(world, table, True)))
    assert [each.tablet_count for each in sets_of(world, table)] == [2, 4]


def test_other_changes_of_the_map_leave_the_streams_alone() -> None:
    world, table = captured()
    before = sets_of(world, table)
    world.do(DecideResize(table, ResizeType.SPLIT))
    world.do(DecideResize(table, ResizeType.NONE))
    assert sets_of(world, table) == before


def test_sets_without_anything_to_read_go_and_the_one_in_use_never() -> None:
    world, table = captured()
    ready_to_split(world, table)
    world.do(FinalizeResize(world.snapshot.version, world.new_streams()))
    _, second = sets_of(world, table)
    assert "no streams from 5 on" in world.refused(DropStreamSets(table, 5))
    assert "no tablets" in world.refused(DropStreamSets(TableId(world.new_id()), 5))
    world.do(DropStreamSets(table, second.timestamp_ms))
    assert sets_of(world, table) == (second,)


def test_there_are_never_more_sets_than_may_be() -> None:
    full = tuple(TabletStreams(time, 1, time) for time in range(1, STREAM_SETS_MAX + 1))
    tablets = replace(tablet_map(TableId(host(1)), [(Replica(host(1), ShardNumber(0)),)]), streams=full)
    newer = with_new_stream_set(TopologyDraft(Snapshot()), tablets, NewStreams(STREAM_SETS_MAX + 1, 0))
    assert newer == (*full[1:], TabletStreams(STREAM_SETS_MAX + 1, 1, 0))
