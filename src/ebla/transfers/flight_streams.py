"""Streams of Arrow Flight, from the client's side: files and rows out of a node, files and rows into staging.

A stream that breaks is not a failure yet: the target reports how much it has received. A file is read again from there;
of rows, what is not confirmed is kept and sent again. Errors are those that the node raised, or say what became of the
connection.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from ebla.model.errors import ConnectionLost, Corruption, DeadlineExceeded, EblaError, Unreachable
from ebla.model.identity import AttemptId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import decode_records
from ebla.wire.flight_format import END_OF_ROWS, MERGED_RUNS, byte_values, bytes_batch, decode_checksums, decode_failure
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

_answers = msgspec.msgpack.Decoder(PutAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightClientLimits:
    call_s: float = 60.0
    """For a call that moves no data, and for the beginning of each call."""
    bytes_per_s_min: int = 1 << 20
    """A slower call is cancelled, and another one continues it."""
    scan_s: float = 3600.0
    """For rows and hashes: a scan may read much and return little."""
    attempts_max: int = 5
    """In a row without progress."""
    pause_s: float = 0.5
    """Before the second attempt; twice as long before each further one."""
    overload_s: float = 900.0
    """How long a task that holds no stream retries an overloaded node: there may be many more tasks than a node allows
    streams, and each gets its turn."""
    overload_pause_s: float = 2.0
    read_ahead_batches: int = 4
    """Read while earlier ones are written."""
    direct_read_bytes: int = 1 << 20
    """Files up to this size are not read ahead."""
    grouped_bytes: int = 32 << 20
    """Of small files that share one stream. A file of more than half of it has its own stream, which continues from
    where it broke."""
    unconfirmed_records: int = 8
    """Records of rows that are kept in case the stream breaks."""
    record_bytes: int = 2 << 20


class FileStream:
    """The bytes of a file from an offset on, or of several files; iterated once. The checksum of each whole file is
    known at the end."""

    def __init__(self, reader: Any, peer: str, files: int = 1) -> None:
        self._reader = reader
        self._peer = peer
        self._files = files
        self.checksums: list[int] = []

    def __iter__(self) -> Iterator[memoryview]:
        for batch in self.batches():
            yield from byte_values(batch)

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        while True:
            with translating_errors(self._peer):
                try:
                    chunk = self._reader.read_chunk()
                except StopIteration:
                    break
            if chunk.app_metadata is not None and chunk.app_metadata.size:
                self.checksums += decode_checksums(chunk.app_metadata.to_pybytes())
            yield chunk.data
        if len(self.checksums) != self._files:
            raise ConnectionLost(f"the file from {self._peer} ended without its checksum")

    def cancel(self) -> None:
        self._reader.cancel()


class StagedRecordStream:
    """Staged rows, as batches with the columns `key` and `value`; iterated once, to the end or until `cancel`.

    `is_merged`: the rows are those of all sealed attempts, not of the one that was asked for. `expected`: what the
    attempt reported to have staged; if other bytes come, the end raises `Corruption`."""

    def __init__(self, reader: Any, peer: str, expected: StagedFile | None = None) -> None:
        self._reader = reader
        self._peer = peer
        self._expected = expected
        self._bytes = self._checksum = 0
        self._first = self._chunk()
        self.is_merged = _metadata(self._first) == MERGED_RUNS

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        chunk = self._chunk() if self.is_merged else self._first
        while _metadata(chunk) != END_OF_ROWS:
            for record in byte_values(chunk.data):
                self._bytes += len(record)
                self._checksum = crc32(record, self._checksum)
                yield from decode_records(bytes(record))
            chunk = self._chunk()
        self._check()

    def cancel(self) -> None:
        self._reader.cancel()

    def _chunk(self) -> Any:
        with translating_errors(self._peer):
            try:
                return self._reader.read_chunk()
            except StopIteration:
                raise ConnectionLost(f"the staged rows from {self._peer} ended before the end marker") from None

    def _check(self) -> None:
        expected = self._expected
        if expected is None or self.is_merged:
            return
        if (self._bytes, self._checksum) != (expected.size_bytes, expected.checksum):
            raise Corruption(
                f"the staged rows from {self._peer} have {self._bytes} bytes with checksum {self._checksum:08x}, and "
                f"{expected.size_bytes} with {expected.checksum:08x} were staged"
            )


def _metadata(chunk: Any) -> bytes:
    metadata: bytes = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
    return metadata


class PutStream:
    """One stream into staging. `begin` says where to continue."""

    def __init__(self, writer: Any, reader: Any, peer: str) -> None:
        self._writer = writer
        self._reader = reader
        self._peer = peer
        self._is_over = False
        self.begin = self.read_answer()

    def read_answer(self) -> PutAnswer:
        with translating_errors(self._peer):
            answer = self._reader.read()
            if answer is None:
                self._find_error()
        return _answers.decode(answer)

    def write(self, batch: pa.RecordBatch) -> None:
        with translating_errors(self._peer):
            try:
                self._writer.write_batch(batch)
            except (pa.ArrowException, OSError):
                # The error that the peer raised is only known at the end of the stream.
                self._find_error()

    def finish(self, metadata: bytes = b"") -> PutAnswer:
        return self.finish_all(1, metadata)[0]

    def finish_all(self, files: int, metadata: bytes = b"") -> list[PutAnswer]:
        with translating_errors(self._peer):
            if metadata:
                self._writer.write_metadata(metadata)
            self._writer.done_writing()
        answers = [self.read_answer() for _ in range(files)]
        with translating_errors(self._peer):
            self._is_over = True
            self._writer.close()
        return answers

    def drop(self) -> None:
        """Closes the stream; may be called twice. The peer sees the end of the stream."""
        if not self._is_over:
            self._is_over = True
            try:
                self._writer.close()
            except (pa.ArrowException, OSError):
                pass  # it was raised already, or no caller waits for it any more

    def _find_error(self) -> NoReturn:
        self._is_over = True
        self._writer.close()
        raise ConnectionLost(f"{self._peer} ended the stream")


def error_of_flight(error: Exception, peer: str) -> EblaError:
    """The error that the peer raised, or one that says what became of the connection."""
    encoded = getattr(error, "extra_info", b"")
    raised = decode_failure(encoded) if encoded else None
    if raised is not None:
        return raised
    text = str(error).split(". ")[0]
    match error:
        case flight.FlightUnavailableError():
            return Unreachable(f"{peer} cannot be reached: {text}")
        case flight.FlightTimedOutError():
            return DeadlineExceeded(f"{peer} did not answer in time: {text}")
        case _:
            return ConnectionLost(f"the stream with {peer} broke: {text}")


@contextmanager
def translating_errors(peer: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise error_of_flight(error, peer) from None


# ---- into staging


class PutClient(Protocol):
    """The part of `flight_client.FlightClient` that `RowUpload` uses."""

    def open_put(self, target: TransferTarget, put: FlightPut, timeout_s: float) -> PutStream: ...

    def retry(self, call: Callable[[], T], progress: Callable[[], int] = ...) -> T: ...


def read_ahead(content: FileStream, batches_max: int) -> Generator[pa.RecordBatch, None, None]:
    """Files of a node, read by a thread while earlier batches are written."""
    batches: queue.Queue[pa.RecordBatch | EblaError | None] = queue.Queue(batches_max)
    is_closed = threading.Event()

    def read() -> None:
        try:
            for batch in content.batches():
                if is_closed.is_set():
                    return
                batches.put(batch)
            batches.put(None)
        except EblaError as error:
            batches.put(error)

    thread = threading.Thread(target=read, name="flight-read", daemon=True)
    thread.start()
    try:
        while (found := batches.get()) is not None:
            if isinstance(found, EblaError):
                raise found
            yield found
    finally:
        is_closed.set()
        content.cancel()
        while thread.is_alive():
            # The thread may wait for room in the queue.
            try:
                batches.get_nowait()
            except queue.Empty:
                pass
            thread.join(0.01)


@dataclass(slots=True)
class _Record:
    data: bytes
    end: int
    """The offset of its end in the whole upload."""


class RowUpload:
    """Uploads rows into staging. Records that the target has not confirmed are kept, and sent again if the stream
    breaks."""

    def __init__(
        self, client: PutClient, target: TransferTarget, attempt: AttemptId, limits: FlightClientLimits
    ) -> None:
        self._client = client
        self._target = target
        self._attempt = attempt
        self._limits = limits
        self._kept: deque[_Record] = deque()
        self._sent = 0
        """How many of the kept records were sent on the open stream."""
        self._stream: PutStream | None = None
        self._confirmed_bytes = self._size_bytes = self._checksum = 0

    def __enter__(self) -> "RowUpload":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def send(self, record: bytes) -> None:
        self._size_bytes += len(record)
        self._checksum = crc32(record, self._checksum)
        self._kept.append(_Record(record, self._size_bytes))
        # The target may have received it already, before the stream broke: sent twice, the rows would be out of order.
        self._confirm(self._confirmed_bytes)
        self._client.retry(self._write_on, lambda: self._confirmed_bytes)

    def finish(self) -> StagedFile:
        answer = self._client.retry(self._finish_once, lambda: self._confirmed_bytes)
        if (answer.received_bytes, answer.checksum) != (self._size_bytes, self._checksum):
            raise Corruption(f"rows came to {self._target.flight} with other bytes than were sent")
        return StagedFile(name=ROWS_NAME, size_bytes=self._size_bytes, checksum=self._checksum)

    def _finish_once(self) -> PutAnswer:
        with self._dropped_on_error():
            stream = self._write_on()
            while self._kept:
                self._confirm(stream.read_answer().received_bytes)
            answer = stream.finish(END_OF_ROWS)
            self._stream = None
            return answer

    def _write_on(self) -> PutStream:
        with self._dropped_on_error():
            stream = self._stream or self._open()
            while self._sent < len(self._kept):
                if self._sent >= self._limits.unconfirmed_records:
                    self._confirm(stream.read_answer().received_bytes)
                    continue
                stream.write(bytes_batch(self._kept[self._sent].data))
                self._sent += 1
            return stream

    def _open(self) -> PutStream:
        put = FlightPut(
            ticket=self._target.ticket,
            attempt=self._attempt,
            name=ROWS_NAME,
            size_bytes=0,
            offset=self._confirmed_bytes,
        )
        self._stream = self._client.open_put(self._target, put, self._limits.scan_s)
        self._sent = 0
        self._confirm(self._stream.begin.received_bytes)
        self._sent = 0
        return self._stream

    def _confirm(self, received_bytes: int) -> None:
        while self._kept and self._kept[0].end <= received_bytes:
            self._kept.popleft()
            self._sent = max(0, self._sent - 1)
        self._confirmed_bytes = received_bytes

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except EblaError:
            self._drop()
            raise

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.drop()
