"""CREATE, ALTER, DROP: every option and every error; and DESCRIBE, whose statements create the same schema."""

from typing import Any

import pytest
from tests.unit.cql.world import Cql

from ebla.cql.plan.table_options import as_cql
from ebla.model.errors import AlreadyExists, BadConfiguration, EblaError, InvalidRequest, NotFound
from ebla.model.schema import TableSchema, TombstoneGc
from ebla.topology.snapshot import Keyspace
from ebla.topology.states import Strategy
from ebla.wire.cql.messages import SchemaChangeKind, SchemaChangeResult, Void

LOCATOR = "org.apache.cassandra.locator"
SIMPLE = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
NETWORK = "{'class': 'NetworkTopologyStrategy', 'dc1': 1}"


@pytest.fixture
def cql() -> Cql:
    return Cql()


def keyspace(cql: Cql, name: str) -> Keyspace:
    return cql.view.current.snapshot.keyspaces[name]


def table(cql: Cql, name: str, of: str = "ks") -> TableSchema:
    (found,) = [one for one in cql.view.current.schemas.values() if (one.keyspace, one.name) == (of, name)]
    return found


# ---- keyspaces


@pytest.mark.parametrize(
    ("options", "strategy", "factors", "on_tablets", "initial", "durable"),
    [
        (f"replication = {SIMPLE}", Strategy.SIMPLE, (("", 1),), False, 0, True),
        (f"replication = {NETWORK}", Strategy.NETWORK_TOPOLOGY, (("dc1", 1),), True, 0, True),
        (
            f"replication = {{'class': '{LOCATOR}.NetworkTopologyStrategy', 'replication_factor': '3'}}",
            Strategy.NETWORK_TOPOLOGY,
            (("dc1", 3),),
            True,
            0,
            True,
        ),
        (
            f"replication = {NETWORK} AND durable_writes = false AND tablets = {{'enabled': false}}",
            Strategy.NETWORK_TOPOLOGY,
            (("dc1", 1),),
            False,
            0,
            False,
        ),
        (
            f"replication = {NETWORK} AND tablets = {{'initial': 8}}",
            Strategy.NETWORK_TOPOLOGY,
            (("dc1", 1),),
            True,
            8,
            True,
        ),
    ],
)
def test_keyspaces(
    cql: Cql, options: str, strategy: Strategy, factors: Any, on_tablets: bool, initial: int, durable: bool
) -> None:
    found = cql.run(f"CREATE KEYSPACE made WITH {options}")
    assert found == SchemaChangeResult(SchemaChangeKind.CREATED, "made")
    made = keyspace(cql, "made")
    assert (made.replication.strategy, made.replication.factors) == (strategy, factors)
    assert (made.on_tablets, made.initial_tablets, made.durable_writes) == (on_tablets, initial, durable)


def test_what_alter_does_not_name_stays(cql: Cql) -> None:
    cql.run(f"CREATE KEYSPACE made WITH replication = {SIMPLE} AND durable_writes = false")
    changed = cql.run("ALTER KEYSPACE made WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}")
    assert changed == SchemaChangeResult(SchemaChangeKind.UPDATED, "made")
    assert not keyspace(cql, "made").durable_writes
    cql.run("ALTER KEYSPACE made WITH durable_writes = true")
    assert keyspace(cql, "made").replication.factors == (("", 3),)
    with pytest.raises(InvalidRequest, match="from tablets to vnodes or back"):
        cql.run("ALTER KEYSPACE made WITH tablets = {'enabled': true}")


