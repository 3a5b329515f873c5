"""How many ranges lack live replicas, and what is said before a node leaves or is removed."""

from tests.unit.topology.world import World, cluster, host

from ebla.model.identity import TableId
from ebla.topology.commands import CreateKeyspace, CreateTable
from ebla.topology.routing.replica_losses import concerns_about_removal, keyspace_losses
from ebla.topology.snapshot import Keyspace, Replication, Table
from ebla.topology.states import NodeRequestKind, Strategy

LEAVE, REMOVE, REBUILD = NodeRequestKind.LEAVE, NodeRequestKind.REMOVE, NodeRequestKind.REBUILD


def vnode_table(world: World, factor: int, keyspace: str = "shop", strategy: Strategy = Strategy.SIMPLE) -> None:
    datacenter = "" if strategy is Strategy.SIMPLE else "dc1"
    replication = Replication(strategy, ((datacenter, factor),))
    world.do(CreateKeyspace(Keyspace(name=keyspace, replication=replication, on_tablets=False)))
    world.do(CreateTable(Table(id=TableId(world.new_id()), keyspace=keyspace, name="t")))


def concerns(world: World, kind: NodeRequestKind, number: int, *silent: int, **changes: object) -> tuple[str, ...]:
    return concerns_about_removal(world.snapshot, world.request(kind, number, **changes), tuple(map(host, silent)))


def test_ranges_and_tablets_are_counted_by_keyspace_and_a_quorum_goes_by_the_factor() -> None:
    world, _ = cluster(3)
    vnode_table(world, 3)
    vnode_table(world, 1, "single")
    world.create_table(4, 3, "drinks", "a")
    world.create_table(8, 3, "drinks", "b")
    ranges = sum(len(node.tokens) for node in world.snapshot.members())
    own = len(world.snapshot.node(host(3)).tokens)
    assert [str(one) for one in keyspace_losses(world.snapshot, (host(3),))] == [
        f"single: {own} of {ranges} vnode ranges with fewer live replicas than a quorum, {own} without any"
    ]
    drinks, shop, single = keyspace_losses(world.snapshot, (host(2), host(3)))
    assert (drinks.keyspace, drinks.unit, drinks.count) == ("drinks", "tablets", 12)
    assert (drinks.below_quorum, drinks.without_replica) == (12, 0)
    assert (shop.unit, shop.count, shop.below_quorum, shop.without_replica) == ("vnode ranges", ranges, ranges, 0)
    assert single.below_quorum == single.without_replica < ranges
    assert keyspace_losses(world.snapshot, ()) == ()


def test_a_leave_that_no_keyspace_suffers_from_has_no_concerns() -> None:
    world, _ = cluster(4)
    vnode_table(world, 3)
    vnode_table(world, 1, "single")
    assert concerns(world, LEAVE, 4) == (), "its ranges are streamed away"
    assert concerns(world, REBUILD, 4, 1, 2, 3) == (), "it takes nothing away"


def test_a_leave_that_leaves_too_few_nodes_is_a_concern() -> None:
    world, _ = cluster(3)
    vnode_table(world, 3)
    vnode_table(world, 3, "local", Strategy.NETWORK_TOPOLOGY)
    vnode_table(world, 2, "pair")
    assert concerns(world, LEAVE, 3) == (
        "local: replication factor 3 in dc1, and 2 nodes left",
        "shop: replication factor 3, and 2 nodes left",
    )
    lost = concerns(world, LEAVE, 3, 2)
    assert any(line.startswith("shop: ") and line.endswith("than a quorum, 0 without any") for line in lost)
    assert any(line.startswith("pair: ") for line in lost)


def test_a_removal_counts_what_the_remaining_nodes_hold_now() -> None:
    world, _ = cluster(4)
    vnode_table(world, 1, "single")
    vnode_table(world, 2, "pair")
    own = len(world.snapshot.node(host(4)).tokens)
    (pair, single) = concerns(world, REMOVE, 4, 4)
    assert pair.endswith("0 without any")
    assert single.endswith(f"{own} without any"), "nobody else has them"
    (both, _single) = concerns(world, REMOVE, 4, ignored_nodes=(host(3),))
    assert not both.endswith(" 0 without any"), "ranges of the two dead nodes"
