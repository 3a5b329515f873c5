"""Clients of the shards of this node, over their Unix sockets."""

import asyncio
from collections.abc import Callable

from ebla.model.identity import Address, HostId, ShardNumber
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import A, Q, Verb


class LocalShardClients:
    """Connections are opened on first use."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        context: PeersContext,
        host: HostId,
        address_of: Callable[[ShardNumber], Address],
    ) -> None:
        self._tasks = tasks
        self._context = context
        self._host = host
        self._address_of = address_of
        self._peers: dict[ShardNumber, Peers] = {}

    async def call(self, shard: ShardNumber, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        peers = self._peers.get(shard)
        if peers is None:
            peers = self._peers[shard] = Peers(self._tasks, self._context)
            peers.set_address(self._host, self._address_of(shard))
        return await peers.call(self._host, verb, request, deadline_ms)
