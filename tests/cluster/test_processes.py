"""Processes of a node: never orphaned, restarted at a bounded rate, killed when silent, stopped in time."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
from tests.cluster.conftest import LocalNodes, eventually, is_alive

from ebla.model.errors import Unavailable
from ebla.observe.event_reporter import discard_event
from ebla.runtime import file_lock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Introduction, Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import IDENTITY, IdentityAnswer, IdentityRequest

Make = Callable[..., LocalNodes]


def started(nodes: LocalNodes) -> subprocess.Popen[bytes]:
    process = nodes.start()
    nodes.wait_all_up()
    return process


async def _ask_shard(nodes: LocalNodes) -> IdentityAnswer:
    """Connects as a peer would: over TLS, with the node's certificate."""
    node = nodes.nodes[0]
    identity = node.folder.read_identity()
    assert identity is not None
    introduction = Introduction(host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name)
    async with TcpTransport(NodeTls(TlsFolder(node.folder.tls)), discard_event) as transport:
        context = PeersContext(transport=transport, rng=SystemRng(), introduction=introduction, report=discard_event)
        caller, _ = await connect(context, node.options.shard_address(0), ConnectionTarget(Lane.CONTROL, identity.host))
        try:
            return await caller.call(IDENTITY, IdentityRequest(), 2_000)
        finally:
            caller.close("done")


def shard_serves(nodes: LocalNodes) -> bool:
    try:
        return asyncio.run(_ask_shard(nodes)).process == "shard-0"
    except Unavailable:
        return False


def test_killed_children_are_restarted_until_the_fifth_exit_stops_the_node_with_the_reason(make_nodes: Make) -> None:
    nodes = make_nodes()
    control = started(nodes)
    first = nodes.pid("shard-0")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: nodes.node().processes[1].restarts == 1, "the exit is seen")
    nodes.wait_all_up()
    child = nodes.node().processes[1]
    assert child.pid != first
    assert child.last_exit == "was ended by SIGKILL"
    for exits in range(2, 6):
        eventually(lambda: nodes.node().processes[1].pid is not None, "the child is started again")
        os.kill(nodes.pid("shard-0"), signal.SIGKILL)
        if exits < 5:
            eventually(partial(_exits_are, nodes, exits), f"exit {exits} is seen")
    assert control.wait(60) == 3
    reason = "shard-0 ended 5 times within 60000 ms; the last time it was ended by SIGKILL"
    assert f"ebla: the node stopped: {reason}" in nodes.output()
    assert nodes.node().trouble == f"stopped: {reason}"


def _exits_are(nodes: LocalNodes, count: int) -> bool:
    return nodes.node().processes[1].restarts == count


BUSY_S = 20.0
"""How much later than promised a busy machine may notice the end of a process. A child that is not killed lives on."""


@pytest.mark.parametrize(("hung", "stop_ms"), [(False, 5_000), (True, 3_000)])
def test_sigterm_ends_the_node_in_time(make_nodes: Make, hung: bool, stop_ms: int) -> None:
    """Also with a child that ignores signals: it is killed before the time is over."""
    nodes = make_nodes(settings=["limits.child_silence_ms=60000", f"limits.stop_ms={stop_ms}"])
    control = started(nodes)
    shard = nodes.pid("shard-0")
    if hung:
        os.kill(shard, signal.SIGSTOP)
    began = time.monotonic()
    control.terminate()
    assert control.wait(60) == 0
    assert time.monotonic() - began < stop_ms / 1000 + BUSY_S
    assert not is_alive(shard)
    assert nodes.nodes[0].is_gone()
    assert nodes.node().trouble == "stopped: asked to stop"


def test_a_start_waits_for_a_predecessors_child_and_names_it_when_it_stays(make_nodes: Make) -> None:
    nodes = make_nodes(settings=["limits.lock_wait_ms=700"])
    folder = nodes.nodes[0].folder
    lock = file_lock.acquire(folder.shard_lock(0))
    control = nodes.start()
    eventually(lambda: nodes.nodes[0].running_pid() == control.pid, "it waits with its own lock held")
    control.send_signal(signal.SIGHUP)  # means that certificates were renewed: no reason to end
    assert control.wait(60) == 1
    message = f"a process of an earlier run of this node is still alive after 700 ms: process {os.getpid()} holds"
    assert message in nodes.output()
    assert f"kill -9 {os.getpid()}" in nodes.output()
    assert not folder.control_socket.exists(), "nothing may be acknowledged before the locks are free"
    lock.release()


def test_a_shard_stops_serving_without_its_control_and_goes_on_with_it(make_nodes: Make) -> None:
    nodes = make_nodes()
    control = started(nodes)
    shard = nodes.pid("shard-0")
    assert shard_serves(nodes)
    os.kill(control.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    try:
        eventually(lambda: not shard_serves(nodes), "the shard stops serving")
        assert is_alive(shard)
        # Longer than the silence after which control kills: its own pause must not count as the child's.
        silence_s = nodes.nodes[0].options.limits.child_silence_ms / 1000
        eventually(lambda: time.monotonic() - stopped_at > silence_s, "a pause longer than a child's silence")
    finally:
        os.kill(control.pid, signal.SIGCONT)
    eventually(lambda: shard_serves(nodes), "the shard serves again")
    nodes.wait_all_up()
    assert nodes.pid("shard-0") == shard
    assert nodes.node().processes[1].restarts == 0


def test_the_limit_on_open_files_is_raised_and_a_second_node_in_the_folder_is_refused(make_nodes: Make) -> None:
    nodes = make_nodes()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'ebla.node', 'control', '--options', sys.argv[1]])\n"
    )
    path = str(nodes.nodes[0].options_path)
    limited = subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.DEVNULL)
    try:
        nodes.wait_all_up()
        for pid in (nodes.pid("control"), nodes.pid("shard-0"), nodes.pid("bulk")):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert nodes.start().wait(60) == 1
        assert f"a node already runs in {nodes.nodes[0].folder.path} (process {limited.pid})" in nodes.output()
        assert nodes.view().all_up
    finally:
        limited.terminate()
        limited.wait(60)