def test_there_and_not_there(cql: Cql) -> None:
    with pytest.raises(AlreadyExists) as caught:
        cql.run(f"CREATE KEYSPACE ks WITH replication = {NETWORK}")
    assert (caught.value.keyspace, caught.value.table) == ("ks", "")
    cql.run("CREATE TABLE t (k int PRIMARY KEY)")
    with pytest.raises(AlreadyExists) as caught:
        cql.run("CREATE TABLE t (k int PRIMARY KEY)")
    assert (caught.value.keyspace, caught.value.table) == ("ks", "t")
    for text in (
        f"CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {NETWORK}",
        "CREATE TABLE IF NOT EXISTS t (k int PRIMARY KEY)",
        "DROP TABLE IF EXISTS nope",
        "DROP TABLE IF EXISTS nope.t",
        "DROP KEYSPACE IF EXISTS nope",
        "ALTER TABLE IF EXISTS nope ADD a int",
        "ALTER TABLE IF EXISTS nope.t ADD a int",
        "ALTER KEYSPACE IF EXISTS nope WITH durable_writes = true",
    ):
        assert cql.run(text) == Void(), text
    for text in (
        "DROP TABLE nope",
        "DROP KEYSPACE nope",
        "ALTER TABLE nope ADD a int",
        "ALTER KEYSPACE nope WITH durable_writes = true",
        "CREATE TABLE nope.t (k int PRIMARY KEY)",
        "USE nope",
        "TRUNCATE nope",
        "SELECT * FROM nope",
        "INSERT INTO nope.t (k) VALUES (1)",
    ):
        with pytest.raises(NotFound):
            cql.run(text)
    assert cql.run("DROP TABLE t") == SchemaChangeResult(SchemaChangeKind.DROPPED, "ks", "t")
    assert cql.run("DROP KEYSPACE ks") == SchemaChangeResult(SchemaChangeKind.DROPPED, "ks")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("durable_writes = true", "Missing mandatory replication strategy class"),
        ("replication = {'dc1': 1}", "Missing mandatory replication strategy class"),
        ("replication = 3", "replication is a map"),
        ("replication = {'class': 'NopeStrategy'}", "Unable to find replication strategy class 'NopeStrategy'"),
        ("replication = {'class': 'SimpleStrategy'}", "SimpleStrategy requires a replication_factor strategy option."),
        (f"replication = {SIMPLE[:-1]}, 'dc1': 1}}", "Unrecognized strategy option dc1 passed to SimpleStrategy"),
        ("replication = {'class': 'SimpleStrategy', 'replication_factor': '²'}", "must be numeric and non-negative"),
        ("replication = {'class': 'NetworkTopologyStrategy'}", "at least one datacenter must be present"),
        ("replication = {'class': 'NetworkTopologyStrategy', 'x': 1}", "Unrecognized strategy option {x}"),
        ("replication = {'class': 'NetworkTopologyStrategy', 'dc1': 'a'}", "must be numeric and non-negative, got 'a'"),
        ("replication = {'class': 'NetworkTopologyStrategy', 'dc1': -1}", "must be numeric and non-negative, got '-1'"),
        ("replication = {'class': 'NetworkTopologyStrategy', 'dc1': 9}", "replication factor 9 needs as many nodes"),
        (f"replication = {NETWORK} AND nope = 1", "Unknown property 'nope'"),
        (f"replication = {NETWORK} AND durable_writes = 'x'", "Invalid value for property 'durable_writes'"),
        (f"replication = {NETWORK} AND tablets = true", "tablets is a map"),
        (f"replication = {NETWORK} AND tablets = {{'x': 1}}", "Unrecognized tablets option x"),
        (f"replication = {NETWORK} AND tablets = {{'initial': 'x'}}", "Initial number of tablets must be numeric"),
        (f"replication = {SIMPLE} AND tablets = {{'enabled': true}}", "SimpleStrategy does not support tablet"),
    ],
)
def test_keyspaces_that_cannot_be(cql: Cql, options: str, words: str) -> None:
    with pytest.raises(EblaError) as caught:
        cql.run(f"CREATE KEYSPACE made WITH {options}")
    assert isinstance(caught.value, BadConfiguration | InvalidRequest)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ['"a b"', '"a-b"', "a" * 223, "system", "system_x"])
def test_names_that_cannot_be(cql: Cql, name: str) -> None:
    with pytest.raises(InvalidRequest):
        cql.run(f"CREATE KEYSPACE {name} WITH replication = {NETWORK}")
    if not name.startswith("system"):
        with pytest.raises(InvalidRequest):
            cql.run(f"CREATE TABLE {name} (k int PRIMARY KEY)")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE system.t (k int PRIMARY KEY)",
        "ALTER TABLE system.local ADD x int",
        "DROP TABLE system.local",
        "DROP KEYSPACE system",
        "ALTER KEYSPACE system WITH durable_writes = false",
        "TRUNCATE system.local",
        "INSERT INTO system.local (key) VALUES ('x')",
        "DELETE FROM system.peers WHERE peer = '127.0.0.1'",
    ],
)
def test_system_tables_are_shown_and_not_changed(cql: Cql, text: str) -> None:
    with pytest.raises(InvalidRequest):
        cql.run(text)


