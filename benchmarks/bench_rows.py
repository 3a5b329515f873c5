"""Rows on three nodes of two shards each, at RF 1 and RF 3, beside PostgreSQL: real processes, in one run and by turns.

    python -m benchmarks.bench_rows [--quick] [--folder DIR] [--mode sync|periodic]

Our own client sends ready-made requests over the shards' Unix sockets and keeps 64 of them under way at each; nodes
speak mutual TLS to each other. A row has a key of two columns and a text of 100 bytes; keys are drawn at random from
20,000. Everything is done once with the commit log synced before the answer (`sync`, the default) and once with a few
milliseconds at risk (`periodic`); PostgreSQL has the same table and 64 clients of pgbench, with durable commits in the
first and asynchronous ones in the second. Figures are medians over the rounds.

CPU is user plus system time of a shard's process, over the operations it did. A shard that routes a write may also be
a replica of it, so the two parts are separated by the choice of keys: all requests go to one shard, for rows whose
three replicas are on other shards. The CPU of that process is routing only, and the CPU of the replicas,
divided by the writes that each of them applied, is the replica's share. All other figures are for requests sent to a
shard that has the row, as drivers do that know the shards; "in all" is the sum over all six of them. A batch is one
request with 100 rows: of one partition, or each of a partition of its own.

Rates have a limit only for durable writes with one replica; all others are informational.

One line per figure, the last line is JSON. On a busy machine trust CPU, not rates: PostgreSQL has ten times as many
processes, and so gets more of a shared machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.postgres import INSTALL, Postgres, PostgresLoad, programs
from benchmarks.row_client import LoadResult, TableShape, Traffic, traffic_to
from benchmarks.rows_cluster import KEYS, BenchTable, RowsCluster
from benchmarks.shard_kill import measure_kill
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Replica
from ebla.options import CommitLogMode
from ebla.runtime.event_loop import new_event_loop

IN_FLIGHT = 64
BATCH_ROWS = 100
ROUTER_US_MAX = 80.0
REPLICA_US_MAX = 35.0
READ_US_MAX = 50.0
UPSERT_RATIO_MIN = 1.0
BATCH_TIMES_MIN = 8.0
BACK_S_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    seconds: float
    kills: int


@dataclass(frozen=True, slots=True)
class RowsLoadResult:
    """One interval of load. `per_s` counts rows."""

    per_s: float
    p50_ms: float
    cpu_us: dict[Replica, float]
    """Per shard and row of the whole load."""

    @property
    def all_us(self) -> float:
        return sum(self.cpu_us.values())


class Rows:
    """The loads of one cluster."""

    def __init__(self, cluster: RowsCluster) -> None:
        self._cluster = cluster
        self.router = cluster.shards[0]
        apart = cluster.thrice.keys_not_on(self.router)
        self.replicas = cluster.thrice.replicas_of(apart)
        quorum, one = ConsistencyLevel.QUORUM, ConsistencyLevel.ONE
        at = (cluster.node_of(self.router), self.router.shard)
        bodies = cluster.thrice.bodies
        many, in_one = TableShape(BATCH_ROWS), TableShape(1, BATCH_ROWS)
        self._traffic: dict[str, tuple[Sequence[Traffic], int]] = {
            "routed_write": ([traffic_to(*at, bodies.writes(apart, TableShape(), quorum))], 1),
            "routed_read": ([traffic_to(*at, bodies.reads(apart, one))], 1),
        }
        for name, table in (("rf1", cluster.once), ("rf3", cluster.thrice)):
            self._traffic[f"{name}_write"] = (self._at_all(table, TableShape()), 1)
            self._traffic[f"{name}_batch"] = (self._at_all(table, in_one), BATCH_ROWS)
            self._traffic[f"{name}_batch_apart"] = (self._at_all(table, many), BATCH_ROWS)
            reads = [
                traffic_to(cluster.node_of(shard), shard.shard, table.bodies.reads(table.keys_on(shard), one))
                for shard in cluster.shards
            ]
            self._traffic[f"{name}_read"] = (reads, 1)

    def _at_all(self, table: BenchTable, shape: TableShape) -> list[Traffic]:
        quorum, cluster = ConsistencyLevel.QUORUM, self._cluster
        return [
            traffic_to(cluster.node_of(shard), shard.shard, table.bodies.writes(table.keys_on(shard), shape, quorum))
            for shard in cluster.shards
        ]

    @property
    def names(self) -> list[str]:
        return list(self._traffic)

    def load(self, name: str, seconds: float) -> RowsLoadResult:
        traffic, rows = self._traffic[name]
        before = self._cluster.cpu_s()
        spell: LoadResult = self._cluster.load(traffic, IN_FLIGHT if rows == 1 else IN_FLIGHT // 4, seconds)
        after = self._cluster.cpu_s()
        done = spell.answered * rows
        cpu_us = {shard: (after[shard] - before[shard]) / done * 1e6 for shard in after}
        return RowsLoadResult(spell.per_s * rows, statistics.median(spell.took_s) * 1000, cpu_us)


@dataclass(frozen=True, slots=True)
class Round:
    """All loads, one after another."""

    ours: dict[str, RowsLoadResult]
    upsert: PostgresLoad | None
    select: PostgresLoad | None


def measure(rows: Rows, postgres: Postgres | None, plan: Plan, mode: CommitLogMode) -> list[Round]:
    durable = mode is CommitLogMode.SYNC
    for name in rows.names:
        rows.load(name, 0.5)
    rounds = []
    for _ in range(plan.rounds):
        upsert = None if postgres is None else postgres.upsert(plan.seconds, durable=durable)
        ours = {name: rows.load(name, plan.seconds) for name in rows.names}
        select = None if postgres is None else postgres.select(plan.seconds)
        rounds.append(Round(ours, upsert, select))
    return rounds


class RowsReport:
    """Medians over the rounds of one mode, line by line."""

    def __init__(self, figures: Figures, mode: CommitLogMode, rounds: Sequence[Round]) -> None:
        self._figures = figures
        self._mode = mode
        self._rounds = rounds
        self._is_durable = mode is CommitLogMode.SYNC

    def all(self, rows: Rows) -> None:
        self._roles(rows)
        for name in rows.names:
            self._load(name)
        self._batches()
        self._beside_postgres()

    def _middle(self, values: Sequence[float]) -> float:
        return statistics.median(values)

    def _name(self, what: str) -> str:
        return f"{self._mode}_{what}"

    def _say(self, what: str, value: float, unit: str, limit: str = "") -> None:
        print(f"{self._mode:8} {what:44} {value:10,.1f} {unit}  {limit}", flush=True)

    def _roles(self, rows: Rows) -> None:
        loads = [each.ours["routed_write"] for each in self._rounds]
        router_us = self._middle([load.cpu_us[rows.router] for load in loads])
        limit = self._figures.at_most(self._name("router_us"), router_us, ROUTER_US_MAX)
        self._say("QUORUM write at RF 3, CPU of the router", router_us, "µs", limit)
        replica_us = self._middle(
            [statistics.mean(load.cpu_us[replica] for replica in rows.replicas) for load in loads]
        )
        limit = self._figures.at_most(self._name("replica_us"), replica_us, REPLICA_US_MAX)
        self._say("QUORUM write at RF 3, CPU of each replica", replica_us, "µs", limit)

    def _load(self, name: str) -> None:
        loads = [each.ours[name] for each in self._rounds]
        rate = self._figures.note(self._name(f"{name}_per_s"), self._middle([load.per_s for load in loads]))
        all_us = self._middle([load.all_us for load in loads])
        limit = ""
        if name == "rf3_read":
            limit = self._figures.at_most(self._name(f"{name}_us"), all_us, READ_US_MAX)
        self._figures.note(self._name(f"{name}_us"), all_us)
        self._say(f"{name}, CPU in all, per row", all_us, "µs", limit)
        p50_ms = self._figures.note(self._name(f"{name}_p50_ms"), self._middle([load.p50_ms for load in loads]))
        self._say(f"{name}, rows a second; p50 {p50_ms:.1f} ms", rate, "/s")

    def _batches(self) -> None:
        for name in ("rf1", "rf3"):
            for kind in ("batch", "batch_apart"):
                pairs = [(each.ours[f"{name}_write"], each.ours[f"{name}_{kind}"]) for each in self._rounds]
                times = self._middle([batch.per_s / single.per_s for single, batch in pairs])
                cpu = self._middle([single.all_us / batch.all_us for single, batch in pairs])
                limit = ""
                if (name, kind) == ("rf1", "batch") and self._is_durable:
                    limit = self._figures.at_least(self._name(f"{name}_{kind}_times"), times, BATCH_TIMES_MIN)
                self._figures.note(self._name(f"{name}_{kind}_times"), times)
                self._figures.note(self._name(f"{name}_{kind}_cpu_times"), cpu)
                self._say(f"{name}_{kind}, rate of single rows ({cpu:.1f} by CPU)", times, "x", limit)

    def _beside_postgres(self) -> None:
        for name, least in (
            ("rf1_write", UPSERT_RATIO_MIN if self._is_durable else None),
            ("rf3_write", None),
            ("rf1_read", None),
        ):
            pairs = [(each.select if name == "rf1_read" else each.upsert, each.ours[name]) for each in self._rounds]
            known = [(theirs, ours) for theirs, ours in pairs if theirs is not None]
            if not known:
                continue
            ratio = self._middle([ours.per_s / theirs.per_s for theirs, ours in known])
            per_s = self._figures.note(
                self._name(f"{name}_per_s_postgres"), self._middle([theirs.per_s for theirs, _ in known])
            )
            cpu_us = self._figures.note(
                self._name(f"{name}_us_postgres"), self._middle([theirs.cpu_us for theirs, _ in known])
            )
            limit = "" if least is None else self._figures.at_least(self._name(f"{name}_ratio"), ratio, least)
            self._figures.note(self._name(f"{name}_ratio"), ratio)
            self._say(f"{name}, rate over PostgreSQL's of {per_s:,.0f} /s", ratio, "x", limit)
            cpu = self._figures.note(
                self._name(f"{name}_cpu_ratio"), self._middle([ours.all_us / theirs.cpu_us for theirs, ours in known])
            )
            self._say(f"{name}, CPU over PostgreSQL's of {cpu_us:.0f} µs", cpu, "x")


def measure_kills(figures: Figures, cluster: RowsCluster, kills: int) -> None:
    victim = cluster.shards[-1]
    seen = [measure_kill(cluster, victim) for _ in range(kills)]
    others_s = figures.note("killed_shard_others_s", statistics.median(each.others_s for each in seen))
    print(f"shard killed: the others serve its rows again after {others_s:.2f} s")
    itself_s = statistics.median(each.itself_s for each in seen)
    limit = figures.at_most("killed_shard_itself_s", itself_s, BACK_S_MAX)
    print(f"shard killed: it serves its own again after {itself_s:.2f} s  {limit}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter, and less sure")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    parser.add_argument("--mode", choices=[mode.value for mode in CommitLogMode], help="one of the two only")
    chosen = parser.parse_args()
    plan = Plan(1, 1.0, 1) if chosen.quick else Plan(3, 2.0, 3)
    modes = [CommitLogMode(chosen.mode)] if chosen.mode else list(CommitLogMode)
    figures = Figures()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=chosen.folder))
        # Compiling its modules is a third of a start, and a user's shard does it only once.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{scratch}/compiled"
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        folder = Path(scratch).absolute()
        folder.chmod(0o755)  # the PostgreSQL server runs as another user and must reach its files
        postgres = None
        if programs() is None:
            print(f"PostgreSQL: SKIPPED, it or pgbench is not installed; to compare: {INSTALL}")
        else:
            postgres = stack.enter_context(closing(Postgres(folder / "postgres", KEYS)))
        for mode in modes:
            with closing(RowsCluster(folder / mode, mode, runner)) as cluster:
                cluster.fill()
                rows = Rows(cluster)
                RowsReport(figures, mode, measure(rows, postgres, plan, mode)).all(rows)
                if mode is modes[0]:
                    measure_kills(figures, cluster, plan.kills)
    figures.note("load_after", os.getloadavg()[0])
    summary = {"skipped": [] if programs() is not None else ["postgresql"], "missed": figures.missed}
    print(json.dumps(figures.values | summary | {"within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
