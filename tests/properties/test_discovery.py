"""Fresh nodes form exactly one cluster, in any order of requests, answers, losses and restarts."""

import uuid
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.group0 import discovery
from ebla.group0.discovery import ClusterMember, Discovery, DiscoveryReply, JoinCluster, StartCluster, WaitForNodes
from ebla.model.identity import Address, ClusterId, HostId


@dataclass(kw_only=True)
class Node:
    """One node as the shell runs it: what is in memory, what is durable, and whether it is in a cluster."""

    state: Discovery
    contacts: tuple[Address, ...]
    durable: tuple[Address, ...] = ()
    cluster: ClusterId | None = None


@dataclass
class World:
    nodes: dict[Address, Node] = field(default_factory=dict)
    created: list[Address] = field(default_factory=list)

    def answer(self, asked: Address, asker: Address, known: tuple[Address, ...]) -> DiscoveryReply:
        node = self.nodes[asked]
        if node.cluster is not None:
            return ClusterMember(node.state.host, node.cluster, "test")
        node.state = discovery.record_request(node.state, asker, known)
        node.durable = node.state.known
        return discovery.reply_of(node.state)

    def act(self, address: Address) -> None:
        node = self.nodes[address]
        if node.cluster is not None:
            return
        match discovery.decide(node.state):
            case StartCluster():
                self.created.append(address)
                node.cluster = ClusterId(node.state.host)
            case JoinCluster(cluster=cluster):
                node.cluster = cluster
            case WaitForNodes():
                pass

    def restart(self, address: Address) -> None:
        node = self.nodes[address]
        if node.cluster is None:
            node.state = discovery.start_discovery(node.state.host, address, "test", (*node.contacts, *node.durable))


def address_of(number: int) -> Address:
    return Address(f"10.0.0.{number}", 7000)


@st.composite
def connected_contacts(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Contact lists in which every node lists another, so that the graph is connected when read both ways."""
    count = draw(st.integers(2, 5))
    lists = []
    for number in range(count):
        others = [other for other in range(count) if other != number]
        must = 0 if number else 1
        extra = draw(st.lists(st.sampled_from(others), max_size=2))
        lists.append(tuple(sorted({must, *extra})))
    return lists


@settings(max_examples=300, deadline=None)
@given(connected_contacts(), st.permutations(range(5)), st.data())
def test_exactly_one_cluster(contacts: list[tuple[int, ...]], ids: list[int], data: st.DataObject) -> None:
    world = World()
    for number, listed in enumerate(contacts):
        addresses = tuple(address_of(other) for other in listed)
        host = HostId(uuid.UUID(int=ids[number] + 1))
        state = discovery.start_discovery(host, address_of(number), "test", addresses)
        world.nodes[address_of(number)] = Node(state=state, contacts=addresses)
    everyone = sorted(world.nodes)
    late: list[tuple[Address, Address, DiscoveryReply]] = []
    kinds = st.sampled_from(["ask", "ask", "ask", "lose", "delay", "late", "restart"])
    steps = data.draw(st.lists(st.tuples(kinds, st.integers(0, 99), st.integers(0, 99)), max_size=60))
    for kind, one, other in steps:
        asker = everyone[one % len(everyone)]
        node = world.nodes[asker]
        if kind == "restart":
            world.restart(asker)
            late = [entry for entry in late if entry[0] != asker]
        elif kind == "late" and late:
            who, peer, reply = late.pop(one % len(late))
            world.nodes[who].state = discovery.record_reply(world.nodes[who].state, peer, reply)
            world.act(who)
        elif node.state.known:
            peer = node.state.known[other % len(node.state.known)]
            reply = world.answer(peer, asker, node.state.known)
            if kind == "delay":
                late.append((asker, peer, reply))
            elif kind == "ask":
                node.state = discovery.record_reply(node.state, peer, reply)
                world.act(asker)
        assert len(world.created) <= 1
    for _ in range(len(everyone) + 2):
        for asker in everyone:
            node = world.nodes[asker]
            for peer in node.state.known:
                node.state = discovery.record_reply(node.state, peer, world.answer(peer, asker, node.state.known))
            world.act(asker)
    assert len(world.created) == 1
    assert len({node.cluster for node in world.nodes.values()}) == 1


def test_a_lone_node_creates_at_once() -> None:
    state = discovery.start_discovery(HostId(uuid.UUID(int=1)), address_of(1), "test", [address_of(1)])
    assert discovery.decide(state) == StartCluster()


def test_a_contact_in_another_cluster_is_never_joined_and_stops_creation() -> None:
    state = discovery.start_discovery(HostId(uuid.UUID(int=1)), address_of(1), "test", [address_of(2)])
    stranger = ClusterMember(HostId(uuid.UUID(int=2)), ClusterId(uuid.UUID(int=9)), "other")
    decision = discovery.decide(discovery.record_reply(state, address_of(2), stranger))
    assert isinstance(decision, WaitForNodes)
    assert "other" in decision.reason


def test_a_peer_that_fell_silent_must_answer_again() -> None:
    state = discovery.start_discovery(HostId(uuid.UUID(int=1)), address_of(1), "test", [address_of(2)])
    state = discovery.record_reply(state, address_of(2), discovery.FreshNode(HostId(uuid.UUID(int=2)), ()))
    assert discovery.decide(state) == StartCluster()
    assert isinstance(discovery.decide(discovery.forget_reply(state, address_of(2))), WaitForNodes)
