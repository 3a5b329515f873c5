"""The simulated engine keeps the contract of the pipeline, as Spark does."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.pipeline.transfers_contract import CONTRACTS, Contract, Files
from tests.unit.storage.random_rows import MIXED

from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.model.errors import Stale
from ebla.model.identity import Address, AttemptId, CheckpointId, HostId, JobId, SessionId, ShardNumber, TransferId
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
from ebla.ports.environment import Environment
from ebla.sim.disk import ProcessDisk
from ebla.sim.transfers.attempts import AttemptFaults, SimExecutor
from ebla.sim.transfers.flight import BulkHandle, SimFlightServer
from ebla.sim.transfers.spark_engine import NO_ENGINE_FAULTS, EngineFaults, SimSparkEngine, SimTransfers
from ebla.sim.world import World
from ebla.storage.codec.row_file import decode_records, items_of
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.merge.row_merge import facts_of
from ebla.wire.transfer_messages import FlightPut, PutAnswer

FLIGHT = Address("10.0.0.1", 7001)


@dataclass(slots=True, kw_only=True)
class Plane:
    """`bulk.stream_service.StreamService` over plain folders. A ticket is the name of what it opens."""

    disk: ProcessDisk
    sources: dict[bytes, SourceStream] = field(default_factory=dict)
    targets: dict[bytes, TransferTarget] = field(default_factory=dict)
    closed: list[SessionId] = field(default_factory=list)
    is_held: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    somebody_waits: asyncio.Event = field(default_factory=asyncio.Event)

    def open_source(self, ticket: bytes) -> SourceStream:
        source = self.sources[ticket]
        self._check(source.session)
        return source

    async def open_read(self, ticket: bytes, asked: TokenRange, run: str = "") -> SourceStream:
        return self.sources[ticket]

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        raise AssertionError("staged files are not read here")

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        while self.is_held:
            self.somebody_waits.set()
            await self.changed.wait()
        self._check(source.session)

    def close_source(self, source: SourceStream) -> None:
        """Nothing is counted."""

    async def open_put(self, put: FlightPut) -> IncomingPut:
        target = self.targets[put.ticket]
        self._check(target.session)
        path = f"{target.folder}/{put.attempt}/{put.name}"
        self.disk.make_folder(path.rpartition("/")[0])
        self.disk.create(path).close()
        return IncomingPut(
            session=target.session,
            transfer=target.transfer,
            attempt=put.attempt,
            name=put.name,
            kind=target.kind,
            size_bytes=put.size_bytes,
            received_bytes=0,
        )

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        self._check(place.session)
        file = self.disk.open(f"/data/staging/{place.transfer}/{place.attempt}/{place.name}")
        file.append(bytes(data))
        file.close()
        place.received_bytes += len(data)
        place.checksum = zlib.crc32(data, place.checksum)

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        return PutAnswer(place.received_bytes, place.checksum)

    def close_put(self, place: IncomingPut) -> None:
        """Nothing is counted."""

    def _check(self, session: SessionId | None) -> None:
        if session in self.closed:
            raise Stale(f"session {session} is closed")


class SimRig:
    """`tests.pipeline.transfers_contract.TransfersRig`: one machine with staging and checkpoints, and an executor on
    it and another elsewhere."""

    def __init__(self, world: World, faults: EngineFaults) -> None:
        self._world = world
        self._rng = world.rng.fork("rig")
        self._session = SessionId(self._rng.uuid())
        self._bulk = world.unit("bulk", self._serve)
        self._disk = world.disk_of(self._bulk.machine)
        self._plane = Plane(disk=self._disk)
        self._handle = BulkHandle(self._bulk)
        engine = SimSparkEngine(world=world, bulk_of=lambda _host: self._handle, faults=faults)
        engine.executors = [SimExecutor(world, "here", "bulk", engine), SimExecutor(world, "there", "there", engine)]
        self._bulk.start()
        for executor in engine.executors:
            executor.unit.start()
        self.transfers = SimTransfers(world.scenario_environment("driver"), engine)

    async def _serve(self, environment: Environment) -> None:
        assert isinstance(environment.disk, ProcessDisk)
        self._plane.disk = environment.disk
        self._handle.server = SimFlightServer(environment, self._plane)
        await self._handle.server.run()

    def new_job(self) -> JobId:
        return JobId(self._rng.uuid())

    async def files_source(self, *layers: Files) -> TransferSource:
        folder = self._new_checkpoint()
        for place, files in enumerate(layers):
            for name, data in files.items():
                self._disk.make_folder(f"{folder}/layer-{place}")
                file = self._disk.create(f"{folder}/layer-{place}/{name}")
                file.append(data)
                file.close()
        return self._source(folder, len(layers))

    async def rows_source(self, schema: TableSchema, rows: Sequence[Item]) -> TransferSource:
        folder = self._new_checkpoint()
        facts = facts_of([value for _, value in rows], schema)
        await build_layer(MemoryEngine(self._disk), f"{folder}/layer-0", rows, facts)
        return self._source(folder, 1)

    def _new_checkpoint(self) -> str:
        folder = f"/data/checkpoints/{self._rng.uuid()}"
        self._disk.make_folder(folder)
        self._disk.create(f"{folder}/proof").close()
        return folder

    def _source(self, folder: str, layers: int) -> TransferSource:
        parts = (
            CheckpointPart(
                shard=ShardNumber(0), range=WHOLE_RING, layers=tuple(self._layer(folder, at) for at in range(layers))
            ),
        )
        checkpoint, ticket = CheckpointId(self._rng.uuid()), folder.encode()
        self._plane.sources[ticket] = SourceStream(
            session=self._session, checkpoint=checkpoint, folder=folder, parts=parts, schema=MIXED
        )
        host = HostId(self._rng.uuid())
        return TransferSource(
            host=host,
            checkpoint=checkpoint,
            table=MIXED.id,
            parts=parts,
            ticket=ticket,
            flight=FLIGHT,
            machine="proof",
            folder=folder,
        )

    def _layer(self, folder: str, place: int) -> CheckpointLayer:
        below = f"{folder}/layer-{place}"
        files = [
            CheckpointFile(name, len(self._disk.watch(f"{below}/{name}")()), self._disk.inode(f"{below}/{name}"))
            for name in self._disk.list_folder(below)
        ]
        return CheckpointLayer(folder=f"layer-{place}", range=WHOLE_RING, files=tuple(files))

    async def target(self, kind: StagingKind, token_range: TokenRange = WHOLE_RING) -> TransferTarget:
        transfer, host = TransferId(self._rng.uuid()), HostId(self._rng.uuid())
        folder, ticket = f"/data/staging/{transfer}", str(transfer).encode()
        self._disk.make_folder(folder)
        self._disk.create(f"{folder}/proof").close()
        target = self._plane.targets[ticket] = TransferTarget(
            host=host,
            shard=ShardNumber(0),
            session=self._session,
            transfer=transfer,
            kind=kind,
            range=token_range,
            ticket=ticket,
            flight=FLIGHT,
            machine="proof",
            folder=folder,
        )
        return target

    async def staged(self, target: TransferTarget, moved: MoveResult) -> Files:
        folder = f"{target.folder}/{moved.attempt}"
        return {file.name: self._disk.watch(f"{folder}/{file.name}")() for file in moved.files}

    async def staged_rows(self, target: TransferTarget, moved: MoveResult) -> Sequence[Item]:
        data = (await self.staged(target, moved)).get(ROWS_NAME, b"")
        return [item for batch in decode_records(data) for item in items_of(batch)]

    async def close_session(self) -> None:
        self._plane.closed.append(self._session)
        self._session = SessionId(self._rng.uuid())

    async def wait_until_held(self, held: bool) -> None:
        stream_service = self._plane
        stream_service.is_held = held
        if held:
            stream_service.changed.clear()
            stream_service.somebody_waits.clear()
            await stream_service.somebody_waits.wait()
        else:
            stream_service.changed.set()


PAST_FLIGHT = [
    contract
    for contract in CONTRACTS
    if contract.__name__ not in ("a_closed_session_ends_the_work", "a_cancelled_job_ends_for_its_caller")
]
"""The contract tests that also hold for the link path: it checks no session, and nothing can be held back."""


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_the_contract(contract: Contract) -> None:
    _run(contract, NO_ENGINE_FAULTS)


@pytest.mark.parametrize("contract", PAST_FLIGHT, ids=lambda contract: contract.__name__)
def test_the_contract_by_the_short_cut(contract: Contract) -> None:
    _run(
        contract,
        EngineFaults(
            duplicate=0.0,
            report_superseded=0.0,
            report_twice=0.0,
            lose_engine=0.0,
            attempts_faults=AttemptFaults(
                hangs=0.0, ignores_cancel=0.0, dies=0.0, corrupts=0.0, short_cut=1.0, keeps_open=0.0
            ),
        ),
    )


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_the_contract_with_every_attempt_made_twice(contract: Contract) -> None:
    _run(
        contract,
        EngineFaults(
            duplicate=1.0,
            report_superseded=0.0,
            report_twice=0.0,
            lose_engine=0.0,
            attempts_faults=NO_ENGINE_FAULTS.attempts_faults,
        ),
    )


def _run(contract: Contract, faults: EngineFaults) -> None:
    async def scenario(world: World) -> None:
        await contract(SimRig(world, faults))

    World(1, 60.0).run(scenario)
