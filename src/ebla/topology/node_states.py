"""The node table: (state of the node in transition, transition state of the topology) → what to do, next, on failure.

`None` as a node state is the row for the topology without a node in transition: at rest, moving tablets, or running a
global request. A pair without a row cannot occur (INV-NODE-3). Leaving a row is one commit. If the row has a barrier,
it has succeeded on every node before that commit, which the fence proves.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ebla.topology.states import NodeRequestKind, NodeState, TransitionState


class NodeAction(enum.StrEnum):
    """What the coordinator does in a row, after its barrier."""

    NOTHING = "nothing"
    ADMIT = "admit"
    """Add the node to group 0, notify it, choose its tokens, write the data of its CDC generation."""
    COMMIT_GENERATION = "commit_generation"
    DRAIN_TABLETS = "drain_tablets"
    """Move every tablet replica off the node; of a node being replaced they are rebuilt afterwards instead."""
    STREAM = "stream"
    """Vnode ranges: to the node (joining, replacing, rebuilding), from it (leaving), among the others (removing)."""
    LEAVE_GROUP0 = "leave_group0"
    """Answer the request, shut the node down, remove it from group 0."""
    MOVE_TABLETS = "move_tablets"
    FINALIZE_RESIZE = "finalize_resize"


@dataclass(frozen=True, slots=True)
class StatePair:
    """The target of a commit: the state of the node and the transition state of the topology."""

    state: NodeState | None
    transition: TransitionState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    here: StatePair
    action: NodeAction
    next: StatePair
    on_failure: StatePair | None
    """None: the action is repeated until it succeeds, or until the nodes that block it are ignored or fenced."""
    may_reject: bool = False
    """The node can still be rejected (`REJECTED`)."""
    barrier: bool = False
    session: bool = False
    """Runs under the topology's session: opened by the commit that enters the row, closed by the one that leaves it."""
    label: str
    promise: str
    """What is true of the whole cluster once this row is committed."""


_S = NodeState
_T = TransitionState

_PROMISES: Mapping[TransitionState | None, tuple[str, str]] = MappingProxyType(
    {
        None: ("INV-NODE-10", "no replica set is changing"),
        _T.JOIN_GROUP0: ("INV-NODE-11", "the node is accepted, owns no token, and nobody routes to it"),
        _T.COMMIT_CDC_GENERATION: (
            "INV-NODE-12",
            "the new generation's data is complete in group 0; a joining node's tokens are chosen and nobody else's",
        ),
        _T.TABLET_DRAINING: ("INV-NODE-13", "vnode replica sets are unchanged; no tablet moves to the node that goes"),
        _T.WRITE_BOTH_READ_OLD: (
            "INV-NODE-14",
            "no tablet moves, a leaving node has none; past the barrier every acknowledged write is in both rings",
        ),
        _T.WRITE_BOTH_READ_NEW: (
            "INV-NODE-15",
            "the new replicas have every acknowledged write and nothing streams any more; there is no way back",
        ),
        _T.LEFT_TOKEN_RING: ("INV-NODE-16", "the node owns no token; past the barrier nobody sends it anything"),
        _T.ROLLBACK_TO_NORMAL: (
            "INV-NODE-17",
            "no read has used the new ring, so the old one has every write; the request says what failed",
        ),
        _T.TABLET_MIGRATION: ("INV-NODE-18", "vnode replica sets are unchanged; tablets may be in transition"),
        _T.TABLET_SPLIT_FINALIZATION: ("INV-NODE-19", "no tablet is in transition, and none can start one"),
    }
)


def _row(
    here: tuple[NodeState | None, TransitionState | None],
    action: NodeAction,
    then: tuple[NodeState | None, TransitionState | None],
    failure: tuple[NodeState | None, TransitionState | None] | None,
    **columns: bool,
) -> NodeRow:
    label, promise = _PROMISES[here[1]]
    return NodeRow(
        here=StatePair(*here),
        action=action,
        next=StatePair(*then),
        on_failure=None if failure is None else StatePair(*failure),
        label=label,
        promise=promise,
        **columns,
    )


def _joining(state: NodeState, second: TransitionState) -> tuple[NodeRow, ...]:
    """Join and replace: they differ in the rows between `join_group0` and `write_both_read_old`."""
    out = (state, _T.LEFT_TOKEN_RING)
    commits = second is _T.COMMIT_CDC_GENERATION
    between = NodeAction.COMMIT_GENERATION if commits else NodeAction.DRAIN_TABLETS
    return (
        _row((state, _T.JOIN_GROUP0), NodeAction.ADMIT, (state, second), out, may_reject=True),
        _row((state, second), between, (state, _T.WRITE_BOTH_READ_OLD), out, barrier=commits),
        _row(
            (state, _T.WRITE_BOTH_READ_OLD),
            NodeAction.STREAM,
            (state, _T.WRITE_BOTH_READ_NEW),
            out,
            barrier=True,
            session=True,
        ),
        _row((state, _T.WRITE_BOTH_READ_NEW), NodeAction.NOTHING, (_S.NORMAL, None), None, barrier=True),
        _row((state, _T.LEFT_TOKEN_RING), NodeAction.LEAVE_GROUP0, (_S.LEFT, None), None, barrier=True),
    )


