"""A tablet replica in memory: its layers, how reads and writes use them, and what is not yet flushed.

Reads and writes work on an `OpenStack`, without an await: no other code runs between the get and the put of a write, so
the shard is the single writer that a merge needs. `stack_changes.py` changes the stack itself.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from ebla.model.errors import Overloaded, Stale
from ebla.model.rows import EMPTY_HEAD, NEVER_US, PartitionHead
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.storage.codec.key_codec import (
    KeyKind,
    KeySpan,
    clip_span,
    enclosing_partition,
    head_key,
    in_spans,
    key_spans,
    split_key,
)
from ebla.storage.codec.row_codec import decode_head, schema_version
from ebla.storage.layers.layer import Item, Layer, LayerDamaged
from ebla.storage.layers.layer_cache import LayerCache, LayerRef
from ebla.storage.manifest import LayerEntry, LayerId, StackEntry, layer_folder
from ebla.storage.merge.row_merge import (
    facts_of,
    merge_all,
    merge_streams,
    merge_values,
    without_deleted_cells,
    without_deleted_rows,
)


@dataclass(frozen=True, slots=True)
class _Slot:
    """How reads use a layer. `clip` is None where all of the stack's keys may be in it."""

    ref: LayerRef
    clip: tuple[KeySpan, ...] | None
    has_heads: bool | None
    """None: the layer is writable, so its current facts decide."""


