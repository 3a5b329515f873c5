"""Each node keeps its row of the topology true: the founder creates it, a restarted node refreshes it, and a node that
must not run as it is stops.

Every commit has a condition on the state it was decided by.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from ebla.control.topology.deps import TopologyDeps
from ebla.group0.join_handshake import NotAdmitted
from ebla.group0.operations import UnreadableRecord, read_record
from ebla.model.advice import RESET_NODE_ADVICE
from ebla.model.errors import EblaError, Refused
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.cdc_generations import generation_commits, generation_parts, generation_ranges
from ebla.topology.commands import Command, CreateCluster, RefreshNode
from ebla.topology.request_queue import latest_join
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Snapshot, TopologyState
from ebla.topology.states import NodeState, TransitionState
from ebla.topology.token_allocation import choose_tokens

CHECK_MS = 500
COMMIT_MS = 5_000

WAITS_FOR_TURN = "the node is not in the ring yet"
KEEPS_SHARDS = "tables on vnodes are placed by the number of shards, which must stay: start with {count} shards"
LEFT = "this node left the cluster"


class OwnRow:
    def __init__(self, own: Node, deps: TopologyDeps) -> None:
        self._own = own
        self._deps = deps
        self._last_reason = ""
        self.waits_for = ""
        """For people: why this node is not in the ring."""
        self._join = JoinLog()

    async def run(self) -> None:
        """Until cancelled. Raises `Refused` where this node must not run as it is."""
        await self._deps.group0.confirmed.wait()
        while True:
            group0 = self._deps.group0
            if group0.is_running and group0.running.store.index > 0:
                await self._check()
            await asyncio.sleep(CHECK_MS / 1000)

    async def _check(self) -> None:
        """Decides by what a quorum knows: by its own state alone, a node that was paused could overwrite newer data.

        While an operation on this node is unfinished, it waits. The row of a voter that is removed is `left` by then:
        if it stopped now and the leader died, no majority might be left to complete the removal."""
        if self._is_operated_on():
            return
        snapshot = self._deps.topology.snapshot
        if (news := self._join.news(snapshot.nodes.get(self._own.host), snapshot)) is not None:
            self._deps.report(*news)
        self.waits_for = own_problem(snapshot, self._own)
        if not self._commands(snapshot) and not own_refusal(snapshot, self._own):
            return
        try:
            snapshot = await self._deps.read(COMMIT_MS)
        except EblaError as error:
            self.waits_for = error.message
            return
        refusal = own_refusal(snapshot, self._own)
        if refusal and not self._is_operated_on():
            if snapshot.node(self._own.host).state is NodeState.LEFT:
                ending = _left_error(snapshot, self._own, refusal)
                if not isinstance(ending, NotAdmitted):  # such a node asks again for the reason
                    await self._deps.group0.mark_left()
                raise ending
            raise Refused(refusal, advice="start it again with options that fit")
        commands = self._commands(snapshot)
        if commands:
            refused = await self._commit(snapshot, commands)
            self.waits_for = refused or own_problem(self._deps.topology.snapshot, self._own)

    def _is_operated_on(self) -> bool:
        try:
            found = read_record(self._deps.group0.running.store)
        except UnreadableRecord as error:
            self.waits_for = error.message
            return True
        return found is not None and self._own.host in found.value.hosts

    def _commands(self, snapshot: Snapshot) -> tuple[Command, ...]:
        return own_commands(snapshot, self._own, self._deps.now_ms(), self._deps.rng)

    async def _commit(self, snapshot: Snapshot, commands: tuple[Command, ...]) -> str:
        """Why it is not committed, or not known to be; empty if it is."""
        try:
            done = await self._deps.commit(snapshot, commands, COMMIT_MS)
        except EblaError as error:
            if error.message != self._last_reason:  # once, not at every check
                self._last_reason = error.message
                self._deps.report("topology.waits", {"reason": error.message})
            return error.message
        return "another change was committed first" if done is None else ""


@dataclass(slots=True)
class JoinLog:
    """What the log of a new node says of its join: each state, and at the end what it took and moved."""

    _seen: tuple[NodeState, TransitionState | None] | None = None

    def news(self, own: Node | None, snapshot: Snapshot) -> tuple[str, dict[str, object]] | None:
        """The next event; None: nothing has changed."""
        request = None if own is None else latest_join(snapshot, own.host)
        if own is None or request is None:
            return None
        here = (own.state, snapshot.transition if own.in_transition else None)
        before, self._seen = self._seen, here
        if here == before:
            return None
        if own.in_transition:
            return "join.state", {"state": str(own.state), "transition": str(snapshot.transition or "")}
        # A node that was normal at the first look is one that was started again.
        return _join_done(request) if own.state is NodeState.NORMAL and before is not None else None


def _join_done(request: NodeRequest) -> tuple[str, dict[str, object]]:
    took_ms = 0 if request.end_ms is None else max(0, request.end_ms - request.start_ms)
    return "join.done", {
        "seconds": took_ms / 1000,
        "bytes": request.streamed_bytes,
        "ranges": request.streamed_ranges,
    }


def own_commands(snapshot: Snapshot, own: Node, now_ms: int, rng: Rng) -> tuple[Command, ...]:
    """What must be committed so that the topology describes this node as it is; nothing if it does."""
    known = snapshot.nodes.get(own.host)
    if known is None and snapshot.state == TopologyState():
        return _create_cluster(own, now_ms, rng)
    if known is None or known.state is NodeState.LEFT:
        return ()
    if _reported(known) == _reported(own) or _must_keep_shards(snapshot, known, own):
        return ()
    return (_refresh(own),)


def own_problem(snapshot: Snapshot, own: Node) -> str:
    """For people: what this node waits for, or what is wrong with it. Empty once it is in the ring."""
    known = snapshot.nodes.get(own.host)
    if known is None or known.state is NodeState.NONE:
        return WAITS_FOR_TURN
    if known.state is NodeState.LEFT:
        return _why_left(snapshot, own)
    return KEEPS_SHARDS.format(count=known.shard_count) if _must_keep_shards(snapshot, known, own) else ""


def own_refusal(snapshot: Snapshot, own: Node) -> str:
    """Why this node must not run with its options; empty: it may. Only reasons that an operator has to fix."""
    known = snapshot.nodes.get(own.host)
    if known is None:
        return ""
    if known.state is NodeState.LEFT:
        return _why_left(snapshot, own)
    if _must_keep_shards(snapshot, known, own):
        return KEEPS_SHARDS.format(count=known.shard_count)
    if _reported(known) == _reported(own):
        return ""
    applied = apply_commands(snapshot, (_refresh(own),))
    return applied.reason if isinstance(applied, Rejection) else ""


def _why_left(snapshot: Snapshot, own: Node) -> str:
    ended = [one for one in snapshot.node_requests.values() if one.host == own.host and one.error]
    last = max(ended, key=lambda one: one.end_ms or 0, default=None)
    return LEFT if last is None else f"{LEFT}: {last.error}"


def _left_error(snapshot: Snapshot, own: Node, refusal: str) -> Refused:
    """A node whose join was rolled back was never admitted; any other was a member and left."""
    request = latest_join(snapshot, own.host)
    kind = NotAdmitted if request is not None and request.error else Refused
    return kind(refusal, advice=RESET_NODE_ADVICE)


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
    parts = generation_parts(generation_ranges([msgspec.structs.replace(own, tokens=tokens)], rng))
    writes = tuple(command for commit in generation_commits(generation, parts) for command in commit)
    return (*writes, CreateCluster(node=own, tokens=tokens, generation=generation, timestamp_ms=now_ms))