def _going(state: NodeState, after_switch: tuple[NodeState, TransitionState | None]) -> tuple[NodeRow, ...]:
    """Leave and remove: a removed node is dead and cannot be notified, so only a leaving node passes
    `left_token_ring`."""
    back = (state, _T.ROLLBACK_TO_NORMAL)
    return (
        _row((state, _T.TABLET_DRAINING), NodeAction.DRAIN_TABLETS, (state, _T.WRITE_BOTH_READ_OLD), back),
        _row(
            (state, _T.WRITE_BOTH_READ_OLD),
            NodeAction.STREAM,
            (state, _T.WRITE_BOTH_READ_NEW),
            back,
            barrier=True,
            session=True,
        ),
        _row((state, _T.WRITE_BOTH_READ_NEW), NodeAction.NOTHING, after_switch, None, barrier=True),
        _row(back, NodeAction.NOTHING, (state, _T.TABLET_MIGRATION), None, barrier=True),
        _row((state, _T.TABLET_MIGRATION), NodeAction.MOVE_TABLETS, (_S.NORMAL, None), None),
    )


_ROWS: tuple[NodeRow, ...] = (
    *_joining(_S.BOOTSTRAPPING, _T.COMMIT_CDC_GENERATION),
    *_joining(_S.REPLACING, _T.TABLET_DRAINING),
    *_going(_S.DECOMMISSIONING, (_S.DECOMMISSIONING, _T.LEFT_TOKEN_RING)),
    _row((_S.DECOMMISSIONING, _T.LEFT_TOKEN_RING), NodeAction.LEAVE_GROUP0, (_S.LEFT, None), None, barrier=True),
    *_going(_S.REMOVING, (_S.LEFT, None)),
    _row((_S.REBUILDING, None), NodeAction.STREAM, (_S.NORMAL, None), (_S.NORMAL, None), session=True),
    _row((None, None), NodeAction.NOTHING, (None, None), None),
    _row((None, _T.COMMIT_CDC_GENERATION), NodeAction.COMMIT_GENERATION, (None, None), (None, None), barrier=True),
    _row((None, _T.TABLET_MIGRATION), NodeAction.MOVE_TABLETS, (None, None), None),
    _row((None, _T.TABLET_SPLIT_FINALIZATION), NodeAction.FINALIZE_RESIZE, (None, None), None, barrier=True),
)

NODE_TABLE: Mapping[tuple[NodeState | None, TransitionState | None], NodeRow] = MappingProxyType(
    {(row.here.state, row.here.transition): row for row in _ROWS}
)


@dataclass(frozen=True, slots=True)
class RequestStart:
    """How a request starts: the state its node must be in, and the first row."""

    source: NodeState
    target: StatePair


REQUEST_STARTS: Mapping[NodeRequestKind, RequestStart] = MappingProxyType(
    {
        NodeRequestKind.JOIN: RequestStart(_S.NONE, StatePair(_S.BOOTSTRAPPING, _T.JOIN_GROUP0)),
        NodeRequestKind.REPLACE: RequestStart(_S.NONE, StatePair(_S.REPLACING, _T.JOIN_GROUP0)),
        NodeRequestKind.LEAVE: RequestStart(_S.NORMAL, StatePair(_S.DECOMMISSIONING, _T.TABLET_DRAINING)),
        NodeRequestKind.REMOVE: RequestStart(_S.NORMAL, StatePair(_S.REMOVING, _T.TABLET_DRAINING)),
        NodeRequestKind.REBUILD: RequestStart(_S.NORMAL, StatePair(_S.REBUILDING, None)),
    }
)

REJECTED = StatePair(NodeState.LEFT, None)
"""The target for a node that is rejected, or whose join request is cancelled before it starts."""

TRANSITIONS_WITH_TABLETS_MOVING = (TransitionState.TABLET_MIGRATION, TransitionState.TABLET_DRAINING)
"""INV-TABL-3: the only transition states in which a tablet may be in transition; it never is at rest."""


REMOVED_WITHOUT_DATA = StatePair(NodeState.LEFT, None)
"""The target for a normal node that is removed while the cluster has no table."""


def node_row(state: NodeState | None, transition: TransitionState | None) -> NodeRow | None:
    """None: a pair that cannot occur."""
    return NODE_TABLE.get((state, transition))


class NodeEdgeCause(enum.StrEnum):
    REQUESTED = "requested"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEdge:
    """One commit that the table allows."""

    source: StatePair
    target: StatePair
    cause: NodeEdgeCause
    request: NodeRequestKind | None = None


def node_edges() -> Iterator[NodeEdge]:
    """Every commit of a node operation, in the order of the rows."""
    for kind, start in REQUEST_STARTS.items():
        yield NodeEdge(
            source=StatePair(start.source, None), target=start.target, cause=NodeEdgeCause.REQUESTED, request=kind
        )
    yield NodeEdge(source=StatePair(NodeState.NONE, None), target=REJECTED, cause=NodeEdgeCause.REJECTED)
    yield NodeEdge(source=StatePair(NodeState.NORMAL, None), target=REMOVED_WITHOUT_DATA, cause=NodeEdgeCause.REMOVED)
    for row in _ROWS:
        if row.here.state is None:
            continue
        yield NodeEdge(source=row.here, target=row.next, cause=NodeEdgeCause.DONE)
        if row.on_failure is not None:
            yield NodeEdge(source=row.here, target=row.on_failure, cause=NodeEdgeCause.FAILED)
        if row.may_reject:
            yield NodeEdge(source=row.here, target=REJECTED, cause=NodeEdgeCause.REJECTED)
