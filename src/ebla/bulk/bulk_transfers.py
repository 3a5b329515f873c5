"""The transfers of the bulk process: composes their parts, and starts them in order."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ebla.bulk.checkpoint_store import CheckpointStore, CheckpointStoreDeps
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.seal import Sealer
from ebla.bulk.staging import Isolation, RowLayerBuilder, Staging, StagingDeps
from ebla.bulk.stream_service import StreamService
from ebla.bulk.sweeper import Sweeper
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
"""Serves the streams until cancelled: Flight, or its simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    staging_folder: str
    checkpoints_folder: str
    flight: Address
    """Where tasks reach the streams."""
    peers_address: Address
    """Where other nodes reach the verbs."""
    shard_address: Callable[[ShardNumber], Address]
    """For the processes of this node: the Unix socket of each shard."""
    machine: str
    """The same for all processes of one machine."""
    isolation: Isolation
    building: RowLayerBuilder
    servers: tuple[StreamServer, ...] = ()
    limits: TransferLimits = field(default_factory=TransferLimits)
    metrics: Metrics = field(default_factory=Metrics)


class BulkTransfers:
    """`begin` comes first; then `attach` and `run`."""

    def __init__(
        self,
        environment: Environment,
        config: TransferConfig,
        view: TopologyView,
        guards: SessionGuards,
        report: EventReporter,
    ) -> None:
        self._environment = environment
        self._config = config
        self._view = view
        self._guards = guards
        self._report = report
        self._machine = f"{config.machine}.{environment.rng.bytes(8).hex()}"
        self._metrics = TransferMetrics(config.metrics)
        staging_deps = StagingDeps(
            disk=environment.disk,
            rng=environment.rng,
            folder=config.staging_folder,
            machine=self._machine,
            isolation=config.isolation,
            building=config.building,
            limits=config.limits,
            report=report,
        )
        self.staging = Staging(staging_deps)
        self._puts = OpenPuts(staging_deps, self.staging)
        self._sealer = Sealer(staging_deps, self._puts)
        self.checkpoints: CheckpointStore | None = None
        self.stream_service: TransferStreams | None = None
        self._service: TransferService | None = None
        self._sweeper: Sweeper | None = None

    async def begin(self, tasks: asyncio.TaskGroup, context: PeersContext) -> None:
        """Recovers what is on disk."""
        environment, config = self._environment, self._config
        host = context.introduction.host
        shards = LocalShardClients(tasks, context, host, config.shard_address)
        tickets = TicketSigner(await self._key())
        await self.staging.recover()
        checkpoints = await self._recover_checkpoints(shards)
        reads = TableSnapshots(
            TableSnapshotsDeps(
                host=host,
                view=self._view,
                guards=self._guards,
                checkpoints=checkpoints,
                metrics=self._metrics,
                limits=config.limits,
                clock=environment.clock,
            )
        )
        streams = self.stream_service = TransferStreams(
            TransferStreamsDeps(
                tickets=tickets,
                guards=self._guards,
                staging=self.staging,
                puts=self._puts,
                checkpoints=checkpoints,
                reads=reads,
                metrics=self._metrics,
                limits=config.limits,
                clock=environment.clock,
                schema_of=self._schema_of,
            )
        )
        self._service = TransferService(
            TransferServiceDeps(
                host=host,
                flight=config.flight,
                machine=self._machine,
                view=self._view,
                guards=self._guards,
                shards=shards,
                staging=self.staging,
                sealer=self._sealer,
                checkpoints=checkpoints,
                stream_service=streams,
                reads=reads,
                tickets=tickets,
                metrics=self._metrics,
                limits=config.limits,
                clock=environment.clock,
                report=self._report,
                released=self.sessions_changed,
            )
        )
        self._sweeper = Sweeper(
            guards=self._guards,
            staging=self.staging,
            streams=streams,
            checkpoints=checkpoints,
            reads=reads,
            metrics=self._metrics,
        )

    async def _recover_checkpoints(self, shards: LocalShardClients) -> CheckpointStore:
        self.checkpoints = CheckpointStore(
            CheckpointStoreDeps(
                disk=self._environment.disk,
                rng=self._environment.rng,
                folder=self._config.checkpoints_folder,
                machine=self._machine,
                isolation=self._config.isolation,
                shards=shards,
                limits=self._config.limits,
                report=self._report,
            )
        )
        await self.checkpoints.recover()
        return self.checkpoints

    def attach(self, server: Server) -> None:
        assert self._service is not None
        self._service.attach(server)

    async def run(self) -> None:
        """Until cancelled."""
        assert self.stream_service is not None
        assert self._sweeper is not None
        async with asyncio.TaskGroup() as tasks:
            for serve in self._config.servers:
                tasks.create_task(serve(self.stream_service))
            await self._sweeper.run(self._config.limits, self._report)

    def sessions_changed(self) -> None:
        if self._sweeper is not None:
            self._sweeper.notice()

    def _schema_of(self, table: TableId) -> TableSchema | None:
        return self._view.current.schemas.get(table)

    async def _key(self) -> bytes:
        """Stored, so that tickets stay valid when this process restarts, like attempts. Only the owner can read the
        folder."""
        disk, folder = self._environment.disk, self._config.staging_folder
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
        key = self._environment.rng.bytes(KEY_BYTES)
        await replace_file(disk, path, key)
        return key
