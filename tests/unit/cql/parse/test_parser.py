"""Parses statements, and reports the positions of errors."""

import pytest

from ebla.cql.parse import statements as s
from ebla.cql.parse.parser import parse
from ebla.cql.parse.terms import (
    Arithmetic,
    BindMarker,
    ColumnName,
    FunctionCall,
    ListLiteral,
    Literal,
    LiteralKind,
    NullLiteral,
    SetOrMapLiteral,
    Term,
    TupleLiteral,
    TypeHint,
)
from ebla.model.cql_types import parse_type
from ebla.model.errors import BadSyntax, InvalidRequest
from ebla.wire.cql.frames import BatchKind


def term_of(text: str) -> Term:
    statement = parse(f"INSERT INTO t (a) VALUES ({text})").statement
    assert isinstance(statement, s.InsertStatement)
    return statement.values[0]


ONE = Literal(LiteralKind.INTEGER, "1")


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("1", ONE),
        ("-1", Literal(LiteralKind.INTEGER, "-1")),
        ("1.5e-3", Literal(LiteralKind.FLOAT, "1.5e-3")),
        ("1.", Literal(LiteralKind.FLOAT, "1.")),
        ("NaN", Literal(LiteralKind.FLOAT, "NaN")),
        ("-Infinity", Literal(LiteralKind.FLOAT, "-Infinity")),
        ("'it''s'", Literal(LiteralKind.STRING, "it's")),
        ("$$it's$$", Literal(LiteralKind.STRING, "it's")),
        ("''", Literal(LiteralKind.STRING, "")),
        ("true", Literal(LiteralKind.BOOLEAN, "true")),
        ("FALSE", Literal(LiteralKind.BOOLEAN, "false")),
        ("null", NullLiteral()),
        ("0xCAFE", Literal(LiteralKind.HEX, "CAFE")),
        ("0x", Literal(LiteralKind.HEX, "")),
        ("550e8400-e29b-41d4-a716-446655440000", Literal(LiteralKind.UUID, "550e8400-e29b-41d4-a716-446655440000")),
        ("1h30m", Literal(LiteralKind.DURATION, "1h30m")),
        ("-P1Y2M", Literal(LiteralKind.DURATION, "-P1Y2M")),
        ("?", BindMarker(0)),
        (":name", BindMarker(0, "name")),
        (':"Name"', BindMarker(0, "Name")),
        ("[1, 1]", ListLiteral((ONE, ONE))),
        ("[]", ListLiteral(())),
        ("{}", SetOrMapLiteral(())),
        ("{1}", SetOrMapLiteral(((ONE, None),))),
        ("{1:1}", SetOrMapLiteral(((ONE, ONE),))),
        ("{'a':true}", SetOrMapLiteral(((Literal(LiteralKind.STRING, "a"), Literal(LiteralKind.BOOLEAN, "true")),))),
        ("{1: :v}", SetOrMapLiteral(((ONE, BindMarker(0, "v")),))),
        ("(1, 1)", TupleLiteral((ONE, ONE))),
        ("(int) 1", TypeHint(parse_type("int"), ONE)),
        ("(map<text, int>) ?", TypeHint(parse_type("map<text, int>"), BindMarker(0))),
        ("now()", FunctionCall("now", ())),
        ("system.now()", FunctionCall("system.now", ())),
        ("1 + 1 * 1", Arithmetic(ONE, (("+", Arithmetic(ONE, (("*", ONE),))),))),
    ],
)
def test_a_term(text: str, term: Term) -> None:
    assert term_of(text) == term


def test_names_are_folded_unless_quoted() -> None:
    statement = parse('SELECT "Aa", Bb AS "Cc" FROM Ks."Tt"').statement
    assert isinstance(statement, s.SelectStatement)
    assert statement.table == s.TableName("ks", "Tt")
    assert statement.selectors == (s.SelectItem(ColumnName("Aa")), s.SelectItem(ColumnName("bb"), "Cc"))


def test_markers_are_numbered_in_the_order_of_the_text() -> None:
    found = parse("UPDATE t USING TTL ? SET a = ?, m[:k] = ? WHERE k IN ? AND c > :c")
    assert [marker.name for marker in found.markers] == [None, None, "k", None, None, "c"]
    assert [marker.number for marker in found.markers] == [0, 1, 2, 3, 4, 5]


