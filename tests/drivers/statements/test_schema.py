"""Creates, alters, describes and drops keyspaces and tables; reads system tables."""

from collections.abc import Callable
from typing import Any

import pytest
from cassandra import AlreadyExists, InvalidRequest, Unauthorized
from cassandra.protocol import ConfigurationException, SyntaxException

Rows = Callable[..., list[tuple[Any, ...]]]
Refused = Callable[..., str]
Table = Callable[[str], str]

NETWORK = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"


@pytest.fixture
def keyspace(session: Any) -> Any:
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS made WITH replication = {NETWORK}")
    return "made"


def test_keyspaces(session: Any, rows: Rows) -> None:
    for name in ("plain", '"Quoted"', "simple"):
        session.execute(f"DROP KEYSPACE IF EXISTS {name}")
    session.execute(f"CREATE KEYSPACE plain WITH replication = {NETWORK}")
    with pytest.raises(AlreadyExists) as caught:
        session.execute(f"CREATE KEYSPACE plain WITH replication = {NETWORK}")
    assert (caught.value.keyspace, caught.value.table) == ("plain", "")
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS plain WITH replication = {NETWORK}")
    shown = "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
    ((replication, durable),) = rows(shown, ("plain",))
    assert replication["class"] == "org.apache.cassandra.locator.NetworkTopologyStrategy"
    assert durable is True
    session.execute("ALTER KEYSPACE plain WITH durable_writes = false")
    assert rows(shown, ("plain",)) == [(replication, False)]
    with pytest.raises(InvalidRequest, match="would have to move"):
        session.execute(
            "ALTER KEYSPACE plain WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 2}"
        )
    session.execute(
        f"CREATE KEYSPACE \"Quoted\" WITH replication = {NETWORK} AND tablets = {{'enabled': true, 'initial': 2}}"
    )
    session.execute('CREATE TABLE "Quoted"."Tab" ("Key" int PRIMARY KEY, "select" text, "with""quote" int)')
    session.execute('INSERT INTO "Quoted"."Tab" ("Key", "select", "with""quote") VALUES (1, \'x\', 2)')
    ((quoted, selected),) = rows('SELECT "with""quote", "select" FROM "Quoted"."Tab" WHERE "Key" = 1')
    assert (quoted, selected) == (2, "x")
    session.execute("CREATE KEYSPACE simple WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for name in ("plain", '"Quoted"', "simple"):
        session.execute(f"DROP KEYSPACE {name}")
    with pytest.raises(InvalidRequest) as missing:
        session.execute("DROP KEYSPACE plain")
    assert "plain" in str(missing.value)
    session.execute("DROP KEYSPACE IF EXISTS plain")


def test_keyspaces_that_cannot_be(session: Any) -> None:
    for properties in (
        "replication = {'class': 'NoSuchStrategy', 'replication_factor': 1}",
        "replication = {'class': 'SimpleStrategy'}",
        "replication = {'replication_factor': 1}",
        "replication = {'class': 'NetworkTopologyStrategy', 'nowhere': 1}",
        "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': -1}",
        "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 'x'}",
        f"replication = {NETWORK} AND nonsense = 1",
        "durable_writes = true",
    ):
        with pytest.raises((InvalidRequest, ConfigurationException)):
            session.execute(f"CREATE KEYSPACE broken WITH {properties}")
    with pytest.raises(SyntaxException):
        session.execute("CREATE KEYSPACE broken")
    for name in ("a" * 49, '"has space"', '"semi;colon"', '""'):
        with pytest.raises((InvalidRequest, SyntaxException)):
            session.execute(f"CREATE KEYSPACE {name} WITH replication = {NETWORK}")
    with pytest.raises(InvalidRequest):
        session.execute("ALTER KEYSPACE no_such WITH durable_writes = true")
    with pytest.raises(InvalidRequest):
        session.execute("USE no_such")
    for name in ("system", "system_schema"):
        with pytest.raises((InvalidRequest, Unauthorized), match="system"):
            session.execute(f"DROP KEYSPACE {name}")


OPTIONS = (
    ("comment", "'it''s said'", "it's said"),
    ("default_time_to_live", "100", 100),
    ("gc_grace_seconds", "7", 7),
    ("bloom_filter_fp_chance", "0.05", 0.05),
    ("crc_check_chance", "0.5", 0.5),
    ("memtable_flush_period_in_ms", "3", 3),
    ("min_index_interval", "64", 64),
    ("max_index_interval", "1024", 1024),
    ("speculative_retry", "'99p'", "99P"),
    ("caching", "{'keys': 'NONE', 'rows_per_partition': '3'}", {"keys": "NONE", "rows_per_partition": "3"}),
    ("compaction", "{'class': 'LeveledCompactionStrategy'}", None),
    ("compression", "{'sstable_compression': 'LZ4Compressor'}", None),
)


def test_tables_and_their_options(session: Any, keyspace: str, rows: Rows) -> None:
    session.execute(f"DROP TABLE IF EXISTS {keyspace}.opted")
    options = " AND ".join(f"{name} = {literal}" for name, literal, _ in OPTIONS)
    session.execute(
        f"CREATE TABLE {keyspace}.opted (p int, q text, a int, b timeuuid, s int static,"
        " v map<text, frozen<list<int>>>, PRIMARY KEY ((p, q), a, b))"
        f" WITH CLUSTERING ORDER BY (a DESC, b ASC) AND {options}"
        " AND tombstone_gc = {'mode': 'repair'}"
    )
    for name, _, value in OPTIONS:
        ((found,),) = rows(
            f"SELECT {name} FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 'opted'", (keyspace,)
        )
        if value is not None:
            assert (dict(found) if isinstance(value, dict) else found) == value, name
    columns = rows(
        "SELECT column_name, clustering_order, kind, position, type FROM system_schema.columns "
        "WHERE keyspace_name = %s AND table_name = 'opted'",
        (keyspace,),
    )
    assert sorted(columns) == [
        ("a", "desc", "clustering", 0, "int"),
        ("b", "asc", "clustering", 1, "timeuuid"),
        ("p", "none", "partition_key", 0, "int"),
        ("q", "none", "partition_key", 1, "text"),
        ("s", "none", "static", -1, "int"),
        ("v", "none", "regular", -1, "map<text, frozen<list<int>>>"),
    ]
    with pytest.raises(AlreadyExists) as caught:
        session.execute(f"CREATE TABLE {keyspace}.opted (k int PRIMARY KEY)")
    assert (caught.value.keyspace, caught.value.table) == (keyspace, "opted")
    session.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.opted (k int PRIMARY KEY)")
    session.execute(f"ALTER TABLE {keyspace}.opted WITH comment = 'other' AND gc_grace_seconds = 5")
    assert rows(
        "SELECT comment, gc_grace_seconds, default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s "
        "AND table_name = 'opted'",
        (keyspace,),
    ) == [("other", 5, 100)]
    session.execute(f"DROP TABLE {keyspace}.opted")
    with pytest.raises(InvalidRequest, match="opted"):
        session.execute(f"DROP TABLE {keyspace}.opted")


WRONG_TABLES = (
    ("k int", "PRIMARY KEY"),
    ("k int PRIMARY KEY, k int", "k"),
    ("k int, PRIMARY KEY (k, none)", "none"),
    ("k int, PRIMARY KEY (k, k)", "k"),
    ("k list<int> PRIMARY KEY", "k"),
    ("k int PRIMARY KEY, c int, PRIMARY KEY (c)", "PRIMARY KEY"),
    ("k int PRIMARY KEY, s int static", "tatic"),
    ("k int, c int static, PRIMARY KEY (k, c)", "tatic"),
    ("k duration PRIMARY KEY", "uration"),
    ("k int PRIMARY KEY, v nonsense", "nonsense"),
    ("k int PRIMARY KEY, v list<list<int>>", "frozen"),
    ("k int PRIMARY KEY, v map<int, set<int>>", "frozen"),
    ("k int PRIMARY KEY, v counter", "counter"),
    ("k int PRIMARY KEY, v set<duration>", "uration"),
    ("k int PRIMARY KEY, v map<duration, int>", "uration"),
)


@pytest.mark.parametrize(("shape", "output"), WRONG_TABLES)
def test_tables_that_cannot_be(session: Any, keyspace: str, shape: str, output: str) -> None:
    with pytest.raises((InvalidRequest, SyntaxException)) as caught:
        session.execute(f"CREATE TABLE {keyspace}.wrong ({shape})")
    assert output in str(caught.value)


def test_options_that_cannot_be(session: Any, keyspace: str) -> None:
    for option in (
        "nonsense = 1",
        "default_time_to_live = -1",
        "default_time_to_live = 'x'",
        "gc_grace_seconds = -1",
        "comment = {'a': 'b'}",
        "tombstone_gc = {'mode': 'never'}",
        "CLUSTERING ORDER BY (v DESC)",
        "CLUSTERING ORDER BY (c DESC, c ASC)",
    ):
        with pytest.raises((InvalidRequest, ConfigurationException, SyntaxException)):
            session.execute(f"CREATE TABLE {keyspace}.wrong (k int, c int, v int, PRIMARY KEY (k, c)) WITH {option}")
    name = "n" * 223
    with pytest.raises((InvalidRequest, ConfigurationException)):
        session.execute(f"CREATE TABLE {keyspace}.{name} (k int PRIMARY KEY)")
    with pytest.raises((InvalidRequest, ConfigurationException), match="no_such"):
        session.execute("CREATE TABLE no_such.t (k int PRIMARY KEY)")


def test_columns_come_and_go(session: Any, keyspace: str, rows: Rows, refused: Refused) -> None:
    name = f"{keyspace}.altered"
    session.execute(f"DROP TABLE IF EXISTS {name}")
    session.execute(f"CREATE TABLE {name} (k int, c int, v int, PRIMARY KEY (k, c))")
    session.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 1, 1)")
    star = session.prepare(f"SELECT * FROM {name} WHERE k = ?")
    insert = session.prepare(f"INSERT INTO {name} (k, c, v) VALUES (?, ?, ?)")
    session.execute(f"ALTER TABLE {name} ADD w text")
    session.execute(f"ALTER TABLE {name} ADD (x int, y list<int>)")
    session.execute(f"ALTER TABLE {name} ADD st int static")
    session.execute(insert, (1, 2, 2))
    session.execute(f"INSERT INTO {name} (k, c, w, x, y, st) VALUES (1, 1, 'w', 2, [3], 4)")
    assert rows(f"SELECT c, st, v, w, x, y FROM {name} WHERE k = 1") == [
        (1, 4, 1, "w", 2, [3]),
        (2, 4, 2, None, None, None),
    ]
    assert len(list(session.execute(star, (1,)))) == 2
    session.execute(f"ALTER TABLE {name} DROP (x, y)")
    session.execute(f"ALTER TABLE {name} DROP w")
    assert "Undefined column name w" in refused(f"SELECT w FROM {name}")
    session.execute(f"ALTER TABLE {name} ADD w text")
    assert rows(f"SELECT w FROM {name} WHERE k = 1 AND c = 1") == [(None,)], "what was there went with the column"
    session.execute(f"ALTER TABLE {name} RENAME c TO renamed")
    assert rows(f"SELECT renamed FROM {name} WHERE k = 1 AND renamed = 2") == [(2,)]
    for change, output in (
        ("ADD v int", "v"),
        ("ADD k int", "k"),
        ("DROP k", "k"),
        ("DROP none", "none"),
        ("RENAME v TO z", "v"),
        ("RENAME k TO v", "v"),
        ("ADD n list<list<int>>", "frozen"),
        ("ADD n counter", "counter"),
    ):
        assert output in refused(f"ALTER TABLE {name} {change}"), change
    session.execute(f"DROP TABLE {name}")


