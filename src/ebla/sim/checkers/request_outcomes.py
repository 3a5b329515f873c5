"""What an ended request of a node says, compared with the rows at the version that ended it, and what it has left.

- `done` means that the node is where the request wanted it, anything else that it is where it was before;
- whatever became of a request, its session is closed; if it failed, the hosts that it excluded are excluded no longer,
  unless there is another cause;
- at the end of a run, nothing has undone what is `done`.
"""

from collections.abc import Iterable

from ebla.model.identity import HostId
from ebla.topology.snapshot import Node, NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, TransitionState

LEAVING = (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)
JOINING = (NodeRequestKind.JOIN, NodeRequestKind.REPLACE)


def outcome_problem(request: NodeRequest, snapshot: Snapshot) -> str | None:
    """What is wrong with a request at the version that ended it."""
    if any(session.request == request.id for session in snapshot.sessions.values()):
        return f"request {request.id} is {request.outcome}, and its session is open"
    node = snapshot.nodes[request.host]
    expected = _expected_end(request)
    if expected is NodeState.LEFT and not _is_out(snapshot, node):
        return f"{request.kind} {request.id} of {node.host} is {request.outcome}, and the node is {node.state}"
    is_void = request.outcome is RequestOutcome.FAILED and is_ended_by_other(request, snapshot)
    if expected is NodeState.NORMAL and not (_is_in(node) or is_void):
        return f"{request.kind} {request.id} of {node.host} is {request.outcome}, and the node is {node.state}"
    if request.replaced is not None:
        is_done = request.outcome is RequestOutcome.DONE
        if _is_out(snapshot, snapshot.nodes[request.replaced]) is not is_done:
            replaced = snapshot.nodes[request.replaced]
            return f"replace {request.id} is {request.outcome}, and the replaced {replaced.host} is {replaced.state}"
    if request.outcome is RequestOutcome.FAILED:
        kept = [host for host in request.excludes if host in snapshot.excluded_hosts]
        unexplained = [host for host in kept if not _has_cause(host, snapshot)]
        if unexplained:
            return f"{request.kind} {request.id} failed, and {unexplained[0]} is still excluded"
    return None


def last_problem(ended: Iterable[NodeRequest], snapshot: Snapshot) -> str | None:
    """What is wrong once nothing runs any more: requests that are `done` are not undone."""
    for request in ended:
        if request.outcome is not RequestOutcome.DONE:
            continue
        gone = request.replaced if request.kind is NodeRequestKind.REPLACE else request.host
        has_to_go = request.kind is NodeRequestKind.REPLACE or request.kind in LEAVING
        if has_to_go and gone is not None and snapshot.nodes[gone].state is not NodeState.LEFT:
            return f"{request.kind} {request.id} is done, and {gone} is {snapshot.nodes[gone].state}"
    return None


def is_ended_by_other(request: NodeRequest, snapshot: Snapshot) -> bool:
    """The node has left, or another one replaces it: its request is void whether or not it could run."""
    replaced = [one.replaced for one in snapshot.node_requests.values()]
    return snapshot.nodes[request.host].state is NodeState.LEFT or request.host in replaced


def _expected_end(request: NodeRequest) -> NodeState:
    is_done = request.outcome is RequestOutcome.DONE
    if request.kind in LEAVING:
        return NodeState.LEFT if is_done else NodeState.NORMAL
    if request.kind in JOINING:
        return NodeState.NORMAL if is_done else NodeState.LEFT
    return NodeState.NORMAL


def _is_in(node: Node) -> bool:
    return node.state is NodeState.NORMAL and bool(node.tokens)


def _is_out(snapshot: Snapshot, node: Node) -> bool:
    """Its row is left, or nothing can keep it from that any more."""
    is_leaving = node.in_transition and snapshot.transition is TransitionState.LEFT_TOKEN_RING
    return not node.tokens and (node.state is NodeState.LEFT or is_leaving)


def _has_cause(host: HostId, snapshot: Snapshot) -> bool:
    by_request = any(one.is_open and host in one.excludes for one in snapshot.node_requests.values())
    by_failover = any(one.host == host for one in snapshot.state.exclusions)
    is_bound = snapshot.nodes[host].is_incomplete or snapshot.in_tablet_transition(host)
    return by_request or by_failover or is_bound
