"""A small cluster with a table on tablets and one on vnodes."""

from tests.unit.topology.world import Coordinator, World

from ebla.model.identity import TableId
from ebla.topology.commands import CreateKeyspace, CreateTable
from ebla.topology.snapshot import Keyspace, Replication, Table
from ebla.topology.states import Strategy


def a_cluster(size: int = 4) -> tuple[World, Coordinator]:
    world = World()
    world.create(world.node(1, ignore_msb=0))
    coordinator = Coordinator(world)
    for number in range(2, size + 1):
        world.ask_to_join(world.node(number, ignore_msb=0))
        coordinator.settle()
    return world, coordinator


def on_vnodes(world: World, factor: int = 3) -> TableId:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    world.do(CreateKeyspace(Keyspace(name="ring", replication=replication, on_tablets=False)))
    table = Table(id=TableId(world.new_id()), keyspace="ring", name="t")
    world.do(CreateTable(table, ()))
    return table.id


WORLD, _ = a_cluster()

TABLETS = WORLD.create_table(4, 3)
"""Tablet n is on hosts n+1, n+2, n+3 (of 4, around), at shards n, n+1, n+2 modulo 2."""

VNODES = on_vnodes(WORLD)
