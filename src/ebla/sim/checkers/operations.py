"""The promises of operations, checked on each node's store after every entry that changes members or the record.

INV-ATOM-1: when no operation is unfinished, keys and members agree. INV-ATOM-2: no step under a revoked lock has an
effect. INV-ATOM-3: at most one operation is unfinished. INV-ATOM-4: without a record no host is a member without a row,
or owns tokens without being a member. INV-NODE-21: no node runs a Raft server before it is accepted. INV-NODE-22:
without a record no host whose row is `left` is a member.
"""

from collections.abc import Iterable

from ebla.group0.members import MemberRole, member_key
from ebla.group0.operations import OperationResult, UnfinishedOperation, ended_operations, read_record
from ebla.group0.store import Group0Store
from ebla.model.identity import HostId
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState, TransitionState


def settled_problem(store: Group0Store, snapshot: Snapshot) -> str | None:
    """What is wrong while no operation is unfinished."""
    if read_record(store) is not None or not snapshot.nodes:
        return None  # the founder has not created the topology yet
    present = [member.host for _, member in sorted(store.members.items()) if member.present]
    for host in present:
        known = snapshot.nodes.get(host)
        if known is None:
            return f"INV-ATOM-4: {host} is a member without a row"
        if known.state is NodeState.LEFT:
            return f"INV-NODE-22: {host} is a member, and its row is left"
        if known.state is NodeState.NONE:
            return f"INV-ATOM-1: {host} is a member, and its join has not started"
    for one in snapshot.state.exclusions:
        by_failover = one.is_automatic or one.is_forced or one.opinions
        if by_failover and store.members[member_key(one.host)].role is MemberRole.VOTER:
            return f"INV-ATOM-1: {one.host} is excluded, and votes"
    for node in snapshot.members():
        is_leaving = node.in_transition and snapshot.transition is TransitionState.LEFT_TOKEN_RING
        if is_leaving and node.host in present and store.members[member_key(node.host)].role is MemberRole.VOTER:
            return f"INV-NODE-16: {node.host} owns no token any more, and votes"
        if node.host not in present and node.tokens:
            return f"INV-ATOM-4: {node.host} owns tokens without being a member"
        if node.host not in present and not is_leaving and node.state is not NodeState.NONE:
            return f"INV-ATOM-1: {node.host} is {node.state} without being a member"
    return None


def early_server_problem(store: Group0Store, running: Iterable[HostId]) -> str | None:
    """What is wrong with the hosts that run a Raft server, by a store that has applied all that is committed: a node is
    accepted after its membership entry is committed, so every host with a server has one."""
    for host in running:
        if member_key(host) not in store.members:
            return f"INV-NODE-21: {host} runs a Raft server and was never added to group 0"
    return None


class OperationSteps:
    """Follows one store from entry to entry."""

    def __init__(self, store: Group0Store) -> None:
        self._record = _record(store)

    def follow(self, store: Group0Store, *, changes_members: bool) -> str | None:
        """What is wrong with the last entry."""
        before, self._record = self._record, _record(store)
        after = self._record
        if before is not None and after is not None and after.id != before.id and after.repairs != before.id:
            return f"INV-ATOM-3: operation {after.id} replaced the unfinished {before.id}"
        if after is not None and after != before and after.lock != store.lock:
            return f"INV-ATOM-2: the record of {after.id} was written under a revoked lock"
        if after is None and before is not None and before.lock != store.lock and not _is_quarantined(store, before):
            return f"INV-ATOM-2: the record of {before.id} was deleted under a revoked lock"
        if changes_members and after is None:
            return "INV-ATOM-1: members changed without a record"
        if changes_members and after is not None and after.lock != store.lock:
            return f"INV-ATOM-2: members were changed by {after.id} under a revoked lock"
        return None


def _is_quarantined(store: Group0Store, record: UnfinishedOperation) -> bool:
    """The holder of the newest lock may move it aside."""
    ended = [one for one in ended_operations(store) if one.id == record.id]
    return any(one.result is OperationResult.QUARANTINED for one in ended)


def _record(store: Group0Store) -> UnfinishedOperation | None:
    found = read_record(store)
    return None if found is None else found.value
