"""Statements as applications send them, through whichever driver the environment has: both install `cassandra`.

`EBLA_CONTACT` names a node that runs already; without it the tests around these start a cluster.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

KEYSPACE = "statements"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def contact(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("EBLA_CONTACT")
    if given is None:
        given = request.getfixturevalue("shared_cluster").address
    assert isinstance(given, str)
    return given


@pytest.fixture(scope="session")
def cluster(contact: str) -> Iterator[Any]:
    # A quorum: what one replica has acknowledged, another that is asked next need not have yet.
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.QUORUM)
    with Cluster([contact], execution_profiles={EXEC_PROFILE_DEFAULT: profile}) as made:
        yield made


@pytest.fixture(scope="session")
def session(cluster: Any) -> Any:
    made = cluster.connect()
    made.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
    made.execute(
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}}"
        " AND tablets = {'initial': 4}"
    )
    made.set_keyspace(KEYSPACE)
    return made


@pytest.fixture(scope="session")
def table(session: Any) -> Callable[[str], str]:
    """A table with these columns. The same one is reused, since creating a table is slow."""
    made: dict[str, str] = {}

    def shaped(shape: str) -> str:
        if shape not in made:
            made[shape] = f"t{len(made)}"
            session.execute(f"CREATE TABLE {made[shape]} ({shape})")
        return made[shape]

    return shaped


@pytest.fixture
def key() -> int:
    """The key of a partition that no other test uses."""
    return 1000 + next(_numbers)


@pytest.fixture
def refused(session: Any) -> Callable[..., str]:
    """The message of the error that a statement must raise."""

    def text(statement: str, values: Any = None) -> str:
        with pytest.raises(InvalidRequest) as caught:
            session.execute(statement, values)
        return str(caught.value)

    return text


@pytest.fixture
def rows(session: Any) -> Callable[..., list[tuple[Any, ...]]]:
    def found(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in session.execute(statement, values)]

    return found
