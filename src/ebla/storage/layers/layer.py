"""The contract of a layer: one sorted store of keys and values, of which a tablet replica is a small stack.

Get, scan and put are synchronous: they touch memory and the page cache. Opening, flushing, checkpoints and closing are
asynchronous. The engine keeps no log: what was put and not flushed is gone after a crash (or still there, if the engine
wrote it out early), and the shard's commit log replays it.

Errors, of every operation: `LayerDamaged` where stored bytes are not what was written, `DiskFull`, `Overloaded` where
a put would have to wait, `Stale` on a closed layer, `OSError` for other failures of the device.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Protocol

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import Corruption, Stale
from ebla.ports.disk import Disk
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts

KEY_BYTES_MIN = 8
"""Every key begins with a token; an engine may use shorter keys for its own records."""
SCAN_ROWS_MAX = 1024
BUILD_ROWS = 4096

Item = tuple[bytes, bytes]
"""A key and its value."""


class LayerDamaged(Corruption):
    """Part of a layer cannot be read. `folder` says which layer to quarantine."""

    def __init__(self, folder: str, what: str) -> None:
        super().__init__(
            f"layer {folder} is damaged: {what}",
            advice="check the device and keep a copy of the folder (`ebla store verify` shows how much of it can be "
            "read), then rebuild this replica from the others",
        )
        self.folder = folder
        self.what = what


class Layer(ABC):
    """An open layer. Code that uses one across an await holds it (`layer_cache.py`), so that it is not closed."""

    def __init__(self, disk: Disk, folder: str, *, writable: bool) -> None:
        self._disk = disk
        self.folder = folder
        self.writable = writable
        self.closed = False
        self.facts = NO_FACTS
        """They cover everything in it, flushed or not. After a crash they are never narrower than what is still there;
        the greatest timestamp may then be some seconds too late, and the count of rows too low."""
        self._unflushed_bytes = 0
        self._accepts_puts = writable
        self._slow_work = asyncio.Lock()
        """Held by whatever awaits: one flush, checkpoint or close at a time."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One answer for each key, in their order."""

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        """From `start` up to, not including, `end`, in order, as the layer was at the call. It never ends early:
        unreadable data raises `LayerDamaged`. Closing the layer ends it with `Stale`."""
        return chain.from_iterable(self.scan_batches(start, end))

    @abstractmethod
    def scan_batches(
        self, start: bytes = b"", end: bytes | None = None, rows_max: int = SCAN_ROWS_MAX
    ) -> Iterator[list[Item]]:
        """The same in lists of at most `rows_max`, none empty: the cheapest way through many rows. The first lists are
        shorter, so that a caller that needs few rows pays for few."""

    @abstractmethod
    def scan_reverse(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        """As `scan`, from the last key below `end` down to `start`."""

    @abstractmethod
    def put_batch(self, items: Sequence[Item], facts: LayerFacts) -> None:
        """All or none of them; the later of two items with one key wins. `facts` are those of these items.

        `Overloaded` and `DiskFull` leave the layer as it was. Only on a writable layer."""

    @property
    @abstractmethod
    def has_files(self) -> bool:
        """Whether its files exist: without them a put creates them first, which is slow."""

    @abstractmethod
    async def make_files(self) -> None:
        """Creates the files off the loop, so that a put need not."""

    @abstractmethod
    def size_bytes(self) -> int:
        """The size of its files, plus about what is not yet flushed."""

    async def flush(self) -> None:
        """What was put before the call is durable on return, with its facts and the folder's name. A failure leaves
        everything readable; what was put is still not flushed."""
        async with self._slow_work:
            self._check_open()
            await self._flush()

    async def checkpoint(self, folder: str, *, durable: bool = True) -> None:
        """A new layer at `folder` (which must not exist, on the same file system) with all that was put before the
        call, by hard links. Durable on return, with its name, if requested; a checkpoint that is read for a while need
        not survive a crash. Other files in the folder of a read-only layer (a sidecar) are linked too."""
        async with self._slow_work:
            self._check_open()
            await self._flush()
            await self._link_files(folder)
            if durable:
                await self._disk.sync_folder(folder)
                await self._disk.sync_folder(parent_folder(folder))

    async def close(self) -> None:
        """Flushes and releases every file. If the flush fails, the layer stays open. Closing twice is no error."""
        async with self._slow_work:
            if self.closed:
                return
            self._accepts_puts = False
            try:
                await self._flush()
            except BaseException:
                self._accepts_puts = self.writable
                raise
            await self._release()

    async def discard(self) -> None:
        """Closes without a flush: for a layer that is dropped, quarantined, or replayed from the commit log."""
        async with self._slow_work:
            if not self.closed:
                await self._release()

    # -- for engines -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _flush(self) -> None: ...

    @abstractmethod
    async def _link_files(self, folder: str) -> None:
        """Of a layer that is flushed."""

    @abstractmethod
    async def _release(self) -> None:
        """Lets go of every file; the layer is closed on return."""

    def _check_open(self) -> None:
        if self.closed:
            raise Stale(f"layer {self.folder} is closed")

    def _check_puts(self) -> None:
        assert self.writable, f"{self.folder} is a base, which is never written to"
        if not self._accepts_puts:
            raise Stale(f"layer {self.folder} is closed")


class LayerBuilder(ABC):
    """Builds a layer from rows in key order. The layer exists once `finish` has returned."""

    def __init__(self, disk: Disk, folder: str) -> None:
        assert not disk.exists(folder), f"{folder} is already there"
        self._disk = disk
        self._folder = folder
        self._finished = False
        disk.make_folder(folder)

    @abstractmethod
    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Keys strictly ascending, over all calls."""

    async def finish(self, facts: LayerFacts) -> None:
        """Durable on return, with the folder's name, and closed. A layer without any row is allowed."""
        await self._write(facts)
        await self._disk.sync_folder(self._folder)
        await self._disk.sync_folder(parent_folder(self._folder))
        self._finished = True

    @abstractmethod
    async def _write(self, facts: LayerFacts) -> None: ...

    async def abandon(self) -> None:
        """Removes what was written so far. After `finish` it does nothing, so a `finally` may call it."""
        if not self._finished:
            self._finished = True
            await self._disk.run(partial(self._disk.remove_folder, self._folder))


class LayerEngine(Protocol):
    """Opens, builds and removes layers. A folder is open at most once in a process."""

    async def open(self, folder: str, *, writable: bool) -> Layer:
        """Writable: a missing folder is a new layer, or one that was never flushed. The folder (whose parent must
        exist) appears with the first put: many layers of a table with many tablets never get one. Read-only: a missing
        folder is `LayerDamaged`."""
        ...

    def builder(self, folder: str) -> LayerBuilder:
        """For a new read-only layer. The folder must not exist, and its parent must."""
        ...

    async def drop(self, folder: str) -> None:
        """Removes the folder of a layer that is not open; a missing one is no error. Not durable: the next start sweeps
        what no manifest names."""
        ...


async def build_layer(engine: LayerEngine, folder: str, items: Iterable[Item], facts: LayerFacts) -> None:
    """A finished read-only layer from sorted items."""
    builder = engine.builder(folder)
    try:
        rows = iter(items)
        while chunk := list(islice(rows, BUILD_ROWS)):
            keys, values = zip(*chunk)
            builder.add(keys, values)
        await builder.finish(facts)
    finally:
        await builder.abandon()
