"""What the coordinator does next: one step, chosen from the snapshot alone.

The order: a node in transition, requests of nodes, global requests, features, tablet migration, resize, rest. A
transition state, once entered, is finished first, because nothing else may start in it. A new leader can repeat every
step: it stays the same until its outcome is committed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.model.identity import HostId, SessionId, TableId
from ebla.topology.apply.resize import tables_to_finalize
from ebla.topology.features import features_to_enable
from ebla.topology.node_states import NodeAction, NodeRow, node_row
from ebla.topology.request_queue import (
    BlockedQueue,
    LivenessView,
    RejectRequest,
    StartRequest,
    choose_request,
    draining_hosts,
    pending_requests,
)
from ebla.topology.routing.vnode_streams import gaining_hosts
from ebla.topology.sessions import sessions_to_close
from ebla.topology.snapshot import GenerationId, GlobalRequest, Node, Snapshot
from ebla.topology.states import (
    GlobalRequestKind,
    NodeState,
    RequestOutcome,
    TransitionState,
    UpgradeState,
)


@dataclass(frozen=True, slots=True)
class BuildState:
    """Write the topology from the settings into group 0."""

    why: str = "the operator started the upgrade"


@dataclass(frozen=True, slots=True)
class DriveNode:
    """Do the row's action (barrier first), then commit the outcome."""

    host: HostId
    row: NodeRow
    why: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Commit the failure edge of the row; nothing has to be done before."""

    host: HostId
    row: NodeRow
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTablets:
    """Drive these tablets, by table id and number; with `ask_balancer`, ask the balancer for more."""

    tablets: tuple[tuple[TableId, int], ...]
    ask_balancer: bool = False
    draining: tuple[HostId, ...] = ()
    why: str


@dataclass(frozen=True, slots=True)
class LeaveTrack:
    """End `tablet_migration`."""

    why: str


@dataclass(frozen=True, slots=True)
class DriveGlobal:
    """Start the oldest global request, continue it (its row's barrier first), or answer it: its outcome and the
    transition state say which."""

    request: GlobalRequest
    row: NodeRow
    why: str


@dataclass(frozen=True, slots=True)
class TurnOnFeatures:
    features: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AskBalancer:
    """At rest: ask the balancer for a plan. Start its moves; if there are none, ask for the next step with
    `plan_is_empty`."""

    why: str


@dataclass(frozen=True, slots=True)
class BeginResize:
    """Enter `tablet_split_finalization`."""

    tables: tuple[TableId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class FinishResize:
    """Barrier, then commit the new maps of these tables."""

    tables: tuple[TableId, ...]
    row: NodeRow
    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    why: str


Step = (
    BuildState
    | DriveNode
    | RollBack
    | MoveTablets
    | LeaveTrack
    | StartRequest
    | RejectRequest
    | BlockedQueue
    | DriveGlobal
    | TurnOnFeatures
    | AskBalancer
    | BeginResize
    | FinishResize
    | Rest
)


def next_step(snapshot: Snapshot, liveness: LivenessView, *, plan_is_empty: bool = False) -> Step:
    """`plan_is_empty`: the balancer was asked about this snapshot and had nothing to move."""
    if snapshot.state.upgrade is UpgradeState.NOT_UPGRADED:
        return Rest("the topology is still kept in the settings; the operator starts the upgrade")
    if snapshot.state.upgrade is UpgradeState.BUILD_COORDINATOR_STATE:
        return BuildState()
    node = snapshot.node_in_transition()
    if node is not None:
        return _step_of_node(snapshot, node, liveness)
    if snapshot.transition is not None:
        return _step_of_track(snapshot, plan_is_empty)
    choice = choose_request(snapshot, liveness)
    if isinstance(choice, BlockedQueue) and snapshot.state.global_requests:
        return _step_of_global(snapshot)  # requests that cannot run hold nothing up
    return choice or _step_without_requests(snapshot, plan_is_empty)


def _step_of_node(snapshot: Snapshot, node: Node, liveness: LivenessView) -> Step:
    row = node_row(node.state, snapshot.transition)
    assert row is not None, "INV-NODE-3"
    failed = _why_failed(snapshot, node, liveness)
    if row.action is NodeAction.DRAIN_TABLETS:
        return _step_of_draining(snapshot, node, row, failed)
    if failed and row.on_failure is not None:
        return RollBack(node.host, row, failed)
    where = f" in {snapshot.transition}" if snapshot.transition is not None else ""
    return DriveNode(node.host, row, f"{node.host} is {node.state}{where}")


def _why_failed(snapshot: Snapshot, node: Node, liveness: LivenessView) -> str:
    """Why the operation must not go on, as long as its row has a way back; empty: it may. The node of a remove is dead;
    any other one streams or is streamed to, as are those that gain ranges. Other nodes are sources at most, and others
    take their place."""
    request = snapshot.request_of(node)
    if request is not None and request.error:
        return request.error
    gone = [host for host in sorted(snapshot.nodes) if host in snapshot.excluded_hosts or host in liveness.lost]
    needed = () if node.state is NodeState.REMOVING else (node.host,)
    if snapshot.transition is TransitionState.WRITE_BOTH_READ_OLD and gone:
        idle = snapshot.hosts_not_pending
        needed = (*needed, *(host for host in gaining_hosts(snapshot) if host not in idle))
    missing = next((snapshot.node(host) for host in gone if host in needed), None)
    if missing is None:
        return ""
    is_excluded = missing.host in snapshot.excluded_hosts
    return f"{missing.address} {'was excluded' if is_excluded else 'does not answer'}"


def _step_of_draining(snapshot: Snapshot, node: Node, row: NodeRow, failed: str) -> Step:
    moving = _moving(snapshot)
    if failed:
        if moving:
            return MoveTablets(tablets=moving, why=f"moves must end before the rollback ({failed})")
        return RollBack(node.host, row, failed)
    must_drain = node.state is not NodeState.REPLACING
    if moving or (must_drain and snapshot.has_tablets(node.host)):
        return MoveTablets(
            tablets=moving,
            ask_balancer=True,
            draining=draining_hosts(snapshot),
            why=f"tablets must leave {node.host}, which is {node.state}",
        )
    return DriveNode(node.host, row, f"{node.host} has no tablets to move")


def _step_of_track(snapshot: Snapshot, plan_is_empty: bool) -> Step:
    row = node_row(None, snapshot.transition)
    assert row is not None, "INV-NODE-3"
    match row.action:
        case NodeAction.MOVE_TABLETS:
            return _step_of_migration(snapshot, plan_is_empty)
        case NodeAction.COMMIT_GENERATION:
            head = snapshot.global_requests[snapshot.state.global_requests[0]]
            return DriveGlobal(head, row, "a new CDC generation is to be committed")
        case NodeAction.FINALIZE_RESIZE:
            return FinishResize(tables_to_finalize(snapshot), row, "every replica is ready for the new tablet count")
        case _:
            raise AssertionError(f"no row of the topology on its own has the action {row.action}")


def _step_of_migration(snapshot: Snapshot, plan_is_empty: bool) -> Step:
    moving = _moving(snapshot)
    waiting = bool(pending_requests(snapshot)) or any(
        snapshot.global_requests[each].outcome is RequestOutcome.PENDING for each in snapshot.state.global_requests
    )
    may_ask = snapshot.state.balancing_enabled and not waiting and not plan_is_empty
    if moving:
        why = "a request waits, so no new moves are begun" if waiting else "tablets are in transition"
        return MoveTablets(tablets=moving, ask_balancer=may_ask, why=why)
    if may_ask:
        return MoveTablets(tablets=(), ask_balancer=True, why="the balancer may have more moves")
    return LeaveTrack("a request waits" if waiting else "nothing is left to move")


def _step_without_requests(snapshot: Snapshot, plan_is_empty: bool) -> Step:
    if snapshot.state.global_requests:
        return _step_of_global(snapshot)
    features = features_to_enable(snapshot)
    if features:
        return TurnOnFeatures(features, "every node supports them")
    if snapshot.state.balancing_enabled and snapshot.tablets and not plan_is_empty:
        return AskBalancer("nothing else is to be done")
    ready = tables_to_finalize(snapshot)
    if ready:
        return BeginResize(ready, "every replica is ready for the new tablet count")
    return Rest("nothing is to be done")


def _step_of_global(snapshot: Snapshot) -> Step:
    row = node_row(None, None)
    assert row is not None
    head = snapshot.global_requests[snapshot.state.global_requests[0]]
    if head.outcome is RequestOutcome.RUNNING:
        assert head.kind is GlobalRequestKind.KEYSPACE_RF_CHANGE, "a generation is committed in a state of its own"
        return DriveGlobal(head, row, f"the tablets of keyspace {head.keyspace} have come to rest: answer the request")
    return DriveGlobal(head, row, f"{head.kind} is the oldest global request")


def _moving(snapshot: Snapshot) -> tuple[tuple[TableId, int], ...]:
    return tuple(
        (table, number) for table in sorted(snapshot.tablets) for number, _ in snapshot.tablets[table].transitions()
    )


@dataclass(frozen=True, slots=True)
class CloseBulkSessions:
    sessions: tuple[SessionId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PublishGeneration:
    generation: GenerationId
    why: str


@dataclass(frozen=True, slots=True)
class DropAbandoned:
    generations: tuple[GenerationId, ...]
    why: str


SideStep = CloseBulkSessions | PublishGeneration | DropAbandoned


def side_steps(snapshot: Snapshot, liveness: LivenessView) -> Iterator[SideStep]:
    """What the leader does besides the topology's own steps; neither waits for the other."""
    over = sessions_to_close(snapshot, liveness.now_ms)
    if over:
        yield CloseBulkSessions(over, "their time is up, or their table is gone")
    committed = [each for each in snapshot.cdc_generations.values() if each.timestamp_ms is not None]
    unpublished = sorted((each.timestamp_ms or 0, each.id) for each in committed if not each.published)
    if unpublished:
        yield PublishGeneration(unpublished[0][1], "the oldest one that clients cannot see yet")
    abandoned = _abandoned(snapshot)
    if abandoned:
        yield DropAbandoned(abandoned, "the operation that wrote their data failed")


def _abandoned(snapshot: Snapshot) -> tuple[GenerationId, ...]:
    """Generations that will never be committed. Their data is written just before the step that names them: while a
    node is in `join_group0`, or for the next global request. In those cases they may still be in progress, and stay."""
    if snapshot.state.upgrade is not UpgradeState.DONE or snapshot.transition is TransitionState.JOIN_GROUP0:
        return ()
    if snapshot.state.global_requests:
        return ()
    return tuple(
        generation
        for generation in sorted(snapshot.cdc_generations)
        if snapshot.cdc_generations[generation].timestamp_ms is None and generation != snapshot.state.new_cdc_generation
    )
