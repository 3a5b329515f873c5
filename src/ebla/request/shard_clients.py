"""Clients of every replica: the own shard by a call, other shards of the node by Unix sockets, other nodes by TCP.

A host has as many addresses as shards, so there is one `Peers` per shard number.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ebla.aio.eager import run_within
from ebla.model.errors import DeadlineExceeded
from ebla.model.identity import Address, HostId, Replica, ShardNumber
from ebla.request.router_types import LocalReplica
from ebla.topology.snapshot import Node, Snapshot
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest, WriteRowsAnswer, WriteRowsRequest
from ebla.wire.verbs import READ_ROWS, WRITE_ROWS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaAddresses:
    own: Replica
    port_first: int
    """Of a node's shard 0; each further shard has the next."""
    socket_of: Callable[[ShardNumber], Address]
    """Where the other shards of this node listen."""


class ShardClients:
    """`follow` must be called with each new version: it closes connections to nodes that have left."""

    def __init__(
        self, tasks: asyncio.TaskGroup, context: PeersContext, places: ReplicaAddresses, local: LocalReplica
    ) -> None:
        self._tasks = tasks
        self._context = context
        self._places = places
        self._local = local
        self._own_host = places.own.host
        self._own_shard = places.own.shard
        self._peers: dict[ShardNumber, Peers] = {}
        self.refused: frozenset[Replica] = frozenset()

    def follow(self, snapshot: Snapshot) -> None:
        members = {node.host: node for node in snapshot.members() if node.address}
        for node in members.values():
            for number in range(node.shard_count):
                shard = ShardNumber(number)
                if node.host != self._own_host or shard != self._own_shard:
                    self._peers_of(shard).set_address(node.host, self._address(node, shard))
        for shard, peers in self._peers.items():
            for host in peers.hosts():
                if host not in members or shard >= members[host].shard_count:
                    peers.forget(host)

    def close(self, cause: str) -> None:
        for peers in self._peers.values():
            peers.close(cause)

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        if target.shard == self._own_shard and target.host == self._own_host:
            return await _within(self._local.write(request, deadline_ms), deadline_ms)
        return await self._peers_of(target.shard).call(target.host, WRITE_ROWS, request, deadline_ms)

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        if target.shard == self._own_shard and target.host == self._own_host:
            return await _within(self._local.read(request, deadline_ms), deadline_ms)
        return await self._peers_of(target.shard).call(target.host, READ_ROWS, request, deadline_ms)

    def _peers_of(self, shard: ShardNumber) -> Peers:
        found = self._peers.get(shard)
        if found is None:
            found = self._peers[shard] = Peers(self._tasks, self._context)
            found.on_refused = partial(self._refusal, shard)
        return found

    def _refusal(self, shard: ShardNumber, host: HostId, is_refused: bool) -> None:
        replica = frozenset((Replica(host, shard),))
        self.refused = self.refused | replica if is_refused else self.refused - replica

    def _address(self, node: Node, shard: ShardNumber) -> Address:
        if node.host == self._own_host:
            return self._places.socket_of(shard)
        return Address(node.address, self._places.port_first + shard)


async def _within(work: Coroutine[Any, Any, T], deadline_ms: int) -> T:
    """Over the wire the connection keeps the deadline; here nothing else does."""
    try:
        return await run_within(work, deadline_ms / 1000)
    except TimeoutError:
        raise DeadlineExceeded(f"this shard's own replica has not answered within {deadline_ms} ms") from None
