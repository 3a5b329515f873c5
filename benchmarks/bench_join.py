"""A node is added to nodes with data, beside a row job of the pipeline over as many bytes: real processes, in one run.

    python -m benchmarks.bench_join [--megabytes N] [--folder DIR]

First, on nodes without a pipeline: the restart of a member, a join without tables, and one with a table on tablets,
each until the node serves.

Then three nodes of one shard each and the embedded Spark, with a table on vnodes of which each node has all rows. Half
reads and half writes at QUORUM run at 30 % of what one node serves at most, each timed from the moment it was due:
without anything else, during a job that streams three quarters of the ring from one node to another, and while a fourth
node joins, which gains three quarters. Times are divided by the bytes moved, since tokens are drawn.

Last, a fifth node joins and the leader is killed when half of the bytes have arrived; it is started again at once. What
the node received in total is compared with what the fourth received for its share of the ring.

One line per figure, the last line is JSON.
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
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.join_cluster import JoinCluster, NewNode, host_of, wait_for
from benchmarks.paced_client import PacedLoad
from benchmarks.row_client import Traffic, load
from ebla.model.identity import TableId
from ebla.model.lease_settings import LeaseSettings
from ebla.model.records.jobs import StreamRange
from ebla.model.token import TOKEN_MIN, Token, TokenRange

MEGABYTES = 500
JOIN_RATIO_MAX = 1.5
P99_RATIO_MAX = 2.5
MOVED_RATIO_MAX = 1.3
RESUMED_S_MAX = LeaseSettings().period_ms / 1000 + 10
EMPTY_RATIO_MAX = 2.0
LOAD_SHARE = 0.3
MOST_S = 5.0
QUIET_S = 10.0
RESTARTS = 3
SETTLED_S = 1.0
"""Bytes on their way to the new node arrive within this time after the leader was killed."""
THREE_QUARTERS = TokenRange(Token(TOKEN_MIN), Token(TOKEN_MIN + (3 << 62)))


def measure_join(figures: Figures, cluster: JoinCluster, table: TableId, traffic: list[Traffic]) -> NewNode:
    most = asyncio.run(load(traffic, 32, MOST_S)).per_s
    per_s = figures.note("served_per_s", most * LOAD_SHARE)
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s) as quiet:
        time.sleep(QUIET_S)
    source, target = (host_of(node) for node in cluster.local[1:3])
    with PacedLoad(traffic, per_s, counts_failures=True) as beside_job:
        job = cluster.run_jobs([StreamRange(table=table, range=THREE_QUARTERS, sources=(source,), target=target)])[0]
    assert job.result is not None
    job_s, job_bytes = (job.ended_ms - job.started_ms) / 1000, job.result.bytes_moved
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s, counts_failures=True) as joining:
        new = cluster.start_join()
        join_s = new.wait_serves()
    request = new.request()
    assert request is not None
    print(f"one row job of {job_bytes / 1e6:8,.0f} MB {figures.note('job_s', job_s):26.1f} s")
    print(f"a node added, {request.streamed_bytes / 1e6:8,.0f} MB {figures.note('join_s', join_s):26.1f} s")
    figures.note("job_mb", job_bytes / 1e6)
    figures.note("join_mb", request.streamed_bytes / 1e6)
    ratio = (join_s / request.streamed_bytes) / (job_s / job_bytes)
    limit = figures.at_most("join_ratio", ratio, JOIN_RATIO_MAX)
    print(f"time to add a node, over the job, by bytes {ratio:14.2f}  {limit}")
    for name, paced in (("quiet", quiet), ("job", beside_job), ("join", joining)):
        late_ms = figures.note(f"{name}_p99_ms", paced.percentile_ms(0.99))
        print(f"served at {per_s:,.0f}/s, {name:6} p50 {paced.percentile_ms(0.5):8.2f} ms, p99 {late_ms:8.2f} ms")
    ratio = joining.percentile_ms(0.99) / quiet.percentile_ms(0.99)
    print(f"p99 during the join, over quiet {ratio:25.2f}  {figures.at_most('p99_ratio', ratio, P99_RATIO_MAX)}")
    limit = figures.at_most("failed_requests", joining.spell.failed, 0)
    print(f"failed requests of {joining.spell.answered:,} {joining.spell.failed:20}  {limit}")
    return new


def measure_kill(figures: Figures, cluster: JoinCluster, table: TableId, fourth: NewNode) -> None:
    share, received = cluster.share_of(table, fourth.host), fourth.received_bytes()
    count = len(cluster.local) + 1
    half = received / share * (3 / count) / 2
    new = cluster.start_join()
    wait_for("half of the bytes have arrived", lambda: new.received_bytes() >= half)
    leader = cluster.nodes[cluster.leader()]
    leader.kill()
    killed_s = time.monotonic()
    leader.start_again()
    time.sleep(SETTLED_S)
    before = new.received_bytes()
    wait_for("bytes arrive again", lambda: new.received_bytes() > before)
    resumed_s = time.monotonic() - killed_s
    new.wait_serves()
    limit = figures.at_most("resumed_s", resumed_s, RESUMED_S_MAX)
    print(f"leader killed while streaming: resumed after {resumed_s:12.1f} s  {limit}")
    expected = received / share * cluster.share_of(table, new.host)
    ratio = new.received_bytes() / expected
    figures.note("moved_before_kill", before / expected)
    limit = figures.at_most("moved_ratio", ratio, MOVED_RATIO_MAX)
    print(f"bytes moved in all, over those needed {ratio:19.2f}  {limit}")


def measure_empty(figures: Figures, cluster: JoinCluster) -> None:
    restart_s = statistics.median(cluster.restart_s(1) for _ in range(RESTARTS))
    print(f"restart of a member {figures.note('restart_s', restart_s):37.2f} s")
    for name, has_table in (("empty", False), ("tablets", True)):
        if has_table:
            cluster.create("tablets", "k bigint PRIMARY KEY, v blob", on_tablets=True)
        took_s = figures.note(f"join_{name}_s", cluster.start_join().wait_serves())
        limit = figures.at_most(f"{name}_ratio", took_s / restart_s, EMPTY_RATIO_MAX)
        print(f"a node added, {name:8} {took_s:33.2f} s, {took_s / restart_s:5.2f} restarts  {limit}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of rows, each on three nodes")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    figures = Figures()
    figures.note("load_before", os.getloadavg()[0])
    figures.note("megabytes", chosen.megabytes)
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as scratch:
        folder = Path(scratch).absolute()
        with closing(JoinCluster(folder / "e", has_pipeline=False)) as cluster:
            measure_empty(figures, cluster)
        with closing(JoinCluster(folder / "n")) as cluster:
            table = cluster.create("large", "k bigint PRIMARY KEY, v blob", on_tablets=False)
            cluster.fill("large", chosen.megabytes * 1_000_000)
            traffic = cluster.served_traffic("served")
            cluster.wait_quiet()
            fourth = measure_join(figures, cluster, table, traffic)
            cluster.wait_quiet()
            measure_kill(figures, cluster, table, fourth)
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
