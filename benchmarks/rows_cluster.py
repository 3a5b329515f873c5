"""Three nodes of two shards each, with one table at RF 1 and one at RF 3."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.group0_cluster import NodeProcess
from benchmarks.row_client import LoadResult, RowBodies, Traffic, load, traffic_to
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.node_calls import probe_nodes, read_snapshot
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.client.cluster_view import build_cluster_view
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.model.token import token_of
from ebla.topology.routing.replica_sets import ReplicaSets, TableReplicas

NODES = 3
SHARDS = 2
START_S = 60.0
FILL_S = 120.0
KEYS = 20_000
QUIET = (
    "limits.free_disk_bytes_min=0",
    "pipeline.enabled=false",
    "limits.write_timeout_ms=30000",
    "limits.read_timeout_ms=30000",
    "limits.feed_silence_ms=20000",
    "limits.child_silence_ms=40000",
    "limits.peer_silence_ms=20000",
)
"""A shared machine is slow at times; the benchmark must not fail because of it."""


class BenchTable:
    """Where its rows are, and requests for them."""

    def __init__(self, bodies: RowBodies, replicas: TableReplicas) -> None:
        self.bodies = bodies
        self._replicas: dict[int, Sequence[Replica]] = {
            key: replicas.reading(token_of(key.to_bytes(8))) for key in range(KEYS)
        }

    def keys_on(self, replica: Replica) -> list[int]:
        return [key for key, replicas in self._replicas.items() if replica in replicas]

    def keys_not_on(self, replica: Replica) -> list[int]:
        return [key for key, replicas in self._replicas.items() if replica not in replicas]

    def replicas_of(self, keys: Sequence[int]) -> list[Replica]:
        return sorted({replica for key in keys for replica in self._replicas[key]})


class RowsCluster:
    def __init__(self, folder: Path, commit_log: str, runner: asyncio.Runner) -> None:
        base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
        overrides = (*QUIET, f"commit_log={commit_log}")
        made = find_or_create_nodes(
            folder,
            NewClusterSpec(nodes=NODES, shards=SHARDS, base_address=base, cluster_name="bench", overrides=overrides),
        )
        assign_identities(made)
        self.runner = runner
        self._folder = folder
        self.nodes = [NodeProcess(node) for node in made]
        self._hosts: dict[HostId, LocalNode] = {}
        for node in made:
            identity = node.folder.read_identity()
            assert identity is not None
            self._hosts[identity.host] = node
        self._wait_up()
        self.once = self._make_table("once", 1)
        self.thrice = self._make_table("thrice", NODES)

    @property
    def shards(self) -> list[Replica]:
        return [Replica(host, ShardNumber(number)) for host in self._hosts for number in range(SHARDS)]

    def node_of(self, shard: Replica) -> LocalNode:
        return self._hosts[shard.host]

    def _wait_up(self) -> None:
        ends_at = time.monotonic() + START_S
        while not build_cluster_view(self.runner.run(probe_nodes([node.node for node in self.nodes]))).all_up:
            if time.monotonic() > ends_at:
                raise RuntimeError(f"not all nodes are up after {START_S} s; see {self._folder}/node1/run/bench-output")
            time.sleep(0.2)

    def _make_table(self, keyspace: str, copies: int) -> BenchTable:
        with open_cql(self._folder) as cql:
            cql.execute(
                f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': {copies}}}"
            )
            cql.execute(f"CREATE TABLE {keyspace}.t (k bigint, c int, v text, PRIMARY KEY (k, c))")
        snapshot = read_snapshot(self._folder)
        schema = table_schema(snapshot, f"{keyspace}.t")
        return BenchTable(RowBodies(schema), ReplicaSets(snapshot).of(schema.id))

    def load(self, traffic: Sequence[Traffic], in_flight: int, seconds: float) -> LoadResult:
        spell = self.runner.run(load(traffic, in_flight, seconds))
        if spell.failed:
            raise RuntimeError(f"{spell.failed} of {spell.answered + spell.failed} requests failed")
        return spell

    def pids(self) -> dict[Replica, int]:
        return self.runner.run(self.find_pids())

    async def find_pids(self) -> dict[Replica, int]:
        view = build_cluster_view(await probe_nodes([node.node for node in self.nodes]))
        found: dict[Replica, int] = {}
        for host, seen in zip(self._hosts, view.nodes, strict=True):
            for process in seen.processes:
                if process.name.startswith("shard-") and process.pid:
                    found[Replica(host, ShardNumber(int(process.name.removeprefix("shard-"))))] = process.pid
        return found

    def cpu_s(self) -> dict[Replica, float]:
        """User plus system time of each shard process so far, all threads."""
        found = {}
        for shard, pid in self.pids().items():
            times = psutil.Process(pid).cpu_times()
            found[shard] = times.user + times.system
        return found

    @staticmethod
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def fill(self) -> None:
        """The first row of every key, so that measurements find layers open and rows present."""
        for table in (self.once, self.thrice):
            traffic = [
                traffic_to(self.node_of(shard), shard.shard, table.bodies.every(keys, ConsistencyLevel.ALL))
                for shard in self.shards
                if (keys := table.keys_on(shard)) and (table is self.once or shard.host == self.shards[0].host)
            ]
            self.load(traffic, 4, FILL_S)

    def close(self) -> None:
        for node in self.nodes:
            node.end()
