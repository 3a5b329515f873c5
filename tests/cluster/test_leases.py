"""Leases of real processes: one leader's activities at a time, whatever is stopped, killed or hangs.

The tests share three nodes. Each begins and ends with all of them up, so they run in any order. The period is the
shortest one, so the pauses are to it as 5, 12 and 30 s are to the default.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from tests.cluster.commands import run
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_load import Group0Load
from tests.cluster.group0_nodes import FASTER, Group, stopped
from tests.cluster.lease_records import broken_promises, leadership_of, named, records, runs_activity

from ebla.wire.leadership_messages import HeldLeaseReport

EVERYONE = (0, 1, 2)
PERIOD_S = 4.0
LEASES = '{"period_ms": 4000, "grace_ms": 2000, "activity_stop_ms": 1000, "retry_backoff_ms": 100}'
BUSY_S = 60.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    nodes = LocalNodes(tmp_path_factory.mktemp("l"), len(EVERYONE), (*FASTER, "fault_points=true", "log_format=json"))
    group = Group(nodes)
    group.start(*EVERYONE)
    try:
        group.wait_formed()
        assert ebla(group, 0, "settings", "set", "leases", LEASES, "--wait")["code"] == 0
        yield group
    finally:
        nodes.end_all()


@pytest.fixture
def group(nodes: Group) -> Iterator[Group]:
    wait_leads(nodes, EVERYONE)
    yield nodes
    wait_leads(nodes, EVERYONE)
    assert broken_promises(records(nodes.cluster)) == []


@pytest.fixture
def default_leases(group: Group) -> Iterator[Group]:
    assert ebla(group, 0, "settings", "delete", "leases")["code"] == 0
    eventually(lambda: has_default_leases(group), "every node has granted a lease of the longer period")
    yield group
    assert ebla(group, 0, "settings", "set", "leases", LEASES, "--wait")["code"] == 0


def has_default_leases(group: Group) -> bool:
    reports = [leadership_of(group.nodes[number]) for number in EVERYONE]
    return all(one is not None and one.left_ms > PERIOD_S * 1000 for one in reports)


def ebla(group: Group, number: int, *command: str) -> dict[str, Any]:
    return run(group.cluster.data, *command, "--node", group.nodes[number].name)


def wait_leads(group: Group, among: Sequence[int], *, but: int | None = None, seconds: float = 60.0) -> int:
    """The node whose activity runs; waits until there is one, and until all of these hold their part of the leases."""
    found: list[int] = []

    def look() -> bool:
        reports = {number: leadership_of(group.nodes[number]) for number in among}
        found[:] = [number for number, report in reports.items() if runs_activity(report) and number != but]
        return len(found) == 1 and all(report is not None and report.lease is not None for report in reports.values())

    eventually(look, f"an activity runs on one of {among}, and all have granted their lease", seconds)
    return found[0]


def transfer(group: Group, source: int, target: int) -> None:
    done = ebla(group, source, "group0", "transfer-leader", str(group.host(target)), "--timeout-ms", "20000")
    assert done["code"] == 0, done


def test_any_node_shows_the_leases_and_exits_with_1_if_the_leader_lacks_a_majority(group: Group) -> None:
    leader = wait_leads(group, EVERYONE)
    eventually(lambda: all(one.is_held for one in held_by(group, leader)), "the leader holds all leases")
    for number in EVERYONE:
        shown = ebla(group, number, "leases")
        assert (shown["code"], "3 of 3 voters (2 needed)" in shown["text"]) == (0, True), shown
    others = tuple(number for number in EVERYONE if number != leader)
    with stopped(group.processes[others[0]]), stopped(group.processes[others[1]]):
        eventually(lambda: ebla(group, leader, "leases")["code"] == 1, "it lacks a majority")
        shown = ebla(group, leader, "leases", "--json")
    assert [one["host"] for one in shown["json"]["reports"]] == [str(group.host(leader))]
    assert {one["host"] for one in shown["json"]["silent"]} == {str(group.host(number)) for number in others}


def held_by(group: Group, leader: int) -> Sequence[HeldLeaseReport]:
    report = leadership_of(group.nodes[leader])
    return () if report is None else report.held


def test_control_has_at_least_the_priority_of_the_shards(group: Group) -> None:
    control, shard = (group.cluster.pid(process) for process in ("control", "shard-0"))
    assert os.getpriority(os.PRIO_PROCESS, control) <= os.getpriority(os.PRIO_PROCESS, shard)


def test_the_next_leader_starts_after_each_of_four_was_killed(group: Group) -> None:
    since = records(group.cluster)[-1]["time"]
    for _ in range(4):
        leader = wait_leads(group, EVERYONE)
        group.kill(leader)
        others = tuple(number for number in EVERYONE if number != leader)
        wait_leads(group, others, seconds=10 * PERIOD_S)
        group.start(leader)
    assert len(named(records(group.cluster), "activity.started", since=since, domain="coordinator")) >= 4


def stop_in_a_purge(group: Group, seconds: float, period_s: float) -> None:
    """Stops the leader between two steps of a round, then lets both go on."""
    leader = wait_leads(group, EVERYONE)
    others = tuple(number for number in EVERYONE if number != leader)
    since, name = records(group.cluster)[-1]["time"], f"user/stopped-{seconds:.1f}"
    for command in (("set", name, "1", "--wait"), ("delete", name)):
        assert ebla(group, leader, "settings", *command)["code"] == 0
    assert ebla(group, leader, "fault", "set", "purge.prepared", "pause")["code"] == 0
    purge = ("settings", "purge", "--older-than", "0s", "--timeout", "30s")
    purging = subprocess.Popen(
        [sys.executable, "-m", "ebla", *purge, "--data", str(group.cluster.data), "--node", group.nodes[leader].name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        reached = partial(named, event="fault.reached", since=since, point="purge.prepared")
        eventually(lambda: reached(records(group.cluster)), "the round waits")
        with stopped(group.processes[leader]) as began:
            if seconds > period_s:
                wait_leads(group, others)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        assert ebla(group, leader, "fault", "clear")["code"] == 0
    finally:
        purging.wait(60)  # how it ends depends on who leads by now
    eventually(lambda: ebla(group, others[0], *purge)["code"] == 0, "the next round succeeds")
    assert named(records(group.cluster), "activity.effect", since=since, domain="purge")


@pytest.mark.parametrize("periods", [1 / 3, 0.8, 2.0])
def test_a_leader_that_was_stopped_in_a_purge_does_nothing_after_its_successor(group: Group, periods: float) -> None:
    stop_in_a_purge(group, periods * PERIOD_S, PERIOD_S)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [5.0, 12.0, 30.0])
def test_the_same_with_the_default_period(default_leases: Group, seconds: float) -> None:
    stop_in_a_purge(default_leases, seconds, 15.0)


def test_an_activity_that_ignores_its_cancellation_ends_with_its_process(group: Group) -> None:
    leader = wait_leads(group, EVERYONE)
    target = next(number for number in EVERYONE if number != leader)
    assert ebla(group, leader, "fault", "set", "activity.cancelled", "pause")["code"] == 0
    since = records(group.cluster)[-1]["time"]
    transfer(group, leader, target)

    def starts_again() -> bool:
        return bool(named(records(group.cluster), "node.started", since=since, node=leader))

    eventually(starts_again, "control starts itself again")
    assert group.processes[leader].poll() is None  # in the same process
    (restart,) = named(records(group.cluster), "control.must_restart", since=since)
    assert restart["node"] == leader
    assert "topology did not stop within 1000 ms" in restart["reason"]
    wait_leads(group, EVERYONE, but=leader)


def test_leadership_is_transferred_under_load(group: Group) -> None:
    with Group0Load(group.nodes) as load:
        for _ in range(4):
            leader = wait_leads(group, EVERYONE)
            target = next(number for number in EVERYONE if number != leader)
            transfer(group, leader, target)
            wait_leads(group, EVERYONE, but=leader, seconds=10 * PERIOD_S)
    assert load.record.acknowledged


def test_all_nodes_are_killed_and_started_again(group: Group) -> None:
    group.kill(*EVERYONE)
    group.start(*EVERYONE)
    wait_leads(group, EVERYONE, seconds=15 * PERIOD_S)


@pytest.mark.long
def test_busy_cores_lose_no_lease(default_leases: Group) -> None:
    group = default_leases
    wait_leads(group, EVERYONE)
    since = records(group.cluster)[-1]["time"]
    spin = f"import time\nend = time.monotonic() + {BUSY_S}\nwhile time.monotonic() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    for process in busy:
        process.wait(2 * BUSY_S)
    assert named(records(group.cluster), "lease.lost", since=since) == []
