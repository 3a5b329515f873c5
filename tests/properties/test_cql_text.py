"""Any text and bytes from a client are accepted or refused as the client's mistake, never as an internal error."""

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.cql.world import Cql

from ebla.cql.parse.lexer import TokenKind, tokenize
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import ParsedStatement
from ebla.model.cql_types import SCALARS
from ebla.model.errors import BadConfiguration, BadSyntax, InvalidRequest, NotFound, TooLarge
from ebla.wire.cql.messages import UNSET, BoundValue

STATEMENTS = (
    "SELECT a, count(*), ttl(b) AS x, token(k) FROM ks.t WHERE k IN (1, ?) AND (a, b) > (1, 'x') AND m['a'] = 0x12",
    "SELECT a FROM t ORDER BY a DESC PER PARTITION LIMIT 2 LIMIT :n ALLOW FILTERING USING TIMEOUT 5s",
    "INSERT INTO t (k, l, s, m) VALUES (-1.5e3, [1, 2], {'a'}, {1: (int) ?}) USING TTL 5 AND TIMESTAMP 7",
    "INSERT INTO t (k, u) VALUES (P1Y, 123e4567-e89b-12d3-a456-426655440000)",
    "UPDATE t SET l = [1] + l, m['k'] = null, c += {1}, d = 1 + 2 * (int) 3 WHERE k = 1",
    "DELETE a, l[0] FROM t USING TIMESTAMP 5 WHERE k = 1 AND c >= 'it''s'",
    "BEGIN UNLOGGED BATCH INSERT INTO t (k) VALUES (1); DELETE FROM t WHERE k = ?; APPLY BATCH",
    'CREATE TABLE IF NOT EXISTS ks."T" (k int, c frozen<list<tuple<int, text>>>, s int STATIC, PRIMARY KEY ((k), c))',
    "CREATE TABLE t (k int PRIMARY KEY) WITH CLUSTERING ORDER BY (c DESC) AND compaction = {'class': 'x'}",
    "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "ALTER TABLE t ADD (a int, b text) /* c */ -- d",
    "DESCRIBE FULL SCHEMA",
)
PIECES = sorted({piece for text in STATEMENTS for piece in text.replace("(", " ( ").replace(")", " ) ").split()})
REFUSALS = (BadSyntax, InvalidRequest, TooLarge)


def check_parse(text: str) -> None:
    with suppress(*REFUSALS):
        assert isinstance(parse(text), ParsedStatement)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
@example("SELECT '\ud800' FROM t")
@example("INSERT INTO t (k) VALUES (٣)")
@example("SELECT a FROM t WHERE k = 1 AND")
def test_any_text(text: str) -> None:
    check_parse(text)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_words(words: Sequence[str]) -> None:
    check_parse(" ".join(words))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(STATEMENTS), st.data())
def test_statements_with_a_part_changed(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    put = data.draw(st.one_of(st.text(max_size=4), st.sampled_from(PIECES)))
    check_parse(text[:start] + put + text[end:])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE k = " + "1h" * 20_000 + "x",
        "SELECT a FROM t WHERE k = " + "1" * 100_000,
        "/*" * 50_000,
        "SELECT " + "-" * 50_000,
        "SELECT a FROM t WHERE k = '" + "''" * 50_000,
        'SELECT a FROM t WHERE k = "' + '""' * 50_000,
        "$$" * 50_001,
        "a." * 50_000,
        "P1Y" * 30_000,
        "SELECT a FROM t WHERE k IN (" + ",".join("1" * 60_000) + ")",
        "BEGIN BATCH " + "DELETE FROM t WHERE k = ?; " * 10_000 + "APPLY BATCH",
        "UPDATE t SET " + ", ".join(f"c{number} = 1" for number in range(40_000)) + " WHERE k = 1",
        "SELECT " + "f(" * 60 + "a" + ")" * 60 + " FROM t",
        "SELECT a FROM t WHERE " + "(" * 100_000,
        "INSERT INTO t (k) VALUES (" + "[" * 100_000,
        "CREATE TABLE t (k " + "frozen<" * 50_000,
        "INSERT INTO t (k) VALUES (" + "- " * 50_000 + "1)",
        " \n" * 50_000 + "!",
    ],
)
def test_long_statements_take_their_length(text: str) -> None:
    """Anything quadratic takes minutes with texts of these sizes."""
    began = time.process_time()
    check_parse(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", STATEMENTS)
def test_tokens_stand_where_they_say(text: str) -> None:
    for token in tokenize(text):
        if token.kind in (TokenKind.NAME, TokenKind.INTEGER, TokenKind.SIGN, TokenKind.UUID):
            assert text[token.start :].startswith(token.text)


# ---- values


def table_of_everything() -> Cql:
    cql = Cql()
    scalars = ", ".join(f"c_{name} {name}" for name in sorted(SCALARS))
    cql.run(
        f"CREATE TABLE t (k text, c decimal, d varint, {scalars}, l list<int>, s set<text>, m map<timeuuid, decimal>, "
        "fl frozen<map<text, frozen<list<int>>>>, tp tuple<int, frozen<set<text>>>, PRIMARY KEY (k, c, d))"
    )
    return cql


EVERYTHING = table_of_everything()
COLUMNS = [f"c_{name}" for name in sorted(SCALARS)] + ["l", "s", "m", "fl", "tp"]
LENGTHS = st.integers(-2, 5).map(lambda count: count.to_bytes(4, signed=True))
BYTES = st.one_of(
    st.binary(max_size=24),
    st.lists(st.one_of(LENGTHS, st.binary(max_size=5)), max_size=8).map(b"".join),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=16, max_size=16),
)
VALUES: st.SearchStrategy[BoundValue] = st.one_of(BYTES, BYTES, st.none(), st.just(UNSET))


