"""A Flight server on a loopback address of the test, over a real checkpoint, with certificates and scan workers."""

import asyncio
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from tests.unit.runtime.tls_rig import Cluster, free_address, host
from tests.unit.storage.random_rows import MIXED, layer_facts

from ebla.bulk.flight_server import LOOP_WAIT_S, STREAMS_MAX, FlightCertificate, FlightServer
from ebla.bulk.flight_streams import PIECE_BYTES
from ebla.bulk.staged_rows import StagedRows
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.bulk.tickets import Grant, GrantKind, TicketSigner
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.model.errors import Refused, Stale
from ebla.model.identity import Address, AttemptId, CheckpointId, SessionId, ShardNumber, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import (
    ROWS_NAME,
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.tls import TlsFolder
from ebla.storage.columns.chunks import ChunkShape, chunk_of
from ebla.storage.compaction.compactor import BaseLayerWriter
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_streams import FlightClientLimits
from ebla.wire.transfer_messages import FlightPut, FlightQuery, HashesQuery, PutAnswer

T = TypeVar("T")
SESSION = SessionId(uuid.UUID(int=0x5E))
CHECKPOINT = CheckpointId(uuid.UUID(int=0xCE))
TRANSFER = TransferId(uuid.UUID(int=0x7F))
ATTEMPT = AttemptId(uuid.UUID(int=0xA7))
QUICK = FlightClientLimits(call_s=20, scan_s=40, attempts_max=2, pause_s=0.05, overload_s=0)
Layer = tuple[Sequence[Item], TokenRange, bool]
"""What it holds, its range, and whether it has a sidecar."""


@dataclass(slots=True, kw_only=True)
class RigPlane:
    """`data_plane.DataPlane` without a node around it: one checkpoint, one transfer, sessions by hand."""

    folder: Path
    parts: tuple[CheckpointPart, ...] = ()
    schema: TableSchema = MIXED
    tickets: TicketSigner = field(default_factory=lambda: TicketSigner(b"k" * 32))
    listed: list[SessionId] = field(default_factory=lambda: [SESSION])
    now_ms: int = 1_000
    owned: TokenRange = WHOLE_RING
    """By reads of the table."""
    refused: int = 0
    sources: int = 0
    sources_ever: int = 0
    places: int = 0
    sent_bytes: int = 0
    rows: StagedRows | None = None
    """What is there of every attempt; None: its own file."""
    sent: Callable[[int], None] = lambda _: None
    read_opened: Callable[[], None] = lambda: None
    appended: Callable[[IncomingPut], None] = lambda _: None

    def open_source(self, ticket: bytes) -> SourceStream:
        self._check(self.tickets.read(ticket, GrantKind.GET, self.now_ms).session)
        self.sources += 1
        self.sources_ever += 1
        folder = str(self.folder / "checkpoint")
        return SourceStream(
            session=SESSION,
            checkpoint=CHECKPOINT,
            folder=folder,
            parts=self.parts,
            schema=self.schema,
        )

    async def open_read(self, ticket: bytes, asked: TokenRange, run: str = "") -> SourceStream:
        self.tickets.read(ticket, GrantKind.READ, self.now_ms)
        if not all(self.owned.covers(piece) for piece in asked.unwrapped()):
            raise Stale("this node has no complete copy")
        self.sources += 1
        self.read_opened()
        folder = str(self.folder / "checkpoint")
        return SourceStream(
            session=None,
            checkpoint=CHECKPOINT,
            folder=folder,
            parts=self.parts,
            schema=self.schema,
            machine="here.1",
        )

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        self._check(self.tickets.read(ticket, GrantKind.PUT, self.now_ms).session)
        self.sources += 1
        source = SourceStream(
            session=SESSION,
            checkpoint=None,
            folder=str(self.folder),
            parts=(),
            schema=self.schema,
        )
        return StagedRowsSource(source, self.rows or StagedRows(str(self._path(attempt, ROWS_NAME))))

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        self._check(source.session)
        self.sent_bytes += size_bytes
        self.sent(self.sent_bytes)

    def close_source(self, source: SourceStream) -> None:
        self.sources -= 1

    async def open_put(self, put: FlightPut) -> IncomingPut:
        self._check(self.tickets.read(put.ticket, GrantKind.PUT, self.now_ms).session)
        path = self._path(put.attempt, put.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        is_rows = put.name == ROWS_NAME
        if is_rows and not put.offset:
            path.unlink(missing_ok=True)
        path.touch()
        received = path.stat().st_size
        if put.offset > received:
            raise Refused("the offset is beyond what came")
        self.places += 1
        kind = StagingKind.ROWS if is_rows else StagingKind.FILES
        checksum = zlib.crc32(path.read_bytes())
        return IncomingPut(
            session=SESSION,
            transfer=TRANSFER,
            attempt=put.attempt,
            name=put.name,
            kind=kind,
            size_bytes=put.size_bytes,
            received_bytes=received,
            checksum=checksum,
        )

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        self._check(place.session)
        with self._path(place.attempt, place.name).open("ab") as file:
            file.write(data)
        place.received_bytes += len(data)
        place.checksum = zlib.crc32(data, place.checksum)
        self.appended(place)

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        self._check(place.session)
        if place.size_bytes and place.received_bytes != place.size_bytes:
            raise Refused(f"{place.name} has {place.received_bytes} bytes of {place.size_bytes}")
        return PutAnswer(place.received_bytes, place.checksum)

    def close_put(self, place: IncomingPut) -> None:
        self.places -= 1

    def staged(self, name: str, attempt: AttemptId = ATTEMPT) -> bytes:
        return self._path(attempt, name).read_bytes()

    def _path(self, attempt: AttemptId, name: str) -> Path:
        return self.folder / "staging" / str(attempt) / name

    def _check(self, session: SessionId | None) -> None:
        if session is not None and session not in self.listed:
            self.refused += 1
            raise Stale(f"session {session} is closed", advice="nothing of it counts")


class FlightRig:
    def __init__(self, folder: Path, stream_service: RigPlane, server: FlightServer, workers: BulkWorkers) -> None:
        self.folder = folder
        self.stream_service = stream_service
        self.server = server
        self.workers = workers
        self.cluster = Cluster(folder)
        self.address = Address("", 0)
        self.reports: list[tuple[str, Mapping[str, object]]] = []

    @property
    def authority_pem(self) -> bytes:
        return self.cluster.authority.certificate_pem

    def source(self, *, expires_ms: int = 10_000, ticket: bytes | None = None) -> TransferSource:
        grant = Grant(
            kind=GrantKind.GET,
            session=SESSION,
            subject=CHECKPOINT,
            table=self.stream_service.schema.id,
            expires_ms=expires_ms,
        )
        signed = self.stream_service.tickets.sign(grant) if ticket is None else ticket
        return TransferSource(
            host=host(1),
            checkpoint=CHECKPOINT,
            table=self.stream_service.schema.id,
            parts=self.stream_service.parts,
            ticket=signed,
            flight=self.address,
        )

    def target(self, kind: StagingKind = StagingKind.FILES, *, expires_ms: int = 10_000) -> TransferTarget:
        grant = Grant(
            kind=GrantKind.PUT,
            session=SESSION,
            subject=TRANSFER,
            table=self.stream_service.schema.id,
            expires_ms=expires_ms,
        )
        ticket = self.stream_service.tickets.sign(grant)
        return TransferTarget(
            host=host(1),
            shard=ShardNumber(0),
            session=SESSION,
            transfer=TRANSFER,
            kind=kind,
            range=WHOLE_RING,
            ticket=ticket,
            flight=self.address,
        )

    async def ask(self, act: Callable[[FlightClient], T], limits: FlightClientLimits = QUICK) -> T:
        """A task's code, on a thread as tasks are not on the loop of the node."""

        def run() -> T:
            with FlightClient(self.authority_pem, limits) as client:
                return act(client)

        return await asyncio.to_thread(run)

    async def read_rows(self, asked: TokenRange = WHOLE_RING) -> list[pa.RecordBatch]:
        return await self.ask(lambda client: list(client.get_rows(self.source(), asked)))

    async def hashes(self, query: HashesQuery) -> pa.RecordBatch:
        return await self.ask(lambda client: client.get_hashes(self.source(), query))

    async def answer(self, source: TransferSource, query: FlightQuery) -> list[pa.RecordBatch]:
        return await self.ask(lambda client: list(client.get_batches(source, query)))

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Looked at every few milliseconds; bounded by the rig's own time."""
        while not holds():  # noqa: ASYNC110  # threads of gRPC change what is looked at
            await asyncio.sleep(0.01)

    def worker_pid(self) -> int:
        """Of the only worker. For threads beside the loop: the fork server reports a worker when its turn comes."""
        gives_up_at = time.monotonic() + 20
        while not self.workers.pool.pids and time.monotonic() < gives_up_at:
            time.sleep(0.01)
        (pid,) = self.workers.pool.pids
        return pid


def identity_of(folder: TlsFolder) -> FlightCertificate:
    certificate = folder.node_certificate()
    return FlightCertificate(certificate.certificate_pem, certificate.key_pem)


@asynccontextmanager
async def flight_rig(
    folder: Path,
    *,
    workers: BulkWorkers | None = None,
    piece_bytes: int = PIECE_BYTES,
    streams_max: int = STREAMS_MAX,
    loop_wait_s: float = LOOP_WAIT_S,
    life_s: float = 60,
) -> AsyncIterator[FlightRig]:
    stream_service = RigPlane(folder=folder)
    workers = workers or BulkWorkers()
    reports: list[tuple[str, Mapping[str, object]]] = []
    server = FlightServer(
        stream_service,
        workers,
        lambda *report: reports.append(report),
        piece_bytes=piece_bytes,
        streams_max=streams_max,
        loop_wait_s=loop_wait_s,
    )
    rig = FlightRig(folder, stream_service, server, workers)
    rig.reports = reports
    async with asyncio.timeout(life_s):
        rig.address = server.listen(free_address(), identity_of(rig.cluster.folder(1)))
        try:
            yield rig
        finally:
            await server.close()
            await workers.close()
    assert workers.pool.pids == []


async def build_part(
    rig: FlightRig, layers: Sequence[Layer], schema: TableSchema = MIXED, part_range: TokenRange = WHOLE_RING
) -> None:
    """One more stack in the checkpoint."""
    number = len(rig.stream_service.parts)
    disk = FileDisk()
    engine = RocksEngine(disk)
    built = []
    for place, (items, layer_range, with_sidecar) in enumerate(layers):
        name = f"stack{number}/layer{place}"
        path = rig.folder / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if with_sidecar:
            writer = BaseLayerWriter(engine, disk, str(path), schema)
            keys, values = (pa.array([item[side] for item in items], pa.binary()) for side in (0, 1))
            writer.add(chunk_of(ChunkShape(schema), keys, values))
            await writer.finish()
        else:
            await build_layer(engine, str(path), items, layer_facts(schema, items))
        files = tuple(
            CheckpointFile(one.name, one.stat().st_size, one.stat().st_ino)
            for one in sorted(path.iterdir())
            if one.name not in ("LOCK", "LOG")
        )
        built.append(CheckpointLayer(folder=name, range=layer_range, files=files))
    disk.close()
    rig.stream_service.schema = schema
    rig.stream_service.parts = (
        *rig.stream_service.parts,
        CheckpointPart(shard=ShardNumber(number), range=part_range, layers=tuple(built)),
    )


def add_file(rig: FlightRig, name: str, content: bytes) -> None:
    """A part with one file of any bytes."""
    number = len(rig.stream_service.parts)
    folder = rig.folder / "checkpoint" / f"files{number}"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    layer = CheckpointLayer(folder=f"files{number}", range=WHOLE_RING, files=(CheckpointFile(name, len(content)),))
    rig.stream_service.parts = (
        *rig.stream_service.parts,
        CheckpointPart(shard=ShardNumber(number), range=WHOLE_RING, layers=(layer,)),
    )
