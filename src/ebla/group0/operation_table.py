"""What each kind of operation changes, and how it is repaired. Pure.

To add a kind: a member of `OperationKind`, its fields in `Operation`, and a row in `OPERATIONS`. The row's `plan` gets
the operation and what was read, and returns the members as they should be (one per host of the operation, also those
whose entry stays as it is) with the topology commands of the key changes, or a `Refusal`. `fields` names what of a
member entry the kind changes: when the operation is repeated, those fields are put into the entries of that time.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from ebla.group0.members import RELEASED_ADDRESS, Member, MemberRole
from ebla.group0.operations import Operation, OperationCode, OperationKind, OperationState, UnfinishedOperation
from ebla.model.identity import HostId, TopologyVersion
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import (
    AdvanceNode,
    Command,
    ExcludeHosts,
    IncludeHost,
    RejectNode,
    RemoveNodeWithoutData,
    RollBackNode,
    StartNodeRequest,
)
from ebla.topology.features import missing_to_join
from ebla.topology.node_states import node_row
from ebla.topology.snapshot import Exclusion, Node, Snapshot, TopologyState
from ebla.topology.states import JOINING_STATES, NodeState, TransitionState

NO_FENCE = TopologyVersion(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPlan:
    members: tuple[Member, ...]
    commands: tuple[Command, ...] = ()
    readdressed: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Nothing was changed."""

    code: OperationCode = OperationCode.REFUSED
    reason: str
    advice: str = ""


class Repair(enum.StrEnum):
    """What becomes of a record that another operation or the janitor finds."""

    UNDO = "undo"
    REPEAT = "repeat"


