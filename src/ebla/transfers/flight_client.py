"""What tasks use to read checkpoints and to fill staging: Arrow Flight, with tickets, over TLS.

It runs on executors, far from any node: it knows the words of the wire and nothing of a node's inside, and takes from a
`TransferSource` or a `TransferTarget` all it has to know. The authority of the cluster says whom to trust, and the
certificate must be
that of the host that the ticket is for. Every wait is bounded: a call by what it moves, tries by their number.

A stream that breaks is no failure yet: the target says how far it has come, and goes on from there.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from ebla.model.errors import Corruption, EblaError, InternalError, Overloaded
from ebla.model.identity import Address, AttemptId, HostId
from ebla.model.token import TokenRange
from ebla.model.transfers import StagedFile, TransferSource, TransferTarget
from ebla.storage.codec.row_file import records_of
from ebla.storage.layers.malloc import keep_freed_buffers
from ebla.transfers.flight_calls import (
    FileStream,
    FlightClientLimits,
    PutStream,
    StagedRecordStream,
    translating_errors,
)
from ebla.transfers.flight_puts import ByteBatches, DirectRead, LocalFileRead, ReadAhead, RowUpload
from ebla.transfers.task_bundles import group_small_files
from ebla.wire.flight_format import BYTES_SCHEMA, certificate_host_name, flight_uri
from ebla.wire.frames import encode
from ebla.wire.transfer_messages import (
    FilesQuery,
    FlightGet,
    FlightPut,
    FlightQuery,
    HashesQuery,
    PutAnswer,
    StagedRowsQuery,
    StoredRowsQuery,
    TypedRowsQuery,
)

T = TypeVar("T")

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.enable_http_proxy", 0),
)
"""Fewer and larger frames, and room for a few of them under way. A proxy that the machine has for the web is none for
nodes."""


@dataclass(frozen=True, slots=True)
class CheckpointFileRef:
    """A file of a checkpoint, by its part and layer."""

    part: int
    layer: int
    file: str

    @property
    def staged_name(self) -> str:
        return f"{self.layer}/{self.file}"


class FlightClient:
    """Connections to the nodes of one cluster. For one thread."""

    def __init__(self, authority_pem: bytes, limits: FlightClientLimits | None = None, run: str = "") -> None:
        keep_freed_buffers()
        self._run = run
        self._authority_pem = authority_pem
        self._limits = limits or FlightClientLimits()
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

    def get_file(self, source: TransferSource, place: CheckpointFileRef, offset: int = 0) -> FileStream:
        size = _size_of(source, place)
        query = FilesQuery(part=place.part, layer=place.layer, file=place.file, offset=offset)
        return FileStream(self._ask(source, query, self._time_for(size)), str(source.flight))

    def get_rows(self, source: TransferSource, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """Stored rows in key order: columns `key` and `value`."""
        return self._batches(source, StoredRowsQuery(range=token_range))

    def get_typed_rows(self, source: TransferSource, query: TypedRowsQuery) -> Iterator[pa.RecordBatch]:
        return self._batches(source, query)

    def get_hashes(self, source: TransferSource, query: HashesQuery) -> pa.RecordBatch:
        """Columns `bucket`, `hash` and `rows`, a line for each bucket."""
        found = self.again(lambda: list(self._batches(source, query)), room_s=self._limits.room_s)
        if len(found) != 1:
            raise InternalError(f"{source.flight} answered {len(found)} tables of hashes")
        return found[0]

    def _batches(self, source: TransferSource, query: FlightQuery) -> Generator[pa.RecordBatch, None, None]:
        reader = self._ask(source, query, self._limits.scan_s)
        try:
            while True:
                with translating_errors(str(source.flight)):
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                yield chunk.data
        finally:
            reader.cancel()

    def _ask(self, source: TransferSource, query: FlightQuery, timeout_s: float) -> Any:
        ticket = flight.Ticket(encode(FlightGet(source.ticket, query, self._run)))
        with translating_errors(str(source.flight)):
            connection = self._connection(source.host, source.flight)
            return connection.do_get(ticket, flight.FlightCallOptions(timeout=timeout_s))

    # -- into staging ------------------------------------------------------------------------------------------------

    def move_file(
        self, source: TransferSource, place: CheckpointFileRef, target: TransferTarget, attempt: AttemptId, name: str
    ) -> StagedFile:
        """From a checkpoint into staging; the target has what the source has."""
        size = _size_of(source, place)
        expected: list[int] = []

        def read(offset: int) -> ByteBatches:
            return self._read(self.get_file(source, place, offset), size - offset, expected)

        answer = self._put_bytes(
            target, FlightPut(ticket=target.ticket, attempt=attempt, name=name, size_bytes=size), read
        )
        if answer.checksum != expected[-1]:
            raise _other_bytes(name, source, target, answer, expected[-1])
        return StagedFile(name, size, answer.checksum)

    def move_files(
        self, source: TransferSource, places: Sequence[CheckpointFileRef], target: TransferTarget, attempt: AttemptId
    ) -> tuple[StagedFile, ...]:
        """Files of one part, under their layers and names, none of them begun before. Small ones move together: to open
        and end two streams costs more than the bytes of most. What breaks there goes on file by file, each from where
        it has come to."""
        staged: list[StagedFile] = []
        for group in group_small_files(
            [(place, _size_of(source, place)) for place in places], self._limits.grouped_bytes
        ):
            moved: Sequence[StagedFile] | None = None
            if len(group) > 1:
                try:
                    moved = self._move_together(source, group, target, attempt)
                except EblaError as error:
                    if not error.is_transient:
                        raise
            if moved is None:
                moved = [self.move_file(source, one, target, attempt, one.staged_name) for one in group]
            staged += moved
        return tuple(staged)

    def _move_together(
        self, source: TransferSource, places: Sequence[CheckpointFileRef], target: TransferTarget, attempt: AttemptId
    ) -> list[StagedFile] | None:
        """None: the target takes them one by one."""
        first, *others = places
        sizes = [_size_of(source, place) for place in places]
        more = tuple((place.staged_name, size) for place, size in zip(others, sizes[1:]))
        time_s, expected = self._time_for(sum(sizes)), list[int]()
        stream = self.open_put(
            target,
            FlightPut(
                ticket=target.ticket, attempt=attempt, name=first.staged_name, size_bytes=sizes[0], offset=0, more=more
            ),
            time_s,
        )
        try:
            if stream.begin.files != len(places):
                return None
            query = FilesQuery(
                part=first.part,
                layer=first.layer,
                file=first.file,
                offset=0,
                more=tuple((place.layer, place.file) for place in others),
            )
            content = FileStream(self._ask(source, query, time_s), str(source.flight), len(places))
            pieces = self._read(content, sum(sizes), expected)
            try:
                for batch in pieces:
                    stream.write(batch)
            finally:
                pieces.close()
            answers = stream.finish_all(len(places))
        finally:
            stream.drop()
        for place, answer, checksum in zip(places, answers, expected):
            if answer.checksum != checksum:
                raise _other_bytes(place.staged_name, source, target, answer, checksum)
        return [
            StagedFile(place.staged_name, size, answer.checksum) for place, size, answer in zip(places, sizes, answers)
        ]

    def _read(self, content: FileStream, size_bytes: int, checksums: list[int]) -> ByteBatches:
        if size_bytes <= self._limits.direct_read_bytes:
            return DirectRead(content, checksums)
        return ReadAhead(content, self._limits.read_ahead_batches, checksums)

    def put_file(self, target: TransferTarget, attempt: AttemptId, name: str, path: str) -> StagedFile:
        """A file of this machine, which nobody changes meanwhile."""
        size = os.path.getsize(path)
        checksums: list[int] = []

        def read(offset: int) -> ByteBatches:
            return LocalFileRead(path, offset, checksums)

        answer = self._put_bytes(
            target, FlightPut(ticket=target.ticket, attempt=attempt, name=name, size_bytes=size), read
        )
        if answer.checksum != checksums[-1]:
            raise Corruption(f"{name} came to {target.flight} with other bytes than were sent")
        return StagedFile(name, size, answer.checksum)

    def put_rows(self, target: TransferTarget, attempt: AttemptId, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        """Stored rows, in key order over all batches, with the columns `key` and `value`."""
        with RowUpload(self, target, attempt, self._limits) as put:
            for record in records_of(batches, self._limits.record_bytes):
                put.send(record)
            return put.finish()

    def get_staged_rows(
        self, target: TransferTarget, attempt: AttemptId, expected: StagedFile | None = None
    ) -> StagedRecordStream:
        """What an attempt has put there, to be put elsewhere. Once the transfer is sealed: what all that count have,
        merged, whichever of them is asked for (`is_merged`). While it is being sealed this waits for it."""

        def ask() -> StagedRecordStream:
            ticket = flight.Ticket(encode(FlightGet(target.ticket, StagedRowsQuery(attempt))))
            with translating_errors(str(target.flight)):
                connection = self._connection(target.host, target.flight)
                reader = connection.do_get(ticket, flight.FlightCallOptions(timeout=self._limits.scan_s))
            return StagedRecordStream(reader, str(target.flight), expected)

        return self.again(ask, room_s=self._limits.room_s)

    def _put_bytes(self, target: TransferTarget, put: FlightPut, read: Callable[[int], ByteBatches]) -> PutAnswer:
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

        return self.again(once, lambda: reached[0], room_s=self._limits.room_s)

    def open_put(self, target: TransferTarget, put: FlightPut, timeout_s: float) -> PutStream:
        descriptor = flight.FlightDescriptor.for_command(encode(put))
        with translating_errors(str(target.flight)):
            connection = self._connection(target.host, target.flight)
            options = flight.FlightCallOptions(timeout=timeout_s)
            writer, reader = connection.do_put(descriptor, BYTES_SCHEMA, options)
        return PutStream(writer, reader, str(target.flight))

    # -- both --------------------------------------------------------------------------------------------------------

    def again(self, act: Callable[[], T], progress: Callable[[], int] = lambda: 0, *, room_s: float = 0.0) -> T:
        """Until it comes to an end, while a further try may help or the last one brought something. `room_s`: how long
        to be turned away for want of room is no try. Not for who holds a stream meanwhile: others may wait for that."""
        tries, reached, waited_s = 0, progress(), 0.0
        while True:
            try:
                return act()
            except EblaError as error:
                if not error.is_transient:
                    raise
                waits = isinstance(error, Overloaded) and waited_s < room_s
                tries, before, reached = tries + (not waits), reached, progress()
                if reached > before:
                    tries = 1
                if tries >= self._limits.tries_max:
                    raise
            pause_s = self._limits.room_pause_s if waits else self._limits.pause_s * 2 ** (tries - 1)
            waited_s += pause_s if waits else 0.0
            self._pauses.wait(pause_s)

    def _connection(self, host: HostId, address: Address) -> flight.FlightClient:
        known = self._connections.get((host, address))
        if known is None:
            known = flight.FlightClient(
                flight_uri(address),
                tls_root_certs=self._authority_pem,
                # Certificates name hosts by their id; this is the name that is compared.
                override_hostname=certificate_host_name(host),
                generic_options=list(CHANNEL_OPTIONS),
            )
            self._connections[(host, address)] = known
        return known

    def _time_for(self, size_bytes: int) -> float:
        return self._limits.call_s + size_bytes / self._limits.bytes_per_s_min


def _other_bytes(
    name: str, source: TransferSource, target: TransferTarget, answer: PutAnswer, expected: int
) -> Corruption:
    return Corruption(
        f"{name} came to {target.flight} with checksum {answer.checksum:08x}, at {source.flight} it has {expected:08x}"
    )


def _size_of(source: TransferSource, place: CheckpointFileRef) -> int:
    files = source.parts[place.part].layers[place.layer].files
    return next(file.size_bytes for file in files if file.name == place.file)
