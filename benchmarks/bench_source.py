"""Whole tables read and written by a user's Spark, beside Spark ↔ PostgreSQL by JDBC and beside Parquet, in one run.

    python -m benchmarks.bench_source [--quick] [--rows N] [--folder DIR]

Spark runs with two slots in this process's own session; rows have 8 columns and 120 bytes of values. Reads go into
nothing; writes come from Parquet files, durable when they end, the key is the primary key on either side. JDBC has
ranges of the key, large fetches and rewritten batches; PostgreSQL commits durably. One node of two shards keeps a row
once; three nodes of one shard keep it three times, and a write is answered by two of them.

Every repetition runs each side once, after warm-up repetitions. A ratio compares the same repetition, and the median is
reported. Serving is measured with point reads at 30 % of what the node does at most, each timed from the moment
it was due, in quiet intervals (`quiet_intervals.py`). Growth is the relative deviation of the times for 200 k, 2 M and
20 M rows from the nearest straight line; the fixed cost of a job is where that line begins. CPU is user plus system
time. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Figures
from benchmarks.jdbc_postgres import INSTALL, JdbcPostgres, driver_jar, missing
from benchmarks.linear_fit import deviation_from_linear
from benchmarks.quiet_intervals import QuietInterval, quiet_interval
from benchmarks.row_client import load
from benchmarks.source_cluster import SourceCluster
from benchmarks.source_spark import ResourcesSpent, Timed, make_rows, new_session, read_whole, spark_spent, timed

READ_OVER_JDBC_MIN = 2.0
READ_OVER_PARQUET_MIN = 0.5
ROWS_READ_OVER_JDBC_MIN = 0.8
WRITE_OVER_JDBC_MIN = 1.5
WRITE_THRICE_OVER_JDBC_MIN = 0.8
P99_RATIO_MAX = 2.5
OFF_LINEAR_MAX = 0.2
GROWTH_TRIES = 3
LOAD_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rows: int
    rounds: int
    warm_ups: int
    quiet_s: float
    growth: tuple[int, ...]
    """Numbers of rows, each ten times the previous one. Empty: growth is not measured."""
    tablets: int | None = None
    """Of each table; None: as many as nodes give one. With too few rows in each they are no layers of their own."""


FULL = Plan(rows=2_000_000, rounds=3, warm_ups=1, quiet_s=10.0, growth=(200_000, 2_000_000, 20_000_000))
QUICK = Plan(rows=200_000, rounds=1, warm_ups=1, quiet_s=3.0, growth=(), tablets=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison."""

    name: str
    work: Callable[[], None]
    parts: Callable[[], ResourcesSpent]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


Measurements = Mapping[str, Sequence[Timed]]


def compare(sides: Sequence[Side], plan: Plan) -> Measurements:
    seen: dict[str, list[Timed]] = {side.name: [] for side in sides}
    for number in range(plan.warm_ups + plan.rounds):
        for side in sides:
            side.before()
            found = timed(side.work, side.parts)
            side.after()
            if number >= plan.warm_ups:
                seen[side.name].append(found)
    return seen


class SourceReport:
    def __init__(self, figures: Figures, rows: int) -> None:
        self._figures = figures
        self._rows = rows

    def rates(self, seen: Measurements) -> None:
        for name, found in seen.items():
            rate = self._figures.note(
                f"{name}_rows_per_s", statistics.median(self._rows / one.seconds for one in found)
            )
            parts = {part: statistics.median(one.spent[part] for one in found) for part in found[0].spent}
            per_row = {part: cpu_s / self._rows * 1e6 for part, cpu_s in parts.items()}
            for part, cpu_us in per_row.items():
                self._figures.note(f"{name}_{part}_us", cpu_us)
            whole = self._figures.note(f"{name}_us", sum(per_row.values()))
            shares = ", ".join(f"{part} {cpu_us:.2f}" for part, cpu_us in per_row.items())
            print(f"{name:20} {rate:12,.0f} rows/s, CPU {whole:6.2f} µs/row: {shares}", flush=True)

    def ratio(self, seen: Measurements, pair: tuple[str, str], least: float) -> None:
        ours, theirs = pair
        if theirs not in seen:
            return
        rounds = list(zip(seen[ours], seen[theirs]))
        ratio = statistics.median(other.seconds / own.seconds for own, other in rounds)
        by_cpu = statistics.median(other.cpu_s / own.cpu_s for own, other in rounds)
        self._figures.note(f"{ours}_over_{theirs}_cpu", by_cpu)
        limit = self._figures.at_least(f"{ours}_over_{theirs}", ratio, least)
        print(f"{ours} over {theirs} {ratio:12.2f}×  {limit}   (by CPU {by_cpu:.2f}×)", flush=True)


