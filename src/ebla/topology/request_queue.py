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
LEAVING_KINDS = (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)


@dataclass(frozen=True, slots=True)
class LivenessView:
    """Which nodes are alive, as the coordinator sees it, and its wall clock. The set is queried, never iterated."""

    alive: frozenset[HostId]
    now_ms: int

    def alive_of(self, hosts: tuple[HostId, ...]) -> tuple[HostId, ...]:
        return tuple(host for host in hosts if host in self.alive)


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
class StartRequest:
    """`verdicts` has every pending request, best priority first."""

    request: NodeRequest
    verdicts: tuple[Verdict, ...]
    why: str


@dataclass(frozen=True, slots=True)
class RejectRequest:
    """This request is next, and its node may not join."""

    request: NodeRequest
    objections: tuple[Objection, ...]
    why: str


@dataclass(frozen=True, slots=True)
class CancelQueue:
    """No pending request can run: all are cancelled, so that operators learn it now and not after hours."""

    verdicts: tuple[Verdict, ...]
    why: str


def pending_requests(snapshot: Snapshot) -> tuple[NodeRequest, ...]:
    """Best priority first, then the oldest, then by id."""
    pending = [each for each in snapshot.node_requests.values() if each.outcome is RequestOutcome.PENDING]
    return tuple(sorted(pending, key=lambda each: (PRIORITY.index(each.kind), each.start_ms, each.id)))


def choose_request(snapshot: Snapshot, liveness: LivenessView) -> StartRequest | RejectRequest | CancelQueue | None:
    """The request to start while no node is in transition and the topology is at rest. None: no request is pending."""
    pending = pending_requests(snapshot)
    if not pending:
        return None
    verdicts = tuple(Verdict(request, _blockers(snapshot, request, liveness)) for request in pending)
    best = next((verdict.request for verdict in verdicts if verdict.viable), None)
    if best is None:
        return CancelQueue(verdicts, "no request can run: " + _said(verdicts[0].objections))
    objections = _admission(snapshot, best)
    if objections:
        return RejectRequest(best, objections, _said(objections))
    return StartRequest(best, verdicts, f"{best.kind} has the best priority")


def _said(objections: tuple[Objection, ...]) -> str:
    return "; ".join(str(objection) for objection in objections)


def _blockers(snapshot: Snapshot, request: NodeRequest, liveness: LivenessView) -> tuple[Objection, ...]:
    """Dead nodes that block a request. Join and leave tolerate none: a dead node may have the only fresh copy of a
    range that they move. Remove and replace tolerate the ignored ones. A rebuild needs only its own node."""
    if request.kind is NodeRequestKind.REBUILD:
        return () if request.host in liveness.alive else (Objection(Reason.TARGET_DOWN, (request.host,)),)
    gone = presumed_dead(request)
    alive = liveness.alive_of(gone)
    if alive:
        # It has returned since the request was made, and would keep serving tokens that are taken from it.
        return (Objection(Reason.TARGET_ALIVE, alive),)
    excused: tuple[HostId, ...] = ()
    if request.kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE):
        excused = (*snapshot.state.ignored_nodes, *gone)
    return _nodes_down(snapshot, liveness, excused)


def _nodes_down(snapshot: Snapshot, liveness: LivenessView, excused: tuple[HostId, ...]) -> tuple[Objection, ...]:
    others = (node.host for node in snapshot.nodes_in(NodeState.NORMAL) if node.host not in excused)
    down = tuple(host for host in others if host not in liveness.alive)
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
    missing = missing_to_join(snapshot.state, node.supported_features)
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
    if alive := liveness.alive_of(gone):
        found.append(Objection(Reason.TARGET_ALIVE, alive))
    if alive := liveness.alive_of(request.ignored_nodes):
        found.append(Objection(Reason.IGNORED_ALIVE, alive))
    if gone:
        found.extend(_nodes_down(snapshot, liveness, (*snapshot.state.ignored_nodes, *request.ignored_nodes, *gone)))
    found.extend(objections_to_removal(snapshot, request))
    return tuple(found)


def objections_to_removal(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """A node may leave only if the remaining nodes can hold every keyspace on tablets and some node owns tokens."""
    if request.kind not in LEAVING_KINDS or request.host not in snapshot.nodes:
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
    other = snapshot.request_of(node)
    return other is None or other.kind not in LEAVING_KINDS


def draining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """Nodes whose tablets must move away now: the node that leaves or is removed, and those that wait to be. They are
    drained together, so that each later request is short. By host id."""
    if snapshot.node_in_transition() is None:
        return ()
    requests = (snapshot.request_of(node) for node in snapshot.members())
    return tuple(each.host for each in requests if each is not None and not each.error and each.kind in LEAVING_KINDS)
