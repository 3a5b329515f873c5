"""`TransfersRig` for the engine on Spark: real Flight servers over plain folders, all in this process.

The servers, rows and hashes are the product's; behind them is only what a task can see.
"""

import asyncio
import threading
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
from tests.pipeline.transfers_contract import Files
from tests.unit.storage.random_rows import MIXED

from ebla.bulk.flight_server import FlightCertificate, FlightServer
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.bulk.workers.messages import ScanJob
from ebla.model.errors import Corruption, Stale
from ebla.model.identity import (
    Address,
    AttemptId,
    CheckpointId,
    ClusterId,
    HostId,
    JobId,
    SessionId,
    ShardNumber,
    TransferId,
)
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import (
    ROWS_NAME,
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    MoveResult,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.runtime.machine_id import machine_id
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tls import Validity, make_authority, make_node_certificate
from ebla.storage.codec.key_codec import in_spans, key_spans
from ebla.storage.codec.row_file import RECORD_HEADER_BYTES, ROWS_SCHEMA, decode_body, read_header, rows_batch
from ebla.storage.columns.chunks import ChunkShape, chunk_of
from ebla.storage.layers.layer import Item
from ebla.storage.scan.range_hashes import HASHES_SCHEMA, RangeHasher
from ebla.wire.transfer_messages import FlightPut, HashesQuery, PutAnswer, StoredRowsQuery

T = TypeVar("T")
ROWS_OF_A_BATCH = 7
PATIENCE_S = 150.0


class LoopThread:
    """An event loop in its own thread, for objects that outlive a test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop")
        self._thread.start()

    def run(self, work: "Awaitable[T]", timeout_s: float = PATIENCE_S) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(timeout_s):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(timeout_s + 10)

    def call(self, act: Callable[[], T]) -> T:
        async def called() -> T:
            return act()

        return self.run(called())

    def start(self, work: Callable[[], Awaitable[None]]) -> "asyncio.Future[None]":
        async def started() -> "asyncio.Future[None]":
            return asyncio.ensure_future(work())

        return self.run(started())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@dataclass(slots=True, kw_only=True)
class Plane:
    """`bulk.data_plane.DataPlane` over plain folders. Tickets are folder names."""

    root: Path
    sources: dict[bytes, SourceStream] = field(default_factory=dict)
    closed: dict[SessionId, None] = field(default_factory=dict)
    refused: int = 0
    fails: int = 0
    """This many streams fail before their first byte."""
    is_held: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)
    someone_waits: asyncio.Event = field(default_factory=asyncio.Event)

    def open_source(self, ticket: bytes) -> SourceStream:
        source = self.sources[ticket]
        self._check(source.session)
        return source

    async def open_read(self, ticket: bytes, asked: TokenRange, run: str = "") -> SourceStream:
        return self.sources[ticket]

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        raise AssertionError("staged files are not read here")

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        if self.fails:
            self.fails -= 1
            raise Corruption("the disk of the source is on fire")
        while self.is_held:
            self.someone_waits.set()
            await self.released.wait()
        self._check(source.session)

    def close_source(self, source: SourceStream) -> None:
        pass

    async def open_put(self, put: FlightPut) -> IncomingPut:
        session, _, transfer = put.ticket.decode().partition("/")
        self._check(SessionId(uuid.UUID(session)))
        path = self.root / transfer / str(put.attempt) / put.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("xb").close()
        kind = StagingKind.ROWS if put.name == ROWS_NAME else StagingKind.FILES
        return IncomingPut(
            session=SessionId(uuid.UUID(session)),
            transfer=TransferId(uuid.UUID(transfer)),
            attempt=put.attempt,
            name=put.name,
            kind=kind,
            size_bytes=put.size_bytes,
            received_bytes=0,
        )

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        self._check(place.session)
        with (self.root / str(place.transfer) / str(place.attempt) / place.name).open("ab") as file:
            file.write(data)
        place.received_bytes += len(data)
        place.checksum = zlib.crc32(data, place.checksum)

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        return PutAnswer(place.received_bytes, place.checksum)

    def close_put(self, place: IncomingPut) -> None:
        pass

    def _check(self, session: SessionId | None) -> None:
        if session in self.closed:
            self.refused += 1
            raise Stale(f"session {session} is closed")


class Scan:
    """`bulk.workers.bulk_workers.WorkerScan` over the rows of a source."""

    def __init__(self) -> None:
        self._found: Sequence[pa.RecordBatch] = ()

    def start(self, job: ScanJob) -> pa.Schema:
        folders = [Path(folder) for stack in job.stacks for folder, _ in stack.layers]
        rows = [item for folder in folders for item in msgspec.msgpack.decode((folder / "rows").read_bytes())]
        spans = key_spans(job.query.range)
        rows = [(key, value) for key, value in rows if in_spans(key, spans)]
        match job.query:
            case StoredRowsQuery():
                starts = range(0, len(rows), ROWS_OF_A_BATCH)
                self._found = [rows_batch(rows[start : start + ROWS_OF_A_BATCH]) for start in starts]
                return ROWS_SCHEMA
            case HashesQuery() as query:
                hashes = RangeHasher(job.schema, query.range, query.buckets, query.gc_before_s)
                if rows:
                    hashes.add(chunk_of(ChunkShape(job.schema), *rows_batch(rows).columns))
                self._found = [hashes.result()]
                return HASHES_SCHEMA
            case _:
                raise AssertionError(job.query)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from self._found

    def close(self) -> None:
        pass


class Scans:
    async def start(self, _deadline_s: float) -> Scan:
        return Scan()


def unheard(event: str, details: Any) -> None:
    """Killed tasks break streams; that is expected."""


class FlightRig:
    """Its servers run on the given loop; a test with an engine sets `transfers`."""

    transfers: Any

    def __init__(self, loop: LoopThread, folder: Path) -> None:
        self.loop = loop
        self._folder = folder
        self._machine = f"{machine_id()}.{uuid.uuid4().hex}"
        self.stream_service = loop.call(lambda: Plane(root=folder / "staging"))
        self.session = SessionId(uuid.uuid4())
        cluster, self.host = ClusterId(uuid.uuid4()), HostId(uuid.uuid4())
        validity = Validity.days(SystemClock(), 1)
        authority = make_authority(cluster, "test", validity)
        certificate = make_node_certificate(authority, self.host, cluster, validity)
        self.authority = authority.certificate_pem
        identity = FlightCertificate(certificate.certificate_pem, certificate.key_pem)
        self._server = FlightServer(self.stream_service, cast("BulkWorkers", Scans()), unheard, piece_bytes=1 << 18)
        self._address = loop.call(lambda: self._server.listen(Address("127.0.0.1", 0), identity))
        self.with_short_cut = False

    def close(self) -> None:
        self.loop.run(self._server.close())

    # -- tests.pipeline.transfers_contract.TransfersRig --------------------------------------------------------------

    def new_job(self) -> JobId:
        return JobId(uuid.uuid4())

    async def files_source(self, *layers: Files) -> TransferSource:
        return self._source(layers)

    async def rows_source(self, schema: TableSchema, rows: Sequence[Item]) -> TransferSource:
        assert schema is MIXED
        return self._source([{"rows": msgspec.msgpack.encode(rows)}])

    def _source(self, layers: Sequence[Files]) -> TransferSource:
        checkpoint = CheckpointId(uuid.uuid4())
        folder = self._folder / "checkpoints" / str(checkpoint)
        listed = tuple(self._layer(folder / f"layer-{place}", files) for place, files in enumerate(layers))
        (folder / self._machine).touch()
        parts = (CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=listed),)
        ticket = str(checkpoint).encode()
        self.stream_service.sources[ticket] = SourceStream(
            session=self.session, checkpoint=checkpoint, folder=str(folder), parts=parts, schema=MIXED
        )
        source = TransferSource(
            host=self.host, checkpoint=checkpoint, table=MIXED.id, parts=parts, ticket=ticket, flight=self._address
        )
        if self.with_short_cut:
            source = msgspec.structs.replace(source, machine=self._machine, folder=str(folder))
        return source

    def _layer(self, folder: Path, files: Files) -> CheckpointLayer:
        folder.mkdir(parents=True)
        listed = []
        for name, data in files.items():
            (folder / name).write_bytes(data)
            listed.append(CheckpointFile(name, len(data), (folder / name).stat().st_ino))
        return CheckpointLayer(folder=folder.name, range=WHOLE_RING, files=tuple(listed))

    async def target(self, kind: StagingKind, token_range: TokenRange = WHOLE_RING) -> TransferTarget:
        transfer = TransferId(uuid.uuid4())
        folder = self.stream_service.root / str(transfer)
        folder.mkdir(parents=True)
        (folder / self._machine).touch()
        ticket = f"{self.session}/{transfer}".encode()
        target = TransferTarget(
            host=self.host,
            shard=ShardNumber(0),
            session=self.session,
            transfer=transfer,
            kind=kind,
            range=token_range,
            ticket=ticket,
            flight=self._address,
        )
        if self.with_short_cut:
            target = msgspec.structs.replace(target, machine=self._machine, folder=str(folder))
        return target

    async def staged(self, target: TransferTarget, moved: MoveResult) -> Files:
        folder = self.stream_service.root / str(target.transfer) / str(moved.attempt)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    async def staged_rows(self, target: TransferTarget, moved: MoveResult) -> Sequence[Item]:
        files = await self.staged(target, moved)
        data = files.get(ROWS_NAME, b"")
        rows: list[Item] = []
        while data:
            head = read_header(data[:RECORD_HEADER_BYTES])
            batch = decode_body(head, data[RECORD_HEADER_BYTES : head.record_bytes])
            rows += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist())
            data = data[head.record_bytes :]
        return rows

    async def close_session(self) -> None:
        self.stream_service.closed[self.session] = None
        self.session = SessionId(uuid.uuid4())

    async def wait_until_held(self, held: bool) -> None:
        self.stream_service.is_held = held
        if held:
            self.stream_service.released.clear()
            self.stream_service.someone_waits.clear()
            await self.stream_service.someone_waits.wait()
        else:
            self.stream_service.released.set()
