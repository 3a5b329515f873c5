"""Nodes join nodes with data on vnodes, which Spark streams to them, under load at QUORUM and while processes die.

Afterwards every replica holds every row that the ring gives it, and no request has failed but those that were in flight
at a killed node."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.joining import pause_at, release, wait_paused, wait_until
from tests.pipeline.changing_cluster import ChangingCluster, running
from tests.pipeline.clusters import run_command
from tests.pipeline.served_nodes import PATIENCE_S

from ebla.control.fault_points import FaultPoint

SMALL_BYTES, LARGE_BYTES = 10 << 20, 200 << 20
LARGE_S = 600.0
ROLLED_BACK_S = 10.0
AT_FULL_SPEED = ("limits.transfer_bytes_per_second_max=1000000000",)
KILLED_AT = (
    FaultPoint.JOIN_GROUP0_AFTER_ACTION,
    FaultPoint.COMMIT_CDC_GENERATION_AFTER_BARRIER,
    FaultPoint.WRITE_BOTH_READ_OLD_AFTER_BARRIER,
    FaultPoint.WRITE_BOTH_READ_NEW_AFTER_BARRIER,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[ChangingCluster]:
    with running(tmp_path_factory.mktemp("join"), SMALL_BYTES) as made:
        yield made


def test_a_node_joins_under_load_while_the_leader_is_killed_as_it_streams(
    cluster: ChangingCluster,
) -> None:
    with cluster.load() as load:
        pause_at(cluster.nodes, FaultPoint.STREAM_BEFORE_SEAL)
        new = cluster.new_node()
        cluster.kill_and_start(wait_paused(cluster.nodes, FaultPoint.STREAM_BEFORE_SEAL), load)
        release(cluster.nodes, FaultPoint.STREAM_BEFORE_SEAL)
        new.wait_normal()
        cluster.wait_up()
    load.check()
    cluster.check_rows()
    cluster.wait_clean()


def test_cleanup_leaves_to_each_node_what_it_holds(cluster: ChangingCluster) -> None:
    owners = cluster.owners()
    for number, node in enumerate(cluster.nodes):
        done = run_command(cluster, "cleanup", node.name, "--json")
        assert done.returncode == 0, done.stderr
        cleaned = json.loads(done.stdout)
        assert cleaned["node"] == node.name
        assert 0 < cleaned["after_bytes"] <= cleaned["before_bytes"]
        held = {key for key in cluster.table.held(number) if key in owners}
        assert held == {key for key, hosts in owners.items() if cluster.host(number) in hosts}
    cluster.check_rows()


def test_an_abort_in_the_middle_of_streaming_is_rolled_back_with_nothing_staged(cluster: ChangingCluster) -> None:
    members = list(cluster.nodes)
    with cluster.load() as load:
        pause_at(members, FaultPoint.STREAM_BEFORE_ADOPT)
        new = cluster.new_node()
        wait_paused(members, FaultPoint.STREAM_BEFORE_ADOPT)
        assert "cql.listens" not in cluster.local.output(new.number), "it is not in the ring yet"
        request = new.wait_request()
        took_s = wait_until(lambda: aborted(cluster, str(request.id)), "it is rolled back", PATIENCE_S)
        assert took_s < ROLLED_BACK_S
        assert new.wait_left().startswith("aborted: ")
        assert "aborted: " in new.wait_end()
        cluster.forget(new)
        release(members, FaultPoint.STREAM_BEFORE_ADOPT)
    load.check()
    cluster.wait_clean()
    cluster.check_rows()


def aborted(cluster: ChangingCluster, request: str) -> bool:
    """Waits for the end of the rollback."""
    done = run_command(cluster, "topology", "abort", request, "--reason", "a test")
    assert done.returncode == 0, done.stderr
    return True


@pytest.mark.long
def test_a_node_joins_while_the_leader_is_killed_in_each_state(cluster: ChangingCluster) -> None:
    """One leader after the other, each in the state that the last one had left to it."""
    members = list(cluster.nodes)
    with cluster.load() as load:
        pause_at(members, *KILLED_AT)
        new = cluster.new_node()
        for number, point in enumerate(KILLED_AT):
            leader = wait_paused(members, point)
            release([node for node in members if node != leader], point)
            cluster.kill_and_start(leader, load)
            wait_until(partial(cluster.is_answering, leader), f"{leader.name} answers")
            pause_at([leader], *KILLED_AT[number + 1 :])
        new.wait_normal()
        cluster.wait_up()
    load.check()
    cluster.check_rows()
    cluster.wait_clean()


@pytest.mark.long
def test_an_aborted_join_is_rolled_back_although_the_leader_is_killed_meanwhile(cluster: ChangingCluster) -> None:
    members = list(cluster.nodes)
    with cluster.load() as load:
        pause_at(members, FaultPoint.STREAM_CHECKPOINTED, FaultPoint.LEFT_TOKEN_RING_AFTER_ACTION)
        new = cluster.new_node()
        wait_paused(members, FaultPoint.STREAM_CHECKPOINTED)
        request = new.wait_request()
        assert run_command(cluster, "topology", "abort", str(request.id), "--detach").returncode == 0
        leader = wait_paused(members, FaultPoint.LEFT_TOKEN_RING_AFTER_ACTION)
        cluster.kill_and_start(leader, load)
        release(members, FaultPoint.STREAM_CHECKPOINTED, FaultPoint.LEFT_TOKEN_RING_AFTER_ACTION)
        assert new.wait_left().startswith("aborted: ")
        new.wait_end()
        cluster.forget(new)
        cluster.wait_up()
    load.check()
    cluster.wait_clean()
    cluster.check_rows()


@pytest.mark.long
def test_a_join_waits_for_a_pipeline_that_was_killed_while_it_streamed(cluster: ChangingCluster) -> None:
    members = list(cluster.nodes)
    cluster.wait_pipeline()
    with cluster.load() as load:
        pause_at(members, FaultPoint.STREAM_CHECKPOINTED)
        new = cluster.new_node()
        wait_paused(members, FaultPoint.STREAM_CHECKPOINTED)
        os.kill(cluster.pipeline_pid, signal.SIGKILL)
        release(members, FaultPoint.STREAM_CHECKPOINTED)
        new.wait_cause("pipeline unavailable")
        new.wait_normal()
        cluster.wait_up()
    load.check()
    cluster.check_rows()
    cluster.wait_clean()


@pytest.mark.long
def test_a_node_joins_nodes_with_much_data_under_load(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> None:
    with running(tmp_path_factory.mktemp("large"), LARGE_BYTES, AT_FULL_SPEED) as cluster:
        with cluster.load() as load:
            new = cluster.new_node()
            new.wait_normal(LARGE_S)
            cluster.wait_up()
        load.check()
        assert load.failed_in_flight == 0
        cluster.check_rows()
        cluster.wait_clean()
