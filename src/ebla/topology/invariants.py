"""Invariants of a snapshot, of two successive snapshots, and of the tablets in shards' storage. Tests and the simulator
check them after every command."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ebla.model.identity import HostId, Replica, SessionId, TableId
from ebla.topology.node_states import TRANSITIONS_WITH_TABLETS_MOVING, node_row
from ebla.topology.routing.sharder import has_replica
from ebla.topology.snapshot import Node, Session, Snapshot
from ebla.topology.states import NodeState, RequestOutcome, SessionKind, TransitionState
from ebla.topology.tablet_map import ReplicaSet, TabletMap, TabletTransition
from ebla.topology.tablet_stages import STAGES, leaving_replicas, pending_replicas


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def violations(snapshot: Snapshot) -> tuple[InvariantViolation, ...]:
    """The violations in one snapshot."""
    return (
        *_nodes(snapshot),
        *_tokens(snapshot),
        *_requests(snapshot),
        *_fence(snapshot),
        *_sessions(snapshot),
        *_drained(snapshot),
        *tablet_violations(snapshot),
        *_promises(snapshot),
    )


def violations_between(before: Snapshot, after: Snapshot) -> tuple[InvariantViolation, ...]:
    """The violations between two snapshots, the second made from the first by any number of commands."""
    return tuple(_between(before, after))


def _nodes(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    for node in snapshot.nodes_in(NodeState.LEFT):
        if node.tokens or node.request is not None:
            yield InvariantViolation("INV-NODE-1", f"{node.host} left but has tokens or a request")
    moving = [node for node in snapshot.members() if node.in_transition]
    if len(moving) > 1:
        yield InvariantViolation("INV-NODE-2", f"{len(moving)} nodes are in transition at once")
    state = moving[0].state if moving else None
    if node_row(state, snapshot.transition) is None:
        yield InvariantViolation("INV-NODE-3", f"a node {state} while the topology is in {snapshot.transition}")
    for host in snapshot.state.ignored_nodes:
        if host not in snapshot.nodes or snapshot.nodes[host].state is NodeState.LEFT:
            yield InvariantViolation("INV-NODE-8", f"{host} is ignored but is no member")
    for host in snapshot.excluded_hosts:
        if host not in snapshot.state.ignored_nodes:
            yield InvariantViolation("INV-NODE-8", f"{host} is excluded but barriers wait for it")
    for node in snapshot.members():
        if node.is_incomplete and node.host not in snapshot.excluded_hosts:
            yield InvariantViolation("INV-NODE-23", f"{node.host} lacks rows and is not excluded")
    committing = snapshot.transition is TransitionState.COMMIT_CDC_GENERATION
    if not committing and snapshot.state.new_cdc_generation is not None:
        yield InvariantViolation("INV-NODE-12", "a generation is to be committed, and this is not the state for it")


def _tokens(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    owners: dict[int, NodeState] = {}
    for node in snapshot.members():
        if node.state is NodeState.NONE and node.tokens:
            yield InvariantViolation("INV-NODE-4", f"{node.host} is not in yet and has tokens")
        if node.state in (NodeState.NORMAL, NodeState.REBUILDING) and not node.tokens:
            yield InvariantViolation("INV-NODE-4", f"{node.host} is {node.state} without tokens")
        if node.state is NodeState.REPLACING:
            yield from _inherited(snapshot, node)
            continue
        for token in node.tokens:
            if token in owners:
                yield InvariantViolation("INV-NODE-4", f"token {token} has two owners")
            owners[token] = node.state


def _inherited(snapshot: Snapshot, node: Node) -> Iterator[InvariantViolation]:
    replaced = snapshot.nodes.get(node.replaced) if node.replaced is not None else None
    if node.tokens and (replaced is None or node.tokens != replaced.tokens):
        yield InvariantViolation("INV-NODE-4", f"{node.host} replaces a node but has other tokens")


def _requests(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    for node in snapshot.members():
        request = snapshot.request_of(node)
        if node.request is not None and (request is None or not request.is_open or request.host != node.host):
            yield InvariantViolation("INV-NODE-6", f"{node.host} points to a request that is not open")
        if node.state is NodeState.NONE and request is None:
            yield InvariantViolation("INV-NODE-6", f"{node.host} wants to join without a request")
        running = request is not None and request.outcome is RequestOutcome.RUNNING
        answered = snapshot.transition is TransitionState.LEFT_TOKEN_RING and request is None
        if node.in_transition and not (running or answered):
            yield InvariantViolation("INV-NODE-6", f"{node.host} is {node.state} for no request")
        if running and not node.in_transition:
            yield InvariantViolation("INV-NODE-6", f"{node.host} is {node.state} but its request runs")
    open_ones = [request for request in snapshot.node_requests.values() if request.is_open]
    for request in open_ones:
        if snapshot.nodes[request.host].request != request.id:
            yield InvariantViolation("INV-NODE-6", f"request {request.id} is open but its node does not know")
    open_global = {request.id for request in snapshot.global_requests.values() if request.is_open}
    if open_global != set(snapshot.state.global_requests):
        yield InvariantViolation("INV-NODE-6", "the queue of global requests and the open ones differ")


def _fence(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    if snapshot.fence > snapshot.version:
        yield InvariantViolation("INV-NODE-5", f"the fence {snapshot.fence} is ahead of the version {snapshot.version}")
    if snapshot.state.transition_since > snapshot.version:
        yield InvariantViolation("INV-NODE-5", "a transition state began in the future")
    if snapshot.state.bulk_forgotten > snapshot.version:
        yield InvariantViolation("INV-NODE-5", "a closed session was forgotten in the future")


def _sessions(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    """Sessions of node operations. INV-TABL-2 covers those of stages; sessions of bulk jobs are independent."""
    reopened = [session for session in snapshot.state.bulk_closed if session in snapshot.sessions]
    if reopened:
        yield InvariantViolation("INV-XFER-1", f"session {reopened[0]} was closed and is open again")
    expected = () if snapshot.state.session is None else (snapshot.state.session,)
    listed = tuple(session.id for session in snapshot.sessions.values() if session.kind is SessionKind.REQUEST)
    if listed != expected:
        yield InvariantViolation("INV-NODE-9", "the open sessions of requests are not that of the state under way")
    node = snapshot.node_in_transition()
    row = node_row(node.state if node is not None else None, snapshot.transition)
    if row is not None and row.session is not (snapshot.state.session is not None):
        yield InvariantViolation("INV-NODE-9", f"a session outlived its state, or is missing in {snapshot.transition}")


def _drained(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    leaving = snapshot.node_in_transition()
    if leaving is not None and leaving.state in (NodeState.DECOMMISSIONING, NodeState.REMOVING):
        past = snapshot.transition in (
            TransitionState.WRITE_BOTH_READ_OLD,
            TransitionState.WRITE_BOTH_READ_NEW,
            TransitionState.LEFT_TOKEN_RING,
        )
        if past and snapshot.has_tablets(leaving.host):
            yield InvariantViolation("INV-NODE-7", f"{leaving.host} is {leaving.state} past draining and has tablets")


def _promises(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    """The promise of the topology's current row, as far as a snapshot can show it."""
    node = snapshot.node_in_transition()
    request = snapshot.request_of(node) if node is not None else None
    given_up = request is not None and bool(request.error)
    match snapshot.transition:
        case None:
            if snapshot.any_tablet_transition or (node is not None and node.state is not NodeState.REBUILDING):
                yield InvariantViolation("INV-NODE-10", "replica sets are changing at rest")
        case TransitionState.JOIN_GROUP0:
            if node is not None and node.tokens:
                yield InvariantViolation("INV-NODE-11", f"{node.host} owns tokens before it is in group 0")
        case TransitionState.COMMIT_CDC_GENERATION:
            yield from _generation_to_commit(snapshot, node)
        case TransitionState.TABLET_DRAINING:
            if node is not None and node.state is not NodeState.REPLACING and _tablets_coming(snapshot, node.host):
                yield InvariantViolation("INV-NODE-13", f"a tablet moves to {node.host}, which is {node.state}")
        case TransitionState.WRITE_BOTH_READ_OLD:
            if snapshot.any_tablet_transition or (node is not None and not node.tokens):
                yield InvariantViolation(
                    "INV-NODE-14", "ranges stream while a tablet moves, or for a node without tokens"
                )
        case TransitionState.WRITE_BOTH_READ_NEW:
            if snapshot.state.session is not None:
                yield InvariantViolation("INV-NODE-15", "reads use the new ring and something may still stream")
        case TransitionState.LEFT_TOKEN_RING:
            if node is not None and node.tokens:
                yield InvariantViolation("INV-NODE-16", f"{node.host} left the ring and owns tokens")
        case TransitionState.ROLLBACK_TO_NORMAL:
            if node is not None and not (node.tokens and given_up):
                yield InvariantViolation(
                    "INV-NODE-17", f"{node.host} is rolled back without its tokens or without a cause"
                )
        case TransitionState.TABLET_MIGRATION:
            if node is not None and not given_up:
                yield InvariantViolation("INV-NODE-18", f"{node.host} is {node.state} while tablets are balanced")
        case TransitionState.TABLET_SPLIT_FINALIZATION:
            if snapshot.any_tablet_transition:
                yield InvariantViolation("INV-NODE-19", "a tablet moves while tablet counts change")


