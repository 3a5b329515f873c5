"""Layers on RocksDB, and the only module that knows the library.

Some traps of the bindings give wrong results silently; this module avoids them (`test_rocks_traps.py` pins each):

- a scan over a damaged block simply ends: every scan here checks the status after its last row;
- the setter of the lower bound overwrites the upper one: it is never called;
- an opened database takes its options from disk and drops the shared cache, unless they are given per column family;
- a database stays locked while any cursor or checkpoint object of it lives: none leaves this module;
- cursors of a snapshot see what was put after it: none is used.

Also: a put that would stall is refused at once (a stall would block the whole process, since the library holds the
interpreter lock), and RocksDB's WAL is off, since the shard has one commit log for all its layers.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import DiskFull, InternalError, Overloaded, Refused, Stale
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.ports.disk import Disk
from ebla.storage.layers.layer import KEY_BYTES_MIN, SCAN_ROWS_MAX, Item, Layer, LayerBuilder, LayerDamaged
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts
from ebla.storage.layers.malloc import MallocTrimmer

T = TypeVar("T")

FACTS_KEY = b"\0"
"""Shorter than a token, so before every row."""
FIRST_KEY = bytes(KEY_BYTES_MIN)
GREATEST_SLACK_US = 10_000_000
"""Facts are written in the batch that widens them, so that rows never become durable without their facts. Almost every
write raises the greatest timestamp; storing it this much too late makes that one batch in many."""
FIRST_ROWS = 16

_LZ4_WINDOW_BITS = -14
"""LZ4 ignores it: the library's default."""
_NOT_OF_A_CHECKPOINT = ("LOCK", "LOG")
_BUILD_SUFFIX = ".build"
_encode_facts = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(LayerFacts).decode


WRITE_BUFFER_BYTES = 4 << 20
"""Of one layer; the library flushes it when it is full."""
WRITE_BUFFERS = 4
"""Full buffers that may wait for a flush before puts are refused."""
ARENA_SHARE = 64
"""Each layer allocates this part of its write buffer with its first put."""
BLOCK_BYTES = 16 << 10
BLOOM_BITS = 10
COMPRESSION_HASTE = 3
"""LZ4's acceleration. At 3 a file takes about a fifth less time to write, and was 1 to 2 % larger with rows of the
benchmarks, 8 % with words that hardly repeat."""
BACKGROUND_JOBS = 2
BUILT_FILE_BYTES = 256 << 20
INFO_LOG_BYTES = 256 << 10


class RocksEngine:
    """The layers of one process: they share a cache and a bound on unflushed memory.

    `info_log_folder` is where the library writes its info log; empty: in each layer's folder. With another folder, a
    layer opened read-only is left unchanged."""

    def __init__(
        self,
        disk: Disk,
        limits: NodeLimits = DEFAULT_LIMITS,
        *,
        info_log_folder: str = "",
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
    ) -> None:
        self.disk = disk
        self._freed = MallocTrimmer()
        self._cache = Cache(limits.shard_cache_bytes_max)
        self._options = _options(self._cache, limits.shard_unflushed_bytes_max, write_buffer_bytes)
        if info_log_folder:
            self._options.set_db_log_dir(info_log_folder)

    async def open(self, folder: str, *, writable: bool) -> "RocksLayer":
        layer = RocksLayer(self, self.disk, folder, writable=writable)
        if self.disk.exists(folder):
            try:
                await self.disk.run(layer.open_files)
            except BaseException:
                # The next open must not find the folder locked by a database that no object owns.
                layer.forget_files()
                raise
        elif not writable:
            raise LayerDamaged(folder, "its folder is missing")
        return layer

    def builder(self, folder: str) -> "RocksBuilder":
        return RocksBuilder(self, self.disk, folder)

    async def drop(self, folder: str) -> None:
        await self.disk.run(partial(self.disk.remove_folder, folder))

    # -- for the layers and builders of this module -----------------------------------------------------------------

    async def closed_one(self) -> None:
        if self._freed.is_due():
            await self.disk.run(self._freed.trim)

    def open_database(self, folder: str, *, writable: bool) -> Rdict:
        access = AccessType.read_write() if writable else AccessType.read_only(False)
        with_options = {"default": self._options}
        return translate_errors(folder, partial(Rdict, folder, self._options, with_options, access))

    def new_file(self, path: str) -> SstFileWriter:
        writer = SstFileWriter(self._options)
        translate_errors(path, partial(writer.open, path))
        return writer


