"""Nodes join real nodes without data while nodes are down, stopped or killed: each join ends, or says what it waits
for."""

import time
from collections.abc import Iterator

import pytest
from tests.cluster.conftest import LocalNodes
from tests.cluster.group0_load import ask
from tests.cluster.group0_nodes import FASTER, Group, stopped
from tests.cluster.joining import (
    LEASES,
    NewNode,
    change_setting,
    host_of,
    pause_at,
    release,
    report_of,
    wait_paused,
    wait_until,
)

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.control.fault_points import FaultPoint
from ebla.topology.states import NodeState
from ebla.wire.topology_messages import TopologyReport, TopologyReportRequest
from ebla.wire.verbs import TOPOLOGY_REPORT

OLD = (0, 1, 2)
ANSWER_S = 1.0
LOOKS = 3
NAMED_S = 5.0
STOPPED_S = 20.0
SHORT_GRACE = '{"request_grace_ms": 2000}'
SHORT_TIMEOUT = '{"peer_timeout_ms": 5000}'
DEFAULTS = "{}"


class Cluster:
    """Three nodes, and those that have joined them."""

    def __init__(self, nodes: LocalNodes) -> None:
        self.nodes = nodes
        self.group = Group(nodes)
        self.group.start(*OLD)
        nodes.wait_all_up()
        change_setting(nodes.nodes[0], "leases", LEASES)

    @property
    def old(self) -> list[LocalNode]:
        return [self.nodes.nodes[number] for number in OLD]

    def follower(self) -> int:
        leader = self.group.leader(OLD)
        return next(number for number in OLD if number != leader)

    def topology(self, value: str) -> None:
        change_setting(self.nodes.nodes[self.group.leader(OLD)], "topology", value)

    def wait_down(self, number: int) -> None:
        wait_until(lambda: self.nodes.node(number).held_up_by == 0, f"the others see that node {number} is down")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = LocalNodes(tmp_path_factory.mktemp("j"), len(OLD), (*FASTER, "fault_points=true"))
    try:
        yield Cluster(nodes)
    finally:
        nodes.end_all()


def test_a_join_is_cancelled_after_the_grace_and_runs_if_the_node_is_back_in_time(cluster: Cluster) -> None:
    down = cluster.follower()
    address = cluster.nodes.nodes[down].options.address
    cluster.group.kill(down)
    cluster.wait_down(down)
    cluster.topology(SHORT_GRACE)
    cancelled = NewNode(cluster.nodes)
    why = cancelled.wait_left()
    assert why.startswith("cancelled: ")
    assert address in why
    assert "cancelled: " in cancelled.wait_end()

    cluster.topology(DEFAULTS)
    patient = NewNode(cluster.nodes)
    cause = patient.wait_cause("nodes down and not excluded")
    assert address in cause
    assert "cancelled in" in cause
    cluster.group.start(down)
    patient.wait_normal()


def test_a_new_node_that_is_killed_before_its_acceptance_has_left_and_says_why(cluster: Cluster) -> None:
    returns_too_late(cluster, FaultPoint.JOIN_GROUP0_ENTERED)


@pytest.mark.long
def test_a_new_node_that_is_killed_after_its_acceptance_and_returns_too_late_says_why(cluster: Cluster) -> None:
    returns_too_late(cluster, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)


def returns_too_late(cluster: Cluster, point: FaultPoint) -> None:
    cluster.topology(SHORT_TIMEOUT)
    pause_at(cluster.old, point)
    new = NewNode(cluster.nodes)
    wait_paused(cluster.old, point)
    new.kill()
    release(cluster.old, point)
    new.wait_left()
    new.start_again()
    new.wait_end()
    cluster.topology(DEFAULTS)


def test_the_topology_is_shown_without_a_majority(cluster: Cluster) -> None:
    cluster.nodes.wait_all_up()
    kept = cluster.group.leader(OLD)
    killed = [number for number in OLD if number != kept]
    version = _shown(cluster.nodes, kept)[0].version
    cluster.group.kill(*killed)
    try:
        report: list[TopologyReport] = []

        def is_local() -> bool:
            report[:] = [_shown(cluster.nodes, kept)[0]]
            return report[0].local_age_ms is not None

        wait_until(is_local, "it knows that no leader answers")
        took_s = min(_shown(cluster.nodes, kept)[1] for _ in range(LOOKS))
        assert took_s < ANSWER_S
        assert report[0].version >= version
        assert len(report[0].nodes) == len(cluster.nodes.nodes)
        assert report[0].waits_for is not None
        assert report[0].waits_for.text.startswith("no majority: ")
    finally:
        cluster.group.start(*killed)
    cluster.nodes.wait_all_up()


def _shown(nodes: LocalNodes, number: int) -> tuple[TopologyReport, float]:
    began = time.monotonic()
    return ask(nodes.nodes[number], TOPOLOGY_REPORT, TopologyReportRequest()), time.monotonic() - began


@pytest.mark.long
def test_a_new_node_that_is_killed_after_its_acceptance_continues_if_it_is_back_in_time(cluster: Cluster) -> None:
    pause_at(cluster.old, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
    new = NewNode(cluster.nodes)
    wait_paused(cluster.old, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
    new.kill()
    release(cluster.old, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
    new.wait_cause(f"no reply from {new.node.options.address}; rolled back in ")
    new.start_again()
    new.wait_normal()


@pytest.mark.long
def test_a_stopped_node_is_named_and_the_join_goes_on_after_it_continues(cluster: Cluster) -> None:
    follower = cluster.follower()
    others = [cluster.nodes.nodes[number] for number in OLD if number != follower]
    address = cluster.nodes.nodes[follower].options.address
    pause_at(cluster.old, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
    new = NewNode(cluster.nodes)
    wait_paused(cluster.old, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
    with stopped(cluster.group.processes[follower]) as since:
        release(others, FaultPoint.COMMIT_CDC_GENERATION_ENTERED)
        cause = new.wait_cause(f"{address}: ", NAMED_S)
        assert cause.startswith("barrier of version ")
        time.sleep(max(0.0, STOPPED_S - (time.monotonic() - since)))
        new.wait_cause(f"{address}: ", ANSWER_S)  # time alone does not pass a barrier
    new.wait_normal()
    cluster.nodes.wait_all_up()


@pytest.mark.long
def test_five_fresh_nodes_that_start_at_once_form_one_cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    nodes = LocalNodes(tmp_path_factory.mktemp("five"), 5, FASTER)
    try:
        nodes.start_all()
        report = report_of(nodes)
        assert report is not None
        assert sorted(row.host for row in report.nodes) == sorted(map(host_of, nodes.nodes))
        assert {row.state for row in report.nodes} == {NodeState.NORMAL}
    finally:
        nodes.end_all()
