"""The effect of a command under construction: the changed rows, and the conditions of the commit.

Conditions. Every step rewrites `topology/state` and is conditional on its revision. All other rows are written by steps
only (with three exceptions, below), so this one condition means "nothing I read has changed": no write skew, and no
condition to forget. The price is that two steps never commit concurrently; steps are few, and come from one
coordinator and from operators.

Three kinds of change are not steps, because they are frequent or come from many nodes, and no step depends on what they
write: opening a bulk job's session (if a step drops its table meanwhile, the leader closes the session), parts of an
uncommitted CDC generation (only ever added, so "complete" stays true), and the mark that a generation was published
(set once). They are conditional on their own keys. Opening a session is also conditional on the state, which it does
not write: it never makes a step fail, but a step may make it fail. Closing bulk sessions is a step, so that nodes see
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from ebla.model.identity import HostId, RequestId, SessionId, TableId, TopologyVersion
from ebla.model.transaction import Change, Condition, DeleteKey, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.topology import keys
from ebla.topology.commands import Command
from ebla.topology.keys import Row, Rows
from ebla.topology.snapshot import Exclusion, GlobalRequest, Node, NodeRequest, Session, Snapshot
from ebla.topology.snapshot_builder import with_revisions, with_rows
from ebla.topology.states import NodeState, RequestOutcome
from ebla.topology.tablet_map import TabletMap

T = TypeVar("T")

FINISHED_REQUESTS_MAX = 128
"""How many finished requests are kept for operators; the oldest are dropped first."""


class CommandRejected(Exception):
    """Ends the work on a command; never leaves `apply`."""


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """The effect of the command, valid only once the transaction has been applied."""

    snapshot: Snapshot
    transaction: Transaction

    def at(self, revision: Revision) -> Snapshot:
        """The snapshot once the transaction is committed at this revision; commands may follow on it."""
        return with_revisions(
            self.snapshot,
            {change.key: revision if isinstance(change, PutKey) else None for change in self.transaction.changes},
        )


class TopologyDraft:
    """Rows change one by one; `now` is the result so far."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.now = base
        self._rows: dict[str, Row | None] = {}
        self._conditions: list[Condition] = []

    def require(self, holds: bool, reason: str) -> None:
        if not holds:
            raise CommandRejected(reason)

    def found(self, value: T | None, reason: str) -> T:
        """The value, which must be there."""
        if value is None:
            raise CommandRejected(reason)
        return value

    def member(self, host: HostId) -> Node:
        return self.found(self.base.nodes.get(host), f"{host} is not a member of this cluster")

    def tablets_of(self, table: TableId) -> TabletMap:
        return self.found(self.base.tablets.get(table), f"table {table} has no tablets")

    def next_global_request(self, request: RequestId) -> GlobalRequest:
        """The request, if it is the oldest one."""
        queue = self.base.state.global_requests
        self.require(bool(queue) and queue[0] == request, f"request {request} is not the next one")
        return self.base.global_requests[request]

    def put_all(self, rows: Rows) -> None:
        self._rows.update(rows)
        self.now = with_rows(self.now, rows)

    def put_node(self, node: Node) -> None:
        self.put_all({keys.node_key(node.host): node})

    def set_state(self, **changes: Any) -> None:
        """Changes columns of the static row. Even without columns it makes the command a step."""
        self.put_all({keys.STATE: msgspec.structs.replace(self.now.state, **changes)})

    def step(self, **changes: Any) -> None:
        """Like `set_state`, for changes that nodes must see: the version grows, once per command."""
        if "transition" in changes and changes["transition"] is not self.now.transition:
            changes["transition_since"] = self.next_version
        self.set_state(version=self.next_version, **changes)

    @property
    def next_version(self) -> TopologyVersion:
        return TopologyVersion(self.base.version + 1)

    def raise_fence(self, fence: TopologyVersion) -> None:
        """0 leaves it unchanged. INV-NODE-5: above the version it would refuse all requests; lowered, it would accept
        old ones."""
        if fence == 0:
            return
        self.require(fence <= self.base.version, f"the fence {fence} is ahead of the version {self.base.version}")
        self.require(fence >= self.base.fence, f"the fence is at {self.base.fence} and never falls to {fence}")
        self.set_state(fence=fence)

    def require_barrier(self, since: TopologyVersion, what: str) -> None:
        passed = self.now.fence >= since
        self.require(passed, f"{what} began at version {since}, and the fence is at {self.now.fence}: no barrier yet")

    def require_idle(self, what: str) -> None:
        running = self.base.running_operation
        self.require(not running, f"{what} only when the topology is idle, and {running} is not done yet")

    def open_session(self, session: Session) -> None:
        self.require(session.id not in self.base.sessions, f"session {session.id} is already open")
        self.put_all({keys.session_key(session.id): session})

    def close_session(self, session: SessionId | None) -> None:
        if session is not None:
            self.put_all({keys.session_key(session): None})

    def require_unchanged(self, key: str) -> None:
        """The commit also depends on this key being as the snapshot has it."""
        revision = self.base.revisions.get(key)
        self._conditions.append(KeyMissing(key) if revision is None else KeyUnchanged(key, revision))

    def end_request(self, request: NodeRequest | GlobalRequest, error: str, now_ms: int) -> None:
        """Writes the outcome and drops the oldest finished requests."""
        outcome = RequestOutcome.FAILED if error else RequestOutcome.DONE
        ended = msgspec.structs.replace(request, outcome=outcome, error=error, end_ms=now_ms)
        if isinstance(ended, NodeRequest):
            ended = msgspec.structs.replace(ended, end_version=self.now.version)
        rows: dict[str, Row | None] = {keys.request_key(request.id): ended}
        for old in self._finished_too_many():
            rows[keys.request_key(old)] = None
        self.put_all(rows)
        if isinstance(request, NodeRequest):
            self._settle_exclusions(request, has_failed=bool(error), now_ms=now_ms)

    def _finished_too_many(self) -> list[RequestId]:
        """All but the newest, leaving room for one more."""
        everything: list[NodeRequest | GlobalRequest] = [
            *self.now.node_requests.values(),
            *self.now.global_requests.values(),
        ]
        finished = sorted((each.end_ms or 0, each.id) for each in everything if not each.is_open)
        return [request for _, request in finished[: max(0, len(finished) - FINISHED_REQUESTS_MAX + 1)]]

    def _settle_exclusions(self, request: NodeRequest, *, has_failed: bool, now_ms: int) -> None:
        """After a failure the nodes that the request excluded are excluded no longer, unless another open request
        excludes them too. After success those that it ignored stay excluded, until each is recovered.

        While the request of another node runs, they stay excluded until that ends: its barriers have not waited for
        them, and it may have counted them out (`excluded_at_start`)."""
        if not has_failed:
            known = [one.host for one in self.now.state.exclusions]
            kept = [host for host in request.ignored_nodes if host in self.now.state.ignored_nodes]
            fresh = [Exclusion(host=host, since_ms=now_ms, by=request.initiator) for host in kept if host not in known]
            if fresh:
                exclusions = sorted((*self.now.state.exclusions, *fresh), key=lambda one: one.host)
                self.set_state(exclusions=tuple(exclusions))
        moving = self.now.node_in_transition()
        if moving is not None and moving.request not in (None, request.id):
            return
        bound = [host for one in self.now.node_requests.values() if one.is_open for host in one.excludes]
        if not has_failed:
            bound += request.presumed_dead  # it is about to be `left`
        self.forget_ignored(*(host for host in self.now.state.ignored_nodes if host not in bound))

    def ignore(self, *hosts: HostId) -> None:
        """A new version, because every node must see it: an excluded node serves nothing."""
        ignored = tuple(sorted({*self.now.state.ignored_nodes, *hosts}))
        if ignored != self.now.state.ignored_nodes:
            self.step(ignored_nodes=ignored)

    def forget_ignored(self, *gone: HostId) -> None:
        """Stops ignoring nodes that left (INV-NODE-8) or that barriers should wait for again.

        A node involved in a tablet transition stays ignored until an operator removes it from the list: stages did not
        wait for it, and in the middle of a transition no one can tell what it should have dropped. A node that failover
        excluded stays ignored until it is recovered: the request that ignored it too has nothing to do with that. An
        incomplete one stays ignored until it has left (INV-NODE-23).
        """
        left = [host for host in gone if self.now.node(host).state is NodeState.LEFT]
        exclusions = tuple(one for one in self.now.state.exclusions if one.host not in left)
        bound = [one.host for one in exclusions]
        bound += [host for host in gone if self.now.node(host).is_incomplete or self.now.in_tablet_transition(host)]
        free = [host for host in gone if host in left or host not in bound]
        kept = tuple(host for host in self.now.state.ignored_nodes if host not in free)
        if kept != self.now.state.ignored_nodes:
            self.step(ignored_nodes=kept, exclusions=exclusions)

    def finish(self) -> ProposedChange:
        if keys.STATE in self._rows:
            self.require_unchanged(keys.STATE)
        conditions = tuple(sorted(self._conditions, key=lambda each: each.key))
        transaction = Transaction(conditions, _changes(self._rows, self.base.unknown_fields))
        return ProposedChange(replace(self.now, revisions=self.base.revisions), transaction)


CommandHandlers = Mapping[type[Command], Callable[[TopologyDraft, Any], None]]


def _changes(rows: Mapping[str, Row | None], unknown: Mapping[str, tuple[bytes, ...]]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for key in sorted(rows):
        row = rows[key]
        changes.append(DeleteKey(key) if row is None else PutKey(key, keys.encode(row, unknown.get(key, ()))))
    return tuple(changes)
