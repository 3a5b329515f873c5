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

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, Unreachable
from ebla.wire.flight_forms import bytes_in, decode_failure
from ebla.wire.transfer_messages import PutAnswer

_answers = msgspec.msgpack.Decoder(PutAnswer)


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
    room_s: float = 900.0
    """How long a task that holds nothing asks a node that has no room: there may be many more tasks than a node takes
    streams, and each comes to its turn."""
    room_pause_s: float = 2.0
    ahead_pieces: int = 4
    """Read while the ones before are being written."""
    unconfirmed_records: int = 8
    """Of rows, kept for the case that the stream breaks."""
    record_bytes: int = 2 << 20


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
            with raising(self._peer):
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
        with raising(self._peer):
            told = self._reader.read()
            if told is None:
                self._find_error()
        return _answers.decode(told)

    def write(self, batch: pa.RecordBatch) -> None:
        with raising(self._peer):
            try:
                self._writer.write_batch(batch)
            except (pa.ArrowException, OSError):
                # What the peer said of it is told at the end alone.
                self._find_error()

    def finish(self, metadata: bytes = b"") -> PutAnswer:
        with raising(self._peer):
            if metadata:
                self._writer.write_metadata(metadata)
            self._writer.done_writing()
        answer = self.read_answer()
        with raising(self._peer):
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
def raising(peer: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise flight_failure(error, peer) from None
