"""A process that runs one peer of a simulated Raft group over the real wire, and serves clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ebla.control.raft.config import RaftConfig
from ebla.control.raft.driver import RaftDriver
from ebla.control.raft.snapshot_sender import CHUNK_DEADLINE_MS, SnapshotSender, SnapshotTransfer
from ebla.model.errors import InvalidRequest, Unavailable, Unreachable
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.raft.effects import LogWrite
from ebla.raft.events import TransferLeadership
from ebla.raft.membership import MembershipChange, encode_change
from ebla.raft.messages import NO_PEER, EntryKind, HardState, InstallSnapshot, Membership, Message, PeerId, SnapshotMeta
from ebla.sim.checkers.models import RegisterRead
from ebla.sim.checkers.raft_safety import RaftSafetyChecker
from ebla.sim.clients import peers_context
from ebla.sim.clusters.raft_state_machine import (
    RegisterCommand,
    RegisterContent,
    RegisterMachine,
    chunks_of,
    encode_command,
    first_content,
)
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import RaftMessages, SnapshotChunk, SnapshotChunkAnswer
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import RAFT, SNAPSHOT_CHUNK, EmptyAnswer, Verb

CLUSTER_NAME = "sim"
FOLDER = "/data/raft"
LIMITS = WireLimits(connect_ms=1_000, backoff_max_ms=300)


class CommandResult(msgspec.Struct, frozen=True, array_like=True):
    result: int


class MembershipChangeRequest(msgspec.Struct, frozen=True, array_like=True):
    change: MembershipChange


class LeaderTransferCall(msgspec.Struct, frozen=True, array_like=True):
    target: PeerId


RUN_COMMAND = Verb(number=9201, name="sim_ask", lane=Lane.CONTROL, request=RegisterCommand, answer=CommandResult)
CHANGE = Verb(number=9202, name="sim_change", lane=Lane.CONTROL, request=MembershipChangeRequest, answer=EmptyAnswer)
TRANSFER = Verb(number=9203, name="sim_transfer", lane=Lane.CONTROL, request=LeaderTransferCall, answer=EmptyAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftGroup:
    """What every peer and client of one group knows."""

    cluster: ClusterId
    history: HistoryId
    hosts: Mapping[PeerId, HostId]
    addresses: Mapping[PeerId, Address]
    first: Membership
    setup: Callable[[PeerId, EventReporter], RaftConfig]
    watch: RaftSafetyChecker

    def context(self, environment: Environment, host: HostId, report: EventReporter) -> PeersContext:
        introduction = Introduction(host=host, cluster=self.cluster, cluster_name=CLUSTER_NAME)
        return peers_context(environment, introduction, report, LIMITS)


class SimRaftWire:
    """`control.raft.driver.RaftTransport` over the wire."""

    def __init__(self, peers: Peers, group: RaftGroup) -> None:
        self._peers = peers
        self._group = group
        self._sendings = 0
        for peer, host in group.hosts.items():
            peers.set_address(host, group.addresses[peer])

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        host = self._group.hosts.get(peer)
        if host is None:
            return False
        for message in messages:
            self._group.watch.leaves(message)
        sender = messages[0].sender
        own, address = self._group.hosts[sender], self._group.addresses[sender]
        return self._peers.send(
            host, RAFT, RaftMessages(history=self._group.history, messages=tuple(messages), host=own, address=address)
        )

    def name_of(self, peer: PeerId) -> str:
        return f"peer {peer}"

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        host = self._group.hosts.get(message.to)
        if host is None:
            raise Unreachable(f"peer {message.to} is unknown")

        async def send(chunk: SnapshotChunk) -> SnapshotChunkAnswer:
            return await self._peers.call(host, SNAPSHOT_CHUNK, chunk, CHUNK_DEADLINE_MS)

        self._sendings += 1
        await SnapshotSender(SnapshotTransfer(self._group.history, message, self._sendings), send).run(chunks)


async def raft_process(environment: Environment, group: RaftGroup, peer: PeerId, report: EventReporter) -> None:
    """Runs until it is cancelled or killed, or its disk fails."""
    async with asyncio.TaskGroup() as tasks:
        context = group.context(environment, group.hosts[peer], report)
        peers = Peers(tasks, context)
        node = RaftPeer(environment, group, peer, SimRaftWire(peers, group), report)
        await node.open()
        server = Server(tasks, context.introduction, report, context.limits)
        node.serve_at(server)
        await environment.transport.listen(group.addresses[peer], server.accept)
        tasks.create_task(node.raft.run())


class RaftPeer:
    def __init__(
        self, environment: Environment, group: RaftGroup, peer: PeerId, wire: SimRaftWire, report: EventReporter
    ) -> None:
        self._group = group
        self._peer = peer
        self.machine = RegisterMachine(group.watch.seen(peer))
        self.raft: RaftDriver[RegisterContent] = RaftDriver(environment, group.setup(peer, report), self.machine, wire)

    async def open(self) -> None:
        first = self._group.first
        if first.is_member(self._peer):
            meta = SnapshotMeta(1, 1, first)
            write = LogWrite(hard_state=HardState(1, NO_PEER, 1), entries=(), snapshot=meta, must_sync=True, answers=())
            await self.raft.begin(meta, chunks_of(first_content(1, first)), write)
        await self.raft.open()
        self._group.watch.opened(self.raft, self.machine)

    def serve_at(self, server: Server) -> None:
        server.serve_notice(RAFT, self._messages)
        server.serve(SNAPSHOT_CHUNK, self._chunk)
        server.serve(RUN_COMMAND, self._ask)
        server.serve(CHANGE, self._change)
        server.serve(TRANSFER, self._transfer)

    def _messages(self, notice: RaftMessages, _call: IncomingCall) -> None:
        self.raft.post_all(notice.messages)

    async def _chunk(self, chunk: SnapshotChunk, _call: IncomingCall) -> SnapshotChunkAnswer:
        return await self.raft.receive_chunk(chunk)

    async def _ask(self, command: RegisterCommand, _call: IncomingCall) -> CommandResult:
        """A read uses this peer's state once it is as new as the group's. A change goes through the log."""
        if isinstance(command.call, RegisterRead):
            await self.machine.wait_applied(await self.raft.read_index())
            return CommandResult(self.machine.content.values.get(command.key, 0))
        self._require_leader()
        if self.machine.answer_of(command.client, command.serial) is None:
            self.raft.propose(encode_command(command), EntryKind.COMMAND)
        return CommandResult(await self.machine.wait_answer(command.client, command.serial))

    def _change(self, request: MembershipChangeRequest, _call: IncomingCall) -> EmptyAnswer:
        """Answers once the change is proposed."""
        self._require_leader()
        for change in request.change.changes:
            if change.peer not in self._group.hosts:
                raise InvalidRequest(f"peer {change.peer} is unknown")
        single = len(request.change.changes) == 1 and not request.change.enters_joint
        self.raft.propose(encode_change(request.change), EntryKind.MEMBER if single else EntryKind.MEMBERS)
        return EmptyAnswer()

    def _transfer(self, request: LeaderTransferCall, _call: IncomingCall) -> EmptyAnswer:
        self.raft.post(TransferLeadership(request.target))
        return EmptyAnswer()

    def _require_leader(self) -> None:
        if self.raft.core.leader == NO_PEER:
            raise Unavailable("no leader is known here")
