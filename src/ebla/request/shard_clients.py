"""Clients of every replica: the own shard by a call, other shards of the node by Unix sockets, other nodes by TCP."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ebla.aio.eager import run_within
from ebla.feed.shard_peers import ShardAddresses, ShardPeers
from ebla.model.errors import DeadlineExceeded
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.request.router_types import LocalReplica
from ebla.topology.snapshot import Snapshot
from ebla.wire.peers import PeersContext
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest, WriteRowsAnswer, WriteRowsRequest
from ebla.wire.verbs import READ_ROWS, WRITE_ROWS

T = TypeVar("T")


class ShardClients:
    """`follow` must be called with each new version: it closes connections to nodes that have left."""

    def __init__(
        self, tasks: asyncio.TaskGroup, context: PeersContext, addresses: ShardAddresses, local: LocalReplica
    ) -> None:
        assert addresses.own_shard is not None, "it calls the own shard without a connection"
        self._local = local
        self._own_host = addresses.own
        self._own_shard = addresses.own_shard
        self._shards = ShardPeers(tasks, context, addresses, self._refusal)
        self.refused: frozenset[Replica] = frozenset()

    def follow(self, snapshot: Snapshot) -> None:
        self._shards.follow(snapshot)

    def close(self, cause: str) -> None:
        self._shards.close(cause)

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        if target.shard == self._own_shard and target.host == self._own_host:
            return await _within(self._local.write(request, deadline_ms), deadline_ms)
        return await self._shards.of(target.shard).call(target.host, WRITE_ROWS, request, deadline_ms)

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        if target.shard == self._own_shard and target.host == self._own_host:
            return await _within(self._local.read(request, deadline_ms), deadline_ms)
        return await self._shards.of(target.shard).call(target.host, READ_ROWS, request, deadline_ms)

    def read_own(self, request: ReadRowsRequest, deadline_ms: int) -> Coroutine[Any, Any, ReadRowsAnswer]:
        return self._local.read(request, deadline_ms)

    def _refusal(self, shard: ShardNumber, host: HostId, is_refused: bool) -> None:
        replica = frozenset((Replica(host, shard),))
        self.refused = self.refused | replica if is_refused else self.refused - replica


async def _within(work: Coroutine[Any, Any, T], deadline_ms: int) -> T:
    """Over the wire the connection keeps the deadline; here nothing else does."""
    try:
        return await run_within(work, deadline_ms / 1000)
    except TimeoutError:
        raise DeadlineExceeded(f"this shard's own replica has not answered within {deadline_ms} ms") from None
