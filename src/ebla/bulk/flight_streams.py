"""The streams of Flight: files and rows of checkpoints out, files and rows of transfers in.

All of it runs on gRPC's threads. They call into this process's loop through `LoopBridge` alone, and wait no longer than
its timeout. A thread holds one batch at a time and the one before it, whatever the speed of the peer: what a slow
reader has not taken is not read from disk.
"""

import os
from collections.abc import Generator, Iterator
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from ebla.bulk.loop_bridge import LoopBridge
from ebla.bulk.multi_file_put import MultiFilePut, PutReader, PutWriter, encode_answer, next_chunk, split_put
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource, StreamService
from ebla.bulk.tickets import is_read_ticket
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.bulk.workers.messages import ScanJob
from ebla.model.errors import ConnectionLost, Corruption, InvalidRequest, NotFound
from ebla.model.token import TokenRange
from ebla.model.transfers import ROWS_NAME, CheckpointFile, ScanStack
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import RECORD_HEADER_BYTES, read_header, records_of
from ebla.wire.flight_format import (
    BYTES_SCHEMA,
    CHECKSUM_BYTES,
    END_OF_ROWS,
    FILES_TOGETHER_MAX,
    MERGED_RUNS,
    NO_BYTES,
    byte_values,
    bytes_batch,
    values_batch,
)
from ebla.wire.frames import encode
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import (
    FilesQuery,
    FlightGet,
    FlightPut,
    FlightQuery,
    HashesQuery,
    LocateQuery,
    PutAnswer,
    StagedRowsQuery,
    StoredRowsQuery,
    TypedRowsQuery,
)

BatchAndMetadata = tuple[pa.RecordBatch, bytes]
"""A batch and its metadata."""
ValuesAndMetadata = tuple[list[bytes], bytes]
"""Values for one batch, and its metadata."""

PIECE_BYTES = 2 << 20
"""Of a file in one batch."""
SCAN_S = 3600.0
COALESCED_BYTES_MAX = 64 << 10
"""Small pieces up to this size are copied into one batch."""


