"""Chooses the tokens of a new node, so that ownership is even and no token has two owners.

Ownership is counted within the node's datacenter, since replicas are placed per datacenter, and in proportion to
`num_tokens`, which is how an operator says that a machine is larger. The choice depends on nothing but the snapshot and
the node's id: a new leader that repeats the step chooses the same tokens.
"""

import heapq
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.model.token import RING_TOKENS
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.tablet_map import TOKEN_BIAS

NUM_TOKENS_MAX = 1024


@dataclass(slots=True)
class _Owner:
    """A node of the datacenter while tokens are chosen: its excess ownership, and its ranges, largest first."""

    host: HostId
    surplus: int
    ranges: list[tuple[int, int]]
    """A heap of (−length, place before the first), in places from 0 to 2^64 − 1."""


def choose_tokens(snapshot: Snapshot, node: Node) -> tuple[int, ...]:
    """Sorted tokens for a joining node; a replacing one inherits."""
    if node.replaced is not None:
        return snapshot.node(node.replaced).tokens
    assert 1 <= node.num_tokens <= NUM_TOKENS_MAX
    # No key hashes to the minimum token, so its owner would own an empty vnode.
    taken = {0}
    taken |= {token + TOKEN_BIAS for other in snapshot.token_owners() for token in other.tokens}
    neighbours = [each for each in snapshot.token_owners() if each.datacenter == node.datacenter]
    places = _even(node) if not neighbours else _from_the_rich(node, neighbours)
    chosen: list[int] = []
    for place in places:
        while place in taken:
            place = (place + 1) % RING_TOKENS
        taken.add(place)
        chosen.append(place - TOKEN_BIAS)
    return tuple(sorted(chosen))


def _even(node: Node) -> list[int]:
    """The first node of a datacenter: evenly around the ring, offset by its id so that datacenters do not collide."""
    step = RING_TOKENS // node.num_tokens
    offset = node.host.int % step
    return [offset + number * step for number in range(node.num_tokens)]


def _from_the_rich(node: Node, neighbours: list[Node]) -> list[int]:
    """Each token takes one share off the largest range of the node with the most excess ownership."""
    weight = node.num_tokens + sum(each.num_tokens for each in neighbours)
    share = max(1, RING_TOKENS // weight)
    owners = _owners(neighbours, share)
    chosen: list[int] = []
    for _ in range(node.num_tokens):
        owner = max(owners, key=lambda each: (each.surplus, each.host))
        length, before = heapq.heappop(owner.ranges)
        take = max(1, min(share, -length - 1))
        chosen.append((before + take) % RING_TOKENS)
        owner.surplus -= take
        heapq.heappush(owner.ranges, (length + take, (before + take) % RING_TOKENS))
    return chosen


def _owners(neighbours: list[Node], share: int) -> list[_Owner]:
    ring = sorted((token + TOKEN_BIAS, node.host) for node in neighbours for token in node.tokens)
    owners = {node.host: _Owner(node.host, -share * node.num_tokens, []) for node in neighbours}
    previous = ring[-1][0]
    for place, host in ring:
        length = (place - previous) % RING_TOKENS or RING_TOKENS
        owners[host].surplus += length
        owners[host].ranges.append((-length, previous))
        previous = place
    for owner in owners.values():
        heapq.heapify(owner.ranges)
    return list(owners.values())


def ownership(snapshot: Snapshot, datacenter: str) -> dict[HostId, float]:
    """The fraction of the ring that each token owner of a datacenter owns, by host id."""
    nodes = [each for each in snapshot.token_owners() if each.datacenter == datacenter]
    if not nodes:
        return {}
    return {owner.host: owner.surplus / RING_TOKENS for owner in _owners(nodes, 0)}
