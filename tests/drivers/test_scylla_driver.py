"""scylla-driver: connects to every shard, and sends requests directly to a shard that has the row."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from tests.cluster.conftest import eventually
from tests.drivers.conftest import DriverCluster, profile

HINT = "tablets-routing-v1"
KEYS = 120
TABLETS = 16
ONE_COPY = (
    "CREATE KEYSPACE IF NOT EXISTS one_copy WITH replication = "
    f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}} AND tablets = {{'initial': {TABLETS}}}"
)


@pytest.fixture
def session(shared_cluster: DriverCluster, connect: Callable[..., Any]) -> Any:
    policy = TokenAwarePolicy(RoundRobinPolicy())
    cluster = connect(shared_cluster.addresses[:1], execution_profiles=profile(load_balancing_policy=policy))
    session = cluster.connect()
    eventually(lambda: sum(len(pool._connections) for pool in list(session._pools.values())) == 6, "one for each shard")
    session.execute(ONE_COPY)
    session.execute("CREATE TABLE IF NOT EXISTS one_copy.t (k int PRIMARY KEY, v text)")
    return session


def hints(session: Any, statement: Any, values: Callable[[int], tuple[Any, ...]]) -> int:
    """The number of responses with a routing payload: a shard that has the row sends none."""
    output = 0
    for k in range(KEYS):
        future = session.execute_async(statement, values(k))
        future.result()
        output += HINT in (future.custom_payload or {})
    return output


def test_requests_arrive_at_the_owning_shard(session: Any) -> None:
    insert = session.prepare("INSERT INTO one_copy.t (k, v) VALUES (?, ?)")
    select = session.prepare("SELECT v FROM one_copy.t WHERE k = ?")
    first = hints(session, insert, lambda k: (k, "v"))
    assert 1 <= first <= TABLETS, (
        "each tablet is reported once, and not at all if a request reached its shard by chance"
    )
    # A request for an unknown tablet goes to any shard, and gets a hint unless it is the right one.
    eventually(lambda: hints(session, insert, lambda k: (k, "v")) == 0, "every tablet is known")
    assert hints(session, insert, lambda k: (k, "w")) == 0
    assert hints(session, select, lambda k: (k,)) == 0


def test_tablets_of_the_driver_are_ours(session: Any) -> None:
    insert = session.prepare("INSERT INTO one_copy.t (k, v) VALUES (?, ?)")
    hints(session, insert, lambda k: (k, "v"))
    known = session.cluster.metadata._tablets._tablets[("one_copy", "t")]
    ours = {
        row.last_token: [tuple(replica) for replica in row.replicas]
        for row in session.execute("SELECT table_name, last_token, replicas FROM system.tablets")
        if row.table_name == "t" and len(row.replicas) == 1
    }
    assert known
    for tablet in known:
        assert [tuple(replica) for replica in tablet.replicas] == ours[tablet.last_token]


def test_every_shard_has_a_connection_of_the_driver(session: Any, shared_cluster: DriverCluster) -> None:
    shards = Counter((host.address, shard) for host, pool in session._pools.items() for shard in pool._connections)
    assert shards == {(address, shard): 1 for address in shared_cluster.addresses for shard in (0, 1)}


def test_the_token_of_the_driver_is_ours(session: Any) -> None:
    insert = session.prepare("INSERT INTO one_copy.t (k, v) VALUES (?, ?)")
    token_class = session.cluster.metadata.token_map.token_class
    for k in range(20):
        bound = insert.bind((k, "v"))
        session.execute(bound)
        (row,) = session.execute("SELECT token(k) FROM one_copy.t WHERE k = %s", (k,))
        assert row[0] == token_class.from_key(bound.routing_key).value


def test_compressed_requests_and_answers(shared_cluster: DriverCluster, connect: Callable[..., Any]) -> None:
    session = connect(shared_cluster.addresses[:1], compression="lz4").connect()
    connection = next(iter(next(iter(session._pools.values()))._connections.values()))
    assert connection.compressor is not None
    session.execute(ONE_COPY)
    session.execute("CREATE TABLE IF NOT EXISTS one_copy.big (k int PRIMARY KEY, v text)")
    session.execute("INSERT INTO one_copy.big (k, v) VALUES (1, %s)", ("long " * 100_000,))
    assert session.execute("SELECT v FROM one_copy.big WHERE k = 1").one().v == "long " * 100_000
