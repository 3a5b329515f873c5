"""The process that scans a checkpoint, started by `scan_workers.py`: jobs come in and Arrow batches go out on one
socket, whose other end takes them as fast as somebody reads."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from ebla.bulk.workers.no_pandas import disable_pandas
from ebla.bulk.workers.scan_messages import FRAME_HEADER, ScanFrameKind, ScanJob, frame_header, read_frame_header
from ebla.model.errors import EblaError, InternalError
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.file_disk import FileDisk
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import whole_shape
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.scan.checkpoint_scan import CheckpointScan, ScanContext, open_checkpoint
from ebla.storage.scan.range_hashes import HASHES_SCHEMA
from ebla.storage.scan.stack_scan import ScanQuery, output_schema
from ebla.wire.flight_format import encode_failure
from ebla.wire.transfer_messages import HashesQuery, StoredRowsQuery, TypedRowsQuery

BATCH_BYTES = 4 << 20
"""What goes out at a time; a single row may be larger."""
_STANDARD_INPUT = 0


def main() -> int:
    die_with_parent(int(sys.argv[1]), _STANDARD_INPUT)
    disable_pandas()
    with socket.socket(fileno=int(sys.argv[2])) as sock:
        while (job := _next_job(sock)) is not None:
            try:
                asyncio.run(_scan(job, sock))
            except (BrokenPipeError, ConnectionResetError):
                return 0  # nobody wants it any more
            except EblaError as error:
                _send(sock, ScanFrameKind.FAILURE, encode_failure(error))
            except (OSError, pa.ArrowException) as error:
                _send(sock, ScanFrameKind.FAILURE, encode_failure(InternalError(f"the scan broke: {error}")))
    return 0


async def _scan(job: ScanJob, sock: socket.socket) -> None:
    disk = FileDisk()
    try:
        async with open_checkpoint(ScanContext(RocksEngine(disk), disk), job.schema, job.stacks) as scan:
            schema, batches = _answer(job, scan)
            _send(sock, ScanFrameKind.SCHEMA, schema.serialize())
            for batch in batches:
                for piece in pieces_of(batch):
                    _send(sock, ScanFrameKind.BATCH, piece.serialize())
    finally:
        disk.close()
    _send(sock, ScanFrameKind.END, b"")


def _answer(job: ScanJob, scan: CheckpointScan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    match job.query:
        case StoredRowsQuery(range=token_range, conditions=conditions, partitions=partitions) as asked:
            if asked.by_column and scan.has_columns():
                return whole_shape(job.schema).arrow_schema, scan.by_column(token_range, conditions, partitions)
            return ROWS_SCHEMA, scan.stored(token_range, conditions, partitions)
        case TypedRowsQuery(range=token_range) as asked:
            query = ScanQuery(
                schema=job.schema,
                columns=asked.columns,
                now_s=asked.now_s,
                conditions=asked.conditions,
                partitions=asked.partitions,
            )
            return output_schema(query), scan.typed(token_range, query)
        case HashesQuery(range=token_range, buckets=buckets, gc_before_s=gc_before_s):
            return HASHES_SCHEMA, iter((scan.hashes(token_range, buckets, gc_before_s),))


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of about `BATCH_BYTES`, without a copy."""
    count = max(1, -(-batch.nbytes // BATCH_BYTES))
    rows = max(1, -(-len(batch) // count))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _next_job(sock: socket.socket) -> ScanJob | None:
    header = _read_exactly(sock, FRAME_HEADER.size)
    if header is None:
        return None
    kind, size = read_frame_header(header)
    assert kind is ScanFrameKind.JOB
    data = _read_exactly(sock, size)
    return None if data is None else msgspec.msgpack.decode(data, type=ScanJob)


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    """None: the parent has no more jobs."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def _send(sock: socket.socket, kind: ScanFrameKind, body: bytes | pa.Buffer) -> None:
    view = memoryview(body)
    sock.sendall(frame_header(kind, len(view)))
    sock.sendall(view)


if __name__ == "__main__":
    sys.exit(main())