class FlightStreams:
    def __init__(self, stream_service: StreamService, scans: BulkWorkers, loop: LoopBridge, piece_bytes: int) -> None:
        self._plane = stream_service
        self._scans = scans
        self._loop = loop
        self._piece_bytes = piece_bytes

    # -- gets --------------------------------------------------------------------------------------------------------

    def answer(self, get: FlightGet) -> Generator[pa.Schema | BatchAndMetadata, None, None]:
        """First the schema, then the batches. A generator that is dropped frees what it holds."""
        if isinstance(get.query, StagedRowsQuery):
            yield from self._staged(get.ticket, get.query)
            return
        # Recorded on the loop and closed there: a thread that times out just as it is opened never sees the answer.
        opened: list[SourceStream] = []
        try:
            self._loop.call(self._open(get, opened))
            yield from self._answer(opened[0], get.query)
        finally:
            self._loop.post(self._close, opened)

    async def _open(self, get: FlightGet, opened: list[SourceStream]) -> None:
        if not is_read_ticket(get.ticket):
            opened.append(self._plane.open_source(get.ticket))
        elif isinstance(get.query, FilesQuery | StagedRowsQuery):
            raise InvalidRequest("this ticket is for the rows of a table, and for nothing else")
        else:
            opened.append(await self._plane.open_read(get.ticket, get.query.range, get.run))

    def _close(self, opened: list[SourceStream]) -> None:
        for source in opened:
            self._plane.close_source(source)

    def _answer(self, source: SourceStream, query: FlightQuery) -> Iterator[pa.Schema | BatchAndMetadata]:
        match query:
            case FilesQuery():
                yield BYTES_SCHEMA
                yield from self._files(source, query)
            case StoredRowsQuery() | TypedRowsQuery() | HashesQuery():
                yield from self._scan(source, ScanJob(source.schema, _stacks(source, query.range), query))
            case LocateQuery() if source.session is None:
                yield BYTES_SCHEMA
                yield self._located(source, query)
            case LocateQuery() | StagedRowsQuery():
                raise InvalidRequest("this ticket is for a checkpoint, and for nothing else")

    def _staged(self, ticket: bytes, query: StagedRowsQuery) -> Iterator[pa.Schema | BatchAndMetadata]:
        opened = self._loop.call(self._opened_rows(ticket, query))
        source, rows = opened.source, opened.rows
        try:
            yield BYTES_SCHEMA
            if rows.is_merged:
                yield NO_BYTES, MERGED_RUNS
            records: Iterator[bytes] = iter(())
            if rows.path:
                records = _records_in(rows.path)
            elif rows.layer is not None:
                records = self._records_of_layer(source, rows.layer)
            for record in records:
                self._loop.call(self._plane.admit_sending(source, len(record)))
                yield bytes_batch(record), b""
            yield NO_BYTES, END_OF_ROWS
        finally:
            self._loop.post(self._plane.close_source, source)

    async def _opened_rows(self, ticket: bytes, query: StagedRowsQuery) -> StagedRowsSource:
        return self._plane.open_staged(ticket, query.attempt)

    def _records_of_layer(self, source: SourceStream, layer: ScanStack) -> Iterator[bytes]:
        """Through a scan worker: this process opens no layers."""
        stream = self._loop.call(self._scans.start(SCAN_S))
        try:
            schema = stream.start(ScanJob(source.schema, (layer,), StoredRowsQuery(range=layer.range)))
            yield from records_of(stream.batches(schema), self._piece_bytes)
        finally:
            stream.close()

    def _located(self, source: SourceStream, query: LocateQuery) -> BatchAndMetadata:
        stacks = _stacks(source, query.range)
        data = encode(
            CheckpointFiles(machine=source.machine, folder=source.folder, stacks=stacks, schema=source.schema)
        )
        self._loop.call(self._plane.admit_sending(source, len(data)))
        return bytes_batch(data), b""

    def _files(self, source: SourceStream, query: FilesQuery) -> Iterator[BatchAndMetadata]:
        """Consecutive small files share a batch: a batch costs more than all of their bytes."""
        coalesced = _Coalesced()
        for one in split_files(query):
            for data, checksum in self._file(source, one):
                if not coalesced.has_room(data):
                    yield self._admit(source, coalesced.take())
                coalesced.add(data, checksum)
        yield self._admit(source, coalesced.take())

    def _admit(self, source: SourceStream, values: ValuesAndMetadata) -> BatchAndMetadata:
        pieces, checksums = values
        self._loop.call(self._plane.admit_sending(source, sum(len(data) for data in pieces)))
        return bytes_batch(pieces[0]) if len(pieces) == 1 else values_batch(pieces), checksums

    def _file(self, source: SourceStream, query: FilesQuery) -> Iterator[tuple[bytes, bytes]]:
        """The chunks of the file, with its checksum at the last one."""
        path, known = find_file(source, query)
        offset, size = query.offset, known.size_bytes
        if not 0 <= offset <= size:
            raise InvalidRequest(f"{query.file} has {size} bytes, and none from {offset} on")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            checksum = self._checksum_of_prefix(descriptor, path, offset)
            while True:
                data = _read(descriptor, path, offset, min(self._piece_bytes, size - offset))
                checksum = crc32(data, checksum)
                offset += len(data)
                if offset == size:
                    yield data, checksum.to_bytes(CHECKSUM_BYTES)
                    return
                yield data, b""
        finally:
            os.close(descriptor)

    def _checksum_of_prefix(self, descriptor: int, path: str, end: int) -> int:
        """Of what the reader has already: the checksum at the end covers the whole file."""
        checksum = at = 0
        while at < end:
            data = _read(descriptor, path, at, min(self._piece_bytes, end - at))
            checksum = crc32(data, checksum)
            at += len(data)
        return checksum

    def _scan(self, source: SourceStream, job: ScanJob) -> Iterator[pa.Schema | BatchAndMetadata]:
        stream = self._loop.call(self._scans.start(SCAN_S))
        try:
            schema = stream.start(job)
            yield schema
            for batch in stream.batches(schema):
                self._loop.call(self._plane.admit_sending(source, batch.nbytes))
                yield batch, b""
        finally:
            stream.close()

    # -- puts --------------------------------------------------------------------------------------------------------

    def take(self, put: FlightPut, reader: PutReader, writer: PutWriter) -> None:
        """Appends a batch while the next one is being received."""
        puts = split_put(put)
        stream = self._loop.call(self._plane.open_put(puts[0]))
        if len(puts) > 1 and not stream.received_bytes:
            MultiFilePut(self._plane, self._loop, stream, puts[1:]).take(reader, writer)
            return
        try:
            writer.write(encode_answer(PutAnswer(stream.received_bytes, stream.checksum)))
            if stream.name == ROWS_NAME:
                self._take_rows(stream, reader, writer)
            else:
                self._take_file(stream, reader)
            writer.write(encode_answer(self._loop.call(self._plane.finish_put(stream))))
        finally:
            self._loop.post(self._plane.close_put, stream)

    def _take_file(self, stream: IncomingPut, reader: PutReader) -> None:
        append: Future[None] | None = None
        try:
            while (chunk := next_chunk(reader)) is not None:
                for data in byte_values(chunk.data):
                    if append is not None:
                        self._loop.wait(append)
                    append = self._loop.begin(self._plane.append(stream, data))
        finally:
            # The caller closes the file next, which must not happen during a write.
            if append is not None:
                self._loop.wait(append)

    def _take_rows(self, stream: IncomingPut, reader: PutReader, writer: PutWriter) -> None:
        """Every record is acknowledged once it is written: the sender keeps it until then. A broken connection looks
        like an end from here, so the end is explicit."""
        while (chunk := next_chunk(reader)) is not None:
            if chunk.data is None:
                if chunk.app_metadata == END_OF_ROWS:
                    return
                continue
            for data in byte_values(chunk.data):
                check_record(data)
                self._loop.call(self._plane.append(stream, data))
                writer.write(encode_answer(PutAnswer(stream.received_bytes)))
        raise ConnectionLost("the stream of rows was cut off")


