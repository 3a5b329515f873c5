"""A process that runs one peer of a simulated Raft group over the real wire, and serves clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ebla.control.raft_server import RaftServer, RaftSetup
from ebla.control.snapshot_sending import CHUNK_DEADLINE_MS, Sending, SnapshotSender
from ebla.model.errors import InvalidRequest, Unavailable, Unreachable
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.ports.surroundings import Surroundings
from ebla.raft.effects import Write
from ebla.raft.events import TransferLeadership
from ebla.raft.membership import MembershipChange, encode_change
from ebla.raft.messages import NOBODY, EntryKind, HardState, InstallSnapshot, Membership, Message, PeerId, SnapshotMeta
from ebla.sim.checkers.models import Read
from ebla.sim.workloads.raft_machine import (
    Command,
    Content,
    RegisterMachine,
    Seen,
    chunks_of,
    encode_command,
    first_content,
)
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import ChunkAnswer, RaftMessages, SnapshotChunk
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.report import Report
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import RAFT, SNAPSHOT_CHUNK, Done, Verb

CLUSTER_NAME = "sim"
FOLDER = "/data/raft"
LIMITS = WireLimits(connect_ms=1_000, backoff_max_ms=300)


class Told(msgspec.Struct, frozen=True, array_like=True):
    result: int


class ChangeRequest(msgspec.Struct, frozen=True, array_like=True):
    change: MembershipChange


class TransferRequest(msgspec.Struct, frozen=True, array_like=True):
    target: PeerId


ASK = Verb(9201, "sim_ask", Lane.CONTROL, Command, Told)
CHANGE = Verb(9202, "sim_change", Lane.CONTROL, ChangeRequest, Done)
TRANSFER = Verb(9203, "sim_transfer", Lane.CONTROL, TransferRequest, Done)


class Watch:
    """Where the scenario looks in. Each is called at the moment it speaks of; this one looks away."""

    def opened(self, server: RaftServer[Content], machine: RegisterMachine) -> None: ...

    def leaves(self, message: Message) -> None: ...

    def seen(self, peer: PeerId) -> Seen:  # noqa: ARG002  # whose state it is matters to those who look
        return lambda _content, _entry: None


@dataclass(frozen=True, slots=True)
class Group:
    """What every node and client of one group knows."""

    cluster: ClusterId
    history: HistoryId
    hosts: Mapping[PeerId, HostId]
    addresses: Mapping[PeerId, Address]
    first: Membership
    setup: Callable[[PeerId, Report], RaftSetup]
    watch: Watch

    def context(self, around: Surroundings, host: HostId, report: Report) -> PeersContext:
        introduction = Introduction(host, self.cluster, CLUSTER_NAME)
        return PeersContext(around.transport, around.chance, introduction, LIMITS, report)


class NodeWire:
    """`control.raft_server.RaftWire` over the wire's connections."""

    def __init__(self, peers: Peers, group: Group) -> None:
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
        return self._peers.send(host, RAFT, RaftMessages(self._group.history, tuple(messages), own, address))

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        host = self._group.hosts.get(message.to)
        if host is None:
            raise Unreachable(f"peer {message.to} is unknown")

        async def send(chunk: SnapshotChunk) -> ChunkAnswer:
            return await self._peers.call(host, SNAPSHOT_CHUNK, chunk, CHUNK_DEADLINE_MS)

        self._sendings += 1
        await SnapshotSender(Sending(self._group.history, message, self._sendings), send).run(chunks)


async def raft_process(around: Surroundings, group: Group, peer: PeerId, report: Report) -> None:
    """Runs until it is cancelled or killed, or its disk fails."""
    async with asyncio.TaskGroup() as tasks:
        context = group.context(around, group.hosts[peer], report)
        peers = Peers(tasks, context)
        node = RaftNode(around, group, peer, NodeWire(peers, group), report)
        await node.open()
        server = Server(tasks, context.introduction, context.limits, report)
        node.serve_at(server)
        await around.transport.listen(group.addresses[peer], server.accept)
        tasks.create_task(node.raft.run())


class RaftNode:
    def __init__(self, around: Surroundings, group: Group, peer: PeerId, wire: NodeWire, report: Report) -> None:
        self._group = group
        self._peer = peer
        self.machine = RegisterMachine(group.watch.seen(peer))
        self.raft: RaftServer[Content] = RaftServer(around, group.setup(peer, report), self.machine, wire)

    async def open(self) -> None:
        first = self._group.first
        if first.is_member(self._peer):
            meta = SnapshotMeta(1, 1, first)
            write = Write(HardState(1, NOBODY, 1), (), meta, must_sync=True, answers=())
            await self.raft.begin(meta, chunks_of(first_content(1, first)), write)
        await self.raft.open()
        self._group.watch.opened(self.raft, self.machine)

    def serve_at(self, server: Server) -> None:
        server.serve_notice(RAFT, self._messages)
        server.serve(SNAPSHOT_CHUNK, self._chunk)
        server.serve(ASK, self._ask)
        server.serve(CHANGE, self._change)
        server.serve(TRANSFER, self._transfer)

    def _messages(self, notice: RaftMessages, _call: IncomingCall) -> None:
        self.raft.post_all(notice.messages)

    async def _chunk(self, chunk: SnapshotChunk, _call: IncomingCall) -> ChunkAnswer:
        return await self.raft.receive_chunk(chunk)

    async def _ask(self, command: Command, _call: IncomingCall) -> Told:
        """A read from this node's own state, once it is as new as the group's; a change through the log."""
        if isinstance(command.call, Read):
            await self.machine.wait_applied(await self.raft.read_index())
            return Told(self.machine.content.values.get(command.key, 0))
        self._require_leader()
        if self.machine.answer_of(command.client, command.serial) is None:
            self.raft.propose(encode_command(command), EntryKind.COMMAND)
        return Told(await self.machine.wait_answer(command.client, command.serial))

    def _change(self, request: ChangeRequest, _call: IncomingCall) -> Done:
        """Only says that it was proposed."""
        self._require_leader()
        for change in request.change.changes:
            if change.peer not in self._group.hosts:
                raise InvalidRequest(f"peer {change.peer} is unknown")
        single = len(request.change.changes) == 1 and not request.change.enters_joint
        self.raft.propose(encode_change(request.change), EntryKind.MEMBER if single else EntryKind.MEMBERS)
        return Done()

    def _transfer(self, request: TransferRequest, _call: IncomingCall) -> Done:
        self.raft.post(TransferLeadership(request.target))
        return Done()

    def _require_leader(self) -> None:
        if self.raft.core.leader == NOBODY:
            raise Unavailable("no leader is known here")
