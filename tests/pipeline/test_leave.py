"""Nodes leave nodes with data on vnodes, dead ones are removed and replaced, and one is filled again, with Spark and
under load at QUORUM.

Afterwards every replica holds every row that the ring gives it, and no request has failed but those that were in flight
at a killed node."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.joining import NewNode, pause_at, release, report_of, wait_paused, wait_until
from tests.pipeline.changing_cluster import ChangingCluster, running
from tests.pipeline.clusters import run_command, some_rows
from tests.pipeline.served_nodes import NODES, PATIENCE_S

from ebla.client.topology_view import row_of
from ebla.control.fault_points import FaultPoint
from ebla.topology.states import NodeState

SMALL_BYTES = 10 << 20
ROLLED_BACK_S = 10.0
MISSED = range(5_000_000, 5_000_050)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[ChangingCluster]:
    with running(tmp_path_factory.mktemp("leave"), SMALL_BYTES) as made:
        yield made


def joined(cluster: ChangingCluster) -> NewNode:
    """A fourth node."""
    new = cluster.new_node()
    new.wait_normal()
    cluster.wait_up()
    return new


def done(answer: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert answer.returncode == 0, answer.stderr
    last: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    assert last["outcome"] == "done"
    return last


def state_of(cluster: ChangingCluster, node: NewNode) -> NodeState | None:
    """None: no node answers. A report does not list the nodes that have left."""
    report = report_of(cluster.local)
    row = None if report is None else row_of(report, node.host)
    return None if report is None else NodeState.LEFT if row is None else row.state


def drop_folder(cluster: ChangingCluster, node: NewNode) -> None:
    """Its process has ended, and the next new node gets its name and address."""
    wait_until(node.node.is_gone, f"{node.node.name} has left no process behind")
    cluster.forget(node)
    cluster.nodes.remove(node.node)
    shutil.rmtree(node.node.folder.path)


def test_a_node_joins_and_leaves_under_load(cluster: ChangingCluster) -> None:
    with cluster.load() as load:
        new = joined(cluster)
        cluster.check_rows()
        left = done(run_command(cluster, "decommission", new.node.name, "--yes", "--json"))
        assert left["bytes"]
        assert new.process.wait(PATIENCE_S) == 0, cluster.local.output(new.number)[-2_000:]
        wait_until(lambda: state_of(cluster, new) is NodeState.LEFT, "its row is left")
        again = cluster.local.start(new.number)
        assert again.wait(PATIENCE_S) == 1, "a host that has left never starts again"
        drop_folder(cluster, new)
    load.check()
    cluster.check_rows()
    cluster.wait_clean()


def test_a_leave_that_is_aborted_as_it_streams_is_rolled_back_with_nothing_staged(cluster: ChangingCluster) -> None:
    with cluster.load() as load:
        new = joined(cluster)
        pause_at(cluster.nodes, FaultPoint.STREAM_BEFORE_ADOPT)
        detached = run_command(cluster, "decommission", new.node.name, "--yes", "--detach")
        assert detached.returncode == 0, detached.stderr
        wait_paused(cluster.nodes, FaultPoint.STREAM_BEFORE_ADOPT)
        request = detached.stdout.strip()
        assert wait_until(lambda: aborted(cluster, request), "it is rolled back") < ROLLED_BACK_S
        assert state_of(cluster, new) is NodeState.NORMAL
        release(cluster.nodes, FaultPoint.STREAM_BEFORE_ADOPT)
        failed = run_command(cluster, "topology", "wait", request, "--json")
        assert failed.returncode == 1
        assert str(json.loads(failed.stdout)["error"]).startswith("aborted: ")
    load.check()
    cluster.check_rows()
    cluster.wait_clean()


def aborted(cluster: ChangingCluster, request: str) -> bool:
    """Waits for the end of the rollback."""
    answer = run_command(cluster, "topology", "abort", request, "--reason", "a test")
    assert answer.returncode == 0, answer.stderr
    return True


def test_a_killed_node_is_removed_and_does_not_come_back(cluster: ChangingCluster) -> None:
    """The fourth node of the test before."""
    killed = cluster.nodes[NODES]
    alive = run_command(cluster, "removenode", killed.name, "--yes")
    assert alive.returncode == 1
    assert "alive" in alive.stderr
    with cluster.load() as load:
        load.note_kill()
        cluster.kill_node(NODES)
        wait_until(lambda: cluster.local.node(NODES).held_up_by == 0, "the others see that it is down")
        done(run_command(cluster, "removenode", killed.name, "--yes", "--json"))
    load.check()
    process = cluster.local.start(NODES)
    assert process.wait(PATIENCE_S) in (1, 3), "every member refuses it"
    wait_until(killed.is_gone, f"{killed.name} has left no process behind")
    cluster.processes.pop(NODES)
    cluster.nodes.remove(killed)
    shutil.rmtree(killed.folder.path)
    cluster.check_rows()
    cluster.wait_clean()


def test_a_rebuilt_node_has_the_rows_that_it_missed(cluster: ChangingCluster) -> None:
    missed = some_rows(MISSED, 3_000, 7)
    for number in (0, 1):
        cluster.table.write(number, missed)
    assert not set(MISSED) & set(cluster.table.held(2))
    done(run_command(cluster, "rebuild", cluster.nodes[2].name, "--json"))
    held = cluster.table.held(2)
    assert {key: held.get(key) for key in MISSED} == missed
    cluster.rows |= missed
    cluster.check_rows()
    cluster.wait_clean()


@pytest.mark.long
def test_a_killed_node_is_replaced_in_its_rack(cluster: ChangingCluster) -> None:
    killed = cluster.nodes[2]
    with cluster.load() as load:
        load.note_kill()
        cluster.kill_node(2)
        wait_until(lambda: cluster.local.node(2).held_up_by == 0, "the others see that it is down")
        replaced = done(run_command(cluster, "add-node", "--replace", killed.name, "--json"))
    load.check()
    cluster.processes.pop(2)
    cluster.nodes.remove(killed)
    report = report_of(cluster.local)
    assert report is not None
    rows = {str(row.host): row for row in report.nodes}
    assert rows[str(replaced["host"])].rack == killed.options.rack


@pytest.mark.long
def test_the_streams_fit_the_ring_after_a_repair(cluster: ChangingCluster) -> None:
    """A replacing node inherits its tokens, so there is nothing to do; a leave takes tokens away."""
    first = run_command(cluster, "cdc", "check-and-repair")
    assert first.returncode == 0, first.stderr
    second = run_command(cluster, "cdc", "check-and-repair")
    assert (second.returncode, second.stdout) == (0, "nothing to do\n")