class Stack:
    def __init__(self, folder: str, entry: StackEntry, schema: TableSchema, layers: LayerCache) -> None:
        self._folder = folder
        self._layers = layers
        self.schema = schema
        self.entry = entry
        self.incarnation = entry.incarnation
        self.frozen: LayerEntry | None = None
        """The previous live layer while a seal turns it into a base: it is flushed, then the next manifest names it."""
        self.live = entry.live
        self.replay_from = entry.replay_from
        self.dropped = False
        self.compacting: LayerId | None = None
        """The output of the compaction in progress."""
        self.compaction_keeps_all = False
        """The last compaction was discarded because of the tombstones it dropped. Old timestamps may keep coming: the
        next one drops nothing, so that the stack does not grow without bound."""
        self.changing = asyncio.Lock()
        """One change of the stack at a time."""
        self.pins = 0
        """How many openers may hold layers of it; none of its layers is removed meanwhile."""
        self.gc_holds: set[str] = set()
        self.kept: tuple[TokenRange, ...] | None = None
        """What compactions keep: the ranges that the node holds. None: everything."""
        self.reject_upto_us = NEVER_US
        """Set while a compaction that dropped tombstones is swapped in. A write that is not newer than those tombstones
        would be hidden before the swap and visible after it."""
        self.has_unnamed_files = False
        """The live layer of the manifest has durable files, and the manifest does not say so yet."""
        self._dirty_from: int | None = None
        self._held_from: int | None = None
        self._spans = key_spans(entry.range)
        self._slots: tuple[_Slot, ...] = ()
        self.damage = ""
        """The damage of one of its layers; such a stack is neither read nor written."""
        self._update_slots()

    def __repr__(self) -> str:
        return f"<stack {self.incarnation:016x}>"

    @property
    def layer_entries(self) -> tuple[LayerEntry, ...]:
        """Bases, then the frozen layer, then the live one."""
        frozen = () if self.frozen is None else (self.frozen,)
        return (*self.entry.bases, *frozen, self.live)

    # -- opening ---------------------------------------------------------------------------------------------------

    def find_open(self) -> "OpenStack | None":
        """Valid until the next await; None where some layer must be opened first."""
        self.check()
        found: list[Layer] = []
        for slot in self._slots:
            layer = self._layers.find(slot.ref.folder)
            if layer is None:
                return None
            found.append(layer)
        return OpenStack(self, self._slots, found)

    async def open(self) -> "OpenStack":
        """Valid until the next await. Raises `LayerDamaged`, `Overloaded`, `Stale`."""
        while True:
            found = self.find_open()
            if found is not None:
                return found
            self.pins += 1
            try:
                await self._layers.open_all([slot.ref for slot in self._slots])
            finally:
                self.pins -= 1
            # The stack may have other layers by now: look again.

    def find_live(self) -> Layer | None:
        """The live layer if it is open and has its files; valid until the next await."""
        self.check()
        live = self._layers.find(self._slots[0].ref.folder)
        return live if live is not None and live.has_files else None

    async def open_live(self) -> Layer:
        """The live layer, which is all that a write needs; valid until the next await."""
        while True:
            live = self.find_live()
            if live is not None:
                return live
            self.pins += 1
            try:
                async with self._layers.hold(self._slots[0].ref) as opened:
                    await opened.make_files()
            finally:
                self.pins -= 1

    def check(self) -> None:
        if self.dropped:
            raise Stale(f"replica {self.incarnation:016x} was dropped")
        if self.damage:
            damaged = next(self.folder_of(one) for one in self.layer_entries if one.damage)
            raise LayerDamaged(damaged, self.damage)

    def folder_of(self, entry: LayerEntry) -> str:
        return layer_folder(self._folder, self.incarnation, entry.id)

    def layer_ref(self, entry: LayerEntry) -> LayerRef:
        """The frozen layer may still have rows to flush, so it is opened as a writable one."""
        writable = entry.id == self.live.id or (self.frozen is not None and entry.id == self.frozen.id)
        return LayerRef(self.folder_of(entry), writable)

    def entries_with_facts(self, live: Layer) -> tuple[LayerEntry, ...]:
        """The layers as compaction decisions see them: bases, then the live layer with its current facts."""
        assert self.frozen is None
        return (*self.entry.bases, msgspec.structs.replace(self.live, facts=live.facts))

    # -- writing ---------------------------------------------------------------------------------------------------

    def check_items(self, items: Sequence[Item]) -> None:
        """Raises `Stale` or `Overloaded` where the stack must not take these items now."""
        spans, version = self._spans, self.schema.version
        for key, value in items:
            if not in_spans(key, spans):
                raise Stale(f"key {key.hex()} is not in the range of replica {self.incarnation:016x}")
            if schema_version(value) > version:
                raise Stale(f"table {self.schema.full_name} is known here in version {self.schema.version} only")
        if self.reject_upto_us > NEVER_US:
            least_us = facts_of([value for _, value in items], self.schema).least_us
            if least_us <= self.reject_upto_us:
                raise Overloaded("a compaction is being swapped in", advice="try again in a moment")

    def merge_into(self, live: Layer, items: Sequence[Item]) -> None:
        """Get, merge and put in one step. Raises `Overloaded` and `DiskFull` with nothing written."""
        if len(items) == 1:
            key, value = items[0]
            known = live.get(key)
            if known is not None:
                value = merge_values(known, value, self.schema)
            live.put_batch(((key, value),), facts_of((value,), self.schema))
            return
        merged: dict[bytes, bytes] = {}
        for (key, value), stored in zip(items, live.get_many([key for key, _ in items])):
            known = merged.get(key, stored)
            merged[key] = value if known is None else merge_values(known, value, self.schema)
        live.put_batch(list(merged.items()), facts_of(merged.values(), self.schema))

    # -- what is not yet flushed -----------------------------------------------------------------------------------

    @property
    def needed_from(self) -> int | None:
        """The oldest record of the commit log that recovery would need; None: none."""
        known = [one for one in (self._held_from, self._dirty_from) if one is not None]
        return min(known, default=None)

    def note_write(self, sequence: int) -> None:
        if self._dirty_from is None:
            self._dirty_from = sequence

    def begin_flush(self) -> None:
        """What was written before the call is being flushed; later writes are not part of it."""
        self._held_from, self._dirty_from = self.needed_from, None

    def end_flush(self, *, done: bool) -> None:
        if not done:
            self._dirty_from = self.needed_from
        self._held_from = None

    # -- changes: `install` follows the manifest, `begin_seal` precedes it ---------------------------------------------

    def begin_seal(self, fresh: LayerId, next_sequence: int) -> None:
        """From here on writes go to the fresh layer. No manifest names it yet: until one does, recovery opens the old
        one as the live layer, and the log must replay everything that is in either."""
        assert self.frozen is None
        self.frozen = self.live
        self.live = LayerEntry(id=fresh, range=self.entry.range)
        self.replay_from = next_sequence
        self.begin_flush()
        self._update_slots()

    def install(self, entry: StackEntry) -> None:
        """Makes the stack what the manifest now says."""
        assert entry.incarnation == self.incarnation
        if self.frozen is not None and entry.live.id == self.live.id:
            self.frozen = None
            self.end_flush(done=True)
        if entry.live.id != self.entry.live.id or entry.live.has_files:
            self.has_unnamed_files = False
        self.entry = entry
        if self.frozen is None:
            self.live = entry.live
        else:
            self.frozen = entry.live
        self._update_slots()

    def _update_slots(self) -> None:
        slots = []
        for entry in self.layer_entries:
            clip = None
            if entry.hidden or not entry.range.covers(self.entry.range):
                clip = tuple(span for part in entry.visible for span in key_spans(part))
            ref = self.layer_ref(entry)
            slots.append(_Slot(ref, clip, None if ref.writable else entry.facts.has_heads))
        self._slots = tuple(reversed(slots))
        self.damage = next((one.damage for one in self.layer_entries if one.damage), "")

    @property
    def spans(self) -> tuple[KeySpan, ...]:
        return self._spans


