"""Calls to the control process of the own node, and to the bulk processes and shards of all nodes.

Calls within the own node use its Unix sockets, calls to others TCP. A host has an address for each role, so there is
one `Peers` per role and shard number.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ebla.model.identity import Address, HostId, Replica, ShardNumber
from ebla.topology.snapshot import Snapshot
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import A, Q, Verb


class ClusterClient(Protocol):
    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...

    async def bulk(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...

    async def shard(self, replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddresses:
    own: HostId
    control_socket: Address
    bulk_socket: Address
    shard_socket_of: Callable[[ShardNumber], Address]
    bulk_port: int
    """For the verbs of other nodes' bulk processes."""
    shard_port_first: int


class WireClusterClient:
    """The owner calls `follow` with each new version; connections to nodes that have left are closed then."""

    def __init__(self, tasks: asyncio.TaskGroup, context: PeersContext, addresses: ClusterAddresses) -> None:
        self._tasks = tasks
        self._context = context
        self._addresses = addresses
        self._control = Peers(tasks, context)
        self._control.set_address(addresses.own, addresses.control_socket)
        self._bulk = Peers(tasks, context)
        self._shards: dict[ShardNumber, Peers] = {}

    def follow(self, snapshot: Snapshot) -> None:
        addresses = self._addresses
        members = {node.host: node for node in snapshot.members() if node.address}
        for node in members.values():
            own = node.host == addresses.own
            self._bulk.set_address(
                node.host, addresses.bulk_socket if own else Address(node.address, addresses.bulk_port)
            )
            for number in range(node.shard_count):
                shard = ShardNumber(number)
                port = addresses.shard_port_first + number
                address = addresses.shard_socket_of(shard) if own else Address(node.address, port)
                self._peers_of(shard).set_address(node.host, address)
        for host in self._bulk.hosts():
            if host not in members:
                self._bulk.forget(host)
        for shard, peers in self._shards.items():
            for host in peers.hosts():
                if host not in members or shard >= members[host].shard_count:
                    peers.forget(host)

    def close(self, cause: str) -> None:
        for peers in (self._control, self._bulk, *self._shards.values()):
            peers.close(cause)

    async def call(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        """`wire.topology_feed.ControlCaller`."""
        return await self._control.call(host, verb, request, deadline_ms)

    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await self._control.call(self._addresses.own, verb, request, deadline_ms)

    async def bulk(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await self._bulk.call(host, verb, request, deadline_ms)

    async def shard(self, replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await self._peers_of(replica.shard).call(replica.host, verb, request, deadline_ms)

    def _peers_of(self, shard: ShardNumber) -> Peers:
        found = self._shards.get(shard)
        if found is None:
            found = self._shards[shard] = Peers(self._tasks, self._context)
        return found
