"""What the coordinator does in each row of the node table. Every action can be repeated, by this leader or the next."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from ebla.control.coordinator.coordinator_deps import NO_FENCE, CoordinatorRun
from ebla.control.coordinator.rejections import send_response
from ebla.control.coordinator.wait_causes import Subject, WaitKind
from ebla.control.fault_points import FaultPoint
from ebla.group0.join_admission import learner_of
from ebla.group0.join_messages import JoinNodeResponse
from ebla.group0.members import MemberRole, member_key
from ebla.group0.operations import Operation, OperationKind, read_record
from ebla.model.errors import EblaError, Stale
from ebla.model.identity import Address, HostId, RequestId, SessionId, TopologyVersion
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
    RaiseFence,
    RollBackNode,
    StartNodeRequest,
)
from ebla.topology.next_step import DriveNode, RollBack
from ebla.topology.node_states import NodeAction, NodeRow, node_row
from ebla.topology.request_queue import JOINING_KINDS
from ebla.topology.routing.vnode_streams import has_streams, skipped_parts, sources_among, why_streams_fail
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, TransitionState
from ebla.topology.token_allocation import choose_tokens
from ebla.wire.topology_messages import LEFT_AS_REQUESTED, StopNodeRequest, StreamOrder, StreamProgress, StreamResult
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


class NodeActions:
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
        self._actions: Mapping[NodeAction, Callable[[Node, NodeRow], Coroutine[Any, Any, None]]] = {
            NodeAction.NOTHING: self._pass,
            NodeAction.ADMIT: self._admit,
            NodeAction.COMMIT_GENERATION: self._commit_generation,
            NodeAction.DRAIN_TABLETS: self._pass,
            NodeAction.STREAM: self._stream,
            NodeAction.LEAVE_GROUP0: self._leave,
            NodeAction.MOVE_TABLETS: self._pass,
        }

    # ---- start and drive

    async def start(self, request: NodeRequest) -> None:
        """The keys of the addition of a new node start its request."""
        if request.kind in JOINING_KINDS:
            await self._add_learner(self._run.snapshot.node(request.host), request.id)
            return
        session = self._new_session() if request.kind is NodeRequestKind.REBUILD else None
        await self._run.commit((StartNodeRequest(request.id, session),))

    async def drive(self, step: DriveNode) -> None:
        await self._reach(step.row, "entered")
        await self._actions[step.row.action](self._run.snapshot.node(step.host), step.row)

    async def roll_back(self, step: RollBack) -> None:
        """A new node that has not answered its acceptance is removed and its row becomes `left` in the same step; a
        later one has to leave the ring first."""
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

    def _new_session(self) -> SessionId:
        return SessionId(self._deps.topology.rng.uuid())

    # ---- join_group0

    async def _admit(self, node: Node, row: NodeRow) -> None:
        request = node.request
        assert request is not None, "INV-NODE-6: a node that joins has an open request"
        await self._add_learner(node, request)
        if self._accepted != request:
            await self._accept(node, request)
            if self._accepted != request:
                return
        await self._reach(row, "after_action")
        tokens = choose_tokens(self._run.snapshot, node)
        if node.state is NodeState.REPLACING:  # the ring has the same tokens as before
            await self._reach(row, "before_commit")
            await self._run.commit((ChooseTokens(node.host, tokens, None),))
            return
        ring = [each for each in ring_owners(self._run.snapshot) if each.host != node.host]
        owners = [*ring, msgspec.structs.replace(node, tokens=tokens)]
        parts = generation_parts(generation_ranges(owners, self._deps.topology.rng))
        if why := why_too_large(parts):
            await self._run.commit((self._rolling_back(node, why),))
            return
        generation = GenerationId(bytes=self._deps.topology.rng.bytes(16))
        *first, last = generation_commits(generation, parts)
        for commands in first:
            await self._run.commit(commands)
        await self._reach(row, "before_commit")
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
        await self.wait_version(snapshot.version, subject)
        self._passed = (since, snapshot.version)
        return snapshot.version

    async def wait_version(self, version: TopologyVersion, subject: Subject) -> None:
        """Until every node has it."""

        def explain(missing: Mapping[HostId, str]) -> None:
            if self._explain_silence(subject, (host for host in self._given_up_if_silent() if host in missing)):
                return
            nodes = self._run.snapshot.nodes
            texts = (f"{nodes[host].address}: {lacks}" for host, lacks in sorted(missing.items()) if host in nodes)
            self._run.causes.set(subject, WaitKind.BARRIER, f" {version}: {'; '.join(texts)}")

        await self._deps.topology.barriers.wait_all(version, lambda: awaited_hosts(self._run.snapshot), explain)
        self._run.causes.clear(subject)

    def _given_up_if_silent(self) -> tuple[HostId, ...]:
        """The node of the operation, as long as that can be rolled back. A removed one is dead."""
        node = self._run.snapshot.node_in_transition()
        row = None if node is None else node_row(node.state, self._run.snapshot.transition)
        if node is None or row is None or row.on_failure is None or node.state is NodeState.REMOVING:
            return ()
        return (node.host,)

    async def _barrier_of(self, node: Node, row: NodeRow) -> TopologyVersion:
        if not row.barrier:
            return NO_FENCE
        version = await self.barrier(node.request)
        await self._reach(row, "after_barrier")
        return version

    async def _commit_generation(self, node: Node, row: NodeRow) -> None:
        fence = await self._barrier_of(node, row)
        await self._reach(row, "before_commit")
        await self._commit_for(node, self.generation_commit(fence))

    def generation_commit(self, fence: TopologyVersion) -> CommitCdcGeneration:
        snapshot, now_ms = self._run.snapshot, self._deps.topology.now_ms()
        newest_ms = max((each.timestamp_ms or 0 for each in snapshot.cdc_generations.values()), default=None)
        return CommitCdcGeneration(
            timestamp_ms=generation_timestamp_ms(now_ms, self._deps.settings().ring_delay_ms, newest_ms),
            session=self._new_session(),
            now_ms=now_ms,
            fence=fence,
        )

    async def _stream(self, node: Node, row: NodeRow) -> None:
        """Checkpoints of the sources are taken after the barrier: they have every write that is not sent to both
        rings. A rebuild needs no barrier, because the node is a replica already and gets every write."""
        fence = await self._barrier_of(node, row)
        snapshot = self._run.snapshot
        session = snapshot.state.session
        assert session is not None, "the commit that entered the state opened it"
        if self._streamed != session and has_streams(snapshot):
            failure = await self._run_streams(node, session, fence or snapshot.version)
            if failure:
                await self._run.commit((self._rolling_back(node, failure),))
                return
        self._streamed = session
        await self._advance(node, row, fence)

    async def _pass(self, node: Node, row: NodeRow) -> None:
        """Rows in which nothing but the barrier is to be done. Tablets are moved by steps of their own."""
        fence = await self._barrier_of(node, row)
        if row.action is NodeAction.DRAIN_TABLETS and node.state is NodeState.REPLACING:
            # The next state makes it a pending replica. With a dead natural one, a QUORUM write at RF 3 needs it: it
            # would fail until its shards listen.
            await self.wait_version(self._run.snapshot.version, node.request)
        if row.next.transition is TransitionState.LEFT_TOKEN_RING:
            await self._wait_demoted(node)
        await self._advance(node, row, fence)

    async def _advance(self, node: Node, row: NodeRow, fence: TopologyVersion) -> None:
        await self._reach(row, "after_action")
        await self._reach(row, "before_commit")
        dead = _dead_host(node, row)
        if dead is not None:
            await self._run.remove(dead, f"by request {node.request}", fence)
            return
        opens = node_row(row.next.state, row.next.transition)
        streamed = NO_STREAMS if node.request is None else self._run.progress.get(node.request, NO_STREAMS)
        await self._commit_for(
            node,
            AdvanceNode(
                host=node.host,
                leaving=row.here.transition,
                session=self._new_session() if opens is not None and opens.session else None,
                now_ms=self._deps.topology.now_ms(),
                fence=fence,
                streamed_bytes=streamed.bytes_moved,
                streamed_ranges=streamed.ranges_done,
                skipped=self._skipped(row),
            ),
        )

    def _skipped(self, row: NodeRow) -> tuple[str, ...]:
        if row.action is not NodeAction.STREAM:
            return ()
        skipped = skipped_parts(self._run.snapshot)
        for line in skipped:
            self._deps.topology.report("topology.skipped", {"part": line})
        return skipped

    async def _wait_demoted(self, node: Node) -> None:
        """The node loses its tokens next, and then it is stopped: it must not vote any more. Until the topology is in
        this state it may lead; the choice of voters demotes it now, which begins with a transfer of leadership."""
        store = self._deps.topology.group0.running.store
        while (member := store.members.get(member_key(node.host))) and member.role is MemberRole.VOTER:
            self._run.handle.check_effect()
            if node.host == self._deps.topology.group0.config.member.host:
                self._run.causes.set(node.request, WaitKind.TRANSFER, ": no other voter is caught up")
            else:
                self._run.causes.set(node.request, WaitKind.UNFINISHED, f": {node.address} still votes in group 0")
            await asyncio.sleep(TICK_S)
        self._run.causes.clear(node.request)

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
                if failure := self._why_streams_fail():
                    return failure
                self._explain_streams(request, result)
                await streams.changed.wait(TICK_S)
        finally:
            streams.give(None)

    def _explain_streams(self, request: RequestId, result: StreamResult | None) -> None:
        causes, down = self._run.causes, frozenset(self._silent.since_ms)
        sources = (host for _, _, host in sources_among(self._run.snapshot, down))
        if self._explain_silence(request, chain(self._given_up_if_silent(), sources)):
            return
        if result is None:
            causes.set(request, WaitKind.PIPELINE, ": it has not taken the order yet")
        elif result.unavailable:
            causes.set(request, WaitKind.PIPELINE, f": {result.unavailable}")
        elif result.error:
            causes.set(request, WaitKind.STREAM, f", and is repeated: {result.error}")
        else:
            causes.clear(request)

    def _why_streams_fail(self) -> str:
        """A source is unreachable for `peer_timeout_ms`. Of destinations, the next step decides the same."""
        boot_ms = self._deps.topology.clock.boot_ms()
        lost = self._silent.lost(self._deps.settings().peer_timeout_ms, boot_ms)
        return why_streams_fail(self._run.snapshot, lost)

    # ---- left_token_ring

    async def _leave(self, node: Node, row: NodeRow) -> None:
        """The request is answered before the node is stopped; then the node leaves group 0, and its row is `left`.
        A leader that finds the request answered knows by the fence that the barrier has passed."""
        snapshot = self._run.snapshot
        error, is_rolled_back = self._error_of(snapshot, node), node.state is not NodeState.DECOMMISSIONING
        fence = snapshot.fence
        if node.request is not None or fence < snapshot.state.transition_since:
            fence = await self._barrier_of(node, row)
        if node.request is not None:
            await self._run.commit((RaiseFence(fence), CompleteRequest(node.host, self._deps.topology.now_ms())))
        if not is_rolled_back:
            await self._deps.reach(FaultPoint.LEAVE_REQUEST_DONE)
        await self._reach(row, "after_action")
        await self._stop(node, error if is_rolled_back else LEFT_AS_REQUESTED)
        if not is_rolled_back:
            await self._deps.reach(FaultPoint.LEAVE_STOP_SENT)
        await self._reach(row, "before_commit")
        await self._run.remove(node.host, error if is_rolled_back else "it has left the cluster", fence)

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

    async def _reach(self, row: NodeRow, place: str) -> None:
        transition = row.here.transition
        if transition is not None:
            await self._deps.reach(FaultPoint(f"topology.{transition}.{place}"))
        else:
            await self._deps.reach(FaultPoint(f"rebuild.{'started' if place == 'entered' else place}"))


def _dead_host(node: Node, row: NodeRow) -> HostId | None:
    """The host whose removal from group 0 is the last commit of the operation."""
    if row.here.transition is not TransitionState.WRITE_BOTH_READ_NEW:
        return None
    match node.state:
        case NodeState.REMOVING:
            return node.host
        case NodeState.REPLACING:
            return node.replaced
        case _:
            return None
