"""Writes that belong to another shard of this node."""

from ebla.model.identity import ShardNumber
from ebla.wire.local_shards import LocalShards
from ebla.wire.row_messages import WriteRowsAnswer, WriteRowsRequest
from ebla.wire.verbs import WRITE_ROWS


class Siblings:
    """`row_writes.Sibling`."""

    def __init__(self, shards: LocalShards) -> None:
        self._shards = shards

    async def write(self, shard: ShardNumber, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        return await self._shards.call(shard, WRITE_ROWS, request, deadline_ms)
