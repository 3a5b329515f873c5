"""Whether a member puts an operator's request into the queue, and what the operator should know before. Pure.

`join_admission.py` does the same for the requests of new nodes. What changes with time (nodes that are down, the order of
the queue) is checked again when the request's turn comes.
"""

from collections.abc import Callable, Collection, Mapping

from ebla.model.errors import EblaError, InvalidRequest, Refused
from ebla.model.identity import HostId
from ebla.topology.commands import Command, SubmitGlobalRequest, SubmitNodeRequest
from ebla.topology.request_queue import LEAVING_KINDS, LivenessView, Reason, objections_to_submit
from ebla.topology.routing.replica_losses import keyspace_losses, keyspaces_short_of_nodes, without_node
from ebla.topology.snapshot import GlobalRequest, Node, NodeRequest, Snapshot
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState

ADVICE: Mapping[Reason, str] = {
    Reason.NODES_DOWN: "start them, exclude them (ebla failover HOST), or name them with --ignore-dead",
    Reason.IGNORED_ALIVE: "leave them out of --ignore-dead",
    Reason.TARGET_ALIVE: "if it is excluded, stop it first",
}
NOT_IN_RING = (NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING, NodeState.LEFT)


def stored_request(snapshot: Snapshot, request: NodeRequest | GlobalRequest) -> NodeRequest | GlobalRequest | None:
    """The request under the same id, or an open one that does the same."""
    if isinstance(request, NodeRequest):
        return snapshot.node_requests.get(request.id)
    known = snapshot.global_requests.get(request.id)
    if known is not None or request.kind is not GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return known
    queue = (snapshot.global_requests[one] for one in snapshot.state.global_requests)
    return next((one for one in queue if one.kind is request.kind), None)


def submit_command(request: NodeRequest | GlobalRequest) -> Command:
    return SubmitNodeRequest(request) if isinstance(request, NodeRequest) else SubmitGlobalRequest(request)


def submission_error(snapshot: Snapshot, request: NodeRequest, liveness: LivenessView) -> EblaError | None:
    """None: it may be submitted."""
    found = next((error for check in SUBMISSION_CHECKS if (error := check(snapshot, request)) is not None), None)
    if found is not None:
        return found
    objections = objections_to_submit(snapshot, request, liveness)
    if not objections:
        return None
    return Refused(objections[0].text(snapshot), advice=ADVICE.get(objections[0].reason, ""))


def _unknown_host(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    """Also one that has left, or has not joined."""
    named = (("", request.host), *(("--ignore-dead: ", host) for host in request.ignored_nodes))
    for flag, host in named:
        node = snapshot.nodes.get(host)
        if node is None or node.state in NOT_IN_RING:
            members = ", ".join(f"{one.host} ({one.address})" for one in _in_ring(snapshot))
            state = "" if node is None else f", but {node.state}"
            return InvalidRequest(f"{flag}{host} is no member{state}", advice=f"the members are {members}")
    if request.host in request.ignored_nodes:
        return InvalidRequest(f"--ignore-dead: {request.host} is the node itself", advice="leave it out")
    return None


def _unknown_datacenter(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    known = tuple(dict.fromkeys(node.datacenter for node in _in_ring(snapshot)))
    if request.rebuild_source is None or request.rebuild_source in known:
        return None
    names = ", ".join(sorted(known))
    return InvalidRequest(f"there is no datacenter {request.rebuild_source!r}", advice=f"the datacenters are {names}")


def _being_replaced(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    rival = next(
        (one for one in snapshot.members() if one.replaced == request.host and one.state in NOT_IN_RING), None
    )
    if rival is None:
        return None
    return Refused(
        f"{_address(snapshot, request.host)} is already being replaced by {rival.address} (request {rival.request})",
        advice=f"wait for that, or withdraw it: ebla topology abort {rival.request}",
    )


def _not_free(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    node = snapshot.node(request.host)
    known = snapshot.request_of(node)
    if known is not None:
        return Refused(
            f"{node.address} has an open request: {known.kind}, {known.id}",
            advice=f"wait for it (ebla topology wait {known.id}), or withdraw it: ebla topology abort {known.id}",
        )
    if node.state is not NodeState.NORMAL:
        return Refused(f"{node.address} is {node.state}, and must be normal to {request.kind}")
    return None


def _excluded(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    if request.kind is NodeRequestKind.REMOVE or request.host not in snapshot.state.ignored_nodes:
        return None
    return Refused(
        f"{_address(snapshot, request.host)} is excluded, and so it cannot {request.kind}",
        advice="recover it first (ebla recover HOST), or stop it and remove it (ebla removenode HOST)",
    )


def _has_tablets(snapshot: Snapshot, request: NodeRequest) -> EblaError | None:
    if request.kind not in LEAVING_KINDS:
        return None
    count = sum(1 for tablets in snapshot.tablets.values() for _ in tablets.tablets_on(request.host))
    if not count:
        return None
    replicas = f"{count} tablet replica{'' if count == 1 else 's'}"
    return Refused(
        f"{_address(snapshot, request.host)} has {replicas}, which cannot be moved yet",
        advice="drop the tables on tablets, or keep the node",
    )


SUBMISSION_CHECKS: tuple[Callable[[Snapshot, NodeRequest], EblaError | None], ...] = (
    _unknown_host,
    _unknown_datacenter,
    _being_replaced,
    _not_free,
    _excluded,
    _has_tablets,
)


# ---- what an operator should know


def concerns(snapshot: Snapshot, request: NodeRequest, down: Collection[HostId]) -> tuple[str, ...]:
    """Before a node leaves or is removed. `down`: the hosts that do not answer."""
    if request.kind not in LEAVING_KINDS:
        return ()
    gone = {*down, *snapshot.state.ignored_nodes, *request.ignored_nodes}
    if request.kind is NodeRequestKind.REMOVE:
        # Nothing can be read from it, so what counts is who has its ranges now.
        losses = keyspace_losses(snapshot, {*gone, request.host})
    else:
        losses = keyspace_losses(without_node(snapshot, request.host), gone)
    short = keyspaces_short_of_nodes(snapshot, snapshot.node(request.host))
    return (*short, *(str(one) for one in losses))


def _in_ring(snapshot: Snapshot) -> list[Node]:
    return [node for node in snapshot.members() if node.state not in NOT_IN_RING]


def _address(snapshot: Snapshot, host: HostId) -> str:
    return snapshot.node(host).address
