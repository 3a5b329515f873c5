"""Keyspaces, tables, bulk jobs."""

from typing import Any

import msgspec
import pytest
from tests.unit.topology.world import World, cluster, host

from ebla.model.identity import Replica, SessionId, ShardNumber, TableId
from ebla.topology.apply.schema import BULK_SESSIONS_MAX
from ebla.topology.commands import (
    AlterKeyspace,
    AlterTable,
    CloseSessions,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    OpenBulkSession,
    SetIgnoredNodes,
    StartMoves,
    TabletMove,
)
from ebla.topology.snapshot import Keyspace, Replication, Session, Table
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    SessionKind,
    Strategy,
    TransitionKind,
    TransitionState,
)

NETWORK = Strategy.NETWORK_TOPOLOGY


def keyspace(name: str = "ks", factors: tuple[tuple[str, int], ...] = (("dc1", 2),), **changes: Any) -> Keyspace:
    fields = {"strategy": NETWORK, "on_tablets": True, **changes}
    return Keyspace(name=name, replication=Replication(fields["strategy"], factors), on_tablets=fields["on_tablets"])


def at(number: int, shard: int = 0) -> Replica:
    return Replica(host(number), ShardNumber(shard))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (keyspace("a b"), "no name"),
        (keyspace("x" * 49), "no name"),
        (keyspace("a/b"), "no name"),
        (keyspace(factors=(("dc1", 0),)), "replica somewhere"),
        (keyspace(factors=(("dc1", 2), ("dc1x", -1))), "not negative"),
        (keyspace(factors=(("dc9", 1),)), "no datacenter dc9"),
        (keyspace(factors=(("z", 1), ("dc1", 1))), "sorted"),
        (keyspace(factors=(("", 1),), strategy=Strategy.SIMPLE), "tablets need"),
        (keyspace(factors=(("dc1", 1),), strategy=Strategy.SIMPLE, on_tablets=False), "one factor"),
    ],
)
def test_which_keyspaces_are_refused(made: Keyspace, reason: str) -> None:
    world, _ = cluster(2)
    assert reason in world.refused(CreateKeyspace(made))


def test_replication_on_vnodes_changes_only_when_the_topology_is_idle() -> None:
    """Otherwise reads switch to replicas that nobody streamed to."""
    world, coordinator = cluster(2)
    world.do(CreateKeyspace(keyspace("v", (("dc1", 2),), on_tablets=False)))
    request = world.ask_to_join(world.node(3))
    changed = keyspace("v", (("dc1", 1),), on_tablets=False)
    for transition in (TransitionState.JOIN_GROUP0, TransitionState.WRITE_BOTH_READ_NEW):
        coordinator.until(transition)
        refusal = world.refused(AlterKeyspace(changed))
        assert f"join (request {request.id}) of {host(3)} at 127.0.0.3, in {transition}" in refusal
        same = world.snapshot.keyspaces["v"]
        world.do(AlterKeyspace(msgspec.structs.replace(same, durable_writes=not same.durable_writes)))
    coordinator.settle()
    world.do(AlterKeyspace(changed))
    assert world.snapshot.keyspaces["v"] == changed


def test_replication_on_vnodes_does_not_change_while_a_node_is_rebuilt_or_tablets_move() -> None:
    world, coordinator = cluster(3)
    world.create_table(2, 1)
    world.do(CreateKeyspace(keyspace("v", (("dc1", 2),), on_tablets=False)))
    changed = keyspace("v", (("dc1", 1),), on_tablets=False)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    assert "rebuild" in world.refused(AlterKeyspace(changed))
    coordinator.settle()
    (table,) = world.snapshot.tablets
    (old,) = world.snapshot.tablets[table].replicas(0)
    free = next(node.host for node in world.placeable() if node.host != old.host)
    move = TabletMove(
        table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=(Replica(free, ShardNumber(0)),)
    )
    world.do(StartMoves((move,)))
    assert "tablet_migration" in world.refused(AlterKeyspace(changed))


def test_the_life_of_a_keyspace() -> None:
    world, _ = cluster(2)
    world.do(CreateKeyspace(keyspace()))
    assert "exists" in world.refused(CreateKeyspace(keyspace()))
    world.do(CreateKeyspace(keyspace("old", (("", 2),), strategy=Strategy.SIMPLE, on_tablets=False)))
    changed = keyspace("old", (("dc1", 1),), on_tablets=False)
    world.do(AlterKeyspace(changed))
    assert world.snapshot.keyspaces["old"] == changed
    assert "stays on" in world.refused(AlterKeyspace(keyspace("old")))
    assert "by a global request" in world.refused(AlterKeyspace(keyspace(factors=(("dc1", 1),))))
    assert "no keyspace" in world.refused(AlterKeyspace(keyspace("none")))
    world.do(AlterKeyspace(msgspec.structs.replace(keyspace(), durable_writes=False)))
    world.do(DropKeyspace("old"))
    assert "no keyspace" in world.refused(DropKeyspace("old"))


