"""Which request is next, and why the others are not: pure, with the reasons as data."""

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
    """Who answers, as the coordinator sees it, and its wall clock. Membership is asked for; the set is never walked."""

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
    """Take this one up. `verdicts` has every pending request, best priority first."""

    request: NodeRequest
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """This one's turn has come, and its node may not join."""

    request: NodeRequest
    objections: tuple[Objection, ...]


@dataclass(frozen=True, slots=True)
class CancelAll:
    """None of the queue can run: all are cancelled, so that operators learn it now and not after hours of waiting."""

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
    """The request to take up while no node is in transition and the topology is at rest."""
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
    """Dead nodes in a request's way. Join and leave tolerate none: the ranges they move may have their only fresh
    copy there. Remove and replace tolerate those the operator gave up. A rebuild needs its own node only."""
    if request.kind is NodeRequestKind.REBUILD:
        return () if request.host in liveness.alive else (Objection(Reason.TARGET_DOWN, (request.host,)),)
    gone = presumed_dead(request)
    alive = tuple(host for host in gone if host in liveness.alive)
    if alive:
        # It has come back since the request was made, and would go on serving tokens that are taken from it.
        return (Objection(Reason.TARGET_ALIVE, alive),)
    excused: tuple[HostId, ...] = ()
    if request.kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE):
        excused = (*snapshot.state.ignored_nodes, *gone)
    others = [node for node in snapshot.nodes_in(NodeState.NORMAL) if node.host not in excused]
    down = liveness.dead(others)
    return (Objection(Reason.NODES_DOWN, down),) if down else ()


def presumed_dead(request: NodeRequest) -> tuple[HostId, ...]:
    """Whom the request itself supposes to be dead."""
    if request.kind is NodeRequestKind.REMOVE:
        return (request.host,)
    return () if request.replaced is None else (request.replaced,)


def _admission(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """What speaks against a new node, whatever the liveness; nothing for requests of members."""
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
    """Why the node that takes a request should answer no at once. `apply` checks again what needs no liveness."""
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
    """A node may go only if those that stay can carry every keyspace on tablets and somebody owns the ring."""
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
    """Not the one in question, and not one that has asked to go itself: a queue of leaves must add up."""
    if node.host == request.host:
        return False
    other = snapshot.node_requests.get(node.request) if node.request is not None else None
    return other is None or other.kind not in (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)


def draining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """Whose tablets must move away now: the node that leaves or is removed, and those that wait to be (drained along
    with it, so that their own turn is short). By host id."""
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
