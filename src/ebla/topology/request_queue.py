"""Which request runs next, and why the others do not, with the reasons as data."""

import enum
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.topology.features import missing_to_join
from ebla.topology.snapshot import Node, NodeRequest, Replication, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, Strategy

PRIORITY: tuple[NodeRequestKind, ...] = (
    NodeRequestKind.REPLACE,
    NodeRequestKind.JOIN,
    NodeRequestKind.REMOVE,
    NodeRequestKind.LEAVE,
    NodeRequestKind.REBUILD,
)
"""Best first: what restores redundancy goes before what reduces it."""


@dataclass(frozen=True, slots=True)
class LivenessView:
    """Which nodes are alive, as the coordinator sees it, and its wall clock. The set is queried, never iterated."""

    alive: frozenset[HostId]
    now_ms: int

    def dead(self, nodes: list[Node]) -> tuple[HostId, ...]:
        return tuple(node.host for node in nodes if node.host not in self.alive)


class Reason(enum.StrEnum):
    """Why a request cannot run, or may not be made."""

    NODES_DOWN = "other nodes are down and not ignored"
    IGNORED_ALIVE = "nodes that should be ignored are alive"
    TARGET_ALIVE = "the node to remove or replace is alive; decommission it instead"
    TARGET_DOWN = "the node itself is down"
    TARGET_NOT_NORMAL = "the node is not in the state normal"
    REPLACED_NOT_NORMAL = "the node to replace is not in the state normal"
    REPLACED_ELSEWHERE = "a node may only be replaced by one of the same datacenter and rack"
    FEATURES_MISSING = "the node lacks features that the cluster has enabled"
    LAST_OWNER = "it is the last node that owns tokens"
    TOO_FEW_LEFT = "too few nodes would remain for the replication of a keyspace"
    UNKNOWN_DATACENTER = "no node of the datacenter to rebuild from"


