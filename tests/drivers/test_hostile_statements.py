"""Statements that took a shard down: real nodes refuse them, and keep every connection."""

from collections.abc import Callable
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.protocol import SyntaxException
from tests.drivers.conftest import DriverCluster
from tests.fuzz.cql_corpus import REFUSED, TABLE

TOO_LONG = {
    "an insert of 5 MB": f"INSERT INTO t (k, v) VALUES (1, '{'x' * 5_000_000}')",
    "a batch of 50,000 inserts": f"BEGIN UNLOGGED BATCH {'INSERT INTO t (k) VALUES (1);' * 50_000} APPLY BATCH",
    "a list of 2.6 million elements": f"INSERT INTO t (k, l) VALUES (1, [{'1,' * 2_600_000}1])",
    "500,000 keys": f"SELECT * FROM t WHERE k IN ({'1,' * 500_000}1)",
    "15 MB of semicolons": ";" * 15_000_000,
    "an open comment of 15 MB": "/*" + "x" * 15_000_000,
    "15 MB of digits": f"INSERT INTO t (k) VALUES ({'1' * 15_000_000})",
}


def test_no_statement_takes_a_shard_down(shared_cluster: DriverCluster, connect: Callable[..., Any]) -> None:
    session = connect(shared_cluster.addresses[:1]).connect()
    session.execute(
        "CREATE KEYSPACE hostile WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    )
    session.set_keyspace("hostile")
    session.execute(TABLE)
    before = _connections(session)
    for text in (*REFUSED.values(), *TOO_LONG.values()):
        with pytest.raises((InvalidRequest, SyntaxException)):
            session.execute(text, timeout=30)
    session.execute("INSERT INTO t (k, v) VALUES (1, 'a')")
    assert [row.v for row in session.execute("SELECT v FROM t")] == ["a"]
    assert _connections(session) == before
    assert not any(connection.is_closed or connection.is_defunct for connection in before)


def _connections(session: Any) -> list[Any]:
    return [one for pool in session._pools.values() for one in pool._connections.values()]
