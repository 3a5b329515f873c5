"""Operations on real processes: a node joins and goes while leaders are killed or stopped at each step."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import run
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_load import ask
from tests.cluster.group0_nodes import FASTER, Group

from ebla.control.fault_points import FaultPoint
from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.topology.states import NodeState
from ebla.wire.leadership_messages import ClusterLeadershipRequest
from ebla.wire.operation_messages import OperateAnswer, OperateRequest
from ebla.wire.verbs import CLUSTER_LEADERSHIP, OPERATE, STATUS, StatusRequest

EVERYONE = (0, 1, 2, 3)
LEASES = '{"period_ms": 4000, "grace_ms": 2000, "activity_stop_ms": 500, "retry_backoff_ms": 200}'
"""So short that a new leader acts a few seconds after the death of the old one."""
POINTS = [point for point in FaultPoint if point.startswith("atomic.")]
HOWS = ("kill", "stop")
ALTERNATING = {(point, HOWS[number % 2]) for number, point in enumerate(POINTS)}
"""Each point once, and both ways."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Four nodes, of which three vote."""
    nodes = LocalNodes(
        tmp_path_factory.mktemp("o"), len(EVERYONE), (*FASTER, "fault_points=true", "pipeline.enabled=false")
    )
    group = Group(nodes)
    try:
        group.start(*EVERYONE)
        eventually(lambda: voters(group, 0) == 3, "three nodes vote", 60)
        eventually(lambda: normal_nodes(group) == 4, "all are in the ring", 60)
        assert run(nodes.data, "settings", "set", "leases", LEASES)["code"] == 0
        eventually(lambda: has_short_leases(group), "leases of the old period have run out")
        yield group
    finally:
        nodes.end_all()


def voters(group: Group, number: int) -> int:
    report = group.report(number)
    return 0 if report is None else sum(each.member.role is MemberRole.VOTER for each in report.members)


def normal_nodes(group: Group) -> int:
    try:
        topology = ask(group.nodes[group.leader(EVERYONE)], STATUS, StatusRequest()).topology
    except EblaError:
        return 0
    return 0 if topology is None else sum(state == NodeState.NORMAL for _, state in topology.nodes)


def has_short_leases(group: Group) -> bool:
    reports = ask(group.nodes[0], CLUSTER_LEADERSHIP, ClusterLeadershipRequest()).reports
    return len(reports) == len(EVERYONE) and all(0 < one.left_ms <= 4_000 for one in reports)


def ebla(group: Group, number: int, *command: str) -> dict[str, Any]:
    return run(group.cluster.data, *command, "--node", group.nodes[number].name, "--json")


def waits_at(group: Group, number: int, point: FaultPoint) -> bool:
    shown = ebla(group, number, "fault", "list")
    return shown["code"] == 0 and any(one["name"] == point and one["waiting"] for one in shown["json"])


class Strike:
    """The leader dies at this point of its next operation, or stands still there until another node leads."""

    def __init__(self, group: Group, point: FaultPoint, how: str) -> None:
        self._group = group
        self._point = point
        self._how = how
        self.leader = group.leader(EVERYONE)
        assert ebla(group, self.leader, "fault", "set", str(point), "pause", "--once")["code"] == 0

    def wait(self, limit_s: float = 30) -> None:
        """Until the leader is at the point, and is struck."""
        group, leader = self._group, self.leader
        eventually(lambda: waits_at(group, leader, self._point), f"it waits at {self._point}", limit_s)
        if self._how == "kill":
            group.kill(leader)
        else:
            os.kill(group.processes[leader].pid, signal.SIGSTOP)

    def end(self) -> None:
        """The node is back. What it had stopped in the middle of is another leader's now."""
        if self._how == "kill":
            self._group.start(self.leader)
        else:
            others = [number for number in EVERYONE if number != self.leader]
            eventually(lambda: leads_another(self._group, others), "another node leads", 30)
            os.kill(self._group.processes[self.leader].pid, signal.SIGCONT)
        self._group.wait_answers(self.leader)


def leads_another(group: Group, numbers: list[int]) -> bool:
    return any((report := group.report(number)) is not None and report.role == "leader" for number in numbers)


class Request(threading.Thread):
    """An operation that an operator asks of a node."""

    def __init__(self, group: Group, number: int, operation: Operation) -> None:
        super().__init__(daemon=True)
        self._node = group.nodes[number]
        self._operation = operation
        self.answer: OperateAnswer | EblaError | None = None

    def run(self) -> None:
        try:
            self.answer = ask(self._node, OPERATE, OperateRequest(self._operation, forward=True), 60_000)
        except EblaError as error:
            self.answer = error


@pytest.mark.parametrize(
    ("point", "how"),
    [
        (point, how) if (point, how) in ALTERNATING else pytest.param(point, how, marks=pytest.mark.long)
        for point in POINTS
        for how in HOWS
    ],
)
def test_an_operation_goes_on_after_its_leader_died_or_stopped(group: Group, point: FaultPoint, how: str) -> None:
    """The learner is promoted: with the leader gone, three of four voters are left."""
    strike = Strike(group, point, how)
    report = group.report(strike.leader)
    assert report is not None
    learner = next(each.member.host for each in report.members if each.member.role is MemberRole.LEARNER)
    asked = next(number for number in EVERYONE if number != strike.leader and group.host(number) != learner)
    operation = Operation(
        id=uuid.uuid4(), kind=OperationKind.CHANGE_ROLES, hosts=(HostId(learner),), roles=(MemberRole.VOTER,)
    )
    request = Request(group, asked, operation)
    request.start()
    strike.wait()
    request.join(40)
    assert isinstance(request.answer, OperateAnswer)
    assert request.answer.code is None, request.answer
    strike.end()
    eventually(lambda: unfinished(group) == [None] * 4, "nothing is unfinished", 60)
    eventually(lambda: [voters(group, number) for number in EVERYONE] == [3] * 4, "three nodes vote", 60)


