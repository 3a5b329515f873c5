"""The part of the bulk process that transfers data: everything it is made of, and in which order it begins."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ebla.bulk.checkpoint_store import CheckpointStore, CheckpointStoreDeps
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.seal import Sealer
from ebla.bulk.staging import Isolation, RowLayerBuilder, Staging, StagingDeps
from ebla.bulk.stream_service import StreamService
from ebla.bulk.sweeper import Sweeper, SweeperDeps
from ebla.bulk.table_read_service import TableReadService, TableReadServiceDeps
from ebla.bulk.table_snapshots import TableSnapshots, TableSnapshotsDeps
from ebla.bulk.tickets import KEY_BYTES, TicketSigner
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.bulk.transfer_service import TransferService, TransferServiceDeps
from ebla.bulk.transfer_streams import TransferStreams, TransferStreamsDeps
from ebla.feed.local_shards import LocalShardClients
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption
from ebla.model.identity import Address, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.wire.peers import PeersContext
from ebla.wire.server import Server

KEY_NAME = "key"

StreamServer = Callable[[StreamService], Coroutine[Any, Any, None]]
"""Serves the streams until it is cancelled: Flight, or its twin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    staging_folder: str
    checkpoints_folder: str
    flight: Address
    """Where the streams are served, for tasks."""
    peers_address: Address
    """Of the verbs, for other nodes."""
    shard_address: Callable[[ShardNumber], Address]
    """For the processes of this node: the Unix socket of each shard."""
    machine: str
    """The same for all that runs on one machine."""
    isolation: Isolation
    building: RowLayerBuilder
    fronts: tuple[StreamServer, ...] = ()
    limits: TransferLimits = field(default_factory=TransferLimits)
    metrics: Metrics = field(default_factory=Metrics)


class BulkTransfers:
    """`begin` first; then it may be attached to servers, and `run`."""

    def __init__(
        self,
        around: Environment,
        setup: TransferConfig,
        view: TopologyView,
        guards: SessionGuards,
        report: EventReporter,
    ) -> None:
        self._around = around
        self._setup = setup
        self._view = view
        self._guards = guards
        self._report = report
        self._machine = f"{setup.machine}.{around.rng.bytes(8).hex()}"
        self._counts = TransferMetrics(setup.metrics)
        parts = StagingDeps(
            disk=around.disk,
            rng=around.rng,
            folder=setup.staging_folder,
            machine=self._machine,
            isolation=setup.isolation,
            building=setup.building,
            limits=setup.limits,
            report=report,
        )
        self.staging = Staging(parts)
        self._puts = OpenPuts(parts, self.staging)
        self._sealer = Sealer(parts, self._puts)
        self.checkpoints: CheckpointStore | None = None
        self.stream_service: TransferStreams | None = None
        self._desk: TransferService | None = None
        self._read_desk: TableReadService | None = None
        self._sweeper: Sweeper | None = None

    async def begin(self, tasks: asyncio.TaskGroup, context: PeersContext) -> None:
        """What lies on disk is known afterwards."""
        around, setup = self._around, self._setup
        host = context.introduction.host
        shards = LocalShardClients(tasks, context, host, setup.shard_address)
        tickets = TicketSigner(await self._key())
        await self.staging.recover()
        checkpoints = self.checkpoints = CheckpointStore(
            CheckpointStoreDeps(
                disk=around.disk,
                rng=around.rng,
                folder=setup.checkpoints_folder,
                machine=self._machine,
                isolation=setup.isolation,
                shards=shards,
                limits=setup.limits,
                report=self._report,
            )
        )
        await checkpoints.recover()
        reads = TableSnapshots(
            TableSnapshotsDeps(
                host=host,
                view=self._view,
                guards=self._guards,
                checkpoints=checkpoints,
                counts=self._counts,
                limits=setup.limits,
                clock=around.clock,
            )
        )
        self._read_desk = TableReadService(
            TableReadServiceDeps(
                host=host,
                flight=setup.flight,
                machine=self._machine,
                reads=reads,
                tickets=tickets,
                counts=self._counts,
                limits=setup.limits,
                clock=around.clock,
            )
        )
        self.stream_service = TransferStreams(
            TransferStreamsDeps(
                tickets=tickets,
                guards=self._guards,
                staging=self.staging,
                puts=self._puts,
                checkpoints=checkpoints,
                reads=reads,
                counts=self._counts,
                limits=setup.limits,
                clock=around.clock,
                schema_of=self._schema_of,
            )
        )
        self._desk = TransferService(
            TransferServiceDeps(
                host=host,
                flight=setup.flight,
                machine=self._machine,
                view=self._view,
                guards=self._guards,
                shards=shards,
                staging=self.staging,
                sealer=self._sealer,
                checkpoints=checkpoints,
                stream_service=self.stream_service,
                reads=reads,
                tickets=tickets,
                counts=self._counts,
                limits=setup.limits,
                clock=around.clock,
                report=self._report,
                released=self.sessions_changed,
            )
        )
        self._sweeper = Sweeper(
            SweeperDeps(
                guards=self._guards,
                staging=self.staging,
                stream_service=self.stream_service,
                checkpoints=checkpoints,
                reads=reads,
                counts=self._counts,
            )
        )

    def attach(self, server: Server) -> None:
        assert self._desk is not None
        assert self._read_desk is not None
        self._desk.attach(server)
        self._read_desk.attach(server)

    async def run(self) -> None:
        """Until cancelled."""
        assert self.stream_service is not None
        assert self._sweeper is not None
        async with asyncio.TaskGroup() as tasks:
            for front in self._setup.fronts:
                tasks.create_task(front(self.stream_service))
            await self._sweeper.run(self._setup.limits, self._report)

    def sessions_changed(self) -> None:
        if self._sweeper is not None:
            self._sweeper.notice()

    def _schema_of(self, table: TableId) -> TableSchema | None:
        return self._view.current.schemas.get(table)

    async def _key(self) -> bytes:
        """Kept, so that tickets outlive this process as attempts do. Only the owner can read the folder."""
        disk, folder = self._around.disk, self._setup.staging_folder
        await make_durable_folder(disk, folder)
        path = f"{folder}/{KEY_NAME}"
        try:
            key = await read_checked_file(disk, path)
            if len(key) == KEY_BYTES:
                return key
        except FileNotFoundError:
            pass
        except Corruption as failure:
            self._report("bulk.key_unreadable", {"cause": failure.message})
        key = self._around.rng.bytes(KEY_BYTES)
        await replace_file(disk, path, key)
        return key
