"""Statements that other servers accept or refuse in a way of their own: here it is the way of Cassandra."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.protocol import ConfigurationException, SyntaxException
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, SimpleStatement
from cassandra.util import Date

Rows = Callable[..., list[tuple[Any, ...]]]
Table = Callable[[str], str]

SHAPES = {
    "plain": (
        "k int PRIMARY KEY, v int, l list<int>, m map<int, int>, f frozen<map<int, int>>, e set<text>, b blob, "
        "x map<text, int>, at timestamp, u timeuuid, d date, n decimal, p duration, a ascii, t text"
    ),
    "rows": "a int, b int, c int, v int, s int static, PRIMARY KEY (a, b, c)",
    "pairs": "k1 uuid, k2 text, v int, PRIMARY KEY ((k1, k2))",
    "sets": "a int, b frozen<set<int>>, v int, PRIMARY KEY (a, b)",
    "nested": "k frozen<map<set<int>, list<int>>> PRIMARY KEY, v map<int, frozen<map<int, list<int>>>>",
    "texts": "k int, c text, PRIMARY KEY (k, c)",
}
"""Tables by name; a statement names one in braces."""


@pytest.fixture
def text_of(table: Table) -> Callable[[str], str]:
    return lambda statement: statement.format_map({name: table(shape) for name, shape in SHAPES.items()})


LONG = "x" * 66_560

REFUSED: tuple[tuple[type[Exception], str, str], ...] = (
    (InvalidRequest, "SELECT count(*) FROM {rows} PER PARTITION LIMIT 1", "not allowed with aggregate queries"),
    (InvalidRequest, "SELECT DISTINCT a FROM {rows} PER PARTITION LIMIT 1", "not allowed with SELECT DISTINCT queries"),
    (InvalidRequest, "INSERT INTO {plain} (k, p) VALUES (1, 1s1s)", "the seconds are set multiple times"),
    (InvalidRequest, "INSERT INTO {plain} (k, p) VALUES (1, 1s2h)", "the seconds should be after hours"),
    (InvalidRequest, "SELECT * FROM {plain} USING TIMEOUT null", "Timeout value cannot be null"),
    (InvalidRequest, "SELECT * FROM {plain} WHERE f[1] = 2 ALLOW FILTERING", "frozen map column f"),
    (InvalidRequest, "DELETE FROM {sets} WHERE a = 1 AND b CONTAINS 1", "Cannot use DELETE with CONTAINS"),
    (InvalidRequest, "SELECT * FROM {sets} WHERE a = 21 AND b CONTAINS 2", "restricted with CONTAINS"),
    (
        InvalidRequest,
        "DELETE v FROM {rows} WHERE a = 1 AND b = 1 AND c >= 2",
        "Range deletions are not supported for specific columns",
    ),
    (
        InvalidRequest,
        "SELECT * FROM {rows} WHERE b > 20 AND c > 30",
        'Clustering column "c" cannot be restricted (preceding column "b" is restricted by a non-EQ relation)',
    ),
    (InvalidRequest, "SELECT token(s1, k1) FROM {pairs}", "Undefined column name s1"),
    (InvalidRequest, "SELECT token(k2, k1) FROM {pairs}", "k2 cannot be passed as argument 0"),
    (InvalidRequest, "SELECT token(k1) FROM {pairs}", "2 required but 1 provided"),
    (InvalidRequest, "SELECT * FROM {pairs} WHERE token(k1) > 1", "k2 is missing"),
    (InvalidRequest, "SELECT * FROM {pairs} WHERE token(k2, k1) > 1", "partition key order"),
    (InvalidRequest, "SELECT * FROM {pairs} WHERE token(v, k1) > 1", "v is none"),
    (InvalidRequest, "SELECT * FROM {plain} WHERE k = sum((int) 4)", "Aggregation function"),
    (InvalidRequest, "INSERT INTO {pairs} (k1, v) VALUES (uuid(), 1)", "parts are missing: k2"),
    (InvalidRequest, "INSERT INTO {plain} (k, d) VALUES (1, -123)", "unsigned int (for date) from: '-123'"),
    (InvalidRequest, "INSERT INTO {plain} (k, d) VALUES (1, 50000000000)", "unsigned int (for date)"),
    (InvalidRequest, "INSERT INTO {plain} (k, a) VALUES (1, 'שלום')", "ascii text has no character above 127"),
    (InvalidRequest, "INSERT INTO {plain} (k, n) VALUES (1, 1e2147483649)", "whose scale has 32 bits"),
    (InvalidRequest, "SELECT WRITETIME(m[1]) FROM {plain}", "not supported in this release"),
    (InvalidRequest, "SELECT TTL(m[1]) FROM {plain}", "not supported in this release"),
    (InvalidRequest, "SELECT k + v FROM {plain}", "not supported in this release"),
    (InvalidRequest, "SELECT -k FROM {plain}", "not supported in this release"),
    (InvalidRequest, "UPDATE {plain} SET at = 1 - 5m WHERE k = 1", "not supported in this release"),
    (InvalidRequest, "CREATE TABLE x (k int PRIMARY KEY, v int PRIMARY KEY)", "Multiple PRIMARY KEYs"),
    (
        InvalidRequest,
        "CREATE TABLE x (k int PRIMARY KEY, v set<set<int>>)",
        "Non-frozen collections are not allowed inside collections",
    ),
    (InvalidRequest, f"CREATE TABLE {'t' * 223} (k int PRIMARY KEY)", "1 to 222"),
    (
        SyntaxException,
        "CREATE TABLE x (k int PRIMARY KEY) WITH default_validation = timestamp",
        "no viable alternative",
    ),
    (SyntaxException, "CREATE TABLE x (k int PRIMARY KEY) WITH caching = {{'keys': ALL}}", "no viable alternative"),
    (SyntaxException, "USE ?", "Bind variables cannot be used for keyspace names"),
    (SyntaxException, "CREATE KEYSPACE WITH WITH durable_writes = true", "no viable alternative"),
)


@pytest.mark.parametrize(("error", "statement", "words"), REFUSED)
def test_statements_are_refused_for_their_own_reason(
    error: type[Exception], statement: str, words: str, session: Any, text_of: Callable[[str], str]
) -> None:
    with pytest.raises(error) as caught:
        session.execute(text_of(statement))
    assert words in str(caught.value)


BOUND_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    (
        "INSERT INTO {texts} (k, c) VALUES (1, ?)",
        ("x" * 70_000,),
        "Key length of 70000 is longer than maximum of 65535",
    ),
    ("UPDATE {plain} SET at = ? - 5m WHERE k = 1", (), "not supported in this release"),
    ("INSERT INTO {plain} (k, d) VALUES (1, toDate(?))", (), "Ambiguous call to function todate"),
)


@pytest.mark.parametrize(("statement", "values", "words"), BOUND_REFUSED)
def test_bound_statements_are_refused_for_their_own_reason(
    statement: str, values: tuple[Any, ...], words: str, session: Any, text_of: Callable[[str], str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        session.execute(session.prepare(text_of(statement)), values)
    assert words in str(caught.value)


def test_a_truncated_collection_is_refused(session: Any, text_of: Callable[[str], str]) -> None:
    insert = session.prepare(text_of("INSERT INTO {plain} (k, l) VALUES (1, ?)"))
    bound = insert.bind(([1],))
    bound.values[0] = b"\0\0\0\2\0\0\0\4\0\0\0\1"
    with pytest.raises(InvalidRequest, match="not enough bytes"):
        session.execute(bound)


OPTIONS_REFUSED = (
    "bloom_filter_fp_chance = 0",
    "bloom_filter_fp_chance = 1.1",
    "caching = {'nope': 'ALL'}",
    "caching = {'rows_per_partition': 'some'}",
    "compaction = {'class': 'NopeStrategy'}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'nope': 1}",
    "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 1}",
    "compression = {'sstable_compression': 'NopeCompressor'}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 3}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 0}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': -1}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': null}",
    "compression = {'sstable_compression': 'LZ4Compressor', 'chunk_length_in_kb': 'word'}",
    "nope = 1",
    "speculative_retry = '101PERCENTILE'",
    "speculative_retry = 'sometimes'",
    "tombstone_gc = {'mode': 'timeout', 'nope': '1'}",
)


@pytest.mark.parametrize("option", OPTIONS_REFUSED)
def test_impossible_options_are_refused(option: str, session: Any) -> None:
    with pytest.raises(ConfigurationException):
        session.execute(f"CREATE TABLE options (k int PRIMARY KEY) WITH {option}")


def test_options_of_keyspaces_are_checked(session: Any) -> None:
    simple = "replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    with pytest.raises(ConfigurationException, match="Unknown property 'storage'"):
        session.execute(f"CREATE KEYSPACE other WITH {simple} AND storage = {{'type': 'S4'}}")
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS vnodes WITH {simple}")
    with pytest.raises(ConfigurationException, match="tablets"):
        session.execute("CREATE TABLE vnodes.t (k int PRIMARY KEY) WITH tablets = {'min_tablet_count': 2}")
    session.execute("DROP KEYSPACE vnodes")


def test_the_schema_keeps_and_shows_what_was_set(session: Any, rows: Rows) -> None:
    name = "t" * 222
    session.execute(
        f"CREATE TABLE {name} (k int PRIMARY KEY, , v set<text>, {'c' * 1_024} int,) "
        "WITH speculative_retry = '99.5percentile' "
        "AND tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '73'}"
    )
    session.execute(f"ALTER TABLE {name} DROP v")
    with pytest.raises(InvalidRequest, match="incompatible with previous type"):
        session.execute(f"ALTER TABLE {name} ADD v set<int>")
    ((*_, text),) = rows(f"DESCRIBE TABLE {name} WITH INTERNALS")
    assert "speculative_retry = '99.5PERCENTILE'" in text
    assert "'propagation_delay_in_seconds': '73'" in text
    assert "v set<text>" in text
    assert text.endswith("DROP v;")
    session.execute(f"DROP TABLE {name}")


def test_the_initial_tablets_of_a_keyspace_can_be_altered(session: Any, rows: Rows) -> None:
    replication = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE altered WITH {replication} AND tablets = {{'initial': 1}}")
    session.execute("ALTER KEYSPACE altered WITH tablets = {'initial': 2}")
    assert "'initial': 2" in rows("DESCRIBE ONLY KEYSPACE altered")[0][-1]
    session.execute("DROP KEYSPACE altered")


def test_partitions_of_an_in_come_in_key_order_also_across_pages(session: Any, text_of: Callable[[str], str]) -> None:
    keys = range(2_000, 2_040)
    for key in keys:
        session.execute(text_of("INSERT INTO {plain} (k, v) VALUES (%s, 1)"), (key,))
    text = text_of("SELECT k FROM {plain} WHERE k IN (") + ", ".join(map(str, keys)) + ")"
    for size in (3, 5_000):
        assert [row.k for row in session.execute(SimpleStatement(text, fetch_size=size))] == list(keys)


def test_values_in_the_bounds_of_cassandra(session: Any, rows: Rows, text_of: Callable[[str], str], key: int) -> None:
    session.execute(text_of("INSERT INTO {plain} (k, e, x) VALUES (%s, %s, %s)"), (key, {LONG}, {LONG: 1}))
    ((found, counted),) = rows(text_of("SELECT e, x FROM {plain} WHERE k = %s"), (key,))
    assert (set(found), dict(counted)) == ({LONG}, {LONG: 1})
    session.execute(text_of("INSERT INTO {nested} (k, v) VALUES ({{{{1}}: [2]}}, {{3: {{4: [5]}}}})"))
    assert len(rows(text_of("SELECT * FROM {nested}"))) == 1


def utc(*parts: int) -> datetime.datetime:
    """As drivers return it: without a time zone."""
    year, month, day, hour, minute = (*parts, 0, 0)[:5]
    return datetime.datetime(year, month, day, hour, minute, tzinfo=datetime.UTC).replace(tzinfo=None)


ASSIGNED: tuple[tuple[str, str, Any], ...] = (
    ("at", "'2011-02-03z'", utc(2011, 2, 3)),
    ("at", "'2011-02-03T04:05z'", utc(2011, 2, 3, 4, 5)),
    ("at", "toUnixTimestamp(13814000-1dd2-11b2-8080-808080808080)", utc(1970, 1, 1)),
    ("d", "'2147483649'", Date("1970-01-02")),
    ("b", "blobAsInt(0x00000001)", b"\0\0\0\1"),
    ("b", "token(1)", (-4069959284402364209).to_bytes(8, "big", signed=True)),
)


@pytest.mark.parametrize(("column", "term", "value"), ASSIGNED)
def test_compatible_values_are_assigned(
    column: str, term: str, value: Any, session: Any, rows: Rows, text_of: Callable[[str], str], key: int
) -> None:
    session.execute(text_of(f"INSERT INTO {{plain}} (k, {column}) VALUES (%s, {term})"), (key,))
    assert rows(text_of(f"SELECT {column} FROM {{plain}} WHERE k = %s"), (key,)) == [(value,)]


def test_empty_values_are_kept(session: Any, rows: Rows, text_of: Callable[[str], str], key: int) -> None:
    session.execute(text_of("INSERT INTO {plain} (k, v, l) VALUES (%s, blobAsInt(0x), [blobAsInt(0x), 1])"), (key,))
    assert rows(text_of("SELECT intAsBlob(v) FROM {plain} WHERE k = %s"), (key,)) == [(b"",)]
    assert len(rows(text_of("SELECT k FROM {plain} WHERE v = blobAsInt(0x) ALLOW FILTERING"))) == 1


def test_functions_of_aggregates(session: Any, rows: Rows, text_of: Callable[[str], str], key: int) -> None:
    session.execute(text_of("INSERT INTO {plain} (k, at) VALUES (%s, 86400000)"), (key,))
    assert rows(text_of("SELECT todate(min(at)) FROM {plain} WHERE k = %s"), (key,)) == [(Date("1970-01-02"),)]


def test_an_in_of_one_value_orders_as_an_equality(
    session: Any, rows: Rows, text_of: Callable[[str], str], key: int
) -> None:
    for c in range(3):
        session.execute(text_of("INSERT INTO {rows} (a, b, c) VALUES (%s, 1, %s)"), (key, c))
    by_list = text_of("SELECT c FROM {rows} WHERE a = %s AND b IN (1) ORDER BY c DESC")
    assert rows(by_list, (key,)) == [(2,), (1,), (0,)]
    by_tuple = text_of("SELECT c FROM {rows} WHERE a = %s AND (b, c) IN ((1, 1)) ORDER BY b DESC")
    assert rows(by_tuple, (key,)) == [(1,)]


def test_an_unset_index_deletes_nothing(session: Any, rows: Rows, text_of: Callable[[str], str], key: int) -> None:
    session.execute(text_of("INSERT INTO {plain} (k, l) VALUES (%s, [1, 2])"), (key,))
    session.execute(session.prepare(text_of("DELETE l[?] FROM {plain} WHERE k = ?")), (UNSET_VALUE, key))
    assert rows(text_of("SELECT l FROM {plain} WHERE k = %s"), (key,)) == [([1, 2],)]


@pytest.mark.parametrize(
    ("where", "name"), [("token(k) >= token(?)", "arg0(token)"), ("k = 1 + ?", "arg1(_add)"), ("k = ?", "k")]
)
def test_only_the_partition_key_is_a_routing_key(
    where: str, name: str, session: Any, text_of: Callable[[str], str]
) -> None:
    prepared = session.prepare(text_of(f"SELECT v FROM {{plain}} WHERE {where}"))
    assert [one.name for one in prepared.column_metadata] == [name]
    assert (prepared.routing_key_indexes == [0]) is (name == "k")


def test_large_batches_carry_a_warning_and_larger_ones_are_refused(
    session: Any, text_of: Callable[[str], str], key: int
) -> None:
    insert = session.prepare(text_of("INSERT INTO {plain} (k, t) VALUES (?, ?)"))

    def written(size: int) -> Any:
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.add(insert, (key, "x" * size))
        found = session.execute_async(batch)
        found.result()
        return found.warnings

    assert not written(100 << 10)
    assert "above the warning threshold" in written(200 << 10)[0]
    with pytest.raises(InvalidRequest, match="cql_batch_bytes_max"):
        written(1 << 20)