def test_every_part_of_a_select() -> None:
    found = parse(
        "SELECT DISTINCT a FROM t WHERE a = 1 AND b IN (1, 2) AND (c, d) >= (1, 2) AND token(a) < 5 AND m['x'] = 1 "
        "AND l CONTAINS 1 AND m CONTAINS KEY 'x' ORDER BY c DESC, d PER PARTITION LIMIT 1 LIMIT ? ALLOW FILTERING "
        "BYPASS CACHE USING TIMEOUT 5s;"
    ).statement
    assert isinstance(found, s.SelectStatement)
    assert [type(one).__name__ for one in found.where] == [
        "ColumnRelation",
        "ColumnRelation",
        "MultiColumnRelation",
        "TokenRelation",
        "ElementRelation",
        "ColumnRelation",
        "ColumnRelation",
    ]
    assert found.order_by == (s.Ordering("c", True), s.Ordering("d", False))
    assert found.distinct
    assert found.allow_filtering
    assert found.bypass_cache
    assert found.limit == BindMarker(0)
    assert found.using.timeout == Literal(LiteralKind.DURATION, "5s")


def test_words_that_are_columns_too() -> None:
    found = parse("SELECT json, distinct, ttl, key FROM t").statement
    assert isinstance(found, s.SelectStatement)
    assert [one.item for one in found.selectors] == [ColumnName(one) for one in ("json", "distinct", "ttl", "key")]


def test_counts() -> None:
    for text in ("count(*)", "COUNT(1)"):
        found = parse(f"SELECT {text} FROM t").statement
        assert isinstance(found, s.SelectStatement)
        assert found.selectors == (s.SelectItem(FunctionCall("count", ())),)


def test_assignments() -> None:
    found = parse("UPDATE t SET a = a + [1], b = [1] + b, c = c - {1}, d += {1}, e -= {1}, f = 1 WHERE k = 1").statement
    assert isinstance(found, s.UpdateStatement)
    kinds = [one.kind.value for one in found.assignments]
    assert kinds == ["append", "prepend", "remove", "append", "remove", "column"]
    assert found.assignments[-1] == s.Assignment(column="f", kind=s.AssignmentKind.COLUMN, value=ONE)


def test_a_table() -> None:
    found = parse(
        "CREATE TABLE IF NOT EXISTS ks.t (a int, b text, c frozen<list<int>>, s text STATIC, PRIMARY KEY ((a, b), c)) "
        "WITH CLUSTERING ORDER BY (c DESC) AND comment = 'it''s' AND gc_grace_seconds = 5 "
        "AND compaction = {'class': 'X', 'enabled': true}"
    ).statement
    assert isinstance(found, s.CreateTableStatement)
    assert (found.partition_key, found.clustering, found.if_not_exists) == (("a", "b"), ("c",), True)
    assert found.columns[3] == s.ColumnDefinition("s", parse_type("text"), is_static=True)
    assert found.clustering_order == (s.Ordering("c", True),)
    assert found.properties.get("compaction") == {"class": "X", "enabled": "true"}
    assert found.properties.get("gc_grace_seconds") == "5"


def test_the_key_beside_its_column() -> None:
    found = parse("CREATE TABLE t (k int PRIMARY KEY, v text)").statement
    assert isinstance(found, s.CreateTableStatement)
    assert found.partition_key == ("k",)


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("DESCRIBE KEYSPACES", s.DescribeStatement(target=s.DescribeTarget.KEYSPACES)),
        ("DESC TABLES;", s.DescribeStatement(target=s.DescribeTarget.TABLES)),
        ("DESCRIBE KEYSPACE", s.DescribeStatement(target=s.DescribeTarget.KEYSPACE)),
        ("DESCRIBE ONLY KEYSPACE ks", s.DescribeStatement(target=s.DescribeTarget.ONLY_KEYSPACE, keyspace="ks")),
        ("DESCRIBE TABLE ks.t", s.DescribeStatement(target=s.DescribeTarget.TABLE, keyspace="ks", name="t")),
        (
            "DESCRIBE TABLE t WITH INTERNALS",
            s.DescribeStatement(target=s.DescribeTarget.TABLE, keyspace=None, name="t", with_internals=True),
        ),
        ("DESCRIBE FULL SCHEMA", s.DescribeStatement(target=s.DescribeTarget.FULL_SCHEMA)),
        ("DESCRIBE SCHEMA", s.DescribeStatement(target=s.DescribeTarget.SCHEMA)),
        ("DESCRIBE CLUSTER", s.DescribeStatement(target=s.DescribeTarget.CLUSTER)),
        ("DESCRIBE x", s.DescribeStatement(target=s.DescribeTarget.ANY, keyspace=None, name="x")),
        ("DESCRIBE MATERIALIZED VIEW ks.v", s.DescribeStatement(target=s.DescribeTarget.VIEW, keyspace="ks", name="v")),
    ],
)
def test_describe(text: str, described: s.DescribeStatement) -> None:
    assert parse(text).statement == described