def test_what_is_not_there_yet_says_so(session: Any, table: Table) -> None:
    name = table("k int PRIMARY KEY, v int")
    for statement in (
        f"INSERT INTO {name} (k, v) VALUES (1, 1) IF NOT EXISTS",
        f"UPDATE {name} SET v = 1 WHERE k = 1 IF v = 2",
        f"UPDATE {name} SET v = 1 WHERE k = 1 IF EXISTS",
        f"DELETE FROM {name} WHERE k = 1 IF EXISTS",
        f"SELECT JSON * FROM {name}",
        f"INSERT INTO {name} JSON '{{}}'",
        f"SELECT k FROM {name} GROUP BY k",
        f"SELECT CAST(k AS text) FROM {name}",
        f"CREATE INDEX ON {name} (v)",
        f"CREATE MATERIALIZED VIEW mv AS SELECT * FROM {name} WHERE k IS NOT NULL PRIMARY KEY (k)",
        "CREATE TYPE pair (a int, b int)",
        "CREATE FUNCTION f (a int) CALLED ON NULL INPUT RETURNS int LANGUAGE lua AS 'return a'",
        "CREATE ROLE somebody",
        "LIST ROLES",
        "GRANT SELECT ON ALL KEYSPACES TO somebody",
    ):
        with pytest.raises(InvalidRequest, match=r"not (yet )?supported"):
            session.execute(statement)


