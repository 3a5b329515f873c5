"""What drivers observe when nodes die and return, and when the cluster changes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra import ConsistencyLevel, ReadTimeout, Unavailable, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.policies import (
    ConstantReconnectionPolicy,
    FallthroughRetryPolicy,
    WhiteListRoundRobinPolicy,
)
from cassandra.query import SimpleStatement
from tests.cluster.conftest import eventually
from tests.drivers.conftest import THRICE, DriverCluster, Heard, profile

ONCE = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[DriverCluster]:
    """A cluster whose nodes are killed, separate from that of the other tests."""
    made = DriverCluster(tmp_path_factory.mktemp("hurt") / "data", shards=1)
    yield made
    made.close()


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def only(address: str) -> Any:
    return profile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=30,
    )


def test_a_node_is_killed_and_comes_back(hurt: DriverCluster, connect: Callable[..., Any]) -> None:
    """Checks everything in one start of a node, since starts take seconds."""
    soon = ConstantReconnectionPolicy(0.2, None)
    heard = Heard()
    everywhere = connect(hurt.addresses, reconnection_policy=soon)
    session = everywhere.connect()
    everywhere.register_listener(heard)
    session.execute(f"CREATE KEYSPACE f WITH {THRICE}")
    session.execute("CREATE TABLE f.t (p int, c int, v text, PRIMARY KEY (p, c))")
    insert = session.prepare("INSERT INTO f.t (p, c, v) VALUES (?, ?, ?)")
    for p in range(3):
        for c in range(40):
            session.execute(insert, (p, c, f"{p}-{c}"))

    paged = connect([hurt.addresses[1]], execution_profiles=only(hurt.addresses[1]), reconnection_policy=soon).connect()
    first = paged.execute(SimpleStatement("SELECT p, c FROM f.t", fetch_size=50))
    before, state = [tuple(row) for row in first.current_rows], first.paging_state
    assert len(before) == 50

    third = hurt.addresses[2]
    hurt.kill(2)
    eventually(lambda: ("down", third) in heard.output, "the driver hears that the node is down")
    for c in range(40, 60):
        session.execute(insert, (0, c, "while one was away"))
    assert session.execute("SELECT count(*) FROM f.t WHERE p = 0").one()[0] == 60

    near = connect([hurt.address], execution_profiles=only(hurt.address)).connect()
    eventually(
        lambda: (
            [row.up for row in near.execute("SELECT peer, up FROM system.cluster_status") if row.peer == third]
            == [False]
        ),
        "the first node knows that the third is down",
    )
    for statement in ("SELECT * FROM f.t WHERE p = 0", "INSERT INTO f.t (p, c, v) VALUES (9, 9, 'x')"):
        with pytest.raises(Unavailable) as caught:
            near.execute(SimpleStatement(statement, consistency_level=ConsistencyLevel.ALL))
        error = caught.value
        assert (error.consistency, error.required_replicas, error.alive_replicas) == (ConsistencyLevel.ALL, 3, 2)

    hurt.start(2)
    eventually(lambda: ("up", third) in heard.output, "the driver hears that it is up again")
    everyone = SimpleStatement("SELECT * FROM f.t WHERE p = 0", consistency_level=ConsistencyLevel.ALL)
    eventually(lambda: answers(session, everyone) == 60, "all replicas answer")
    there = connect([third], execution_profiles=only(third)).connect()
    assert there.execute("SELECT count(*) FROM f.t WHERE p = 0").one()[0] == 60

    # The second page, from a node that was restarted after the first one.
    hurt.kill(1)
    hurt.start(1)
    eventually(lambda: answers(paged, SimpleStatement("SELECT * FROM f.t WHERE p = 1")) == 40, "it is connected again")
    rest = paged.execute(SimpleStatement("SELECT p, c FROM f.t", fetch_size=50), paging_state=state)
    after = [tuple(row) for row in rest]
    assert not set(before) & set(after)
    assert {(p, c) for p in range(3) for c in range(40)} <= {*before, *after}
    # It no longer knows the statement; the driver gets that error and prepares it again.
    prepared = paged.prepare("SELECT v FROM f.t WHERE p = ? AND c = ?")
    hurt.kill(1)
    hurt.start(1)
    eventually(lambda: answers(paged, prepared.bind((0, 1))) == 1, "the statement is prepared again")


def answers(session: Any, statement: Any) -> int:
    """The number of rows; -1 if no node could answer yet."""
    try:
        return len(list(session.execute(statement)))
    except (NoHostAvailable, Unavailable, ReadTimeout, WriteTimeout):
        return -1


def test_changes_of_the_schema_are_heard_of_everywhere(hurt: DriverCluster, connect: Callable[..., Any]) -> None:
    writer = connect(hurt.addresses[:1], execution_profiles=only(hurt.address)).connect()
    cluster = connect([hurt.addresses[2]], execution_profiles=only(hurt.addresses[2]))
    cluster.connect()
    heard: list[tuple[str, str]] = []
    together = threading.Event()

    def listen(event: Any) -> None:
        heard.append((event["change_type"], event.get("table") or event["keyspace"]))
        if event["change_type"] == "DROPPED" and event.get("table") is None:
            together.set()

    cluster.control_connection._connection.register_watcher("SCHEMA_CHANGE", listen)
    writer.execute(f"CREATE KEYSPACE watched WITH {ONCE}")
    writer.execute("CREATE TABLE watched.t (k int PRIMARY KEY)")
    known = cluster.metadata.keyspaces
    eventually(lambda: "watched" in known and "t" in known["watched"].tables, "the table is in its metadata")
    writer.execute("ALTER TABLE watched.t ADD v int")
    eventually(lambda: "v" in known["watched"].tables["t"].columns, "the column too")
    writer.execute("DROP TABLE watched.t")
    writer.execute("DROP KEYSPACE watched")
    assert together.wait(20)
    for change in (
        ("CREATED", "watched"),
        ("CREATED", "t"),
        ("UPDATED", "t"),
        ("DROPPED", "t"),
        ("DROPPED", "watched"),
    ):
        assert change in heard


def test_nodes_agree_on_the_schema(hurt: DriverCluster, connect: Callable[..., Any]) -> None:
    sessions = [connect([address], execution_profiles=only(address)).connect() for address in hurt.addresses]
    sessions[0].execute(f"CREATE KEYSPACE agreed WITH {ONCE}")
    versions = {session.execute("SELECT schema_version FROM system.local").one()[0] for session in sessions}
    peers = {row[0] for session in sessions for row in session.execute("SELECT schema_version FROM system.peers")}
    assert len(versions | peers) == 1
    for session in sessions[1:]:
        session.execute("CREATE TABLE IF NOT EXISTS agreed.t (k int PRIMARY KEY)")
    assert sessions[0].wait_for_schema_agreement()


def test_a_write_that_too_few_acknowledge_in_time(hurt: DriverCluster, connect: Callable[..., Any]) -> None:
    near = connect([hurt.address], execution_profiles=only(hurt.address)).connect()
    near.execute(f"CREATE KEYSPACE IF NOT EXISTS f WITH {THRICE}")
    near.execute("CREATE TABLE IF NOT EXISTS f.w (k int PRIMARY KEY)")
    # Connect to all replicas first: to a stopped one that was never reached, nothing is sent, and the error is another.
    warm_up = "INSERT INTO f.w (k) VALUES (0)"
    near.execute(SimpleStatement(warm_up, consistency_level=ConsistencyLevel.ALL))
    pids = [hurt.made.pid("shard-0", number) for number in (1, 2)]
    with stopped(pids):
        for statement, kind in (
            ("INSERT INTO f.w (k) VALUES (1) USING TIMEOUT 200ms", WriteTimeout),
            ("SELECT * FROM f.w WHERE k = 1 USING TIMEOUT 200ms", ReadTimeout),
            # The node's own limit holds, or this would wait until the shards run again.
            ("INSERT INTO f.w (k) VALUES (2) USING TIMEOUT 1000h", WriteTimeout),
        ):
            with pytest.raises(kind) as caught:
                near.execute(SimpleStatement(statement, consistency_level=ConsistencyLevel.QUORUM))
            error = caught.value
            assert (error.consistency, error.required_responses) == (ConsistencyLevel.QUORUM, 2)
            assert error.received_responses in (0, 1)


def test_a_damaged_replica_is_read_around_at_one(hurt: DriverCluster, connect: Callable[..., Any]) -> None:
    hurt.made.wait_all_up()  # a test before may have stopped a shard, which serves again a moment after it continues
    session = connect(hurt.addresses).connect()
    session.execute(f"CREATE KEYSPACE damaged WITH {THRICE}")
    session.execute("CREATE TABLE damaged.t (k int PRIMARY KEY, v text)")
    insert = session.prepare("INSERT INTO damaged.t (k, v) VALUES (?, ?)")
    insert.consistency_level = ConsistencyLevel.ALL
    for k in range(50):
        session.execute(insert, (k, str(k) * 100))
    hurt.stop(2)  # it flushes its rows to files
    for file in (hurt.made.nodes[2].options.folder).glob("shard-*/layers/**/*.sst"):
        content = bytearray(file.read_bytes())
        for place in range(0, len(content) // 2, 64):
            content[place] ^= 0xFF
        file.write_bytes(content)
    hurt.start(2)
    address = hurt.addresses[2]
    through = connect([address], execution_profiles=only(address)).connect()
    select = through.prepare("SELECT v FROM damaged.t WHERE k = ?")
    select.consistency_level = ConsistencyLevel.ONE
    assert [through.execute(select, (k,)).one().v for k in range(50)] == [str(k) * 100 for k in range(50)]