def _generation_to_commit(snapshot: Snapshot, node: Node | None) -> Iterator[InvariantViolation]:
    generation = snapshot.state.new_cdc_generation
    head = snapshot.cdc_generations.get(generation) if generation is not None else None
    parts = range(head.part_count) if head is not None else range(0)
    if head is None or any((head.id, number) not in snapshot.cdc_parts for number in parts):
        yield InvariantViolation("INV-NODE-12", "the data of the generation to commit is not complete")
    if node is not None and not node.tokens:
        yield InvariantViolation("INV-NODE-12", f"{node.host} has no tokens when its generation is committed")


def _tablets_coming(snapshot: Snapshot, host: HostId) -> bool:
    return any(
        replica.host == host
        for tablets in snapshot.tablets.values()
        for number, transition in tablets.transitions()
        for replica in pending_replicas(tablets.replicas(number), transition.new_replicas)
    )


def _between(before: Snapshot, after: Snapshot) -> Iterator[InvariantViolation]:
    if after.version < before.version:
        yield InvariantViolation("INV-NODE-5", f"the version fell from {before.version} to {after.version}")
    if after.fence < before.fence:
        yield InvariantViolation("INV-NODE-5", f"the fence fell from {before.fence} to {after.fence}")
    for node in before.nodes_in(NodeState.LEFT):
        if after.nodes.get(node.host) != node:
            yield InvariantViolation("INV-NODE-1", f"{node.host} left, and its row changed after that")
    for node in before.members():
        if node.is_incomplete and node.host in after.nodes and not after.nodes[node.host].is_incomplete:
            yield InvariantViolation("INV-NODE-23", f"{node.host} lacked rows and counts as complete")
    gone = [host for host in sorted(before.nodes) if host not in after.nodes]
    if gone:
        yield InvariantViolation("INV-NODE-1", f"the row of {gone[0]} is gone")
    same = before.version == after.version
    if same and (before.nodes != after.nodes or before.tablets != after.tablets) and _routes_differ(before, after):
        yield InvariantViolation("INV-NODE-5", "replica sets changed within one version")
    closed = [session for session in sorted(before.sessions) if session not in after.sessions]
    if same and closed:
        yield InvariantViolation(
            "INV-XFER-1", f"session {closed[0]} was closed without a version that one could wait for"
        )


