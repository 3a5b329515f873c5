"""What the coordinator does in each state of a join. Every action can be repeated, by this leader or the next."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from ebla.control.coordinator.coordinator_deps import CoordinatorRun
from ebla.control.coordinator.rejections import send_response
from ebla.control.coordinator.wait_causes import Subject, WaitKind
from ebla.control.fault_points import FaultPoint
from ebla.group0.join_admission import learner_of
from ebla.group0.join_messages import JoinNodeResponse
from ebla.group0.members import member_key
from ebla.group0.operations import Operation, OperationKind, read_record
from ebla.model.errors import EblaError, Stale
from ebla.model.identity import Address, HostId, RequestId, SessionId, TableId, TopologyVersion
from ebla.topology.cdc_generations import (
    generation_commits,
    generation_parts,
    generation_ranges,
    generation_timestamp_ms,
    ring_owners,
    why_too_large,
)
from ebla.topology.commands import (
    AdvanceNode,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    CompleteRequest,
    RollBackNode,
)
from ebla.topology.next_step import DriveNode, RollBack
from ebla.topology.node_states import node_row
from ebla.topology.routing.vnode_streams import RangeStream, has_streams, ring_streams
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Snapshot
from ebla.topology.states import NodeState, TransitionState
from ebla.topology.token_allocation import choose_tokens
from ebla.wire.topology_messages import StopNodeRequest, StreamOrder, StreamProgress, StreamResult
from ebla.wire.verbs import JOIN_NODE_RESPONSE, STOP_NODE

STOP_MS = 10_000
CALL_MS = 2_000
TICK_S = 1.0
NO_STREAMS = StreamProgress()


@dataclass(slots=True)
class SilentHosts:
    """Since when this coordinator sees each host as down, by its boot clock. Starts over with each leader."""

    since_ms: dict[HostId, int] = field(default_factory=dict)

    def observe(self, down: tuple[HostId, ...], boot_ms: int) -> None:
        self.since_ms = {host: self.since_ms.get(host, boot_ms) for host in down}

    def left_ms(self, host: HostId, timeout_ms: int, boot_ms: int) -> int | None:
        """Until it is lost; None: it is not seen as down."""
        since_ms = self.since_ms.get(host)
        return None if since_ms is None else max(0, timeout_ms - (boot_ms - since_ms))

    def lost(self, timeout_ms: int, boot_ms: int) -> frozenset[HostId]:
        return frozenset(host for host, since_ms in self.since_ms.items() if boot_ms - since_ms >= timeout_ms)


def awaited_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """Every node whose row is neither `none` nor `left` and that is not excluded, whether it seems to be up or not: a
    silent node may be alive, and serve by its old view. An excluded one serves no rows (INV-FAIL-3).

    In `left_token_ring` the node that goes is not waited for. All others have stopped sending to it, the fence rejects
    what it still routes to them, and what it writes late reaches its own storage only, which nobody reads any more.
    """
    leaving = snapshot.node_in_transition() if snapshot.transition is TransitionState.LEFT_TOKEN_RING else None
    return tuple(
        node.host
        for node in snapshot.members()
        if node.state is not NodeState.NONE
        and node.host not in snapshot.state.ignored_nodes
        and (leaving is None or node.host != leaving.host)
    )


class JoinActions:
    def __init__(self, run: CoordinatorRun, silent: SilentHosts) -> None:
        self._run = run
        self._deps = run.deps
        self._silent = silent
        self._passed: tuple[TopologyVersion, TopologyVersion] = (TopologyVersion(0), TopologyVersion(0))
        """The last barrier that passed: the version that entered its state, and the version it was for. A commit that
        lost a race against DDL needs no second one."""
        self._accepted: RequestId | None = None
        """The join whose node has answered the acceptance."""
        self._streamed: SessionId | None = None

    # ---- start and drive

    async def start(self, request: NodeRequest) -> None:
        """The keys of the addition start the request: row `bootstrapping`, transition `join_group0`."""
        await self._add_learner(self._run.snapshot.node(request.host), request.id)

    async def drive(self, step: DriveNode) -> None:
        node, transition = self._run.snapshot.node(step.host), self._run.snapshot.transition
        assert transition is not None, "a join has a transition state"
        await self._reach(transition, "entered")
        actions: Mapping[TransitionState, Callable[[Node], Coroutine[Any, Any, None]]] = {
            TransitionState.JOIN_GROUP0: self._admit,
            TransitionState.COMMIT_CDC_GENERATION: self._commit_generation,
            TransitionState.WRITE_BOTH_READ_OLD: self._stream,
            TransitionState.WRITE_BOTH_READ_NEW: self._switch_reads,
            TransitionState.LEFT_TOKEN_RING: self._leave,
        }
        await actions[transition](node)

    async def roll_back(self, step: RollBack) -> None:
        """A node that has not answered its acceptance is removed and its row becomes `left` in the same step; a later
        one has to leave the ring first."""
        node, snapshot = self._run.snapshot.node(step.host), self._run.snapshot
        request = snapshot.request_of(node)
        if snapshot.transition is TransitionState.JOIN_GROUP0 and (request is None or self._accepted != request.id):
            await self._expel(node, step.why)
            return
        await self._run.commit((self._rolling_back(node, step.why),))

    def _rolling_back(self, node: Node, why: str) -> RollBackNode:
        return RollBackNode(
            host=node.host, leaving=self._run.snapshot.transition, reason=why, now_ms=self._deps.topology.now_ms()
        )

    # ---- join_group0

    async def _admit(self, node: Node) -> None:
        request = node.request
        assert request is not None, "INV-NODE-6: a node that joins has an open request"
        await self._add_learner(node, request)
        if self._accepted != request:
            await self._accept(node, request)
            if self._accepted != request:
                return
        await self._reach(TransitionState.JOIN_GROUP0, "after_action")
        tokens = choose_tokens(self._run.snapshot, node)
        generation = GenerationId(bytes=self._deps.topology.rng.bytes(16))
        ring = [each for each in ring_owners(self._run.snapshot) if each.host != node.host]
        owners = [*ring, msgspec.structs.replace(node, tokens=tokens)]
        parts = generation_parts(generation_ranges(owners, self._deps.topology.rng))
        if why := why_too_large(parts):
            await self._run.commit((self._rolling_back(node, why),))
            return
        *first, last = generation_commits(generation, parts)
        for commands in first:
            await self._run.commit(commands)
        await self._reach(TransitionState.JOIN_GROUP0, "before_commit")
        await self._run.commit((*last, ChooseTokens(node.host, tokens, generation)))

    async def _add_learner(self, node: Node, request: RequestId) -> None:
        """Under the id of the request: a new leader continues an unfinished addition, and an ended one is not
        repeated."""
        store = self._deps.topology.group0.running.store
        known = store.members.get(member_key(node.host))
        if known is not None and known.present and read_record(store) is None:
            return
        operation = Operation(
            id=request,
            kind=OperationKind.ADD_LEARNER,
            hosts=(node.host,),
            member=learner_of(node, self._deps.control_port, request),
        )
        self._run.causes.set(request, WaitKind.UNFINISHED, f" {request}: the addition of {node.address} to group 0")
        await self._deps.operations.run_here(operation)
        self._run.causes.clear(request)

    def _address_of(self, node: Node) -> Address:
        return Address(node.address, self._deps.control_port)

    async def _accept(self, node: Node, request: RequestId) -> None:
        """Until the node answers. Another attempt, or silence for `peer_timeout_ms`, ends the join."""
        store = self._deps.topology.group0.running.store
        members = store.present_members().members
        response = JoinNodeResponse(attempt=request, history=store.revision.history, members=members)
        began_ms = self._deps.topology.clock.boot_ms()
        while True:
            self._run.handle.check_effect()
            try:
                answer = await self._deps.peers.call(node.host, JOIN_NODE_RESPONSE, response, CALL_MS)
            except EblaError as error:
                left_ms = began_ms + self._deps.settings().peer_timeout_ms - self._deps.topology.clock.boot_ms()
                if left_ms <= 0:
                    await self._expel(node, f"it did not answer its acceptance: {error.message}")
                    return
                self._explain_no_reply(request, node, left_ms)
                await asyncio.sleep(TICK_S)
                continue
            await self._deps.reach(FaultPoint.JOIN_RESPONSE_SENT)
            self._run.causes.clear(request)
            if answer.stale_attempt:
                await self._expel(node, "the node was started again before it was accepted")
                return
            self._accepted = request
            return

    def _explain_no_reply(self, subject: Subject, node: Node, left_ms: int) -> None:
        countdown = f"; rolled back in {-(-left_ms // 1000)} s"
        self._run.causes.set(subject, WaitKind.NO_REPLY, f" {node.address}", countdown=countdown)

    def _explain_silence(self, subject: Subject, hosts: Iterable[HostId]) -> bool:
        """Whether one of these hosts is down, whose silence ends the join."""
        timeout_ms, boot_ms = self._deps.settings().peer_timeout_ms, self._deps.topology.clock.boot_ms()
        for host in hosts:
            left_ms = self._silent.left_ms(host, timeout_ms, boot_ms)
            if left_ms is not None:
                self._explain_no_reply(subject, self._run.snapshot.node(host), left_ms)
                return True
        return False

    async def _expel(self, node: Node, why: str) -> None:
        """The key half of its removal from group 0 rejects it: row `left`, and the topology is idle."""
        await self._run.remove(node.host, why)
        self.send_rejection(node, why)

    def send_rejection(self, node: Node, reason: str) -> None:
        """Beside the loop. The node also learns it when it asks."""
        attempt = node.request
        if attempt is not None:
            response = JoinNodeResponse(attempt=attempt, rejection=reason)
            self._run.tasks.create_task(send_response(self._deps.context, self._address_of(node), response))

    # ---- the states with a barrier

    async def barrier(self, subject: Subject) -> TopologyVersion:
        """Returns the version that every node has acknowledged."""
        snapshot = self._run.snapshot
        since = snapshot.state.transition_since
        if subject is not None and self._passed[0] == since:
            return self._passed[1]
        version = snapshot.version

        def explain(missing: Mapping[HostId, str]) -> None:
            if self._explain_silence(subject, (host for host in self._given_up_if_silent() if host in missing)):
                return
            nodes = self._run.snapshot.nodes
            texts = (f"{nodes[host].address}: {lacks}" for host, lacks in sorted(missing.items()) if host in nodes)
            self._run.causes.set(subject, WaitKind.BARRIER, f" {version}: {'; '.join(texts)}")

        await self._deps.topology.barriers.wait_all(version, lambda: awaited_hosts(self._run.snapshot), explain)
        self._run.causes.clear(subject)
        self._passed = (since, version)
        return version

    def _given_up_if_silent(self) -> tuple[HostId, ...]:
        """The new node, as long as its join can be rolled back."""
        node = self._run.snapshot.node_in_transition()
        row = None if node is None else node_row(node.state, self._run.snapshot.transition)
        return () if node is None or row is None or row.on_failure is None else (node.host,)

    async def _barrier_of(self, node: Node, transition: TransitionState) -> TopologyVersion:
        version = await self.barrier(node.request)
        await self._reach(transition, "after_barrier")
        return version

    async def _commit_generation(self, node: Node) -> None:
        fence = await self._barrier_of(node, TransitionState.COMMIT_CDC_GENERATION)
        snapshot, now_ms = self._run.snapshot, self._deps.topology.now_ms()
        newest_ms = max((each.timestamp_ms or 0 for each in snapshot.cdc_generations.values()), default=None)
        timestamp_ms = generation_timestamp_ms(now_ms, self._deps.settings().ring_delay_ms, newest_ms)
        await self._reach(TransitionState.COMMIT_CDC_GENERATION, "before_commit")
        await self._commit_for(
            node,
            CommitCdcGeneration(
                timestamp_ms=timestamp_ms,
                session=SessionId(self._deps.topology.rng.uuid()),
                now_ms=now_ms,
                fence=fence,
            ),
        )

    async def _stream(self, node: Node) -> None:
        """Checkpoints of the sources are taken after the barrier: they have every write that is not sent to both
        rings."""
        fence = await self._barrier_of(node, TransitionState.WRITE_BOTH_READ_OLD)
        session = self._run.snapshot.state.session
        assert session is not None, "the commit that entered the state opened it"
        if self._streamed != session and has_streams(self._run.snapshot):
            failure = await self._run_streams(node, session, fence)
            if failure:
                await self._run.commit((self._rolling_back(node, failure),))
                return
        self._streamed = session
        await self._advance(node, TransitionState.WRITE_BOTH_READ_OLD, fence)

    async def _switch_reads(self, node: Node) -> None:
        fence = await self._barrier_of(node, TransitionState.WRITE_BOTH_READ_NEW)
        await self._advance(node, TransitionState.WRITE_BOTH_READ_NEW, fence)

    async def _advance(self, node: Node, transition: TransitionState, fence: TopologyVersion) -> None:
        await self._reach(transition, "after_action")
        await self._reach(transition, "before_commit")
        streamed = NO_STREAMS if node.request is None else self._run.progress.get(node.request, NO_STREAMS)
        await self._commit_for(
            node,
            AdvanceNode(
                host=node.host,
                leaving=transition,
                now_ms=self._deps.topology.now_ms(),
                fence=fence,
                streamed_bytes=streamed.bytes_moved,
                streamed_ranges=streamed.ranges_done,
            ),
        )

    async def _commit_for(self, node: Node, command: Command) -> None:
        """Nothing advances a host whose addition is unfinished: the janitor may still undo it."""
        found = read_record(self._deps.topology.group0.running.store)
        if found is not None and node.host in found.value.hosts:
            raise Stale(f"{found.value.kind} {found.value.id} names {node.address}", advice="see `ebla operations`")
        await self._run.commit((command,))

    async def _run_streams(self, node: Node, session: SessionId, version: TopologyVersion) -> str:
        """Returns why it failed for good; empty: all ranges are there."""
        request = node.request
        assert request is not None, "INV-NODE-6"
        streams, causes = self._deps.streams, self._run.causes
        streams.give(StreamOrder(session=session, version=version, request=request))
        try:
            while True:
                result = streams.result
                if result is not None:
                    self._run.progress[request] = result.progress
                if result is not None and result.is_done:
                    causes.clear(request)
                    return ""
                if result is not None and result.is_final:
                    return result.error
                if lost := self._lost_source():
                    return lost
                self._explain_streams(request, node, result)
                await streams.changed.wait(TICK_S)
        finally:
            streams.give(None)

    def _explain_streams(self, request: RequestId, node: Node, result: StreamResult | None) -> None:
        causes, down = self._run.causes, frozenset(self._silent.since_ms)
        sources = (host for _, _, host in self._streams_from(down))
        if self._explain_silence(request, chain((node.host,), sources)):
            return
        if result is None:
            causes.set(request, WaitKind.PIPELINE, ": it has not taken the order yet")
        elif result.unavailable:
            causes.set(request, WaitKind.PIPELINE, f": {result.unavailable}")
        elif result.error:
            causes.set(request, WaitKind.STREAM, f", and is repeated: {result.error}")
        else:
            causes.clear(request)

    def _lost_source(self) -> str:
        """A source that is unreachable for `peer_timeout_ms` and not excluded."""
        boot_ms = self._deps.topology.clock.boot_ms()
        lost = self._silent.lost(self._deps.settings().peer_timeout_ms, boot_ms)
        snapshot = self._run.snapshot
        for table, stream, gone in self._streams_from(lost):
            name, where = snapshot.tables[table].full_name, snapshot.node(gone).address
            part = f"tokens after {stream.range.start} up to {stream.range.end}"
            return f"{where}, the source of {name}, {part}, is unreachable"
        return ""

    def _streams_from(self, hosts: frozenset[HostId]) -> Iterator[tuple[TableId, RangeStream, HostId]]:
        snapshot = self._run.snapshot
        for table in sorted(snapshot.tables) if hosts else ():
            if snapshot.on_tablets(table):
                continue
            for stream in ring_streams(snapshot, snapshot.replication_of(table)):
                for host in stream.sources:
                    if host in hosts:
                        yield table, stream, host

    # ---- left_token_ring

    async def _leave(self, node: Node) -> None:
        """The request is answered before the node is stopped; then the node leaves group 0, and its row is `left`."""
        reason = self._error_of(self._run.snapshot, node)
        fence = await self._barrier_of(node, TransitionState.LEFT_TOKEN_RING)
        if self._run.snapshot.node(node.host).request is not None:
            await self._run.commit((CompleteRequest(node.host, self._deps.topology.now_ms()),))
        await self._reach(TransitionState.LEFT_TOKEN_RING, "after_action")
        await self._stop(node, reason)
        await self._reach(TransitionState.LEFT_TOKEN_RING, "before_commit")
        await self._run.remove(node.host, reason, fence)

    async def _stop(self, node: Node, reason: str) -> None:
        """For a limited time: it also ends when it sees its row, or that it was removed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_MS / 1000
        while loop.time() < until:
            try:
                await self._run.handle.call(node.host, STOP_NODE, StopNodeRequest(reason), CALL_MS)
            except EblaError:
                self._run.handle.check_effect()
                if node.host in self._deps.topology.down():
                    return
                await asyncio.sleep(0.2)
            else:
                return

    def _error_of(self, snapshot: Snapshot, node: Node) -> str:
        request = snapshot.request_of(node)
        if request is None:  # it was answered before; the ended one says why
            ended = [one for one in snapshot.node_requests.values() if one.host == node.host and not one.is_open]
            request = max(ended, key=lambda one: one.end_ms or 0, default=None)
        return "its join was rolled back" if request is None or not request.error else request.error

    # ---- fault points

    async def _reach(self, transition: TransitionState, place: str) -> None:
        await self._deps.reach(FaultPoint(f"topology.{transition}.{place}"))
