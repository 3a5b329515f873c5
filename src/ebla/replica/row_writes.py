"""Writes to the replicas of this shard: a batch at a time, each write with its own outcome.

A batch usually finds its live layers open. Then every effect happens in one step, and in `periodic` mode of the commit
log the answer leaves in the same step. A batch that has to wait (for a layer to be opened, a topology version, the
log's sync, or the other shard of a moving tablet) holds its version meanwhile. Otherwise a barrier would assume that
nothing older runs.
"""

from collections.abc import Awaitable, Callable, Sequence

from ebla.aio.eager import needs_task
from ebla.model.errors import EblaError, InternalError, InvalidRequest, Outcome, Overloaded, Stale
from ebla.model.identity import ShardNumber
from ebla.replica.replica_context import ReplicaContext, fenced_off, overtaken
from ebla.replica.replica_stacks import TableStacks
from ebla.replica.stack_plan import Hop
from ebla.storage.codec.key_codec import tablet_index
from ebla.storage.layers.layer import Layer
from ebla.storage.stack import Stack
from ebla.wire.errors import failure_frame
from ebla.wire.row_messages import RowWrite, WriteFailure, WriteRowsAnswer, WriteRowsRequest

ALL_ACKNOWLEDGED = WriteRowsAnswer()
SIBLING_MS = 2_000
"""For a write forwarded to another shard of the node."""

ForwardWrites = Callable[[ShardNumber, WriteRowsRequest, int], Awaitable[WriteRowsAnswer]]
"""Sends writes to another shard of the node, with a deadline in milliseconds."""


class _Batch:
    """The writes of one request and what has become of them."""

    __slots__ = ("failures", "hops", "later", "made", "sequence", "writes")

    def __init__(self, writes: Sequence[RowWrite]) -> None:
        self.writes = writes
        self.failures: list[WriteFailure] = []
        self.made: list[int] = []
        """Indexes of writes that are in a live layer, though perhaps not durable yet."""
        self.later: list[int] = []
        """Indexes of writes that have to wait before they take effect."""
        self.hops: list[tuple[int, Hop]] = []
        """Writes for another shard of the node, in addition or only."""
        self.sequence = 0

    def fail(self, index: int, error: EblaError) -> None:
        self.failures.append(_write_failure(index, error))

    def fail_made(self, error: EblaError) -> None:
        """The outcome of everything made so far is unknown."""
        for index in self.made:
            self.fail(index, error)
        self.made.clear()

    def answer(self) -> WriteRowsAnswer:
        return WriteRowsAnswer(tuple(self.failures)) if self.failures else ALL_ACKNOWLEDGED


