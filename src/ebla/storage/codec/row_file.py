"""A file of stored rows in records that can be appended one by one: the format of staged rows and of merged runs.

A record is a header (length, number of rows, checksum of both and of the body) and an Arrow IPC message: one batch with
the columns `key` and `value`, without the schema, which is always the same. Records and the rows in them are in key
order. A file may be cut between two records; a file that ends within a record is incomplete.
"""

import struct
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ebla.model.errors import Corruption, TooLarge
from ebla.ports.disk import Disk, File
from ebla.storage.codec.checksums import crc32
from ebla.storage.layers.layer import Item

RECORD_BYTES_MAX = 16 << 20
"""Of one record with its header. Bounds what is read at once."""

ROWS_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])

_HEADER = struct.Struct("<III")  # length of the body, rows, checksum of the two before it and of the body
_CHECKED = struct.Struct("<II")
RECORD_HEADER_BYTES = _HEADER.size

Record = tuple[bytes, memoryview]
"""Its header and its body."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    body_bytes: int
    rows: int
    checksum: int

    @property
    def record_bytes(self) -> int:
        return _HEADER.size + self.body_bytes


def rows_batch(items: Sequence[Item]) -> pa.RecordBatch:
    keys = pa.array([key for key, _ in items], pa.binary())
    values = pa.array([value for _, value in items], pa.binary())
    return pa.RecordBatch.from_arrays([keys, values], schema=ROWS_SCHEMA)


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """Raises `TooLarge`: then split the batch."""
    return b"".join(_encoded(batch))


def _encoded(batch: pa.RecordBatch) -> Record:
    assert batch.num_rows
    assert batch.num_columns == len(ROWS_SCHEMA)
    keys, values = batch.columns
    assert keys.null_count == 0
    assert values.null_count == 0
    same = pa.RecordBatch.from_arrays([keys.cast(pa.binary()), values.cast(pa.binary())], schema=ROWS_SCHEMA)
    body = memoryview(same.serialize())
    if _HEADER.size + len(body) > RECORD_BYTES_MAX:
        raise TooLarge(f"a record of {len(body)} bytes of rows is over the limit of {RECORD_BYTES_MAX}")
    return _HEADER.pack(len(body), same.num_rows, _checksum(len(body), same.num_rows, body)), body


def records_of(batches: Iterable[pa.RecordBatch], record_bytes: int) -> Iterator[bytes]:
    """Rows as records of about this size; a single row may be larger."""
    return (b"".join(record) for record in record_parts_of(batches, record_bytes))


def record_parts_of(batches: Iterable[pa.RecordBatch], record_bytes: int) -> Iterator[Record]:
    """The same without a copy, for callers that write header and body one after the other."""
    for batch in batches:
        count = max(1, -(-batch.nbytes // record_bytes))
        rows = max(1, -(-len(batch) // count))
        for start in range(0, len(batch), rows):
            yield from _records(batch.slice(start, rows))


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Halves the batch until it fits: a slice may contain the one large row of its batch."""
    if len(batch) > 1 and batch.nbytes > RECORD_BYTES_MAX // 2:
        middle = len(batch) // 2
        yield from _records(batch.slice(0, middle))
        yield from _records(batch.slice(middle))
    else:
        yield _encoded(batch)


def read_header(data: bytes, path: str = "") -> RecordHeader:
    """Of the first `RECORD_HEADER_BYTES`. Raises `Corruption`."""
    if len(data) < _HEADER.size:
        raise _damaged(path, "it ends within a record")
    head = RecordHeader(*_HEADER.unpack_from(data))
    if not 0 < head.record_bytes <= RECORD_BYTES_MAX or not head.rows:
        raise _damaged(path, "a record has an impossible length")
    return head


def decode_body(head: RecordHeader, body: bytes, path: str = "") -> pa.RecordBatch:
    """Raises `Corruption`."""
    if len(body) != head.body_bytes:
        raise _damaged(path, "it ends within a record")
    if _checksum(head.body_bytes, head.rows, body) != head.checksum:
        raise _damaged(path, "a record fails its checksum")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), ROWS_SCHEMA)
        batch.validate(full=True)
    except (pa.ArrowInvalid, OSError) as failure:
        raise _damaged(path, f"a record has no rows in it ({failure})") from failure
    if batch.num_rows != head.rows:
        raise _damaged(path, "a record has another number of rows than it says")
    return batch


def decode_records(data: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of bytes that begin and end between records. Raises `Corruption`."""
    offset = 0
    while offset < len(data):
        head = read_header(data[offset : offset + _HEADER.size])
        yield decode_body(head, data[offset + _HEADER.size : offset + head.record_bytes])
        offset += head.record_bytes


def items_of(batch: pa.RecordBatch) -> list[Item]:
    keys, values = batch.columns
    return list(zip(keys.to_pylist(), values.to_pylist(), strict=True))


async def read_row_file(disk: Disk, path: str) -> AsyncGenerator[pa.RecordBatch, None]:
    """Record by record, each checked before it is returned, read off the loop. Raises `FileNotFoundError` and
    `Corruption`. A file that was cut between records looks complete: the seal records its size."""
    file = disk.open(path)
    try:
        offset = 0
        while offset < file.size():
            batch, size = await disk.run(partial(read_record, file, offset))
            offset += size
            yield batch
    finally:
        file.close()


def whole_records_bytes(file: File) -> int:
    """The length of the complete records: where an interrupted put resumes. Reads only headers; blocks for a moment."""
    offset, size = 0, file.size()
    while offset + _HEADER.size <= size:
        end = offset + read_header(file.read(offset, _HEADER.size), file.path).record_bytes
        if end > size:
            break
        offset = end
    return offset


def read_record(file: File, offset: int) -> tuple[pa.RecordBatch, int]:
    """The record at this offset, and its length. Blocks. Raises `Corruption`."""
    header, body = read_raw(file, offset)
    return decode_body(read_header(header, file.path), body, file.path), len(header) + len(body)


def read_raw(file: File, offset: int) -> tuple[bytes, bytes]:
    """Header and body of the record at this offset, not verified yet. Blocks. Raises `Corruption`."""
    header = file.read(offset, _HEADER.size)
    return header, file.read(offset + _HEADER.size, read_header(header, file.path).body_bytes)


def _checksum(length: int, rows: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_CHECKED.pack(length, rows), 0))


def _damaged(path: str, what: str) -> Corruption:
    return Corruption(
        f"{path or 'a file of rows'} is damaged: {what}", advice="check the device, cancel the job and start it again"
    )
