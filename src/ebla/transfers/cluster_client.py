"""Calls to the control process of the own node, and to the bulk processes and shards of all nodes.

Calls within the own node use its Unix sockets, calls to others TCP. A host has an address for each role, so there is
one `Peers` per role and shard number.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ebla.feed.shard_peers import ShardAddresses, ShardPeers
from ebla.model.identity import Address, HostId, Replica
from ebla.topology.snapshot import Snapshot
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import A, Q, Verb


class ClusterClient(Protocol):
    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...

    async def bulk(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...

    async def shard(self, replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddresses:
    shards: ShardAddresses
    control_socket: Address
    bulk_socket: Address
    bulk_port: int
    """For the verbs of other nodes' bulk processes."""


class WireClusterClient:
    """The owner calls `follow` with each new version; connections to nodes that have left are closed then.
    `before_send` is called immediately before a request is sent, and may refuse that by raising; not for `call`."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        context: PeersContext,
        addresses: ClusterAddresses,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        self._before_send = before_send
        self._addresses = addresses
        self._own = addresses.shards.own
        self._control = Peers(tasks, context)
        self._control.set_address(self._own, addresses.control_socket)
        self._bulk = Peers(tasks, context)
        self._shards = ShardPeers(tasks, context, addresses.shards)

    def follow(self, snapshot: Snapshot) -> None:
        addresses = self._addresses
        members = {node.host: node for node in snapshot.members() if node.address}
        for node in members.values():
            is_own = node.host == self._own
            address = addresses.bulk_socket if is_own else Address(node.address, addresses.bulk_port)
            self._bulk.set_address(node.host, address)
        for host in self._bulk.hosts():
            if host not in members:
                self._bulk.forget(host)
        self._shards.follow(snapshot)

    def close(self, cause: str) -> None:
        for peers in (self._control, self._bulk, self._shards):
            peers.close(cause)

    async def call(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        """For `feed.topology_follower`, which calls the own control."""
        return await self._control.call(host, verb, request, deadline_ms)

    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await self._control.call(self._own, verb, request, deadline_ms, self._before_send)

    async def bulk(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        return await self._bulk.call(host, verb, request, deadline_ms, self._before_send)

    async def shard(self, replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        peers = self._shards.of(replica.shard)
        return await peers.call(replica.host, verb, request, deadline_ms, self._before_send)
