"""Cluster features: enabled for good once every member supports them. A node that lacks one may not join or restart."""

from ebla.topology.snapshot import Snapshot, TopologyState
from ebla.topology.states import NodeState

_COUNTED = (
    NodeState.NORMAL,
    NodeState.REBUILDING,
    NodeState.BOOTSTRAPPING,
    NodeState.REPLACING,
    NodeState.DECOMMISSIONING,
)
"""The nodes that count. A node being removed is dead; a node in `none` is not accepted yet."""


def supported_by_all(snapshot: Snapshot) -> tuple[str, ...]:
    """Features that every counted node supports, sorted; none in an empty cluster."""
    lists = [node.supported_features for node in snapshot.nodes_in(*_COUNTED)]
    if not lists:
        return ()
    return tuple(feature for feature in sorted(lists[0]) if all(feature in other for other in lists))


def features_to_enable(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(feature for feature in supported_by_all(snapshot) if feature not in snapshot.state.enabled_features)


def missing_to_join(state: TopologyState, supported: tuple[str, ...]) -> tuple[str, ...]:
    """Enabled features that a node lacks."""
    return tuple(feature for feature in state.enabled_features if feature not in supported)


def missing_to_start(snapshot: Snapshot, supported: tuple[str, ...]) -> tuple[str, ...]:
    """The features that a member lacks to restart: enabled ones, and those that all members, itself included, support.

    The second kind may be enabled at any moment: the coordinator has seen that every node supports it, and a node that
    restarted without it would receive commands that it cannot read.
    """
    needed = sorted({*snapshot.state.enabled_features, *supported_by_all(snapshot)})
    return tuple(feature for feature in needed if feature not in supported)
