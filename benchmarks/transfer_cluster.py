"""Three nodes with the pipeline beside the leader, tables to be moved, and jobs to move them."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.bulk_work import is_busy
from benchmarks.group0_cluster import NodeProcess
from benchmarks.row_client import batches, load, traffic_to
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.node_calls import probe_nodes, read_snapshot
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.client.cluster_view import build_cluster_view
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HostId, TableId
from ebla.model.records.jobs import CopyTablets, JobRecord, JobSpec, JobState
from ebla.model.schema import TableSchema
from ebla.ports.transfer_engine import EngineState
from ebla.topology.routing.replica_sets import ReplicaSets

NODES = 3
START_S = 120.0
JOB_S = 600.0
FILLING_AT_ONCE = 2
QUIET_LOOK_S = 0.5
QUIET_LOOKS = 6
VALUE_BYTES = 16 << 10
ROWS_PER_REQUEST = 16
OVERRIDES = (
    "limits.free_disk_bytes_min=0",
    "limits.write_timeout_ms=30000",
    "limits.feed_silence_ms=20000",
    "limits.child_silence_ms=40000",
    "limits.peer_silence_ms=20000",
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTable:
    id: TableId
    tablets: int
    source: HostId
    target: HostId


class TransferCluster:
    def __init__(self, folder: Path, *, has_pipeline: bool = True) -> None:
        base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
        overrides = (*OVERRIDES, f"pipeline.enabled={str(has_pipeline).lower()}")
        made = find_or_create_nodes(
            folder, NewClusterSpec(nodes=NODES, shards=1, base_address=base, cluster_name="bench", overrides=overrides)
        )
        assign_identities(made)
        self.folder = folder
        self.local = made
        self.nodes = [NodeProcess(node) for node in made]
        self._wait_up()
        if has_pipeline:
            self._wait("the pipeline is ready", self._is_ready)

    def all_up(self) -> bool:
        """Whether every node is in the ring, is seen by all others and serves."""
        return build_cluster_view(asyncio.run(probe_nodes(self.local))).all_up

    def _wait_up(self) -> None:
        self._wait("all nodes are up", self.all_up)

    def _wait(self, what: str, reached: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + START_S
        while not reached():
            if time.monotonic() > ends_at:
                raise RuntimeError(f"not within {START_S} s: {what}; see {self.folder}/node1/run/bench-output")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        async def work(access: JobCommandContext) -> bool:
            state = await access.jobs.pipeline()
            return state is not None and state.state == EngineState.READY

        return self.with_job_context(work)

    def with_job_context(self, work: Callable[[JobCommandContext], Awaitable[T]]) -> T:
        return with_job_context(self.folder, None, work)

    def node_of(self, host: HostId) -> LocalNode:
        return next(node for node in self.local if (one := node.folder.read_identity()) and one.host == host)

    # -- tables ------------------------------------------------------------------------------------------------------

    def make_table(self, keyspace: str, tablets: int, size_bytes: int, copies: int = 2) -> MovedTable:
        """Filled with bytes that do not compress; the first two replicas of the first tablet are source and target. The
        target is down meanwhile and has nothing of it, like a replica that is about to become one."""

        with open_cql(self.folder) as cql:
            cql.execute(
                f"CREATE KEYSPACE {keyspace} WITH tablets = {{'initial': {tablets}}} AND replication = "
                f"{{'class': 'NetworkTopologyStrategy', 'dc1': {copies}}}"
            )
            cql.execute(f"CREATE TABLE {keyspace}.t (k bigint PRIMARY KEY, v blob)")
        snapshot = read_snapshot(self.folder)
        schema = table_schema(snapshot, f"{keyspace}.t")
        replicas = ReplicaSets(snapshot).of(schema.id).reading(0)
        made = MovedTable(id=schema.id, tablets=tablets, source=replicas[0].host, target=replicas[1].host)
        target = self.nodes[self.local.index(self.node_of(made.target))]
        target.end()
        self._fill(made, schema, size_bytes // VALUE_BYTES)
        target.start_again()
        self._wait_up()
        self._wait("the pipeline is ready", self._is_ready)
        self.wait_quiet()
        return made

    def wait_quiet(self) -> None:
        """Until no compaction runs."""
        still = 0
        ends_at = time.monotonic() + START_S
        while still < QUIET_LOOKS and time.monotonic() < ends_at:
            busy = any(is_busy(process) for name, process in self._processes() if name == "bulk")
            still = 0 if busy else still + 1
            time.sleep(QUIET_LOOK_S)

    def _fill(self, table: MovedTable, schema: TableSchema, rows: int) -> None:
        def values() -> Iterator[Sequence[Sequence[bytes]]]:
            for start in range(0, rows, ROWS_PER_REQUEST):
                keys = range(start, start + ROWS_PER_REQUEST)
                yield [(key.to_bytes(8), os.urandom(VALUE_BYTES)) for key in keys]

        statement = f"INSERT INTO {schema.full_name} (k, v) VALUES (?, ?)"
        bodies = batches(statement, values, ConsistencyLevel.ONE)
        spell = asyncio.run(load([traffic_to(self.node_of(table.source), 0, bodies)], FILLING_AT_ONCE, JOB_S))
        # A busy store may refuse a few rows; only what was moved is measured.
        if spell.failed > spell.answered / 50:
            raise RuntimeError(f"{spell.failed} writes of the filling failed: {spell.failure}")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def copy(self, table: MovedTable, tablets: Sequence[int], *, short_cut: bool) -> JobRecord:
        spec = CopyTablets(
            table=table.id, tablets=tuple(tablets), source=table.source, target=table.target, short_cut=short_cut
        )
        return self.run_jobs([spec])[0]

    def run_jobs(self, specs: Sequence[JobSpec]) -> list[JobRecord]:
        """Submits all jobs at once, and waits for their end."""

        async def work(access: JobCommandContext) -> list[JobRecord]:
            jobs = [await access.jobs.submit(spec, "a benchmark") for spec in specs]
            ended = []
            async with asyncio.timeout(JOB_S):
                for job in jobs:
                    async for seen in access.jobs.follow(job.id):
                        last = seen
                    ended.append(last)
            return ended

        ended = self.with_job_context(work)
        failed = next((job for job in ended if job.state is not JobState.DONE), None)
        if failed is not None:
            raise RuntimeError(f"a job {failed.state}: {failed.cause}")
        return ended

    # -- processes ---------------------------------------------------------------------------------------------------

    def cpu_s(self) -> dict[str, float]:
        """User and system time so far: of shards, bulk processes, the pipeline's Java and Python."""
        spent = {"shards": 0.0, "bulk": 0.0, "control": 0.0, "spark_java": 0.0, "spark_python": 0.0}
        for name, process in self._processes():
            _add(spent, name, process)
        return spent

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        view = build_cluster_view(asyncio.run(probe_nodes(self.local)))
        return [(one.name, psutil.Process(one.pid)) for node in view.nodes for one in node.processes if one.pid]

    def drop(self, keyspace: str) -> None:
        with open_cql(self.folder) as cql:
            cql.execute(f"DROP KEYSPACE {keyspace}")

    def source_files(self, table: MovedTable) -> list[Path]:
        """All layers on the source's disk. Nearly all belong to the table."""
        folder = self.node_of(table.source).options.folder / "shard-0" / "layers"
        return [path for path in folder.rglob("*.sst") if path.is_file()]

    def close(self) -> None:
        for node in self.nodes:
            node.end()


def _add(spent: dict[str, float], name: str, process: psutil.Process) -> None:
    part = {"bulk": "bulk", "control": "control", "pipeline": "spark_python"}.get(name, "shards")
    spent[part] += _own_s(process)
    if name in ("pipeline", "bulk"):
        for child in process.children(recursive=True):
            is_java = name == "pipeline" and "java" in _name(child)
            spent["spark_java" if is_java else part] += _own_s(child)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
