"""SELECT: restrictions, order, limits, pages, filters, aggregates and functions."""

import datetime
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from cassandra.query import SimpleStatement

Rows = Callable[..., list[tuple[Any, ...]]]
Refused = Callable[..., str]
Table = Callable[[str], str]

WIDE = "p int, a int, b int, c int, v text, PRIMARY KEY (p, a, b, c)"
STATIC = "p int, c int, s text static, v int, PRIMARY KEY (p, c)"
DESCENDING = "p int, a int, b text, v int, PRIMARY KEY (p, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC"
PAIR = "p int, q text, c int, v int, PRIMARY KEY ((p, q), c)"
SCAN = "k int PRIMARY KEY, v int"


@pytest.fixture
def wide(session: Any, table: Table, key: int) -> str:
    """(p, a, b, c) with a in 1..3, b in 1..3, c in 1..2."""
    name = table(WIDE)
    insert = session.prepare(f"INSERT INTO {name} (p, a, b, c, v) VALUES (?, ?, ?, ?, ?)")
    for a in (1, 2, 3):
        for b in (1, 2, 3):
            for c in (1, 2):
                session.execute(insert, (key, a, b, c, f"{a}{b}{c}"))
    return name


@pytest.fixture
def found(rows: Rows, wide: str, key: int) -> Callable[[str], list[str]]:
    def values(rest: str) -> list[str]:
        return [row[0] for row in rows(f"SELECT v FROM {wide} WHERE p = {key} {rest}")]

    return values


ALL = [f"{a}{b}{c}" for a in (1, 2, 3) for b in (1, 2, 3) for c in (1, 2)]
SLICES: tuple[tuple[str, list[str]], ...] = (
    ("", ALL),
    ("AND a = 2", [v for v in ALL if v[0] == "2"]),
    ("AND a > 1", [v for v in ALL if v[0] > "1"]),
    ("AND a >= 2 AND a < 3", [v for v in ALL if v[0] == "2"]),
    ("AND a = 1 AND b > 1 AND b <= 3", [v for v in ALL if v[0] == "1" and v[1] > "1"]),
    ("AND a = 1 AND b = 2 AND c = 2", ["122"]),
    ("AND a > 3", []),
    ("AND a > 2 AND a < 2", []),
    ("AND a IN (3, 1, 3) AND b = 2", ["121", "122", "321", "322"]),
    ("AND a IN (1, 9) AND b IN (1, 2) AND c IN (2, 1, 2)", ["111", "112", "121", "122"]),
    ("AND a = 2 AND b IN ()", []),
    ("AND (a, b) = (2, 3)", ["231", "232"]),
    ("AND (a, b) > (2, 2)", [v for v in ALL if v[:2] > "22"]),
    ("AND (a, b, c) >= (2, 2, 2) AND (a) <= (2)", [v for v in ALL if v >= "222" and v[0] <= "2"]),
    ("AND (a, b) < (2, 2) AND (a, b, c) > (1, 1, 1)", [v for v in ALL if v > "111" and v[:2] < "22"]),
    ("AND (a, b) IN ((3, 1), (1, 3), (1, 3))", ["131", "132", "311", "312"]),
    ("AND (a, b, c) IN ((1, 1, 1), (2, 2, 2))", ["111", "222"]),
    ("AND a = 1 AND (b, c) > (1, 1)", [v for v in ALL if v[0] == "1" and v[1:] > "11"]),
    ("ORDER BY a DESC", ALL[::-1]),
    ("ORDER BY a DESC, b DESC, c DESC LIMIT 3", ALL[::-1][:3]),
    ("AND a = 1 ORDER BY b DESC", [v for v in ALL[::-1] if v[0] == "1"]),
    ("AND a = 1 AND b > 1 ORDER BY b DESC", [v for v in ALL[::-1] if v[0] == "1" and v[1] > "1"]),
    ("AND (a, b) > (2, 2) ORDER BY a DESC", [v for v in ALL[::-1] if v[:2] > "22"]),
    ("ORDER BY a ASC LIMIT 2", ALL[:2]),
    ("LIMIT 5", ALL[:5]),
    ("PER PARTITION LIMIT 4", ALL[:4]),
    ("PER PARTITION LIMIT 4 LIMIT 2", ALL[:2]),
    ("AND c = 2 ALLOW FILTERING", [v for v in ALL if v[2] == "2"]),
    ("AND b = 2 AND c = 1 ALLOW FILTERING", ["121", "221", "321"]),
    ("AND v = '222' ALLOW FILTERING", ["222"]),
    ("AND v > '222' AND b = 2 LIMIT 1 ALLOW FILTERING", ["321"]),
    ("AND v IN ('111', '333', '222') ALLOW FILTERING", ["111", "222"]),
    ("AND b >= 3 PER PARTITION LIMIT 1 ALLOW FILTERING", ["131"]),
)  # fmt: skip