def test_syntax_errors_have_their_place(session: Any, table: Table) -> None:
    name = table("k int PRIMARY KEY, v int")
    for statement, place in (
        ("SELEC 1", "line 1:0"),
        (f"SELECT FROM {name}", "line 1:7"),
        (f"SELECT * FROM {name}\nWHERE k == 1", "line 2:9"),
        (f"INSERT INTO {name} (k) VALUES (1", "line 1:"),
        ("SELECT * FROM t WHERE k = 'open", "line 1:"),
        ("", "line "),
    ):
        with pytest.raises(SyntaxException, match=place):
            session.execute(statement)


def test_names_that_are_not_there(session: Any, refused: Refused) -> None:
    assert "unconfigured table nothing" in refused("SELECT * FROM nothing")
    assert "no_such" in refused("SELECT * FROM no_such.t")
    assert "Unknown function" in refused("SELECT nofunction(key) FROM system.local")


def test_every_system_table_can_be_read(session: Any, rows: Rows) -> None:
    tables = rows("SELECT keyspace_name, table_name FROM system_schema.tables") + rows(
        "SELECT keyspace_name, table_name FROM system_virtual_schema.tables"
    )
    shown = [one for one in tables if one[0].startswith("system")]
    assert ("system", "local") in shown
    assert ("system", "topology") in shown
    for keyspace, name in shown:
        found = session.execute(f"SELECT * FROM {keyspace}.{name}")
        counted = session.execute(f"SELECT count(*) FROM {keyspace}.{name}").one()
        assert len(list(found)) <= counted[0] + 5, (keyspace, name)
    ((key, partitioner, release),) = rows("SELECT key, partitioner, release_version FROM system.local")
    assert (key, partitioner) == ("local", "org.apache.cassandra.dht.Murmur3Partitioner")
    assert release.startswith("5.")
    with pytest.raises((InvalidRequest, Unauthorized), match="system"):
        session.execute("INSERT INTO system.local (key) VALUES ('x')")


