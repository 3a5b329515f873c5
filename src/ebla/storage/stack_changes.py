"""Changes of a stack: flush, seal, adopt, swap, drop, checkpoint. Each is one write of the manifest.

The order in each is: new folders built and durable, then the manifest, then memory in the same step, then old folders
removed. A crash before the manifest leaves a folder that is swept at the next start; one after it leaves an old folder
that is swept as well. All of them may be asked for again after a failure.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import DiskFull, EblaError, Overloaded
from ebla.model.rows import NEVER_US
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.commit_log import CommitLog
from ebla.storage.compaction.compaction_plan import (
    CompactionInput,
    CompactionJob,
    CompactionLimits,
    CompactionResult,
    SwapOutcome,
    choose_inputs,
    judge_result,
    plan_gc_rule,
)
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import LayerDamaged, LayerEngine
from ebla.storage.layers.layer_cache import LayerCache
from ebla.storage.layers.layer_facts import NO_FACTS
from ebla.storage.manifest import (
    ADOPTED_MAX,
    LayerEntry,
    LayerId,
    ManifestFailed,
    ManifestWriter,
    ShardManifest,
    StackEntry,
    layer_folder,
    layers_folder,
    save_manifest,
    with_stack,
    without_stack,
)
from ebla.storage.stack import Stack


@dataclass(slots=True, kw_only=True)
class StoreContext:
    """What changes of a stack work with."""

    disk: Disk
    rng: Rng
    folder: str
    engine: LayerEngine
    layers: LayerCache
    manifest: ManifestWriter
    log: CommitLog
    obsolete: list[tuple[Stack, str]] = field(default_factory=list)
    """Folders that no manifest names any more, waiting for whoever still reads them."""

    def new_layer_id(self) -> LayerId:
        return LayerId(int.from_bytes(self.rng.bytes(8)))


@dataclass(frozen=True, slots=True)
class Adoption:
    folder: str
    """Of a finished layer on the same file system. It stays its owner's, to be removed."""
    range: TokenRange
    origin: str
    """Names what brings it: the same is not adopted twice. Layers that belong together have one."""


def scratch_folder(folder: str) -> str:
    """Checkpoints for folds; emptied at start."""
    return f"{folder}/folds"


def quarantine_folder(folder: str) -> str:
    """Damaged layers of replicas that were dropped, kept for people."""
    return f"{folder}/damaged"


async def flush(parts: StoreContext, stack: Stack) -> None:
    """The commit log is not needed for what was written before the call."""
    async with stack.changing:
        stack.check()
        if stack.frozen is not None:
            await _finish_seal(parts, stack)
        await _flush_live(parts, stack)


async def _flush_live(parts: StoreContext, stack: Stack) -> None:
    if stack.needed_from is None:
        return
    async with parts.layers.hold(stack.place_of(stack.live)) as live:
        stack.begin_flush()
        done = False
        try:
            await live.flush()
            done = True
        finally:
            stack.end_flush(done=done)


async def seal(parts: StoreContext, stack: Stack) -> None:
    """The live layer becomes a base, and an empty one takes its place. Nothing happens where it is empty."""
    async with stack.changing:
        stack.check()
        await _seal(parts, stack)


async def _seal(parts: StoreContext, stack: Stack) -> None:
    if stack.frozen is None:
        # Most of it while writes still go there, so that little is left to flush behind the switch.
        await _flush_live(parts, stack)
        async with parts.layers.hold(stack.place_of(stack.live)) as live:
            if live.facts == NO_FACTS:
                return
            stack.begin_seal(parts.new_layer_id(), parts.log.next_sequence)
    await _finish_seal(parts, stack)


async def _finish_seal(parts: StoreContext, stack: Stack) -> None:
    """Also what a full disk or a cancelled caller interrupted."""
    frozen = stack.frozen
    assert frozen is not None
    async with parts.layers.hold(stack.place_of(frozen)) as layer:
        await layer.flush()
        sealed = msgspec.structs.replace(frozen, facts=layer.facts, size_bytes=layer.size_bytes())
    entry = msgspec.structs.replace(
        stack.entry, live=stack.live, bases=(*stack.entry.bases, sealed), replay_from=stack.replay_from
    )
    await _commit(parts, stack, entry)


AdoptionTerms = tuple[Collection[str], Callable[[], None]]
"""Origins that may be forgotten, and what is asked just before the effect: it raises where there must be none."""


async def adopt_all(parts: StoreContext, stack: Stack, adoptions: Sequence[Adoption], terms: AdoptionTerms) -> int:
    """Layers that others built become bases, all of them by one write of the manifest. INV-XFER-3: nobody sees some of
    them, since a row may be in one and its tombstone in another; and none comes twice. Says how many there were."""
    forget, check = terms
    async with stack.changing:
        stack.check()
        fresh = [one for one in adoptions if one.origin not in stack.entry.adopted]
        if not fresh:
            return 0
        origins = dict.fromkeys(one for one in stack.entry.adopted if one not in forget)
        origins |= dict.fromkeys(one.origin for one in fresh)
        if len(origins) > ADOPTED_MAX:
            raise Overloaded(
                f"replica {stack.incarnation:016x} has adopted {ADOPTED_MAX} things that may be asked for again",
                advice="end the jobs that brought them first",
            )
        await _settle_seal(parts, stack)
        await _adopt_fresh(parts, stack, fresh, (tuple(origins), check))
        return len(fresh)


