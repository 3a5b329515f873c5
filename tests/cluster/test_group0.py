"""Group 0 on real processes: acknowledged writes survive kills, stops and full disks."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import run
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_load import PREFIX, Group0Load, Record, ask, read_all, report_of
from tests.cluster.group0_nodes import ELECTION_MS, FASTER, Group, stopped
from tests.cluster.small_disks import fill, move_to, small_disk

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.group0.commands import Done
from ebla.model.transaction import PutKey, Transaction
from ebla.wire.group0_messages import ExecuteRequest
from ebla.wire.verbs import GROUP0_EXECUTE, STATUS, StatusRequest

PROMISED_S = 2 * ELECTION_MS / 1000
"""Service returns within two election timeouts of a majority being up."""
PATIENCE = 4
"""Allowance for a busy machine; a stuck group takes forever."""

Make = Callable[..., LocalNodes]


@pytest.fixture
def make_group(make_nodes: Make) -> Callable[..., Group]:
    def make(nodes: int = 3) -> Group:
        group = Group(make_nodes(nodes, FASTER))
        group.start(*range(nodes))
        group.wait_formed()
        return group

    return make


def check_nothing_lost(record: Record, group: Group) -> None:
    """Every acknowledged value is on every node with its own bytes; values reported as not applied are on none."""
    assert record.acknowledged
    for node in group.nodes:
        found = {each.key: each.value for each in read_all(node, PREFIX).found}
        lost = [key for key in record.acknowledged if found.get(key) != key.encode()]
        assert not lost, f"{node.name} lost {len(lost)} of {len(record.acknowledged)}: {lost[:5]}"
        false = {key: record.not_applied[key] for key in record.not_applied if key in found}
        assert not false, f"{node.name} holds what was not applied: {false}"
        strange = [key for key in found if key not in record.acknowledged and key not in record.unknown]
        assert not strange, f"{node.name} has values that were never written: {strange[:5]}"


def test_acknowledged_writes_survive_kills_a_stopped_leader_and_the_death_of_all(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    everyone = (0, 1, 2)
    waits: dict[str, float] = {}
    with Group0Load(group.nodes) as load:
        load.wait_service_after(time.monotonic(), 10)
        for turn in range(3):
            leader = group.leader(everyone)
            moment = group.kill(leader)
            waits[f"leader killed {turn}"] = load.wait_service_after(moment, PROMISED_S * PATIENCE)
            group.start(leader)
            group.wait_answers(leader)
            follower = next(number for number in everyone if number != group.leader(everyone))
            moment = group.kill(follower)
            waits[f"follower killed {turn}"] = load.wait_service_after(moment, PROMISED_S * PATIENCE)
            group.start(follower)
            group.wait_answers(follower)
        leader = group.leader(everyone)
        others = tuple(number for number in everyone if number != leader)
        with stopped(group.processes[leader]) as moment:
            waits["leader stopped"] = load.wait_service_after(moment, PROMISED_S * PATIENCE)
            successor = group.leader(others)
            assert time.monotonic() - moment > ELECTION_MS / 1000
        eventually(lambda: _follows(group, leader), f"the stopped leader follows node {successor}")
        group.kill(*everyone)
        group.start(*everyone)
        eventually(lambda: sum(group.report(number) is not None for number in everyone) >= 2, "a majority is up", 30)
        waits["all killed"] = load.wait_service_after(time.monotonic(), PROMISED_S * PATIENCE)
        group.wait_answers(*everyone)
    print({name: round(seconds, 3) for name, seconds in waits.items()})
    check_nothing_lost(load.record, group)


def _follows(group: Group, number: int) -> bool:
    report = group.report(number)
    return report is not None and report.role == "follower" and report.leader is not None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 128 << 20) as is_mounted:
        if not is_mounted:
            pytest.skip("a full disk needs a file system of its own, and only root may mount one")
        yield tmp_path / "disk"


def test_a_full_disk_on_one_node_stops_nobody_and_is_waited_out(disk: Path, make_nodes: Make) -> None:
    nodes = make_nodes(3, (*FASTER, "limits.free_disk_bytes_min=1000000"))
    group = Group(nodes)
    move_to(nodes.nodes[2], disk)
    group.start(0, 1, 2)
    group.wait_formed()
    nodes.wait_all_up()  # by now every node has reserved space for its logs
    with Group0Load(group.nodes[:2]) as load:
        load.wait_service_after(time.monotonic(), 10)
        filler = disk / "filler"
        fill(filler)
        value = b"v" * 400_000
        for number in range(60):  # more than the log has reserved
            request = ExecuteRequest(Transaction((), (PutKey(f"user/large/{number % 4}", value),)))
            ask(group.nodes[0], GROUP0_EXECUTE, request, 10_000)
        load.wait_service_after(time.monotonic(), PROMISED_S * PATIENCE)
        eventually(lambda: "raft.disk_full" in nodes.output(2), "it says so")
        eventually(lambda: "disk.reserve_reached" in nodes.output(2), "its shard says so")
        eventually(lambda: any("writes are refused" in one for one in _warnings(group, 2)), "and its status")
        assert group.processes[2].poll() is None
        filler.unlink()
        eventually(lambda: _is_level(group, 2), "it catches up without a restart", 40)
        assert "child.ended" not in nodes.output(2)
        eventually(lambda: "disk.reserve_left" in nodes.output(2) and not _warnings(group, 2), "that is over")
    check_nothing_lost(load.record, group)


def _warnings(group: Group, number: int) -> tuple[str, ...]:
    return ask(group.nodes[number], STATUS, StatusRequest()).warnings


def _is_level(group: Group, number: int) -> bool:
    reports = [group.report(each) for each in range(3)]
    own = reports[number]
    return own is not None and all(other is None or own.applied + 200 >= other.applied for other in reports)


def test_a_node_joins_by_token_gets_a_vote_and_a_removed_or_emptied_node_stops_with_the_reason(
    make_group: Callable[..., Group], tmp_path: Path
) -> None:
    group = make_group()
    data = group.cluster.data
    token = run(data, "token")["text"].strip()
    with joining(group, token) as joined:
        eventually(lambda: len(roles(data)) == 4, "the fourth is a member")
        fourth = joined.folder.read_identity()
        assert fourth is not None
        assert roles(data)[str(fourth.host)] == "learner"
        eventually(lambda: report_of(joined) is not None and read_level(group, joined), "it has caught up")

        leaving = next(number for number in (0, 1, 2) if number != group.leader((0, 1, 2)))
        removal = ("group0", "remove", str(group.host(leaving)), "--json")
        eventually(lambda: run(data, *removal)["json"]["outcome"] == "done", "it goes once no other node joins")
        assert group.processes[leaving].wait(60) == 3
        assert f"host {group.host(leaving)} was removed from the cluster" in group.cluster.output(leaving)
        eventually(lambda: roles(data, joined.name)[str(fourth.host)] == "voter", "the seat is filled again")
        group.start(leaving)
        assert group.processes[leaving].wait(60) == 1, "its folder is marked, so this start is refused"
        assert "can never come back; empty its folder with `ebla reset-node FOLDER`" in group.cluster.output(leaving)
        refused_without_its_log(group, next(number for number in (0, 1, 2) if number != leaving))


def refused_without_its_log(group: Group, number: int) -> None:
    """Under its old id it may have voted; with an empty log it would forget that vote."""
    folder = group.nodes[number].folder
    group.kill(number)
    kept = folder.group0.with_name("kept")
    folder.group0.rename(kept)
    group.start(number)
    assert group.processes[number].wait(60) == 1
    assert "but its log in" in group.cluster.output(number)
    assert "remove the host from another node (ebla group0 remove)" in group.cluster.output(number)
    shutil.rmtree(folder.group0)
    mark = folder.group0.with_name(f"{folder.group0.name}-mark")
    mark.unlink()
    group.start(number)
    assert group.processes[number].wait(60) == 1
    assert f"cannot be created: {folder.shard(0)} holds store" in group.cluster.output(number)
    shutil.rmtree(folder.shard(0))
    group.start(number)
    assert group.processes[number].wait(60) == 1
    assert "is a member of this cluster already: its folder was copied, or lost its log" in group.cluster.output(number)


def read_level(group: Group, node: LocalNode) -> bool:
    theirs, ours = read_all(group.nodes[0], ""), read_all(node, "", quorum=False)
    return ours.found == theirs.found


@contextmanager
def joining(group: Group, token: str) -> Iterator[LocalNode]:
    first = group.nodes[0].options
    address = f"{first.address.rpartition('.')[0]}.4"
    folder = group.cluster.data / "node4"
    folder.mkdir(mode=0o700)
    text = group.nodes[0].options_path.read_text().replace(f'address = "{first.address}"', f'address = "{address}"')
    (folder / "options.toml").write_text(text.replace('rack = "rack1"', 'rack = "rack4"'))
    command = [sys.executable, "-m", "ebla.node", "control", "--options", str(folder / "options.toml")]
    with group.cluster.data.with_name("node4-output").open("wb") as output:
        process = subprocess.Popen([*command, "--join", token], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        eventually(lambda: (folder / "identity").exists(), "it is handed an identity")
        yield next(node for node in find_nodes(group.cluster.data) if node.name == "node4")
    finally:
        process.terminate()
        process.wait(60)


def roles(data: Path, node: str | None = None) -> dict[str, str]:
    flags = () if node is None else ("--node", node)
    result = run(data, "group0", "members", *flags, "--json")
    if result["code"] != 0:
        return {}
    return {each["host"]: each["role"] for each in result["json"]["members"]}


def test_every_command_answers_in_json_and_tells_what_became_of_the_operation(make_group: Callable[..., Group]) -> None:
    group = make_group()
    data = group.cluster.data

    def group0(*command: str, stdin: str | None = None) -> dict[str, Any]:
        return run(data, "group0", *command, "--json", stdin=stdin)

    first = group0("put", "user/colour", "blue", "--if-missing")
    assert (first["code"], first["json"]["outcome"]) == (0, "done")
    index = first["json"]["revision"]["index"]
    again = group0("put", "user/colour", "red", "--if-missing")
    assert (again["code"], again["json"]["outcome"], again["json"]["answer"]) == (1, "not_applied", "ConditionFailed")
    assert again["json"]["actual"]["index"] == index
    for name in ("node1", "node2", "node3"):
        found = group0("get", "user/colour", "--node", name)
        assert found["json"]["found"] == [{"key": "user/colour", "index": index, "text": "blue", "hex": None}]
    assert group0("put", "user/colour", "green", "--if-index", str(index))["code"] == 0

    wanted = {
        "conditions": [{"key": "user/shape", "missing": True}],
        "changes": [{"key": "user/shape", "value": "round"}, {"key": "user/colour", "value": None}],
    }
    done = group0("txn", "-", stdin=json.dumps(wanted))
    assert (done["code"], done["json"]["outcome"]) == (0, "done")
    assert group0("get", "user/colour")["code"] == 1
    watched = run(data, "group0", "watch", "user/", "--after", str(index), "--count", "3", "--json")
    assert [(line["key"], line["value"]) for line in map(json.loads, watched["text"].splitlines())] == [
        ("user/colour", "green"), ("user/shape", "round"), ("user/colour", None)
    ]  # fmt: skip
    assert group0("delete", "user/shape")["json"]["outcome"] == "done"

    lock = group0("lock")["json"]["lock"]
    assert group0("put", "user/locked", "1", "--lock", lock)["code"] == 0
    group0("lock")
    stale = group0("put", "user/locked", "2", "--lock", lock)
    assert (stale["code"], stale["json"]["answer"]) == (1, "LockRevoked")
    assert group0("get", "user/locked")["json"]["found"][0]["text"] == "1"

    more_than_a_frame_holds(group, group0)
    refused_commands(group0)
    leader_moves_and_a_lost_quorum_is_reported(group, group0)


Group0Command = Callable[..., dict[str, Any]]


def more_than_a_frame_holds(group: Group, group0: Group0Command) -> None:
    """20 MB below one prefix: read, watched from the beginning, and resumed before all of it."""
    keys = [f"user/large/{number:02d}" for number in range(40)]
    before = group0("check-quorum")["json"]["index"]
    for key in keys:
        request = ExecuteRequest(Transaction((), (PutKey(key, b"v" * 500_000),)))
        assert isinstance(ask(group.nodes[0], GROUP0_EXECUTE, request, 10_000).answer, Done)
    found = group0("get", "user/large/")["json"]["found"]
    assert [(one["key"], len(one["text"])) for one in found] == [(key, 500_000) for key in keys]
    for resumed in ((), ("--after", str(before))):
        result = run(group.cluster.data, "group0", "watch", "user/large/", "--count", "40", "--json", *resumed)
        lines = [json.loads(line) for line in result["text"].splitlines()]
        assert [(line["key"], line["reset"]) for line in lines] == [(key, not resumed) for key in keys]


def refused_commands(group0: Group0Command) -> None:
    large = group0("put", "user/large", "x" * 600_000)
    assert (large["json"]["error"], large["json"]["outcome"]) == ("TooLarge", "not_applied")
    assert "at most 524288" in large["json"]["message"]
    assert group0("put", "user/" + "k" * 600, "v")["json"]["error"] == "InvalidRequest"
    owned = group0("put", "topology/x", "v")
    assert (owned["code"], owned["json"]["message"]) == (1, "the key topology/x belongs to: coordinator")
    members = group0("put", "members/x", "v", "--force")
    assert members["json"]["answer"] == "Rejected"
    stranger = "00000000-0000-0000-0000-000000000001"
    assert group0("transfer-leader", stranger)["json"]["outcome"] == "not_applied"
    assert group0("remove", stranger)["json"]["outcome"] == "not_applied"


def leader_moves_and_a_lost_quorum_is_reported(group: Group, group0: Group0Command) -> None:
    leader = group.leader((0, 1, 2))
    heir, third = (number for number in (0, 1, 2) if number != leader)
    assert group0("transfer-leader", str(group.host(heir)), "--node", f"node{third + 1}")["code"] == 0
    assert group.leader((0, 1, 2)) == heir
    assert group0("check-quorum")["json"]["quorum"] is True
    group.kill(heir, third)
    alone = f"node{leader + 1}"
    eventually(lambda: group0("members", "--node", alone)["json"]["leader"] is None, "it knows that there is no leader")
    lost = group0("put", "user/late", "1", "--node", alone, "--timeout-ms", "400")
    assert (lost["code"], lost["json"]["outcome"], lost["json"]["error"]) == (1, "not_applied", "Unavailable")
    assert "no leader of group 0 is known" in lost["json"]["message"]
    assert group0("check-quorum", "--node", alone, "--timeout-ms", "400")["code"] == 1
    assert group0("get", "user/locked", "--node", alone, "--timeout-ms", "400")["code"] == 1
    assert group0("get", "user/locked", "--node", alone, "--local")["json"]["found"][0]["text"] == "1"
