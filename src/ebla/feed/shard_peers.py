"""Connections to the shards of all nodes, kept up to date with the topology.

A host has an address for each shard, so there is one `Peers` per shard number.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ebla.model.identity import Address, HostId, ShardNumber
from ebla.topology.snapshot import Node, Snapshot
from ebla.wire.peers import Peers, PeersContext

OnRefused = Callable[[ShardNumber, HostId, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAddresses:
    own: HostId
    port_first: int
    """Of a node's shard 0; each further shard has the next."""
    socket_of: Callable[[ShardNumber], Address]
    """Where the shards of this node listen."""
    own_shard: ShardNumber | None = None
    """The calling shard, which needs no connection to itself."""

    def of(self, node: Node, shard: ShardNumber) -> Address:
        return self.socket_of(shard) if node.host == self.own else Address(node.address, self.port_first + shard)


class ShardPeers:
    """The owner calls `follow` with each new version: it closes connections to nodes that have left."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        context: PeersContext,
        addresses: ShardAddresses,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._tasks = tasks
        self._context = context
        self._addresses = addresses
        self._on_refused = on_refused
        self._peers: dict[ShardNumber, Peers] = {}

    def of(self, shard: ShardNumber) -> Peers:
        found = self._peers.get(shard)
        if found is None:
            found = self._peers[shard] = Peers(self._tasks, self._context)
            if (on_refused := self._on_refused) is not None:
                found.on_refused = lambda host, is_refused: on_refused(shard, host, is_refused)
        return found

    def follow(self, snapshot: Snapshot) -> None:
        addresses = self._addresses
        members = {node.host: node for node in snapshot.members() if node.address}
        for node in members.values():
            for number in range(node.shard_count):
                shard = ShardNumber(number)
                if node.host != addresses.own or shard != addresses.own_shard:
                    self.of(shard).set_address(node.host, addresses.of(node, shard))
        for shard, peers in self._peers.items():
            for host in peers.hosts():
                if host not in members or shard >= members[host].shard_count:
                    peers.forget(host)

    def close(self, cause: str) -> None:
        for peers in self._peers.values():
            peers.close(cause)