def _routes_differ(before: Snapshot, after: Snapshot) -> bool:
    """The fields that clients' requests depend on. Requests, repair times and the like may change within a version."""
    rings = [
        [(node.host, node.state, node.tokens, node.shard_count) for node in each.members() if node.tokens]
        for each in (before, after)
    ]
    return rings[0] != rings[1] or any(
        list(before.tablets[table].transitions()) != list(after.tablets[table].transitions())
        or list(before.tablets[table].replica_sets()) != list(after.tablets[table].replica_sets())
        for table in before.tablets
        if table in after.tablets
    )


@dataclass(frozen=True, slots=True)
class StoredTablet:
    """One tablet's rows found in the storage of one shard."""

    table: TableId
    tablet: int
    replica: Replica


def stray_tablets(snapshot: Snapshot, held: Iterable[StoredTablet]) -> Iterator[InvariantViolation]:
    """INV-TABL-1: a shard has rows of a tablet only if it is a replica of it; in transition, an old or a new one."""
    for each in held:
        tablets = snapshot.tablets.get(each.table)
        if tablets is None or each.tablet >= tablets.tablet_count:
            yield InvariantViolation(
                "INV-TABL-1", f"shard {each.replica} has rows of tablet {each.tablet} of {each.table}, which is gone"
            )
        elif not has_replica(tablets, each.tablet, each.replica):
            yield InvariantViolation(
                "INV-TABL-1", f"shard {each.replica} has rows of tablet {each.tablet} of {each.table} and is no replica"
            )