class Bench:
    """What all of it is measured with."""

    def __init__(self, folder: Path, spark: SparkSession, postgres: JdbcPostgres | None, plan: Plan) -> None:
        self.folder = folder
        self.spark = spark
        self.postgres = postgres
        self.plan = plan
        make_rows(spark, plan.rows).write.parquet(str(folder / "input"))
        if postgres is not None:
            postgres.make_table("t")

    @property
    def input(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "input"))

    def jdbc_write(self, name: str) -> list[Side]:
        postgres = self.postgres
        if postgres is None:
            return []
        return [
            Side(
                name=name,
                work=lambda: postgres.write(self.input, "t"),
                parts=postgres.spent,
                before=lambda: postgres.empty("t"),
                after=lambda: postgres.settle("t"),
            )
        ]

    def jdbc_read(self, name: str) -> list[Side]:
        postgres = self.postgres
        if postgres is None:
            return []
        return [Side(name=name, work=lambda: read_whole(postgres.read("t", self.plan.rows)), parts=postgres.spent)]

    def parquet_write(self, name: str) -> Side:
        work = self.input.write.mode("overwrite")
        return Side(name=name, work=lambda: work.parquet(str(self.folder / "output")), parts=spark_spent)

    def parquet_read(self, name: str) -> Side:
        return Side(
            name=name, work=lambda: read_whole(self.spark.read.parquet(str(self.folder / "output"))), parts=spark_spent
        )

    def write(self, name: str, cluster: SourceCluster, table: str) -> Side:
        return Side(
            name=name,
            work=lambda: cluster.write(self.input, table),
            parts=cluster.spent,
            before=lambda: cluster.empty(table),
            after=cluster.wait_quiet,
        )

    def read(self, name: str, cluster: SourceCluster, table: str) -> Side:
        return Side(name=name, work=lambda: read_whole(cluster.read(self.spark, table)), parts=cluster.spent)

    def check(self, cluster: SourceCluster, table: str) -> None:
        """The rows read must be the rows written: a figure with lost rows is worthless."""
        found, wanted = cluster.read(self.spark, table).count(), self.plan.rows
        if found != wanted:
            raise RuntimeError(f"{found} rows of {wanted} are in {table}")


def measure_once(figures: Figures, bench: Bench, cluster: SourceCluster) -> None:
    cluster.make_table("plain", 1)
    cluster.write(bench.input, "plain")
    cluster.wait_quiet()
    if not cluster.drop_sidecars():
        raise RuntimeError("a table that Spark wrote has no columns beside its rows")
    cluster.make_table("once", 1)
    writes = [
        *bench.jdbc_write("write_jdbc"),
        bench.parquet_write("write_parquet"),
        bench.write("write", cluster, "once"),
    ]
    seen = compare(writes, bench.plan)
    report = SourceReport(figures, bench.plan.rows)
    report.rates(seen)
    report.ratio(seen, ("write", "write_jdbc"), WRITE_OVER_JDBC_MIN)
    bench.check(cluster, "once")
    bench.check(cluster, "plain")
    reads = [
        *bench.jdbc_read("read_jdbc"),
        bench.parquet_read("read_parquet"),
        bench.read("read", cluster, "once"),
        bench.read("read_rows", cluster, "plain"),
    ]
    seen = compare(reads, bench.plan)
    report.rates(seen)
    report.ratio(seen, ("read", "read_jdbc"), READ_OVER_JDBC_MIN)
    report.ratio(seen, ("read", "read_parquet"), READ_OVER_PARQUET_MIN)
    report.ratio(seen, ("read_rows", "read_jdbc"), ROWS_READ_OVER_JDBC_MIN)


def measure_thrice(figures: Figures, bench: Bench, cluster: SourceCluster) -> None:
    cluster.make_table("thrice", 3)
    sides = [*bench.jdbc_write("write_jdbc_beside_three"), bench.write("write_thrice", cluster, "thrice")]
    seen = compare(sides, bench.plan)
    report = SourceReport(figures, bench.plan.rows)
    report.rates(seen)
    report.ratio(seen, ("write_thrice", "write_jdbc_beside_three"), WRITE_THRICE_OVER_JDBC_MIN)
    bench.check(cluster, "thrice")