class RocksLayer(Layer):
    def __init__(self, engine: RocksEngine, disk: Disk, folder: str, *, writable: bool) -> None:
        super().__init__(disk, folder, writable=writable)
        self._engine = engine
        self._database: Rdict | None = None
        self._stored = NO_FACTS
        self._name_is_durable = False
        self._scans: WeakSet[_Scan] = WeakSet()
        self._write_options = _write_options()

    @property
    def has_files(self) -> bool:
        return self._database is not None

    async def make_files(self) -> None:
        async with self._slow_work:
            self._check_open()
            if self._database is None:
                await self._disk.run(self._make_files)

    def _make_files(self) -> None:
        """There were no files, so there are no facts to read."""
        self._database = self._engine.open_database(self.folder, writable=True)

    def open_files(self) -> None:
        """Blocks for some milliseconds; on an overloaded machine for a good part of a second."""
        self._database = self._engine.open_database(self.folder, writable=self.writable)
        stored = self.get(FACTS_KEY)
        if stored is not None:
            self.facts = self._stored = _read_facts(self.folder, stored)
        elif next(self.scan(), None) is not None:
            raise LayerDamaged(self.folder, "it holds rows and no facts about them")

    def get(self, key: bytes) -> bytes | None:
        if self._database is None:
            self._check_open()
            return None
        try:
            found: bytes | None = self._database.get(key)
        except Exception as failure:
            raise translated_error(failure, self.folder) from failure
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._database is None:
            self._check_open()
            return [None] * len(keys)
        try:
            found: Any = self._database.get(list(keys))
        except Exception as failure:
            raise translated_error(failure, self.folder) from failure
        return list(found)

    def scan_batches(
        self, start: bytes = b"", end: bytes | None = None, rows_max: int = SCAN_ROWS_MAX
    ) -> Iterator[list[Item]]:
        start = max(start, FIRST_KEY)
        if self._database is None or (end is not None and end <= start):
            self._check_open()
            return iter(())
        scan = _Scan(self, self._database, (start, end), rows_max)
        self._scans.add(scan)
        return scan

    def scan_reverse(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        start = max(start, FIRST_KEY)
        if self._database is None or (end is not None and end <= start):
            self._check_open()
            return iter(())
        scan = _BackScan(self, self._database, (start, end))
        self._scans.add(scan)
        return chain.from_iterable(scan)

    def put_batch(self, items: Sequence[Item], facts: LayerFacts) -> None:
        self._check_puts()
        if self._database is None:
            self.open_files()
        assert self._database is not None
        batch = WriteBatch(raw_mode=True)
        size = 0
        for key, value in items:
            batch[key] = value
            size += len(key) + len(value)
        stored = self._stored
        if not stored.covers(facts):
            stored = _with_slack(self.facts.widened(facts))
            batch[FACTS_KEY] = _encode_facts(stored)
        try:
            self._database.write(batch, self._write_options)
        except Exception as failure:
            raise translated_error(failure, self.folder) from failure
        self._stored = stored
        self.facts = self.facts.widened(facts)
        self._unflushed_bytes += size

    def size_bytes(self) -> int:
        if self._database is None:
            return 0
        return (self._database.property_int_value("rocksdb.live-sst-files-size") or 0) + self._unflushed_bytes

    async def _link_files(self, folder: str) -> None:
        link = self._checkpoint if self.writable else self._link_base
        await self._disk.run(partial(link, folder))

    async def _flush(self) -> None:
        database = self._database
        if database is None or not self._unflushed_bytes:
            return
        begun_bytes = self._unflushed_bytes
        self._store_exact_facts(database)
        await self._disk.run(partial(translate_errors, self.folder, database.flush))
        if not self._name_is_durable:
            await self._disk.sync_folder(parent_folder(self.folder))
            self._name_is_durable = True
        self._unflushed_bytes -= begun_bytes

    def _store_exact_facts(self, database: Rdict) -> None:
        """Without the slack. If the library refuses the write, the stored facts are wider and stay true."""
        batch = WriteBatch(raw_mode=True)
        batch[FACTS_KEY] = _encode_facts(self.facts)
        try:
            translate_errors(self.folder, partial(database.write, batch, self._write_options))
        except Overloaded:
            return
        self._stored = self.facts

    def _checkpoint(self, folder: str) -> None:
        if self._database is None:
            self.open_files()
        assert self._database is not None
        translate_errors(self.folder, partial(Checkpoint(self._database).create_checkpoint, folder))

    def _link_base(self, folder: str) -> None:
        disk = self._disk
        disk.make_folder(folder)
        for name in disk.list_folder(self.folder):
            if not name.startswith(_NOT_OF_A_CHECKPOINT) and not name.endswith(_BUILD_SUFFIX):
                disk.link(f"{self.folder}/{name}", f"{folder}/{name}")

    def forget_files(self) -> None:
        """Closes a layer whose opening failed. Blocks for a moment."""
        self.closed = True
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def _release(self) -> None:
        self.closed = True
        self._accepts_puts = False
        database, self._database = self._database, None
        for scan in tuple(self._scans):
            scan.end()
        if database is not None:
            await self._disk.run(partial(translate_errors, self.folder, database.close))
            del database
            await self._engine.closed_one()


class _Scan:
    """Lists of rows, in order. The library's cursors never leave this object, not even in a traceback, which would keep
    local names alive and with them the lock of the database.

    The first rows come from the cursor that reports its status, which is all that a short scan costs. In a base a
    faster cursor takes over, and the first one checks after its last row. In a layer that is written to, a second
    cursor would see a later state than the first (and a snapshot does not help), so the first one reads everything.
    """

    def __init__(self, layer: RocksLayer, database: Rdict, bounds: tuple[bytes, bytes | None], rows_max: int) -> None:
        self._folder = layer.folder
        self._changes = layer.writable
        self._last, end = bounds
        self._rows_max = rows_max
        self._rows_next = min(FIRST_ROWS, rows_max)
        self._bound = ReadOptions()
        if end is not None:
            self._bound.set_iterate_upper_bound(end)
        self._database: Rdict | None = database
        self._fast: Any = None
        self._cursor: Any = database.iter(self._bound)
        self._cursor.seek(self._last)
        self._ended = False

    def __iter__(self) -> Iterator[list[Item]]:
        return self

    def __next__(self) -> list[Item]:
        if self._ended:
            raise StopIteration
        if self._database is None:
            raise Stale(f"layer {self._folder} was closed during a scan of it")
        try:
            rows = self._slow_rows() if self._fast is None else self._fast_rows()
        except Exception as failure:
            self._finish()
            raise translated_error(failure, self._folder) from failure
        if not rows:
            raise StopIteration
        self._rows_next = min(self._rows_next * 4, self._rows_max)
        return rows

    def end(self) -> None:
        """Called when its layer is closed."""
        self._database = self._cursor = self._fast = None

    def _finish(self) -> None:
        self._ended = True
        self.end()

    def _slow_rows(self) -> list[Item]:
        rows: list[Item] = []
        cursor = self._cursor
        try:
            while len(rows) < self._rows_next and cursor.valid():
                rows.append((cursor.key(), cursor.value()))
                cursor.next()
            cursor.status()
            if not cursor.valid():
                self._finish()
            elif not self._changes:
                assert self._database is not None
                self._fast = self._database.items(from_key=cursor.key(), read_opt=self._bound)
                self._last = rows[-1][0]
        finally:
            del cursor
        return rows

    def _fast_rows(self) -> list[Item]:
        rows: list[Item] = list(islice(self._fast, self._rows_next))
        if rows:
            self._last = rows[-1][0]
        if len(rows) < self._rows_next:
            self._check_end()
            self._finish()
        return rows

    def _check_end(self) -> None:
        """The faster cursor ends silently at what it cannot read: seek past its last row to find out."""
        self._cursor.seek(self._last)
        self._cursor.next()
        self._cursor.status()
        if self._cursor.valid():
            raise LayerDamaged(self._folder, f"a scan ended at key {self._last.hex()}, and more rows follow")


class _BackScan(_Scan):
    """From the last row to the first, with the cursor that reports its status."""

    def __init__(self, layer: RocksLayer, database: Rdict, bounds: tuple[bytes, bytes | None]) -> None:
        super().__init__(layer, database, bounds, SCAN_ROWS_MAX)
        self._start = bounds[0]
        self._cursor.seek_to_last()

    def _slow_rows(self) -> list[Item]:
        rows: list[Item] = []
        cursor, start = self._cursor, self._start
        try:
            while len(rows) < self._rows_next and cursor.valid() and (key := cursor.key()) >= start:
                rows.append((key, cursor.value()))
                cursor.prev()
            cursor.status()
            if len(rows) < self._rows_next:
                self._finish()
        finally:
            del cursor
        return rows


class RocksBuilder(LayerBuilder):
    """Rows go to SST files that the finished database ingests as they are."""

    def __init__(self, engine: RocksEngine, disk: Disk, folder: str) -> None:
        super().__init__(disk, folder)
        self._engine = engine
        self._writer: SstFileWriter | None = None
        self._paths: list[str] = []

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if not keys:
            return
        assert len(keys[0]) >= KEY_BYTES_MIN, "a key begins with a token"
        if self._writer is None:
            self._writer = self._new_file()
        writer = self._writer
        try:
            for key, value in zip(keys, values, strict=True):
                writer[key] = value
        except Exception as failure:
            raise translated_error(failure, self._folder) from failure
        if writer.file_size() >= BUILT_FILE_BYTES:
            self._end_file()

    async def _write(self, facts: LayerFacts) -> None:
        await self._disk.run(partial(self._assemble, facts))

    async def abandon(self) -> None:
        self._writer = None
        await super().abandon()

    def _assemble(self, facts: LayerFacts) -> None:
        self._end_file()
        writer = self._writer = self._new_file()
        writer[FACTS_KEY] = _encode_facts(facts)
        self._end_file()
        database = self._engine.open_database(self._folder, writable=True)
        try:
            taking_over = IngestExternalFileOptions()
            taking_over.set_move_files(True)
            translate_errors(self._folder, partial(database.ingest_external_file, self._paths, taking_over))
        finally:
            database.close()

    def _new_file(self) -> SstFileWriter:
        path = f"{self._folder}/{len(self._paths):06d}{_BUILD_SUFFIX}"
        self._paths.append(path)
        return self._engine.new_file(path)

    def _end_file(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            translate_errors(self._folder, writer.finish)


def _options(cache: Cache, unflushed_bytes_max: int, write_buffer_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_compression_options(_LZ4_WINDOW_BITS, -COMPRESSION_HASTE, 0, 0)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_arena_block_size(write_buffer_bytes // ARENA_SHARE)
    options.set_write_buffer_manager(WriteBufferManager(unflushed_bytes_max, False))
    options.set_max_background_jobs(BACKGROUND_JOBS)
    # By default the library starts sixteen threads to open files; a layer has a few.
    options.set_max_file_opening_threads(1)
    # Hundreds of databases would fill the folder and the disk with their info logs.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 << 10)
    return options


def _write_options() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, whatever the stub says
    options.no_slowdown = True
    return options


def _with_slack(facts: LayerFacts) -> LayerFacts:
    return msgspec.structs.replace(facts, greatest_us=facts.greatest_us + GREATEST_SLACK_US)


def _read_facts(folder: str, data: bytes) -> LayerFacts:
    try:
        return _decode_facts(data)
    except msgspec.DecodeError as failure:
        raise LayerDamaged(folder, f"its facts cannot be read ({failure})") from failure


def translate_errors(folder: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception as failure:
        raise translated_error(failure, folder) from failure


def translated_error(failure: Exception, folder: str) -> Exception:
    """The library raises nothing but `Exception`; only the text says what happened."""
    if isinstance(failure, LayerDamaged):
        return failure
    text = str(failure)
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return DiskFull(f"no space left for layer {folder} ({text})", advice="free space on its file system")
    if "Write stall" in text:
        return Overloaded(f"layer {folder} is still flushing earlier writes", advice="try again in a moment")
    if text.startswith("Corruption") or os.strerror(errno.ENOENT) in text:
        return LayerDamaged(folder, text)
    if "lock hold" in text or "While lock file" in text:
        return Refused(f"layer {folder} is open elsewhere ({text})", advice="stop the node that uses this folder")
    if text.startswith("IO error"):
        return OSError(errno.EIO, text, folder)
    return InternalError(f"layer {folder}: {text}")