def tablet_violations(snapshot: Snapshot) -> Iterator[InvariantViolation]:
    """INV-TABL-2, INV-TABL-3 and INV-TABL-4, for every tablet."""
    expected: dict[SessionId, tuple[TableId, int]] = {}
    for table in sorted(snapshot.tablets):
        tablets = snapshot.tablets[table]
        for number, replicas in enumerate(tablets.replica_sets()):
            if len({replica.host for replica in replicas}) != len(replicas):
                yield InvariantViolation("INV-TABL-3", f"tablet {number} of {table} has two replicas on one host")
        for number, transition in tablets.transitions():
            name = f"tablet {number} of {table}"
            yield from _transition_violations(name, tablets.replicas(number), transition)
            if transition.session is not None:
                if transition.session in expected:
                    yield InvariantViolation("INV-TABL-2", f"{name} shares its session with another tablet")
                expected[transition.session] = (table, number)
        yield from _stream_violations(snapshot, tablets)
    yield from _session_violations(snapshot, expected)
    if snapshot.any_tablet_transition and snapshot.transition not in TRANSITIONS_WITH_TABLETS_MOVING:
        yield InvariantViolation(
            "INV-TABL-3", f"tablets are in transition while the topology is in {snapshot.transition}"
        )


def _transition_violations(
    name: str, replicas: ReplicaSet, transition: TabletTransition
) -> Iterator[InvariantViolation]:
    row = STAGES.get((transition.kind, transition.stage))
    if row is None:
        yield InvariantViolation(
            "INV-TABL-2", f"{name} is in {transition.stage}, which {transition.kind} does not have"
        )
        return
    if row.session != (transition.session is not None):
        held = "has a" if transition.session is not None else "lacks its"
        yield InvariantViolation("INV-TABL-2", f"{name} {held} session in {transition.stage}")
    pending = pending_replicas(replicas, transition.new_replicas)
    leaving = leaving_replicas(replicas, transition.new_replicas)
    if len(pending) > 1 or len(leaving) > 1 or not (pending or leaving):
        yield InvariantViolation(
            "INV-TABL-2", f"{name} changes {len(leaving)} replicas for {len(pending)}, which is not one transition"
        )
    if len({replica.host for replica in transition.new_replicas}) != len(transition.new_replicas):
        yield InvariantViolation("INV-TABL-3", f"{name} would have two replicas on one host")


def _stream_violations(snapshot: Snapshot, tablets: TabletMap) -> Iterator[InvariantViolation]:
    """INV-TABL-4: a table whose changes are captured has a stream for each of its tablets."""
    name = f"table {tablets.table}"
    table = snapshot.tables.get(tablets.table)
    if not tablets.streams:
        if table is not None and table.cdc:
            yield InvariantViolation("INV-TABL-4", f"{name} captures changes and has no streams")
        return
    if tablets.streams[-1].tablet_count != tablets.tablet_count:
        yield InvariantViolation("INV-TABL-4", f"{name} has streams for {tablets.streams[-1].tablet_count} tablets")
    if any(later.timestamp_ms <= earlier.timestamp_ms for earlier, later in pairwise(tablets.streams)):
        yield InvariantViolation("INV-TABL-4", f"{name} has sets of streams that do not follow each other")
    if len({each.mark for each in tablets.streams}) != len(tablets.streams):
        yield InvariantViolation("INV-TABL-4", f"{name} has streams that belong to two sets")


def _session_violations(
    snapshot: Snapshot, expected: dict[SessionId, tuple[TableId, int]]
) -> Iterator[InvariantViolation]:
    """INV-TABL-2: the sessions of stages that are open are exactly those of the stages tablets are in now."""
    for session in sorted(snapshot.sessions):
        listed: Session = snapshot.sessions[session]
        if listed.kind is not SessionKind.STAGE:
            continue
        if expected.pop(session, None) != (listed.table, listed.tablet):
            yield InvariantViolation(
                "INV-TABL-2", f"session {session} outlived the stage of tablet {listed.tablet} of {listed.table}"
            )
    for session, (table, number) in expected.items():
        yield InvariantViolation("INV-TABL-2", f"session {session} of tablet {number} of {table} is not open")
