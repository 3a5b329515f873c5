"""A node that is killed is failed over, restarts, stays excluded and is recovered, while a driver reads and writes."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import ConstantReconnectionPolicy, FallthroughRetryPolicy
from cassandra.query import SimpleStatement
from tests.cluster.commands import run
from tests.cluster.conftest import eventually
from tests.drivers.conftest import THRICE, DriverCluster, Heard, profile, takes_clients

WORKERS = 2
AFTER_MS = 5_000


@pytest.fixture
def cluster(tmp_path: Any, compiled_once: None) -> Iterator[DriverCluster]:
    made = DriverCluster(tmp_path / "data", shards=1)
    yield made
    made.close()


class Load:
    """Writes and reads at QUORUM, one request after another in each thread."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._insert = session.prepare("INSERT INTO f.t (p, v) VALUES (?, ?)")
        self._select = session.prepare("SELECT v FROM f.t WHERE p = ?")
        self._stop = threading.Event()
        self.written: list[dict[int, int]] = [{} for _ in range(WORKERS)]
        self.failed: list[tuple[float, Exception]] = []
        """When each failed request began."""
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        return sum(map(len, self.written))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, number: int) -> None:
        value = 0
        while not self._stop.is_set():
            value += 1
            key, began = number * 1_000_000 + value, time.monotonic()
            try:
                self._session.execute(self._insert, (key, value))
                self.written[number][key] = value
                assert self._session.execute(self._select, (key,)).one().v == value
            except Exception as error:
                self.failed.append((began, error))


def test_a_killed_node_is_failed_over_and_recovered(cluster: DriverCluster, connect: Callable[..., Any]) -> None:
    """INV-FAIL-3. No request fails except for those that were in flight at the killed node."""
    data, heard = cluster.data, Heard()
    for change in (("after_ms", str(AFTER_MS)), ("enabled", "true")):
        assert run(data, "settings", "set", f"auto_failover.{change[0]}", change[1])["code"] == 0
    made = connect(
        cluster.addresses,
        reconnection_policy=ConstantReconnectionPolicy(0.2, None),
        execution_profiles=profile(retry_policy=FallthroughRetryPolicy(), request_timeout=30),
    )
    session = made.connect()
    made.register_listener(heard)
    session.execute(f"CREATE KEYSPACE f WITH {THRICE}")
    session.execute("CREATE TABLE f.t (p int PRIMARY KEY, v int)")
    leader = run(data, "group0", "members", "--json")["json"]["leader"]
    number = next(i for i in (2, 1) if str(cluster.made.node(i).host) != leader)
    name, address = cluster.made.nodes[number].name, cluster.addresses[number]
    load = Load(session)
    try:
        eventually(lambda: load.done > 100, "the load runs")
        killed = time.monotonic()
        cluster.kill(number)
        gone = time.monotonic()
        eventually(lambda: [one["address"] for one in excluded(cluster)] == [address], "it is excluded")
        assert excluded(cluster)[0]["is_automatic"]
        cluster.made.start(number)
        others = [i for i in range(3) if i != number]
        eventually(lambda: cluster.made.view_from(*others, number).nodes[2].group0 is not None, "it is back")
        eventually(
            lambda: any("excluded" in each for each in warnings(cluster, number)), "it knows that it is excluded"
        )
        assert not takes_clients(address)
        eventually(lambda: run(data, "recover", name, "--json")["code"] == 0, "it is recovered")
        eventually(lambda: takes_clients(address), "it takes clients again")
        eventually(lambda: ("up", address) in heard.output, "the driver hears that it is up")
        cluster.made.wait_all_up()
        before = load.done
        eventually(lambda: load.done > before + 100, "the load goes on")
    finally:
        load.stop()
    late = [(began - gone, error) for began, error in load.failed if began > gone]
    assert not late, f"requests that began after the node was gone failed: {late}"
    assert all(isinstance(error, NoHostAvailable | ConnectionException) for _, error in load.failed), load.failed
    assert len(load.failed) <= WORKERS, f"more than were in flight: {load.failed}"
    assert all(began <= gone for began, _ in load.failed)
    assert killed <= gone
    found: dict[int, int] = {}
    eventually(lambda: read_everything(session, found), "every router has connected to the recovered node again")
    assert found == {key: value for part in load.written for key, value in part.items()} | found
    assert excluded(cluster) == []


def read_everything(session: Any, rows: dict[int, int]) -> bool:
    """At ALL. A router tries a replica that refused its connection again after a back-off of up to a second."""
    try:
        rows.update((row.p, row.v) for row in session.execute(everything()))
    except Unavailable:
        return False
    return True


def excluded(cluster: DriverCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(cluster.data, "failover", "--status", "--json")["json"]["excluded"]
    return found


def warnings(cluster: DriverCluster, number: int) -> tuple[str, ...]:
    return cluster.made.view_from(number).nodes[0].warnings


def everything() -> SimpleStatement:
    return SimpleStatement("SELECT p, v FROM f.t", consistency_level=ConsistencyLevel.ALL, fetch_size=1_000)