def test_slices_of_a_partition(found: Callable[[str], list[str]]) -> None:
    for rest, expected in SLICES:
        assert found(rest) == expected, rest


def test_slices_by_pages(session: Any, wide: str, key: int) -> None:
    for rest, expected in SLICES:
        for size in (1, 2, 7):
            statement = SimpleStatement(f"SELECT v FROM {wide} WHERE p = {key} {rest}", fetch_size=size)
            assert [row.v for row in session.execute(statement)] == expected, (rest, size)


def test_what_cannot_be_restricted_is_told(wide: str, refused: Refused, key: int) -> None:
    for rest, output in (
        (f"p = {key} AND c = 1", 'PRIMARY KEY column "c" cannot be restricted as preceding column'),
        (f"p = {key} AND a > 1 AND b = 1", 'Clustering column "b" cannot be restricted (preceding column "a"'),
        ("a = 1", "ALLOW FILTERING"),
        (f"p = {key} AND v = 'x'", "ALLOW FILTERING"),
        (f"p > {key}", "ALLOW FILTERING"),
        (f"p = {key} AND nothing = 1", "Undefined column name nothing"),
        (f"p = {key} AND p = 2", "p cannot be restricted by more than one relation if it includes an Equal"),
        (f"p = {key} AND a > 1 AND a > 2", "More than one restriction was found for the start bound on a"),
        (f"p = {key} AND a = null", "null"),
        ("p = null", "null"),
        (f"p = {key} AND (a, c) > (1, 1)", "c"),
        (f"p = {key} ORDER BY b DESC", "rder"),
        (f"p = {key} ORDER BY v", "v"),
        (f"p = {key} LIMIT 0", "LIMIT must be strictly positive"),
        (f"p = {key} LIMIT -1", "LIMIT must be strictly positive"),
        (f"p = {key} PER PARTITION LIMIT 0", "PER PARTITION LIMIT must be strictly positive"),
        ("token(p) > 1 AND p = 1", "token"),
        (f"p = {key} AND a CONTAINS 1", "CONTAINS"),
    ):
        assert output in refused(f"SELECT * FROM {wide} WHERE {rest}"), rest
    assert "ORDER BY" in refused(f"SELECT * FROM {wide} ORDER BY a DESC")


def test_descending_tables_are_read_in_their_order_and_against_it(
    session: Any, table: Table, rows: Rows, key: int
) -> None:
    name = table(DESCENDING)
    for a in (1, 2, 3):
        for b in ("", "x", "y"):
            session.execute(f"INSERT INTO {name} (p, a, b, v) VALUES (%s, %s, %s, %s)", (key, a, b, a))
    down = [(a, b) for a in (3, 2, 1) for b in ("", "x", "y")]
    select = f"SELECT a, b FROM {name} WHERE p = {key}"
    assert rows(select) == down
    assert rows(f"{select} ORDER BY a ASC, b DESC") == down[::-1]
    assert rows(f"{select} ORDER BY a DESC") == down
    assert rows(f"{select} AND a > 1") == [one for one in down if one[0] > 1]
    assert rows(f"{select} AND a <= 2 AND a > 1") == [one for one in down if one[0] == 2]
    # Columns that run in different directions: the slice is several ranges of the stored order.
    assert rows(f"{select} AND (a, b) > (1, 'x')") == [one for one in down if one > (1, "x")]
    assert rows(f"{select} AND (a, b) <= (2, '')") == [one for one in down if one <= (2, "")]
    assert rows(f"{select} AND a = 2 AND b >= 'x' ORDER BY a ASC, b DESC") == [(2, "y"), (2, "x")]


def test_partitions_by_in_and_in_order(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PAIR)
    for q in ("x", "y"):
        for c in (1, 2):
            session.execute(f"INSERT INTO {name} (p, q, c, v) VALUES (%s, %s, %s, %s)", (key, q, c, c))
    select = f"SELECT q, c FROM {name} WHERE p = {key} AND q"
    assert sorted(rows(f"{select} IN ('x', 'y', 'x', 'none')")) == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert rows(f"{select} IN ()") == []
    assert rows(f"{select} = 'x' AND c IN (2, 1)") == [("x", 1), ("x", 2)]
    assert sorted(rows(f"{select} IN ('x', 'y') PER PARTITION LIMIT 1")) == [("x", 1), ("y", 1)]
    ordered = SimpleStatement(f"{select} IN ('x', 'y') ORDER BY c DESC", fetch_size=None)
    assert [row.c for row in session.execute(ordered)] == [2, 2, 1, 1]
    prepared = session.prepare(f"SELECT q, c FROM {name} WHERE p = ? AND q IN ?")
    assert sorted(tuple(row) for row in session.execute(prepared, (key, ["x"]))) == [("x", 1), ("x", 2)]
    assert list(session.execute(prepared, (key, []))) == []


