"""How new nodes that list one another form exactly one cluster.

Each new node contacts every node it knows of, sends the addresses it knows and learns of more, until it has an answer
from every node it ever heard of. Among new nodes the one with the least host id then creates the cluster. The others
wait until a node answers that it is in a cluster, and join that one.

INV-FORM-1: two nodes of one closure never both create a cluster. Say X creates one, so it has an answer from every Y it
knows of. Y answered X's request, so Y has known X since then (also after a restart: the driver makes `known` durable
before it answers). If Y was in a cluster already, it said so, and X did not create one. If Y was new, every later
decision of Y waits for an answer from X, whose id is less, so Y does not create one either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from ebla.model.identity import Address, ClusterId, HostId


class FreshNode(msgspec.Struct, frozen=True, tag="fresh", array_like=True):
    """The answer of a node that is in no cluster: its id, and every address it knows of."""

    host: HostId
    known: tuple[Address, ...]


class ClusterMember(msgspec.Struct, frozen=True, tag="in_cluster", array_like=True):
    """The answer of a member."""

    host: HostId
    cluster: ClusterId
    cluster_name: str


DiscoveryReply = FreshNode | ClusterMember


@dataclass(frozen=True, slots=True)
class StartCluster:
    """Create the cluster: no known node is in one, and this node has the least id."""


@dataclass(frozen=True, slots=True)
class JoinCluster:
    """Ask this member to add us."""

    contact: Address
    cluster: ClusterId


@dataclass(frozen=True, slots=True)
class WaitForNodes:
    """Contact these again; `reason` is for operators."""

    ask: tuple[Address, ...]
    reason: str


DiscoveryDecision = StartCluster | JoinCluster | WaitForNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What one new node knows so far."""

    host: HostId
    address: Address
    cluster_name: str
    known: tuple[Address, ...]
    """All addresses but our own. Only grows, and is durable before this node answers."""
    replies: Mapping[Address, DiscoveryReply] = field(default_factory=dict)


def start_discovery(host: HostId, address: Address, cluster_name: str, contacts: Iterable[Address]) -> Discovery:
    known = tuple(sorted({contact for contact in contacts if contact != address}))
    return Discovery(host=host, address=address, cluster_name=cluster_name, known=known)


def record_request(state: Discovery, asker: Address, their_known: Iterable[Address]) -> Discovery:
    """A node contacted us: from now on we know it, and the nodes it knows."""
    return _learn(state, (asker, *their_known))


def record_reply(state: Discovery, peer: Address, reply: DiscoveryReply) -> Discovery:
    state = replace(state, replies={**state.replies, peer: reply})
    return _learn(state, reply.known) if isinstance(reply, FreshNode) else state


def forget_reply(state: Discovery, peer: Address) -> Discovery:
    """The peer stopped answering. Its earlier answer no longer counts: it may have joined a cluster since."""
    return replace(state, replies={address: reply for address, reply in state.replies.items() if address != peer})


def reply_of(state: Discovery) -> FreshNode:
    return FreshNode(state.host, state.known)


def decide(state: Discovery) -> DiscoveryDecision:
    for address in state.known:
        reply = state.replies.get(address)
        if isinstance(reply, ClusterMember) and reply.cluster_name == state.cluster_name:
            return JoinCluster(address, reply.cluster)
    silent = tuple(address for address in state.known if address not in state.replies)
    if silent:
        names = ", ".join(str(address) for address in silent)
        return WaitForNodes(state.known, f"no answer yet from {names}")
    foreign = [reply for reply in state.replies.values() if isinstance(reply, ClusterMember)]
    if foreign:
        return WaitForNodes(state.known, f"a contact belongs to the cluster {foreign[0].cluster_name!r}, not ours")
    if any(reply.host < state.host for reply in state.replies.values()):
        return WaitForNodes(state.known, "a node with a lesser id creates the cluster")
    return StartCluster()


def _learn(state: Discovery, addresses: Iterable[Address]) -> Discovery:
    fresh = {address for address in addresses if address != state.address} - set(state.known)
    return replace(state, known=tuple(sorted((*state.known, *fresh)))) if fresh else state
