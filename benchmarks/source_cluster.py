"""Nodes whose tables a user's Spark reads and writes."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bulk_work import is_busy
from benchmarks.group0_cluster import NodeProcess
from benchmarks.row_client import RowBodies, Traffic, load, traffic_to
from benchmarks.source_spark import DEFINITION, ResourcesSpent, below_s, ended_s, own_s, spark_spent
from ebla.cli.cluster.local_cluster import NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.node_calls import probe_nodes, read_snapshot
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.client.cluster_view import build_cluster_view
from ebla.model.consistency import ConsistencyLevel

START_S = 120.0
QUIET_S = 120.0
QUIET_LOOK_S = 0.3
QUIET_LOOKS = 4
SERVED_KEYS = 20_000
FILLING_AT_ONCE = 4
OVERRIDES = (
    "limits.free_disk_bytes_min=0",
    "pipeline.enabled=false",
    "limits.write_timeout_ms=30000",
    "limits.feed_silence_ms=20000",
    "limits.child_silence_ms=40000",
    "limits.peer_silence_ms=20000",
)
"""No Spark runs beside the nodes except the user's. A shared machine is slow at times."""
SIDECARS = "columns.*"
T = TypeVar("T")


class SourceCluster:
    """Each table has its own keyspace, of the same name."""

    def __init__(self, folder: Path, nodes: int, shards: int, tablets: int | None = None) -> None:
        base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
        self._made = find_or_create_nodes(
            folder,
            NewClusterSpec(nodes=nodes, shards=shards, base_address=base, cluster_name="bench", overrides=OVERRIDES),
        )
        assign_identities(self._made)
        self._folder = folder
        self._shards = shards
        self._tablets = tablets
        self._nodes = [NodeProcess(node) for node in self._made]
        self._wait("all nodes are up", lambda: build_cluster_view(asyncio.run(probe_nodes(self._made))).all_up)
        self._processes = self._find_processes()
        self.contact = ",".join(f"{node.options.address}:{node.options.ports.cql}" for node in self._made)

    def close(self) -> None:
        for node in self._nodes:
            node.end()

    def _wait(self, what: str, reached: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + START_S
        while not reached():
            if time.monotonic() > ends_at:
                raise RuntimeError(f"not within {START_S} s: {what}; see {self._folder}/node1/run/bench-output")
            time.sleep(0.2)

    def _find_processes(self) -> list[tuple[str, psutil.Process]]:
        view = build_cluster_view(asyncio.run(probe_nodes(self._made)))
        return [(one.name, psutil.Process(one.pid)) for node in view.nodes for one in node.processes if one.pid]

    # ---- tables

    def make_table(self, name: str, copies: int) -> None:
        replication = f"{{'class': 'NetworkTopologyStrategy', 'dc1': {copies}}}"
        tablets = "" if self._tablets is None else f" AND tablets = {{'initial': {self._tablets}}}"
        with open_cql(self._folder) as cql:
            cql.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}{tablets}")
            cql.execute(f"CREATE TABLE {name}.t (id bigint PRIMARY KEY, {DEFINITION.format(double='double')})")

    def empty(self, name: str) -> None:
        with open_cql(self._folder) as cql:
            cql.execute(f"TRUNCATE {name}.t")
        self.wait_quiet()

    def wait_quiet(self) -> None:
        """Until no compaction runs."""
        still = 0
        ends_at = time.monotonic() + QUIET_S
        while still < QUIET_LOOKS and time.monotonic() < ends_at:
            busy = any(is_busy(process) for name, process in self._processes if name == "bulk")
            still = 0 if busy else still + 1
            time.sleep(QUIET_LOOK_S)

    def drop_sidecars(self) -> int:
        """Deletes the sidecars of all layers. Layers of rows remain, like those of a shard's flushes."""
        found = [path for node in self._made for path in node.options.folder.glob(f"shard-*/layers/*/{SIDECARS}")]
        for path in found:
            path.unlink()
        return len(found)

    # ---- what Spark does

    def write(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format("ebla").options(contact=self.contact, keyspace=name, table="t")
        writer.mode("append").save()

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("ebla").options(contact=self.contact, keyspace=name, table="t").load()

    def spent(self) -> ResourcesSpent:
        """CPU of the session's and the nodes' processes: bulk includes its workers."""
        spent = {**spark_spent(), "bulk": 0.0, "shards": 0.0, "control": 0.0}
        for name, process in self._processes:
            if name == "bulk":
                spent["bulk"] += own_s(process) + ended_s(process) + below_s(process)
            else:
                spent["control" if name == "control" else "shards"] += own_s(process)
        return spent

    # ---- what users of the nodes do meanwhile

    def served(self) -> list[Traffic]:
        """Point reads of a separate table, at every shard of the first node."""
        with open_cql(self._folder) as cql:
            cql.execute("CREATE KEYSPACE served WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
            cql.execute("CREATE TABLE served.t (k bigint, c int, v text, PRIMARY KEY (k, c))")
        schema = table_schema(read_snapshot(self._folder), "served.t")
        bodies = RowBodies(schema)
        node, keys = self._made[0], list(range(SERVED_KEYS))
        filled = asyncio.run(
            load([traffic_to(node, 0, bodies.every(keys, ConsistencyLevel.ONE))], FILLING_AT_ONCE, 60.0)
        )
        if filled.failed:
            raise RuntimeError(f"{filled.failed} writes failed: {filled.failure}")
        return [traffic_to(node, shard, bodies.reads(keys, ConsistencyLevel.ONE)) for shard in range(self._shards)]
