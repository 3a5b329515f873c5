"""Changes of a stack: flush, seal, adopt, compact, drop, checkpoint. Each is one write of the manifest.

The order in each is: build new folders and make them durable, write the manifest, change memory in the same step, then
remove old folders. A crash before the manifest leaves a folder that the next start sweeps; a crash after it leaves an
old folder that is swept as well. Every change may be requested again after a failure.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import msgspec

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import DiskFull, EblaError, Overloaded
from ebla.model.rows import NEVER_US
from ebla.model.token import TokenRange, merge_ranges, subtract_ranges
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.commit_log import CommitLog
from ebla.storage.compaction.compaction_plan import (
    CompactionInput,
    CompactionJob,
    CompactionResult,
    SwapOutcome,
    check_result,
    choose_inputs,
    plan_gc_rule,
)
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import LayerDamaged, LayerEngine
from ebla.storage.layers.layer_cache import LayerCache
from ebla.storage.layers.layer_facts import NO_FACTS
from ebla.storage.manifest import (
    ADOPTED_MAX,
    HeldRanges,
    Incarnation,
    LayerEntry,
    LayerId,
    ManifestFailed,
    ManifestWriter,
    ShardManifest,
    StackEntry,
    layer_folder,
    layers_folder,
    save_manifest,
    with_live_files,
    with_stack,
    without_stack,
)
from ebla.storage.stack import Stack
from ebla.storage.store_limits import StoreLimits


@dataclass(frozen=True, slots=True)
class Adoption:
    folder: str
    """Of a finished layer on the same file system. It still belongs to its owner, who removes it."""
    range: TokenRange
    origin: str
    """Names the transfer that brings it: no origin is adopted twice. Layers that belong together share one."""


def scratch_folder(folder: str) -> str:
    """Checkpoints for compactions; emptied at start."""
    return f"{folder}/folds"


def quarantine_folder(folder: str) -> str:
    """Damaged layers of replicas that were dropped, kept for operators."""
    return f"{folder}/damaged"


ReachGain = Callable[[str], Awaitable[None]]
"""Called with the name of the fault point, before and after the manifest that hides a gained range."""


async def reach_nothing(_place: str) -> None:
    pass


@dataclass(slots=True, kw_only=True)
class StackChanges:
    """The stacks of a shard, and everything that changes one of them. `ShardStore` adds rows, tables and upkeep."""

    disk: Disk
    rng: Rng
    folder: str
    engine: LayerEngine
    layers: LayerCache
    manifest: ManifestWriter
    log: CommitLog
    limits: StoreLimits
    compaction_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Some stack has grown enough to be compacted."""
    _stacks: dict[Incarnation, Stack] = field(default_factory=dict)
    _obsolete: list[tuple[Stack, str]] = field(default_factory=list)
    """Folders that no manifest names any more; they wait until no reader uses them."""

    @property
    def stacks(self) -> Mapping[Incarnation, Stack]:
        return MappingProxyType(self._stacks)

    def new_layer_id(self) -> LayerId:
        return LayerId(int.from_bytes(self.rng.bytes(8)))

    # -- flush and seal ----------------------------------------------------------------------------------------------

    async def flush(self, stack: Stack) -> None:
        """On return the commit log is not needed for what was written before the call."""
        async with stack.changing:
            stack.check()
            if stack.frozen is not None:
                await self._finish_seal(stack)
            await self._flush_live(stack)

    async def _flush_live(self, stack: Stack) -> None:
        if stack.needed_from is None:
            return
        async with self.layers.hold(stack.layer_ref(stack.live)) as live:
            stack.begin_flush()
            done = False
            try:
                await live.flush()
                done = True
                stack.has_unnamed_files = not stack.live.has_files
            finally:
                stack.end_flush(done=done)

    async def name_live_files(self) -> None:
        """The manifest says of every live layer that was flushed that it has files. Called before records of the commit
        log are dropped: from then on the files are the only copy, and a missing folder must not look like a layer that
        was never written."""
        flushed = [one for one in self._stacks.values() if one.has_unnamed_files]
        async with AsyncExitStack() as changing:
            for stack in flushed:
                await changing.enter_async_context(stack.changing)
            named = {one.incarnation for one in flushed if one.has_unnamed_files and not one.dropped}
            if named:
                await self.manifest.change(
                    partial(with_live_files, incarnations=named), partial(self._install_named, named)
                )

    def _install_named(self, incarnations: Collection[Incarnation]) -> None:
        for entry in self.manifest.current.stacks:
            if entry.incarnation in incarnations:
                self._stacks[entry.incarnation].install(entry)

    async def seal(self, stack: Stack) -> None:
        """The live layer becomes a base, and an empty one replaces it. An empty live layer stays as it is."""
        async with stack.changing:
            stack.check()
            await self._seal(stack)

    async def _seal(self, stack: Stack) -> None:
        if stack.frozen is None:
            # Flush most of it while writes still go there, so that little is left to flush after the switch.
            await self._flush_live(stack)
            async with self.layers.hold(stack.layer_ref(stack.live)) as live:
                if live.facts == NO_FACTS:
                    return
                stack.begin_seal(self.new_layer_id(), self.log.next_sequence)
        await self._finish_seal(stack)

    async def _finish_seal(self, stack: Stack) -> None:
        """Also finishes a seal that a full disk or a cancelled caller interrupted."""
        frozen = stack.frozen
        assert frozen is not None
        async with self.layers.hold(stack.layer_ref(frozen)) as layer:
            await layer.flush()
            sealed = msgspec.structs.replace(frozen, facts=layer.facts, size_bytes=layer.size_bytes(), has_files=True)
        entry = msgspec.structs.replace(
            stack.entry, live=stack.live, bases=(*stack.entry.bases, sealed), replay_from=stack.replay_from
        )
        await self._commit(stack, entry)

    async def _complete_seal(self, stack: Stack) -> None:
        if stack.frozen is not None:
            await self._finish_seal(stack)

    # -- adopt -------------------------------------------------------------------------------------------------------

    async def adopt_all(
        self,
        stack: Stack,
        adoptions: Sequence[Adoption],
        forget: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Layers that others built become bases, all of them by one write of the manifest (INV-XFER-3). No reader sees
        only some of them, since a row may be in one and its tombstone in another; and none is adopted twice.

        Returns how many became bases. Origins in `forget` are never requested again, so they need not be remembered.
        `check` runs just before the change takes effect, and may refuse it by raising."""
        async with stack.changing:
            stack.check()
            fresh = [one for one in adoptions if one.origin not in stack.entry.adopted]
            if fresh:
                origins = dict.fromkeys(one for one in stack.entry.adopted if one not in forget)
                origins |= dict.fromkeys(one.origin for one in fresh)
                if len(origins) > ADOPTED_MAX:
                    raise Overloaded(
                        f"replica {stack.incarnation:016x} remembers {ADOPTED_MAX} adoptions that may be repeated",
                        advice="end the jobs that brought them first",
                    )
                await self._complete_seal(stack)
                await self._adopt_fresh(stack, fresh, tuple(origins), check)
        if self.needs_compaction(stack):
            self.compaction_wanted.set()
        return len(fresh)

    async def _adopt_fresh(
        self, stack: Stack, fresh: Sequence[Adoption], origins: tuple[str, ...], check: Callable[[], None]
    ) -> None:
        before = stack.entry
        ids = [self.new_layer_id() for _ in fresh]
        try:
            bases = [await self._link_base(stack, one, layer_id) for one, layer_id in zip(fresh, ids)]
            check()
            entry = msgspec.structs.replace(before, bases=(*before.bases, *bases), adopted=origins)
            await self._commit(stack, entry)
        except ManifestFailed:
            raise  # the next start finds out which manifest is there, and sweeps what that one does not name
        except (EblaError, OSError, asyncio.CancelledError):
            if stack.entry is before:
                for layer_id in ids:
                    await self.engine.drop(layer_folder(self.folder, stack.incarnation, layer_id))
            raise

    async def _link_base(self, stack: Stack, adoption: Adoption, layer_id: LayerId) -> LayerEntry:
        """Facts and size come from the layer itself: what the sender claims about it decides nothing."""
        source = await self.engine.open(adoption.folder, writable=False)
        try:
            await source.checkpoint(layer_folder(self.folder, stack.incarnation, layer_id))
            return LayerEntry(
                id=layer_id,
                range=adoption.range,
                facts=source.facts,
                size_bytes=source.size_bytes(),
                origin=adoption.origin,
                has_files=True,
            )
        finally:
            await source.discard()

    # -- gained ranges -----------------------------------------------------------------------------------------------

    async def hold_ranges(
        self,
        stack: Stack,
        held: HeldRanges,
        pending: Sequence[TokenRange] = (),
        reach: ReachGain = reach_nothing,
    ) -> None:
        """The node holds these ranges of the table from here on. Of those that it gains by that, whatever the stack has
        is hidden on return, also after a crash at any point (INV-NODE-20). It gains what it did not hold before, and
        what becomes pending by an operation of which this stack has not heard: in between it may have lost that.

        The seal leaves nothing of them in the live layer, nor in records that a start would replay: nobody sends the
        node rows of a range before it is a replica. A crash after the seal finds the old ranges stored, and seals and
        hides once more. Repeated, it changes nothing, so writes taken since are kept.

        A revision at or before the stored one changes nothing either: after a restart, the first views may be older
        than what the shard knew. Of a stack of which no ranges are known, everything held now counts as held before:
        it is new, or of a release that did not store them."""
        async with stack.changing:
            known = stack.entry.held
            if stack.dropped or not held.is_news_to(known):
                return
            gained = () if known is None else _gained(known, held, pending)
            entry = stack.entry
            if gained:
                if not stack.damage:  # a damaged one serves nothing until it is dropped
                    await self._complete_seal(stack)
                    await self._seal(stack)
                entry = _with_hidden(stack.entry, gained)
                await reach("gain.before_manifest")
            await self._commit(stack, msgspec.structs.replace(entry, held=held))
            if gained:
                await reach("gain.after_manifest")

    # -- drop and quarantine -----------------------------------------------------------------------------------------

    async def drop(self, stack: Stack) -> None:
        """The stack is gone on return; its folders are removed as soon as no reader uses them."""
        async with stack.changing:
            if not stack.dropped:
                stack.dropped = True
                try:
                    await self.manifest.change(partial(without_stack, incarnation=stack.incarnation))
                except DiskFull:
                    stack.dropped = False
                    raise
                for entry in stack.layer_entries:
                    if entry.damage:
                        await self._move_to_quarantine(stack, entry)
                    else:
                        self._obsolete.append((stack, stack.folder_of(entry)))
        await self.remove_obsolete()
        self._stacks.pop(stack.incarnation, None)

    async def quarantine(self, stack: Stack, failure: LayerDamaged) -> None:
        """The replica is refused from here on, also after a restart, until it is dropped and rebuilt: what is still
        readable of it may lack the newest version of a row."""
        async with stack.changing:
            if stack.dropped or stack.damage:
                return
            marked = [
                msgspec.structs.replace(one, damage=failure.what) if stack.folder_of(one) == failure.folder else one
                for one in stack.entry.layers
            ]
            entry = msgspec.structs.replace(stack.entry, bases=tuple(marked[:-1]), live=marked[-1])
            if entry.layers != stack.entry.layers:
                await self._commit(stack, entry)

    async def _move_to_quarantine(self, stack: Stack, entry: LayerEntry) -> None:
        folder = stack.folder_of(entry)
        await self.layers.close(folder, flush=False)
        if self.disk.exists(folder):
            self.disk.make_folder(quarantine_folder(self.folder))
            self.disk.rename(folder, f"{quarantine_folder(self.folder)}/{folder.rpartition('/')[2]}")
            await self.disk.sync_folder(parent_folder(folder))
            await self.disk.sync_folder(quarantine_folder(self.folder))

    async def remove_obsolete(self) -> None:
        """Removes old folders that no reader uses any more. What fails here is swept at the next start."""
        waiting, self._obsolete = self._obsolete, []
        for stack, folder in waiting:
            if stack.pins:
                self._obsolete.append((stack, folder))
                continue
            await self.layers.close(folder, flush=False)
            await self.engine.drop(folder)

    # -- checkpoint --------------------------------------------------------------------------------------------------

    async def checkpoint(self, stack: Stack, folder: str, *, durable: bool = True) -> ShardManifest:
        """The whole stack as it is, by hard links, in a folder of its own with a manifest. It contains every write
        acknowledged before the call. The manifest is written last, so a folder without one is not a checkpoint. One
        that need not be durable is not synced: syncs take most of the time."""
        async with stack.changing:
            stack.check()
            await self._complete_seal(stack)
            await self.disk.run(partial(self.disk.make_folder, layers_folder(folder)))
            entries = []
            for entry in stack.layer_entries:
                async with self.layers.hold(stack.layer_ref(entry)) as layer:
                    if layer.facts == NO_FACTS:
                        continue
                    await layer.checkpoint(layer_folder(folder, stack.incarnation, entry.id), durable=durable)
                    entries.append(
                        msgspec.structs.replace(entry, facts=layer.facts, size_bytes=layer.size_bytes(), has_files=True)
                    )
            empty = LayerEntry(id=self.new_layer_id(), range=stack.entry.range)
            whole = msgspec.structs.replace(stack.entry, live=empty, bases=tuple(entries))
        manifest = ShardManifest(tables=(stack.schema,), stacks=(whole,))
        # The layers' own checkpoints make their names durable; the syncs around the manifest those of their parents.
        if durable:
            await self.disk.sync_folder(parent_folder(folder))
        await save_manifest(self.disk, folder, manifest, durable=durable)
        return manifest

    # -- compaction --------------------------------------------------------------------------------------------------

    def needs_compaction(self, stack: Stack) -> bool:
        """Whether the stack has grown so that a compaction should be started."""
        grown = len(stack.entry.bases) > self.limits.bases_max
        return grown and stack.compacting is None and not stack.dropped and not stack.damage

    async def begin_compaction(self, stack: Stack, gc: GcContext, *, whole: bool = False) -> CompactionJob | None:
        """A compaction job for any process, on checkpoints of its inputs; None: there is nothing to compact. With
        `whole` it takes all layers, the live one included. One compaction of a stack at a time."""
        async with stack.changing:
            stack.check()
            if stack.compacting is not None:
                return None
            if whole:
                await self._seal(stack)
            await self._complete_seal(stack)
            async with self.layers.hold(stack.layer_ref(stack.live)) as live:
                layers = stack.entries_with_facts(live)
                bases = stack.entry.bases
                inputs = tuple(one.id for one in bases) if whole else choose_inputs(bases, self.limits.bases_max)
                held = bool(stack.gc_holds) or stack.compaction_keeps_all
                rule = plan_gc_rule(layers, inputs, stack.schema, gc, held=held)
                kept = stack.kept
            if not inputs:
                return None
            output = self.new_layer_id()
            scratch = f"{scratch_folder(self.folder)}/{output:016x}"
            self.disk.make_folder(scratch)
            stack.compacting = output
            try:
                linked = [await self._link_input(stack, one, scratch) for one in stack.entry.bases if one.id in inputs]
            except BaseException:
                stack.compacting = None
                raise
            return CompactionJob(
                incarnation=stack.incarnation,
                inputs=tuple(linked),
                output=output,
                output_folder=layer_folder(self.folder, stack.incarnation, output),
                range=stack.entry.range,
                rule=rule,
                schema=stack.schema,
                scratch_folder=scratch,
                kept=kept,
            )

    async def _link_input(self, stack: Stack, entry: LayerEntry, scratch: str) -> CompactionInput:
        folder = f"{scratch}/{entry.id:016x}"
        async with self.layers.hold(stack.layer_ref(entry)) as layer:
            await layer.checkpoint(folder, durable=False)  # a start empties the scratch folder
        return CompactionInput(entry.id, folder, entry.visible)

    async def finish_compaction(self, job: CompactionJob, result: CompactionResult) -> SwapOutcome:
        """The built layer replaces its inputs, unless the stack has changed meanwhile. `INV-LAYER-GC`."""
        stack = self._stacks.get(job.incarnation)
        if stack is None:
            await self._discard(job)
            return SwapOutcome.INPUTS_GONE
        async with stack.changing:
            if stack.dropped or stack.damage:
                await self._end_compaction(stack, job, unused=True)
                return SwapOutcome.INPUTS_GONE
            await self._complete_seal(stack)
            async with self.layers.hold(stack.layer_ref(stack.live)) as live:
                outcome = check_result(stack.entries_with_facts(live), job, result, held=bool(stack.gc_holds))
                stack.compaction_keeps_all = outcome in (SwapOutcome.OLDER_CELLS, SwapOutcome.HELD)
                if outcome is SwapOutcome.SWAPPED:
                    stack.reject_upto_us = result.dropped_greatest_us
            if outcome is not SwapOutcome.SWAPPED:
                await self._end_compaction(stack, job, unused=True)
                return outcome
            try:
                await self._swap(stack, job)
            finally:
                stack.reject_upto_us = NEVER_US
            await self._end_compaction(stack, job, unused=False)
        await self.remove_obsolete()
        return outcome

    async def _swap(self, stack: Stack, job: CompactionJob) -> None:
        built = await self.engine.open(job.output_folder, writable=False)
        try:
            entry = LayerEntry(
                id=job.output,
                range=job.range,
                facts=built.facts,
                size_bytes=built.size_bytes(),
                has_files=True,
            )
        finally:
            await built.discard()
        inputs = {one.id: one for one in job.inputs}
        replaced = [one for one in stack.entry.bases if one.id in inputs]
        # What was hidden while the compaction ran; what it dropped may be hidden once more.
        gained = [gone for one in replaced for gone in subtract_ranges(inputs[one.id].ranges, one.visible)]
        entry = msgspec.structs.replace(entry, hidden=merge_ranges(gained))
        position = stack.entry.bases.index(replaced[0])
        kept = [one for one in stack.entry.bases if one not in replaced]
        bases = (*kept[:position], entry, *kept[position:])
        await self._commit(stack, msgspec.structs.replace(stack.entry, bases=bases))
        self._obsolete += [(stack, stack.folder_of(one)) for one in replaced]

    async def abandon_compaction(self, job: CompactionJob) -> None:
        stack = self._stacks.get(job.incarnation)
        if stack is None:
            await self._discard(job)
            return
        async with stack.changing:
            await self._end_compaction(stack, job, unused=True)

    async def _end_compaction(self, stack: Stack, job: CompactionJob, *, unused: bool) -> None:
        """Repeated, it does nothing, even if another compaction of the stack has begun since."""
        if stack.compacting == job.output:
            stack.compacting = None
            if unused:
                await self.engine.drop(job.output_folder)
            await self.disk.run(partial(self.disk.remove_folder, job.scratch_folder))

    async def _discard(self, job: CompactionJob) -> None:
        await self.engine.drop(job.output_folder)
        await self.disk.run(partial(self.disk.remove_folder, job.scratch_folder))

    async def _commit(self, stack: Stack, entry: StackEntry) -> None:
        await self.manifest.change(partial(with_stack, entry=entry), partial(stack.install, entry))


def _gained(known: HeldRanges, held: HeldRanges, pending: Sequence[TokenRange]) -> tuple[TokenRange, ...]:
    of_operation = () if held.operation == known.operation else pending
    return merge_ranges((*subtract_ranges(held.ranges, known.ranges), *of_operation))


def _with_hidden(entry: StackEntry, gained: Sequence[TokenRange]) -> StackEntry:
    """Adoptions that may be repeated are forgotten: a repeated one has to bring back what this hides of it."""
    bases = [msgspec.structs.replace(one, hidden=merge_ranges((*one.hidden, *gained))) for one in entry.bases]
    return msgspec.structs.replace(entry, bases=tuple(bases), adopted=())
