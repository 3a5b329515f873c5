"""What goes through the Flight door: files and rows of checkpoints out, files and rows of transfers in.

All of it runs on threads of gRPC. They know this process's loop by `LoopCalls` alone, and wait for it no longer than
their bound. A thread holds one batch at a time and the one before it, whatever the speed of the other side: what a slow
reader has not taken is not read from disk.
"""

import asyncio
import os
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa

from ebla.bulk.data_plane import DataPlane, OpenedRows, OpenedSource, PutPlace
from ebla.bulk.tickets import is_of_read
from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from ebla.model.token import TokenRange
from ebla.model.transfers import ROWS_NAME, CheckpointFile
from ebla.storage.checksums import crc32
from ebla.storage.row_file import RECORD_HEADER_BYTES, read_head, records_of
from ebla.storage.scan_stack import ScanStack
from ebla.wire.flight_forms import (
    BYTES_SCHEMA,
    CHECKSUM_BYTES,
    END_OF_ROWS,
    MERGED_RUNS,
    NO_BYTES,
    bytes_batch,
    bytes_in,
)
from ebla.wire.frames import encode
from ebla.wire.scan_messages import ScanJob
from ebla.wire.table_access import Located
from ebla.wire.transfer_messages import (
    FilesQuestion,
    FlightGet,
    FlightPut,
    HashesQuestion,
    LocateQuestion,
    PutAnswer,
    Question,
    StagedRowsQuestion,
    StoredRowsQuestion,
    TypedRowsQuestion,
)

T = TypeVar("T")
Piece = tuple[pa.RecordBatch, bytes]
"""A batch and its metadata."""

_gets = msgspec.msgpack.Decoder(FlightGet)
_puts = msgspec.msgpack.Decoder(FlightPut)


@dataclass(frozen=True, slots=True)
class FlightLimits:
    piece_bytes: int = 2 << 20
    """Of a file, in one batch."""
    streams_max: int = 128
    """Calls at a time, before anything of them is looked at; the data plane has bounds of its own."""
    loop_wait_s: float = 60.0
    """For an answer of this process's own loop: longer than the data plane makes a batch wait for the rate."""
    scan_s: float = 3600.0
    close_s: float = 1.5
    """For streams under way when the process ends; whoever reads them comes again."""


class ScanStream(Protocol):
    """A scan under way. Used by one thread; `close` ends it, from any, and twice is no error."""

    def ask(self, job: ScanJob) -> pa.Schema: ...

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class Scans(Protocol):
    """Carries scans out, in other processes."""

    async def start(self, deadline_s: float) -> ScanStream: ...


class PutReader(Protocol):
    """`pyarrow.flight.MetadataRecordBatchReader`, as far as it is used."""

    def read_chunk(self) -> Any: ...


class PutWriter(Protocol):
    """`pyarrow.flight.FlightMetadataWriter`."""

    def write(self, metadata: pa.Buffer) -> None: ...


