"""Composes the transfers of the bulk process: its dependencies, the key of its tickets, and what is on disk."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.bulk.tickets import KEY_BYTES, TicketSigner
from ebla.bulk.transfer_context import Isolation, RowLayerBuilder, TransferContext
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.bulk.transfer_service import StreamServer, TransferService
from ebla.feed.local_shards import LocalShardClients
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption
from ebla.model.identity import Address, ShardNumber
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.wire.peers import PeersContext

KEY_NAME = "key"


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


async def open_transfers(
    tasks: asyncio.TaskGroup,
    environment: Environment,
    config: TransferConfig,
    peers: PeersContext,
    *,
    view: TopologyView,
    guards: SessionGuards,
) -> TransferService:
    """Recovers what is on disk."""
    host = peers.introduction.host
    context = TransferContext(
        disk=environment.disk,
        rng=environment.rng,
        clock=environment.clock,
        report=peers.report,
        limits=config.limits,
        metrics=TransferMetrics(config.metrics),
        view=view,
        guards=guards,
        tickets=TicketSigner(await _ticket_key(environment, config.staging_folder, peers.report)),
        shards=LocalShardClients(tasks, peers, host, config.shard_address),
        host=host,
        machine=f"{config.machine}.{environment.rng.bytes(8).hex()}",
        isolation=config.isolation,
        building=config.building,
        staging_folder=config.staging_folder,
        checkpoints_folder=config.checkpoints_folder,
    )
    service = TransferService(context, config.flight)
    await service.recover()
    return service


async def _ticket_key(environment: Environment, folder: str, report: EventReporter) -> bytes:
    """Stored, so that tickets stay valid when this process restarts, like attempts. Only the owner can read the
    folder."""
    disk = environment.disk
    await make_durable_folder(disk, folder)
    path = f"{folder}/{KEY_NAME}"
    try:
        key = await read_checked_file(disk, path)
        if len(key) == KEY_BYTES:
            return key
    except FileNotFoundError:
        pass
    except Corruption as failure:
        report("bulk.key_unreadable", {"cause": failure.message})
    key = environment.rng.bytes(KEY_BYTES)
    await replace_file(disk, path, key)
    return key
