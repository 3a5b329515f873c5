"""Why a member refuses a new node's join request at once, with nothing changed. Pure.

Features are not checked here: they may be enabled before the request's turn comes, so the coordinator checks them then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from ebla.group0.join_messages import JoinNodeRequest
from ebla.group0.members import Member, MemberRole, member_key
from ebla.model.advice import RESET_NODE_ADVICE
from ebla.model.errors import EblaError, InvalidRequest, Refused, Unavailable
from ebla.model.identity import Address, ClusterId, HostId, RequestId
from ebla.topology.apply.requests import PENDING_REQUESTS_MAX, SHARDS_MAX, open_requests
from ebla.topology.commands import Command, RejectNode, SubmitJoin
from ebla.topology.request_queue import LivenessView, objections_to_submit, submission_error
from ebla.topology.snapshot import Node, NodeRequest, Snapshot, TopologyState
from ebla.topology.states import JOINING_STATES, NodeRequestKind, NodeState
from ebla.topology.token_allocation import NUM_TOKENS_MAX
from ebla.version import DATA_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """What a quorum knows."""

    cluster: ClusterId
    cluster_name: str
    snapshot: Snapshot
    members: Mapping[str, Member]
    """Of group 0, by key."""
    liveness: LivenessView
    """As the receiver of the request sees it."""


def admission_error(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    """None: the request may be submitted, or was (`is_submitted`)."""
    error = _other_cluster(view, request) or _no_topology(view, request)
    if error is not None or is_submitted(view.snapshot, request):
        return error
    return next((error for check in ADMISSION_CHECKS if (error := check(view, request)) is not None), None)


def is_submitted(snapshot: Snapshot, request: JoinNodeRequest) -> bool:
    """The same attempt asks again: a reply was lost. Also after the request has ended: the node then learns by its
    query how."""
    known = snapshot.node_requests.get(RequestId(request.attempt))
    return known is not None and known.host == request.node.host


def join_commands(snapshot: Snapshot, request: JoinNodeRequest, now_ms: int) -> tuple[Command, ...]:
    """Pending joins from the same address end: their process is gone, its folder was reset. Otherwise each of them
    would get its turn, and delay all others until it counts as silent."""
    own = request.node
    superseded = tuple(
        RejectNode(row.host, f"host {own.host} joins with its address {own.address}", now_ms)
        for row in snapshot.nodes_in(NodeState.NONE)
        if row.address == own.address and row.host != own.host
    )
    return (*superseded, SubmitJoin(own, node_request(snapshot, request, now_ms)))


def node_request(snapshot: Snapshot, request: JoinNodeRequest, now_ms: int) -> NodeRequest:
    """What the new node requests. Raises `InvalidRequest` if it names a node that is not there."""
    own = request.node
    joins = NodeRequest(
        id=RequestId(request.attempt), kind=NodeRequestKind.JOIN, host=own.host, initiator=own.host, start_ms=now_ms
    )
    if not request.replaced and not request.ignored:
        return joins
    if not request.replaced:
        raise InvalidRequest("nodes are ignored only by a node that replaces another one", advice="name it: --replace")
    return msgspec.structs.replace(
        joins,
        kind=NodeRequestKind.REPLACE,
        replaced=find_host(snapshot, request.replaced),
        ignored_nodes=tuple(sorted({find_host(snapshot, name) for name in request.ignored})),
    )


def find_host(snapshot: Snapshot, name: str) -> HostId:
    """The node with this address, host id or unique prefix of one. A host that has left is found by its id only: its
    address may be that of another node. Raises `InvalidRequest`, which lists the members."""
    members = [node for node in snapshot.members() if node.state not in JOINING_STATES]
    by_address = [node.host for node in members if node.address == name]
    by_prefix = [node.host for node in members if name and str(node.host).startswith(name)]
    exact = [host for host in sorted(snapshot.nodes) if str(host) == name]
    found = exact or by_address or by_prefix
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{node.host} ({node.address})" for node in members)
    what = f"no node is called {name!r}" if not found else f"{len(found)} nodes are called {name!r}"
    raise InvalidRequest(what, advice=f"the members are {known}")


def learner_of(node: Node, control_port: int, attempt: RequestId) -> Member:
    """The member that is added for this row. The ports are the same on every node."""
    return Member(
        host=node.host,
        role=MemberRole.LEARNER,
        address=Address(node.address, control_port),
        datacenter=node.datacenter,
        rack=node.rack,
        features=node.supported_features,
        release=node.release_version,
        join_id=attempt,
    )


def _other_cluster(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    ours, theirs = (view.cluster_name, view.cluster), (request.cluster_name, request.cluster)
    if ours == theirs:
        return None
    return InvalidRequest(
        f"this node belongs to the cluster {ours[0]!r} ({ours[1]}), and the new node wants to join {theirs[0]!r} "
        f"({theirs[1]})",
        advice="check `cluster_name` and `peers` of the new node",
    )


def _no_topology(view: AdmissionView, _request: JoinNodeRequest) -> EblaError | None:
    if view.snapshot.state != TopologyState():
        return None
    return Unavailable("the first node has not created the topology yet", advice="the new node retries automatically")


def _is_member(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    host = request.node.host
    row, member = view.snapshot.nodes.get(host), view.members.get(member_key(host))
    has_joined = member is not None and member.present if row is None else row.state not in _NOT_MEMBERS
    if not has_joined:
        return None
    return InvalidRequest(
        f"host {host} is a member of this cluster already: its folder was copied, or lost its log",
        advice="start the new node with an empty folder",
    )


def _cannot_ask_again(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    host = request.node.host
    row, member = view.snapshot.nodes.get(host), view.members.get(member_key(host))
    if (row is not None and row.state is NodeState.LEFT) or (member is not None and member.role is MemberRole.REMOVED):
        return Refused(f"host {host} has left this cluster and cannot come back", advice=RESET_NODE_ADVICE)
    if row is None:
        return None
    return Refused(
        f"host {host} has an unfinished join, which an earlier process of it requested (attempt {row.request}, not "
        f"{request.attempt})",
        advice=RESET_NODE_ADVICE,
    )


def _has_address_of_another(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    """A host that has not joined holds its address only until it is out of group 0. It may be this very node before
    its folder was reset, so the request is repeated, not refused for good. Pending joins are superseded
    (`join_commands`)."""
    own, nodes = request.node, view.snapshot.nodes
    rows = [row for row in view.snapshot.members() if row.address == own.address and row.state is not NodeState.NONE]
    present = (view.members[key] for key in sorted(view.members) if view.members[key].present)
    hosts = [row.host for row in rows] + [each.host for each in present if each.address.host == own.address]
    replaced = node_request(view.snapshot, request, 0).replaced
    others = [host for host in hosts if host not in (own.host, replaced)]
    holder = next((host for host in others if host not in nodes or nodes[host].state not in _NOT_MEMBERS), None)
    if holder is not None:
        return InvalidRequest(
            f"the address {own.address} belongs to host {holder}", advice="choose another address for the new node"
        )
    if others:
        return Unavailable(
            f"the address {own.address} belongs to host {others[0]}, which has not joined and is not removed yet",
            advice="the new node retries automatically",
        )
    return None


def _is_out_of_range(_view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    ranges = (
        ("shards", request.node.shard_count, 1, SHARDS_MAX),
        ("num_tokens", request.node.num_tokens, 1, NUM_TOKENS_MAX),
        ("the storage format", request.storage_format, DATA_FORMAT, DATA_FORMAT),
    )
    for name, value, least, greatest in ranges:
        if not least <= value <= greatest:
            return InvalidRequest(
                f"{name} is {value}, and this cluster admits {least} to {greatest}",
                advice="start the new node with a value in this range, or with the release of this cluster",
            )
    return None


def _names_nobody(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    try:
        node_request(view.snapshot, request, 0)
    except InvalidRequest as error:
        return error
    return None


def _cannot_replace(view: AdmissionView, request: JoinNodeRequest) -> EblaError | None:
    if not request.replaced:
        return None
    wanted = node_request(view.snapshot, request, 0)
    objections = objections_to_submit(view.snapshot, wanted, view.liveness, request.node)
    return submission_error(view.snapshot, objections) if objections else None


def _has_no_room(view: AdmissionView, _request: JoinNodeRequest) -> EblaError | None:
    count = open_requests(view.snapshot)
    if count < PENDING_REQUESTS_MAX:
        return None
    return Refused(f"{count} requests are open, and {PENDING_REQUESTS_MAX} is the limit", advice="retry later")


_NOT_MEMBERS = (*JOINING_STATES, NodeState.LEFT)

ADMISSION_CHECKS: tuple[Callable[[AdmissionView, JoinNodeRequest], EblaError | None], ...] = (
    _is_member,
    _cannot_ask_again,
    _names_nobody,
    _cannot_replace,
    _has_address_of_another,
    _is_out_of_range,
    _has_no_room,
)