Planner = Callable[[Operation, OperationState, int], OperationPlan | Refusal]
"""The operation, what was read, and the wall time in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    plan: Planner
    repair: Repair
    fields: tuple[str, ...]
    """What of a member entry the operation changes."""
    is_same: Callable[[Operation, UnfinishedOperation], bool] = lambda _operation, _record: True
    """Whether they are the same operation, if kind and hosts are equal."""


def _plan_add(operation: Operation, state: OperationState, _now_ms: int) -> OperationPlan | Refusal:
    """The start of the node's join and its entry as a learner are one change. If the join was started already, under
    this id, only the entry is left to do."""
    wanted = operation.member
    if wanted is None or operation.hosts != (wanted.host,):
        return Refusal(code=OperationCode.INVALID, reason="the addition does not name the member entry of its host")
    if state.snapshot.state == TopologyState():
        return Refusal(
            code=OperationCode.UNAVAILABLE,
            reason="the first node has not created the topology yet",
            advice="try again in a moment",
        )
    known, node = state.member(wanted.host), state.snapshot.nodes.get(wanted.host)
    refusal = _why_not_added(operation, known, node, state.snapshot)
    if refusal is not None:
        return refusal
    assert node is not None
    target = known or msgspec.structs.replace(wanted, role=MemberRole.LEARNER)
    released = _with_released_address(state, node, target)
    if node.state is not NodeState.NONE:
        return OperationPlan(members=(target,), readdressed=released)
    assert node.request is not None, "INV-NODE-6"
    return OperationPlan(members=(target,), commands=(StartNodeRequest(node.request),), readdressed=released)


def _with_released_address(state: OperationState, node: Node, target: Member) -> tuple[Member, ...]:
    """The member that the new node replaces, without its address if the new node uses that."""
    replaced = None if node.replaced is None else state.member(node.replaced)
    if replaced is None or not replaced.present or replaced.address != target.address:
        return ()
    return (msgspec.structs.replace(replaced, address=RELEASED_ADDRESS),)


def with_returned_address(state: OperationState, removed: Member) -> tuple[Member, ...]:
    """The member that the removed node was to replace, with its address if the removed node took that."""
    node = state.snapshot.nodes.get(removed.host)
    replaced = None if node is None or node.replaced is None else state.member(node.replaced)
    if replaced is None or not replaced.present or replaced.address != RELEASED_ADDRESS:
        return ()
    return (msgspec.structs.replace(replaced, address=removed.address),)


def _why_not_added(operation: Operation, known: Member | None, node: Node | None, snapshot: Snapshot) -> Refusal | None:
    (host,) = operation.hosts
    assert operation.member is not None
    if node is None:
        return Refusal(code=OperationCode.INVALID, reason=f"host {host} has not requested to join this cluster")
    if node.state is NodeState.LEFT or (known is not None and not known.present):
        return Refusal(
            code=OperationCode.INVALID,
            reason=f"host {host} has left the cluster and cannot come back",
            advice="start the node over under a new host id: ebla reset-node FOLDER",
        )
    request = snapshot.request_of(node)
    if request is None or request.id != operation.id or node.state not in JOINING_STATES:
        return Refusal(
            code=OperationCode.INVALID,
            reason=f"host {host} is {node.state} and has no join request {operation.id}",
            advice="see ebla topology for the requests that are open",
        )
    if known is not None and known.join_id != operation.member.join_id:
        return Refusal(
            code=OperationCode.INVALID,
            reason=f"host {host} is a {known.role} of this cluster, so it must not start over with an empty log",
            advice=f"remove it (ebla group0 remove {host}) and start the node with a new, empty folder",
        )
    missing = missing_to_join(snapshot.state, operation.member.features)
    if missing:
        return Refusal(
            code=OperationCode.INVALID,
            reason=f"the cluster uses features that host {host} lacks: {', '.join(missing)}",
            advice="start it with a release that has them, and without them in `hidden_features`",
        )
    if known is None and (request.error or not _may_be_added(snapshot, node)):
        return Refusal(reason=f"the join of host {host} is being rolled back: {request.error}")
    return None


def _may_be_added(snapshot: Snapshot, node: Node) -> bool:
    return node.state is NodeState.NONE or snapshot.transition is TransitionState.JOIN_GROUP0


def _plan_remove(operation: Operation, state: OperationState, now_ms: int) -> OperationPlan | Refusal:
    (host,) = operation.hosts
    known = state.member(host)
    if known is None:
        return _unknown_host(host, state)
    if state.voters() == (host,):
        return Refusal(
            reason=f"host {host} is the only voter, and nobody could vote without it",
            advice="wait until another member is a voter, see ebla group0 members",
        )
    reason = operation.reason or "it was removed from group 0"
    commands = removal_commands(state.snapshot, host, reason, now_ms, operation.fence)
    if isinstance(commands, Refusal):
        return commands
    removed = msgspec.structs.replace(known, role=MemberRole.REMOVED)
    return OperationPlan(members=(removed,), commands=commands, readdressed=with_returned_address(state, removed))


def removal_commands(
    snapshot: Snapshot, host: HostId, reason: str, now_ms: int, fence: TopologyVersion = NO_FENCE
) -> tuple[Command, ...] | Refusal:
    """What moves the row of a host that is removed towards `left`."""
    node = snapshot.nodes.get(host)
    if node is None or node.state is NodeState.LEFT:
        return ()
    if node.state is NodeState.NONE:
        return (RejectNode(host, reason, now_ms),)
    successor = _successor(snapshot, node)
    if node.state is NodeState.NORMAL and successor is None:
        return _removal_of_normal(snapshot, node, now_ms)
    here = snapshot.transition
    row = node_row(node.state, here) if node.in_transition else None
    if row is not None and row.may_reject:
        return (RejectNode(host, reason, now_ms),)
    if node.in_transition and here is TransitionState.LEFT_TOKEN_RING:
        # Without a barrier it stays on its way to `left`: others may still send to it.
        return (_last_step(snapshot, node, now_ms, fence),) if fence else ()
    if row is not None and row.on_failure is not None and node.state in JOINING_STATES:
        return (RollBackNode(host=host, leaving=here, reason=reason, now_ms=now_ms),)
    moving = successor or node
    if here is TransitionState.WRITE_BOTH_READ_NEW and moving.state in _ENDS_WITH_A_REMOVAL and fence:
        return (_last_step(snapshot, moving, now_ms, fence),)
    request = snapshot.request_of(moving)
    return Refusal(
        reason=f"{snapshot.running_operation} is not done yet, and it decides about host {host}",
        advice="wait until it is done, see ebla topology"
        + ("" if request is None else f"; or abort it: ebla topology abort {request.id}"),
    )


_ENDS_WITH_A_REMOVAL = (NodeState.REMOVING, NodeState.REPLACING)
"""The last commit of these operations is the key half of a removal: of the dead node."""


def _successor(snapshot: Snapshot, node: Node) -> Node | None:
    """The node that is replacing this one."""
    found = snapshot.nodes_in(NodeState.REPLACING)
    return next((each for each in found if each.replaced == node.host), None)


def _last_step(snapshot: Snapshot, node: Node, now_ms: int, fence: TopologyVersion) -> AdvanceNode:
    assert snapshot.transition is not None
    return AdvanceNode(host=node.host, leaving=snapshot.transition, now_ms=now_ms, fence=fence)


def _removal_of_normal(snapshot: Snapshot, node: Node, now_ms: int) -> tuple[Command, ...] | Refusal:
    command = RemoveNodeWithoutData(node.host, now_ms)
    applied = apply_commands(snapshot, (command,))
    if not isinstance(applied, Rejection):
        return (command,)
    moving = snapshot.node_in_transition()
    if moving is not None:
        return Refusal(
            reason=f"host {node.host} cannot be removed while host {moving.host} is {moving.state}",
            advice=f"wait until {moving.host} is normal, see ebla status",
        )
    return Refusal(
        reason=f"host {node.host} is normal and cannot be removed: {applied.reason}",
        advice=f"if the node is dead: ebla removenode {node.host}; if it is alive: ebla decommission {node.host}",
    )


def _plan_roles(operation: Operation, state: OperationState, _now_ms: int) -> OperationPlan | Refusal:
    targets = []
    for host, role in zip(operation.hosts, operation.roles, strict=True):
        known = state.member(host)
        if known is None or not known.present:
            return _unknown_host(host, state)
        if role is MemberRole.VOTER and host in excluded_hosts(state.snapshot.state):
            return Refusal(reason=f"host {host} is excluded", advice=f"recover it first: ebla recover {host}")
        targets.append(msgspec.structs.replace(known, role=role))
    return OperationPlan(members=tuple(targets))


def _plan_refresh(operation: Operation, state: OperationState, _now_ms: int) -> OperationPlan | Refusal:
    wanted = operation.member
    known = None if wanted is None else state.member(wanted.host)
    if wanted is None or known is None or not known.present:
        return _unknown_host(operation.hosts[0], state)
    others = [one for one in state.members.values() if one.present and one.host != known.host]
    holder = next((one for one in others if one.address == wanted.address), None)
    if holder is not None:
        return Refusal(code=OperationCode.INVALID, reason=f"{wanted.address} is the address of member {holder.host}")
    return OperationPlan(members=(with_fields(known, wanted, OPERATIONS[OperationKind.REFRESH].fields),))


def with_fields(member: Member, source: Member, fields: tuple[str, ...]) -> Member:
    return msgspec.structs.replace(member, **{name: getattr(source, name) for name in fields})


def _unknown_host(host: HostId, state: OperationState) -> Refusal:
    known = ", ".join(str(one.host) for _, one in sorted(state.members.items()) if one.present)
    return Refusal(
        code=OperationCode.INVALID, reason=f"host {host} is not a member of group 0", advice=f"its members are {known}"
    )


def _has_same_join_id(operation: Operation, record: UnfinishedOperation) -> bool:
    return operation.member is not None and operation.member.join_id == record.members[0].join_id


def _has_same_roles(operation: Operation, record: UnfinishedOperation) -> bool:
    roles = dict(zip(operation.hosts, operation.roles, strict=True))
    return roles == {member.host: member.role for member in record.members}


def _plan_exclude(operation: Operation, state: OperationState, now_ms: int) -> OperationPlan | Refusal:
    """Hosts that are excluded already stay as they are, so that a repeat does not count again."""
    members = _members_of(operation, state)
    if isinstance(members, Refusal):
        return members
    exclusions = tuple(
        Exclusion(
            host=host,
            since_ms=now_ms,
            by=operation.leader or host,
            is_automatic=operation.is_automatic,
            is_forced=operation.is_forced,
            opinions=tuple(one for one in operation.opinions if one.host == host),
        )
        for host in operation.hosts
        if state.snapshot.exclusion_of(host) is None
    )
    return OperationPlan(
        members=tuple(msgspec.structs.replace(member, role=MemberRole.LEARNER) for member in members),
        commands=(ExcludeHosts(exclusions),) if exclusions else (),
    )


def _plan_include(operation: Operation, state: OperationState, _now_ms: int) -> OperationPlan | Refusal:
    members = _members_of(operation, state)
    if isinstance(members, Refusal):
        return members
    (host,) = operation.hosts
    if host not in state.snapshot.excluded_hosts:
        return OperationPlan(members=members)
    role = operation.roles[0] if operation.roles else MemberRole.LEARNER
    return OperationPlan(members=(msgspec.structs.replace(members[0], role=role),), commands=(IncludeHost(host),))


def _members_of(operation: Operation, state: OperationState) -> tuple[Member, ...] | Refusal:
    found = []
    for host in operation.hosts:
        known = state.member(host)
        if known is None or not known.present:
            return _unknown_host(host, state)
        found.append(known)
    return tuple(found)


OPERATIONS: Mapping[OperationKind, OperationRow] = MappingProxyType(
    {
        OperationKind.ADD_LEARNER: OperationRow(
            plan=_plan_add, repair=Repair.UNDO, fields=("role",), is_same=_has_same_join_id
        ),
        OperationKind.REMOVE: OperationRow(plan=_plan_remove, repair=Repair.REPEAT, fields=("role",)),
        OperationKind.CHANGE_ROLES: OperationRow(
            plan=_plan_roles, repair=Repair.REPEAT, fields=("role",), is_same=_has_same_roles
        ),
        OperationKind.EXCLUDE: OperationRow(plan=_plan_exclude, repair=Repair.REPEAT, fields=("role",)),
        OperationKind.INCLUDE: OperationRow(plan=_plan_include, repair=Repair.REPEAT, fields=("role",)),
        OperationKind.REFRESH: OperationRow(
            plan=_plan_refresh, repair=Repair.REPEAT, fields=("address", "features", "release")
        ),
    }
)


def excluded_hosts(state: TopologyState) -> tuple[HostId, ...]:
    """They take no voter's seat."""
    return state.ignored_nodes