def test_frozen_collections_and_tuples_are_keys(session: Any, table: Table, rows: Rows) -> None:
    name = table("p frozen<list<int>>, c frozen<map<int, text>>, t frozen<tuple<int, text>>, PRIMARY KEY (p, c, t)")
    for number in (1, 2, 3):
        session.execute(f"INSERT INTO {name} (p, c, t) VALUES ([1, 2], {{2: 'b', 1: 'a'}}, (1, 'x{number}'))")
    select = f"SELECT t FROM {name} WHERE p = [1, 2] AND c = {{1: 'a', 2: 'b'}} AND t"
    assert rows(f"{select} = (1, 'x2')") == [((1, "x2"),)]
    assert rows(f"{select} >= (1, 'x2')") == [((1, "x2"),), ((1, "x3"),)]
    assert rows(f"{select} IN ((1, 'x1'), (1, 'x3'))") == [((1, "x1"),), ((1, "x3"),)]
    assert rows(f"SELECT t FROM {name} WHERE p = [2, 1]") == []


@pytest.fixture(scope="module")
def scanned(session: Any, table: Table) -> str:
    name = table(SCAN + ", marked int")
    insert = session.prepare(f"INSERT INTO {name} (k, v) VALUES (?, ?)")
    for k in range(300):
        session.execute(insert, (k, k % 7))
    return name


def test_scans_by_token_and_by_page(session: Any, scanned: str, rows: Rows) -> None:
    by_token = rows(f"SELECT token(k), k FROM {scanned}")
    assert sorted(k for _, k in by_token) == list(range(300))
    assert by_token == sorted(by_token)
    for size in (7, 100, 300, 301):
        statement = SimpleStatement(f"SELECT k FROM {scanned}", fetch_size=size)
        assert [row.k for row in session.execute(statement)] == [k for _, k in by_token]
    middle, k = by_token[150]
    assert rows(f"SELECT k FROM {scanned} WHERE token(k) > {middle}") == [(k,) for _, k in by_token[151:]]
    assert rows(f"SELECT k FROM {scanned} WHERE token(k) >= token({k}) LIMIT 3") == [(k,) for _, k in by_token[150:153]]
    first = by_token[100][0]
    between = f"SELECT k FROM {scanned} WHERE token(k) > {first} AND token(k) <= {middle}"
    assert rows(between) == [(k,) for _, k in by_token[101:151]]
    assert rows(f"SELECT k FROM {scanned} WHERE token(k) = {middle}") == [(k,)]
    assert rows(f"SELECT k FROM {scanned} WHERE token(k) > {middle} AND token(k) < {first}") == []


def test_limits_hold_over_pages(session: Any, scanned: str) -> None:
    for limit, size in ((10, 3), (3, 10), (10, 10), (10, 5)):
        answer = session.execute(SimpleStatement(f"SELECT k FROM {scanned} LIMIT {limit}", fetch_size=size))
        assert len(answer.current_rows) == min(limit, size)
        assert len(list(answer)) == limit


def test_filters_over_pages(session: Any, scanned: str) -> None:
    statement = SimpleStatement(f"SELECT k FROM {scanned} WHERE v = 3 ALLOW FILTERING", fetch_size=5)
    assert sorted(row.k for row in session.execute(statement)) == list(range(3, 300, 7))


