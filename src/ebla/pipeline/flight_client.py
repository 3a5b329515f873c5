"""What tasks use to read checkpoints and to fill staging: Arrow Flight, with tickets, over TLS.

It runs on executors, far from any node: it knows the words of the wire and nothing of a node's inside, and takes from a
`Source` or a `Target` all it has to know. The authority of the cluster says whom to trust, and the certificate must be
that of the host that the ticket is for. Every wait is bounded: a call by what it moves, tries by their number.

A stream that breaks is no failure yet: the target says how far it has come, and goes on from there.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    EblaError,
    InternalError,
    Overloaded,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import Address, AttemptId, HostId
from ebla.model.token import TokenRange
from ebla.model.transfers import Source, StagedFile, Target
from ebla.storage.checksums import crc32
from ebla.storage.row_file import RECORD_BYTES_MAX, encode_rows
from ebla.wire.flight_forms import BYTES_SCHEMA, END_OF_ROWS, bytes_batch, bytes_in, decode_failure, host_name
from ebla.wire.frames import encode
from ebla.wire.transfer_messages import (
    FilesQuestion,
    FlightGet,
    FlightPut,
    HashesQuestion,
    PutAnswer,
    Question,
    StoredRowsQuestion,
    TypedRowsQuestion,
)

T = TypeVar("T")
ROWS_NAME = "rows"
LOCAL_PIECE_BYTES = 2 << 20
_answers = msgspec.msgpack.Decoder(PutAnswer)
_WORTH_ANOTHER_TRY = (ConnectionLost, DeadlineExceeded, Overloaded, Unavailable, Unreachable)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
)
"""Fewer and larger frames, and room for a few of them under way."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    call_s: float = 60.0
    """For a call that moves nothing, and for the begin of each."""
    bytes_per_s_min: int = 1 << 20
    """What moves more slowly than this is broken off, and gone on with in another call."""
    scan_s: float = 3600.0
    """For rows and hashes: a scan may look at much and say little."""
    tries_max: int = 5
    """In a row without any progress."""
    pause_s: float = 0.5
    """Before the second try, and twice as long before each further one."""
    ahead_pieces: int = 4
    """Read while the ones before are being written."""
    unconfirmed_records: int = 8
    """Of rows, kept for the case that the stream breaks."""
    record_bytes: int = 2 << 20


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file of a checkpoint, by its part and layer."""

    part: int
    layer: int
    file: str


class FileBytes:
    """The bytes of a file from an offset on; iterated once. `checksum` is the whole file's, known at the end."""

    def __init__(self, reader: Any, peer: str) -> None:
        self._reader = reader
        self._peer = peer
        self.checksum: int | None = None

    def __iter__(self) -> Iterator[memoryview]:
        for batch in self.batches():
            yield from bytes_in(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            with _raising(self._peer):
                try:
                    chunk = self._reader.read_chunk()
                except StopIteration:
                    break
            if chunk.app_metadata is not None and chunk.app_metadata.size:
                self.checksum = int.from_bytes(chunk.app_metadata.to_pybytes())
            yield chunk.data
        if self.checksum is None:
            raise ConnectionLost(f"the file from {self._peer} ended without its checksum")

    def cancel(self) -> None:
        self._reader.cancel()


class PutStream:
    """One stream into staging. `begin` says where to go on."""

    def __init__(self, writer: Any, reader: Any, peer: str) -> None:
        self._writer = writer
        self._reader = reader
        self._peer = peer
        self._is_over = False
        self.begin = self.read_answer()

    def read_answer(self) -> PutAnswer:
        with _raising(self._peer):
            told = self._reader.read()
            if told is None:
                self._find_error()
        return _answers.decode(told)

    def write(self, batch: pa.RecordBatch) -> None:
        with _raising(self._peer):
            try:
                self._writer.write_batch(batch)
            except (pa.ArrowException, OSError):
                # What the peer said of it is told at the end alone.
                self._find_error()

    def finish(self, metadata: bytes = b"") -> PutAnswer:
        with _raising(self._peer):
            if metadata:
                self._writer.write_metadata(metadata)
            self._writer.done_writing()
        answer = self.read_answer()
        with _raising(self._peer):
            self._is_over = True
            self._writer.close()
        return answer

    def drop(self) -> None:
        """Twice is no error. The peer finds the stream at its end."""
        if not self._is_over:
            self._is_over = True
            try:
                self._writer.close()
            except (pa.ArrowException, OSError):
                pass  # it was told already, or nobody waits for it any more

    def _find_error(self) -> NoReturn:
        self._is_over = True
        self._writer.close()
        raise ConnectionLost(f"{self._peer} ended the stream")


class _Pieces(Protocol):
    """Batches of a file's bytes. Behind the last one the checksum of the whole file stands in a list of the asker."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class _ReadAhead:
    """A file of a node, read by a thread while what came before is written."""

    def __init__(self, content: FileBytes, ahead: int, checksums: list[int]) -> None:
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
                assert self._content.checksum is not None
                self._checksums.append(self._content.checksum)
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


class _LocalFile:
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


class _RowsPut:
    """Rows on their way into staging. What the target has not confirmed is kept, and sent again after a break."""

    def __init__(self, client: "FlightClient", target: Target, attempt: AttemptId, limits: "ClientLimits") -> None:
        self._client = client
        self._target = target
        self._attempt = attempt
        self._limits = limits
        self._kept: deque[_Record] = deque()
        self._sent = 0
        """Of those kept, on the stream that is open."""
        self._stream: PutStream | None = None
        self._confirmed_bytes = self._size_bytes = self._checksum = 0

    def __enter__(self) -> "_RowsPut":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def send(self, record: bytes) -> None:
        self._size_bytes += len(record)
        self._checksum = crc32(record, self._checksum)
        self._kept.append(_Record(record, self._size_bytes))
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
        put = FlightPut(self._target.ticket, self._attempt, ROWS_NAME, 0, self._confirmed_bytes)
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


class FlightClient:
    """Connections to the nodes of one cluster. For one thread."""

    def __init__(self, authority_pem: bytes, limits: ClientLimits | None = None) -> None:
        self._authority_pem = authority_pem
        self._limits = limits or ClientLimits()
        self._connections: dict[tuple[HostId, Address], flight.FlightClient] = {}
        self._pauses = threading.Event()

    def __enter__(self) -> "FlightClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- out of checkpoints ------------------------------------------------------------------------------------------

    def get_file(self, source: Source, place: FilePlace, offset: int = 0) -> FileBytes:
        size = _size_of(source, place)
        question = FilesQuestion(place.part, place.layer, place.file, offset)
        return FileBytes(self._ask(source, question, self._time_for(size)), str(source.flight))

    def get_rows(self, source: Source, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """Stored rows in key order: columns `key` and `value`."""
        return self._batches(source, StoredRowsQuestion(token_range))

    def get_typed_rows(
        self, source: Source, token_range: TokenRange, columns: tuple[str, ...], now_s: int
    ) -> Iterator[pa.RecordBatch]:
        return self._batches(source, TypedRowsQuestion(token_range, columns, now_s))

    def get_hashes(self, source: Source, question: HashesQuestion) -> pa.RecordBatch:
        """Columns `bucket`, `hash` and `rows`, a line for each bucket."""
        found = self.again(lambda: list(self._batches(source, question)))
        if len(found) != 1:
            raise InternalError(f"{source.flight} answered {len(found)} tables of hashes")
        return found[0]

    def _batches(self, source: Source, question: Question) -> Generator[pa.RecordBatch, None, None]:
        reader = self._ask(source, question, self._limits.scan_s)
        try:
            while True:
                with _raising(str(source.flight)):
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                yield chunk.data
        finally:
            reader.cancel()

    def _ask(self, source: Source, question: Question, timeout_s: float) -> Any:
        ticket = flight.Ticket(encode(FlightGet(source.ticket, question)))
        with _raising(str(source.flight)):
            connection = self._connection(source.host, source.flight)
            return connection.do_get(ticket, flight.FlightCallOptions(timeout=timeout_s))

    # -- into staging ------------------------------------------------------------------------------------------------

    def move_file(self, source: Source, place: FilePlace, target: Target, attempt: AttemptId, name: str) -> StagedFile:
        """From a checkpoint into staging; the target has what the source has."""
        size = _size_of(source, place)
        expected: list[int] = []

        def read(offset: int) -> _Pieces:
            return _ReadAhead(self.get_file(source, place, offset), self._limits.ahead_pieces, expected)

        answer = self._put_bytes(target, FlightPut(target.ticket, attempt, name, size), read)
        if answer.checksum != expected[-1]:
            raise Corruption(
                f"{name} came to {target.flight} with checksum {answer.checksum:08x}, "
                f"at {source.flight} it has {expected[-1]:08x}"
            )
        return StagedFile(name, size, answer.checksum)

    def put_file(self, target: Target, attempt: AttemptId, name: str, path: str) -> StagedFile:
        """A file of this machine, which nobody changes meanwhile."""
        size = os.path.getsize(path)
        checksums: list[int] = []

        def read(offset: int) -> _Pieces:
            return _LocalFile(path, offset, checksums)

        answer = self._put_bytes(target, FlightPut(target.ticket, attempt, name, size), read)
        if answer.checksum != checksums[-1]:
            raise Corruption(f"{name} came to {target.flight} with other bytes than were sent")
        return StagedFile(name, size, answer.checksum)

    def put_rows(self, target: Target, attempt: AttemptId, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        """Stored rows, in key order over all batches, with the columns `key` and `value`."""
        with _RowsPut(self, target, attempt, self._limits) as put:
            for record in records_of(batches, self._limits.record_bytes):
                put.send(record)
            return put.finish()

    def _put_bytes(self, target: Target, put: FlightPut, read: Callable[[int], _Pieces]) -> PutAnswer:
        reached = [0]

        def once() -> PutAnswer:
            stream = self.open_put(target, put, self._time_for(put.size_bytes))
            try:
                reached[0] = max(reached[0], stream.begin.received_bytes)
                pieces = read(stream.begin.received_bytes)
                try:
                    for batch in pieces:
                        stream.write(batch)
                finally:
                    pieces.close()
                return stream.finish()
            finally:
                stream.drop()

        return self.again(once, lambda: reached[0])

    def open_put(self, target: Target, put: FlightPut, timeout_s: float) -> PutStream:
        descriptor = flight.FlightDescriptor.for_command(encode(put))
        with _raising(str(target.flight)):
            connection = self._connection(target.host, target.flight)
            options = flight.FlightCallOptions(timeout=timeout_s)
            writer, reader = connection.do_put(descriptor, BYTES_SCHEMA, options)
        return PutStream(writer, reader, str(target.flight))

    # -- both --------------------------------------------------------------------------------------------------------

    def again(self, act: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Until it comes to an end, while a further try may help or the last one brought something."""
        tries, reached = 0, progress()
        while True:
            try:
                return act()
            except _WORTH_ANOTHER_TRY:
                tries, before, reached = tries + 1, reached, progress()
                if reached > before:
                    tries = 1
                if tries >= self._limits.tries_max:
                    raise
            self._pauses.wait(self._limits.pause_s * 2 ** (tries - 1))

    def _connection(self, host: HostId, address: Address) -> flight.FlightClient:
        known = self._connections.get((host, address))
        if known is None:
            known = flight.FlightClient(
                flight.Location.for_grpc_tls(address.host, address.port),
                tls_root_certs=self._authority_pem,
                # Certificates name hosts by their id; this is the name that is compared.
                override_hostname=host_name(host),
                generic_options=list(CHANNEL_OPTIONS),
            )
            self._connections[(host, address)] = known
        return known

    def _time_for(self, size_bytes: int) -> float:
        return self._limits.call_s + size_bytes / self._limits.bytes_per_s_min


def records_of(batches: Iterable[pa.RecordBatch], record_bytes: int) -> Iterator[bytes]:
    """Rows as records of about this size; a single row may be larger."""
    for batch in batches:
        count = max(1, -(-batch.nbytes // record_bytes))
        rows = max(1, -(-len(batch) // count))
        for start in range(0, len(batch), rows):
            yield from _records(batch.slice(start, rows))


def _records(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Halved until it fits: a slice may hold the one large row of its batch."""
    if len(batch) > 1 and batch.nbytes > RECORD_BYTES_MAX // 2:
        middle = len(batch) // 2
        yield from _records(batch.slice(0, middle))
        yield from _records(batch.slice(middle))
    else:
        yield encode_rows(batch)


def flight_failure(error: Exception, peer: str) -> EblaError:
    """What was raised at the other side; or what became of the connection."""
    told = getattr(error, "extra_info", b"")
    found = decode_failure(told) if told else None
    if found is not None:
        return found
    words = str(error).split(". ")[0]
    match error:
        case flight.FlightUnavailableError():
            return Unreachable(f"{peer} cannot be reached: {words}")
        case flight.FlightTimedOutError():
            return DeadlineExceeded(f"{peer} did not answer in time: {words}")
        case _:
            return ConnectionLost(f"the stream with {peer} broke: {words}")


@contextmanager
def _raising(peer: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise flight_failure(error, peer) from None


def _size_of(source: Source, place: FilePlace) -> int:
    files = source.parts[place.part].layers[place.layer].files
    return next(file.size_bytes for file in files if file.name == place.file)
