"""One cluster of three nodes with two shards each, shared by all driver tests."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ConsistencyLevel, ExecutionProfile
from cassandra.policies import HostStateListener
from tests.cluster.conftest import LocalNodes, compiled_once, eventually

ROOT = Path(__file__).resolve().parents[2]
CASSANDRA_ENVIRONMENT = Path(os.environ.get("EBLA_CASSANDRA_ENVIRONMENT", ROOT / ".venv-cassandra"))

THRICE = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"

__all__ = ["compiled_once"]


def takes_clients(address: str) -> bool:
    try:
        socket.create_connection((address, 9042), 1).close()
    except OSError:
        return False
    return True


class Heard(HostStateListener):  # type: ignore[misc]  # the driver has no types
    def __init__(self) -> None:
        self.output: list[tuple[str, str]] = []

    def on_up(self, host: Any) -> None:
        self.output.append(("up", host.address))

    def on_down(self, host: Any) -> None:
        self.output.append(("down", host.address))

    def on_add(self, host: Any) -> None:
        self.output.append(("add", host.address))

    def on_remove(self, host: Any) -> None:
        self.output.append(("remove", host.address))


class DriverCluster:
    """Nodes by address."""

    def __init__(self, data: Path, nodes: int = 3, shards: int = 2, settings: tuple[str, ...] = ()) -> None:
        self.made = LocalNodes(data, nodes, settings, shards)
        self.made.start_all()
        self._wait_for_clients()

    @property
    def data(self) -> Path:
        return self.made.data

    @property
    def addresses(self) -> list[str]:
        return [node.options.address for node in self.made.nodes]

    @property
    def address(self) -> str:
        return self.addresses[0]

    def kill(self, number: int) -> None:
        """The control process dies at once, and its children with it."""
        node = self.made.nodes[number]
        pid = node.running_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(node.is_gone, f"{node.name} is gone")

    def stop(self, number: int) -> None:
        """In order, so that everything is flushed."""
        node = self.made.nodes[number]
        pid = node.running_pid()
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        eventually(node.is_gone, f"{node.name} is gone")

    def start(self, number: int) -> None:
        self.made.start(number)
        self.made.wait_all_up()
        self._wait_for_clients()

    def _wait_for_clients(self) -> None:
        for address in self.addresses:
            eventually(partial(takes_clients, address), f"{address} takes clients")

    def close(self) -> None:
        self.made.end_all()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[DriverCluster]:
    made = DriverCluster(tmp_path_factory.mktemp("drivers") / "data")
    yield made
    made.close()


def profile(level: int = ConsistencyLevel.QUORUM, **others: Any) -> dict[Any, ExecutionProfile]:
    return {EXEC_PROFILE_DEFAULT: ExecutionProfile(consistency_level=level, **others)}


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """A `Cluster` of the driver, shut down with the test."""
    made: list[Any] = []

    def connected(addresses: list[str], **options: Any) -> Any:
        options.setdefault("execution_profiles", profile())
        made.append(Cluster(addresses, **options))
        return made[-1]

    yield connected
    for each in made:
        each.shutdown()


@pytest.fixture(scope="session")
def cassandra_environment() -> Path:
    assert (CASSANDRA_ENVIRONMENT / ".ready").exists(), (
        f"{CASSANDRA_ENVIRONMENT} is missing: `make drivers` makes it, with cassandra-driver and cqlsh"
    )
    return CASSANDRA_ENVIRONMENT


def run_there(environment: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command of the cassandra-driver environment, as from a shell."""
    return subprocess.run(
        [str(environment / "bin" / "python"), *arguments],
        capture_output=True, text=True, timeout=150, check=False, **options,
    )  # fmt: skip
