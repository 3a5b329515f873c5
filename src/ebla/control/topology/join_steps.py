"""How the first nodes get into the ring, decided: what a node submits about itself, and what the leader does for those
that wait. Pure.

A stand-in for the topology coordinator, which can move data; this one cannot. So it drives joins only while the cluster
has no table: then there is nothing to stream, and every state of a join is passed by its barrier alone. While a node is
on its way, no table is created (`why_no_table_yet`), or a range could change hands with rows in it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from ebla.model.identity import HostId, RequestId, SessionId, TopologyVersion
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection
from ebla.topology.apply.command_batch import apply_commands
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
from ebla.topology.next_step import CancelQueue, DriveNode, RejectRequest, StartRequest, TurnOnFeatures, next_step
from ebla.topology.node_states import NodeAction, NodeRow
from ebla.topology.request_queue import LivenessView, Verdict
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Snapshot, TopologyState
from ebla.topology.states import NodeRequestKind, NodeState
from ebla.topology.token_allocation import choose_tokens

PARTS_PER_COMMIT_MAX = 3
"""Parts of a CDC generation that fit one command of group 0 together with the step that uses them."""

WAITS_FOR_COORDINATOR = (
    "a node can join a cluster that has tables only with the topology coordinator, which this release does not have"
)
WAITS_FOR_TURN = "the leader of group 0 has not let this node into the ring yet"
KEEPS_SHARDS = "the cluster has tables on vnodes, whose rows lie by the number of shards: start with {count} as before"
LEFT = "this node left the cluster and cannot come back; start it with a new, empty folder"


# ---- what a node submits about itself


def own_commands(snapshot: Snapshot, own: Node, now_ms: int, rng: Rng) -> tuple[Command, ...]:
    """What must be committed for the topology to know this node as it is now; nothing where it does."""
    known = snapshot.nodes.get(own.host)
    if known is None and snapshot.state == TopologyState():
        return _create_cluster(own, now_ms, rng)
    if known is None:
        request = NodeRequest(
            id=RequestId(rng.uuid()), kind=NodeRequestKind.JOIN, host=own.host, initiator=own.host, start_ms=now_ms
        )
        return (SubmitJoin(own, request),)
    if known.state is NodeState.LEFT or _as_told(known) == _as_told(own) or _must_keep_shards(snapshot, known, own):
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
    """Why this node must not run as it is; empty: it may. Nothing that passes by itself: somebody has to act."""
    known = snapshot.nodes.get(own.host)
    if known is None:
        return ""
    if known.state is NodeState.LEFT:
        return LEFT
    if _must_keep_shards(snapshot, known, own):
        return KEEPS_SHARDS.format(count=known.shard_count)
    if _as_told(known) == _as_told(own):
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


def _as_told(node: Node) -> tuple[str, str, int, int, tuple[str, ...]]:
    features = tuple(sorted(node.supported_features))
    return node.release_version, node.address, node.shard_count, node.ignore_msb, features


def _must_keep_shards(snapshot: Snapshot, known: Node, own: Node) -> bool:
    lies_so = (known.shard_count, known.ignore_msb) == (own.shard_count, own.ignore_msb)
    return not lies_so and any(not snapshot.on_tablets(table) for table in snapshot.tables)


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
    """What the leader sees beside the snapshot."""

    liveness: LivenessView
    gone: Collection[HostId]
    """Removed from group 0: they take part in nothing any more, and nobody waits for them."""


@dataclass(frozen=True, slots=True)
class NodeBarrier:
    """Before the commit, on all of these, for this version."""

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


def leader_step(snapshot: Snapshot, around: LeaderView, rng: Rng) -> LeaderAction | LeaderIdle:
    rejected = _first_gone(snapshot, around)
    if rejected is not None:
        reason = "it was removed from group 0"
        return LeaderAction((RejectNode(rejected.host, reason, around.liveness.now_ms),))
    step = next_step(snapshot, around.liveness, plan_is_empty=True)
    match step:
        case TurnOnFeatures(features=features):
            return LeaderAction((EnableFeatures(features),))
        case StartRequest() | RejectRequest() | CancelQueue() | DriveNode() if snapshot.tables:
            return LeaderIdle(WAITS_FOR_COORDINATOR)
        case StartRequest(verdicts=verdicts):
            return _start(verdicts, around, rng)
        case RejectRequest(request=request, why=why):
            return LeaderAction((RejectNode(request.host, why, around.liveness.now_ms),))
        case DriveNode(host=host, row=row):
            return _drive(snapshot, snapshot.node(host), row, (around, rng))
        case _:
            # A queue that cannot run is not cancelled here: a node whose request to join ends badly can never come
            # back under its id, and that another one is down while all of them start is nothing unusual.
            return LeaderIdle(step.why)


def _first_gone(snapshot: Snapshot, around: LeaderView) -> Node | None:
    return next((node for node in snapshot.nodes_in(NodeState.NONE) if node.host in around.gone), None)


def _start(verdicts: tuple[Verdict, ...], around: LeaderView, rng: Rng) -> LeaderAction | LeaderIdle:
    """The first that is there itself: once taken up, a join holds up all others until its node is back."""
    for verdict in verdicts:
        request = verdict.request
        alive = request.host in around.liveness.alive
        if verdict.viable and alive and request.kind is NodeRequestKind.JOIN:
            return LeaderAction((StartNodeRequest(request.id, SessionId(rng.uuid())),))
    return LeaderIdle("no node that asked to join is up")


def _drive(snapshot: Snapshot, node: Node, row: NodeRow, means: tuple[LeaderView, Rng]) -> LeaderAction | LeaderIdle:
    around, rng = means
    now_ms = around.liveness.now_ms
    if node.state is not NodeState.BOOTSTRAPPING:
        return LeaderIdle(f"{node.host} is {node.state}, which needs the topology coordinator")
    if node.host in around.gone and row.on_failure is not None:
        return LeaderAction(
            (
                RollBackNode(
                    host=node.host, leaving=snapshot.transition, reason="it was removed from group 0", now_ms=now_ms
                ),
            )
        )
    if row.action is NodeAction.ADMIT:
        return _choose_tokens(snapshot, node, rng)
    barrier = NodeBarrier(snapshot.version, _ring(snapshot, around)) if row.barrier else None
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
    """At once, without a delay for the news to spread: there is no table whose changes a write could record."""
    newest_ms = max((each.timestamp_ms or 0 for each in snapshot.cdc_generations.values()), default=0)
    return generation_timestamp_ms(now_ms, 0, newest_ms)


def _ring(snapshot: Snapshot, around: LeaderView) -> tuple[HostId, ...]:
    """Who must have passed a version before the join goes on: all that own tokens or are about to. A node that has
    only asked to join is nobody's replica, and what it routes by an older version the fence refuses."""
    return tuple(
        node.host for node in snapshot.members() if node.state is not NodeState.NONE and node.host not in around.gone
    )


def why_no_table_yet(snapshot: Snapshot, down: Collection[HostId]) -> str:
    """Why no table may be created now, if it may not. A first table ends the time of easy joins, so it waits for those
    that are up and have asked already."""
    moving = snapshot.node_in_transition()
    if moving is not None:
        return f"host {moving.host} is {moving.state}"
    waiting = [node.host for node in snapshot.nodes_in(NodeState.NONE) if node.host not in down]
    return f"host {waiting[0]} is about to join" if waiting and not snapshot.tables else ""
