"""How soon the next leader acts, and what leases cost: three nodes, real processes, the default period.

    python -m benchmarks.bench_leadership [--rounds N] [--before DIR]

Times are shares of the period: from a transfer of leadership, a kill of the leader, or the first leader after a kill of
all nodes, to the first activity; from a new node's membership to its lease. `--before` names a checkout without leases:
the CPU of three idle nodes is compared with it, both running at once. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.group0_cluster import DEADLINE_MS, PLAIN_ENTRY, Clients, EblaCluster, Entry, NodeProcess
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.runtime.event_loop import new_event_loop
from ebla.wire.group0_messages import TransferLeadershipRequest
from ebla.wire.leadership_messages import LeadershipReport, LeadershipRequest
from ebla.wire.verbs import GROUP0_TRANSFER, LEADERSHIP

PERIOD_S = LeaseSettings().period_ms / 1000
TRANSFER_MAX, KILL_MAX, START_MAX, JOIN_MAX = 0.1, 1.15, 0.2, 0.1
IDLE_CPU_MAX = 1.1
IDLE_S = 20.0
POLL_S = 0.01
WAIT_S = 120.0


async def _report(node: NodeProcess) -> LeadershipReport | None:
    """None if the node does not answer."""
    try:
        async with Clients([node], 1) as (client,):
            return await client.call(LEADERSHIP, LeadershipRequest(), DEADLINE_MS)
    except (EblaError, OSError):
        return None


async def _until(nodes: Sequence[NodeProcess], is_reached: Callable[[LeadershipReport], bool]) -> float:
    """The time at which a report of one of the nodes shows it."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        for node in nodes:
            report = await _report(node)
            if report is not None and is_reached(report):
                return time.monotonic()
        await asyncio.sleep(POLL_S)
    raise RuntimeError(f"not within {WAIT_S} s; see {nodes[0].node.folder.run}/bench-output")


def _acts(report: LeadershipReport) -> bool:
    return any(one.domain == "coordinator" and one.state == "running" for one in report.activities)


def _holds_all(report: LeadershipReport) -> bool:
    return len(report.held) == 3 and all(one.is_held for one in report.held)


def _settle(cluster: EblaCluster) -> NodeProcess:
    """The leader, once it acts and holds every lease."""
    cluster.wait_formed()
    cluster.runner.run(_until(cluster.nodes, _acts))
    return cluster.leader()


# ---- the next leader's first activity


def transfer_s(cluster: EblaCluster) -> float:
    leader = _settle(cluster)
    target = next(node for node in cluster.nodes if node is not leader)

    async def transfer() -> float:
        began = time.monotonic()
        async with Clients([leader], 1) as (client,):
            await client.call(GROUP0_TRANSFER, TransferLeadershipRequest(_host(target)), DEADLINE_MS)
        return await _until([target], _acts) - began

    return cluster.runner.run(transfer())


def kill_s(cluster: EblaCluster) -> float:
    leader = _settle(cluster)
    others = [node for node in cluster.nodes if node is not leader]
    leader.kill()
    began = time.monotonic()
    took_s = cluster.runner.run(_until(others, _acts)) - began
    leader.start_again()
    return took_s


def start_s(cluster: EblaCluster) -> float:
    _settle(cluster)
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start_again()

    async def wait() -> float:
        leads_at = await _until(cluster.nodes, lambda report: report.leads)
        return await _until(cluster.nodes, _acts) - leads_at

    return cluster.runner.run(wait())


# ---- a new node


class Joins:
    """From a node's membership to its lease, as a new cluster forms: both as its leader shows them."""

    def __init__(self) -> None:
        self._members: dict[HostId, float] = {}
        self._held: dict[HostId, float] = {}

    def see(self, report: LeadershipReport) -> bool:
        now = time.monotonic()
        for one in report.held:
            self._members.setdefault(one.host, now)
            if one.is_held:
                self._held.setdefault(one.host, now)
        return _holds_all(report)

    def longest_s(self) -> float:
        return max(self._held[host] - self._members[host] for host in self._held)


class FormingCluster(EblaCluster):
    """Watched from the start of its first node."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self.joins = Joins()
        super().__init__(folder, b"", runner)

    def wait_formed(self) -> None:
        self.runner.run(_until(self.nodes, self.joins.see))
        super().wait_formed()


def _host(node: NodeProcess) -> HostId:
    identity = node.node.folder.read_identity()
    assert identity is not None
    return identity.host


# ---- idle


def idle_cpu(clusters: dict[str, EblaCluster]) -> dict[str, float]:
    """The share of one core that the nodes of each need while nothing happens."""
    before = {name: sum(node.cpu_s() for node in cluster.nodes) for name, cluster in clusters.items()}
    time.sleep(IDLE_S)
    return {
        name: (sum(node.cpu_s() for node in cluster.nodes) - before[name]) / IDLE_S
        for name, cluster in clusters.items()
    }


def _entry_of(checkout: Path, _node: LocalNode) -> Entry:
    return ("env", f"PYTHONPATH={checkout / 'src'}", *PLAIN_ENTRY)


def measure_idle(figures: Figures, cluster: EblaCluster, folder: Path, before: Path | None, rounds: int) -> None:
    _settle(cluster)
    clusters = {"now": cluster}
    if before is not None:
        clusters["before"] = EblaCluster(folder / "before", b"", cluster.runner, partial(_entry_of, before))
    try:
        for one in clusters.values():
            one.wait_quiet()
        shares = [idle_cpu(clusters) for _ in range(rounds)]
    finally:
        if before is not None:
            clusters["before"].close()
    for name in clusters:
        share = figures.note(f"idle_cpu_{name}", statistics.median(one[name] for one in shares))
        print(f"idle, three nodes, {name:6}: {share:.1%} of a core")
    if before is not None:
        ratio = figures.values["idle_cpu_now"] / figures.values["idle_cpu_before"]
        print(f"idle CPU, times before: {ratio:.2f}  {figures.at_most('idle_cpu_ratio', ratio, IDLE_CPU_MAX)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="How soon the next leader acts, and what leases cost.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout without leases, to compare the idle CPU with")
    chosen = parser.parse_args()
    figures = Figures()
    figures.note("load_before", os.getloadavg()[0])

    def judge(name: str, what: str, took_s: float, limit: float) -> None:
        judged = figures.at_most(name, took_s / PERIOD_S, limit)
        print(f"{what}: {took_s:.2f} s, {took_s / PERIOD_S:.3f} of the period  {judged}")

    with (
        tempfile.TemporaryDirectory(prefix="ebla-") as scratch,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        folder = Path(scratch)
        with closing(FormingCluster(folder / "now", runner)) as cluster:
            judge("membership_to_lease", "new node to its lease", cluster.joins.longest_s(), JOIN_MAX)
            for name, what, measure, limit in (
                ("transfer_to_activity", "transfer to first activity", transfer_s, TRANSFER_MAX),
                ("kill_to_activity", "kill -9 to first activity", kill_s, KILL_MAX),
                ("start_to_activity", "all killed, first leader to first activity", start_s, START_MAX),
            ):
                took_s = [measure(cluster) for _ in range(chosen.rounds)]
                judge(name, f"{what} (median of {[round(one, 2) for one in took_s]})", statistics.median(took_s), limit)
            before = None if chosen.before is None else chosen.before.resolve()
            measure_idle(figures, cluster, folder, before, chosen.rounds)
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())
