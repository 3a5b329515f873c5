"""The Arrow Flight client of transfer tasks: reads checkpoints and fills staging, with tickets, over TLS.

It runs on executors, far from any node: it knows the wire format and nothing of a node's inside, and takes all it needs
from a `TransferSource` or a `TransferTarget`. It trusts the authority of the cluster, and the certificate must be that
of the host that issued the ticket. Every wait is bounded: a call by the bytes that it moves, retries by their number.

A stream that breaks is not a failure yet: the target reports how much it has received, and the client continues there.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from ebla.aio.retry import Backoff, retry_with_policy
from ebla.model.errors import Corruption, EblaError, InternalError, Overloaded
from ebla.model.identity import Address, AttemptId, HostId
from ebla.model.token import TokenRange
from ebla.model.transfers import StagedFile, TransferSource, TransferTarget
from ebla.storage.codec.row_file import records_of
from ebla.storage.layers.malloc import keep_freed_buffers
from ebla.transfers.flight_streams import (
    FileStream,
    FlightClientLimits,
    PutStream,
    RowUpload,
    StagedRecordStream,
    read_ahead,
    translating_errors,
)
from ebla.wire.flight_format import BYTES_SCHEMA, FILES_TOGETHER_MAX, certificate_host_name, flight_uri
from ebla.wire.frames import encode
from ebla.wire.table_calls import ReadSource
from ebla.wire.transfer_messages import (
    FilesQuery,
    FlightGet,
    FlightPut,
    FlightQuery,
    HashesQuery,
    PutAnswer,
    StagedRowsQuery,
    StoredRowsQuery,
)

T = TypeVar("T")
W = TypeVar("W")

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.enable_http_proxy", 0),
)
"""Fewer and larger frames, and several of them in flight. The machine's web proxy is not used for nodes."""


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
        self.authority_pem = authority_pem
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

    def get_file(self, source: TransferSource, file: CheckpointFileRef, offset: int = 0) -> FileStream:
        size = _size_of(source, file)
        query = FilesQuery(part=file.part, layer=file.layer, file=file.file, offset=offset)
        return FileStream(self._get(source, query, self._time_for(size)), str(source.flight))

    def get_rows(self, source: TransferSource, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """Stored rows in key order: columns `key` and `value`."""
        return self.get_batches(source, StoredRowsQuery(range=token_range))

    def get_hashes(self, source: TransferSource, query: HashesQuery) -> pa.RecordBatch:
        """Columns `bucket`, `hash` and `rows`, one row for each bucket."""
        batches = self.retry(lambda: list(self.get_batches(source, query)), overload_s=self._limits.overload_s)
        if len(batches) != 1:
            raise InternalError(f"{source.flight} sent {len(batches)} tables of hashes")
        return batches[0]

    def get_batches(
        self, source: TransferSource | ReadSource, query: FlightQuery
    ) -> Generator[pa.RecordBatch, None, None]:
        reader = self._get(source, query, self._limits.scan_s)
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

    def _get(self, source: TransferSource | ReadSource, query: FlightQuery, timeout_s: float) -> Any:
        ticket = flight.Ticket(encode(FlightGet(source.ticket, query, self._run)))
        with translating_errors(str(source.flight)):
            connection = self._connection(source.host, source.flight)
            return connection.do_get(ticket, flight.FlightCallOptions(timeout=timeout_s))

    # -- into staging ------------------------------------------------------------------------------------------------

    def move_file(
        self, source: TransferSource, file: CheckpointFileRef, target: TransferTarget, attempt: AttemptId, name: str
    ) -> StagedFile:
        """Copies a file of a checkpoint into staging, and checks that the target has the bytes of the source."""
        size = _size_of(source, file)
        put = FlightPut(ticket=target.ticket, attempt=attempt, name=name, size_bytes=size)
        reached = expected = 0

        def once() -> PutAnswer:
            nonlocal reached, expected
            stream = self.open_put(target, put, self._time_for(size))
            try:
                offset = stream.begin.received_bytes
                reached = max(reached, offset)
                content = self.get_file(source, file, offset)
                self._write_all(stream, content, size - offset)
                (expected,) = content.checksums
                return stream.finish()
            finally:
                stream.drop()

        answer = self.retry(once, lambda: reached, overload_s=self._limits.overload_s)
        if answer.checksum != expected:
            raise _other_bytes(name, source, target, answer, expected)
        return StagedFile(name=name, size_bytes=size, checksum=answer.checksum)

    def move_files(
        self, source: TransferSource, files: Sequence[CheckpointFileRef], target: TransferTarget, attempt: AttemptId
    ) -> tuple[StagedFile, ...]:
        """Copies files of one part that this attempt has not begun before. Small files share a stream: to open and
        close two streams costs more than the bytes of most. If a shared stream breaks, its files continue one by one,
        each from where it was."""
        staged: list[StagedFile] = []
        for group in group_small_files([(file, _size_of(source, file)) for file in files], self._limits.grouped_bytes):
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
        self, source: TransferSource, files: Sequence[CheckpointFileRef], target: TransferTarget, attempt: AttemptId
    ) -> list[StagedFile] | None:
        """None: the target accepts only one file per stream."""
        first, *others = files
        sizes = [_size_of(source, file) for file in files]
        more = tuple((file.staged_name, size) for file, size in zip(others, sizes[1:]))
        time_s = self._time_for(sum(sizes))
        stream = self.open_put(
            target,
            FlightPut(
                ticket=target.ticket, attempt=attempt, name=first.staged_name, size_bytes=sizes[0], offset=0, more=more
            ),
            time_s,
        )
        try:
            if stream.begin.files != len(files):
                return None
            query = FilesQuery(
                part=first.part,
                layer=first.layer,
                file=first.file,
                offset=0,
                more=tuple((file.layer, file.file) for file in others),
            )
            content = FileStream(self._get(source, query, time_s), str(source.flight), len(files))
            self._write_all(stream, content, sum(sizes))
            answers = stream.finish_all(len(files))
        finally:
            stream.drop()
        for file, answer, checksum in zip(files, answers, content.checksums):
            if answer.checksum != checksum:
                raise _other_bytes(file.staged_name, source, target, answer, checksum)
        return [
            StagedFile(name=file.staged_name, size_bytes=size, checksum=answer.checksum)
            for file, size, answer in zip(files, sizes, answers)
        ]

    def _write_all(self, stream: PutStream, content: FileStream, size_bytes: int) -> None:
        # For small files a thread would cost more than it gains.
        is_small = size_bytes <= self._limits.direct_read_bytes
        batches = content.batches() if is_small else read_ahead(content, self._limits.read_ahead_batches)
        try:
            for batch in batches:
                stream.write(batch)
        finally:
            batches.close()
            content.cancel()

    def put_rows(self, target: TransferTarget, attempt: AttemptId, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        """Uploads stored rows, in key order over all batches, with the columns `key` and `value`."""
        with RowUpload(self, target, attempt, self._limits) as put:
            for record in records_of(batches, self._limits.record_bytes):
                put.send(record)
            return put.finish()

    def put_records(self, target: TransferTarget, attempt: AttemptId, records: Iterable[bytes]) -> StagedFile:
        """Uploads rows as records, which can be iterated again. A node without room for another stream is retried for
        `overload_s`: the caller holds nothing meanwhile that others might wait for. Only pauses count: an attempt may
        take long itself, and is not waiting for room then."""

        def put_once() -> StagedFile:
            with RowUpload(self, target, attempt, self._limits) as put:
                for record in records:
                    put.send(record)
                return put.finish()

        # The upload itself retries after other transient errors.
        return self.retry(put_once, attempts_max=1, overload_s=self._limits.overload_s)

    def get_staged_rows(
        self, target: TransferTarget, attempt: AttemptId, expected: StagedFile | None = None
    ) -> StagedRecordStream:
        """The rows that an attempt has staged, to be copied elsewhere. Once the transfer is sealed: the rows of all
        sealed attempts, merged, whichever is asked for (`is_merged`). While it is being sealed, this waits."""

        def get() -> StagedRecordStream:
            ticket = flight.Ticket(encode(FlightGet(target.ticket, StagedRowsQuery(attempt))))
            with translating_errors(str(target.flight)):
                connection = self._connection(target.host, target.flight)
                reader = connection.do_get(ticket, flight.FlightCallOptions(timeout=self._limits.scan_s))
            return StagedRecordStream(reader, str(target.flight), expected)

        return self.retry(get, overload_s=self._limits.overload_s)

    def open_put(self, target: TransferTarget, put: FlightPut, timeout_s: float) -> PutStream:
        descriptor = flight.FlightDescriptor.for_command(encode(put))
        with translating_errors(str(target.flight)):
            connection = self._connection(target.host, target.flight)
            options = flight.FlightCallOptions(timeout=timeout_s)
            writer, reader = connection.do_put(descriptor, BYTES_SCHEMA, options)
        return PutStream(writer, reader, str(target.flight))

    # -- both --------------------------------------------------------------------------------------------------------

    def retry(
        self,
        call: Callable[[], T],
        progress: Callable[[], int] = lambda: 0,
        *,
        attempts_max: int | None = None,
        overload_s: float = 0.0,
    ) -> T:
        """Retries after a transient error, `attempts_max` times without progress (by default as the limits say). For
        `overload_s` an `Overloaded` node does not count as an attempt. Not for a caller that holds a stream meanwhile:
        others may wait for that one."""
        limits = self._limits
        attempts_max = attempts_max or limits.attempts_max
        backoff = Backoff(first_s=limits.pause_s, max_s=float("inf"))
        attempts, reached, waited_s = 0, progress(), 0.0

        def pause_after(error: EblaError) -> float | None:
            nonlocal attempts, reached, waited_s
            if not error.is_transient:
                return None
            if isinstance(error, Overloaded) and waited_s < overload_s:
                waited_s += limits.overload_pause_s
                return limits.overload_pause_s
            before, reached = reached, progress()
            attempts = 1 if reached > before else attempts + 1
            return backoff.pause_s(attempts) if attempts < attempts_max else None

        return retry_with_policy(call, pause_after, self._pauses.wait)

    def _connection(self, host: HostId, address: Address) -> flight.FlightClient:
        known = self._connections.get((host, address))
        if known is None:
            known = flight.FlightClient(
                flight_uri(address),
                tls_root_certs=self.authority_pem,
                # Certificates name hosts by their id; this is the name that is checked.
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
        f"{name} arrived at {target.flight} with checksum {answer.checksum:08x}; {source.flight} has {expected:08x}"
    )


def _size_of(source: TransferSource, file: CheckpointFileRef) -> int:
    files = source.parts[file.part].layers[file.layer].files
    return next(one.size_bytes for one in files if one.name == file.file)


def group_small_files(sized: Sequence[tuple[W, int]], bytes_max: int) -> list[list[W]]:
    """The files that share a stream: small ones together, up to `bytes_max`; a file of more than half of that alone."""
    groups: list[list[W]] = []
    small: list[W] = []
    left = bytes_max
    for one, size in sized:
        if size > bytes_max // 2:
            groups.append([one])
            continue
        if small and (size > left or len(small) == FILES_TOGETHER_MAX):
            groups.append(small)
            small, left = [], bytes_max
        small.append(one)
        left -= size
    return [*groups, small] if small else groups
