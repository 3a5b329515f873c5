"""CQL requests to three nodes of two shards each, in real processes.

    python -m benchmarks.bench_cql [--quick] [--folder DIR]

The client is our own, in a process apart from the servers, with ready-made frames: drivers in Python cost more than the
server does. It keeps 64 requests in flight on one connection to one shard that has the rows: EXECUTE of a prepared
upsert or point read, over TCP. CPU is user plus system time of all six shard processes per request, so that at RF 3 the
replicas' part counts too. Writes at RF 3 are at QUORUM, everything else at ONE; the commit log is `periodic`, so that
syncs do not hide the measured cost.

Beside it: text to plan of a simple SELECT, 5,000 stored rows to the body of an answer, and the time from `ebla up` in
an empty folder to the first answer that a driver gets. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from cassandra.cluster import Cluster

from benchmarks.figures import Figures
from benchmarks.row_client import LoadResult, TableShape, Traffic, traffic_to
from benchmarks.rows_cluster import KEYS, BenchTable, RowsCluster
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import SelectStatement
from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.select_plan import SelectPlan, plan_select
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import SCALARS
from ebla.model.identity import Replica, TableId
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import Column, ColumnKind, TableSchema, new_schema
from ebla.model.token import token_of
from ebla.options import CommitLogMode
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.runtime.event_loop import new_event_loop
from ebla.storage.codec.key_codec import encode_clustering, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_row
from ebla.wire.cql.messages import QueryParameters
from ebla.wire.cql.responses import rows as encode_rows

IN_FLIGHT = 64
PLAN_US_MAX = 80.0
PAGE_MS_MAX = 15.0
UP_S_MAX = 12.0
PAGE_ROWS = 5_000
TABLE = TableId(uuid.UUID(int=1))
SELECT = "SELECT v FROM ks.t WHERE k = ?"


@dataclass(frozen=True, slots=True)
class Measured:
    spell: LoadResult
    cpu_us: float


# ---- requests


def requests(cluster: RowsCluster) -> list[tuple[str, Traffic]]:
    made: list[tuple[str, Traffic]] = []
    for name, table, level in (
        ("rf1", cluster.once, ConsistencyLevel.ONE),
        ("rf3", cluster.thrice, ConsistencyLevel.QUORUM),
    ):
        shard, keys = busiest(cluster, table)
        node = cluster.node_of(shard)
        made += [
            (f"upsert_{name}", traffic_to(node, shard.shard, table.bodies.writes(keys, TableShape(), level))),
            (f"read_{name}", traffic_to(node, shard.shard, table.bodies.reads(keys, ConsistencyLevel.ONE))),
        ]
    return made


def busiest(cluster: RowsCluster, table: BenchTable) -> tuple[Replica, list[int]]:
    found = [(shard, table.keys_on(shard)) for shard in cluster.shards]
    return max(found, key=lambda one: len(one[1]))


def measured(cluster: RowsCluster, run: Callable[[], LoadResult]) -> Measured:
    before = sum(cluster.cpu_s().values())
    spell = run()
    used_s = sum(cluster.cpu_s().values()) - before
    if spell.failed:
        raise RuntimeError(f"{spell.failed} of {spell.answered + spell.failed} requests failed")
    return Measured(spell, used_s / spell.answered * 1e6)


def measure_requests(cluster: RowsCluster, figures: Figures, rounds: int, seconds: float) -> None:
    for name, traffic in requests(cluster):
        found: list[Measured] = []
        for number in range(rounds + 1):
            one = measured(cluster, lambda traffic=traffic: cluster.load([traffic], IN_FLIGHT, seconds))  # type: ignore[misc]  # bound early
            if number:  # the first round warms up
                found.append(one)
        print_report(name, found, figures)


def print_report(name: str, found: list[Measured], figures: Figures) -> None:
    took = sorted(second for one in found for second in one.spell.took_s)
    per_s = figures.note(f"{name}_per_s", statistics.median(one.spell.per_s for one in found))
    p50 = figures.note(f"{name}_p50_ms", took[len(took) // 2] * 1000)
    p99 = figures.note(f"{name}_p99_ms", took[len(took) * 99 // 100] * 1000)
    cql_us = figures.note(f"{name}_cql_us", statistics.median(one.cpu_us for one in found))
    print(f"{name:12} {per_s:8.0f}/s  p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  CPU {cql_us:6.1f} µs", flush=True)


# ---- in this process


def schema() -> TableSchema:
    columns = (
        Column(name="k", type=SCALARS["bigint"], kind=ColumnKind.PARTITION_KEY, position=0),
        Column(name="c", type=SCALARS["int"], kind=ColumnKind.CLUSTERING, position=0),
        Column(name="v", type=SCALARS["text"], kind=ColumnKind.REGULAR),
        Column(name="w", type=SCALARS["int"], kind=ColumnKind.REGULAR),
    )
    return new_schema(TABLE, "ks", "t", columns)


def planned(table: TableSchema, text: str) -> SelectPlan:
    parsed = parse(text)
    assert isinstance(parsed.statement, SelectStatement)
    return plan_select(parsed.statement, table, parsed.markers)


def measure_plan(figures: Figures) -> None:
    table = schema()
    took_us = best_of(lambda: planned(table, SELECT), 2_000) * 1e6
    print(
        f"text to plan of a simple SELECT      {took_us:7.1f} µs ({figures.at_most('plan_us', took_us, PLAN_US_MAX)})"
    )


def best_of(work: Callable[[], object], times: int, rounds: int = 5) -> float:
    """CPU seconds per call, best of several rounds: other processes share this machine."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times)
    return min(found)


