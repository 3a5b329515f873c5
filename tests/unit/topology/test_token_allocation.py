"""Tokens of new nodes: free, as many as asked for, and even."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model.identity import HostId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState
from ebla.topology.token_allocation import choose_tokens, ownership


def node(number: int, num_tokens: int, datacenter: str = "dc1") -> Node:
    host = HostId(uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)))
    return Node(
        host=host,
        datacenter=datacenter,
        rack="r1",
        shard_count=2,
        ignore_msb=12,
        release_version="1.0",
        address="a",
        num_tokens=num_tokens,
    )


def with_node(snapshot: Snapshot, new: Node) -> Snapshot:
    tokens = choose_tokens(snapshot, new)
    assert len(tokens) == new.num_tokens
    assert list(tokens) == sorted(set(tokens))
    assert all(TOKEN_MIN < token <= TOKEN_MAX for token in tokens)
    taken = {token for each in snapshot.nodes.values() for token in each.tokens}
    assert taken.isdisjoint(tokens)
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    placed = Node(**{**fields, "state": NodeState.NORMAL, "tokens": tokens})
    return Snapshot(nodes=snapshot.nodes.put(new.host, placed))


def grown(sizes: list[int], datacenter: str = "dc1") -> Snapshot:
    snapshot = Snapshot()
    for number, num_tokens in enumerate(sizes, 1):
        snapshot = with_node(snapshot, node(number, num_tokens, datacenter))
    return snapshot


@pytest.mark.parametrize(
    ("nodes", "num_tokens", "most"), [(3, 16, 1.01), (8, 16, 1.05), (30, 16, 1.05), (10, 256, 1.01)]
)
def test_every_node_owns_about_the_same(nodes: int, num_tokens: int, most: float) -> None:
    owned = ownership(grown([num_tokens] * nodes), "dc1")
    assert len(owned) == nodes
    assert sum(owned.values()) == pytest.approx(1)
    assert max(owned.values()) * nodes <= most
    assert min(owned.values()) * nodes >= 1 / most


def test_a_larger_node_owns_more() -> None:
    owned = sorted(ownership(grown([16, 16, 32]), "dc1").values())
    assert owned[2] == pytest.approx(0.5, rel=0.1)


def test_datacenters_do_not_collide_and_are_even_each() -> None:
    snapshot = Snapshot()
    for number in range(1, 7):
        snapshot = with_node(snapshot, node(number, 8, "dc1" if number % 2 else "dc2"))
    for datacenter in ("dc1", "dc2"):
        owned = ownership(snapshot, datacenter)
        assert len(owned) == 3
        assert max(owned.values()) * 3 <= 1.1
    assert ownership(snapshot, "dc3") == {}


def test_the_same_step_taken_again_chooses_the_same() -> None:
    snapshot = grown([4, 4, 4])
    assert choose_tokens(snapshot, node(9, 4)) == choose_tokens(snapshot, node(9, 4))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=10))
def test_tokens_are_free_whatever_the_sizes(sizes: list[int]) -> None:
    owned = ownership(grown(sizes), "dc1")
    assert sum(owned.values()) == pytest.approx(1)


def test_a_crowded_place_is_passed_by() -> None:
    """Two nodes whose ids ask for the same tokens, in two datacenters."""
    first, second = node(1, 4), node(1, 4, "dc2")
    second = Node(
        host=HostId(uuid.UUID(int=first.host.int ^ 1 << 127)),
        datacenter="dc2",
        rack="r1",
        shard_count=2,
        ignore_msb=12,
        release_version="1.0",
        address="a",
        num_tokens=4,
    )
    assert first.host.int % (1 << 62) == second.host.int % (1 << 62)
    snapshot = with_node(with_node(Snapshot(), first), second)
    assert len({token for each in snapshot.nodes.values() for token in each.tokens}) == 8


def test_a_ring_of_one_token_is_shared() -> None:
    owned = ownership(grown([1, 1]), "dc1")
    assert sorted(owned.values()) == pytest.approx([0.5, 0.5])
