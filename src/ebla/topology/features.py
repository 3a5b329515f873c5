"""Cluster features: on once every member can, for ever after. Nobody who cannot is let in or started again."""

from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState

_COUNTED = (
    NodeState.NORMAL,
    NodeState.REBUILDING,
    NodeState.BOOTSTRAPPING,
    NodeState.REPLACING,
    NodeState.DECOMMISSIONING,
)
"""Whose word counts. A node being removed is dead, one in `none` is not yet accepted."""


def supported_by_all(snapshot: Snapshot) -> tuple[str, ...]:
    """What every counted node supports, sorted; nothing in an empty cluster."""
    lists = [node.supported_features for node in snapshot.nodes_in(*_COUNTED)]
    if not lists:
        return ()
    return tuple(feature for feature in sorted(lists[0]) if all(feature in other for other in lists))


def features_to_enable(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(feature for feature in supported_by_all(snapshot) if feature not in snapshot.state.enabled_features)


def missing_to_join(snapshot: Snapshot, supported: tuple[str, ...]) -> tuple[str, ...]:
    """Enabled features that a node lacks."""
    return tuple(feature for feature in snapshot.state.enabled_features if feature not in supported)


def missing_to_start(snapshot: Snapshot, supported: tuple[str, ...]) -> tuple[str, ...]:
    """What a member lacks to be started again: the enabled features and those all members, itself included, support.

    The second kind is not enabled yet but may be at any moment: the coordinator has seen every node support it, and a
    node that came back without it would meet commands it cannot read.
    """
    needed = sorted({*snapshot.state.enabled_features, *supported_by_all(snapshot)})
    return tuple(feature for feature in needed if feature not in supported)
