"""Tablets moved between two nodes by Spark, beside one raw TLS stream of the same bytes: real processes, in one run.

    python -m benchmarks.bench_transfers [--quick] [--folder DIR]

Three nodes of one shard each and the embedded Spark run on this machine. A move is a whole job: session, checkpoint,
Spark, seal, adoption, the session closed; its time is from its start to its end according to its record. Without
the link path the bytes go from the source's Flight server through the task to the target's; with it, files are linked.
The raw stream goes from files to a file with one thread on either side.

Serving is measured at the source's shard, with half reads and half writes at 30 % of what it does at most, each timed
from the moment it was due, without and with a move (over Flight) under way: in several intervals, one of each kind
after the other. The median over the pairs is reported; otherwise one interval with a stall would decide.

CPU is user plus system time by part, per GB moved. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.paced_client import PacedLoad
from benchmarks.raw_tls import raw_tls_s
from benchmarks.row_client import RowBodies, TableShape, Traffic, load, traffic_to
from benchmarks.transfer_cluster import MovedTable, TransferCluster
from ebla.cli.cluster.node_calls import read_snapshot
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.model.consistency import ConsistencyLevel
from ebla.model.records.jobs import CopyTablets, JobRecord

FLIGHT_RATIO_MIN = 0.4
SHORT_CUT_RATIO_MIN = 2.0
TOGETHER_TIMES_MIN = 5.0
WARM_MS_MAX = 400.0
P99_RATIO_MAX = 2.5
LOAD_SHARE = 0.3
KEYS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    large_bytes: int
    small_tablets: int
    small_table: int
    """Tablets it has: a power of two. So many of them are moved as the line above says."""
    small_bytes: int
    rounds: int
    spells: int
    quiet_s: float
    """Per interval. One with a move lasts as long as the move."""


FULL = Plan(
    large_bytes=1_000_000_000,
    small_tablets=100,
    small_table=128,
    small_bytes=5_000_000,
    rounds=2,
    spells=3,
    quiet_s=5.0,
)
QUICK = Plan(
    large_bytes=200_000_000, small_tablets=20, small_table=32, small_bytes=2_000_000, rounds=1, spells=2, quiet_s=3.0
)


def took_s(job: JobRecord) -> float:
    return (job.ended_ms - job.started_ms) / 1000


def measure_large(figures: Figures, cluster: TransferCluster, plan: Plan) -> None:
    raw, flight, linked = [], [], []
    spent: dict[str, list[float]] = {}
    for number in range(plan.rounds):
        table = cluster.make_table(f"large{number}", 1, plan.large_bytes)
        target = cluster.node_of(table.target)
        before = cluster.cpu_s()
        copied = cluster.copy(table, [0], short_cut=False)
        size_gb = _moved_gb(copied)
        for part, seconds in cluster.cpu_s().items():
            spent.setdefault(part, []).append((seconds - before[part]) / size_gb)
        flight.append(size_gb / took_s(copied))
        files = cluster.source_files(table)
        sent_gb = sum(path.stat().st_size for path in files) / 1e9
        sink = cluster.folder / "raw-sink"
        raw.append(sent_gb / raw_tls_s(target.folder.tls, target.options.address, files, sink))
        copied = cluster.copy(table, [0], short_cut=True)
        linked.append(_moved_gb(copied) / took_s(copied))
        cluster.drop(f"large{number}")
        cluster.wait_quiet()
    print(f"raw TLS stream, file to file {figures.note('raw_tls_mb_s', statistics.median(raw) * 1000):16,.0f} MB/s")
    for name, rates, least in (("flight", flight, FLIGHT_RATIO_MIN), ("short_cut", linked, SHORT_CUT_RATIO_MIN)):
        figures.note(f"{name}_mb_s", statistics.median(rates) * 1000)
        ratio = statistics.median(rate / plain for rate, plain in zip(rates, raw))
        limit = figures.at_least(f"{name}_ratio", ratio, least)
        print(f"moved by {name:10} {statistics.median(rates) * 1000:10,.0f} MB/s, over raw TLS {ratio:8.2f}  {limit}")
    for part, per_gb in spent.items():
        print(f"CPU per GB over Flight, {part:14} {figures.note(f'cpu_{part}_s', statistics.median(per_gb)):8.2f} s")


def _moved_gb(job: JobRecord) -> float:
    assert job.result is not None
    return job.result.bytes_moved / 1e9


def measure_small(figures: Figures, cluster: TransferCluster, table: MovedTable, plan: Plan) -> None:
    numbers = list(range(plan.small_tablets))
    cluster.copy(table, numbers, short_cut=False)
    began = time.monotonic()
    cluster.copy(table, numbers, short_cut=False)
    together_s = figures.note("together_s", time.monotonic() - began)
    specs = [
        CopyTablets(table=table.id, tablets=(one,), source=table.source, target=table.target, short_cut=False)
        for one in numbers
    ]
    began = time.monotonic()
    for spec in specs:
        cluster.run_jobs([spec])
    apart_s = figures.note("apart_s", time.monotonic() - began)
    limit = figures.at_least("together_times", apart_s / together_s, TOGETHER_TIMES_MIN)
    what = f"{len(numbers)} tablets of {plan.small_bytes / 1e6:.0f} MB"
    print(f"{what}: one job {together_s:.1f} s, a job each {apart_s:.1f} s: {apart_s / together_s:8.1f}×  {limit}")


def measure_start(figures: Figures, cluster: TransferCluster, table: MovedTable) -> None:
    """A tablet of a few kilobytes: the job is only its fixed cost."""
    times = [took_s(cluster.copy(table, [0], short_cut=True)) * 1000 for _ in range(7)]
    middle = statistics.median(times)
    limit = figures.at_most("warm_job_ms", middle, WARM_MS_MAX)
    print(f"a whole warm job with nothing to move {middle:16,.0f} ms  {limit}")


def measure_serving(figures: Figures, cluster: TransferCluster, table: MovedTable, plan: Plan) -> None:
    traffic = _served(cluster, table)
    most = asyncio.run(load(traffic, 32, plan.quiet_s)).per_s
    per_s = figures.note("served_per_s", most * LOAD_SHARE)
    quiet, moving = [], []
    for _ in range(plan.spells):
        cluster.wait_quiet()
        with PacedLoad(traffic, per_s) as paced:
            time.sleep(plan.quiet_s)
        quiet.append(paced)
        with PacedLoad(traffic, per_s) as paced:
            cluster.copy(table, [0], short_cut=False)
        moving.append(paced)
    for name, spells in (("quiet", quiet), ("moving", moving)):
        middle_ms, late_ms = (statistics.median(one.percentile_ms(share) for one in spells) for share in (0.5, 0.99))
        figures.note(f"{name}_p50_ms", middle_ms)
        figures.note(f"{name}_p99_ms", late_ms)
        each = ", ".join(f"{one.percentile_ms(0.99):.1f}" for one in spells)
        print(f"served at {per_s:,.0f}/s, {name:7} p50 {middle_ms:8.2f} ms, p99 {late_ms:8.2f} ms ({each})")
    ratio = statistics.median(busy.percentile_ms(0.99) / idle.percentile_ms(0.99) for idle, busy in zip(quiet, moving))
    limit = figures.at_most("serving_p99_ratio", ratio, P99_RATIO_MAX)
    print(f"p99 while a tablet moves, over quiet {ratio:16.2f}  {limit}")


def _served(cluster: TransferCluster, table: MovedTable) -> list[Traffic]:
    with open_cql(cluster.folder) as cql:
        cql.execute("CREATE KEYSPACE served WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
        cql.execute("CREATE TABLE served.t (k bigint, c int, v text, PRIMARY KEY (k, c))")
    schema = table_schema(read_snapshot(cluster.folder), "served.t")
    bodies = RowBodies(schema)
    node, keys = cluster.node_of(table.source), list(range(KEYS))
    asyncio.run(load([traffic_to(node, 0, bodies.every(keys, ConsistencyLevel.ALL))], 4, 60.0))
    return [
        traffic_to(node, 0, bodies.writes(keys, TableShape(), ConsistencyLevel.QUORUM)),
        traffic_to(node, 0, bodies.reads(keys, ConsistencyLevel.ONE)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, and less sure")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else FULL
    figures = Figures()
    figures.note("load_before", os.getloadavg()[0])
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as scratch,
        closing(TransferCluster(Path(scratch).absolute() / "n")) as cluster,
    ):
        tiny = cluster.make_table("tiny", 1, 64 << 10)
        measure_start(figures, cluster, tiny)
        measure_large(figures, cluster, plan)
        measure_serving(figures, cluster, cluster.make_table("large", 1, plan.large_bytes), plan)
        small = cluster.make_table("small", plan.small_table, plan.small_bytes * plan.small_table, copies=3)
        measure_small(figures, cluster, small, plan)
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
