"""A node leaves, a dead one is replaced, and one is removed, each beside a row job of the pipeline over as many bytes
from as many sources: real processes, in one run.

    python -m benchmarks.bench_leave [--megabytes N] [--folder DIR]

Four nodes of one shard each and the embedded Spark, with a table on vnodes at RF 3. Half reads, half writes at QUORUM
run at 30 % of what one node serves at most, each timed from the moment it was due: without anything else, during a row
job from one source and one from two, while the fourth node leaves, while a killed node is replaced by a new one, and
while a killed one is removed. Operations run by their commands, from the command to its end. Times are divided by the
bytes moved, since tokens are drawn.

`make bench-store` measures how hiding a gained range stalls a shard, and what a cleanup costs.

One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.group0_cluster import PLAIN_ENTRY, NodeProcess
from benchmarks.join_cluster import JOIN_S, JoinCluster, host_of, wait_for
from benchmarks.paced_client import PacedLoad
from benchmarks.row_client import Traffic, load
from benchmarks.transfer_cluster import NODES
from ebla.cli.cluster.local_cluster import AddedNodesSpec, LocalNode, add_nodes
from ebla.cli.cluster.node_calls import probe_nodes, run_async
from ebla.cli.cluster.topology_reports import fetch_report
from ebla.client.cluster_view import build_cluster_view
from ebla.client.topology_view import latest_request
from ebla.model.identity import HostId, TableId
from ebla.model.records.jobs import StreamRange
from ebla.model.token import TOKEN_MIN, Token, TokenRange
from ebla.options import replace_overrides

MEGABYTES = 500
RATIO_MAX = 1.5
P99_RATIO_MAX = 2.5
LOAD_SHARE = 0.3
MOST_S = 5.0
QUIET_S = 10.0
THREE_QUARTERS = TokenRange(Token(TOKEN_MIN), Token(TOKEN_MIN + (3 << 62)))


@dataclass(frozen=True, slots=True)
class Moved:
    """What an operation or a job has moved, and in which time."""

    took_s: float
    size_bytes: int

    @property
    def s_per_byte(self) -> float:
        return self.took_s / self.size_bytes


class LeaveCluster(JoinCluster):
    def run_command(self, *arguments: str) -> Moved:
        """`ebla …`, which waits for the end of its request."""
        began_s = time.monotonic()
        command = [sys.executable, "-m", "ebla", *arguments, "--yes", "--json", "--data", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return Moved(time.monotonic() - began_s, json.loads(done.stdout.splitlines()[-1])["bytes"])

    def row_job(self, table: TableId, sources: tuple[HostId, ...], target: HostId) -> Moved:
        spec = StreamRange(table=table, range=THREE_QUARTERS, sources=sources, target=target)
        (job,) = self.run_jobs([spec])
        assert job.result is not None
        return Moved((job.ended_ms - job.started_ms) / 1000, job.result.bytes_moved)

    def kill_last(self) -> LocalNode:
        """Returns once the others see that it is down."""
        self.nodes[-1].kill()
        others = self.local[:-1]
        address = str(self.local[-1].options.control_address)

        def is_down() -> bool:
            view = build_cluster_view(asyncio.run(probe_nodes(others)))
            return all(node.held_up_by == 0 for node in view.nodes if node.address == address)

        wait_for("the others see that the node is down", is_down)
        return self.local[-1]

    def replace_last(self, dead: LocalNode) -> Moved:
        """By a new node of this process: from its start until it serves."""
        (node,) = add_nodes(self.folder, AddedNodesSpec(count=1, rack=dead.options.rack), ())
        flags = [word for flag in replace_overrides(str(host_of(dead)), ()) for word in ("--set", flag)]
        self.forget_last()
        began_s = time.monotonic()
        self.local.append(node)
        self.nodes.append(NodeProcess(node, (*PLAIN_ENTRY, *flags)))
        wait_for(f"{node.name} serves", self.all_up)
        took_s = time.monotonic() - began_s
        request = latest_request(run_async(fetch_report(self.folder, None)), host_of(node))
        assert request is not None
        return Moved(took_s, request.streamed_bytes)

    def forget_last(self) -> None:
        """It has ended."""
        self.nodes.pop().end()
        self.local.pop()


def measure(figures: Figures, cluster: LeaveCluster, table: TableId, traffic: list[Traffic]) -> None:
    most = asyncio.run(load(traffic, 32, MOST_S)).per_s
    per_s = figures.note("served_per_s", most * LOAD_SHARE)
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s) as quiet:
        time.sleep(QUIET_S)
    quiet_ms = figures.note("quiet_p99_ms", quiet.percentile_ms(0.99))
    first, second, third = (host_of(node) for node in cluster.local[:3])

    def beside(name: str, done: Moved, paced: PacedLoad) -> Moved:
        figures.note(f"{name}_s", done.took_s)
        figures.note(f"{name}_mb", done.size_bytes / 1e6)
        late_ms = figures.note(f"{name}_p99_ms", paced.percentile_ms(0.99))
        print(f"{name:12} {done.size_bytes / 1e6:8,.0f} MB {done.took_s:8.1f} s, p99 {late_ms:8.2f} ms")
        return done

    with PacedLoad(traffic, per_s, counts_failures=True) as paced:
        done = cluster.row_job(table, (second,), third)
    copying = beside("job", done, paced)
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s, counts_failures=True) as paced:
        done = cluster.row_job(table, (first, second), third)
    merging = beside("merging_job", done, paced)

    def judge(name: str, done: Moved, paced: PacedLoad, job: Moved) -> None:
        beside(name, done, paced)
        ratio = done.s_per_byte / job.s_per_byte
        print(f"{name} over the job, by bytes {ratio:20.2f}  {figures.at_most(f'{name}_ratio', ratio, RATIO_MAX)}")
        ratio = paced.percentile_ms(0.99) / quiet_ms
        print(f"{name}: p99 over quiet {ratio:27.2f}  {figures.at_most(f'{name}_p99_ratio', ratio, P99_RATIO_MAX)}")
        limit = figures.at_most(f"{name}_failed", paced.spell.failed, 0)
        print(f"{name}: failed of {paced.spell.answered:,} {paced.spell.failed:20}  {limit}")

    cluster.wait_quiet()
    with PacedLoad(traffic, per_s, counts_failures=True) as paced:
        done = cluster.run_command("decommission", cluster.local[-1].name)
    judge("decommission", done, paced, copying)
    cluster.forget_last()
    cluster.start_join().wait_serves()
    dead = cluster.kill_last()
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s, counts_failures=True) as paced:
        done = cluster.replace_last(dead)
    judge("replace", done, paced, merging)
    dead = cluster.kill_last()
    cluster.wait_quiet()
    with PacedLoad(traffic, per_s, counts_failures=True) as paced:
        done = cluster.run_command("removenode", dead.name)
    judge("remove", done, paced, merging)
    cluster.forget_last()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of rows, each on three nodes")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    figures = Figures()
    figures.note("load_before", os.getloadavg()[0])
    figures.note("megabytes", chosen.megabytes)
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as scratch:
        with closing(LeaveCluster(Path(scratch).absolute() / "n")) as cluster:
            cluster.start_join().wait_serves()
            assert len(cluster.local) == NODES + 1
            table = cluster.create("large", "k bigint PRIMARY KEY, v blob", on_tablets=False)
            cluster.fill("large", chosen.megabytes * 1_000_000)
            traffic = cluster.served_traffic("served")
            measure(figures, cluster, table, traffic)
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
