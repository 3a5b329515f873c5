"""A node whose table is read in bulk, alone in the ring or with tablets."""

import uuid
from pathlib import Path

from tests.unit.bulk.bulk_process_rig import OURS
from tests.unit.bulk.transfer_rig import (
    CALL_MS,
    LAYER,
    PEERS,
    VERSION,
    TransferRig,
)
from tests.unit.storage.small_table import TABLE
from tests.unit.topology.small_cluster import node, replica, simple

from ebla.bulk.stream_service import SourceStream
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.identity import Replica, ShardNumber, TopologyVersion
from ebla.model.token import WHOLE_RING
from ebla.runtime.system_clock import SystemClock
from ebla.topology.keys import Row, chunk_key, chunk_row, keyspace_key, map_key, map_row, node_key
from ebla.topology.snapshot import Keyspace
from ebla.topology.tablet_map import tablet_map
from ebla.wire.client_connection import ConnectionTarget as CallTarget
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.frames import Lane
from ebla.wire.metrics_messages import MetricsRequest
from ebla.wire.peers import connect
from ebla.wire.table_calls import OpenTableReadAnswer, OpenTableReadRequest, ReadId
from ebla.wire.verbs import METRICS, OPEN_TABLE_READ

READ, OTHER = (ReadId(uuid.UUID(int=number)) for number in (0xEAD, 0x07E))
IDLE_MS = 60_000
LIFE_MS = 10 * IDLE_MS
LIMITS = TransferLimits(sweep_ms=10, reads_idle_ms=IDLE_MS, barrier_ms=300)
HALVES = WHOLE_RING.split(2)
OWN, AWAY = Replica(OURS.host, ShardNumber(0)), replica(9)
LAYER_BYTES = sum(len(data) for name, data in LAYER.items() if name not in ("LOCK", "LOG"))
NEXT = TopologyVersion(VERSION + 1)


class ShiftedClock(SystemClock):
    ahead_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms

    def wall_us(self) -> int:
        return super().wall_us() + 1000 * self.ahead_ms


class ReadRig:
    """A node with a table, alone in the ring, or with tablets."""

    def __init__(self, rig: TransferRig) -> None:
        self.rig = rig
        self.clock = rig.clock = ShiftedClock()
        rig.control.rows = {node_key(OURS.host): node(OURS.host.int, shard_count=1, tokens=(0,))}

    def on_tablets(self, *replicas: Replica) -> None:
        self.rig.control.rows |= self.tablets(*replicas)
        self.rig.control.rows[keyspace_key("ks")] = Keyspace(name="ks", replication=simple(1), on_tablets=True)

    def tablets(self, *replicas: Replica) -> dict[str, Row | None]:
        made = tablet_map(TABLE, [(each,) for each in replicas])
        self.rig.shard.stacks = tuple(part for part, each in zip(HALVES, replicas, strict=True) if each == OWN)
        return {map_key(TABLE): map_row(made), chunk_key(TABLE, 0): chunk_row(made.chunks[0])}

    def move(self, *replicas: Replica) -> None:
        self.rig.control.change(self.tablets(*replicas))

    async def settled(self, version: int) -> None:
        bulk = self.rig.bulk
        assert bulk is not None
        await self.rig.until(lambda: bulk.view.current.version >= version)

    async def idle(self) -> None:
        """So long nothing was asked that its checkpoint is gone."""
        self.clock.ahead_ms += IDLE_MS
        await self.rig.until(lambda: self.rig.below("checkpoints") == [])

    async def swept(self) -> None:
        """Twice: a sweep that was under way may have looked before."""
        assert self.rig.bulk is not None
        assert self.rig.bulk.transfers is not None
        for _ in range(2):
            await self.rig.bulk.transfers._sweeper.sweep(CALL_MS)

    @property
    def taken(self) -> int:
        return len(self.rig.shard.asked)

    async def enter(self, ticket: bytes, number: int | None = None, run: str = "") -> SourceStream:
        return await self.rig.stream_service.open_read(ticket, WHOLE_RING if number is None else HALVES[number], run)

    async def metric_values(self, name: str) -> dict[tuple[str, ...], float]:
        control, _ = await connect(self.rig.context, PEERS, CallTarget(Lane.CONTROL, OURS.host))
        answer = await control.call(METRICS, MetricsRequest(), CALL_MS)
        control.close("that was all")
        (family,) = [one for one in answer.metrics if one.name == name]
        return {tuple(series.labels): series.value for series in family.series}


def is_there(source: SourceStream) -> bool:
    return Path(source.folder).exists()


async def opened(
    caller: RpcClientConnection, read: ReadId = READ, version: int = VERSION, life_ms: int = LIFE_MS
) -> OpenTableReadAnswer:
    request = OpenTableReadRequest(read=read, table=TABLE, version=TopologyVersion(version), life_ms=life_ms)
    return await caller.call(OPEN_TABLE_READ, request, CALL_MS)
