"""The store of a shard: all its stacks over one commit log and one manifest.

A write is checked, merged into its stack's live layer and queued for the log in one step, and answered when the log's
mode says so. Everything else (flush, seal, adopt, fold, drop, checkpoint) runs beside it, one change of a stack at a
time. `run` must be running in the shard's task group; when the disk fails, it ends with what happened, and the shard
starts again from what is durable. A full disk is no failure: writes are refused, reads go on, and writes are taken
again once there is space.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec

from ebla.model.errors import DiskFull, InvalidRequest, Overloaded, Stale
from ebla.model.identity import TableId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.storage import stack_changes
from ebla.storage.commit_log import CommitLogLimits, SyncMode
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionLimits, CompactionResult, SwapOutcome
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, Layer, LayerDamaged
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    ShardManifest,
    StackEntry,
    with_stack,
    with_table,
    without_table,
)
from ebla.storage.stack import OpenStack, Stack
from ebla.storage.stack_changes import Adoption, StoreContext

GC_HOLD_AT_START = "not yet told of transitions and stagings"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    log: CommitLogLimits = field(default_factory=CommitLogLimits)
    compact: CompactionLimits = field(default_factory=CompactionLimits)
    layers_open_max: int = 512
    free_bytes_min: int = 256 << 20
    """With less, writes are refused: what is left is for flushes, manifests and folds, which make space."""
    upkeep_ms: int = 250


class ShardStore:
    """Made by `store_recovery.open_store`."""

    def __init__(self, parts: StoreContext, stacks: Sequence[Stack], limits: StoreLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._stacks: dict[Incarnation, Stack] = {stack.incarnation: stack for stack in stacks}
        self._shortage: DiskFull | None = None
        self._upkeep_wanted = asyncio.Event()
        self._upkeep_turn = asyncio.Lock()
        self._damages: list[tuple[Stack, LayerDamaged]] = []
        self._pressed: dict[Incarnation, Stack] = {}
        """Their live layers refused a write: a flush makes room, or shows that there is none yet."""
        self._creating = asyncio.Lock()
        self.compaction_wanted = asyncio.Event()
        """Some stack has grown; for whoever folds."""
        self._check_space()

    @property
    def stacks(self) -> Mapping[Incarnation, Stack]:
        return MappingProxyType(self._stacks)

    @property
    def tables(self) -> tuple[TableSchema, ...]:
        return self._parts.manifest.current.tables

    @property
    def answers_after_sync(self) -> bool:
        """Whether a write is answered only once it is durable."""
        return self._limits.log.mode is SyncMode.SYNC

    @property
    def takes_writes(self) -> bool:
        """Whether there is space for them."""
        return self._shortage is None and not self._parts.log.is_full

    @property
    def free_bytes(self) -> int:
        """What the disk has beyond what is kept for flushes, manifests and folds."""
        return max(0, self._parts.disk.free_bytes(self._parts.folder) - self._limits.free_bytes_min)

    # -- rows ------------------------------------------------------------------------------------------------------

    async def write(self, stack: Stack, items: Sequence[Item]) -> None:
        """Merges items of one replica into it, all or none, and returns when they are as durable as the mode says.

        Not applied: `Stale`, `DiskFull`, `Overloaded`, `TooLarge`. Unknown: `NotDurable`, `LogFailed`.
        """
        sequence = self.write_open(stack, await self.open_live(stack), items)
        if self.answers_after_sync:
            await self._parts.log.wait_durable(sequence)

    def write_open(self, stack: Stack, live: Layer, items: Sequence[Item]) -> int:
        """The same without an await, on a live layer opened since the last one; not yet durable on return. The
        sequence is for `wait_durable`."""
        assert items
        if self._shortage is not None:
            raise self._shortage
        stack.check_items(items)
        record = self._parts.log.encode(stack.incarnation, items)
        try:
            stack.merge_into(live, items)
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise
        except (Overloaded, DiskFull):
            self._pressed[stack.incarnation] = stack
            self._upkeep_wanted.set()
            raise
        sequence = self._parts.log.queue(record)
        stack.note_write(sequence)
        if self._parts.log.is_long:
            self._upkeep_wanted.set()
        return sequence

    async def wait_durable(self, sequence: int) -> None:
        await self._parts.log.wait_durable(sequence)

    async def sync(self) -> None:
        """Everything written before the call is durable on return, in either mode."""
        last = self._parts.log.next_sequence - 1
        if last >= 1:
            await self._parts.log.wait_durable(last)

    async def open(self, stack: Stack) -> OpenStack:
        """For reads and writes without an await; good until the next one."""
        try:
            return stack.find_open() or await stack.open()
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise

    async def open_live(self, stack: Stack) -> Layer:
        """For writes without an await; good until the next one."""
        try:
            return await stack.open_live()
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise

    async def read(self, stack: Stack, key: bytes) -> bytes | None:
        """A row's merged value, without what its partition's head deletes. A write whose sync is under way shows."""
        opened = await self.open(stack)
        try:
            return opened.read(key)
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise

    async def scan(self, stack: Stack, start: bytes, end: bytes | None, rows_max: int) -> list[Item]:
        """The first rows and heads from `start` on, all of one moment; a shorter list is the end."""
        opened = await self.open(stack)
        try:
            return list(islice(opened.scan(start, end), rows_max))
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
            raise

    @contextmanager
    def pinned(self, stack: Stack) -> Iterator[None]:
        """No folder of the stack is removed meanwhile."""
        stack.pins += 1
        try:
            yield
        finally:
            stack.pins -= 1
            self._upkeep_wanted.set()

    # -- tables and stacks -------------------------------------------------------------------------------------------

    async def set_schema(self, schema: TableSchema) -> None:
        """Durable before a row of that version is taken, or such a row could not be read back from the log."""
        known = self._parts.manifest.current.table(schema.id)
        if known is not None and known.version > schema.version:
            raise Stale(f"table {schema.full_name} is known here in version {known.version} already")
        if known != schema:
            await self._parts.manifest.change(partial(with_table, schema=schema), partial(self._install_schema, schema))

    def _install_schema(self, schema: TableSchema) -> None:
        for stack in self._stacks.values():
            if stack.entry.table == schema.id:
                stack.schema = schema

    async def drop_table(self, table: TableId) -> None:
        """With all its stacks."""
        for stack in [one for one in self._stacks.values() if one.entry.table == table]:
            await self.drop(stack)
        if self._parts.manifest.current.table(table) is not None:
            await self._parts.manifest.change(partial(without_table, table=table))

    def find(self, table: TableId, token_range: TokenRange) -> Stack | None:
        return next(
            (one for one in self._stacks.values() if one.entry.table == table and one.entry.range == token_range), None
        )

    async def create(self, table: TableId, token_range: TokenRange) -> Stack:
        """A new replica, or the one that is there. Its files appear when it is first flushed."""
        async with self._creating:
            return self.find(table, token_range) or await self._create(table, token_range)

    async def create_all(self, wanted: Sequence[tuple[TableId, TokenRange]]) -> list[Stack]:
        """Several new replicas by one change of the manifest. None of them may be there."""
        async with self._creating:
            new = [self._new_stack(table, token_range) for table, token_range in wanted]
            await self._parts.manifest.change(partial(_with_stacks, new=new), partial(self._install_all, new))
        return new

    async def _create(self, table: TableId, token_range: TokenRange) -> Stack:
        stack = self._new_stack(table, token_range)
        await self._parts.manifest.change(partial(with_stack, entry=stack.entry), partial(self._install, stack))
        return stack

    def _new_stack(self, table: TableId, token_range: TokenRange) -> Stack:
        schema = self._parts.manifest.current.table(table)
        if schema is None:
            raise InvalidRequest(f"table {table} is not known here")
        incarnation = Incarnation(int.from_bytes(self._parts.rng.bytes(8)))
        entry = StackEntry(
            incarnation=incarnation,
            table=table,
            range=token_range,
            live=LayerEntry(id=self._parts.new_layer_id(), range=token_range),
            replay_from=self._parts.log.next_sequence,
        )
        stack = Stack(self._parts.folder, entry, schema, self._parts.layers)
        stack.gc_holds.add(GC_HOLD_AT_START)
        return stack

    def _install_all(self, stacks: Sequence[Stack]) -> None:
        for stack in stacks:
            self._install(stack)

    def _install(self, stack: Stack) -> None:
        self._stacks[stack.incarnation] = stack

    async def drop(self, stack: Stack) -> None:
        await stack_changes.drop(self._parts, stack)
        self._stacks.pop(stack.incarnation, None)

    async def flush(self, stack: Stack) -> None:
        await stack_changes.flush(self._parts, stack)

    async def seal(self, stack: Stack) -> None:
        await stack_changes.seal(self._parts, stack)

    async def adopt_all(
        self,
        stack: Stack,
        adoptions: Sequence[Adoption],
        forget: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """All of them at once, or none; those that were adopted before are left out. How many became bases. Origins
        in `forget` are never asked for again, so that they need not be remembered. `check` may refuse it by raising,
        and is asked once all is ready, just before it takes effect."""
        adopted = await stack_changes.adopt_all(self._parts, stack, adoptions, (forget, check))
        if self.needs_compaction(stack):
            self.compaction_wanted.set()
        return adopted

    async def checkpoint(self, stack: Stack, folder: str, *, durable: bool = True) -> ShardManifest:
        return await stack_changes.checkpoint(self._parts, stack, folder, durable=durable)

    # -- folds -------------------------------------------------------------------------------------------------------

    async def hold_gc(self, stack: Stack, reason: str) -> None:
        """From the return on no fold drops a tombstone of this stack: a transition or a staging begins. Waits for a
        swap under way, so that what is staged cannot be older than a tombstone it is about to drop."""
        async with stack.changing:
            stack.gc_holds.add(reason)

    def add_gc_hold(self, stack: Stack, reason: str) -> None:
        """The same at once, for one that is held by something else already: no swap that drops can be under way."""
        assert stack.gc_holds
        stack.gc_holds.add(reason)

    def release_gc(self, stack: Stack, reason: str = GC_HOLD_AT_START) -> None:
        """After a start every stack is held until the shard has been told of its transitions and stagings."""
        stack.gc_holds.discard(reason)

    def needs_compaction(self, stack: Stack) -> bool:
        """Whether the stack has grown so that a fold of it should be begun."""
        grown = len(stack.entry.bases) > self._limits.compact.bases_max
        return grown and stack.folding is None and not stack.dropped and not stack.damage

    async def begin_compaction(self, stack: Stack, terms: GcContext, *, whole: bool = False) -> CompactionJob | None:
        return await stack_changes.begin_compaction(self._parts, stack, self._limits.compact, terms, whole=whole)

    async def finish_compaction(self, job: CompactionJob, result: CompactionResult) -> SwapOutcome:
        stack = self._stacks.get(job.incarnation)
        if stack is None:
            await self._discard(job)
            return SwapOutcome.INPUTS_GONE
        return await stack_changes.finish_compaction(self._parts, stack, job, result)

    async def abandon_compaction(self, job: CompactionJob) -> None:
        stack = self._stacks.get(job.incarnation)
        if stack is None:
            await self._discard(job)
        else:
            await stack_changes.abandon_compaction(self._parts, stack, job)

    async def _discard(self, job: CompactionJob) -> None:
        await self._parts.engine.drop(job.output_folder)
        await self._parts.disk.run(partial(self._parts.disk.remove_folder, job.scratch_folder))

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._parts.manifest.run())
            tasks.create_task(self._parts.log.run())
            tasks.create_task(self._keep_up())

    async def close(self) -> None:
        """Orderly, with `run` still running: everything is flushed, so that the next start has nothing to replay."""
        # Never given back: a turn of upkeep in between would hold layers that are to be closed, or open them again.
        await self._upkeep_turn.acquire()
        for stack in tuple(self._stacks.values()):
            if not stack.damage:
                await self.flush(stack)
        await self.sync()
        await self._parts.layers.close_all()
        await self._parts.log.close()

    async def _keep_up(self) -> NoReturn:
        while True:
            try:
                async with asyncio.timeout(self._limits.upkeep_ms / 1000):
                    await self._upkeep_wanted.wait()
            except TimeoutError:
                pass
            self._upkeep_wanted.clear()
            self._check_space()
            try:
                async with self._upkeep_turn:
                    await self._upkeep()
            except (DiskFull, Overloaded):
                # What could not be done now is found undone at the next turn.
                await asyncio.sleep(self._limits.upkeep_ms / 1000)

    def _check_space(self) -> None:
        free_bytes = self._parts.disk.free_bytes(self._parts.folder)
        least_bytes = self._limits.free_bytes_min
        self._shortage = None
        if free_bytes < least_bytes:
            self._shortage = DiskFull(
                f"{free_bytes >> 20} MiB are free in {self._parts.folder}, writes need {least_bytes >> 20} MiB",
                advice="free space there or add a node; reads go on, and writes will by themselves",
            )

    async def _upkeep(self) -> None:
        await self._tell_damages()
        await stack_changes.remove_obsolete(self._parts)
        for stack in tuple(self._stacks.values()):
            if stack.dropped or stack.damage:
                continue
            if stack.incarnation in self._pressed:
                await self._with_damage(stack, self.flush(stack))
                del self._pressed[stack.incarnation]
            if stack.frozen is not None or self._live_is_large(stack):
                await self._with_damage(stack, self.seal(stack))
        await self._shorten_log()

    def _live_is_large(self, stack: Stack) -> bool:
        live = self._parts.layers.find(stack.folder_of(stack.live))
        return live is not None and live.size_bytes() > self._limits.compact.live_bytes_max

    async def _shorten_log(self) -> None:
        log = self._parts.log
        if log.is_long:
            target = log.segments[len(log.segments) // 2]
            for stack in tuple(self._stacks.values()):
                needed = stack.needed_from
                if needed is not None and needed < target and not (stack.dropped or stack.damage):
                    await self._with_damage(stack, self.flush(stack))
        await log.drop_before(self._log_needed_from())

    def _log_needed_from(self) -> int:
        needed = [one.needed_from for one in self._stacks.values() if not one.damage]
        return min([one for one in needed if one is not None], default=self._parts.log.next_sequence)

    def note_damage(self, stack: Stack, failure: LayerDamaged) -> None:
        self._damages.append((stack, failure))
        self._upkeep_wanted.set()

    async def _tell_damages(self) -> None:
        while self._damages:
            await stack_changes.quarantine(self._parts, *self._damages[-1])
            self._damages.pop()

    async def _with_damage(self, stack: Stack, work: Coroutine[Any, Any, None]) -> None:
        """A damaged layer stops its own stack and no other."""
        try:
            await work
        except LayerDamaged as failure:
            self.note_damage(stack, failure)
        except Stale:
            assert stack.dropped


def _with_stacks(manifest: ShardManifest, new: Sequence[Stack]) -> ShardManifest:
    return msgspec.structs.replace(manifest, stacks=(*manifest.stacks, *(stack.entry for stack in new)))
