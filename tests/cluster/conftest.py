"""Real nodes for tests: on their own addresses, with bounded waits, and stopped at the end."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.cli.cluster.node_calls import probe_nodes
from ebla.client.cluster_view import ClusterView, NodeView, build_cluster_view

QUICK = (
    "limits.peer_heartbeat_ms=100",
    "limits.peer_silence_ms=1000",
    "limits.child_heartbeat_ms=100",
    "limits.feed_silence_ms=1500",
    "limits.child_silence_ms=3000",
    "limits.child_restart_pause_ms=50",
    "limits.free_disk_bytes_min=0",
    "pipeline.enabled=false",
)
"""Limits short enough for a test and long enough for a busy machine."""

PR_SET_PDEATHSIG = 1
BOUND_TO_US = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGTERM}); "
    "os.execv(sys.executable, [sys.executable, '-m', 'ebla.node', *sys.argv[1:]])"
)
"""Starts a node that gets SIGTERM when its test process dies: xdist kills its workers when a run is interrupted."""


def eventually(condition: Callable[[], object], what: str, seconds: float = 60.0) -> float:
    """Waits until the condition holds, and fails with `what` after the bound, which is long: on a busy machine a start
    takes ten times as long. Returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.03)
    return time.monotonic() - began


def is_alive(pid: int) -> bool:
    """A zombie counts as dead: its parent has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def random_base_address() -> str:
    """The first address of a random /24 of the loopback network, so that tests in parallel do not collide."""
    return f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"


class LocalNodes:
    """Nodes that a test creates, starts, kills and stops."""

    def __init__(self, data: Path, nodes: int, settings: Sequence[str] = (), shards: int = 1) -> None:
        self.data = data
        shape = NewClusterSpec(
            nodes=nodes,
            shards=shards,
            base_address=random_base_address(),
            cluster_name="test",
            overrides=(*QUICK, *settings),
        )
        self.nodes: list[LocalNode] = find_or_create_nodes(data, shape)
        assign_identities(self.nodes)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, number: int = 0) -> subprocess.Popen[bytes]:
        """Starts one node and returns at once. Its output goes to a file beside its log."""
        with (self.nodes[number].folder.run / "test-output").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    BOUND_TO_US,
                    "control",
                    "--options",
                    str(self.nodes[number].options_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(process)
        return process

    def start_all(self) -> None:
        for number in range(len(self.nodes)):
            self.start(number)
        self.wait_all_up()

    def wait_all_up(self) -> None:
        eventually(lambda: self.view().all_up, "every node is up, sees the others and serves", 90.0)

    def view(self) -> ClusterView:
        return asyncio.run(_view(self.nodes))

    def view_from(self, *numbers: int) -> ClusterView:
        """The view of these nodes only; does not wait for the others."""
        return asyncio.run(_view([self.nodes[number] for number in numbers]))

    def node(self, number: int = 0) -> NodeView:
        return self.view().nodes[number]

    def pid(self, process: str, number: int = 0) -> int:
        found = {each.name: each.pid for each in self.node(number).processes}
        pid = found[process]
        assert pid is not None
        return pid

    def output(self, number: int = 0) -> str:
        return (self.nodes[number].folder.run / "test-output").read_text()

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
        for process in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        for node in self.nodes:
            eventually(node.is_gone, f"{node.name} left a process behind")


async def _view(nodes: Sequence[LocalNode]) -> ClusterView:
    return build_cluster_view(await probe_nodes(nodes))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that a test starts cache their bytecode, whatever the environment says: compiling takes a third of a
    start, and hundreds of processes start here. All processes of a test run share the cache."""
    own = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "compiled"))
        yield


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a short name: nodes put sockets below it, and socket paths are limited to about 100 bytes."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[..., LocalNodes]]:
    made: list[LocalNodes] = []

    def make(nodes: int = 1, settings: Sequence[str] = (), shards: int = 1, data: Path | None = None) -> LocalNodes:
        """`data`: a folder that may already hold the nodes."""
        made.append(LocalNodes(data or tmp_path / f"c{len(made)}", nodes, settings, shards))
        return made[-1]

    yield make
    for each in made:
        each.end_all()
