"""Every column of the seed's `system.topology` can be read from a snapshot: the table it will be served as."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.unit.topology.world import World, cluster, host

from ebla.topology.commands import MarkCdcPublished
from ebla.topology.snapshot import CdcGeneration, GlobalRequest, Node, NodeRequest, Snapshot
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    TransitionState,
    UpgradeState,
)

SEED = Path(__file__).resolve().parents[2].parent / "shared" / "seeds" / "topology-over-raft.md"


def request_of(snapshot: Snapshot, node: Node) -> NodeRequest | None:
    return snapshot.node_requests[node.request] if node.request is not None else None


def ignored_for(snapshot: Snapshot, node: Node) -> tuple[object, ...]:
    """The seed has the list on the node that replaces or is removed; here its request has it."""
    request = request_of(snapshot, node)
    return request.ignored_nodes if request is not None else ()


OF_NODES: Mapping[str, Callable[[Snapshot, Node], object]] = MappingProxyType(
    {
        "host_id": lambda _, node: node.host,
        "datacenter": lambda _, node: node.datacenter,
        "ignore_msb": lambda _, node: node.ignore_msb,
        "node_state": lambda _, node: node.state,
        "num_tokens": lambda _, node: node.num_tokens,
        "rack": lambda _, node: node.rack,
        "rebuild_option": lambda _, node: node.rebuild_source,
        "release_version": lambda _, node: node.release_version,
        "replaced_id": lambda _, node: node.replaced,
        "ignore_nodes": ignored_for,
        "shard_count": lambda _, node: node.shard_count,
        "tokens": lambda _, node: node.tokens,
        "topology_request": lambda snapshot, node: getattr(request_of(snapshot, node), "kind", None),
    }
)


def head(snapshot: Snapshot) -> GlobalRequest | None:
    queue = snapshot.state.global_requests
    return snapshot.global_requests[queue[0]] if queue else None


def committed(snapshot: Snapshot, keep: Callable[[CdcGeneration], bool]) -> set[tuple[int, object]]:
    heads = snapshot.cdc_generations.values()
    return {(each.timestamp_ms, each.id) for each in heads if each.timestamp_ms is not None and keep(each)}


STATIC: Mapping[str, Callable[[Snapshot], object]] = MappingProxyType(
    {
        "transition_state": lambda snapshot: snapshot.transition,
        "committed_cdc_generations": lambda snapshot: committed(snapshot, lambda _: True),
        "unpublished_cdc_generations": lambda snapshot: committed(snapshot, lambda each: not each.published),
        "global_topology_request": lambda snapshot: getattr(head(snapshot), "kind", None),
        "global_topology_request_id": lambda snapshot: getattr(head(snapshot), "id", None),
        "new_cdc_generation_data_uuid": lambda snapshot: snapshot.state.new_cdc_generation,
        "new_keyspace_rf_change_ks_name": lambda snapshot: getattr(head(snapshot), "keyspace", None),
        "new_keyspace_rf_change_data": lambda snapshot: getattr(head(snapshot), "new_factors", None),
        "upgrade_state": lambda snapshot: snapshot.state.upgrade,
    }
)


def columns(world: World, number: int) -> dict[str, object]:
    node = world.snapshot.node(host(number))
    return {name: read(world.snapshot, node) for name, read in OF_NODES.items()}


def statics(world: World) -> dict[str, object]:
    return {name: read(world.snapshot) for name, read in STATIC.items()}


def test_the_columns_are_those_of_the_seed() -> None:
    if not SEED.exists():
        pytest.skip("the documents are not beside this checkout")
    text = SEED.read_text()
    schema = re.search(r"CREATE TABLE system\.topology \((.*?)PRIMARY KEY", text, re.DOTALL)
    assert schema is not None
    lines = [line.split() for line in schema[1].strip().splitlines()]
    named = {words[0]: words[-1] == "static," for words in lines}
    del named["key"]
    described = re.findall(
        r"^- [`'](\w+)[`'] +-", text[text.index("There are also a few static columns") :], re.MULTILINE
    )
    assert {name for name, static in named.items() if not static} == set(OF_NODES)
    assert {name for name, static in named.items() if static} | {"upgrade_state"} == set(STATIC)
    assert set(STATIC) <= set(described)


def test_a_joining_node() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    found = columns(world, 3)
    tokens = found.pop("tokens")
    assert isinstance(tokens, tuple)
    assert len(tokens) == 4
    assert found == {
        "host_id": host(3),
        "datacenter": "dc1",
        "ignore_msb": 12,
        "node_state": NodeState.BOOTSTRAPPING,
        "num_tokens": 4,
        "rack": "r0",
        "rebuild_option": None,
        "release_version": "1.0",
        "replaced_id": None,
        "ignore_nodes": (),
        "shard_count": 2,
        "topology_request": NodeRequestKind.JOIN,
    }
    assert request.id == world.snapshot.node(host(3)).request
    static = statics(world)
    assert static["transition_state"] is TransitionState.COMMIT_CDC_GENERATION
    assert static["new_cdc_generation_data_uuid"] in world.snapshot.cdc_generations
    assert static["upgrade_state"] is UpgradeState.DONE


def test_a_replacing_and_a_rebuilding_node() -> None:
    world, coordinator = cluster(4)
    world.dead.update((host(2), host(4)))
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2), ignored_nodes=(host(4),))
    coordinator.step()
    found = columns(world, 9)
    assert (found["replaced_id"], found["ignore_nodes"]) == (host(2), (host(4),))
    assert (found["node_state"], found["topology_request"]) == (NodeState.REPLACING, NodeRequestKind.REPLACE)
    coordinator.settle()
    assert columns(world, 9)["replaced_id"] == host(2), "afterwards too"
    world.ask(NodeRequestKind.REBUILD, 1, rebuild_source="dc1")
    assert columns(world, 1)["rebuild_option"] == "dc1"


def test_generations_and_global_requests() -> None:
    world, _ = cluster(2)
    first, second = sorted(world.snapshot.cdc_generations.values(), key=lambda each: each.timestamp_ms or 0)
    world.do(MarkCdcPublished(first.id))
    world.create_table(2, 1)
    request = world.ask_global(GlobalRequestKind.KEYSPACE_RF_CHANGE, keyspace="ks", new_factors=(("dc1", 2),))
    static = statics(world)
    assert static["committed_cdc_generations"] == {(first.timestamp_ms, first.id), (second.timestamp_ms, second.id)}
    assert static["unpublished_cdc_generations"] == {(second.timestamp_ms, second.id)}
    assert static["global_topology_request"] is GlobalRequestKind.KEYSPACE_RF_CHANGE
    assert static["global_topology_request_id"] == request.id
    assert static["new_keyspace_rf_change_ks_name"] == "ks"
    assert static["new_keyspace_rf_change_data"] == (("dc1", 2),)
