"""The store of a shard: all its stacks over one commit log and one manifest.

A write is checked, merged into its stack's live layer and queued for the log in one step, and acknowledged when the
log's mode allows it. Everything else (flush, seal, adopt, compact, drop, checkpoint: `stack_changes.py`) runs beside
it, one change of a stack at a time.

`run` must be running in the shard's task group. When the disk fails, `run` ends with the failure, and the shard
restarts from what is durable. A full disk is no failure: writes are refused, reads go on, and writes are accepted again
once there is space.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import msgspec

from ebla.model.errors import DiskFull, InvalidRequest, Overloaded, Stale
from ebla.model.identity import TableId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.options import CommitLogMode
from ebla.storage.layers.layer import Item, Layer, LayerDamaged
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ShardManifest,
    StackEntry,
    with_table,
    without_table,
)
from ebla.storage.stack import OpenStack, Stack
from ebla.storage.stack_changes import StackChanges

GC_HOLD_AT_START = "transitions and stagings not known yet"


@dataclass(kw_only=True, eq=False, repr=False)
class ShardStore(StackChanges):
    """Made by `store_recovery.open_store`."""

    shortage: DiskFull | None = None
    """Why writes are refused: the disk has less free space than the reserve. Set again whenever upkeep looks."""
    _upkeep_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _upkeep_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _damages: list[tuple[Stack, LayerDamaged]] = field(default_factory=list)
    _pressed: dict[Incarnation, Stack] = field(default_factory=dict)
    """Stacks whose live layers refused a write: a flush makes room, or shows that there is none yet."""
    _creating: asyncio.Lock = field(default_factory=asyncio.Lock)
    _live_bytes: dict[LayerId, int] = field(default_factory=dict)
    """Sizes of live layers, by the last upkeep that found them open."""

    def __post_init__(self) -> None:
        self._check_space()

    def add_stack(self, entry: StackEntry, schema: TableSchema) -> Stack:
        """A stack that the manifest names, or will. Nothing may drop its tombstones before the shard has learnt of its
        transitions and stagings (`release_gc`)."""
        stack = Stack(self.folder, entry, schema, self.layers)
        stack.gc_holds.add(GC_HOLD_AT_START)
        self._stacks[stack.incarnation] = stack
        return stack

    @property
    def tables(self) -> tuple[TableSchema, ...]:
        return self.manifest.current.tables

    @property
    def answers_after_sync(self) -> bool:
        """Whether a write is acknowledged only once it is durable."""
        return self.limits.mode is CommitLogMode.SYNC

    @property
    def free_bytes(self) -> int:
        """What the disk has beyond the reserve for flushes, manifests and compactions."""
        return max(0, self.disk.free_bytes(self.folder) - self.limits.free_bytes_min)

    @property
    def load_bytes(self) -> int:
        """The layers and the commit log. A live layer counts once it has been open since the start."""
        return sum(self.bytes_of(stack) for stack in self._stacks.values()) + self.log.size_bytes

    def bytes_of(self, stack: Stack) -> int:
        """Of its layers."""
        return sum(base.size_bytes for base in stack.entry.bases) + self._live_size(stack)

    # -- rows ------------------------------------------------------------------------------------------------------

    async def write(self, stack: Stack, items: Sequence[Item]) -> None:
        """Merges items of one replica into it, all or none, and returns when they are as durable as the mode says.

        Not applied: `Stale`, `DiskFull`, `Overloaded`, `TooLarge`. Unknown: `NotDurable`, `LogFailed`.
        """
        sequence = self.write_open(stack, await self.open_live(stack), items)
        if self.answers_after_sync:
            await self.log.wait_durable(sequence)

    def write_open(self, stack: Stack, live: Layer, items: Sequence[Item]) -> int:
        """The same without an await, on a live layer opened since the last one. It is not yet durable on return: pass
        the sequence to `wait_durable`."""
        assert items
        if self.shortage is not None:
            raise self.shortage
        stack.check_items(items)
        record = self.log.encode(stack.incarnation, items)
        try:
            stack.merge_into(live, items)
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise
        except (Overloaded, DiskFull):
            self._pressed[stack.incarnation] = stack
            self._upkeep_wanted.set()
            raise
        sequence = self.log.queue(record)
        stack.note_write(sequence)
        if self.log.is_long:
            self._upkeep_wanted.set()
        return sequence

    async def wait_durable(self, sequence: int) -> None:
        await self.log.wait_durable(sequence)

    async def sync(self) -> None:
        """Everything written before the call is durable on return, in either mode."""
        last = self.log.next_sequence - 1
        if last >= 1:
            await self.log.wait_durable(last)

    async def open(self, stack: Stack) -> OpenStack:
        """For reads and writes without an await; valid until the next one."""
        with self._noting_damage(stack):
            return stack.find_open() or await stack.open()

    async def open_live(self, stack: Stack) -> Layer:
        """For writes without an await; valid until the next one."""
        with self._noting_damage(stack):
            return await stack.open_live()

    @contextmanager
    def _noting_damage(self, stack: Stack) -> Iterator[None]:
        try:
            yield
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise

    # -- tables and stacks -------------------------------------------------------------------------------------------

    async def set_schema(self, schema: TableSchema) -> None:
        """Durable before a row of that version is accepted, or recovery could not read such a row from the log."""
        known = self.manifest.current.table(schema.id)
        if known is not None and known.version > schema.version:
            raise Stale(f"table {schema.full_name} is already in version {known.version} here")
        if known != schema:
            await self.manifest.change(partial(with_table, schema=schema), partial(self._install_schema, schema))

    def _install_schema(self, schema: TableSchema) -> None:
        for stack in self._stacks.values():
            if stack.entry.table == schema.id:
                stack.schema = schema

    async def drop_table(self, table: TableId) -> None:
        """With all its stacks."""
        for stack in [one for one in self._stacks.values() if one.entry.table == table]:
            await self.drop(stack)
        if self.manifest.current.table(table) is not None:
            await self.manifest.change(partial(without_table, table=table))

    def find(self, table: TableId, token_range: TokenRange) -> Stack | None:
        return next(
            (one for one in self._stacks.values() if one.entry.table == table and one.entry.range == token_range), None
        )

    async def create(self, table: TableId, token_range: TokenRange) -> Stack:
        """A new replica, or the existing one. Its files appear when it is first flushed."""
        return (await self.create_all([(table, token_range)]))[0]

    async def create_all(self, places: Sequence[tuple[TableId, TokenRange]]) -> list[Stack]:
        """The same for several, by one change of the manifest."""
        async with self._creating:
            found = {(one.entry.table, one.entry.range): one for one in self._stacks.values()}
            entries = [self._new_entry(*place) for place in places if place not in found]
            if entries:
                await self.manifest.change(partial(_with_stacks, new=entries), partial(self._install_all, entries))
            found |= {(entry.table, entry.range): self._stacks[entry.incarnation] for entry in entries}
            return [found[place] for place in places]

    def _new_entry(self, table: TableId, token_range: TokenRange) -> StackEntry:
        if self.manifest.current.table(table) is None:
            raise InvalidRequest(f"table {table} is not known here")
        incarnation = Incarnation(int.from_bytes(self.rng.bytes(8)))
        return StackEntry(
            incarnation=incarnation,
            table=table,
            range=token_range,
            live=LayerEntry(id=self.new_layer_id(), range=token_range),
            replay_from=self.log.next_sequence,
        )

    def _install_all(self, entries: Sequence[StackEntry]) -> None:
        for entry in entries:
            schema = self.manifest.current.table(entry.table)
            assert schema is not None, "the manifest has the table of every stack"
            self.add_stack(entry, schema)

    # -- tombstone GC ------------------------------------------------------------------------------------------------

    async def hold_gc(self, stack: Stack, reason: str) -> None:
        """From the return on no compaction drops a tombstone of this stack: a transition or a staging begins. Waits
        for a swap in progress, so that nothing staged can be older than a tombstone the swap is about to drop."""
        async with stack.changing:
            stack.gc_holds.add(reason)

    def add_gc_hold(self, stack: Stack, reason: str) -> None:
        """The same at once, for a stack that is already held: no swap that drops tombstones can be in progress."""
        assert stack.gc_holds
        stack.gc_holds.add(reason)

    def release_gc(self, stack: Stack, reason: str = GC_HOLD_AT_START) -> None:
        """After a start every stack is held until the shard has learnt of its transitions and stagings."""
        stack.gc_holds.discard(reason)

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.manifest.run())
            tasks.create_task(self.log.run())
            tasks.create_task(self._keep_up())

    async def close(self) -> None:
        """Orderly, with `run` still running: everything is flushed, so that the next start has nothing to replay."""
        # Never released: upkeep in between would hold layers that are to be closed, or open them again.
        await self._upkeep_lock.acquire()
        for stack in tuple(self._stacks.values()):
            if not stack.damage:
                await self.flush(stack)
        await self.sync()
        await self.layers.close_all()
        await self.log.close()

    async def _keep_up(self) -> NoReturn:
        while True:
            try:
                async with asyncio.timeout(self.limits.upkeep_ms / 1000):
                    await self._upkeep_wanted.wait()
            except TimeoutError:
                pass
            self._upkeep_wanted.clear()
            self._check_space()
            try:
                async with self._upkeep_lock:
                    await self._upkeep()
            except (DiskFull, Overloaded):
                # The next round finds what could not be done now.
                await asyncio.sleep(self.limits.upkeep_ms / 1000)

    def _check_space(self) -> None:
        free_bytes = self.disk.free_bytes(self.folder)
        least_bytes = self.limits.free_bytes_min
        self.shortage = None
        if free_bytes < least_bytes:
            self.shortage = DiskFull(
                f"{free_bytes >> 20} MiB are free in {self.folder}, writes need {least_bytes >> 20} MiB",
                advice="free space there or add a node; reads go on, and writes resume once there is space",
            )

    async def _upkeep(self) -> None:
        await self._quarantine_damaged()
        await self.remove_obsolete()
        for stack in tuple(self._stacks.values()):
            if stack.dropped or stack.damage:
                continue
            if stack.incarnation in self._pressed:
                await self._keep_up_one(stack, self.flush)
                del self._pressed[stack.incarnation]
            if stack.frozen is not None or self._live_is_large(stack):
                await self._keep_up_one(stack, self.seal)
        self._live_bytes = {stack.live.id: self._live_size(stack) for stack in self._stacks.values()}
        await self._shorten_log()

    def _live_size(self, stack: Stack) -> int:
        live = self.layers.find(stack.folder_of(stack.live))
        return self._live_bytes.get(stack.live.id, 0) if live is None else live.size_bytes()

    def _live_is_large(self, stack: Stack) -> bool:
        live = self.layers.find(stack.folder_of(stack.live))
        return live is not None and live.size_bytes() > self.limits.live_bytes_max

    async def _shorten_log(self) -> None:
        log = self.log
        if log.is_long:
            target = log.segments[len(log.segments) // 2]
            for stack in tuple(self._stacks.values()):
                needed = stack.needed_from
                if needed is not None and needed < target and not (stack.dropped or stack.damage):
                    await self._keep_up_one(stack, self.flush)
        needed = self._log_needed_from()
        if log.can_drop_before(needed):
            await self.name_live_files()
            await log.drop_before(needed)

    def _log_needed_from(self) -> int:
        needed = [one.needed_from for one in self._stacks.values() if not one.damage]
        return min([one for one in needed if one is not None], default=self.log.next_sequence)

    def note_damage(self, stack: Stack, failure: LayerDamaged) -> None:
        self._damages.append((stack, failure))
        self._upkeep_wanted.set()

    async def _quarantine_damaged(self) -> None:
        while self._damages:
            await self.quarantine(*self._damages[-1])
            self._damages.pop()

    async def _keep_up_one(self, stack: Stack, change: Callable[[Stack], Awaitable[None]]) -> None:
        """A damaged layer stops its own stack and no other."""
        try:
            await change(stack)
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
        except Stale:
            assert stack.dropped


def _with_stacks(manifest: ShardManifest, new: Sequence[StackEntry]) -> ShardManifest:
    return msgspec.structs.replace(manifest, stacks=(*manifest.stacks, *new))
