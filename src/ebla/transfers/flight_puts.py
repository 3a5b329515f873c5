"""What is put into staging: bytes of a file, read ahead while those before are written, and rows in records.

A stream that breaks is no failure yet: the target says how far it has come. A file is read again from there; of rows
what is not confirmed is kept.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from ebla.model.errors import Corruption, EblaError
from ebla.model.identity import AttemptId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.storage.codec.checksums import crc32
from ebla.transfers.flight_calls import FileStream, FlightClientLimits, PutStream
from ebla.wire.flight_format import END_OF_ROWS, bytes_batch
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")
LOCAL_PIECE_BYTES = 2 << 20


class PutClient(Protocol):
    """`flight_client.FlightClient`, as far as rows need it."""

    def open_put(self, target: TransferTarget, put: FlightPut, timeout_s: float) -> PutStream: ...

    def again(self, act: Callable[[], T], progress: Callable[[], int] = ...) -> T: ...


class ByteBatches(Protocol):
    """Batches of the bytes of files. Behind the last one the checksum of each file stands in a list of the asker."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class ReadAhead:
    """Files of a node, read by a thread while what came before is written."""

    def __init__(self, content: FileStream, ahead: int, checksums: list[int]) -> None:
        self._content = content
        self._checksums = checksums
        self._read: queue.Queue[pa.RecordBatch | EblaError | None] = queue.Queue(ahead)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="flight-read", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            found = self._read.get()
            if isinstance(found, EblaError):
                raise found
            if found is None:
                self._checksums += self._content.checksums
                return
            yield found

    def close(self) -> None:
        self._is_closed = True
        self._content.cancel()
        while self._thread.is_alive():
            # It may wait for room in the queue.
            try:
                self._read.get_nowait()
            except queue.Empty:
                pass
            self._thread.join(0.01)

    def _run(self) -> None:
        try:
            for batch in self._content.batches():
                if self._is_closed:
                    return
                self._read.put(batch)
            self._read.put(None)
        except EblaError as error:
            self._read.put(error)


class DirectRead:
    """Files of a node that come in a piece or two: a thread would cost more than it gains."""

    def __init__(self, content: FileStream, checksums: list[int]) -> None:
        self._content = content
        self._checksums = checksums

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._content.batches()
        self._checksums += self._content.checksums

    def close(self) -> None:
        self._content.cancel()


class LocalFileRead:
    """A file of this machine, from an offset on."""

    def __init__(self, path: str, offset: int, checksums: list[int]) -> None:
        self._path = path
        self._offset = offset
        self._checksums = checksums

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        checksum = at = 0
        with open(self._path, "rb", buffering=0) as file:
            while data := file.read(LOCAL_PIECE_BYTES):
                checksum = crc32(data, checksum)
                at += len(data)
                if at > self._offset:
                    yield bytes_batch(memoryview(data)[max(0, self._offset - (at - len(data))) :])
        self._checksums.append(checksum)

    def close(self) -> None:
        """It holds nothing between two batches that its iterator does not let go of."""


@dataclass(slots=True)
class _Record:
    data: bytes
    end: int
    """Where it ends in the whole."""


class RowUpload:
    """Rows on their way into staging. What the target has not confirmed is kept, and sent again after a break."""

    def __init__(
        self, client: PutClient, target: TransferTarget, attempt: AttemptId, limits: FlightClientLimits
    ) -> None:
        self._client = client
        self._target = target
        self._attempt = attempt
        self._limits = limits
        self._kept: deque[_Record] = deque()
        self._sent = 0
        """Of those kept, on the stream that is open."""
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
        # An earlier try at the same attempt may have brought it: sent twice, the rows would be out of order.
        self._confirm(self._confirmed_bytes)
        self._client.again(self._write_on, lambda: self._confirmed_bytes)

    def finish(self) -> StagedFile:
        answer = self._client.again(self._finish_once, lambda: self._confirmed_bytes)
        if (answer.received_bytes, answer.checksum) != (self._size_bytes, self._checksum):
            raise Corruption(f"rows came to {self._target.flight} with other bytes than were sent")
        return StagedFile(ROWS_NAME, self._size_bytes, self._checksum)

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
