"""DESCRIBE: what it lists, and that its statements create the same schema again."""

from typing import Any

import pytest
from tests.unit.cql.world import Cql

from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import CreateKeyspaceStatement, CreateTableStatement
from ebla.cql.parse.token_stream import quote_name
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import TableSchema

TABLE = (
    'CREATE TABLE "Quoted"."Table" ("Key" int, b blob, "a""b" int, "select" uuid, s text static, '
    "l list<frozen<map<text, int>>>, t tuple<int, frozen<set<text>>>, f frozen<list<int>>, "
    'PRIMARY KEY (("Key", b), "select", "a""b")) WITH CLUSTERING ORDER BY ("select" DESC, "a""b" ASC) '
    "AND comment = 'it''s; -- x' AND default_time_to_live = 5 AND gc_grace_seconds = 7 AND cdc = {'enabled': true} "
    "AND tombstone_gc = {'mode': 'disabled'} AND compaction = {'class': 'LeveledCompactionStrategy'} "
    "AND crc_check_chance = 0.5 AND tablets = {'min_tablet_count': 4}"
)
SIMPLE = "{'class': 'SimpleStrategy', 'replication_factor': 2}"
NETWORK = "{'class': 'NetworkTopologyStrategy', 'dc1': 1}"
STATEMENTS = (
    f"CREATE KEYSPACE simple WITH replication = {SIMPLE} AND durable_writes = false",
    f"CREATE KEYSPACE \"Quoted\" WITH replication = {NETWORK} AND tablets = {{'initial': 4}}",
    "CREATE TABLE simple.t (k int PRIMARY KEY, v text)",
    "CREATE TABLE simple.nothing (k int PRIMARY KEY)",
    TABLE,
)


@pytest.fixture(scope="module")
def cql() -> Cql:
    made = Cql()
    for text in STATEMENTS:
        made.run(text)
    return made


def schemas(cql: Cql) -> dict[tuple[str, str], tuple[Any, ...]]:
    def facts(schema: TableSchema) -> tuple[Any, ...]:
        shapes = [(one.name, one.type, one.kind, one.position, one.descending) for one in schema.columns]
        main = (schema.options.comment, schema.options.default_ttl_s, schema.options.gc_grace_s)
        return shapes, main, schema.options.tombstone_gc, dict(schema.options.others).get("compaction")

    return {(one.keyspace, one.name): facts(one) for one in cql.view.current.schemas.values()}


def test_what_is_described_can_be_created_again(cql: Cql) -> None:
    texts = [row[3] for row in cql.rows("DESCRIBE SCHEMA")]
    again = Cql()
    again.run("DROP KEYSPACE ks")
    for text in texts:
        assert isinstance(parse(text).statement, CreateKeyspaceStatement | CreateTableStatement)
        again.run(text)
    wanted, found = schemas(cql), schemas(again)
    # A compaction that was never named is shown with the usual one, as elsewhere: then it is named.
    usual = "{'class': 'SizeTieredCompactionStrategy'}"
    assert found == {name: (*facts[:-1], facts[-1] or usual) for name, facts in wanted.items()}
    keyspaces = again.view.current.snapshot.keyspaces
    assert dict(keyspaces) == dict(cql.view.current.snapshot.keyspaces)
    assert [row[3] for row in again.rows("DESCRIBE SCHEMA")] == texts


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("DESCRIBE KEYSPACES", [('"Quoted"', "keyspace"), ("ks", "keyspace"), ("simple", "keyspace")]),
        ("DESCRIBE KEYSPACE simple", [("simple", "keyspace"), ("nothing", "table"), ("t", "table")]),
        ("DESCRIBE ONLY KEYSPACE simple", [("simple", "keyspace")]),
        ("DESCRIBE simple", [("simple", "keyspace"), ("nothing", "table"), ("t", "table")]),
        ("DESCRIBE KEYSPACE", [("ks", "keyspace")]),
        ("DESCRIBE TABLE simple.t", [("t", "table")]),
        ("DESCRIBE simple.t", [("t", "table")]),
        ('DESCRIBE "Quoted"."Table"', [('"Table"', "table")]),
        ("DESCRIBE TABLES", []),
        ("DESCRIBE TYPES", []),
        ("DESCRIBE FUNCTIONS", []),
        ("DESCRIBE AGGREGATES", []),
    ],
)
def test_what_is_listed(cql: Cql, text: str, entries: list[tuple[str, str]]) -> None:
    found = [(row[2], row[1]) for row in cql.rows(text)]
    assert [one for one in found if not one[0].startswith("system")] == entries


