"""Writes that belong to another shard of this node."""

from ebla.feed.local_shards import LocalShardClients
from ebla.model.identity import ShardNumber
from ebla.wire.row_messages import WriteRowsAnswer, WriteRowsRequest
from ebla.wire.verbs import WRITE_ROWS


class SiblingShardClients:
    """`row_writes.Sibling`."""

    def __init__(self, shards: LocalShardClients) -> None:
        self._shards = shards

    async def write(self, shard: ShardNumber, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        return await self._shards.call(shard, WRITE_ROWS, request, deadline_ms)
