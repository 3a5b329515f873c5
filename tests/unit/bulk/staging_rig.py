"""Staging on a machine that can die and lose power, without the process around it."""

import uuid
import zlib
from collections.abc import Mapping
from typing import cast

from tests.unit.journal.on_disks import Machine
from tests.unit.storage.small_table import SMALL, TABLE

from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.seal import Sealer, SealSpec
from ebla.bulk.staging import StagedTransfer, Staging
from ebla.bulk.tickets import KEY_BYTES, TicketSigner
from ebla.bulk.transfer_context import Isolation, ShardCaller, TransferContext
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.model.identity import AttemptId, HostId, SessionId, ShardNumber, TransferId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import StagedFile, StagingKind
from ebla.observe.event_reporter import discard_event
from ebla.observe.metrics import Metrics
from ebla.ports.disk import Disk
from ebla.runtime.system_clock import SystemClock
from ebla.sim.disk import ProcessDisk
from ebla.sim.rng import SimRng
from ebla.storage.codec.staging_format import TargetFile
from ebla.storage.compaction.layer_build import BuildJob, BuildResult, run_build
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import Incarnation
from ebla.wire.transfer_messages import FlightPut

FOLDER = "/data/staging"
SESSION = SessionId(uuid.UUID(int=1))
TRANSFER = TransferId(uuid.UUID(int=2))
FIRST, SECOND = AttemptId(uuid.UUID(int=11)), AttemptId(uuid.UUID(int=12))
MACHINE = "machine.1"
PLACE = f"{FOLDER}/{SESSION}/{TRANSFER}"

FILES = {"0/000001.sst": b"first" * 300, "0/CURRENT": b"MANIFEST", "1/000002.sst": b"second" * 200}
RANGES = (WHOLE_RING, WHOLE_RING)


def target(kind: StagingKind = StagingKind.FILES, tokens: TokenRange = WHOLE_RING, incarnation: int = 5) -> TargetFile:
    return TargetFile(table=TABLE, shard=ShardNumber(0), incarnation=Incarnation(incarnation), range=tokens, kind=kind)


def staged_files(files: Mapping[str, bytes]) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(name=name, size_bytes=len(data), checksum=zlib.crc32(data)) for name, data in files.items())


def order_of(
    attempt: AttemptId, files: Mapping[str, bytes] = FILES, layers: tuple[TokenRange, ...] = RANGES
) -> SealSpec:
    return SealSpec(attempt=attempt, files=staged_files(files), layers=layers, schema=SMALL)


class BuildsHere:
    """`bulk.staging.LayerBuilding` without another process, on the simulated engine."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        assert deadline_s > 0
        return await run_build(MemoryEngine(self._disk), self._disk, job)


def transfer_context(disk: Disk, isolation: Isolation, folder: str, limits: TransferLimits) -> TransferContext:
    """For staging alone: there is no topology, and no session is looked up."""
    return TransferContext(
        disk=disk,
        rng=SimRng("staging"),
        clock=SystemClock(),
        report=discard_event,
        limits=limits,
        metrics=TransferMetrics(Metrics()),
        view=TopologyView(),
        guards=cast("SessionGuards", None),
        tickets=TicketSigner(bytes(KEY_BYTES)),
        shards=cast("ShardCaller", None),
        host=HostId(uuid.UUID(int=3)),
        machine=MACHINE,
        isolation=isolation,
        building=BuildsHere(disk),
        staging_folder=folder,
        checkpoints_folder=f"{folder}-checkpoints",
    )


ROWS_MERGED_BYTES_MAX = TransferLimits().rows_merged_bytes_max


class StagingRig:
    """One life of it. `disk` may be a disk in front of the life's own."""

    def __init__(self, own: ProcessDisk, disk: Disk | None = None, limits: TransferLimits | None = None) -> None:
        self.disk: Disk = own if disk is None else disk
        self.own = own
        limits = limits or TransferLimits(rows_merged_bytes_max=ROWS_MERGED_BYTES_MAX)
        context = transfer_context(self.disk, own, FOLDER, limits)
        self.staging = Staging(context)
        self.puts = OpenPuts(context, self.staging)
        self.sealer = Sealer(context, self.puts)

    async def begin(self) -> "StagingRig":
        await self.staging.recover()
        return self

    async def opened(self, kind: StagingKind = StagingKind.FILES, tokens: TokenRange = WHOLE_RING) -> StagedTransfer:
        return await self.staging.open(SESSION, TRANSFER, target(kind, tokens))

    async def put(self, staged: StagedTransfer, attempt: AttemptId, name: str, data: bytes, pieces: int = 3) -> int:
        """All of it, from wherever the place is; its checksum."""
        place = await self.puts.open(staged, FlightPut(ticket=b"", attempt=attempt, name=name, size_bytes=len(data)))
        step = max(1, len(data) // pieces)
        while place.received_bytes < len(data):
            await self.puts.append(place, data[place.received_bytes : place.received_bytes + step])
        answer = self.puts.finish(place)
        self.puts.close(place)
        return answer.checksum

    async def put_all(
        self, staged: StagedTransfer, attempt: AttemptId, files: Mapping[str, bytes] = FILES
    ) -> StagedTransfer:
        for name, data in files.items():
            assert await self.put(staged, attempt, name, data) == zlib.crc32(data)
        return staged

    def read(self, path: str) -> bytes:
        file = self.own.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def below(self, folder: str) -> list[str]:
        """Every file."""
        found: list[str] = []
        for name in self.own.list_folder(folder):
            path = f"{folder}/{name}"
            try:
                found += [f"{name}/{one}" for one in self.below(path)]
            except NotADirectoryError:
                found.append(name)
        return found


def machine(seed: int = 1) -> Machine:
    return Machine(seed)
