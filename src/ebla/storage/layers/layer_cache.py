"""A bounded LRU cache of open layers: each is open at most once, and no more of them than the process has files for.

A layer is opened when it is first needed and stays open until the bound evicts the least recently used one. Code that
does not await between finding a layer and its last use needs only `find`; all other code holds the layer.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from ebla.model.errors import EblaError, Overloaded
from ebla.storage.layers.layer import Layer, LayerEngine


@dataclass(frozen=True, slots=True)
class LayerRef:
    folder: str
    writable: bool


@dataclass(slots=True, eq=False)
class _Entry:
    """`layer` is None while it is being opened or closed; the task that does so is a holder and has `busy`."""

    layer: Layer | None = None
    holders: int = 0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class LayerHold:
    """A class, not a generator: a generator abandoned while it opens a layer would resume at some later time."""

    def __init__(self, layers: "LayerCache", ref: LayerRef) -> None:
        self._layers = layers
        self._ref = ref

    async def __aenter__(self) -> Layer:
        return await self._layers.enter(self._ref)

    async def __aexit__(self, *_: object) -> None:
        self._layers.leave(self._ref)


class LayerCache:
    """The bound counts layers that are open, being opened or being closed. Held ones are never closed for it."""

    def __init__(self, engine: LayerEngine, *, open_max: int) -> None:
        assert open_max >= 1
        self._engine = engine
        self._open_max = open_max
        self._open_count = 0
        self._entries: dict[str, _Entry] = {}
        """Least recently used first."""
        self._making_room = asyncio.Lock()

    def __len__(self) -> int:
        return self._open_count

    def find(self, folder: str) -> Layer | None:
        """The layer if it is open. Valid until the next await."""
        entry = self._entries.get(folder)
        if entry is None or entry.layer is None:
            return None
        del self._entries[folder]
        self._entries[folder] = entry
        return entry.layer

    async def open_all(self, refs: Sequence[LayerRef]) -> list[Layer]:
        """All of them open, valid until the next await. `Overloaded` where the bound does not allow it."""
        async with AsyncExitStack() as held:
            return [await held.enter_async_context(self.hold(ref)) for ref in refs]

    def hold(self, ref: LayerRef) -> "LayerHold":
        """For `async with`: the layer is opened if needed, and stays open until the block ends."""
        return LayerHold(self, ref)

    async def enter(self, ref: LayerRef) -> Layer:
        """The beginning of `hold`; `leave` is its end."""
        entry = self._entries.setdefault(ref.folder, _Entry())
        entry.holders += 1
        try:
            layer = self.find(ref.folder) or await self._open(ref, entry)
            assert layer.writable or not ref.writable, f"{ref.folder} is open as a base"
        except BaseException:
            self._leave(ref.folder, entry)
            raise
        return layer

    def leave(self, ref: LayerRef) -> None:
        self._leave(ref.folder, self._entries[ref.folder])

    async def close(self, folder: str, *, flush: bool = True) -> None:
        """Closes it if it is open; it must not be held. Without a flush, unflushed rows are lost: for a layer that is
        removed. A flush that fails leaves it open."""
        entry = self._entries.get(folder)
        if entry is None:
            return
        assert entry.holders == 0, f"{folder} is still held"
        await self._close(folder, entry, flush=flush)

    async def close_all(self, *, flush: bool = True) -> None:
        """One after the other; stops at the first failure."""
        for folder in tuple(self._entries):
            await self.close(folder, flush=flush)

    async def _open(self, ref: LayerRef, entry: _Entry) -> Layer:
        async with entry.busy:
            if entry.layer is None:
                await self._take_room()
                try:
                    entry.layer = await self._engine.open(ref.folder, writable=ref.writable)
                except BaseException:
                    self._open_count -= 1
                    raise
            return entry.layer

    async def _take_room(self) -> None:
        """One at a time, or two callers would count on closing the same layer."""
        async with self._making_room:
            while self._open_count >= self._open_max:
                await self._close_idlest()
            self._open_count += 1

    async def _close_idlest(self) -> None:
        """Skips layers that cannot be closed (a flush finds the disk full): they must not block reads of others."""
        failure: Exception | None = None
        for folder, entry in tuple(self._entries.items()):
            if entry.holders or entry.layer is None:
                continue
            try:
                await self._close(folder, entry, flush=True)
            except (EblaError, OSError) as problem:
                failure = problem
            else:
                return
        raise Overloaded(
            f"all {self._open_max} layers that may be open are in use",
            advice="raise the limit of open files, or have fewer tablets per shard",
        ) from failure

    async def _close(self, folder: str, entry: _Entry, *, flush: bool) -> None:
        """`find` misses it from here on. A caller that needs it meanwhile waits for `busy` and opens it again."""
        entry.holders += 1
        try:
            async with entry.busy:
                layer, entry.layer = entry.layer, None
                assert layer is not None
                try:
                    await (layer.close() if flush else layer.discard())
                finally:
                    if layer.closed:
                        self._open_count -= 1
                    else:
                        entry.layer = layer
        finally:
            self._leave(folder, entry)

    def _leave(self, folder: str, entry: _Entry) -> None:
        entry.holders -= 1
        if not entry.holders and entry.layer is None:
            del self._entries[folder]