class _Coalesced:
    """Chunks of files for one batch. A large chunk has its own, and is not copied then."""

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._checksums: list[bytes] = []
        self._bytes = 0

    def has_room(self, data: bytes) -> bool:
        return not self._values or self._bytes + len(data) <= COALESCED_BYTES_MAX

    def add(self, data: bytes, checksum: bytes) -> None:
        self._values.append(data)
        self._checksums.append(checksum)
        self._bytes += len(data)

    def take(self) -> ValuesAndMetadata:
        taken = self._values, b"".join(self._checksums)
        self._values, self._checksums, self._bytes = [], [], 0
        return taken


def split_files(query: FilesQuery) -> list[FilesQuery]:
    """A question for each file of it. Raises `InvalidRequest`."""
    if len(query.more) >= FILES_TOGETHER_MAX:
        raise InvalidRequest(f"{len(query.more) + 1} files are more than one stream may carry")
    further = [FilesQuery(part=query.part, layer=layer, file=file) for layer, file in query.more]
    return [msgspec.structs.replace(query, more=()), *further]


def find_file(source: SourceStream, query: FilesQuery) -> tuple[str, CheckpointFile]:
    """Only files that the checkpoint lists: a name is looked up, never used as a path."""
    if 0 <= query.part < len(source.parts):
        part = source.parts[query.part]
        if 0 <= query.layer < len(part.layers):
            layer = part.layers[query.layer]
            known = next((file for file in layer.files if file.name == query.file), None)
            if known is not None:
                return f"{source.folder}/{layer.folder}/{known.name}", known
    where = f"in layer {query.layer} of part {query.part}"
    raise NotFound(f"checkpoint {source.checkpoint} has no file {query.file!r} {where}")


def _records_in(path: str) -> Iterator[bytes]:
    """Opened read-only: a seal may take the file over meanwhile, and checks for writers."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        offset, size = 0, os.fstat(descriptor).st_size
        while offset < size:
            head = read_header(os.pread(descriptor, RECORD_HEADER_BYTES, offset), path)
            yield _read(descriptor, path, offset, head.record_bytes)
            offset += head.record_bytes
    finally:
        os.close(descriptor)


def check_record(data: memoryview) -> None:
    """An append to a file of rows is one whole record."""
    head = read_header(bytes(data[:RECORD_HEADER_BYTES]))
    if head.record_bytes != len(data):
        raise InvalidRequest(f"a record of {head.record_bytes} bytes arrived with {len(data)}")


def _stacks(source: SourceStream, token_range: TokenRange) -> tuple[ScanStack, ...]:
    """Stacks and layers that overlap the range: every layer listed here is opened."""
    return tuple(
        ScanStack(
            part.range,
            tuple(
                (f"{source.folder}/{layer.folder}", visible)
                for layer in part.layers
                for visible in layer.visible
                if visible.overlaps(token_range)
            ),
        )
        for part in source.parts
        if part.range.overlaps(token_range)
    )


def _read(descriptor: int, path: str, offset: int, size: int) -> bytes:
    # Not mapped: an I/O error in a mapped file kills the process, a read reports it.
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise Corruption(f"{path} ends at {offset + len(data)}, before its size")
    return data