# ---- tables


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("k int", "No PRIMARY KEY specified (exactly one required)"),
        ("k int, k text, PRIMARY KEY (k)", "Multiple definition of identifier k"),
        ("k int, PRIMARY KEY (k, nope)", "Unknown definition nope referenced in PRIMARY KEY"),
        ("k int, PRIMARY KEY (k, k)", "Key k appears more than once in the PRIMARY KEY"),
        ("k list<int> PRIMARY KEY", "Invalid non-frozen collection type for PRIMARY KEY component k"),
        ("k duration PRIMARY KEY", "cannot be a duration"),
        ("k int, s int static, PRIMARY KEY (k, s)", "Static column s cannot be part of the PRIMARY KEY"),
        ("k int PRIMARY KEY, s int static", "need a clustering key"),
        ("k int PRIMARY KEY, v nope", "unknown type 'nope'"),
        ("k int PRIMARY KEY, v list<list<int>>", "Non-frozen collections are not allowed inside collections"),
        ("k int PRIMARY KEY, v set<duration>", "durations have no order"),
        ("k int PRIMARY KEY, v map<int>", "map"),
    ],
)
def test_columns_that_cannot_be(cql: Cql, columns: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.run(f"CREATE TABLE t ({columns})")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("CLUSTERING ORDER BY (k DESC)", "Only clustering key columns can be defined in CLUSTERING ORDER directive"),
        ("CLUSTERING ORDER BY (d DESC)", "Missing CLUSTERING ORDER for column c"),
        ("CLUSTERING ORDER BY (d DESC, c ASC)", "The order of columns in the CLUSTERING ORDER directive"),
        ("COMPACT STORAGE", "COMPACT STORAGE tables are not supported"),
        ("nope = 1", "Unknown property 'nope'"),
        ("comment = {'a': 'b'}", "Invalid value for property 'comment': it must be a string, not a map"),
        (
            "gc_grace_seconds = -1",
            "Invalid value '-1' for property 'gc_grace_seconds': it must be a whole number between 0 and 2147483647",
        ),
        ("gc_grace_seconds = 'x'", "Invalid value 'x' for property 'gc_grace_seconds'"),
        ("default_time_to_live = 630720001", "it must be a whole number between 0 and 630720000"),
        ("tombstone_gc = {'mode': 'x'}", "Invalid value 'x' for tombstone_gc option 'mode'"),
        ("tombstone_gc = {}", "Missing sub-option 'mode' for the 'tombstone_gc' option"),
        ("tablets = {'min_tablet_count': 'x'}", "Invalid value 'x' for tablets option 'min_tablet_count'"),
        ("tablets = 5", "Invalid value for property 'tablets': it is a map such as"),
    ],
)
def test_options_that_cannot_be(cql: Cql, options: str, words: str) -> None:
    with pytest.raises(EblaError) as caught:
        cql.run(f"CREATE TABLE t (k int, c int, d int, PRIMARY KEY (k, c, d)) WITH {options}")
    assert isinstance(caught.value, BadConfiguration | InvalidRequest)
    assert words in str(caught.value)


def test_options_of_a_table(cql: Cql) -> None:
    cql.run(
        "CREATE TABLE t (k int PRIMARY KEY) WITH comment = 'it''s' AND default_time_to_live = 5 "
        "AND gc_grace_seconds = 7 AND tombstone_gc = {'mode': 'repair'} AND tablets = {'min_tablet_count': 16}"
    )
    options = table(cql, "t").options
    assert (options.comment, options.default_ttl_s, options.gc_grace_s) == ("it's", 5, 7)
    assert options.tombstone_gc is TombstoneGc.REPAIR
    assert cql.rows("SELECT tablet_count FROM system.tablets WHERE table_name = 't' LIMIT 1") == [(16,)]
    cql.run("ALTER TABLE t WITH comment = 'new' AND compaction = {'class': 'LeveledCompactionStrategy'}")
    altered = table(cql, "t").options
    assert (altered.comment, altered.default_ttl_s, altered.gc_grace_s) == ("new", 5, 7)
    assert dict(altered.others)["compaction"] == "{'class': 'LeveledCompactionStrategy'}"


