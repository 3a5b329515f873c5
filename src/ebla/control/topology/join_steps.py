"""Decides how the first nodes join the ring: what a node submits about itself, and what the leader does for those that
wait. Pure.

A stand-in for the topology coordinator: it cannot move data. So it drives joins only while the cluster has no table:
then there is nothing to stream, and the barrier alone completes every state of a join. While a node joins, no table is
created (`why_no_table_yet`), or a range could change owners with rows in it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from ebla.model.identity import HostId, RequestId, SessionId, TopologyVersion
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.cdc_generations import generation_parts, generation_ranges, generation_timestamp_ms, ring_owners
from ebla.topology.commands import (
    AdvanceNode,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    CreateCluster,
    EnableFeatures,
    RefreshNode,
    RejectNode,
    RollBackNode,
    StartNodeRequest,
    SubmitJoin,
    WriteCdcPart,
)
from ebla.topology.next_step import DriveNode, TurnOnFeatures, next_step
from ebla.topology.node_states import NodeAction, NodeRow
from ebla.topology.request_queue import CancelQueue, LivenessView, RejectRequest, StartRequest, Verdict
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Snapshot, TopologyState
from ebla.topology.states import NodeRequestKind, NodeState
from ebla.topology.token_allocation import choose_tokens

PARTS_PER_COMMIT_MAX = 3
"""Parts of a CDC generation that fit into one command of group 0 together with the step that uses them."""

WAITS_FOR_COORDINATOR = (
    "a node can join a cluster that has tables only with the topology coordinator, which this release does not have"
)
WAITS_FOR_TURN = "the leader of group 0 has not admitted this node to the ring yet"
KEEPS_SHARDS = "tables on vnodes are placed by the number of shards, which must stay: start with {count} shards"
LEFT = "this node left the cluster and cannot come back; start it with a new, empty folder"


# ---- what a node submits about itself


def own_commands(snapshot: Snapshot, own: Node, now_ms: int, rng: Rng) -> tuple[Command, ...]:
    """What must be committed so that the topology describes this node as it is; nothing if it does."""
    known = snapshot.nodes.get(own.host)
    if known is None and snapshot.state == TopologyState():
        return _create_cluster(own, now_ms, rng)
    if known is None:
        request = NodeRequest(
            id=RequestId(rng.uuid()), kind=NodeRequestKind.JOIN, host=own.host, initiator=own.host, start_ms=now_ms
        )
        return (SubmitJoin(own, request),)
    if known.state is NodeState.LEFT or _reported(known) == _reported(own) or _must_keep_shards(snapshot, known, own):
        return ()
    return (_refresh(own),)


def own_problem(snapshot: Snapshot, own: Node) -> str:
    """For people: what this node waits for, or what is wrong with it. Empty once it is in the ring."""
    known = snapshot.nodes.get(own.host)
    if known is None:
        return WAITS_FOR_TURN
    if known.state is NodeState.LEFT:
        return LEFT
    if _must_keep_shards(snapshot, known, own):
        return KEEPS_SHARDS.format(count=known.shard_count)
    if known.state is NodeState.NONE:
        return WAITS_FOR_COORDINATOR if snapshot.tables else WAITS_FOR_TURN
    return ""


def own_refusal(snapshot: Snapshot, own: Node) -> str:
    """Why this node must not run with its options; empty: it may. Only reasons that an operator has to fix."""
    known = snapshot.nodes.get(own.host)
    if known is None:
        return ""
    if known.state is NodeState.LEFT:
        return LEFT
    if _must_keep_shards(snapshot, known, own):
        return KEEPS_SHARDS.format(count=known.shard_count)
    if _reported(known) == _reported(own):
        return ""
    applied = apply_commands(snapshot, (_refresh(own),))
    return applied.reason if isinstance(applied, Rejection) else ""


def _refresh(own: Node) -> RefreshNode:
    return RefreshNode(
        host=own.host,
        release_version=own.release_version,
        address=own.address,
        shard_count=own.shard_count,
        ignore_msb=own.ignore_msb,
        supported_features=own.supported_features,
    )


def _reported(node: Node) -> tuple[str, str, int, int, tuple[str, ...]]:
    features = tuple(sorted(node.supported_features))
    return node.release_version, node.address, node.shard_count, node.ignore_msb, features


def _must_keep_shards(snapshot: Snapshot, known: Node, own: Node) -> bool:
    is_same = (known.shard_count, known.ignore_msb) == (own.shard_count, own.ignore_msb)
    return not is_same and any(not snapshot.on_tablets(table) for table in snapshot.tables)


def _create_cluster(own: Node, now_ms: int, rng: Rng) -> tuple[Command, ...]:
    tokens = choose_tokens(Snapshot(), own)
    generation = GenerationId(bytes=rng.bytes(16))
    with_tokens = msgspec.structs.replace(own, tokens=tokens)
    parts = _generation_commands(generation, [with_tokens], rng)
    return (*parts, CreateCluster(node=own, tokens=tokens, generation=generation, timestamp_ms=now_ms))


def _generation_commands(generation: GenerationId, ring: list[Node], rng: Rng) -> tuple[WriteCdcPart, ...]:
    parts = generation_parts(generation_ranges(ring, rng))
    return tuple(
        WriteCdcPart(generation=generation, part_count=len(parts), number=number, part=part)
        for number, part in enumerate(parts)
    )


# ---- what the leader does


@dataclass(frozen=True, slots=True)
class LeaderView:
    """What the leader knows besides the snapshot."""

    liveness: LivenessView
    gone: Collection[HostId]
    """Removed from group 0: they take part in nothing any more, and nothing waits for them."""


@dataclass(frozen=True, slots=True)
class NodeBarrier:
    """Required before the commit, on all of these nodes, for this version."""

    version: TopologyVersion
    hosts: tuple[HostId, ...]


@dataclass(frozen=True, slots=True)
class LeaderAction:
    """One commit, and the barrier it needs."""

    commands: tuple[Command, ...]
    barrier: NodeBarrier | None = None


@dataclass(frozen=True, slots=True)
class LeaderIdle:
    why: str


def leader_step(snapshot: Snapshot, view: LeaderView, rng: Rng) -> LeaderAction | LeaderIdle:
    rejected = _first_gone(snapshot, view)
    if rejected is not None:
        reason = "it was removed from group 0"
        return LeaderAction((RejectNode(rejected.host, reason, view.liveness.now_ms),))
    step = next_step(snapshot, view.liveness, plan_is_empty=True)
    match step:
        case TurnOnFeatures(features=features):
            return LeaderAction((EnableFeatures(features),))
        case StartRequest() | RejectRequest() | CancelQueue() | DriveNode() if snapshot.tables:
            return LeaderIdle(WAITS_FOR_COORDINATOR)
        case StartRequest(verdicts=verdicts):
            return _start(verdicts, view, rng)
        case RejectRequest(request=request, why=why):
            return LeaderAction((RejectNode(request.host, why, view.liveness.now_ms),))
        case DriveNode(host=host, row=row):
            return _drive(snapshot, snapshot.node(host), row, view, rng)
        case _:
            # A queue that cannot run is not cancelled here: a node whose join request failed can never come back under
            # its id, and it is normal that another node is down while all of them start.
            return LeaderIdle(step.why)


def _first_gone(snapshot: Snapshot, view: LeaderView) -> Node | None:
    return next((node for node in snapshot.nodes_in(NodeState.NONE) if node.host in view.gone), None)


def _start(verdicts: tuple[Verdict, ...], view: LeaderView, rng: Rng) -> LeaderAction | LeaderIdle:
    """The first whose node is up: once started, a join blocks all others until its node is back."""
    for verdict in verdicts:
        request = verdict.request
        alive = request.host in view.liveness.alive
        if verdict.viable and alive and request.kind is NodeRequestKind.JOIN:
            return LeaderAction((StartNodeRequest(request.id, SessionId(rng.uuid())),))
    return LeaderIdle("no node that asked to join is up")


def _drive(snapshot: Snapshot, node: Node, row: NodeRow, view: LeaderView, rng: Rng) -> LeaderAction | LeaderIdle:
    now_ms = view.liveness.now_ms
    if node.state is not NodeState.BOOTSTRAPPING:
        return LeaderIdle(f"{node.host} is {node.state}, which needs the topology coordinator")
    if node.host in view.gone and row.on_failure is not None:
        return LeaderAction(
            (
                RollBackNode(
                    host=node.host, leaving=snapshot.transition, reason="it was removed from group 0", now_ms=now_ms
                ),
            )
        )
    if row.action is NodeAction.ADMIT:
        return _choose_tokens(snapshot, node, rng)
    barrier = NodeBarrier(snapshot.version, _ring(snapshot, view)) if row.barrier else None
    fence = snapshot.version if row.barrier else TopologyVersion(0)
    session = SessionId(rng.uuid())
    if row.action is NodeAction.COMMIT_GENERATION:
        return LeaderAction(
            (
                CommitCdcGeneration(
                    timestamp_ms=_timestamp_ms(snapshot, now_ms), session=session, now_ms=now_ms, fence=fence
                ),
            ),
            barrier,
        )
    return LeaderAction(
        (AdvanceNode(host=node.host, leaving=snapshot.transition, session=session, now_ms=now_ms, fence=fence),),
        barrier,
    )


def _choose_tokens(snapshot: Snapshot, node: Node, rng: Rng) -> LeaderAction | LeaderIdle:
    tokens = choose_tokens(snapshot, node)
    generation = GenerationId(bytes=rng.bytes(16))
    ring = [each for each in ring_owners(snapshot) if each.host != node.host]
    parts = _generation_commands(generation, [*ring, msgspec.structs.replace(node, tokens=tokens)], rng)
    if len(parts) > PARTS_PER_COMMIT_MAX:
        return LeaderIdle("the ring has too many vnodes and shards for change streams of one commit")
    return LeaderAction((*parts, ChooseTokens(node.host, tokens, generation)))


def _timestamp_ms(snapshot: Snapshot, now_ms: int) -> int:
    """At once, without a propagation delay: there is no table whose changes a write could record."""
    newest_ms = max((each.timestamp_ms or 0 for each in snapshot.cdc_generations.values()), default=0)
    return generation_timestamp_ms(now_ms, 0, newest_ms)


def _ring(snapshot: Snapshot, view: LeaderView) -> tuple[HostId, ...]:
    """The nodes that must have passed a version before the join continues: all that own tokens or are about to. A node
    that only requested to join is no replica, and the fence rejects what it routes by an older version."""
    return tuple(
        node.host for node in snapshot.members() if node.state is not NodeState.NONE and node.host not in view.gone
    )


def why_no_table_yet(snapshot: Snapshot, down: Collection[HostId]) -> str:
    """Why no table may be created now; empty: it may. The first table ends the time of joins without streaming, so it
    waits for nodes that are up and have requested to join."""
    moving = snapshot.node_in_transition()
    if moving is not None:
        return f"host {moving.host} is {moving.state}"
    waiting = [node.host for node in snapshot.nodes_in(NodeState.NONE) if node.host not in down]
    return f"host {waiting[0]} is about to join" if waiting and not snapshot.tables else ""