class ReplicaWriter:
    def __init__(self, context: ReplicaContext, forward: ForwardWrites) -> None:
        self._context = context
        self._view = context.view
        self._store = context.store
        self._stacks = context.stacks
        self._forward = forward
        self._syncs = context.store.answers_after_sync
        self.waiting = 0

    async def write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        """Every effect that need not wait happens in the first step, and without a wait the answer is there too.
        Raises `Overloaded` with nothing done."""
        if self.waiting >= self._context.limits.writes_waiting_max:
            raise Overloaded(f"{self.waiting} batches of writes wait already", advice="try again in a moment")
        batch = _Batch(request.writes)
        self._take(batch)
        if batch.later or (batch.made and self._syncs):
            return await self._finish(batch, deadline_ms)
        return batch.answer()

    # -- without waiting ---------------------------------------------------------------------------------------------

    def _take(self, batch: _Batch) -> None:
        """Does everything that can be done in this step."""
        view = self._view.current
        newest, fence = view.version, view.fence
        groups: dict[int, tuple[Stack, Layer, list[int]]] = {}
        table_int, table = -1, None
        for index, write in enumerate(batch.writes):
            version = write.version
            if version < fence:
                batch.fail(index, fenced_off(version, fence))
                continue
            # A batch mostly has one table: the last lookup is reused.
            if write.table.int != table_int:
                table_int, table = write.table.int, self._stacks.layout.get(write.table)
            if version > newest or (table is not None and table.hops and self._hop_of(write) is not None):
                batch.later.append(index)
                continue
            try:
                stack = self._stack_of(table, write)
                group = groups.get(stack.incarnation)
                if group is not None:
                    group[2].append(index)
                    continue
                live = stack.find_live()
            except EblaError as error:
                batch.fail(index, error)
                continue
            if live is None:
                batch.later.append(index)
            else:
                groups[stack.incarnation] = (stack, live, [index])
        for stack, live, indexes in groups.values():
            self._apply(batch, stack, live, indexes)

    def _find(self, write: RowWrite) -> Stack:
        return self._stack_of(self._stacks.layout.get(write.table), write)

    def _stack_of(self, table: TableStacks | None, write: RowWrite) -> Stack:
        if not write.items:
            raise InvalidRequest("a write has at least one item")
        stack = None if table is None else table.stacks.get(tablet_index(write.items[0][0], table.shift))
        if stack is None:
            raise self._context.not_here(write.table, write.items[0][0])
        return stack

    def _hop_of(self, write: RowWrite) -> Hop | None:
        """Set while the tablet moves to another shard of this node."""
        table = self._stacks.layout.get(write.table)
        if table is None or not table.hops or not write.items:
            return None
        return table.hops.get(tablet_index(write.items[0][0], table.shift))

    def _apply(self, batch: _Batch, stack: Stack, live: Layer, indexes: Sequence[int]) -> None:
        """The effect. Nothing awaits between the check of the fence and the last put."""
        writes, fence = batch.writes, self._view.current.fence
        passed: list[int] = []
        for index in indexes:
            if writes[index].version >= fence:
                passed.append(index)
            else:
                batch.fail(index, fenced_off(writes[index].version, fence))
        if not passed:
            return
        items = writes[passed[0]].items if len(passed) == 1 else [one for at in passed for one in writes[at].items]
        try:
            sequence = self._store.write_open(stack, live, items)
        except EblaError as error:
            if len(passed) == 1:
                batch.fail(passed[0], error)
            else:
                # All or none were made. An invalid write must not fail the others: try each alone.
                for index in passed:
                    self._apply(batch, stack, live, [index])
            return
        except OSError as failure:
            for index in passed:
                batch.fail(index, InternalError(f"the write broke: {failure}"))
            return
        batch.made += passed
        batch.sequence = max(batch.sequence, sequence)

    # -- with waiting ------------------------------------------------------------------------------------------------

    async def _finish(self, batch: _Batch, deadline_ms: int) -> WriteRowsAnswer:
        version = min(batch.writes[index].version for index in (*batch.made, *batch.later))
        self._view.hold(version)
        self.waiting += 1
        try:
            await needs_task()
            for index in batch.later:
                await self._take_later(batch, index, deadline_ms)
            if batch.hops:
                await self._pass_on(batch, deadline_ms)
            if batch.sequence and self._syncs:
                await self._wait_durable(batch)
            self._check_after(batch)
        finally:
            self.waiting -= 1
            self._view.release(version)
        return batch.answer()

    async def _take_later(self, batch: _Batch, index: int, deadline_ms: int) -> None:
        write = batch.writes[index]
        try:
            await self._context.wait_version(write.version, deadline_ms)
            stack = self._find(write)
            live = await self._store.open_live(stack)
            if self._find(write) is not stack:
                raise Stale("the replica left this shard meanwhile", advice="refresh and retry")
        except EblaError as error:
            batch.fail(index, error)
            return
        hop = self._hop_of(write)
        if hop is not None:
            batch.hops.append((index, hop))
        if hop is None or hop.here:
            self._apply(batch, stack, live, [index])

    async def _pass_on(self, batch: _Batch, deadline_ms: int) -> None:
        """Sends writes to the shard that their tablet moves to. A write is acknowledged when every shard that must
        have it has it."""
        by_shard: dict[ShardNumber, list[int]] = {}
        for index, hop in batch.hops:
            if all(failure.index != index for failure in batch.failures):
                by_shard.setdefault(hop.to, []).append(index)
        for shard, indexes in by_shard.items():
            request = WriteRowsRequest(tuple(batch.writes[index] for index in indexes))
            try:
                answer = await self._forward(shard, request, min(deadline_ms, SIBLING_MS))
            except EblaError as error:
                failures = [_write_failure(number, error) for number in range(len(indexes))]
            else:
                failures = list(answer.failures)
            for failure in failures:
                _half_made(batch, indexes[failure.index], failure)

    async def _wait_durable(self, batch: _Batch) -> None:
        try:
            await self._store.wait_durable(batch.sequence)
        except EblaError as error:
            batch.fail_made(error)

    def _check_after(self, batch: _Batch) -> None:
        fence = self._view.current.fence
        for index in batch.made:
            version = batch.writes[index].version
            if version < fence:
                batch.fail(index, overtaken(version, fence))


def _write_failure(index: int, error: EblaError) -> WriteFailure:
    frame = failure_frame(0, error)
    return WriteFailure(
        index=index, error=frame.error, outcome=frame.outcome, message=frame.message, advice=frame.advice
    )


def _half_made(batch: _Batch, index: int, failure: WriteFailure) -> None:
    """The other shard did not make the write. If this one did, the outcome is unknown, whatever the other reports."""
    is_made = index in batch.made
    if is_made:
        batch.made.remove(index)
    outcome = Outcome.UNKNOWN if is_made else failure.outcome
    batch.failures.append(
        WriteFailure(index=index, error=failure.error, outcome=outcome, message=failure.message, advice=failure.advice)
    )
