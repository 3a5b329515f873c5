"""Opinions of real nodes about stopped, continued, killed and returned peers."""

import os
import signal
import subprocess
from collections.abc import Callable

from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.proxy import Proxy

from ebla.client.cluster_view import NodeStatus, NodeView


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
        assert (stopped.state, stopped.asked_others) == (NodeStatus.DOWN, 2)
        assert stopped.trouble == f"process {processes[2].pid} does not answer"
    finally:
        os.kill(processes[2].pid, signal.SIGCONT)
    nodes.wait_all_up()

    processes[1].kill()
    processes[1].wait(60)
    eventually(
        lambda: nodes.view_from(0, 2).nodes[2].held_up_by == 0, "a killed node is held to be down by both others"
    )
    assert nodes.node(1).trouble == "not running"
    nodes.start(1)
    nodes.wait_all_up()


def test_a_cut_peer_is_down_and_a_slow_one_is_up_and_far(make_nodes: Callable[..., LocalNodes]) -> None:
    """The second node reaches the first through a proxy, at an address of the proxy's own."""
    nodes = make_nodes(2)
    first, second = nodes.nodes
    prefix = first.options.address.rpartition(".")[0]
    text = second.options_path.read_text()
    second.options_path.write_text(text.replace(f'peers = ["{prefix}.1"', f'peers = ["{prefix}.9"'))

    def seen() -> NodeView:
        (peer,) = [node for node in nodes.view_from(1).nodes if node.address == f"{prefix}.9:7000"]
        return peer

    def is_up() -> bool:
        return seen().state is NodeStatus.UP

    with Proxy((f"{prefix}.9", 7000), (first.options.address, 7000)).running() as proxy:
        nodes.start(0)
        nodes.start(1)
        eventually(lambda: len(nodes.view_from(1).nodes) >= 2 and is_up(), "the second sees the first")
        assert seen().host == nodes.node(0).host

        proxy.cut = True
        eventually(lambda: not is_up(), "a cut peer is held to be down")
        proxy.cut = False
        eventually(is_up, "a peer within reach again is held to be up")

        proxy.delay_s = 0.1
        eventually(lambda: (seen().round_trip_us or 0) > 150_000, "the distance is measured")
        assert is_up()
