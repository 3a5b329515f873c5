"""A bulk process on real files, with a control, a shard and a peer of the test's own."""

import asyncio
import os
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from tests.unit.bulk.bulk_process_rig import CONTROL, HISTORY, OURS, Control, node_context, state
from tests.unit.bulk.compaction_service_rig import Compactions
from tests.unit.bulk.staging_rig import BuildsHere
from tests.unit.storage.small_table import SMALL, TABLE
from tests.unit.topology.small_cluster import node, simple
from tests.unit.wire.rig import MemoryTransport

from ebla.bulk.bulk_transfers import TransferConfig
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_service import StreamServer
from ebla.bulk.transfer_streams import TransferStreams
from ebla.journal.checked_file import replace_file
from ebla.model.errors import Stale, Unavailable
from ebla.model.identity import Address, AttemptId, SessionId, ShardNumber, TopologyVersion, TransferId
from ebla.model.schema import encode_schema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transaction import Revision
from ebla.model.transfers import StagedFile, StagingKind, TransferTarget
from ebla.node.bulk_process import BulkProcess
from ebla.observe.event_reporter import discard_event
from ebla.ports.clock import Clock
from ebla.ports.environment import Environment
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.system_clock import SystemClock
from ebla.sim.rng import SimRng
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ShardManifest,
    StackEntry,
    layer_folder,
    manifest_path,
)
from ebla.topology.keys import STATE, Row, keyspace_key, node_key, session_key, table_key
from ebla.topology.snapshot import Keyspace, Session, Table
from ebla.topology.states import SessionKind
from ebla.wire.client_connection import ConnectionTarget as CallTarget
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.feed_messages import ReadBarrierAnswer, ReadBarrierRequest
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.transfer_messages import (
    BulkStatusAnswer,
    BulkStatusRequest,
    CheckpointAnswer,
    CheckpointedStack,
    CheckpointRequest,
    FindTargetAnswer,
    FindTargetRequest,
    FlightPut,
    OpenStagingRequest,
    SealRequest,
    TakeCheckpointRequest,
)
from ebla.wire.verbs import BULK_STATUS, CHECKPOINT, FIND_TARGET, OPEN_STAGING, READ_BARRIER

SHARD = Address("/run/shard-0.sock")
PEERS = Address("127.0.0.1", 7002)
FLIGHT = Address("127.0.0.1", 7001)
SESSION = SessionId(uuid.UUID(int=5))
TRANSFER = TransferId(uuid.UUID(int=6))
ATTEMPT = AttemptId(uuid.UUID(int=7))
LAYER = {"000009.sst": b"rows" * 500, "CURRENT": b"MANIFEST-1", "LOCK": b"", "LOG": b"words"}
ROWS = 500
CALL_MS = 10_000
VERSION = TopologyVersion(7)