class LoopCalls:
    """Calls of the loop from other threads, with a bound."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        self._loop = loop
        self._wait_s = wait_s

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the bulk process is ending") from None

    def wait(self, begun: Future[T]) -> T:
        try:
            return begun.result(self._wait_s)
        except FutureTimeout:
            begun.cancel()
            raise DeadlineExceeded(f"the bulk process did not answer within {self._wait_s:g} s") from None
        except asyncio.CancelledError:
            raise Unavailable("the bulk process is ending") from None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.wait(self.begin(work))

    def tell(self, act: Any, *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            pass  # the process is ending, and what was to be let go goes with it


class FlightStreams:
    def __init__(self, plane: DataPlane, scans: Scans, calls: LoopCalls, limits: FlightLimits) -> None:
        self._plane = plane
        self._scans = scans
        self._calls = calls
        self._limits = limits

    # -- out ---------------------------------------------------------------------------------------------------------

    def answer(self, get: FlightGet) -> Generator[pa.Schema | Piece, None, None]:
        """First the schema, then the batches. Dropped at any point it lets go of all it has."""
        if isinstance(get.question, StagedRowsQuestion):
            yield from self._staged(get.ticket, get.question)
            return
        # Noted on the loop and let go there. A thread that gives up waiting just as it is opened never sees the answer.
        opened: list[OpenedSource] = []
        try:
            self._calls.call(self._open(get, opened))
            yield from self._answered(opened[0], get.question)
        finally:
            self._calls.tell(self._close, opened)

    async def _open(self, get: FlightGet, opened: list[OpenedSource]) -> None:
        if not is_of_read(get.ticket):
            opened.append(self._plane.open_source(get.ticket))
        elif isinstance(get.question, FilesQuestion | StagedRowsQuestion):
            raise InvalidRequest("this ticket is for the rows of a table, and opens nothing else")
        else:
            opened.append(await self._plane.open_read(get.ticket, get.question.range, get.run))

    def _close(self, opened: list[OpenedSource]) -> None:
        for source in opened:
            self._plane.close_source(source)

    def _answered(self, source: OpenedSource, question: Question) -> Iterator[pa.Schema | Piece]:
        match question:
            case FilesQuestion():
                yield BYTES_SCHEMA
                yield from self._file(source, question)
            case StoredRowsQuestion() | TypedRowsQuestion() | HashesQuestion():
                yield from self._scan(source, ScanJob(source.schema, _stacks(source, question.range), question))
            case LocateQuestion() if source.session is None:
                yield BYTES_SCHEMA
                yield self._located(source, question)
            case LocateQuestion() | StagedRowsQuestion():
                raise InvalidRequest("this ticket is for a checkpoint, and opens nothing else")

    def _staged(self, ticket: bytes, question: StagedRowsQuestion) -> Iterator[pa.Schema | Piece]:
        opened = self._calls.call(self._opened_rows(ticket, question))
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
                self._calls.call(self._plane.admit_sending(source, len(record)))
                yield bytes_batch(record), b""
            yield NO_BYTES, END_OF_ROWS
        finally:
            self._calls.tell(self._plane.close_source, source)

    async def _opened_rows(self, ticket: bytes, question: StagedRowsQuestion) -> OpenedRows:
        return self._plane.open_staged(ticket, question.attempt)

    def _records_of_layer(self, source: OpenedSource, layer: ScanStack) -> Iterator[bytes]:
        """By a process that scans: this one opens no layers."""
        stream = self._calls.call(self._scans.start(self._limits.scan_s))
        try:
            schema = stream.ask(ScanJob(source.schema, (layer,), StoredRowsQuestion(layer.range)))
            yield from records_of(stream.batches(schema), self._limits.piece_bytes)
        finally:
            stream.close()

    def _located(self, source: OpenedSource, question: LocateQuestion) -> Piece:
        stacks = _stacks(source, question.range)
        data = encode(Located(source.machine, source.folder, stacks, source.schema))
        self._calls.call(self._plane.admit_sending(source, len(data)))
        return bytes_batch(data), b""

    def _file(self, source: OpenedSource, question: FilesQuestion) -> Iterator[Piece]:
        path, known = file_of(source, question)
        offset, size = question.offset, known.size_bytes
        if not 0 <= offset <= size:
            raise InvalidRequest(f"{question.file} has {size} bytes, and none from {offset} on")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            checksum = self._passed(descriptor, path, offset)
            while True:
                data = _read(descriptor, path, offset, min(self._limits.piece_bytes, size - offset))
                checksum = crc32(data, checksum)
                offset += len(data)
                self._calls.call(self._plane.admit_sending(source, len(data)))
                if offset == size:
                    yield bytes_batch(data), checksum.to_bytes(CHECKSUM_BYTES)
                    return
                yield bytes_batch(data), b""
        finally:
            os.close(descriptor)

    def _passed(self, descriptor: int, path: str, end: int) -> int:
        """The checksum of what the reader has already: that of the whole file is told at the end."""
        checksum = at = 0
        while at < end:
            data = _read(descriptor, path, at, min(self._limits.piece_bytes, end - at))
            checksum = crc32(data, checksum)
            at += len(data)
        return checksum

    def _scan(self, source: OpenedSource, job: ScanJob) -> Iterator[pa.Schema | Piece]:
        stream = self._calls.call(self._scans.start(self._limits.scan_s))
        try:
            schema = stream.ask(job)
            yield schema
            for batch in stream.batches(schema):
                self._calls.call(self._plane.admit_sending(source, batch.nbytes))
                yield batch, b""
        finally:
            stream.close()

    # -- in ----------------------------------------------------------------------------------------------------------

    def take(self, put: FlightPut, reader: PutReader, writer: PutWriter) -> None:
        """What arrives is appended, one batch behind the one that is being received."""
        place = self._calls.call(self._plane.open_put(put))
        try:
            writer.write(_told(PutAnswer(place.received_bytes, place.checksum)))
            if place.name == ROWS_NAME:
                self._take_rows(place, reader, writer)
            else:
                self._take_file(place, reader)
            writer.write(_told(self._calls.call(self._plane.finish_put(place))))
        finally:
            self._calls.tell(self._plane.close_put, place)

    def _take_file(self, place: PutPlace, reader: PutReader) -> None:
        running: Future[None] | None = None
        try:
            while (chunk := _next_chunk(reader)) is not None:
                for data in bytes_in(chunk.data):
                    if running is not None:
                        self._calls.wait(running)
                    running = self._calls.begin(self._plane.append(place, data))
        finally:
            # The place is closed behind this, and must not be while bytes are still being written to it.
            if running is not None:
                self._calls.wait(running)

    def _take_rows(self, place: PutPlace, reader: PutReader, writer: PutWriter) -> None:
        """Every record is acknowledged once it is written: the sender keeps it until then. A connection that broke
        looks like an end from here, so the end is said."""
        while (chunk := _next_chunk(reader)) is not None:
            if chunk.data is None:
                if chunk.app_metadata == END_OF_ROWS:
                    return
                continue
            for data in bytes_in(chunk.data):
                check_record(data)
                self._calls.call(self._plane.append(place, data))
                writer.write(_told(PutAnswer(place.received_bytes)))
        raise ConnectionLost("the stream of rows broke off")


def decode_get(data: bytes) -> FlightGet:
    try:
        return _gets.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is no question of a transfer: {error}") from None


def decode_put(data: bytes) -> FlightPut:
    try:
        return _puts.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this names no place for a transfer: {error}") from None


def file_of(source: OpenedSource, question: FilesQuestion) -> tuple[str, CheckpointFile]:
    """Only files that the checkpoint lists: a name is looked up, never made into a path."""
    if 0 <= question.part < len(source.parts):
        part = source.parts[question.part]
        if 0 <= question.layer < len(part.layers):
            layer = part.layers[question.layer]
            known = next((file for file in layer.files if file.name == question.file), None)
            if known is not None:
                return f"{source.folder}/{layer.folder}/{known.name}", known
    where = f"in layer {question.layer} of part {question.part}"
    raise NotFound(f"checkpoint {source.checkpoint} has no file {question.file!r} {where}")


def _records_in(path: str) -> Iterator[bytes]:
    """Read only: a seal may take the file over meanwhile, and asks whether anybody could write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        offset, size = 0, os.fstat(descriptor).st_size
        while offset < size:
            head = read_head(os.pread(descriptor, RECORD_HEADER_BYTES, offset), path)
            yield _read(descriptor, path, offset, head.record_bytes)
            offset += head.record_bytes
    finally:
        os.close(descriptor)


def check_record(data: memoryview) -> None:
    """What is appended to a file of rows is one whole record."""
    head = read_head(bytes(data[:RECORD_HEADER_BYTES]))
    if head.record_bytes != len(data):
        raise InvalidRequest(f"a record of {head.record_bytes} bytes came with {len(data)}")


def _stacks(source: OpenedSource, asked: TokenRange) -> tuple[ScanStack, ...]:
    """Those with a part of the range: each layer that is named is opened."""
    return tuple(
        ScanStack(
            part.range,
            tuple(
                (f"{source.folder}/{layer.folder}", layer.range) for layer in part.layers if layer.range.overlaps(asked)
            ),
        )
        for part in source.parts
        if part.range.overlaps(asked)
    )


def _read(descriptor: int, path: str, offset: int, size: int) -> bytes:
    # Not mapped: a page of a mapped file that the device fails to give ends the process, a read says so.
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise Corruption(f"{path} ends at {offset + len(data)}, before its size")
    return data


def _next_chunk(reader: PutReader) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except pa.ArrowException as error:
        raise ConnectionLost(f"the stream broke off: {error}") from None


def _told(answer: PutAnswer) -> pa.Buffer:
    return pa.py_buffer(encode(answer))