@pytest.mark.parametrize("name", ["extensions", "scylla_encryption_options"])
def test_options_without_an_effect_are_shown_as_given(cql: Cql, name: str) -> None:
    cql.run(f"CREATE TABLE t (k int PRIMARY KEY) WITH {name} = {{'class': 'it''s, a: b', 'n': 5}}")
    ((text,),) = [row[3:] for row in cql.rows("DESCRIBE TABLE t")]
    assert f"{name} = {{'class': 'it''s, a: b', 'n': '5'}}" in text


def test_options_as_drivers_read_them(cql: Cql) -> None:
    cql.run(
        "CREATE TABLE t (k int PRIMARY KEY) "
        "WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 5} AND memtable = '''q''' "
        "AND speculative_retry = '50ms' AND bloom_filter_fp_chance = 0.25 AND caching = {}"
    )
    columns = "compaction, memtable, speculative_retry, bloom_filter_fp_chance, caching, comment"
    text = f"SELECT {columns} FROM system_schema.tables"
    (row,) = cql.rows(f"{text} WHERE keyspace_name = 'ks' AND table_name = 't'")
    compaction = [("class", "SizeTieredCompactionStrategy"), ("min_threshold", "5")]
    assert row == (compaction, "'q'", "50MS", 0.25, [], "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5", "5"),
        ("-0.5", "-0.5"),
        ("true", "true"),
        ("it's", "'it''s'"),
        ("", "''"),
        ("99p", "'99p'"),
        ({"a": "5", "b'": "x"}, "{'a': '5', 'b''': 'x'}"),
        ({}, "{}"),
    ],
)
def test_options_as_cql_writes_them(value: str | dict[str, str], text: str) -> None:
    assert as_cql(value) == text


# ---- altering tables


@pytest.fixture
def altered(cql: Cql) -> Cql:
    cql.run("CREATE TABLE t (k int, c int, v int, w list<int>, PRIMARY KEY (k, c))")
    cql.run("CREATE TABLE plain (k int PRIMARY KEY, v int)")
    return cql


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("ADD x int", ["k", "c", "v", "w", "x"]),
        ("ADD (x int, y set<text>)", ["k", "c", "v", "w", "x", "y"]),
        ("ADD s text static", ["k", "c", "s", "v", "w"]),
        ("DROP v", ["k", "c", "w"]),
        ("DROP (v, w)", ["k", "c"]),
        ("RENAME k TO kk AND c TO cc", ["kk", "cc", "v", "w"]),
    ],
)
def test_columns_come_and_go(altered: Cql, change: str, names: list[str]) -> None:
    changed = altered.run(f"ALTER TABLE t {change}")
    assert changed == SchemaChangeResult(SchemaChangeKind.UPDATED, "ks", "t")
    assert [column.name for column in table(altered, "t").columns] == names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("t ADD v text", "Invalid column name v because it conflicts with an existing column"),
        ("t DROP k", "Cannot drop PRIMARY KEY part k"),
        ("t DROP nope", "Column nope was not found in table ks.t"),
        ("t RENAME v TO x", "Cannot rename non PRIMARY KEY part v"),
        ("t RENAME k TO v", "Cannot rename column k to v in table ks.t; another column of that name already exist"),
        ("t RENAME nope TO x", "Cannot rename unknown column nope in table ks.t"),
        ("plain ADD s int static", "Static columns are only useful (and thus allowed) if the table has a clustering"),
        ("t ALTER v TYPE text", "changing the type of a column"),
    ],
)
def test_changes_that_cannot_be(altered: Cql, change: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        altered.run(f"ALTER TABLE {change}")
    assert words in str(caught.value)


def test_statements_without_a_keyspace(cql: Cql) -> None:
    cql.session.keyspace = None
    for text in (
        "SELECT * FROM t",
        "CREATE TABLE t (k int PRIMARY KEY)",
        "DROP TABLE t",
        "INSERT INTO t (k) VALUES (1)",
    ):
        with pytest.raises(InvalidRequest, match="No keyspace has been specified"):
            cql.run(text)
