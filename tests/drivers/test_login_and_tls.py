"""A node that requires a login, and TLS."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import AuthenticationFailed
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import NoHostAvailable
from tests.drivers.conftest import DriverCluster, run_there

from ebla.cql.authentication import hash_password
from ebla.runtime.system_rng import SystemRng

PASSWORD = "an unknown password"
ONE = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[DriverCluster]:
    settings = (
        "client_tls=on",
        "authenticator=password",
        "superuser=admin",
        f"superuser_password_hash={hash_password(PASSWORD, SystemRng())}",
    )
    made = DriverCluster(tmp_path_factory.mktemp("guarded") / "data", 1, 1, settings)
    yield made
    made.close()


def authority_of(cluster: DriverCluster) -> Path:
    return cluster.made.nodes[0].folder.tls / "authority.pem"


def context_for(cluster: DriverCluster) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority_of(cluster)))
    context.check_hostname = False
    return context


def test_the_password_opens_the_node(guarded: DriverCluster, connect: Callable[..., Any]) -> None:
    session = connect(
        [guarded.address],
        ssl_context=context_for(guarded),
        auth_provider=PlainTextAuthProvider("admin", PASSWORD),
    ).connect()
    session.execute(f"CREATE KEYSPACE k WITH replication = {ONE}")
    session.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)")
    session.execute("INSERT INTO k.t (k, v) VALUES (1, 'secret')")
    assert session.execute("SELECT v FROM k.t").one().v == "secret"
    (row, *_) = session.execute("SELECT username, ssl_enabled FROM system.clients")
    assert (row.username, row.ssl_enabled) == ("admin", True)


@pytest.mark.parametrize(("user", "password"), [("admin", "wrong"), ("nobody", PASSWORD), ("", ""), (None, None)])
def test_others_stay_outside(
    guarded: DriverCluster, connect: Callable[..., Any], user: str | None, password: str | None
) -> None:
    provider = None if user is None else PlainTextAuthProvider(user, password)
    with pytest.raises((NoHostAvailable, AuthenticationFailed)) as caught:
        connect([guarded.address], ssl_context=context_for(guarded), auth_provider=provider).connect()
    assert "uthenticat" in str(caught.value) or "credentials" in str(caught.value)


def test_without_tls_nobody_is_heard(guarded: DriverCluster, connect: Callable[..., Any]) -> None:
    provider = PlainTextAuthProvider("admin", PASSWORD)
    with pytest.raises(NoHostAvailable):
        connect([guarded.address], auth_provider=provider, connect_timeout=2).connect()


def test_cqlsh_with_tls_and_a_password(guarded: DriverCluster, cassandra_environment: Path) -> None:
    done = run_there(
        cassandra_environment, "-m", "cqlshlib", guarded.address, "--ssl", "-u", "admin", "-p", PASSWORD,
        "-e", "SELECT cluster_name FROM system.local",
        env={"SSL_CERTFILE": str(authority_of(guarded)), "HOME": str(guarded.data), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert "test" in done.stdout, done.stderr