def test_describe_gives_statements_that_make_the_same_again(session: Any, keyspace: str) -> None:
    session.execute(f"DROP TABLE IF EXISTS {keyspace}.shown")
    session.execute(
        f'CREATE TABLE {keyspace}.shown (p int, "Q" text, a int, b timeuuid, s int static, '
        'v map<text, frozen<list<int>>>, t tuple<int, text>, PRIMARY KEY ((p, "Q"), a, b)) '
        "WITH CLUSTERING ORDER BY (a DESC, b ASC) AND comment = 'it''s' AND default_time_to_live = 9 "
        "AND compaction = {'class': 'LeveledCompactionStrategy'}"
    )
    texts = [row.create_statement for row in session.execute(f"DESCRIBE TABLE {keyspace}.shown")]
    session.execute(f"DROP TABLE {keyspace}.shown")
    for text in texts:
        session.execute(text)
    again = [row.create_statement for row in session.execute(f"DESCRIBE TABLE {keyspace}.shown")]
    assert [without_id(text) for text in again] == [without_id(text) for text in texts]

    whole = [row.create_statement for row in session.execute(f"DESCRIBE KEYSPACE {keyspace}")]
    session.execute(f"DROP KEYSPACE {keyspace}")
    for text in whole:
        session.execute(text)
    assert len(list(session.execute(f"DESCRIBE KEYSPACE {keyspace}"))) == len(whole)


def without_id(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "ID:" not in line and "id = " not in line)


def test_describe_lists(session: Any, table: Table) -> None:
    name = table("k int PRIMARY KEY, v int")
    keyspaces = [row.name for row in session.execute("DESCRIBE KEYSPACES")]
    assert session.keyspace in keyspaces
    tables = [row.name for row in session.execute("DESCRIBE TABLES")]
    assert name in tables
    schema = [row.create_statement for row in session.execute("DESC SCHEMA")]
    assert any(name in text for text in schema)
    (cluster,) = session.execute("DESCRIBE CLUSTER")
    assert cluster.partitioner.endswith("Murmur3Partitioner")
    with pytest.raises(InvalidRequest):
        session.execute("DESCRIBE TABLE nothing_of_the_kind")
