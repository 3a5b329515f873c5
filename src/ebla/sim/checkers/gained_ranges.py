"""INV-NODE-20: a vnode range that a node gains starts empty.

Looked at in every stack and in the commit log of each shard, before and after it prepares for the view by which its
node gains the range: nothing of what was there before may be visible, or be replayed by a start. A write of an older
version may arrive meanwhile, where the node was a replica until the version before; it stays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ebla.feed.topology_view import View
from ebla.model.identity import Replica, RequestId, TableId
from ebla.model.token import TokenRange, merge_ranges, subtract_ranges
from ebla.model.transaction import Revision
from ebla.node.shard_process import ShardProcess
from ebla.storage.codec.key_codec import decode_token, key_spans
from ebla.storage.commit_log import LogRecord
from ebla.storage.layers.layer import Item
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.topology.routing.replica_sets import HeldRangesOfHost, VnodeReplicas


@dataclass(frozen=True, slots=True)
class _Held:
    at: Revision
    ranges: tuple[TokenRange, ...]
    operation: RequestId | None
    """By which some of them were pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gain:
    """What a shard has of a range before it prepares for the gain."""

    where: str
    stack: Stack
    ranges: tuple[TokenRange, ...]
    items: frozenset[Item]
    logged_before: int
    """The next sequence of its commit log."""


@dataclass(slots=True, kw_only=True)
class GainedRangesLedger:
    fail: Callable[[str], None]
    gains: int = 0
    """How often a shard had something of a table that it gained a range of."""
    kept_gains: int = 0
    """How often a shard had rows of the very range."""
    _held: dict[tuple[Replica, TableId], _Held] = field(default_factory=dict)
    """What a shard has last prepared for, whatever became of its process."""

    def watch(self, process: ShardProcess, store: ShardStore) -> None:
        prepare = process.prepare

        async def watched(view: View, before: View | None) -> None:
            held: dict[TableId, _Held] = {}
            gains: list[_Gain] = []
            for stack in store.stacks.values():
                table = stack.entry.table
                if table in view.snapshot.tables and isinstance(sets := view.sets.of(table), VnodeReplicas):
                    gained = self._follow(held, (process.own, stack), view, sets.held_ranges_of(process.own.host))
                    if gained and not (stack.damage or stack.dropped):
                        gains.append(await _look(process, store, stack, gained, view))
            await prepare(view, before)
            for gain in gains:
                await self._check(store, gain)
            self._held.update({(process.own, table): one for table, one in held.items()})

        process.prepare = watched  # type: ignore[method-assign]  # does the same, and looks

    def _follow(
        self, held: dict[TableId, _Held], place: tuple[Replica, Stack], view: View, of_host: HeldRangesOfHost
    ) -> tuple[TokenRange, ...]:
        """What the shard gains by this view."""
        own, stack = place
        known, stored = self._held.get((own, stack.entry.table)), stack.entry.held
        if known is not None and known.at.history == view.revision.history and view.revision.index <= known.at.index:
            return ()  # a process that was started again, and catches up
        node = view.snapshot.node_in_transition()
        operation = node.request if node is not None and of_host.pending else None
        gained: tuple[TokenRange, ...] = ()
        if known is not None:
            of_operation = () if operation in (None, known.operation) else of_host.pending
            gained = merge_ranges((*subtract_ranges(of_host.ranges, known.ranges), *of_operation))
            operation = operation or known.operation
            if stored is not None and stored.at.history == known.at.history and stored.at.index > known.at.index:
                gained = ()  # a process that has ended since had prepared for it, and late writes may have come
        held[stack.entry.table] = _Held(view.revision, of_host.ranges, operation)
        return gained

    async def _check(self, store: ShardStore, gain: _Gain) -> None:
        stack = gain.stack
        if stack.damage or stack.dropped:
            return
        for item in await _items(store, stack, gain.ranges):
            if item in gain.items:
                self.fail(f"{gain.where}key {item[0].hex()} is in its stack")
        await store.sync()
        log = store.log._log  # noqa: SLF001  # the log itself: the store reads it only at a start
        position = max(stack.entry.replay_from, log.first_sequence)
        async for batch in log.read(min(position, log.next_sequence)):
            for record in (msgspec.msgpack.decode(one, type=LogRecord) for one in batch.records):
                if record.incarnation == stack.incarnation and batch.first_sequence < gain.logged_before:
                    keys = [key for key, _ in record.items if any(decode_token(key) in one for one in gain.ranges)]
                    if keys:
                        self.fail(
                            f"{gain.where}key {keys[0].hex()} is in records of its commit log that a start replays"
                        )
        self.gains += bool(stack.entry.bases)
        self.kept_gains += bool(gain.items)


async def _look(
    process: ShardProcess, store: ShardStore, stack: Stack, gained: tuple[TokenRange, ...], view: View
) -> _Gain:
    where = f"INV-NODE-20: {process.name} of {process.own.host} gains a range of {stack.schema.full_name} at "
    where += f"version {view.version}, and "
    items = frozenset(await _items(store, stack, gained))
    await store.sync()
    logged = store.log._log.next_sequence  # noqa: SLF001  # the log itself: the store reads it only at a start
    return _Gain(where=where, stack=stack, ranges=gained, items=items, logged_before=logged)


async def _items(store: ShardStore, stack: Stack, ranges: tuple[TokenRange, ...]) -> list[Item]:
    opened = await store.open(stack)
    return [item for one in ranges for span in key_spans(one) for item in opened.scan_merged(span)]
