"""Reads from the replicas of this shard, fenced on arrival and before the answer.

A read has no effect, so it holds no version here. Its router holds one until the answer is there.
"""

import asyncio

from ebla.aio.eager import needs_task
from ebla.feed.topology_view import View
from ebla.model.errors import InvalidRequest, Overloaded
from ebla.replica.replica_context import ReplicaContext, fenced_off
from ebla.replica.replica_stacks import TableStacks
from ebla.replica.row_pages import StackPageReader, are_single_keys, read_keys
from ebla.storage.codec.key_codec import tablet_index
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.stack import Stack
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest


class ReplicaReader:
    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._view = context.view
        self._store = context.store
        self._stacks = context.stacks
        self._limits = context.limits
        self.waiting = 0

    async def read(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        """After `read_now` returned None. Raises `Overloaded` if too many reads wait already."""
        if self.waiting >= self._limits.reads_waiting_max:
            raise Overloaded(f"{self.waiting} reads wait already", advice="try again in a moment")
        await needs_task()  # a caller that only wants what is there at once closes the coroutine here
        self.waiting += 1
        try:
            await self._context.wait_version(request.version, deadline_ms)
            page = StackPageReader(request, self._check_arrival(request, self._view.current), self._limits)
            await self._read_all(page)
        finally:
            self.waiting -= 1
        fence = self._view.current.fence
        if request.version < fence:
            raise fenced_off(request.version, fence)
        return page.answer()

    def read_now(self, request: ReadRowsRequest) -> ReadRowsAnswer | None:
        """The answer, if the version is there, the layers are open and one turn is enough; None: it has to wait."""
        view = self._view.current
        if request.version > view.version:
            return None
        table = self._check_arrival(request, view)
        if are_single_keys(request.spans):
            return self._read_keys(request, table)
        page = StackPageReader(request, table, self._limits)
        self._turn(page)
        return page.answer() if page.is_over else None

    async def _read_all(self, page: StackPageReader) -> None:
        while True:
            stack = self._turn(page)
            if page.is_over:
                return
            if stack is None:
                await asyncio.sleep(0)
            else:
                await self._store.open(stack)

    def _check_arrival(self, request: ReadRowsRequest, view: View) -> TableStacks:
        if request.version < view.fence:
            raise fenced_off(request.version, view.fence)
        if request.rows_max < 1 or not request.spans:
            raise InvalidRequest("a read asks for at least one row of one span")
        table = self._stacks.layout.get(request.table)
        if table is None or not table.stacks:
            raise self._context.not_here(request.table, request.spans[0][0])
        return table

    def _read_keys(self, request: ReadRowsRequest, table: TableStacks) -> ReadRowsAnswer | None:
        stack = table.stacks.get(tablet_index(request.spans[0][0], table.shift))
        if stack is None:
            raise self._context.not_here(request.table, request.spans[0][0])
        opened = stack.find_open()
        if opened is None:
            return None
        try:
            return read_keys(request, opened, stack)
        except LayerDamaged as failure:
            self._store.note_damage(stack, failure)
            raise

    def _turn(self, page: StackPageReader) -> Stack | None:
        try:
            return page.turn()
        except LayerDamaged as failure:
            if page.stack is not None:
                self._store.note_damage(page.stack, failure)
            raise