def test_comments_and_empty_batches() -> None:
    found = parse("/* a\n b */ BEGIN -- c\n BATCH // d\n APPLY BATCH").statement
    assert found == s.BatchStatement(BatchKind.LOGGED, ())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("INSERT INTO t (a) VALUES (1) IF NOT EXISTS", "IF conditions"),
        ("UPDATE t SET a = 1 WHERE k = 1 IF a = 2", "IF conditions"),
        ("DELETE FROM t WHERE k = 1 IF EXISTS", "IF conditions"),
        ("CREATE INDEX ON t (a)", "indexes"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM t", "materialized views"),
        ("CREATE TYPE u (a int)", "user-defined types"),
        ("CREATE FUNCTION f (a int) RETURNS NULL", "user-defined functions"),
        ("CREATE ROLE r", "roles"),
        ("GRANT ALL ON KEYSPACE k TO r", "roles"),
        ("LIST ROLES", "roles"),
        ("SELECT JSON a FROM t", "SELECT JSON"),
        ("SELECT CAST(a AS text) FROM t", "CAST"),
        ("SELECT a FROM t GROUP BY a", "GROUP BY"),
        ("CREATE TABLE t (k int PRIMARY KEY, c counter)", "counters"),
        ("BEGIN COUNTER BATCH APPLY BATCH", "counters"),
    ],
)
def test_what_is_understood_and_not_there(text: str, what: str) -> None:
    found = parse(text).statement
    assert isinstance(found, s.UnsupportedStatement)
    assert what in found.what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1:0 no viable alternative at input '<EOF>'"),
        ("SELEC a FROM t", "line 1:0 no viable alternative at input 'SELEC'"),
        ("SELECT a\nFROM", "line 2:4 no viable alternative at input '<EOF>', expecting a table"),
        ("SELECT a FROM t WHERE", "line 1:21 no viable alternative at input '<EOF>', expecting a column"),
        ("SELECT a FROM t WHERE a ! 1", "no viable alternative at character '!'"),
        ("SELECT a FROM t WHERE a = 1 OR b = 2", "joined by AND alone"),
        ("SELECT a FROM t; SELECT b FROM t", "expecting the end of the statement"),
        ("INSERT INTO t (a) VALUES (", "no viable alternative at input '<EOF>'"),
        ("INSERT INTO t (a) VALUES ({1: 2, 3})", "half a set and half a map"),
        ("CREATE TABLE select (k int PRIMARY KEY)", "expecting a table"),
        ("UPDATE t USING TTL 1 AND TTL 2 SET a = 1 WHERE k = 1", "after a second TTL"),
        ("DELETE FROM t USING TTL 1 WHERE k = 1", "expecting TIMESTAMP or TIMEOUT"),
        ("UPDATE t SET a = 1, a = 2 WHERE k = 1", "after multiple incompatible settings of column a"),
        ("UPDATE t SET a = [1], a[0] = 2 WHERE k = 1", "after multiple incompatible settings of column a"),
        ("SELECT é FROM t", "line 1:7 no viable alternative at character 'é'"),
        ("SELECT " + "(" * 100 + "1" + ")" * 100 + " FROM t", "nested more than 64 deep"),
    ],
)
def test_where_a_statement_goes_wrong(text: str, words: str) -> None:
    with pytest.raises(BadSyntax) as caught:
        parse(text)
    assert words in str(caught.value)


def test_a_type_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="unknown type"):
        parse("CREATE TABLE t (k nope PRIMARY KEY)")