def measure_serving(figures: Figures, bench: Bench, cluster: SourceCluster) -> None:
    plan, traffic = bench.plan, cluster.served()
    # The best of a few: time that the host steals would make the 30 % too low.
    most = max(asyncio.run(load(traffic, 16, plan.quiet_s / 3)).per_s for _ in range(3))
    per_s = figures.note("served_per_s", most * LOAD_SHARE)
    cluster.make_table("busy", 1)
    works: dict[str, Callable[[], None]] = {
        "quiet": lambda: time.sleep(plan.quiet_s),
        "reading": lambda: read_whole(cluster.read(bench.spark, "once")),
        "writing": lambda: cluster.write(bench.input, "busy"),
    }
    seen: dict[str, list[QuietInterval]] = {name: [] for name in works}
    for _ in range(plan.rounds):
        for name, work in works.items():
            spell = quiet_interval(traffic, per_s, work, plan.quiet_s)
            seen[name].append(spell)
            print(f"served at {per_s:,.0f}/s, {name}: {spell}", flush=True)
            cluster.wait_quiet()
    for name, spells in seen.items():
        p99 = figures.note(f"{name}_p99_ms", statistics.median(one.p99_ms for one in spells))
        figures.note(f"{name}_stolen_share", max(one.stolen_share for one in spells))
        if name != "quiet":
            ratio = statistics.median(busy.p99_ms / quiet.p99_ms for busy, quiet in zip(spells, seen["quiet"]))
            limit = figures.at_most(f"{name}_p99_ratio", ratio, P99_RATIO_MAX)
            print(f"p99 while {name} {p99:12.2f} ms, over quiet {ratio:8.2f}  {limit}", flush=True)


def measure_growth(figures: Figures, bench: Bench, cluster: SourceCluster) -> None:
    """Rows are made as they are written: no side of it reads files. The smallest number is tried before it counts. What
    a row more costs from one number to the next is printed too; for short jobs it is a difference of small times."""
    counts = bench.plan.growth
    cluster.make_table("grown", 1)
    took: dict[str, list[float]] = {"write": [], "read": []}
    for number, rows in enumerate((counts[0], *counts)):
        tries = [_grown(bench, cluster, rows) for _ in range(1 if rows == counts[-1] else GROWTH_TRIES)]
        if number:
            for name, seconds in zip(took, (statistics.median(column) for column in zip(*tries))):
                took[name].append(seconds)
                figures.note(f"{name}_{rows}_s", seconds)
            print(
                f"{rows:12,} rows: written in {took['write'][-1]:.2f} s, read in {took['read'][-1]:.2f} s", flush=True
            )
    for name, seconds in took.items():
        steps = [(seconds[at + 1] - seconds[at]) / (counts[at + 1] - counts[at]) for at in range(len(counts) - 1)]
        figures.note(f"{name}_row_more_growth", steps[-1] / steps[0])
        each = ", then ".join(f"{step * 1e6:.2f} µs" for step in steps)
        off = deviation_from_linear(counts, seconds)
        limit = figures.at_most(f"{name}_off_linear", off, OFF_LINEAR_MAX)
        print(f"{name}, {counts[0]:,} to {counts[-1]:,} rows: {off:8.1%} off a line  {limit}   (a row more {each})")


def _grown(bench: Bench, cluster: SourceCluster, rows: int) -> tuple[float, float]:
    """Seconds to write so many rows into the empty table, and to read them."""
    cluster.empty("grown")
    frame = make_rows(bench.spark, rows, tasks=max(4, rows // 500_000))
    write = timed(lambda: cluster.write(frame, "grown"), spark_spent)
    cluster.wait_quiet()
    read = timed(lambda: read_whole(cluster.read(bench.spark, "grown")), spark_spent)
    return write.seconds, read.seconds


def measure(figures: Figures, bench: Bench) -> None:
    with closing(SourceCluster(bench.folder / "one", 1, 2, bench.plan.tablets)) as cluster:
        measure_once(figures, bench, cluster)
        measure_serving(figures, bench, cluster)
        if bench.plan.growth:
            measure_growth(figures, bench, cluster)
    with closing(SourceCluster(bench.folder / "three", 3, 1, bench.plan.tablets)) as cluster:
        measure_thrice(figures, bench, cluster)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, less sure, and without growth")
    parser.add_argument("--rows", type=int, help="another number of rows")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    base = QUICK if chosen.quick else FULL
    plan = replace(base, rows=chosen.rows or base.rows)
    figures = Figures()
    figures.note("load_before", os.getloadavg()[0])
    lacking = missing()
    if lacking:
        print(f"PostgreSQL by JDBC: SKIPPED, {lacking}; to compare: {INSTALL}")
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-"))
        folder = Path(scratch).absolute()
        folder.chmod(0o755)  # the PostgreSQL server runs as another user and must reach its files
        spark = new_session(folder / "spark", driver_jar())
        stack.callback(spark.stop)
        postgres = None if lacking else stack.enter_context(closing(JdbcPostgres(folder / "postgres", spark)))
        measure(figures, Bench(folder, spark, postgres, plan))
    figures.note("load_after", os.getloadavg()[0])
    summary = {"skipped": ["postgresql"] if lacking else [], "missed": figures.missed}
    print(json.dumps(figures.values | summary | {"within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
