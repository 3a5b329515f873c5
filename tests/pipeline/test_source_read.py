"""Tables read by a user's Spark from real nodes: types, levels, filters, columns, SQL, errors, and nodes that die."""

import datetime
import os
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.pipeline.served_nodes import ServedNodes
from tests.pipeline.source_jobs import MASTER, OneSpark

from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import parse_type
from ebla.model.errors import Unavailable
from ebla.model.values import Duration, encode
from ebla.source import data_source
from ebla.source.contact_points import ContactPoints, CqlClient, parse_contacts
from ebla.source.cql_client import BoundStatement
from ebla.source.read.planner import decode_split

PARTITIONS, ROWS = 40, 5
"""Of the table that most tests read, and rows of each partition."""
WAIT_S = 30.0


class Tables:
    """Three nodes, with tables on tablets and on vnodes, and a CQL session."""

    def __init__(self, nodes: ServedNodes) -> None:
        self.nodes = nodes
        self.addresses = [f"{node.options.address}:{node.options.ports.cql}" for node in nodes.local.nodes]
        self.contact = ",".join(self.addresses)
        self._cql = CqlClient(ContactPoints(parse_contacts(self.contact)))
        options = "replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} AND tablets = "
        self.cql(f"CREATE KEYSPACE ks WITH {options} {{'initial': 8}}")
        self.cql(f"CREATE KEYSPACE vn WITH {options} {{'enabled': false}}")
        for keyspace in ("ks", "vn"):
            self.cql(f"CREATE TABLE {keyspace}.t (k int, c text, s int static, v bigint, PRIMARY KEY (k, c))")
            self.fill(keyspace)

    def close(self) -> None:
        for keyspace in ("ks", "vn"):
            self.cql(f"DROP KEYSPACE {keyspace}")
        self._cql.close()

    def cql(self, text: str, *values: bytes | None) -> Sequence[tuple[bytes | None, ...]]:
        level = ConsistencyLevel.QUORUM
        return self._cql.query(BoundStatement(text, values), WAIT_S, level=level, is_idempotent=True).rows

    def fill(self, keyspace: str) -> None:
        for k in range(PARTITIONS):
            rows = [
                BoundStatement(f"INSERT INTO {keyspace}.t (k, c, s, v) VALUES ({k}, 'c{n}', {k}, {_value(k, n)})")
                for n in range(ROWS)
            ]
            self._cql.batch(rows, ConsistencyLevel.QUORUM, WAIT_S, timestamp_us=1_000_000 + k)
        self.cql(f"INSERT INTO {keyspace}.t (k, s) VALUES (1000, 7)")
        self.cql(f"DELETE FROM {keyspace}.t WHERE k = 0 AND c = 'c0'")

    def fill_large(self, name: str, rows: int) -> None:
        self.cql(f"CREATE TABLE ks.{name} (k int PRIMARY KEY, v blob)")
        kind, level = parse_type("int"), ConsistencyLevel.ALL
        text = f"INSERT INTO ks.{name} (k, v) VALUES (?, ?)"
        for start in range(0, rows, 50):
            some = [BoundStatement(text, (encode(kind, k), os.urandom(4_000))) for k in range(start, start + 50)]
            self._cql.batch(some, level, WAIT_S, timestamp_us=1)

    def options(self, table: str, **others: str) -> dict[str, str]:
        return {"contact": self.contact, "table": table, **others}


def _value(k: int, n: int) -> int:
    return k * 100 + n


EXPECTED: list[tuple[int, str | None, int, int | None]] = [
    *((k, f"c{n}", k, _value(k, n)) for k in range(PARTITIONS) for n in range(ROWS) if (k, n) != (0, 0)),
    (1000, None, 7, None),
]


@pytest.fixture(scope="module")
def tables(served: ServedNodes) -> Iterator[Tables]:
    made = Tables(served)
    yield made
    made.close()


@pytest.fixture(scope="module")
def spark(one_spark: OneSpark) -> SparkSession:
    return one_spark.user(MASTER)


def frame(spark: SparkSession, tables: Tables, table: str, **options: str) -> DataFrame:
    return spark.read.format("ebla").options(**tables.options(table, **options)).load()


def rows_of(found: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in found.select("k", "c", "s", "v").collect()), key=str)


# ---- what is read


@pytest.mark.parametrize(("table", "options"), [
    ("ks.t", {"consistency": "ONE"}),
    ("ks.t", {"consistency": "ONE", "shortcut": "false"}),
    ("ks.t", {"consistency": "ALL"}),
    ("vn.t", {"consistency": "QUORUM"}),
    ("vn.t", {"consistency": "LOCAL_QUORUM", "shortcut": "false", "split_bytes": "1k"}),
])  # fmt: skip
def test_all_rows_at_each_level(spark: SparkSession, tables: Tables, table: str, options: dict[str, str]) -> None:
    assert rows_of(frame(spark, tables, table, **options)) == sorted(EXPECTED, key=str)


