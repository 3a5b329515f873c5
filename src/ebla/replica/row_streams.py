"""Receives rows that an operation streams into this shard's replicas, under a guard of its session."""

from collections.abc import Sequence

from ebla.model.errors import EblaError, InternalError, InvalidRequest
from ebla.model.identity import TableId
from ebla.replica.replica_context import ReplicaContext
from ebla.storage.layers.layer import Item
from ebla.storage.stack import Stack
from ebla.wire.row_messages import StreamRowsRequest
from ebla.wire.verbs import EmptyAnswer


class PartialStream(InternalError):
    """Some rows were merged and others not. Send them again under the same session to merge all."""


class RowStreamReceiver:
    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._store = context.store

    async def stream(self, request: StreamRowsRequest, deadline_ms: int) -> EmptyAnswer:
        """Everything is merged and durable on return, in either mode of the log. Repeating it changes nothing."""
        if not request.items:
            raise InvalidRequest("a stream of rows has at least one item")
        async with self._context.guards.hold_guard(request.session, deadline_ms):
            merged = 0
            try:
                for items in self._by_stack(request.table, request.items).values():
                    await self._merge(request.table, items)
                    merged += 1
                await self._store.sync()
            except EblaError as error:
                if not merged:
                    raise
                raise PartialStream(
                    f"only some of the rows were merged: {error.message}", advice="send them again"
                ) from error
        return EmptyAnswer()

    async def _merge(self, table: TableId, items: Sequence[Item]) -> None:
        # Look it up again: the previous stack may have waited, and this replica may have left meanwhile.
        stack = self._find(table, items[0][0])
        self._store.write_open(stack, await self._store.open_live(stack), items)

    def _by_stack(self, table: TableId, items: Sequence[Item]) -> dict[int, list[Item]]:
        groups: dict[int, list[Item]] = {}
        for item in items:
            groups.setdefault(self._find(table, item[0]).incarnation, []).append(item)
        return groups

    def _find(self, table: TableId, key: bytes) -> Stack:
        stack = self._context.stacks.find(table, key)
        if stack is None:
            raise self._context.not_here(table, key)
        return stack
