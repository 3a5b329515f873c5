"""Group 0 beside etcd: three members each, real processes, syncs on, in one run and by turns.

    python -m benchmarks.bench_group0 [--quick] [--folder DIR]

Both stores are called at their leader, over Unix sockets, by clients that send prepared requests and have one in flight
each; a put writes 256 bytes to one key of 16. Ebla's members speak mutual TLS to each other, etcd's plain TCP, as
either does by default. Ratios are medians over the rounds; CPU is that of all members per operation, and is the figure
to trust on a busy machine. Then, of Ebla alone: how long writes stop when the leader is killed, and how long a new node
takes to load 100 MB, beside a lower bound, the median of three. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.catch_up import CatchUp, measure_catch_up, watched_entry
from benchmarks.etcd_cluster import INSTALL, EtcdCluster, Load, missing_programs
from benchmarks.figures import Figures
from benchmarks.group0_cluster import Clients, EblaCluster, NodeProcess
from ebla.model.errors import EblaError
from ebla.runtime.event_loop import new_event_loop
from ebla.wire.verbs import GROUP0_EXECUTE

VALUE = b"v" * 256
PUT_P50_RATIO_MAX = 1.0
PUT_RATE_RATIO_MIN = 1.5
READ_RATE_RATIO_MIN = 1.0
CPU_RATIO_MAX = 1.0
ELECTIONS_MAX = 2.0
CATCH_UP_RATIO_MAX = 1.5
STALL_MS_MAX = 50.0
STATE_MB = 100


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    clients: int
    is_put: bool


CASES = (Case("put_1", 1, True), Case("put_64", 64, True), Case("read_64", 64, False), Case("read_1", 1, False))


def measure_beside_etcd(figures: Figures, stores: tuple[EtcdCluster, EblaCluster], rounds: int, seconds: float) -> None:
    etcd, ebla = stores
    pairs: dict[str, list[tuple[Load, Load]]] = {case.name: [] for case in CASES}
    for case in CASES:
        _spell(etcd, case, 1.0), _spell(ebla, case, 1.0)
    for _ in range(rounds):
        for case in CASES:
            pairs[case.name].append((_spell(etcd, case, seconds), _spell(ebla, case, seconds)))
    for case in CASES:
        _tell(figures, case, pairs[case.name])


def _spell(store: EtcdCluster | EblaCluster, case: Case, seconds: float) -> Load:
    return store.put(case.clients, seconds) if case.is_put else store.read(case.clients, seconds)


def _tell(figures: Figures, case: Case, pairs: list[tuple[Load, Load]]) -> None:
    def middle(field: str) -> tuple[float, float, float]:
        values = [(getattr(theirs, field), getattr(ours, field)) for theirs, ours in pairs]
        return (
            figures.note(f"{case.name}_{field}_etcd", statistics.median(theirs for theirs, _ in values)),
            figures.note(f"{case.name}_{field}", statistics.median(ours for _, ours in values)),
            statistics.median(ours / theirs for theirs, ours in values),
        )

    name, ratio_of = case.name, f"{case.name}_%s_ratio"
    theirs, ours, ratio = middle("p50_ms")
    limit = figures.at_most(ratio_of % "p50", ratio, PUT_P50_RATIO_MAX) if name == "put_1" else ""
    print(f"{name:>8}  p50 {ours:9.2f} ms     etcd {theirs:9.2f} ms     ratio {ratio:5.2f}  {limit}")
    theirs, ours, ratio = middle("per_s")
    least = {"put_64": PUT_RATE_RATIO_MIN, "read_64": READ_RATE_RATIO_MIN}.get(name)
    limit = "" if least is None else figures.at_least(ratio_of % "rate", ratio, least)
    print(f"{name:>8}  rate {ours:8.0f} /s     etcd {theirs:9.0f} /s     ratio {ratio:5.2f}  {limit}")
    theirs, ours, ratio = middle("cpu_us")
    limit = figures.at_most(ratio_of % "cpu", ratio, CPU_RATIO_MAX) if name == "put_64" else ""
    figures.note(ratio_of % "cpu", ratio)
    print(f"{name:>8}  CPU {ours:9.0f} µs     etcd {theirs:9.0f} µs     ratio {ratio:5.2f}  {limit}")


def measure_kills(figures: Figures, ebla: EblaCluster, kills: int) -> None:
    election_s = ebla.nodes[0].node.options.limits.raft_election_ms / 1000
    waits = []
    for _ in range(kills):
        leader = ebla.leader()
        others = [node for node in ebla.nodes if node is not leader]
        leader.kill()
        waits.append(ebla.runner.run(_wait_written(ebla, others[0:1])))
        leader.start_again()
        ebla.wait_formed()
    elections = statistics.median(waits) / election_s
    figures.note("resume_elections_longest", max(waits) / election_s)
    limit = figures.at_most("resume_elections", elections, ELECTIONS_MAX)
    shown = ", ".join(f"{wait:.2f}" for wait in waits)
    print(f"leader killed: writes resume after {shown} s; {elections:.2f} election timeouts  {limit}")


async def _wait_written(ebla: EblaCluster, nodes: list[NodeProcess]) -> float:
    began = time.monotonic()
    async with Clients(nodes, 1) as (client,):
        while True:
            try:
                await client.call(GROUP0_EXECUTE, ebla.put_request, 30_000)
            except EblaError:
                continue
            return time.monotonic() - began


def measure_new_nodes(figures: Figures, runner: asyncio.Runner, folder: Path, state_mb: int, count: int) -> None:
    """Each joins its own cluster. Reports the median, and the longest stall of all."""
    several: list[CatchUp] = []
    for number in range(count):
        place = folder / f"watched{number}"
        # Watching a loop costs a little, so these nodes are used for nothing else.
        with closing(EblaCluster(place, VALUE, runner, watched_entry)) as ebla:
            several.append(measure_catch_up(ebla, state_mb))
        shutil.rmtree(place)
    figure = sorted(several, key=lambda one: one.ratio)[count // 2]
    figures.note("catch_up_ratio_longest", max(one.ratio for one in several))
    figures.note("catch_up_s", figure.took_s)
    figures.note("catch_up_least_s", figure.least_s)
    limit = figures.at_most("catch_up_ratio", figure.ratio, CATCH_UP_RATIO_MAX)
    print(
        f"new node, {figure.state_mb:.0f} MB: caught up after {figure.took_s:.2f} s; to send, decode and sync as much "
        f"takes {figure.least_s:.2f} s; ratio {figure.ratio:.2f}  {limit}"
    )
    stall_ms = max(one.stall_ms for one in several)
    limit = figures.at_most("stall_ms", stall_ms, STALL_MS_MAX)
    print(f"longest stall of a loop meanwhile: {stall_ms:.0f} ms  {limit}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter, and less sure")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    rounds, seconds, kills, state_mb, joins = (1, 1.0, 1, 20, 1) if chosen.quick else (4, 2.0, 3, STATE_MB, 3)
    figures = Figures()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    missing = missing_programs()
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder) as scratch,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        folder = Path(scratch).absolute()
        with closing(EblaCluster(folder / "ebla", VALUE, runner)) as ebla:
            ebla.wait_quiet()
            if missing:
                print(f"etcd: SKIPPED, {' and '.join(missing)} not installed; to compare: {INSTALL}")
            else:
                with closing(EtcdCluster(folder / "etcd", VALUE)) as etcd:
                    measure_beside_etcd(figures, (etcd, ebla), rounds, seconds)
            measure_kills(figures, ebla, kills)
        measure_new_nodes(figures, runner, folder, state_mb, joins)
    figures.note("load_after", os.getloadavg()[0])
    summary = {"skipped": ["etcd"] if missing else [], "missed": figures.missed}
    print(json.dumps(figures.values | summary | {"within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