class OpenStack:
    """All layers of a stack, open: for use without an await. The live layer comes first."""

    __slots__ = ("_layers", "_slots", "_stack")

    def __init__(self, stack: Stack, slots: tuple[_Slot, ...], layers: list[Layer]) -> None:
        self._stack = stack
        self._slots = slots
        self._layers = layers

    @property
    def live(self) -> Layer:
        return self._layers[0]

    def get(self, key: bytes) -> bytes | None:
        """The merged value of a key: a head, or a row that its partition's head may delete."""
        values: list[bytes] = []
        for slot, layer in zip(self._slots, self._layers):
            if slot.clip is not None and not in_spans(key, slot.clip):
                continue
            value = layer.get(key)
            if value is not None:
                values.append(value)
        if not values:
            return None
        return values[0] if len(values) == 1 else merge_all(values, self._stack.schema)

    def read(self, key: bytes) -> bytes | None:
        """The merged value of a row without what its partition's head deletes, with its tombstones and expired cells;
        None: there is nothing."""
        value = self.get(key)
        if value is None or not self.has_heads:
            return value
        prefix, kind, clustering = split_key(key)
        if kind is KeyKind.PARTITION_HEAD:
            return value
        return without_deleted_cells(value, self.head(prefix), clustering, self._stack.schema)

    def head(self, prefix: bytes) -> PartitionHead:
        value = self.get(head_key(prefix)) if self.has_heads else None
        return EMPTY_HEAD if value is None else decode_head(value)

    @property
    def has_heads(self) -> bool:
        for slot, layer in zip(self._slots, self._layers):
            if layer.facts.has_heads if slot.has_heads is None else slot.has_heads:
                return True
        return False

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        """Merged rows and heads in key order, rows without what heads delete. Consume it before the next await."""
        merged = self.scan_merged((start, end))
        if not self.has_heads:
            return merged
        return without_deleted_rows(merged, self._stack.schema, self._head_before(start))

    def scan_merged(self, span: KeySpan, *, is_reversed: bool = False) -> Iterator[Item]:
        """Merged rows and heads in key order, or from the last to the first, including rows that heads delete."""
        spans = clip_span(span, self._stack.spans)
        streams = [
            _scan_parts(layer, parts, is_reversed=is_reversed)
            for slot, layer in zip(self._slots, self._layers)
            if (parts := _clipped(spans, slot.clip))
        ]
        return merge_streams(streams, self._stack.schema, is_reversed=is_reversed) if streams else iter(())

    def _head_before(self, start: bytes) -> PartitionHead:
        """The head of the partition inside which a scan starts."""
        prefix = enclosing_partition(start)
        return EMPTY_HEAD if prefix is None else self.head(prefix)


def _scan_parts(layer: Layer, parts: list[KeySpan], *, is_reversed: bool) -> Iterator[Item]:
    if is_reversed:
        return chain.from_iterable(layer.scan_reverse(start, end) for start, end in reversed(parts))
    return chain.from_iterable(layer.scan(start, end) for start, end in parts)


def _clipped(spans: list[KeySpan], clip: tuple[KeySpan, ...] | None) -> list[KeySpan]:
    return spans if clip is None else [part for span in spans for part in clip_span(span, clip)]
