"""The ring of tables on vnodes: the token owners before and after a change, and which of the two requests use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ebla.model.identity import HostId
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState, TransitionState
from ebla.topology.tablet_stages import Selector


@dataclass(frozen=True, slots=True)
class TokenRing:
    """Tokens in order; `owners[i]` owns the tokens after `tokens[i - 1]` up to `tokens[i]`, around the ring."""

    tokens: tuple[int, ...]
    owners: tuple[HostId, ...]


@dataclass(frozen=True, slots=True)
class RingUse:
    """Which ring requests use."""

    reads: Selector
    writes: Selector


_PREVIOUS = RingUse(Selector.PREVIOUS, Selector.PREVIOUS)
_NEXT = RingUse(Selector.NEXT, Selector.NEXT)
_BOTH_READ_OLD = RingUse(Selector.PREVIOUS, Selector.BOTH)
_BOTH_READ_NEW = RingUse(Selector.NEXT, Selector.BOTH)

RING_USES: Mapping[TransitionState, RingUse] = MappingProxyType(
    {
        TransitionState.JOIN_GROUP0: _PREVIOUS,
        TransitionState.COMMIT_CDC_GENERATION: _PREVIOUS,
        TransitionState.TABLET_DRAINING: _PREVIOUS,
        TransitionState.WRITE_BOTH_READ_OLD: _BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW: _BOTH_READ_NEW,
        TransitionState.LEFT_TOKEN_RING: _PREVIOUS,
        TransitionState.ROLLBACK_TO_NORMAL: _PREVIOUS,
        TransitionState.TABLET_MIGRATION: _PREVIOUS,
    }
)
"""While one node is in transition.

`left_token_ring` follows success when a node leaves, and failure when one joins; in both cases that node is out.
`write_both_read_new` cannot be rolled back: a write in it may have been acknowledged by the next owners' quorum."""

_OWNING_BEFORE = (NodeState.NORMAL, NodeState.REBUILDING, NodeState.DECOMMISSIONING, NodeState.REMOVING)
_OWNING_AFTER = (NodeState.NORMAL, NodeState.REBUILDING, NodeState.BOOTSTRAPPING, NodeState.REPLACING)


def ring_use(snapshot: Snapshot) -> RingUse:
    node = snapshot.node_in_transition()
    if node is None or snapshot.transition is None:
        return _PREVIOUS
    if node.state is NodeState.DECOMMISSIONING and snapshot.transition is TransitionState.LEFT_TOKEN_RING:
        return _NEXT
    return RING_USES[snapshot.transition]


def previous_ring(snapshot: Snapshot) -> TokenRing:
    """As if the running change, if any, had not started."""
    return _ring(snapshot.nodes_in(*_OWNING_BEFORE))


def next_ring(snapshot: Snapshot) -> TokenRing:
    """As if the running change had completed."""
    replacing = {node.replaced: node for node in snapshot.nodes_in(NodeState.REPLACING) if node.replaced is not None}
    return _ring(node for node in snapshot.nodes_in(*_OWNING_AFTER) if node.host not in replacing)


def _ring(nodes: Iterable[Node]) -> TokenRing:
    owned = sorted((token, node.host) for node in nodes for token in node.tokens)
    return TokenRing(tuple(token for token, _ in owned), tuple(host for _, host in owned))