FILTERS = [
    "k IN (1, 2, 3, 99) AND c >= 'c2'",
    "k = 1000 AND c IS NULL",
    "c = 'c1' AND v > 500",
    "k > 5 AND k < 9",
    "k = 3 OR k = 4",
    "tok > 0 AND tok <= 4611686018427387904",
]


def test_filters_find_the_same_whoever_applies_them(spark: SparkSession, tables: Tables) -> None:
    """Applied by Spark, and by the nodes if the user says that each frame is used once."""
    by_spark = frame(spark, tables, "ks.t", token="tok")
    expected = {condition: rows_of(by_spark.where(condition)) for condition in FILTERS}
    assert all(expected.values())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in FILTERS:
            pushed = frame(spark, tables, "ks.t", token="tok", pushdown="true").where(condition)
            assert rows_of(pushed) == expected[condition], condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_that_is_filtered_twice_is_right_whatever_the_setting_is(spark: SparkSession, tables: Tables) -> None:
    """Spark 4.3 runs all scans of a frame with the filters that were pushed last, so pushdown is off by default."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        read = frame(spark, tables, "ks.t")
        both = read.where("k = 3").select("c").join(read.where("k = 4").select("c"), "c")
        assert both.count() == ROWS
        assert read.count() == len(EXPECTED)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


WHERES = ["k IN (1, 2, 99) AND c >= 'c2'", "c > 'c1' AND c <= 'c3'", "k > 5 AND k < 9"]


@pytest.mark.parametrize("condition", WHERES)
def test_conditions_of_a_load(spark: SparkSession, tables: Tables, condition: str) -> None:
    reference = spark.createDataFrame(EXPECTED, "k int, c string, s int, v bigint")
    read = frame(spark, tables, "vn.t", where=condition)
    assert rows_of(read) == rows_of(reference.where(condition))
    assert rows_of(read.where("v % 2 = 0")) == rows_of(reference.where(condition).where("v % 2 = 0"))


def test_columns_schemas_write_times_and_ttls(spark: SparkSession, tables: Tables) -> None:
    tables.cql("CREATE TABLE ks.ttls (k int PRIMARY KEY, a int, b int, d decimal)")
    tables.cql("INSERT INTO ks.ttls (k, a, d) VALUES (1, 2, 1.50) USING TTL 5000 AND TIMESTAMP 77")
    tables.cql("INSERT INTO ks.ttls (k, b) VALUES (1, 3) USING TIMESTAMP 78")
    read = frame(spark, tables, "ks.ttls", columns="b, k", writetime="a,b", ttl="a,b", token="t")
    assert read.columns == ["b", "k", "t", "a_writetime", "b_writetime", "a_ttl", "b_ttl"]
    (row,) = read.collect()
    assert (row.b, row.k, row.a_writetime, row.b_writetime, row.b_ttl) == (3, 1, 77, 78, None)
    assert 4_000 < row.a_ttl <= 5_000
    assert row.t == -4069959284402364209
    chosen = spark.read.format("ebla").options(contact=tables.contact).schema("D decimal(10,2), K bigint")
    assert [tuple(one) for one in chosen.load("ks.ttls").collect()] == [(Decimal("1.50"), 1)]


MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5, 678_000)  # noqa: DTZ001  # as Spark gives them
TYPES: list[tuple[str, Any, Any]] = [
    ("ascii", "plain", "plain"),
    ("bigint", -(2**63), -(2**63)),
    ("blob", b"\x00\xff", bytearray(b"\x00\xff")),
    ("boolean", True, True),
    ("date", 31, datetime.date(1970, 2, 1)),
    ("decimal", Decimal("-1.50"), "-1.50"),
    ("double", 1.5, 1.5),
    ("duration", Duration(1, 2, 3), Row(months=1, days=2, nanoseconds=3)),
    ("float", -0.5, -0.5),
    ("inet", "2001:db8::1", "2001:db8::1"),
    ("int", 2**31 - 1, 2**31 - 1),
    ("smallint", -5, -5),
    ("text", "ünï🦆", "ünï🦆"),
    ("time", 86_399_999_999_999, 86_399_999_999_999),
    ("timestamp", 1_577_934_245_678, MOMENT),
    ("timeuuid", uuid.UUID("123e4567-e89b-12d3-a456-426614174000"), "123e4567-e89b-12d3-a456-426614174000"),
    ("tinyint", -128, -128),
    ("uuid", uuid.UUID(int=2**128 - 1), "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ("varint", 10**40, "1" + "0" * 40),
    ("list<int>", [3, 1, 3], [3, 1, 3]),
    ("set<text>", ["b", "a"], ["a", "b"]),
    ("map<text, bigint>", [("a", 1)], {"a": 1}),
    ("frozen<tuple<int, text, uuid>>", (1, None, uuid.UUID(int=0)), Row(_1=1, _2=None, _3=str(uuid.UUID(int=0)))),
    ("list<frozen<map<uuid, frozen<list<duration>>>>>", [[(uuid.UUID(int=1), [Duration(0, 0, 1)])]],
     [{str(uuid.UUID(int=1)): [Row(months=0, days=0, nanoseconds=1)]}]),
]  # fmt: skip


def test_every_type(spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    names = [f"c{number}" for number in range(len(TYPES))]
    declared = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, TYPES))
    tables.cql(f"CREATE TABLE ks.types (k int PRIMARY KEY, {declared})")
    values = [encode(parse_type(kind), value) for kind, value, _ in TYPES]
    marks = ", ".join("?" for _ in names)
    tables.cql(f"INSERT INTO ks.types (k, {', '.join(names)}) VALUES (1, {marks})", *values)
    tables.cql("INSERT INTO ks.types (k) VALUES (2)")
    for level in ("ONE", "QUORUM"):
        read = frame(spark, tables, "ks.types", consistency=level)
        (full,) = read.where("k = 1").collect()
        for name, (kind, _, expected) in zip(names, TYPES):
            assert full[name] == expected, kind
        (empty,) = read.where("k = 2").collect()
        assert all(empty[name] is None for name in names)


def test_sql_joins_and_aggregates(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW joined USING ebla OPTIONS (contact '{tables.contact}', table 'vn.t')")
    spark.createDataFrame([(k, k % 3) for k in range(PARTITIONS)], "k int, g int").createOrReplaceTempView("groups")
    found = spark.sql(
        "SELECT g, count(*) n, sum(v) v FROM joined JOIN groups USING (k) GROUP BY g ORDER BY g"
    ).collect()
    for g in range(3):
        values = [v for k, _, _, v in EXPECTED if v is not None and k % 3 == g]
        assert tuple(found[g]) == (g, len(values), sum(values))


def test_a_frame_that_is_used_again_sees_what_came_since(spark: SparkSession, tables: Tables) -> None:
    tables.cql("CREATE TABLE ks.grows (k int PRIMARY KEY)")
    tables.cql("INSERT INTO ks.grows (k) VALUES (1)")
    read = frame(spark, tables, "ks.grows")
    assert [read.count(), read.count()] == [1, 1]
    tables.cql("INSERT INTO ks.grows (k) VALUES (2)")
    assert read.count() == 2
    (both,) = read.alias("a").crossJoin(read.alias("b")).agg({"*": "count"}).collect()
    assert both[0] == 4


# ---- mistakes


@pytest.mark.parametrize(("options", "words"), [
    ({"table": "ks.nothing"}, "keyspace 'ks' has no table 'nothing'"),
    ({"table": "kss.t"}, "there is no keyspace 'kss'; did you mean 'ks'?"),
    ({"table": "ks.t", "columns": "kk"}, "table ks.t has no column 'kk'; did you mean 'k'?"),
    ({"table": "ks.t", "consistancy": "ONE"}, "there is no option 'consistancy'; did you mean 'consistency'?"),
    ({"table": "ks.t", "contact": "127.0.0.1:9"}, "no node answers (127.0.0.1:9 cannot be reached"),
    ({"table": "ks.t", "writetime": "k"}, "PRIMARY KEY part k"),
])  # fmt: skip
def test_mistakes_say_what_to_do(spark: SparkSession, tables: Tables, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException) as found:
        spark.read.format("ebla").options(**{"contact": tables.contact, **options}).load().collect()
    assert words in str(found.value)


def test_a_schema_that_does_not_fit(spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(PySparkException) as found:
        spark.read.format("ebla").options(contact=tables.contact).schema("k string, v int").load("ks.t").collect()
    assert "k: a CQL int is read as int, bigint, not string; v: a CQL bigint is read as bigint" in str(found.value)


# ---- nodes that die


def test_a_node_that_dies_in_the_middle_is_followed(tables: Tables) -> None:
    tables.fill_large("large", 3_000)
    options = tables.options("ks.large", consistency="ONE", shortcut="false", split_bytes="1g")
    reader = data_source.make_reader(options, data_source.table_schema(options))
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    first = next(batches)
    killed = _source_of(tables, partition.value)
    tables.nodes.kill_node(killed)
    keys = [key for batch in (first, *batches) for key in batch.column("k").to_pylist()]
    assert sorted(keys) == list(range(3_000)), "each row once"
    tables.nodes.start_node(killed)


def test_a_node_that_is_down_is_left_out_where_the_level_allows_it(spark: SparkSession, tables: Tables) -> None:
    tables.nodes.kill_node(2)
    try:
        assert rows_of(frame(spark, tables, "ks.t", consistency="QUORUM", timeout="60s")) == sorted(EXPECTED, key=str)
        options = tables.options("ks.t", consistency="ALL", timeout="20s")
        reader = data_source.make_reader(options, data_source.table_schema(options))
        with pytest.raises(Unavailable):
            reader.partitions()
    finally:
        tables.nodes.start_node(2)


def _source_of(tables: Tables, share: bytes) -> int:
    """The node that the first range of a split is read from."""
    found = decode_split(share)
    host = found.sources[found.ranges[0].sources[0]].host
    identities = [node.folder.read_identity() for node in tables.nodes.local.nodes]
    return next(number for number, one in enumerate(identities) if one is not None and one.host == host)