def unfinished(group: Group) -> list[object]:
    shown = [ebla(group, number, "operations") for number in EVERYONE]
    return [one["json"]["unfinished"] if one["code"] == 0 else "no answer" for one in shown]


@pytest.mark.parametrize(
    ("adding", "removing", "how"),
    [
        (FaultPoint.ATOMIC_MEMBERS, FaultPoint.ATOMIC_KEYS, "kill"),
        *(
            pytest.param(adding, removing, how, marks=pytest.mark.long)
            for adding, removing in (
                (FaultPoint.ATOMIC_LOCKED, FaultPoint.ATOMIC_LOCKED),
                (FaultPoint.ATOMIC_KEYS, FaultPoint.ATOMIC_MEMBERS),
                (FaultPoint.ATOMIC_DELETED, FaultPoint.ATOMIC_DELETED),
            )
            for how in HOWS
        ),
        pytest.param(FaultPoint.ATOMIC_MEMBERS, FaultPoint.ATOMIC_KEYS, "stop", marks=pytest.mark.long),
    ],
)
def test_a_node_joins_while_its_leader_dies_or_stops_and_is_removed_in_the_same_way(
    group: Group, adding: FaultPoint, removing: FaultPoint, how: str
) -> None:
    data = group.cluster.data
    token = run(data, "token")["text"].strip()
    first = Strike(group, adding, how)
    with joining(group, token) as process:
        first.wait(60)
        first.end()
        eventually(lambda: ids(group) == 5, "the fifth is a member", 60)
        eventually(lambda: normal_nodes(group) == 5, "and in the ring", 60)
        second = Strike(group, removing, how)
        asked = next(number for number in EVERYONE if number != second.leader)
        with command(group, asked, "group0", "remove", "node5") as removal:
            second.wait()
            assert answer_of(removal, 60) == (0, "done")
        assert process.wait(60) == 3
        second.end()
        eventually(lambda: ids(group) == 4, "it is removed", 60)
        eventually(lambda: unfinished(group) == [None] * 4, "nothing is unfinished", 60)
    shutil.rmtree(data / "node5")


@contextmanager
def command(group: Group, number: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of an operator, as a process: others run meanwhile."""
    flags = ("--data", str(group.cluster.data), "--node", group.nodes[number].name, "--json")
    process = subprocess.Popen([sys.executable, "-m", "ebla", *arguments, *flags], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer_of(process: subprocess.Popen[bytes], within_s: float) -> tuple[int, str]:
    """The exit status, and the outcome that it prints."""
    output, _ = process.communicate(timeout=within_s)
    return process.returncode, json.loads(output)["outcome"]


@pytest.mark.parametrize(
    ("point", "how"),
    [
        (point, how)
        if (point, how) == (FaultPoint.ATOMIC_KEYS, "kill")
        else pytest.param(point, how, marks=pytest.mark.long)
        for point in POINTS
        for how in HOWS
    ],
)
def test_an_exclusion_goes_on_after_its_leader_died_or_stopped(group: Group, point: FaultPoint, how: str) -> None:
    """The dead node gives its vote to the learner first, so that two of three voters are left without the leader."""
    leader = group.leader(EVERYONE)
    report = group.report(leader)
    assert report is not None
    roles = {each.member.host: each.member.role for each in report.members}
    others = [number for number in EVERYONE if number != leader]
    victim = next(number for number in others if roles[group.host(number)] is MemberRole.VOTER)
    asked = next(number for number in others if number != victim)
    name = group.nodes[victim].name
    group.kill(victim)
    eventually(lambda: group.host(victim) not in voting(group, leader), "the dead node has no vote", 60)
    eventually(lambda: ebla(group, asked, "failover", name, "--dry-run")["code"] == 0, "it is down for a majority", 60)
    strike = Strike(group, point, how)
    assert strike.leader == leader, "it still leads"
    with command(group, asked, "failover", name) as exclusion:
        strike.wait()
        assert answer_of(exclusion, 60) == (0, "done")
    strike.end()
    group.start(victim)
    assert [one["host"] for one in ebla(group, asked, "failover", "--status")["json"]["excluded"]] == [
        str(group.host(victim))
    ]
    eventually(lambda: ebla(group, asked, "recover", name)["code"] == 0, "it is up, leased and caught up", 60)
    assert ebla(group, asked, "failover", "--status")["json"]["excluded"] == []
    eventually(lambda: unfinished(group) == [None] * 4, "nothing is unfinished", 60)


def voting(group: Group, number: int) -> list[HostId]:
    report = group.report(number)
    members = () if report is None else report.members
    return [each.member.host for each in members if each.member.role is MemberRole.VOTER]


def ids(group: Group) -> int:
    for number in EVERYONE:
        report = group.report(number)
        if report is not None:
            return sum(each.member.present for each in report.members)
    return 0


@contextmanager
def joining(group: Group, token: str) -> Iterator[subprocess.Popen[bytes]]:
    first = group.nodes[0].options
    folder: Path = group.cluster.data / "node5"
    folder.mkdir(mode=0o700)
    address = f"{first.address.rpartition('.')[0]}.5"
    text = group.nodes[0].options_path.read_text().replace(f'address = "{first.address}"', f'address = "{address}"')
    (folder / "options.toml").write_text(text)
    command = [sys.executable, "-m", "ebla.node", "control", "--options", str(folder / "options.toml")]
    with group.cluster.data.with_name("node5-output").open("wb") as output:
        process = subprocess.Popen([*command, "--join", token], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
