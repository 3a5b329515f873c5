"""Replicas of vnodes against the drivers' own computation."""

from dataclasses import dataclass

import pytest
from cassandra.metadata import (
    Murmur3Token,
    NetworkTopologyStrategy,
    SimpleStrategy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.small_cluster import host, network, simple

from ebla.model.identity import HostId
from ebla.topology.routing.replication_strategies import NodeLocation, RingReplicas
from ebla.topology.routing.vnode_ring import TokenRing


@dataclass(frozen=True)
class DriverHost:
    host: HostId
    datacenter: str
    rack: str


@st.composite
def rings(draw: st.DrawFn) -> tuple[TokenRing, dict[HostId, NodeLocation]]:
    """Up to eight nodes in two datacenters of up to four racks, one to four tokens each, well mixed."""
    count = draw(st.integers(1, 8))
    places = {
        host(number): NodeLocation(draw(st.sampled_from(["dc1", "dc2"])), f"r{draw(st.integers(1, 4))}")
        for number in range(count)
    }
    tokens = draw(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=count, max_size=4 * count, unique=True))
    owners = [host(number % count) for number in range(len(tokens))]
    owned = sorted(zip(tokens, draw(st.permutations(owners)), strict=True))
    return TokenRing(tuple(token for token, _ in owned), tuple(each for _, each in owned)), places


def driver_inputs(
    ring: TokenRing, places: dict[HostId, NodeLocation]
) -> tuple[dict[Murmur3Token, DriverHost], list[Murmur3Token]]:
    hosts = {each: DriverHost(each, place.datacenter, place.rack) for each, place in places.items()}
    tokens = [Murmur3Token(token) for token in ring.tokens]
    return {token: hosts[owner] for token, owner in zip(tokens, ring.owners, strict=True)}, tokens


@given(rings(), st.integers(1, 5))
def test_simple_strategy_is_the_drivers(drawn: tuple[TokenRing, dict[HostId, NodeLocation]], factor: int) -> None:
    ring, places = drawn
    owners, tokens = driver_inputs(ring, places)
    expected = SimpleStrategy({"replication_factor": str(factor)}).make_token_replica_map(owners, tokens)
    ours = RingReplicas(ring, simple(factor), places)
    for position, token in enumerate(tokens):
        assert ours.hosts_at(position) == tuple(each.host for each in expected[token])


@settings(max_examples=300)
@given(rings(), st.integers(0, 5), st.integers(0, 4))
def test_network_topology_strategy_is_the_drivers(
    drawn: tuple[TokenRing, dict[HostId, NodeLocation]], first: int, second: int
) -> None:
    """Equal, in order. Where the driver names a host twice (it remembers a node it passed over once per vnode), a
    replica is missing in its answer: then ours must have all of its hosts, and as many as there should be."""
    ring, places = drawn
    owners, tokens = driver_inputs(ring, places)
    expected = NetworkTopologyStrategy({"dc1": str(first), "dc2": str(second)}).make_token_replica_map(owners, tokens)
    ours = RingReplicas(ring, network(dc1=first, dc2=second), places)
    owning = {name: {each for each in ring.owners if places[each].datacenter == name} for name in ("dc1", "dc2")}
    for position, token in enumerate(tokens):
        theirs = tuple(each.host for each in expected[token])
        found = ours.hosts_at(position)
        assert len(set(found)) == len(found)
        if len(set(theirs)) == len(theirs):
            assert found == theirs
        else:
            assert set(theirs) <= set(found)
        counts = {name: sum(places[each].datacenter == name for each in found) for name in owning}
        assert counts == {"dc1": min(first, len(owning["dc1"])), "dc2": min(second, len(owning["dc2"]))}


def test_replicas_are_in_different_racks_while_there_are_such() -> None:
    places = {host(number): NodeLocation("dc1", rack) for number, rack in enumerate(["a", "a", "b", "c"])}
    ring = TokenRing((0, 10, 20, 30), tuple(host(number) for number in range(4)))
    replicas = RingReplicas(ring, network(dc1=3), places)
    assert replicas.hosts_at(0) == (host(0), host(2), host(3))
    assert RingReplicas(ring, network(dc1=4), places).hosts_at(0) == (host(0), host(2), host(3), host(1))


@pytest.mark.parametrize(("token", "position"), [(-5, 0), (0, 0), (1, 1), (10, 1), (30, 3), (31, 0), (2**63 - 1, 0)])
def test_a_vnode_ends_at_its_token_and_the_first_begins_behind_the_last(token: int, position: int) -> None:
    places = {host(number): NodeLocation("dc1", "r") for number in range(4)}
    ring = TokenRing((0, 10, 20, 30), tuple(host(number) for number in range(4)))
    replicas = RingReplicas(ring, simple(1), places)
    assert replicas.position_of(token) == position
    assert replicas.hosts_of(token) == (host(position),)


def test_an_empty_ring_has_no_replicas() -> None:
    assert RingReplicas(TokenRing((), ()), network(dc1=3), {}).hosts_of(5) == ()
    assert RingReplicas(TokenRing((), ()), simple(3), {}).hosts_of(5) == ()