def test_aggregates(session: Any, scanned: str, rows: Rows) -> None:
    every = list(range(300))
    assert rows(f"SELECT count(*) FROM {scanned}") == [(300,)]
    assert rows(f"SELECT COUNT(1), count(v), count(marked) FROM {scanned}") == [(300, 300, 0)]
    assert rows(f"SELECT min(k), max(k), sum(k), avg(k) FROM {scanned}") == [(0, 299, sum(every), sum(every) // 300)]
    assert rows(f"SELECT count(*) FROM {scanned} LIMIT 1") == [(300,)]
    assert rows(f"SELECT count(*) AS n, max(v) FROM {scanned} WHERE k IN (1, 2, 1000)") == [(2, 2)]
    assert rows(f"SELECT count(*), min(v), sum(v), avg(v) FROM {scanned} WHERE k = -1") == [(0, None, 0, 0)]
    assert session.execute(f"SELECT count(*) FROM {scanned}").one()._fields == ("count",)
    statement = SimpleStatement(f"SELECT count(*) FROM {scanned}", fetch_size=10)
    assert [row.count for row in session.execute(statement)] == [300]


def test_static_columns(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(STATIC)
    session.execute(f"INSERT INTO {name} (p, s) VALUES ({key}, 'first')")
    select = f"SELECT p, c, s, v FROM {name} WHERE p = {key}"
    assert rows(select) == [(key, None, "first", None)]
    assert rows(f"{select} AND c = 1") == []
    assert rows(f"SELECT count(*) FROM {name} WHERE p = {key}") == [(1,)]
    session.execute(f"INSERT INTO {name} (p, c, v) VALUES ({key}, 1, 10)")
    session.execute(f"INSERT INTO {name} (p, c, s, v) VALUES ({key}, 2, 'second', 20)")
    assert rows(select) == [(key, 1, "second", 10), (key, 2, "second", 20)]
    assert rows(f"{select} ORDER BY c DESC") == [(key, 2, "second", 20), (key, 1, "second", 10)]
    assert rows(f"{select} AND c = 2") == [(key, 2, "second", 20)]
    assert rows(f"{select} AND c > 1") == [(key, 2, "second", 20)]
    assert rows(f"SELECT DISTINCT p, s FROM {name} WHERE p = {key}") == [(key, "second")]
    assert rows(f"SELECT s FROM {name} WHERE p = {key} LIMIT 1") == [("second",)]
    assert rows(f"{select} AND s = 'second' ALLOW FILTERING") == [(key, 1, "second", 10), (key, 2, "second", 20)]
    assert rows(f"{select} AND s = 'other' ALLOW FILTERING") == []
    for order in ("", "ORDER BY c DESC"):
        paged = SimpleStatement(f"{select} {order}", fetch_size=1)
        assert {row.s for row in session.execute(paged)} == {"second"}
    ahead_us = time.time_ns() // 1000 + 3_600_000_000
    session.execute(f"UPDATE {name} USING TIMESTAMP {ahead_us} SET s = 'timed' WHERE p = {key}")
    assert rows(f"SELECT writetime(s) FROM {name} WHERE p = {key}") == [(ahead_us,)] * 2
    session.execute(f"DELETE s FROM {name} USING TIMESTAMP {ahead_us + 1} WHERE p = {key}")
    assert rows(f"SELECT DISTINCT s FROM {name} WHERE p = {key}") == [(None,)]
    session.execute(f"DELETE FROM {name} WHERE p = {key} AND c IN (1, 2)")
    assert rows(select) == []


def test_distinct_over_pages(session: Any, table: Table) -> None:
    name = table(STATIC + ", other int")
    for p in range(30):
        if p % 3:
            session.execute(f"INSERT INTO {name} (p, c, v) VALUES ({p}, 1, 1)")
            session.execute(f"INSERT INTO {name} (p, c, v) VALUES ({p}, 2, 1)")
        else:
            session.execute(f"INSERT INTO {name} (p, s) VALUES ({p}, 'alone')")
    for size in (1, 4, 100):
        statement = SimpleStatement(f"SELECT DISTINCT p, s FROM {name}", fetch_size=size)
        shown = [(row.p, row.s) for row in session.execute(statement)]
        assert sorted(shown) == [(p, None if p % 3 else "alone") for p in range(30)], size
        statement = SimpleStatement(f"SELECT p, c FROM {name} PER PARTITION LIMIT 1", fetch_size=size)
        firsts = [(row.p, row.c) for row in session.execute(statement)]
        assert sorted(firsts, key=str) == sorted(((p, 1 if p % 3 else None) for p in range(30)), key=str), size
    assert len(list(session.execute(f"SELECT DISTINCT p FROM {name} LIMIT 5"))) == 5


def test_distinct_is_about_partitions(table: Table, refused: Refused) -> None:
    name = table(STATIC)
    assert "DISTINCT" in refused(f"SELECT DISTINCT v FROM {name}")
    assert "DISTINCT" in refused(f"SELECT DISTINCT p, c FROM {name}")
    assert "DISTINCT" in refused(f"SELECT DISTINCT s FROM {name}")


def test_contains_and_elements(session: Any, table: Table, rows: Rows, key: int) -> None:
    collections = "l list<int>, s set<text>, m map<text, int>, f frozen<map<text, int>>"
    name = table(f"p int, c int, {collections}, PRIMARY KEY (p, c)")
    session.execute(f"INSERT INTO {name} (p, c, l, s, m, f) VALUES ({key}, 1, [1, 2], {{'a'}}, {{'x': 1}}, {{'y': 2}})")
    session.execute(f"INSERT INTO {name} (p, c, l) VALUES ({key}, 2, [3])")
    select = f"SELECT c FROM {name} WHERE p = {key} AND"
    for relation, expected in (
        ("l CONTAINS 2", [(1,)]),
        ("l CONTAINS 3", [(2,)]),
        ("s CONTAINS 'a'", [(1,)]),
        ("m CONTAINS 1", [(1,)]),
        ("m CONTAINS KEY 'x'", [(1,)]),
        ("f CONTAINS KEY 'y' AND f CONTAINS 2", [(1,)]),
        ("m['x'] = 1", [(1,)]),
        ("f = {'y': 2}", [(1,)]),
        ("m CONTAINS KEY 'none'", []),
    ):
        assert rows(f"{select} {relation} ALLOW FILTERING") == expected, relation


def test_functions(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table("k int PRIMARY KEY, t timeuuid, ts timestamp, d date, b blob, i int, n bigint, x text, u uuid")
    session.execute(
        f"INSERT INTO {name} (k, t, ts, d, b, i, n, x, u) VALUES ({key}, now(), '2026-01-02 03:04:05+0000',"
        " '2026-01-02', intAsBlob(7), blobAsInt(0x0000000a), toUnixTimestamp('2026-01-02+0000'), 'x', uuid())"
    )
    ((t, b, i, n, u),) = rows(f"SELECT t, b, i, n, u FROM {name} WHERE k = {key}")
    assert isinstance(t, uuid.UUID)
    assert (b, i, n) == (b"\0\0\0\7", 10, 1767312000000)
    assert u.version == 4
    ((date, stamp, unix),) = rows(f"SELECT toDate(ts), toTimestamp(d), toUnixTimestamp(ts) FROM {name} WHERE k = {key}")
    assert str(date) == "2026-01-02"
    assert stamp.isoformat() == "2026-01-02T00:00:00"
    assert unix == 1767323045000
    ((text,),) = rows(f"SELECT textAsBlob(x) FROM {name} WHERE k = {key}")
    assert text == b"x"
    ((made,),) = rows(f"SELECT dateOf(t) FROM {name} WHERE k = {key}")
    assert abs((made - datetime.datetime.now(datetime.UTC).replace(tzinfo=None)).total_seconds()) < 600
    bounds = f"SELECT k FROM {name} WHERE k = {key} AND t > minTimeuuid('2020-01-01') AND t < maxTimeuuid('2100-01-01')"
    assert rows(f"{bounds} ALLOW FILTERING") == [(key,)]
    ((token,),) = rows(f"SELECT token(k) FROM {name} WHERE k = {key}")
    assert rows(f"SELECT k FROM {name} WHERE token(k) = {token}") == [(key,)]


def test_names_of_columns_in_answers(session: Any, table: Table, key: int) -> None:
    name = table(SCAN)
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1)")
    selected = 'v, v AS "Upper", v AS lower, writetime(v), ttl(v), token(k), max(v)'
    answer = session.execute(f"SELECT {selected} FROM {name} WHERE k = {key}")
    assert answer.column_names == ["v", "Upper", "lower", "writetime(v)", "ttl(v)", "system.token(k)", "system.max(v)"]
    assert session.execute(f"SELECT * FROM {name}").column_names == ["k", "v"]


def test_a_star_shows_keys_then_statics_then_the_rest_by_name(session: Any, table: Table) -> None:
    name = table("z int static, b int, p2 int, c2 int, a int, c1 int, p1 int, PRIMARY KEY ((p2, p1), c2, c1)")
    columns = ["p2", "p1", "c2", "c1", "z", "a", "b"]
    assert session.execute(f"SELECT * FROM {name}").column_names == columns
    described = session.execute(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s",
        (session.keyspace, name),
    )
    assert sorted(row.column_name for row in described) == sorted(columns)


def test_writetime_and_ttl_are_of_single_cells(table: Table, refused: Refused) -> None:
    name = table("k int PRIMARY KEY, v int, l list<int>")
    assert refused(f"SELECT writetime(k) FROM {name}")
    assert refused(f"SELECT writetime(l) FROM {name}")
    assert refused(f"SELECT ttl(k) FROM {name}")
