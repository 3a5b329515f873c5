"""Cluster settings on real processes: what is purged stays purged, whatever is stopped, killed or damaged meanwhile.

The tests share three nodes. Each begins and ends with all of them up, so they run in any order.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.commands import run
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_nodes import FASTER, Group, stopped

from ebla.control.fault_points import PURGE_POINTS, FaultPoint

EVERYONE = (0, 1, 2)
PURGE_NOW = ("settings", "purge", "--older-than", "0s", "--timeout", "30s")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    nodes = LocalNodes(tmp_path_factory.mktemp("s"), len(EVERYONE), (*FASTER, "fault_points=true"))
    group = Group(nodes)
    group.start(*EVERYONE)
    try:
        group.wait_formed()
        wait_in_step(group)
        # A round that was left unfinished is then finished soon. Nothing else is old enough for the timer.
        assert ebla(group, 0, "settings", "set", "settings_purge.interval_ms", "1000", "--wait")["code"] == 0
        yield group
    finally:
        nodes.end_all()


def ebla(group: Group, number: int, *command: str) -> dict[str, Any]:
    return run(group.cluster.data, *command, "--node", group.nodes[number].name)


def entries(group: Group, number: int) -> dict[str, str | None] | None:
    """The values of this node by name; None under the name of a tombstone. None as a whole if it does not answer."""
    listed = ebla(group, number, "settings", "list", "--deleted", "--json")
    return None if listed["code"] else {each["name"]: each["value"] for each in listed["json"]}


def purge_status(group: Group, number: int) -> dict[str, Any] | None:
    status: dict[str, Any] | None = ebla(group, number, "settings", "purge-status", "--json")["json"]
    return status


def set_everywhere(group: Group, number: int, name: str, value: str) -> None:
    done = ebla(group, number, "settings", "set", name, value, "--wait")
    assert done["code"] == 0, done
    eventually(lambda: all((entries(group, each) or {}).get(name) == value for each in EVERYONE), f"all have {name}")


def delete(group: Group, name: str, *numbers: int) -> None:
    """On the first of these nodes; waits until all of them have the tombstone."""
    assert ebla(group, numbers[0], "settings", "delete", name)["code"] == 0

    def have_tombstone() -> bool:
        return all((entries(group, each) or {}).get(name, "no entry") is None for each in numbers)

    eventually(have_tombstone, f"nodes {numbers} have the tombstone of {name}")


def wait_in_step(group: Group) -> None:
    """Until no node is in reset, every node purges up to the same time, and all have the same entries."""

    def in_step() -> bool:
        statuses = [purge_status(group, each) for each in EVERYONE]
        if any(status is None or status["in_reset"] or status["leader"] is None for status in statuses):
            return False
        times = {(status["tentative_us"], status["effective_us"]) for status in statuses if status is not None}
        found = [entries(group, each) for each in EVERYONE]
        return len(times) == 1 and found[0] is not None and found.count(found[0]) == len(found)

    eventually(in_step, "the nodes have the same settings")


def wait_erased(group: Group, name: str) -> None:
    def is_erased() -> bool:
        return all(name not in (entries(group, each) or {name: ""}) for each in EVERYONE)

    eventually(is_erased, f"no node has {name} or its tombstone")  # the leases of a killed leader run out first


def test_a_purge_waits_for_a_stopped_node_and_survives_the_death_of_all(group: Group) -> None:
    set_everywhere(group, 0, "user/purged", "old")
    leader = group.leader(EVERYONE)
    other, victim = (number for number in EVERYONE if number != leader)
    address = group.nodes[victim].options.address
    with stopped(group.processes[victim]):
        delete(group, "user/purged", other, leader)
        failed = ebla(group, other, *PURGE_NOW)
        assert failed["code"] == 1
        assert "ebla: not applied: prepare_failed: " in failed["errors"]
        assert f"{address} (down for " in failed["errors"]
        shown = ebla(group, other, "settings", "purge-status")["text"]
        assert "is unfinished; the next one finishes it" in shown
        assert f"prepare_failed: {address} (down for " in shown
    eventually(lambda: ebla(group, victim, *PURGE_NOW)["code"] == 0, "the purge succeeds once the node goes on")
    wait_erased(group, "user/purged")
    group.kill(*EVERYONE)
    alone = victim
    group.start(alone)
    eventually(lambda: entries(group, alone) is not None, "one node answers while its two peers are dead")
    done = ebla(group, alone, "settings", "set", "user/alone", "1", "--json")
    assert (done["code"], done["json"]["have"], done["json"]["members"]) == (0, 1, 3)
    assert {each["address"] for each in done["json"]["missing"]} == {
        group.nodes[number].options.address for number in EVERYONE if number != alone
    }
    group.start(*(number for number in EVERYONE if number != alone))
    group.wait_formed()
    wait_in_step(group)
    found = entries(group, leader)
    assert found is not None
    assert found["user/alone"] == "1"
    assert "user/purged" not in found


@pytest.mark.parametrize("point", PURGE_POINTS)
def test_a_round_is_finished_after_its_leader_was_killed_in_it(group: Group, point: FaultPoint) -> None:
    name = f"user/{point}"
    set_everywhere(group, 0, name, "old")
    leader = group.leader(EVERYONE)
    others = tuple(number for number in EVERYONE if number != leader)
    delete(group, name, others[0], leader)
    before = purge_status(group, others[0])
    assert before is not None
    assert ebla(group, leader, "fault", "set", str(point), "crash", "--once")["code"] == 0
    ebla(group, others[1], *PURGE_NOW)  # how it ends depends on how many steps the leader could still report
    group.processes[leader].wait(10)
    group.leader(others)  # waits for the next one
    group.start(leader)
    group.wait_formed()
    wait_erased(group, name)
    wait_in_step(group)
    status = purge_status(group, others[0])
    assert status is not None
    assert before["effective_us"] < status["tentative_us"] == status["effective_us"] == status["watermark_us"]
    assert status["waiting"] == 0


def test_a_round_that_ends_at_a_fault_point_says_so_and_is_finished_later(group: Group) -> None:
    set_everywhere(group, 0, "user/failed", "old")
    delete(group, "user/failed", *EVERYONE)
    leader = group.leader(EVERYONE)
    assert ebla(group, leader, "fault", "set", "purge.prepared", "fail", "--once")["code"] == 0
    failed = ebla(group, leader, *PURGE_NOW)
    assert failed["code"] == 1
    assert "not applied: fault_injected: the fault point purge.prepared is set to fail" in failed["errors"]
    assert ebla(group, leader, *PURGE_NOW)["code"] == 0
    wait_erased(group, "user/failed")


def test_a_node_with_damaged_settings_does_not_start_and_without_them_takes_those_of_its_peers(group: Group) -> None:
    set_everywhere(group, 0, "user/kept", "1")
    leader = group.leader(EVERYONE)
    victim = next(number for number in EVERYONE if number != leader)
    set_everywhere(group, leader, "user/gone", "1")
    delete(group, "user/gone", *EVERYONE)
    assert ebla(group, leader, *PURGE_NOW)["code"] == 0
    wait_erased(group, "user/gone")
    before = entries(group, leader)
    folder = group.nodes[victim].folder.settings
    group.kill(victim)
    data = bytearray((folder / "settings").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "settings").write_bytes(data)
    group.start(victim)
    assert group.processes[victim].wait(20) != 0
    assert str(folder / "settings") in group.cluster.output(victim)
    assert f"move {folder} away and start the node again" in group.cluster.output(victim)
    folder.rename(folder.with_name("damaged"))
    group.start(victim)
    group.wait_formed()
    wait_in_step(group)
    warnings = " ".join(group.cluster.node(victim).warnings)
    assert "the settings of this node were reset: it had no settings folder" in warnings
    found = entries(group, victim)
    assert found is not None
    assert found["user/kept"] == "1"
    assert before is not None
    assert found.keys() == before.keys()
