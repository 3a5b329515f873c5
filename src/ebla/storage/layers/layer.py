"""The contract of a layer: one sorted store of keys and values, of which a tablet replica is a small stack.

Get, scan and put are synchronous: they touch memory and the page cache. Opening, flushing, checkpoints and closing are
asynchronous. The engine keeps no log of its own: what was put and not flushed is gone after a crash (or, if the engine
chose to write it out early, is still there), and the shard's commit log brings it back.

Errors, of every operation: `LayerDamaged` where stored bytes are not what was written, `DiskFull`, `Overloaded` where
a put would have to wait, `Stale` on a closed layer, `OSError` for other failures of the device.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from ebla.model.errors import Corruption
from ebla.storage.layers.layer_facts import LayerFacts

KEY_BYTES_MIN = 8
"""Every key begins with a token; an engine may keep things of its own under shorter ones."""
SCAN_ROWS_MAX = 1024
BUILD_ROWS = 4096

Item = tuple[bytes, bytes]
"""A key and its value."""


class LayerDamaged(Corruption):
    """Part of a layer cannot be read. `folder` says which, for whoever sets it aside."""

    def __init__(self, folder: str, what: str) -> None:
        super().__init__(
            f"layer {folder} is damaged: {what}",
            advice="check the device and keep a copy of the folder (`ebla store verify` tells how much of it can be "
            "read), then rebuild this replica from the others",
        )
        self.folder = folder


class Layer(Protocol):
    """An open layer. Whoever uses one across an await holds it (`open_layers.py`), so that it is not closed there."""

    @property
    def folder(self) -> str: ...

    @property
    def writable(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def facts(self) -> LayerFacts:
        """Of everything in it, flushed or not. After a crash never narrower than what is still there; the greatest
        timestamp may then be some seconds too late, and the count of rows too low."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One answer for each key, in their order."""
        ...

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        """From `start` up to and without `end`, in order, as the layer was when this was called. It ends only at the
        end: what cannot be read raises `LayerDamaged`. Closing the layer ends it with `Stale`."""
        ...

    def scan_batches(
        self, start: bytes = b"", end: bytes | None = None, rows_max: int = SCAN_ROWS_MAX
    ) -> Iterator[list[Item]]:
        """The same in lists of at most `rows_max`, none empty: the cheapest way through many rows. The first lists are
        shorter, so that whoever needs few rows pays for few."""
        ...

    def scan_reverse(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        """As `scan`, from the last key below `end` down to `start`."""
        ...

    def put_batch(self, items: Sequence[Item], facts: LayerFacts) -> None:
        """All or none of them; of a key that is there twice the later one counts. `facts` tells of these items.

        `Overloaded` and `DiskFull` leave the layer as it was. Only on a writable layer."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether a put finds them: without, it opens them itself and takes as long as that takes."""
        ...

    async def make_files(self) -> None:
        """Opens them off the loop where a put would have to."""
        ...

    def size_bytes(self) -> int:
        """What its files take, and about what is not yet flushed."""
        ...

    async def flush(self) -> None:
        """What was put before the call is durable on return, with its facts and the folder's name. A failure leaves
        everything readable; what was put is still not flushed."""
        ...

    async def checkpoint(self, folder: str, *, durable: bool = True) -> None:
        """A layer of its own at `folder` (which must not exist, on the same file system) with all that was put before
        the call, by hard links. Durable on return, with its name, unless it need not last: nobody asks after a crash
        for one that is read for a while. What else stands in the folder of a read-only layer (a sidecar) is linked
        too."""
        ...

    async def close(self) -> None:
        """Flushes and lets go of every file. Where the flush fails the layer stays open. Closing twice is no error."""
        ...

    async def discard(self) -> None:
        """Closes without a flush: for a layer that is dropped, set aside, or brought back from the commit log."""
        ...


class LayerBuilder(Protocol):
    """A layer being made from rows that come in order. Nothing is there before `finish` returned."""

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Keys strictly ascending, over all calls."""
        ...

    async def finish(self, facts: LayerFacts) -> None:
        """Durable on return, with the folder's name, and closed. A layer without any row is allowed."""
        ...

    async def abandon(self) -> None:
        """Removes what was written so far. After `finish` it does nothing, so a `finally` may call it."""
        ...


class LayerEngine(Protocol):
    """Makes, opens and removes layers. A folder is open at most once in a process."""

    async def create(self, folder: str) -> Layer:
        """A new writable layer. The folder (whose parent must exist) appears with the first put: most layers of a
        wide table on a small cluster never get one."""
        ...

    async def open(self, folder: str, *, writable: bool) -> Layer:
        """Writable: a missing folder is an empty layer, for it was never flushed. Read-only: it is `LayerDamaged`."""
        ...

    def builder(self, folder: str) -> LayerBuilder:
        """For a new read-only layer. The folder must not exist, and its parent must."""
        ...

    async def drop(self, folder: str) -> None:
        """Removes the folder of a layer that is not open; a missing one is no error. Not durable: whoever dropped it
        from a manifest sweeps again at the next start."""
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