async def _adopt_fresh(
    parts: StoreContext, stack: Stack, fresh: Sequence[Adoption], terms: tuple[tuple[str, ...], Callable[[], None]]
) -> None:
    origins, check = terms
    before = stack.entry
    ids = [parts.new_layer_id() for _ in fresh]
    try:
        bases = [await _link_base(parts, stack, one, layer_id) for one, layer_id in zip(fresh, ids)]
        check()
        entry = msgspec.structs.replace(before, bases=(*before.bases, *bases), adopted=origins)
        await _commit(parts, stack, entry)
    except ManifestFailed:
        raise  # which one is there is found out by the next start, and what it does not name is swept there
    except (EblaError, OSError, asyncio.CancelledError):
        if stack.entry is before:
            for layer_id in ids:
                await parts.engine.drop(layer_folder(parts.folder, stack.incarnation, layer_id))
        raise


async def _link_base(parts: StoreContext, stack: Stack, adoption: Adoption, layer_id: LayerId) -> LayerEntry:
    """Facts and size are the layer's own: what whoever brought it says of it decides nothing."""
    source = await parts.engine.open(adoption.folder, writable=False)
    try:
        await source.checkpoint(layer_folder(parts.folder, stack.incarnation, layer_id))
        return LayerEntry(
            id=layer_id,
            range=adoption.range,
            facts=source.facts,
            size_bytes=source.size_bytes(),
            origin=adoption.origin,
        )
    finally:
        await source.discard()


async def drop(parts: StoreContext, stack: Stack) -> None:
    """Gone from here on, and its folders as soon as nobody reads them."""
    async with stack.changing:
        if stack.dropped:
            return
        stack.dropped = True
        try:
            await parts.manifest.change(partial(without_stack, incarnation=stack.incarnation))
        except DiskFull:
            stack.dropped = False
            raise
        for entry in stack.layer_entries:
            if entry.damage:
                await _put_aside(parts, stack, entry)
            else:
                parts.obsolete.append((stack, stack.folder_of(entry)))
    await remove_obsolete(parts)


async def quarantine(parts: StoreContext, stack: Stack, failure: LayerDamaged) -> None:
    """The replica is refused from here on, also after a restart, until it is dropped and rebuilt: what it can still
    read may be missing the newest version of a row."""
    async with stack.changing:
        if stack.dropped or stack.damage:
            return
        marked = [
            msgspec.structs.replace(one, damage=str(failure)) if stack.folder_of(one) == failure.folder else one
            for one in stack.entry.layers
        ]
        entry = msgspec.structs.replace(stack.entry, bases=tuple(marked[:-1]), live=marked[-1])
        if entry.layers != stack.entry.layers:
            await _commit(parts, stack, entry)


async def checkpoint(parts: StoreContext, stack: Stack, folder: str, *, durable: bool = True) -> ShardManifest:
    """The whole stack as it is, by hard links, in a folder of its own with a manifest: every write answered before the
    call is in it. The manifest comes last, so a folder without one is not a checkpoint. One that need not last is not
    made durable: syncs are most of what it takes."""
    async with stack.changing:
        stack.check()
        await _settle_seal(parts, stack)
        await parts.disk.run(partial(parts.disk.make_folder, layers_folder(folder)))
        entries = []
        for entry in stack.layer_entries:
            async with parts.layers.hold(stack.place_of(entry)) as layer:
                if layer.facts == NO_FACTS:
                    continue
                await layer.checkpoint(layer_folder(folder, stack.incarnation, entry.id), durable=durable)
                entries.append(msgspec.structs.replace(entry, facts=layer.facts, size_bytes=layer.size_bytes()))
        empty = LayerEntry(id=parts.new_layer_id(), range=stack.entry.range)
        whole = msgspec.structs.replace(stack.entry, live=empty, bases=tuple(entries))
    manifest = ShardManifest(tables=(stack.schema,), stacks=(whole,))
    # The layers' names are durable by their own checkpoints; those above them by the syncs around the manifest.
    if durable:
        await parts.disk.sync_folder(parent_folder(folder))
    await save_manifest(parts.disk, folder, manifest, durable=durable)
    return manifest