def test_a_keyspace_in_use_is_not_dropped() -> None:
    world, _ = cluster(3)
    table = world.create_table(2, 2)
    assert "still has table t" in world.refused(DropKeyspace("ks"))
    world.do(DropTable(table))
    world.ask_global(GlobalRequestKind.KEYSPACE_RF_CHANGE, keyspace="ks", new_factors=(("dc1", 3),))
    assert "waiting" in world.refused(DropKeyspace("ks"))


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ((), "power of two"),
        (((at(1), at(2)),) * 3, "power of two"),
        (((at(1), at(1, 1)),), "at most one replica"),
        (((at(1),),), "replicas per datacenter"),
        (((at(1), at(2), at(3)),), "replicas per datacenter"),
        (((at(1), at(2, 7)),), "no shard 7"),
        (((at(1), at(77)),), "not a member"),
    ],
)
def test_which_tablets_are_refused(sets: tuple[tuple[Replica, ...], ...], reason: str) -> None:
    world, _ = cluster(3)
    world.do(CreateKeyspace(keyspace()))
    table = Table(id=TableId(world.new_id()), keyspace="ks", name="t")
    assert reason in world.refused(CreateTable(table, sets))


def test_no_new_tablet_on_a_node_that_goes() -> None:
    world, coordinator = cluster(4)
    world.do(CreateKeyspace(keyspace()))
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    table = Table(id=TableId(world.new_id()), keyspace="ks", name="t")
    assert "decommissioning and takes no tablets" in world.refused(CreateTable(table, ((at(1), at(2)),)))
    world.do(CreateTable(table, ((at(1), at(3)),)))


def test_no_new_tablet_on_a_node_that_was_given_up() -> None:
    world, _ = cluster(3)
    world.do(CreateKeyspace(keyspace()))
    world.do(SetIgnoredNodes((host(2),)))
    table = Table(id=TableId(world.new_id()), keyspace="ks", name="t")
    assert "is ignored and takes no tablets" in world.refused(CreateTable(table, ((at(1), at(2)),)))


def test_the_life_of_a_table() -> None:
    world, _ = cluster(3)
    table = world.create_table(2, 2)
    row = world.snapshot.tables[table]
    twin = Table(id=TableId(world.new_id()), keyspace="ks", name="t")
    sets = ((at(1), at(2)),)
    assert "exists" in world.refused(CreateTable(twin, sets))
    assert "is in use" in world.refused(CreateTable(msgspec.structs.replace(row, name="u"), sets))
    assert "no keyspace" in world.refused(CreateTable(msgspec.structs.replace(twin, keyspace="no"), sets))
    assert "no name" in world.refused(CreateTable(msgspec.structs.replace(twin, name="no!"), sets))
    world.do(AlterTable(msgspec.structs.replace(row, definition=b"columns")))
    assert world.snapshot.tables[table].definition == b"columns"
    assert "keeps its name" in world.refused(AlterTable(msgspec.structs.replace(row, name="u")))
    assert "no table" in world.refused(AlterTable(twin))
    assert world.snapshot.on_tablets(table)
    world.do(DropTable(table))
    assert (world.snapshot.tables, world.snapshot.tablets) == ({}, {})
    assert "no table" in world.refused(DropTable(table))
    assert not [key for key in world.group0.values if "/tablets/" in key]


def test_a_table_on_vnodes_has_no_tablets() -> None:
    world, _ = cluster(2)
    world.do(CreateKeyspace(keyspace(on_tablets=False)))
    table = Table(id=TableId(world.new_id()), keyspace="ks", name="t")
    assert "on vnodes" in world.refused(CreateTable(table, ((at(1), at(2)),)))
    world.do(CreateTable(table))
    assert world.snapshot.tablets == {}
    assert not world.snapshot.on_tablets(table.id)


def test_a_dropped_table_takes_its_moves_and_sessions_along() -> None:
    world, coordinator = cluster(3)
    table = world.create_table(2, 1)
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=(at(3),)),)))
    for _ in range(2):
        coordinator.step()
    world.do(OpenBulkSession(bulk(world, table)))
    assert len(world.snapshot.sessions) == 2
    world.do(DropTable(table))
    assert not world.snapshot.sessions
    coordinator.settle()
    assert world.snapshot.transition is None


def bulk(world: World, table: TableId, deadline_ms: int | None = 2_000_000) -> Session:
    return Session(id=SessionId(world.new_id()), kind=SessionKind.BULK_JOB, table=table, deadline_ms=deadline_ms)


def test_a_bulk_job_needs_a_table_and_a_deadline() -> None:
    world, coordinator = cluster(2)
    table = world.create_table(2, 1)
    assert "deadline" in world.refused(OpenBulkSession(bulk(world, table, None)))
    assert "no table" in world.refused(OpenBulkSession(bulk(world, TableId(world.new_id()))))
    stage = msgspec.structs.replace(bulk(world, table), kind=SessionKind.STAGE)
    assert "themselves" in world.refused(OpenBulkSession(stage))
    session = bulk(world, table)
    world.do(OpenBulkSession(session))
    assert "already open" in world.refused(OpenBulkSession(session))
    world.do(CloseSessions((session.id, SessionId(world.new_id()))))
    assert not world.snapshot.sessions
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    (running,) = world.snapshot.sessions
    assert "ends with it" in world.refused(CloseSessions((running,)))


def test_bulk_jobs_are_bounded() -> None:
    world, _ = cluster(1, checking=False)
    table = world.create_table(2, 1)
    for _ in range(BULK_SESSIONS_MAX):
        world.do(OpenBulkSession(bulk(world, table)))
    assert "wait for some" in world.refused(OpenBulkSession(bulk(world, table)))
