"""Carries Raft messages between the peers of group 0: maps peer numbers to hosts, and fences messages by history."""

from collections.abc import AsyncIterator, Iterable, Sequence

from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.raft.snapshot_sender import CHUNK_DEADLINE_MS, SnapshotSender, SnapshotTransfer
from ebla.group0.members import Member, member_key, peer_number
from ebla.model.errors import Unreachable
from ebla.model.identity import Address, HistoryId, HostId
from ebla.raft.messages import InstallSnapshot, Message, PeerId
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import RaftMessages, SnapshotChunk, SnapshotChunkAnswer
from ebla.wire.peers import Peers
from ebla.wire.verbs import RAFT, SNAPSHOT_CHUNK


class Group0Transport:
    def __init__(self, own: Member, peers: Peers, machine: Group0StateMachine) -> None:
        self.own = own
        self._peers = peers
        self._machine = machine
        self._hosts: dict[PeerId, HostId] = {}
        self._sendings = 0

    def learn(self, members: Iterable[Member]) -> None:
        """Learns the addresses of members. For those that left, or whose address was released,
        only the address is dropped: numbers are permanent."""
        for member in members:
            self._hosts[PeerId(peer_number(member.host))] = member.host
            if member.listens:
                self._set_address(member.host, member.address)
            else:
                self._peers.forget(member.host)

    def learn_sender(self, host: HostId, address: Address) -> None:
        """A host sends to us as a peer. For known members, the address in their entry counts."""
        peer = PeerId(peer_number(host))
        if peer not in self._hosts:
            self._hosts[peer] = host
            self._set_address(host, address)

    def _set_address(self, host: HostId, address: Address) -> None:
        """Followers have nothing to send to each other until their leader is dead. If they connected only then, the
        first vote request would be lost, and the next comes an election timeout later."""
        self._peers.set_address(host, address)
        if host != self.own.host:
            self._peers.keep(host, Lane.RAFT)

    @property
    def _history(self) -> HistoryId:
        return self._machine.store.chain[-1].history

    def host_of(self, peer: PeerId) -> HostId | None:
        return self._hosts.get(peer)

    def name_of(self, peer: PeerId) -> str:
        host = self._hosts.get(peer)
        member = None if host is None else self._machine.store.members.get(member_key(host))
        if member is None:
            return f"peer {peer}" if host is None else f"host {host}"
        return f"host {host} ({member.address})"

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        host = self._hosts.get(peer)
        if host is None:
            return False
        try:
            notice = RaftMessages(
                history=self._history, messages=tuple(messages), host=self.own.host, address=self.own.address
            )
            return self._peers.send(host, RAFT, notice)
        except Unreachable:
            return False

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        host = self._hosts.get(message.to)
        if host is None:
            raise Unreachable(f"no host is known for peer {message.to}")

        async def send(chunk: SnapshotChunk) -> SnapshotChunkAnswer:
            return await self._peers.call(host, SNAPSHOT_CHUNK, chunk, CHUNK_DEADLINE_MS)

        self._sendings += 1
        await SnapshotSender(SnapshotTransfer(self._history, message, self._sendings), send).run(chunks)
