"""One call of Flight as a task sees it: a file that comes, a stream into staging; and what became of it.

Errors are those that were raised at the other side, or tell what became of the connection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from ebla.model.errors import ConnectionLost, Corruption, DeadlineExceeded, EblaError, Unreachable
from ebla.model.transfers import StagedFile
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import decode_records
from ebla.wire.flight_format import END_OF_ROWS, MERGED_RUNS, byte_values, decode_checksums, decode_failure
from ebla.wire.transfer_messages import PutAnswer

_answers = msgspec.msgpack.Decoder(PutAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightClientLimits:
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
    room_s: float = 900.0
    """How long a task that holds nothing asks a node that has no room: there may be many more tasks than a node takes
    streams, and each comes to its turn."""
    room_pause_s: float = 2.0
    read_ahead_batches: int = 4
    """Read while the ones before are being written."""
    direct_read_bytes: int = 1 << 20
    """What is no larger is not read ahead."""
    grouped_bytes: int = 32 << 20
    """Of small files that move on one stream. One of more than half of it has a stream of its own, which goes on from
    where it broke."""
    unconfirmed_records: int = 8
    """Of rows, kept for the case that the stream breaks."""
    record_bytes: int = 2 << 20


class FileStream:
    """The bytes of a file from an offset on, or of several files; iterated once. Their checksums, each of a whole file,
    are known at the end."""

    def __init__(self, reader: Any, peer: str, files: int = 1) -> None:
        self._reader = reader
        self._peer = peer
        self._files = files
        self.checksums: list[int] = []

    def __iter__(self) -> Iterator[memoryview]:
        for batch in self.batches():
            yield from byte_values(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
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
    """Rows that were staged, as batches with the columns `key` and `value`; iterated once, to its end or `cancel`.

    `is_merged`: they are those of all attempts that were sealed, and not of the one that was asked for. Of one attempt
    `expected`, if given, is what it told to have brought, and the end says so if that is not what came."""

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
                raise ConnectionLost(f"the staged rows from {self._peer} ended before their end") from None

    def _check(self) -> None:
        expected = self._expected
        if expected is None or self.is_merged:
            return
        if (self._bytes, self._checksum) != (expected.size_bytes, expected.checksum):
            raise Corruption(
                f"the staged rows from {self._peer} have {self._bytes} bytes with checksum {self._checksum:08x}, and "
                f"{expected.size_bytes} with {expected.checksum:08x} were brought"
            )


def _metadata(chunk: Any) -> bytes:
    told: bytes = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
    return told


class PutStream:
    """One stream into staging. `begin` says where to go on."""

    def __init__(self, writer: Any, reader: Any, peer: str) -> None:
        self._writer = writer
        self._reader = reader
        self._peer = peer
        self._is_over = False
        self.begin = self.read_answer()

    def read_answer(self) -> PutAnswer:
        with translating_errors(self._peer):
            told = self._reader.read()
            if told is None:
                self._find_error()
        return _answers.decode(told)

    def write(self, batch: pa.RecordBatch) -> None:
        with translating_errors(self._peer):
            try:
                self._writer.write_batch(batch)
            except (pa.ArrowException, OSError):
                # What the peer said of it is told at the end alone.
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


def error_of_flight(error: Exception, peer: str) -> EblaError:
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
def translating_errors(peer: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise error_of_flight(error, peer) from None
