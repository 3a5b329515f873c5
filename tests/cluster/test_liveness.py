"""Opinions of real nodes about stopped, continued, killed and returned peers."""

import os
import signal
import subprocess
from collections.abc import Callable

from tests.cluster.conftest import LocalNodes, eventually

from ebla.client.cluster_view import NodeState


def test_peers_learn_of_stopped_killed_and_returned_nodes(make_nodes: Callable[..., LocalNodes]) -> None:
    nodes = make_nodes(3)
    processes: list[subprocess.Popen[bytes]] = [nodes.start(number) for number in range(3)]
    nodes.wait_all_up()
    trips = [node.round_trip_us for node in nodes.view().nodes]
    assert all(trip is not None and 0 < trip < 1_000_000 for trip in trips)

    os.kill(processes[2].pid, signal.SIGSTOP)
    try:
        eventually(
            lambda: [node.held_up_by for node in nodes.view_from(0, 1).nodes] == [1, 1, 0],
            "a stopped node is held to be down by both others, who see each other",
        )
        stopped = nodes.node(2)
        assert (stopped.state, stopped.asked_others) == (NodeState.DOWN, 2)
        assert stopped.trouble == f"process {processes[2].pid} does not answer"
    finally:
        os.kill(processes[2].pid, signal.SIGCONT)
    nodes.wait_all_up()

    processes[1].kill()
    processes[1].wait(10)
    eventually(
        lambda: nodes.view_from(0, 2).nodes[2].held_up_by == 0, "a killed node is held to be down by both others"
    )
    assert nodes.node(1).trouble == "not running"
    nodes.start(1)
    nodes.wait_all_up()