def stored_page(made: TableSchema) -> ReadPage:
    key = (7).to_bytes(8)
    prefix = partition_prefix(token_of(key), key)
    numbers = made.column("v").number, made.column("w").number
    items = []
    for place in range(PAGE_ROWS):
        text = random.Random(place).randbytes(50).hex().encode()
        row = Row(
            marker=RowMarker(1),
            deletion=None,
            cells={
                numbers[0]: Cell(timestamp_us=1, value=text),
                numbers[1]: Cell(timestamp_us=1, value=place.to_bytes(4)),
            },
        )
        stored = encode_row(row, made.version, made.layouts[-1])
        items.append((row_key(prefix, encode_clustering(made.clustering, (place.to_bytes(4),))), stored))
    return ReadPage(tuple(items), b"")


def measure_page(figures: Figures) -> None:
    made = schema()
    plan = planned(made, "SELECT * FROM ks.t WHERE k = 7")
    stored = stored_page(made)

    async def reader(_query: ReadQuery) -> ReadPage:
        return stored

    request = BoundRequest((), time.time_ns() // 1000, random.randbytes)
    parameters = QueryParameters(level=ConsistencyLevel.ONE)

    def page() -> bytes:
        work = plan.run(request, parameters, reader)
        try:
            work.send(None)
        except StopIteration as end:
            return encode_rows(end.value)
        raise AssertionError("there is nothing to wait for")

    assert len(page()) > PAGE_ROWS * 100
    took_ms = best_of(page, 10) * 1000
    limit = figures.at_most("page_ms", took_ms, PAGE_MS_MAX)
    print(f"{PAGE_ROWS} stored rows to an answer's body  {took_ms:7.1f} ms ({limit})")


# ---- from nothing to the first answer


def measure_up(figures: Figures, folder: Path) -> None:
    base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
    command = [sys.executable, "-m", "ebla"]
    data = ["--data", str(folder)]
    began = time.perf_counter()
    up = [*command, "up", "--no-follow", "--base-address", base, "--set", "limits.free_disk_bytes_min=0", *data]
    subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
    try:
        with Cluster([base]) as cluster:
            cluster.connect().execute("SELECT cluster_name FROM system.local").one()
            took_s = time.perf_counter() - began
    finally:
        subprocess.run([*command, "down", *data], check=True, stdout=subprocess.DEVNULL)
    print(f"`ebla up` to the first answer        {took_s:7.1f} s ({figures.at_most('up_s', took_s, UP_S_MAX)})")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="one short round")
    options.add_argument("--folder", type=Path, help="where the nodes' data go; a temporary folder by default")
    asked = options.parse_args()
    figures = Figures()
    measure_plan(figures)
    measure_page(figures)
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ebla-bench-")))
        measure_up(figures, folder / "up")
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        cluster = stack.enter_context(closing(RowsCluster(folder / "rows", CommitLogMode.PERIODIC.value, runner)))
        cluster.fill()
        measure_requests(cluster, figures, *((1, 1.0) if asked.quick else (5, 3.0)))
    print(json.dumps({"in_flight": IN_FLIGHT, "keys": KEYS, "missed": figures.missed, **figures.values}))


if __name__ == "__main__":
    main()
