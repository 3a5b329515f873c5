"""The part of the bulk process that transfers data: everything it is made of, and in which order it begins."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ebla.bulk.checkpoints import CheckpointParts, Checkpoints
from ebla.bulk.data_plane import DataPlane
from ebla.bulk.puts import Puts
from ebla.bulk.read_desk import ReadDesk, ReadDeskParts
from ebla.bulk.seal import Sealer
from ebla.bulk.staging import Isolation, LayerBuilding, Staging, StagingParts
from ebla.bulk.sweeping import Sweeper, SweepParts
from ebla.bulk.table_reads import ReadParts, TableReads
from ebla.bulk.tickets import KEY_BYTES, Tickets
from ebla.bulk.transfer_counts import TransferCounts
from ebla.bulk.transfer_desk import DeskParts, TransferDesk
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_plane import PlaneParts, TransferPlane
from ebla.journal.recovery import make_durable_folder
from ebla.journal.replace import read_checked_file, replace_file
from ebla.model.errors import Corruption
from ebla.model.identity import Address, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.observe.metrics import Metrics
from ebla.ports.surroundings import Surroundings
from ebla.wire.local_shards import LocalShards
from ebla.wire.peers import PeersContext
from ebla.wire.report import Report
from ebla.wire.server import Server
from ebla.wire.session_guards import Guards
from ebla.wire.topology_view import TopologyView

KEY_NAME = "key"

Front = Callable[[DataPlane], Coroutine[Any, Any, None]]
"""Serves the streams until it is cancelled: Flight, or its twin."""


@dataclass(frozen=True, slots=True)
class TransferSetup:
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
    building: LayerBuilding
    fronts: tuple[Front, ...] = ()
    limits: TransferLimits = field(default_factory=TransferLimits)
    metrics: Metrics = field(default_factory=Metrics)


class BulkTransfers:
    """`begin` first; then it may be attached to servers, and `run`."""

    def __init__(
        self, around: Surroundings, setup: TransferSetup, view: TopologyView, guards: Guards, report: Report
    ) -> None:
        self._around = around
        self._setup = setup
        self._view = view
        self._guards = guards
        self._report = report
        self._machine = f"{setup.machine}.{around.chance.bytes(8).hex()}"
        self._counts = TransferCounts(setup.metrics)
        parts = StagingParts(
            around.disk,
            around.chance,
            setup.staging_folder,
            self._machine,
            setup.isolation,
            setup.building,
            setup.limits,
            report,
        )
        self.staging = Staging(parts)
        self._puts = Puts(parts, self.staging)
        self._sealer = Sealer(parts, self._puts)
        self.checkpoints: Checkpoints | None = None
        self.plane: TransferPlane | None = None
        self._desk: TransferDesk | None = None
        self._read_desk: ReadDesk | None = None
        self._sweeper: Sweeper | None = None

    async def begin(self, tasks: asyncio.TaskGroup, context: PeersContext) -> None:
        """What lies on disk is known afterwards."""
        around, setup = self._around, self._setup
        host = context.introduction.host
        shards = LocalShards(tasks, context, host, setup.shard_address)
        tickets = Tickets(await self._key())
        await self.staging.recover()
        checkpoints = self.checkpoints = Checkpoints(
            CheckpointParts(
                around.disk,
                around.chance,
                setup.checkpoints_folder,
                self._machine,
                setup.isolation,
                shards,
                setup.limits,
                self._report,
            )
        )
        await checkpoints.recover()
        reads = TableReads(
            ReadParts(host, self._view, self._guards, checkpoints, self._counts, setup.limits, around.clock)
        )
        self._read_desk = ReadDesk(
            ReadDeskParts(host, setup.flight, self._machine, reads, tickets, self._counts, setup.limits, around.clock)
        )
        self.plane = TransferPlane(
            PlaneParts(
                tickets,
                self._guards,
                self.staging,
                self._puts,
                checkpoints,
                reads,
                self._counts,
                setup.limits,
                around.clock,
                self._schema_of,
            )
        )
        self._desk = TransferDesk(
            DeskParts(
                host,
                setup.flight,
                self._machine,
                self._view,
                self._guards,
                shards,
                self.staging,
                self._sealer,
                checkpoints,
                self.plane,
                reads,
                tickets,
                self._counts,
                setup.limits,
                around.clock,
                self._report,
                self.sessions_changed,
            )
        )
        self._sweeper = Sweeper(SweepParts(self._guards, self.staging, self.plane, checkpoints, reads, self._counts))

    def attach(self, server: Server) -> None:
        assert self._desk is not None
        assert self._read_desk is not None
        self._desk.attach(server)
        self._read_desk.attach(server)

    async def run(self) -> None:
        """Until cancelled."""
        assert self.plane is not None
        assert self._sweeper is not None
        async with asyncio.TaskGroup() as tasks:
            for front in self._setup.fronts:
                tasks.create_task(front(self.plane))
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
        key = self._around.chance.bytes(KEY_BYTES)
        await replace_file(disk, path, key)
        return key