def attempt(text: str, values: Sequence[BoundValue]) -> None:
    with suppress(InvalidRequest):
        EVERYTHING.answer(text, *values)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(COLUMNS), VALUES)
def test_any_bytes_for_a_column(column: str, value: BoundValue) -> None:
    attempt(f"INSERT INTO t (k, c, d, {column}) VALUES ('k', 1, 1, ?)", [value])
    attempt(f"UPDATE t SET {column} = ? WHERE k = 'k' AND c = 1 AND d = 1", [value])
    attempt(f"SELECT k FROM t WHERE {column} = ? ALLOW FILTERING", [value])
    attempt(f"SELECT k FROM t WHERE {column} IN ? ALLOW FILTERING", [value])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        [
            "SELECT * FROM t WHERE k = ? AND c > ? LIMIT ?",
            "SELECT * FROM t WHERE k IN ? AND c IN ? AND d = ?",
            "SELECT * FROM t WHERE k = ? AND (c, d) IN ? PER PARTITION LIMIT ?",
            "SELECT * FROM t WHERE k = ? AND (c, d) >= ? AND (c, d) < ?",
            "SELECT * FROM t WHERE token(k) > ? AND token(k) <= token(?) LIMIT ?",
            "SELECT blobastext(?), totimestamp((date) ?), (tuple<int, text>) ? FROM t",
            "INSERT INTO t (k, c, d) VALUES (?, ?, ?)",
            "INSERT INTO t (k, c, d, c_int) VALUES ('k', 1, 1, 1) USING TTL ? AND TIMESTAMP ? AND TIMEOUT ?",
            "UPDATE t SET l = ? + l, s = s - ?, m = m + ? WHERE k = 'k' AND c = 1 AND d = 1",
            "UPDATE t SET l[?] = 1, m[?] = ? WHERE k = 'k' AND c = 1 AND d = 1",
            "UPDATE t SET c_int = (int) ? + ?, c_text = blobastext(?) WHERE k = 'k' AND c = 1 AND d = 1",
            "UPDATE t SET c_float = ? * 2, c_decimal = ? / 3, c_double = ? % 2 WHERE k = 'k' AND c = 1 AND d = 1",
            "DELETE l[?], m[?], s[?] FROM t WHERE k = 'k' AND c = 1 AND d = 1",
            "DELETE FROM t WHERE k = ? AND c = ? AND d <= ?",
            "SELECT k FROM t WHERE m CONTAINS KEY ? AND l CONTAINS ? AND m[?] = 1 ALLOW FILTERING",
            "BEGIN BATCH USING TIMESTAMP ? INSERT INTO t (k, c, d) VALUES (?, 1, ?); APPLY BATCH",
        ]
    ),
    st.tuples(VALUES, VALUES, VALUES),
)
def test_any_bytes_for_a_marker(text: str, values: tuple[BoundValue, ...]) -> None:
    attempt(text, values)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["SELECT k FROM t", "SELECT key FROM system.topology"]), st.binary(max_size=40))
def test_any_bytes_for_a_paging_state(text: str, state: bytes) -> None:
    with suppress(InvalidRequest):
        EVERYTHING.answer(text, page_size=2, paging_state=state)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(STATEMENTS), st.data())
def test_changed_statements_against_a_table(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    put = data.draw(st.sampled_from([*PIECES, *COLUMNS]))
    changed = (text[:start] + put + text[end:]).replace("ks.t", "t")
    if changed.split(None, 1)[0] in ("CREATE", "ALTER"):
        return
    with suppress(*REFUSALS, NotFound, BadConfiguration):
        EVERYTHING.answer(changed)