@dataclass(frozen=True, slots=True)
class Objection:
    reason: Reason
    hosts: tuple[HostId, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.reason.value]
        if self.hosts:
            parts.append(", ".join(str(host) for host in self.hosts))
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one pending request. No objection: viable."""

    request: NodeRequest
    objections: tuple[Objection, ...]

    @property
    def viable(self) -> bool:
        return not self.objections


@dataclass(frozen=True, slots=True)
class TakeUp:
    """Start this request. `verdicts` has every pending request, best priority first."""

    request: NodeRequest
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """This request is next, and its node may not join."""

    request: NodeRequest
    objections: tuple[Objection, ...]


@dataclass(frozen=True, slots=True)
class CancelAll:
    """No pending request can run: all are cancelled, so that operators learn it now and not after hours."""

    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class QueueEmpty:
    pass


Choice = TakeUp | Reject | CancelAll | QueueEmpty


def pending_requests(snapshot: Snapshot) -> tuple[NodeRequest, ...]:
    """Best priority first, then the oldest, then by id."""
    pending = [each for each in snapshot.node_requests.values() if each.outcome is RequestOutcome.PENDING]
    return tuple(sorted(pending, key=lambda each: (PRIORITY.index(each.kind), each.start_ms, each.id)))


def choose_request(snapshot: Snapshot, liveness: LivenessView) -> Choice:
    """The request to start while no node is in transition and the topology is at rest."""
    pending = pending_requests(snapshot)
    if not pending:
        return QueueEmpty()
    verdicts = tuple(Verdict(request, _blockers(snapshot, request, liveness)) for request in pending)
    best = next((verdict.request for verdict in verdicts if verdict.viable), None)
    if best is None:
        return CancelAll(verdicts)
    objections = _admission(snapshot, best)
    return Reject(best, objections) if objections else TakeUp(best, verdicts)


def _blockers(snapshot: Snapshot, request: NodeRequest, liveness: LivenessView) -> tuple[Objection, ...]:
    """Dead nodes that block a request. Join and leave tolerate none: a dead node may have the only fresh copy of a
    range that they move. Remove and replace tolerate the ignored ones. A rebuild needs only its own node."""
    if request.kind is NodeRequestKind.REBUILD:
        return () if request.host in liveness.alive else (Objection(Reason.TARGET_DOWN, (request.host,)),)
    gone = presumed_dead(request)
    alive = tuple(host for host in gone if host in liveness.alive)
    if alive:
        # It has returned since the request was made, and would keep serving tokens that are taken from it.
        return (Objection(Reason.TARGET_ALIVE, alive),)
    excused: tuple[HostId, ...] = ()
    if request.kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE):
        excused = (*snapshot.state.ignored_nodes, *gone)
    others = [node for node in snapshot.nodes_in(NodeState.NORMAL) if node.host not in excused]
    down = liveness.dead(others)
    return (Objection(Reason.NODES_DOWN, down),) if down else ()


def presumed_dead(request: NodeRequest) -> tuple[HostId, ...]:
    """The node that the request assumes to be dead."""
    if request.kind is NodeRequestKind.REMOVE:
        return (request.host,)
    return () if request.replaced is None else (request.replaced,)


def _admission(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """Objections to a new node, independent of liveness; none for requests of members."""
    if request.kind not in (NodeRequestKind.JOIN, NodeRequestKind.REPLACE):
        return ()
    node = snapshot.node(request.host)
    objections: list[Objection] = []
    missing = missing_to_join(snapshot, node.supported_features)
    if missing:
        objections.append(Objection(Reason.FEATURES_MISSING, (node.host,), ", ".join(missing)))
    if request.replaced is not None:
        replaced = snapshot.nodes.get(request.replaced)
        if replaced is None or replaced.state is not NodeState.NORMAL:
            objections.append(Objection(Reason.REPLACED_NOT_NORMAL, (request.replaced,)))
        elif (replaced.datacenter, replaced.rack) != (node.datacenter, node.rack):
            objections.append(Objection(Reason.REPLACED_ELSEWHERE, (request.replaced,)))
    return tuple(objections)


def objections_to_submit(
    snapshot: Snapshot, request: NodeRequest, liveness: LivenessView, joining: Node | None = None
) -> tuple[Objection, ...]:
    """Why the node that receives a request should refuse it at once. `apply` repeats the checks that need no
    liveness."""
    found: list[Objection] = []
    target = snapshot.nodes.get(request.host)
    gone = presumed_dead(request)
    if joining is None and (target is None or target.state is not NodeState.NORMAL):
        found.append(Objection(Reason.TARGET_NOT_NORMAL, (request.host,)))
    alive = tuple(host for host in gone if host in liveness.alive)
    if alive:
        found.append(Objection(Reason.TARGET_ALIVE, alive))
    alive = tuple(host for host in request.ignored_nodes if host in liveness.alive)
    if alive:
        found.append(Objection(Reason.IGNORED_ALIVE, alive))
    if gone:
        excused = (*snapshot.state.ignored_nodes, *request.ignored_nodes, *gone)
        others = [node for node in snapshot.nodes_in(NodeState.NORMAL) if node.host not in excused]
        down = liveness.dead(others)
        if down:
            found.append(Objection(Reason.NODES_DOWN, down))
    found.extend(objections_to_removal(snapshot, request))
    return tuple(found)


def objections_to_removal(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """A node may leave only if the remaining nodes can hold every keyspace on tablets and some node owns tokens."""
    if request.kind not in (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE) or request.host not in snapshot.nodes:
        return ()
    target = snapshot.node(request.host)
    staying = [node for node in snapshot.nodes_in(NodeState.NORMAL) if _stays(snapshot, node, request)]
    if not any(node.tokens for node in staying):
        return (Objection(Reason.LAST_OWNER, (target.host,)),)
    here = sum(node.datacenter == target.datacenter for node in staying)
    short = sorted(
        keyspace.name
        for keyspace in snapshot.keyspaces.values()
        if keyspace.on_tablets and _needed(keyspace.replication, target.datacenter) > here
    )
    if not short:
        return ()
    return (Objection(Reason.TOO_FEW_LEFT, (), f"{here} in {target.datacenter}, for {', '.join(short)}"),)


def _needed(replication: Replication, datacenter: str) -> int:
    simple = replication.strategy is Strategy.SIMPLE
    return replication.total if simple else replication.factor(datacenter)


def _stays(snapshot: Snapshot, node: Node, request: NodeRequest) -> bool:
    """Excludes the node itself and every node that is about to leave, so that queued leaves add up."""
    if node.host == request.host:
        return False
    other = snapshot.node_requests.get(node.request) if node.request is not None else None
    return other is None or other.kind not in (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)


def draining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """Nodes whose tablets must move away now: the node that leaves or is removed, and those that wait to be. They are
    drained together, so that each later request is short. By host id."""
    if snapshot.node_in_transition() is None:
        return ()
    found = []
    for node in snapshot.members():
        request = snapshot.node_requests.get(node.request) if node.request is not None else None
        if (
            request is not None
            and not request.error
            and request.kind in (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)
        ):
            found.append(node.host)
    return tuple(found)