async def begin_compaction(
    parts: StoreContext, stack: Stack, limits: CompactionLimits, terms: GcContext, *, whole: bool
) -> CompactionJob | None:
    """A fold to be run by whoever has time, on checkpoints of its inputs; None: there is nothing to fold. With `whole`
    it takes all there is, the live layer included. One fold of a stack at a time."""
    async with stack.changing:
        stack.check()
        if stack.folding is not None:
            return None
        if whole:
            await _seal(parts, stack)
        await _settle_seal(parts, stack)
        async with parts.layers.hold(stack.place_of(stack.live)) as live:
            layers = stack.stacked(live)
            inputs = tuple(one.id for one in stack.entry.bases) if whole else choose_inputs(layers, limits)
            held = bool(stack.gc_holds) or stack.compaction_keeps_all
            rule = plan_gc_rule(layers, inputs, stack.schema, terms, held=held)
        if not inputs:
            return None
        output = parts.new_layer_id()
        scratch = f"{scratch_folder(parts.folder)}/{output:016x}"
        parts.disk.make_folder(scratch)
        stack.folding = output
        try:
            linked = [await _link_input(parts, stack, one, scratch) for one in stack.entry.bases if one.id in inputs]
        except BaseException:
            stack.folding = None
            raise
        output_folder = layer_folder(parts.folder, stack.incarnation, output)
        return CompactionJob(
            incarnation=stack.incarnation,
            inputs=tuple(linked),
            output=output,
            output_folder=output_folder,
            range=stack.entry.range,
            rule=rule,
            schema=stack.schema,
            scratch_folder=scratch,
        )


async def _link_input(parts: StoreContext, stack: Stack, entry: LayerEntry, scratch: str) -> CompactionInput:
    folder = f"{scratch}/{entry.id:016x}"
    async with parts.layers.hold(stack.place_of(entry)) as layer:
        await layer.checkpoint(folder, durable=False)  # a start empties the folder it is in
    return CompactionInput(entry.id, folder, entry.range)


async def finish_compaction(
    parts: StoreContext, stack: Stack, job: CompactionJob, result: CompactionResult
) -> SwapOutcome:
    """The built layer takes the place of its inputs, unless the stack has changed under it. `INV-LAYER-GC`."""
    async with stack.changing:
        if stack.dropped or stack.damage:
            await _end_fold(parts, stack, job, unused=True)
            return SwapOutcome.INPUTS_GONE
        await _settle_seal(parts, stack)
        async with parts.layers.hold(stack.place_of(stack.live)) as live:
            end = judge_result(stack.stacked(live), job, result, held=bool(stack.gc_holds))
            stack.compaction_keeps_all = end in (SwapOutcome.OLDER_CELLS, SwapOutcome.HELD)
            if end is SwapOutcome.SWAPPED:
                stack.reject_upto_us = result.dropped_greatest_us
        if end is not SwapOutcome.SWAPPED:
            await _end_fold(parts, stack, job, unused=True)
            return end
        try:
            await _swap(parts, stack, job)
        finally:
            stack.reject_upto_us = NEVER_US
        await _end_fold(parts, stack, job, unused=False)
    await remove_obsolete(parts)
    return end


async def _swap(parts: StoreContext, stack: Stack, job: CompactionJob) -> None:
    built = await parts.engine.open(job.output_folder, writable=False)
    try:
        entry = LayerEntry(id=job.output, range=job.range, facts=built.facts, size_bytes=built.size_bytes())
    finally:
        await built.discard()
    replaced = [one for one in stack.entry.bases if any(one.id == used.id for used in job.inputs)]
    place = stack.entry.bases.index(replaced[0])
    kept = [one for one in stack.entry.bases if one not in replaced]
    bases = (*kept[:place], entry, *kept[place:])
    await _commit(parts, stack, msgspec.structs.replace(stack.entry, bases=bases))
    parts.obsolete += [(stack, stack.folder_of(one)) for one in replaced]


async def abandon_compaction(parts: StoreContext, stack: Stack, job: CompactionJob) -> None:
    async with stack.changing:
        await _end_fold(parts, stack, job, unused=True)


async def _end_fold(parts: StoreContext, stack: Stack, job: CompactionJob, *, unused: bool) -> None:
    """Asked again it does nothing, also where another fold of the stack has begun since."""
    if stack.folding == job.output:
        stack.folding = None
        if unused:
            await parts.engine.drop(job.output_folder)
        await parts.disk.run(partial(parts.disk.remove_folder, job.scratch_folder))


async def remove_obsolete(parts: StoreContext) -> None:
    """Old folders that nobody reads any more. Whatever fails here is swept at the next start."""
    waiting, parts.obsolete = parts.obsolete, []
    for stack, folder in waiting:
        if stack.pins:
            parts.obsolete.append((stack, folder))
            continue
        await parts.layers.close(folder, flush=False)
        await parts.engine.drop(folder)


async def _settle_seal(parts: StoreContext, stack: Stack) -> None:
    if stack.frozen is not None:
        await _finish_seal(parts, stack)


async def _commit(parts: StoreContext, stack: Stack, entry: StackEntry) -> None:
    await parts.manifest.change(partial(with_stack, entry=entry), partial(stack.install, entry))


async def _put_aside(parts: StoreContext, stack: Stack, entry: LayerEntry) -> None:
    folder = stack.folder_of(entry)
    await parts.layers.close(folder, flush=False)
    if parts.disk.exists(folder):
        parts.disk.make_folder(quarantine_folder(parts.folder))
        parts.disk.rename(folder, f"{quarantine_folder(parts.folder)}/{folder.rpartition('/')[2]}")
        await parts.disk.sync_folder(parent_folder(folder))
        await parts.disk.sync_folder(quarantine_folder(parts.folder))
