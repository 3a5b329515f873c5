"""Joins of simulated nodes that run only group 0. They store no rows and have no topology coordinator, so the leader
adds one node after another, without barriers and streaming."""

import asyncio
from collections.abc import Sequence

import msgspec

from ebla.control.group0.node import Group0Node
from ebla.control.operations.operation_service import Operations
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.group0.join_admission import learner_of
from ebla.group0.join_messages import JoinNodeResponse
from ebla.group0.members import member_key
from ebla.group0.operations import Operation, OperationCode, OperationFailed, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import RequestId, SessionId
from ebla.ports.environment import Environment
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.cdc_generations import generation_parts, generation_ranges, generation_timestamp_ms, ring_owners
from ebla.topology.commands import (
    AdvanceNode,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    RejectNode,
    StartNodeRequest,
    WriteCdcPart,
)
from ebla.topology.request_queue import pending_requests
from ebla.topology.snapshot import GenerationId, Node, Snapshot
from ebla.topology.states import NodeState, TransitionState
from ebla.topology.token_allocation import choose_tokens
from ebla.wire.peers import Peers
from ebla.wire.verbs import JOIN_NODE_RESPONSE

CHECK_MS = 200
CALL_MS = 1_000
SILENT_MS = 8_000
HOPELESS = (OperationCode.INVALID, OperationCode.UNDONE, OperationCode.QUARANTINED)


class Group0Joins:
    """`run` until cancelled."""

    def __init__(
        self,
        environment: Environment,
        group0: Group0Node,
        topology: CommittedTopology,
        operations: Operations,
        peers: Peers,
    ) -> None:
        self._environment = environment
        self._group0 = group0
        self._topology = topology
        self._operations = operations
        self._peers = peers

    async def run(self) -> None:
        await self._group0.confirmed.wait()
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            if self._group0.leads:
                try:
                    await self._admit_next()
                except EblaError:  # the next look decides again, here or on the next leader
                    continue

    async def _admit_next(self) -> None:
        snapshot = self._topology.snapshot
        for left in snapshot.nodes_in(NodeState.LEFT):
            await self._remove(left, "it has left")
        node = snapshot.node_in_transition()
        if node is None:
            pending = pending_requests(snapshot)
            if not pending:
                return
            node = snapshot.node(pending[0].host)
        assert node.request is not None, "a node that joins has a request (INV-NODE-6)"
        is_accepted = await self._add(node, node.request) and await self._accepts(node, node.request)
        await self._group0.running.client.read_barrier(CALL_MS)
        snapshot = self._topology.snapshot
        if snapshot.node(node.host).request != node.request:
            return  # another leader has ended it meanwhile
        if is_accepted:
            await self._commit(snapshot, self._remaining_join(snapshot, snapshot.node(node.host), node.request))
        else:
            await self._reject(snapshot, node)

    async def _add(self, node: Node, request: RequestId) -> bool:
        """False: it can never be added."""
        operation = Operation(
            id=request,
            kind=OperationKind.ADD_LEARNER,
            hosts=(node.host,),
            member=learner_of(node, self._group0.config.member.address.port, request),
            node=node,
        )
        try:
            await self._operations.run_here(operation)
        except OperationFailed as error:
            if error.code in HOPELESS:
                return False
            raise
        return True

    async def _accepts(self, node: Node, request: RequestId) -> bool:
        """False: another process of the node runs, or none answers."""
        running = self._group0.running
        response = JoinNodeResponse(
            attempt=request, history=running.store.revision.history, members=tuple(running.store.members.values())
        )
        until = asyncio.get_running_loop().time() + SILENT_MS / 1000
        while asyncio.get_running_loop().time() < until:
            try:
                answer = await self._peers.call(node.host, JOIN_NODE_RESPONSE, response, CALL_MS)
            except EblaError:
                await asyncio.sleep(CHECK_MS / 1000)
                continue
            return not answer.stale_attempt
        return False

    async def _reject(self, snapshot: Snapshot, node: Node) -> None:
        reason = "it does not answer under its attempt id"
        if not await self._remove(node, reason):
            await self._commit(snapshot, (RejectNode(node.host, reason, self._now_ms()),))

    async def _remove(self, node: Node, reason: str) -> bool:
        """Whether it was a member."""
        known = self._group0.running.store.members.get(member_key(node.host))
        if known is None or not known.present:
            return False
        operation = Operation(
            id=self._environment.rng.uuid(), kind=OperationKind.REMOVE, hosts=(node.host,), reason=reason
        )
        await self._operations.run_here(operation)
        return True

    def _remaining_join(self, snapshot: Snapshot, node: Node, request: RequestId) -> tuple[Command, ...]:
        """All states of the join in one commit: no node routes rows by them."""
        rng, host, now_ms = self._environment.rng, node.host, self._now_ms()
        session, tokens = SessionId(rng.uuid()), choose_tokens(snapshot, node)
        generation = GenerationId(bytes=rng.bytes(16))
        ring = [*ring_owners(snapshot), msgspec.structs.replace(node, tokens=tokens)]
        parts = generation_parts(generation_ranges(ring, rng))
        newest_ms = max((each.timestamp_ms or 0 for each in snapshot.cdc_generations.values()), default=0)
        commands: list[Command] = [StartNodeRequest(request, session)] if node.state is NodeState.NONE else []
        for number, part in enumerate(parts):
            commands.append(WriteCdcPart(generation=generation, part_count=len(parts), number=number, part=part))
        commands.append(ChooseTokens(host, tokens, generation))
        timestamp_ms = generation_timestamp_ms(now_ms, 0, newest_ms)
        for step in (
            CommitCdcGeneration(timestamp_ms=timestamp_ms, session=session, now_ms=now_ms),
            AdvanceNode(host=host, leaving=TransitionState.WRITE_BOTH_READ_OLD, session=session, now_ms=now_ms),
            AdvanceNode(host=host, leaving=TransitionState.WRITE_BOTH_READ_NEW, session=session, now_ms=now_ms),
        ):
            version = _applied(snapshot, commands).snapshot.version
            commands.append(msgspec.structs.replace(step, fence=version))
        return tuple(commands)

    async def _commit(self, snapshot: Snapshot, commands: tuple[Command, ...]) -> None:
        await self._group0.running.client.transact(_applied(snapshot, commands).transaction, CALL_MS)

    def _now_ms(self) -> int:
        return self._environment.clock.wall_us() // 1000


def _applied(snapshot: Snapshot, commands: Sequence[Command]) -> ProposedChange:
    applied = apply_commands(snapshot, commands)
    assert not isinstance(applied, Rejection), applied
    return applied
