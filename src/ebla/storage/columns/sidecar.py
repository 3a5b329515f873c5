"""The sidecar of a base: an Arrow file with the same rows by column, for scans.

    columns.arrow    an Arrow IPC file (any Arrow reader opens it), its batches in key order
    columns.index    for each batch its offset, checksum, first and last key

Arrow files have no checksums, so the index does: a damaged byte must not become a wrong value.
"""

import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.model.errors import Corruption, Refused
from ebla.model.schema import TableSchema
from ebla.ports.disk import Disk, File
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.key_codec import KeySpan
from ebla.storage.columns.chunks import KEY, ChunkShape, concat_chunks, field_name, whole_shape, with_completeness
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.merge.chunk_merge import rows_before

BLOCK_ROWS = 16 * 1024
"""About how many a block has: up to half as many more, or a quarter fewer, to avoid copying rows for even blocks."""
BLOCK_BYTES = 32 << 20
COMPRESSION_HASTE = 3
"""LZ4's acceleration: see `rocks_engine.py`."""
SIDECAR_FORMAT = 1
_MAGIC = b"ARROW1\0\0"
COLUMNS_NAME, _INDEX = "columns.arrow", "columns.index"


class SidecarBlock(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One record batch of the file."""

    offset: int
    size_bytes: int
    checksum: int
    rows: int
    first_key: bytes
    last_key: bytes


class SidecarIndex(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int
    schema_version: int
    numbers: tuple[int, ...]
    """The columns it has."""
    arrow_schema: bytes
    blocks: tuple[SidecarBlock, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SidecarIndex).decode


class _BlockSink(io.RawIOBase):
    """Buffers what Arrow writes until a block is complete: Arrow makes many small writes, a file wants few. The pieces
    are Arrow's own buffers and are not copied before that."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._pieces: list[Any] = []
        self._end = 0
        self.offset = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(data)
        self._end += len(data)
        return len(data)

    def tell(self) -> int:
        return self._end

    def end_block(self, head: bytes) -> tuple[int, int, int]:
        """The offset, size and checksum of what was written since the last block. The file begins with a header, which
        Arrow writes together with the first block."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._file.write(self.offset, data)
        began, self.offset = self.offset, self._end
        block = memoryview(data)
        if began == 0:
            assert data.startswith(head), "an Arrow file begins with its schema"
            block = block[len(head) :]
            began = len(head)
        return began, len(block), crc32(block, 0)


class SidecarWriter:
    """Writes chunks of the whole shape in key order. Durable after `finish`, except for the folder's own entry."""

    def __init__(self, disk: Disk, folder: str, schema: TableSchema) -> None:
        self._disk = disk
        self._folder = folder
        self._shape = whole_shape(schema)
        self._file = disk.create(f"{folder}/{COLUMNS_NAME}")
        self._sink = _BlockSink(self._file)
        # A block is small: passing its columns to other threads costs more than compressing them.
        codec = pa.Codec("lz4", compression_level=-COMPRESSION_HASTE)
        options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), self._shape.arrow_schema, options=options)
        self._head = _MAGIC + self._shape.arrow_schema.serialize().to_pybytes()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._blocks: list[SidecarBlock] = []
        self._closed = False

    def add(self, chunk: pa.RecordBatch) -> None:
        self._waiting.append(chunk)
        self._waiting_rows += len(chunk)
        self._waiting_bytes += chunk.nbytes
        if 4 * self._waiting_rows >= 3 * BLOCK_ROWS or self._waiting_bytes >= BLOCK_BYTES:
            self._write_waiting()

    async def finish(self) -> None:
        try:
            self._write_waiting()
            self._writer.close()
            self._sink.end_block(self._head)
            await self._file.sync()
        finally:
            self.close()
        index = SidecarIndex(
            format=SIDECAR_FORMAT,
            schema_version=self._shape.schema.version,
            numbers=self._shape.numbers,
            arrow_schema=self._shape.arrow_schema.serialize().to_pybytes(),
            blocks=tuple(self._blocks),
        )
        await replace_file(self._disk, f"{self._folder}/{_INDEX}", _encode(index))

    def close(self) -> None:
        """Closes the file; for a sidecar that was not finished."""
        if not self._closed:
            self._closed = True
            self._file.close()

    def _write_waiting(self) -> None:
        if not self._waiting_rows:
            return
        whole = concat_chunks(self._waiting)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0
        rows = -(-len(whole) // max(1, round(len(whole) / BLOCK_ROWS)))
        for start in range(0, len(whole), rows):
            self._write(whole.slice(start, rows))

    def _write(self, chunk: pa.RecordBatch) -> None:
        self._writer.write_batch(chunk)
        keys = chunk.column(KEY)
        offset, size_bytes, checksum = self._sink.end_block(self._head)
        self._blocks.append(
            SidecarBlock(
                offset=offset,
                size_bytes=size_bytes,
                checksum=checksum,
                rows=len(chunk),
                first_key=keys[0].as_py(),
                last_key=keys[-1].as_py(),
            )
        )


@dataclass(frozen=True, slots=True)
class Sidecar:
    """An open sidecar."""

    folder: str
    file: File
    index: SidecarIndex

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.index.blocks)

    def close(self) -> None:
        self.file.close()

    def chunks(self, shape: ChunkShape, spans: Sequence[KeySpan]) -> Iterator[pa.RecordBatch]:
        """Its rows within the spans, in key order. Reads only the columns of the shape."""
        reading = shape
        if self.index.schema_version != shape.schema.version:
            reading = whole_shape(shape.schema)
        for block, first, last in self._chosen(spans):
            chunk = self._read(block, reading)
            if reading is not shape:
                chunk = with_completeness(reading, chunk).select(shape.arrow_schema.names)
            yield _between(chunk, first, last)

    def _chosen(self, spans: Sequence[KeySpan]) -> Iterator[tuple[SidecarBlock, bytes, bytes | None]]:
        for start, end in spans:
            blocks = self.index.blocks
            first = bisect_left(blocks, start, key=lambda block: block.last_key)
            for block in islice(blocks, first, None):
                if end is not None and block.first_key >= end:
                    break
                inside = block.first_key >= start
                whole = end is None or block.last_key < end
                yield block, b"" if inside else start, None if whole else end

    def _read(self, block: SidecarBlock, shape: ChunkShape) -> pa.RecordBatch:
        data = self.file.read(block.offset, block.size_bytes)
        if len(data) != block.size_bytes or crc32(data, 0) != block.checksum:
            raise LayerDamaged(self.folder, f"its columns cannot be read at byte {block.offset}")
        wanted = shape.arrow_schema
        stored = [f"{name}" for name in wanted.names[:4]] + [field_name(number) for number in self.index.numbers]
        fields = [place for place, name in enumerate(stored) if name in wanted.names]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        with pa.ipc.open_stream(pa.py_buffer(self.index.arrow_schema + data), options=options) as stream:
            batch = stream.read_next_batch()
        names = batch.schema.names
        columns = [batch.column(one.name) if one.name in names else pa.nulls(len(batch), one.type) for one in wanted]
        return pa.RecordBatch.from_arrays(columns, schema=wanted)


async def open_sidecar(disk: Disk, folder: str) -> Sidecar | None:
    """None where the base has none. Raises `LayerDamaged`, and `Refused` for a newer format."""
    if not disk.exists(f"{folder}/{_INDEX}"):
        return None
    try:
        index = _decode(await read_checked_file(disk, f"{folder}/{_INDEX}"))
        file = disk.open(f"{folder}/{COLUMNS_NAME}")
    except (Corruption, msgspec.DecodeError, FileNotFoundError) as failure:
        raise LayerDamaged(folder, f"its columns cannot be opened ({failure})") from failure
    if index.format > SIDECAR_FORMAT:
        file.close()
        raise Refused(
            f"the columns of layer {folder} have format {index.format}, this release reads {SIDECAR_FORMAT}",
            advice="start the node with the release that wrote it, or a newer one",
        )
    return Sidecar(folder, file, index)


def _between(chunk: pa.RecordBatch, first: bytes, last: bytes | None) -> pa.RecordBatch:
    keys = chunk.column(KEY)
    start = rows_before(keys, first) if first else 0
    end = len(chunk) if last is None else rows_before(keys, last)
    return chunk if end - start == len(chunk) else chunk.slice(start, end - start)
