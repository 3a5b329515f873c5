"""How long rows of a shard stay away after it is killed: until the other replicas serve them, and until it does."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from benchmarks.row_client import TableShape
from benchmarks.rows_cluster import BenchTable, RowsCluster
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.model.identity import Address, Replica
from ebla.observe.event_reporter import discard_event
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.row_messages import RouteWriteRequest
from ebla.wire.verbs import ROUTE_WRITE

TRY_MS = 1_000
WATCH_S = 30.0
PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Resumed:
    others_s: float
    """The longest time without an acknowledged QUORUM write of rows that have two more replicas."""
    itself_s: float
    """From the kill to the first acknowledged write of rows that it alone has."""


def measure_kill(cluster: RowsCluster, victim: Replica) -> Resumed:
    """The client's shard is one of another node."""
    asked = next(shard for shard in cluster.shards if shard.host != victim.host)
    return cluster.runner.run(_measure(cluster, victim, asked))


async def _measure(cluster: RowsCluster, victim: Replica, asked: Replica) -> Resumed:
    pid = (await cluster.find_pids())[victim]
    writes = [_requests(table, victim) for table in (cluster.thrice, cluster.once)]
    async with _shard(cluster.node_of(asked), asked.shard) as shard:
        for request in writes:
            await shard.call(ROUTE_WRITE, request, TRY_MS)
        cluster.kill(pid)
        killed_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            itself = tasks.create_task(_first(shard, writes[1]))
            others = tasks.create_task(_longest(shard, writes[0], itself))
    return Resumed(others.result(), itself.result() - killed_at)


def _requests(table: BenchTable, victim: Replica) -> RouteWriteRequest:
    body = next(table.bodies.writes(table.keys_on(victim), TableShape(), ConsistencyLevel.QUORUM)())
    return msgspec.msgpack.decode(body, type=RouteWriteRequest)


async def _first(shard: RpcClientConnection, request: RouteWriteRequest) -> float:
    ends_at = time.monotonic() + WATCH_S
    while time.monotonic() < ends_at:
        try:
            await shard.call(ROUTE_WRITE, request, TRY_MS)
        except EblaError:
            await asyncio.sleep(PAUSE_S)
        else:
            return time.monotonic()
    raise RuntimeError(f"a killed shard has not served again within {WATCH_S} s")


async def _longest(shard: RpcClientConnection, request: RouteWriteRequest, until: "asyncio.Task[float]") -> float:
    acknowledged = [time.monotonic()]
    while not until.done():
        try:
            await shard.call(ROUTE_WRITE, request, TRY_MS)
        except EblaError:
            continue
        acknowledged.append(time.monotonic())
        await asyncio.sleep(PAUSE_S)
    return max(later - earlier for earlier, later in itertools.pairwise([*acknowledged, time.monotonic()]))


@asynccontextmanager
async def _shard(node: LocalNode, number: int) -> AsyncIterator[RpcClientConnection]:
    identity = node.folder.read_identity()
    assert identity is not None
    introduction = Introduction(
        host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process="bench"
    )
    async with TcpTransport(None, TransportLimits(), discard_event) as transport:
        context = PeersContext(
            transport=transport, rng=SystemRng(), introduction=introduction, limits=WireLimits(), report=discard_event
        )
        caller, _ = await connect(context, Address(str(node.folder.shard_socket(number))), ConnectionTarget(Lane.DATA))
        try:
            yield caller
        finally:
            caller.close("done")