def test_the_cluster(cql: Cql) -> None:
    (row,) = cql.rows("DESCRIBE CLUSTER")
    assert row[:2] == ("test cluster", "org.apache.cassandra.dht.Murmur3Partitioner")


def test_everything_includes_the_system(cql: Cql) -> None:
    full = cql.rows("DESCRIBE FULL SCHEMA")
    assert {"system", "system_schema", "system_virtual_schema", "ks", "simple"} <= {row[0] for row in full}
    assert not {row[0] for row in cql.rows("DESCRIBE SCHEMA")} & {"system", "system_schema"}
    virtual = [row[3] for row in full if row[0] == "system" and row[1] == "table"]
    assert all(text.startswith("/*\nWarning: Table system.") for text in virtual)


def test_internals_include_dropped_columns_and_can_be_executed() -> None:
    cql = Cql()
    cql.run("CREATE TABLE t (k int, c int, v set<text>, w int, s int static, PRIMARY KEY (k, c))")
    cql.run("ALTER TABLE t DROP (v, s)")
    cql.run("ALTER TABLE t ADD v set<text>")
    ((_, _, _, text),) = cql.rows("DESCRIBE TABLE t WITH INTERNALS")
    assert "s int static," in text
    create, *alters = text.split(";\n")
    assert [one.rstrip(";") for one in alters] == [
        "ALTER TABLE ks.t DROP v",
        "ALTER TABLE ks.t ADD v set<text>",
        "ALTER TABLE ks.t DROP s",
    ]
    assert "DROP" not in cql.rows("DESCRIBE TABLE t")[0][3]
    assert sorted(cql.rows("SELECT column_name, kind, type FROM system_schema.dropped_columns")) == [
        ("s", "static", "int"),
        ("v", "regular", "set<text>"),
    ]
    again = Cql()
    for statement in (create, *alters):
        again.run(statement)
    assert again.rows("DESCRIBE TABLE t") == cql.rows("DESCRIBE TABLE t")


def test_internals(cql: Cql) -> None:
    ((_, _, _, text),) = cql.rows("DESCRIBE TABLE simple.t WITH INTERNALS")
    (identity,) = [one.id for one in cql.view.current.schemas.values() if one.name == "t"]
    assert f"ID = {identity}" in text
    assert "ID = " not in cql.rows("DESCRIBE TABLE simple.t")[0][3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DESCRIBE nope", "'nope' not found in keyspace 'ks'"),
        ("DESCRIBE TABLE nope", "Table 'nope' not found in keyspace 'ks'"),
        ("DESCRIBE KEYSPACE nope", "'nope' not found in keyspaces"),
        ("DESCRIBE TYPE nope", "User defined type 'nope' not found in keyspace 'ks'"),
        ("DESCRIBE FUNCTION nope", "User defined function 'nope' not found in keyspace 'ks'"),
        ("DESCRIBE AGGREGATE nope", "User defined aggregate 'nope' not found in keyspace 'ks'"),
        ("DESCRIBE INDEX nope", "Table for existing index 'nope' not found in keyspace 'ks'"),
        ("DESCRIBE MATERIALIZED VIEW nope", "Materialized view 'nope' not found in keyspace 'ks'"),
    ],
)
def test_what_is_not_there(cql: Cql, text: str, words: str) -> None:
    with pytest.raises(NotFound) as caught:
        cql.run(text)
    assert words in str(caught.value)


def test_no_keyspace_to_describe() -> None:
    cql = Cql()
    cql.session.keyspace = None
    for text in ("DESCRIBE KEYSPACE", "DESCRIBE TABLE t"):
        with pytest.raises(InvalidRequest, match="No keyspace specified and no current keyspace"):
            cql.run(text)
    assert len(cql.rows("DESCRIBE TABLES")) > 20


@pytest.mark.parametrize(
    ("name", "written"),
    [("abc_1", "abc_1"), ("Abc", '"Abc"'), ("select", '"select"'), ("1a", '"1a"'), ('a"b', '"a""b"'), ("key", "key")],
)
def test_names_as_they_must_be_written(name: str, written: str) -> None:
    assert quote_name(name) == written
