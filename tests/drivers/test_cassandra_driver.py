"""cassandra-driver, in its own environment: the statement tests, and the metadata it reads."""

import os
from pathlib import Path

from tests.drivers.conftest import DriverCluster, run_there

STATEMENTS = Path(__file__).parent / "statements"

SCRIPT = """
import sys
import cassandra
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ConsistencyLevel, ExecutionProfile

assert cassandra.__version__.startswith("3.30"), cassandra.__version__
addresses = sys.argv[1:]
quorum = {EXEC_PROFILE_DEFAULT: ExecutionProfile(consistency_level=ConsistencyLevel.QUORUM)}
with Cluster([addresses[0]], compression="lz4", execution_profiles=quorum) as cluster:
    session = cluster.connect()
    metadata = cluster.metadata
    assert sorted(host.address for host in metadata.all_hosts()) == sorted(addresses)
    session.execute("CREATE KEYSPACE IF NOT EXISTS ring WITH replication = "
                    "{'class': 'SimpleStrategy', 'replication_factor': 2}")
    session.execute("CREATE TABLE IF NOT EXISTS ring.t (k int PRIMARY KEY, v text)")
    assert metadata.keyspaces["ring"].tables["t"].partition_key[0].name == "k"
    insert = session.prepare("INSERT INTO ring.t (k, v) VALUES (?, ?)")
    ours = [(int(row.start_token), int(row.end_token), row.endpoint) for row in session.execute(
        "SELECT start_token, end_token, endpoint FROM system.token_ring WHERE keyspace_name = 'ring' "
        "AND table_name = 't'")]
    for k in range(50):
        bound = insert.bind((k, "x" * 1000))
        session.execute(bound)
        token = session.execute("SELECT token(k) FROM ring.t WHERE k = %s", (k,)).one()[0]
        assert token == metadata.token_map.token_class.from_key(bound.routing_key).value, k
        theirs = sorted(host.address for host in metadata.get_replicas("ring", bound.routing_key))
        held = sorted(endpoint for start, end, endpoint in ours
                      if (start < token <= end if start < end else token > start or token <= end))
        assert theirs == held, (k, theirs, held)
    connections = [connection for pool in session.get_pools() for connection in [pool._connection] if connection]
    assert connections and all(connection.compressor is not None for connection in connections)
    assert len(list(session.execute("SELECT * FROM ring.t"))) == 50
print("fine")
"""


def test_the_ring_of_the_driver_is_ours(shared_cluster: DriverCluster, cassandra_environment: Path) -> None:
    done = run_there(cassandra_environment, "-W", "ignore", "-c", SCRIPT, *shared_cluster.addresses)
    assert done.stdout == "fine\n", done.stderr


def test_statements(shared_cluster: DriverCluster, cassandra_environment: Path) -> None:
    """The same tests that run with scylla-driver."""
    done = run_there(
        cassandra_environment,
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(STATEMENTS / "pytest.ini"),
        "--rootdir", str(STATEMENTS), "--confcutdir", str(STATEMENTS), str(STATEMENTS),
        env={**os.environ, "EBLA_CONTACT": shared_cluster.addresses[1]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
