"""An in-memory layer engine on the disk port, for the simulator and for fast tests.

Rows live in memory. A flush writes what was put since the last one as one immutable file, atomically, and opening reads
all files; so a crash loses exactly what was not flushed, and a checkpoint is hard links.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from ebla.journal.checked_file import TEMPORARY_SUFFIX, parent_folder, read_checked_file, replace_file
from ebla.model.errors import Corruption, DiskFull, Overloaded, Stale
from ebla.ports.disk import Disk
from ebla.storage.layers.layer import KEY_BYTES_MIN, SCAN_ROWS_MAX, Item, Layer, LayerBuilder, LayerDamaged
from ebla.storage.layers.layer_facts import LayerFacts

_SUFFIX = ".run"
_encode = msgspec.msgpack.Encoder().encode


class _Run(msgspec.Struct, frozen=True, array_like=True):
    """One flush. `facts` are those of the whole layer, this run included."""

    facts: LayerFacts
    items: list[Item]


_decode = msgspec.msgpack.Decoder(_Run).decode


class MemoryEngine:
    """`layer.LayerEngine`. Beyond `unflushed_bytes_max` puts are refused until a flush; RocksDB would stall there. This
    engine never flushes on its own."""

    def __init__(self, disk: Disk, *, unflushed_bytes_max: int = 16 << 20) -> None:
        self.disk = disk
        self.unflushed_bytes_max = unflushed_bytes_max
        self._open: dict[str, MemoryLayer] = {}

    async def open(self, folder: str, *, writable: bool) -> "MemoryLayer":
        assert folder not in self._open, f"{folder} is already open"
        layer = self._open[folder] = MemoryLayer(self, self.disk, folder, writable=writable)
        try:
            if self.disk.exists(folder):
                await layer.read_files()
            elif not writable:
                raise LayerDamaged(folder, "its folder is missing")
        except BaseException:
            self.note_closed(layer)
            raise
        return layer

    def builder(self, folder: str) -> "MemoryBuilder":
        return MemoryBuilder(self.disk, folder)

    async def drop(self, folder: str) -> None:
        assert folder not in self._open, f"{folder} is open"
        self.disk.remove_folder(folder)

    def note_closed(self, layer: "MemoryLayer") -> None:
        self._open.pop(layer.folder, None)


class MemoryLayer(Layer):
    def __init__(self, engine: MemoryEngine, disk: Disk, folder: str, *, writable: bool) -> None:
        super().__init__(disk, folder, writable=writable)
        self._engine = engine
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}
        self._unflushed: dict[bytes, bytes] = {}
        self._runs = 0
        self._flushed_bytes = 0
        self._disk_is_full = False

    @property
    def has_files(self) -> bool:
        """Always: a put goes to memory."""
        return True

    async def make_files(self) -> None:
        """Nothing: a flush makes them."""

    async def read_files(self) -> None:
        names = [name for name in self._disk.list_folder(self.folder) if name.endswith(_SUFFIX)]
        for number, name in enumerate(names):
            if name != _run_name(number):
                raise LayerDamaged(self.folder, f"{_run_name(number)} is missing")
            run, size = await self._read_run(f"{self.folder}/{name}")
            self._apply(run.items)
            self.facts = run.facts
            self._flushed_bytes += size
        if not names and not self.writable:
            raise LayerDamaged(self.folder, "it has no files")
        self._runs = len(names)

    async def _read_run(self, path: str) -> tuple[_Run, int]:
        try:
            data = await read_checked_file(self._disk, path)
            return _decode(data), len(data)
        except (Corruption, msgspec.DecodeError) as failure:
            raise LayerDamaged(self.folder, str(failure)) from failure

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        return [self._values.get(key) for key in keys]

    def scan_batches(
        self, start: bytes = b"", end: bytes | None = None, rows_max: int = SCAN_ROWS_MAX
    ) -> Iterator[list[Item]]:
        return self._in_batches(self._rows(start, end), rows_max)

    def scan_reverse(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        rows = self._rows(start, end)
        rows.reverse()
        return chain.from_iterable(self._in_batches(rows, SCAN_ROWS_MAX))

    def _rows(self, start: bytes, end: bytes | None) -> list[Item]:
        self._check_open()
        first = bisect_left(self._keys, start)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        return [(key, self._values[key]) for key in self._keys[first:last]]

    def _in_batches(self, rows: list[Item], rows_max: int) -> Iterator[list[Item]]:
        for position in range(0, len(rows), rows_max):
            if self.closed:
                raise Stale(f"layer {self.folder} was closed during a scan of it")
            yield rows[position : position + rows_max]

    def put_batch(self, items: Sequence[Item], facts: LayerFacts) -> None:
        self._check_puts()
        if self._disk_is_full:
            raise DiskFull(f"no space left for layer {self.folder}", advice="free space on its file system")
        if self._unflushed_bytes >= self._engine.unflushed_bytes_max:
            raise Overloaded(f"layer {self.folder} is not flushed", advice="try again in a moment")
        assert all(len(key) >= KEY_BYTES_MIN for key, _ in items), "a key begins with a token"
        if not self._runs and not self._unflushed:
            self._disk.make_folder(self.folder)
        self._apply(items)
        self._unflushed.update(items)
        self._unflushed_bytes += sum(len(key) + len(value) for key, value in items)
        self.facts = self.facts.widened(facts)

    def size_bytes(self) -> int:
        return self._flushed_bytes + self._unflushed_bytes

    async def _link_files(self, folder: str) -> None:
        if not self._runs:
            await self._write_run({})
        disk = self._disk
        assert not disk.exists(folder), f"{folder} is already there"
        disk.make_folder(folder)
        for name in disk.list_folder(self.folder):
            if not name.endswith(TEMPORARY_SUFFIX):
                disk.link(f"{self.folder}/{name}", f"{folder}/{name}")

    def _apply(self, items: Iterable[Item]) -> None:
        for key, value in items:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value

    async def _flush(self) -> None:
        if not self._unflushed:
            return
        taken, self._unflushed = self._unflushed, {}
        taken_bytes = self._unflushed_bytes
        try:
            await self._write_run(taken)
        except BaseException as failure:
            self._unflushed = {**taken, **self._unflushed}
            self._disk_is_full = isinstance(failure, DiskFull)
            raise
        self._unflushed_bytes -= taken_bytes
        self._disk_is_full = False

    async def _write_run(self, rows: dict[bytes, bytes]) -> None:
        """The facts may already cover puts made after `rows` were taken: wider is allowed."""
        disk = self._disk
        disk.make_folder(self.folder)
        data = _encode(_Run(self.facts, sorted(rows.items())))
        await replace_file(disk, f"{self.folder}/{_run_name(self._runs)}", data)
        await disk.sync_folder(parent_folder(self.folder))
        self._runs += 1
        self._flushed_bytes += len(data)

    async def _release(self) -> None:
        self.closed = True
        self._accepts_puts = False
        self._engine.note_closed(self)


class MemoryBuilder(LayerBuilder):
    def __init__(self, disk: Disk, folder: str) -> None:
        super().__init__(disk, folder)
        self._items: list[Item] = []

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for item in zip(keys, values, strict=True):
            assert len(item[0]) >= KEY_BYTES_MIN, "a key begins with a token"
            assert not self._items or self._items[-1][0] < item[0], "keys of a layer being built must ascend"
            self._items.append(item)

    async def _write(self, facts: LayerFacts) -> None:
        await replace_file(self._disk, f"{self._folder}/{_run_name(0)}", _encode(_Run(facts, self._items)))


def _run_name(number: int) -> str:
    return f"{number:08d}{_SUFFIX}"