class FedControl(Control):
    """Publishes sessions, and answers read barriers with what it has published; or not at all."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        super().__init__(tasks)
        self.server.serve(READ_BARRIER, self._barrier)
        self.index = 2
        self.has_quorum = True
        self.barriers = 0
        self.rows: dict[str, Row | None] = {}
        """Published at the start, besides or instead."""
        self._version = 7

    def begin(self, *sessions: Session) -> None:
        rows: dict[str, Row | None] = {
            STATE: state(self._version),
            node_key(OURS.host): node(OURS.host.int, shard_count=1),
            keyspace_key("ks"): Keyspace(name="ks", replication=simple(1), on_tablets=False),
            table_key(TABLE): Table(id=TABLE, keyspace="ks", name="small", definition=encode_schema(SMALL)),
        }
        rows |= {session_key(one.id): one for one in sessions} | self.rows
        self.index += 1
        self.tell(self.index, rows, reset=True)

    def change(self, rows: dict[str, Row | None], *, notify: bool = True) -> None:
        """Committed; the child learns of it only when it is published."""
        self._version += 1
        self.index += 1
        if notify:
            self.tell(self.index, {STATE: state(self._version), **rows})

    def close_session(self, session: SessionId = SESSION, *, notify: bool = True) -> None:
        self.change({session_key(session): None}, notify=notify)

    def _barrier(self, _request: ReadBarrierRequest, _call: IncomingCall) -> ReadBarrierAnswer:
        self.barriers += 1
        if not self.has_quorum:
            raise Unavailable("no quorum")
        return ReadBarrierAnswer(Revision(HISTORY, self.index))


def write_files(folder: str, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        Path(folder, name).write_bytes(data)


class ScriptedShard:
    """Makes checkpoints of one layer, and has one stack."""

    def __init__(self, tasks: asyncio.TaskGroup, disk: FileDisk) -> None:
        self.server = Server(tasks, OURS, discard_event)
        self.server.serve(CHECKPOINT, self._checkpoint)
        self.server.serve(FIND_TARGET, self._find_target)
        self._disk = disk
        self.incarnation = 77
        self.stacks: tuple[TokenRange, ...] = (WHOLE_RING,)
        self.first_life = 3
        self.version = TopologyVersion(0)
        self.stale = 0
        """So many times a replica leaves under it."""
        self.failure: Exception | None = None
        self.adopted: list[TransferId] = []
        self.asked: list[FindTargetRequest | CheckpointRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _checkpoint(self, request: CheckpointRequest, _call: IncomingCall) -> CheckpointAnswer:
        self.asked.append(request)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.stale:
            self.stale -= 1
            raise Stale("the replica left")
        made = [await self._stack(request, number) for number in range(len(self.stacks))]
        return CheckpointAnswer(tuple(made), self.version)

    async def _stack(self, request: CheckpointRequest, number: int) -> CheckpointedStack:
        stack, token_range = Incarnation(self.first_life + number), self.stacks[number]
        layer = LayerEntry(id=LayerId(4), range=token_range, facts=LayerFacts(least_us=1, greatest_us=2, rows=ROWS))
        folder = f"{request.folder}/stack-{number}"
        inside = layer_folder(folder, stack, layer.id)
        self._disk.make_folder(inside)
        write_files(inside, LAYER)
        entry = StackEntry(
            incarnation=stack,
            table=request.table,
            range=token_range,
            live=LayerEntry(id=LayerId(5), range=token_range),
            bases=(layer,),
        )
        manifest = ShardManifest(tables=(SMALL,), stacks=(entry,))
        await replace_file(self._disk, manifest_path(folder), msgspec.msgpack.encode(manifest))
        return CheckpointedStack(folder, token_range)

    def _find_target(self, request: FindTargetRequest, _call: IncomingCall) -> FindTargetAnswer:
        self.asked.append(request)
        if self.failure is not None:
            raise self.failure
        return FindTargetAnswer(
            incarnation=self.incarnation,
            stack_range=WHOLE_RING,
            free_bytes=1 << 40,
            is_adopted=request.transfer in self.adopted,
        )


def job(session: SessionId = SESSION, deadline_ms: int = 1 << 50) -> Session:
    return Session(id=session, kind=SessionKind.BULK_JOB, table=TABLE, deadline_ms=deadline_ms)


def transfer_config(folder: Path, disk: FileDisk) -> TransferConfig:
    return TransferConfig(
        staging_folder=str(folder / "staging"),
        checkpoints_folder=str(folder / "checkpoints"),
        flight=FLIGHT,
        peers_address=PEERS,
        shard_address=lambda _shard: SHARD,
        machine="machine",
        isolation=FileIsolation(),
        building=BuildsHere(disk),
    )


class TransferRig:
    """`life` is one run of the bulk process; the rest continues."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path, limits: TransferLimits) -> None:
        self.folder = folder
        self.transport = MemoryTransport()
        self.disk = FileDisk()
        self.control = FedControl(tasks)
        self.shard = ScriptedShard(tasks, self.disk)
        self.limits = limits
        self.lives = 0
        self.clock: Clock = SystemClock()
        self.reports: list[str] = []
        self.stream_servers: tuple[StreamServer, ...] = ()
        self.bulk: BulkProcess | None = None
        self.context = PeersContext(
            transport=self.transport, rng=SimRng("peers"), introduction=OURS, report=discard_event
        )

    @property
    def stream_service(self) -> TransferStreams:
        assert self.bulk is not None
        assert self.bulk.transfers is not None
        return self.bulk.transfers.streams

    @asynccontextmanager
    async def life(self, *sessions: Session) -> AsyncIterator[RpcClientConnection]:
        self.lives += 1
        transfers = replace(transfer_config(self.folder, self.disk), servers=self.stream_servers, limits=self.limits)
        context = node_context(self.lives, lambda event, _details: self.reports.append(event))
        around = Environment(clock=self.clock, rng=SimRng(str(self.lives)), disk=self.disk, transport=self.transport)
        self.bulk = BulkProcess(around, context, Compactions(), transfers)
        self.control.begin(*sessions)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.bulk.run())
            await self.until(lambda: PEERS in self.transport.listeners and self._has_view())
            caller, _ = await connect(self.context, PEERS, CallTarget(Lane.DATA, OURS.host))
            yield caller
            caller.close("the life is over")
            running.cancel()

    def _has_view(self) -> bool:
        return self.bulk is not None and self.bulk.view.is_known

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached():  # noqa: ASYNC110  # real files and threads change it, without an event
                await asyncio.sleep(0.002)

    def below(self, folder: str) -> list[str]:
        """Files, without the key."""
        root = self.folder / folder
        # What is removed meanwhile is no error to this one.
        files = (Path(place, name) for place, _, names in os.walk(root) for name in names if name != "key")
        return sorted(str(path.relative_to(root)) for path in files)

    async def open_staging(self, caller: RpcClientConnection, kind: StagingKind = StagingKind.FILES) -> TransferTarget:
        request = OpenStagingRequest(
            session=SESSION,
            transfer=TRANSFER,
            table=TABLE,
            shard=ShardNumber(0),
            range=WHOLE_RING,
            version=VERSION,
            kind=kind,
        )
        return (await caller.call(OPEN_STAGING, request, CALL_MS)).target

    async def put(self, target: TransferTarget, name: str, data: bytes, attempt: AttemptId = ATTEMPT) -> StagedFile:
        place = await self.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=attempt, name=name, size_bytes=len(data))
        )
        await self.stream_service.append(place, data[place.received_bytes :])
        answer = await self.stream_service.finish_put(place)
        self.stream_service.close_put(place)
        assert answer.checksum == zlib.crc32(data)
        return StagedFile(name=name, size_bytes=answer.received_bytes, checksum=answer.checksum)

    async def status(self, caller: RpcClientConnection) -> BulkStatusAnswer:
        return await caller.call(BULK_STATUS, BulkStatusRequest(), CALL_MS)


def seal_of(*files: StagedFile, attempt: AttemptId = ATTEMPT) -> SealRequest:
    return SealRequest(session=SESSION, transfer=TRANSFER, attempt=attempt, files=files, layers=(WHOLE_RING,))


def take_of(session: SessionId = SESSION) -> TakeCheckpointRequest:
    return TakeCheckpointRequest(session=session, table=TABLE, range=WHOLE_RING, version=VERSION)


def with_transfers(
    story: Callable[[TransferRig], Awaitable[None]], limits: TransferLimits | None = None, *, tmp_path: Path
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            rig = TransferRig(tasks, tmp_path, limits or TransferLimits(sweep_ms=50))
            await rig.transport.listen(CONTROL, rig.control.server.accept)
            await rig.transport.listen(SHARD, rig.shard.server.accept)
            await story(rig)
            rig.control.server.close("the test is over")
            rig.shard.server.close("the test is over")
            rig.disk.close()

    asyncio.run(main())
