"""How long rows of a killed shard are unavailable: until other replicas serve them, and until it does again."""

import asyncio
import itertools
import time
from dataclasses import dataclass

from benchmarks.row_client import RequestBodies, RequestFailed, ShardSession, TableShape
from benchmarks.rows_cluster import BenchTable, RowsCluster
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Replica

TRY_S = 1.0
WATCH_S = 30.0
PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Resumed:
    others_s: float
    """The longest time without an acknowledged QUORUM write of rows that have two more replicas."""
    itself_s: float
    """From the kill to the first acknowledged write of rows that it alone has."""


def measure_kill(cluster: RowsCluster, victim: Replica) -> Resumed:
    """The client uses a shard of another node."""
    asked = next(shard for shard in cluster.shards if shard.host != victim.host)
    return cluster.runner.run(_measure(cluster, victim, asked))


async def _measure(cluster: RowsCluster, victim: Replica, asked: Replica) -> Resumed:
    pid = (await cluster.find_pids())[victim]
    sessions = [ShardSession(_requests(table, victim)) for table in (cluster.thrice, cluster.once)]
    try:
        for session in sessions:
            await session.open(cluster.node_of(asked), asked.shard)
            await session.send_next(TRY_S)
        cluster.kill(pid)
        killed_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            itself = tasks.create_task(_first(sessions[1]))
            others = tasks.create_task(_longest(sessions[0], itself))
    finally:
        for session in sessions:
            session.close()
    return Resumed(others.result(), itself.result() - killed_at)


def _requests(table: BenchTable, victim: Replica) -> RequestBodies:
    return table.bodies.writes(table.keys_on(victim)[:1], TableShape(), ConsistencyLevel.QUORUM)


async def _first(session: ShardSession) -> float:
    ends_at = time.monotonic() + WATCH_S
    while time.monotonic() < ends_at:
        try:
            await session.send_next(TRY_S)
        except RequestFailed:
            await asyncio.sleep(PAUSE_S)
        else:
            return time.monotonic()
    raise RuntimeError(f"a killed shard has not served again within {WATCH_S} s")


async def _longest(session: ShardSession, until: "asyncio.Task[float]") -> float:
    acknowledged = [time.monotonic()]
    while not until.done():
        try:
            await session.send_next(TRY_S)
        except RequestFailed:
            continue
        acknowledged.append(time.monotonic())
        await asyncio.sleep(PAUSE_S)
    return max(later - earlier for earlier, later in itertools.pairwise([*acknowledged, time.monotonic()]))
