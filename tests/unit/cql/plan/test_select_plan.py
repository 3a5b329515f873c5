"""SELECT: select list, order, limits, pages, functions and aggregates."""

from decimal import Decimal
from typing import Any

import pytest
from tests.unit.cql.world import NOW_US, Cql

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import encode
from ebla.wire.cql.messages import UNSET

INT = parse_type("int")


@pytest.fixture(scope="module")
def cql() -> Cql:
    """Partitions 1 and 2 of four rows each, `a` descending; 3 has a static value and no row."""
    made = Cql()
    made.run(
        "CREATE TABLE t (k int, a int, b int, s text static, v int, d decimal, f float, n text, l list<int>, "
        "m map<text, int>, e frozen<set<int>>, u duration, PRIMARY KEY (k, a, b)) "
        "WITH CLUSTERING ORDER BY (a DESC, b ASC)"
    )
    for k in (1, 2):
        for a in (0, 1):
            for b in (0, 1):
                made.run(
                    f"INSERT INTO t (k, a, b, v, d, f, n, l, m, e, u) VALUES ({k}, {a}, {b}, {k * 100 + a * 10 + b}, "
                    f"{a}.5{b}, {b}.5, 'n{b}', [{a}, {b}], {{'a': {a}}}, {{{a}, 7}}, {a}h) "
                    f"USING TIMESTAMP {k * 100 + a * 10 + b}"
                )
    made.run("INSERT INTO t (k, s) VALUES (3, 'alone')")
    made.run("UPDATE t USING TIMESTAMP 7 SET s = 'one' WHERE k = 1")
    return made


def names(cql: Cql, text: str) -> list[str]:
    return [column.name for column in cql.found(text).columns]


# ---- the list


def test_star_is_every_column_in_the_tables_order(cql: Cql) -> None:
    shown = ["k", "a", "b", "s", "d", "e", "f", "l", "m", "n", "u", "v"]
    assert names(cql, "SELECT * FROM t") == shown
    (row,) = cql.rows("SELECT * FROM t WHERE k = 3")
    assert row == (3, None, None, "alone", *[None] * 8)


@pytest.mark.parametrize(
    ("selector", "name", "value"),
    [
        ("v", "v", 111),
        ("v AS x", "x", 111),
        ('v AS "X y"', "X y", 111),
        ("count(*)", "count", 1),
        ("COUNT(1)", "count", 1),
        ("count(v)", "system.count(v)", 1),
        ("count(*) AS c", "c", 1),
        ("writetime(v)", "writetime(v)", 111),
        ("WRITETIME(s)", "writetime(s)", 7),
        ("ttl(v)", "ttl(v)", None),
        ("max(writetime(v))", "system.max(writetime(v))", 111),
        ("token(k)", "system.token(k)", -4069959284402364209),
        ("intasblob(v)", "system.intasblob(v)", b"\0\0\0\x6f"),
        ("blobasint(intasblob(v)) AS y", "y", 111),
        ("system.intasblob(v)", "system.intasblob(v)", b"\0\0\0\x6f"),
        ("toUnixTimestamp(currentTimestamp())", "system.tounixtimestamp(system.currenttimestamp())", NOW_US // 1000),
        ("(int) 5", "(int)", 5),
        ("(list<int>) [1]", "(list<int>)", [1]),
        ("textasblob('x')", "system.textasblob(?)", b"x"),
        ("min(n)", "system.min(n)", "n1"),
    ],
)
def test_what_can_be_selected(cql: Cql, selector: str, name: str, value: Any) -> None:
    text = f"SELECT {selector} FROM t WHERE k = 1 AND a = 1 AND b = 1"
    assert names(cql, text) == [name]
    assert cql.rows(text) == [(value,)]


def test_markers_in_the_list(cql: Cql) -> None:
    five = encode(INT, 5)
    assert cql.rows("SELECT (int) ?, intasblob(?) FROM t WHERE k = 3", five, five) == [(5, five)]
    with pytest.raises(InvalidRequest, match="Invalid unset value in the select list"):
        cql.rows("SELECT (int) ? FROM t WHERE k = 3", UNSET)


def test_a_column_may_be_shown_twice(cql: Cql) -> None:
    assert cql.rows("SELECT b, v, b, k FROM t WHERE k = 1 AND a = 0 AND b = 1") == [(1, 101, 1, 1)]


@pytest.mark.parametrize(
    ("selectors", "words"),
    [
        ("nope", "Undefined column name nope in table ks.t"),
        ("count(nope)", "Undefined column name nope in table ks.t"),
        ("nope(v)", "Unknown function 'nope'"),
        ("writetime(k)", "Cannot use selection function writetime on PRIMARY KEY part k"),
        ("ttl(l)", "Cannot use selection function ttl on non-frozen collection l"),
        ("ttl(v, v)", "ttl() takes one column"),
        ("token(n)", "Type error: n cannot be passed as argument 0 of function token of type int"),
        ("token(k, v)", "Invalid number of arguments in call to function token: 1 required but 2 provided"),
        ("sum(n)", "Invalid call to function sum: it takes numbers, not a text"),
        ("avg(l)", "Invalid call to function avg: it takes numbers"),
        ("min(u)", "durations have no order"),
        ("max(v, v)", "Invalid number of arguments in call to function max: 1 required"),
        ("sum()", "Invalid number of arguments in call to function sum: 1 required but 0 provided"),
        ("max(max(v))", "aggregate functions cannot be used as arguments"),
        ("intasblob(n)", "Type error: n cannot be passed as argument 0 of function intasblob of type int"),
        ("intasblob('a')", "Invalid STRING constant (a)"),
        ("todate(?)", "Ambiguous call to function todate"),
        ("5", "write it as (type) value"),
        ("?", "write it as (type) value"),
    ],
)
def test_what_cannot(cql: Cql, selectors: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT {selectors} FROM t")
    assert words in str(caught.value)


# ---- order, limits, pages


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("k = 1", [110, 111, 100, 101]),
        ("k = 1 ORDER BY a DESC", [110, 111, 100, 101]),
        ("k = 1 ORDER BY a ASC", [101, 100, 111, 110]),
        ("k = 1 ORDER BY a", [101, 100, 111, 110]),
        ("k = 1 ORDER BY a ASC, b DESC", [101, 100, 111, 110]),
        ("k = 1 AND a = 1 ORDER BY b DESC", [111, 110]),
        ("k = 1 AND a = 1 ORDER BY a, b DESC", [111, 110]),
        ("k = 1 AND a > 0 ORDER BY a ASC", [111, 110]),
        ("k = 1 ORDER BY a ASC LIMIT 3", [101, 100, 111]),
        ("k IN (2, 1) ORDER BY a DESC", [110, 210, 111, 211, 100, 200, 101, 201]),
        ("k IN (1, 2) LIMIT 5", [110, 111, 100, 101, 210]),
        ("k IN (1, 2) PER PARTITION LIMIT 1", [110, 210]),
        ("k IN (1, 2) PER PARTITION LIMIT 3 LIMIT 4", [110, 111, 100, 210]),
        ("k = 1 PER PARTITION LIMIT 2", [110, 111]),
        ("v > 100 PER PARTITION LIMIT 1 ALLOW FILTERING", [110, 210]),
        ("v IN (101, 111, 200) PER PARTITION LIMIT 1 ALLOW FILTERING", [111, 200]),
    ],
)
def test_order_and_limits(cql: Cql, rest: str, found: list[int]) -> None:
    text = f"SELECT v FROM t WHERE {rest}"
    assert sorted(row[0] for row in cql.rows(text)) == sorted(found)
    if "IN (2, 1)" not in rest:
        assert [row[0] for row in cql.rows(text)] == found
    for size in (1, 2, 3, 100):
        assert [row[0] for page in cql.pages(text, size) for row in page] == [row[0] for row in cql.rows(text)]


def test_rows_of_several_partitions_are_put_in_order(cql: Cql) -> None:
    shown = [row[0] % 100 for row in cql.rows("SELECT v FROM t WHERE k IN (2, 1) ORDER BY a ASC")]
    assert shown == [1, 1, 0, 0, 11, 11, 10, 10]


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("ORDER BY a", "ORDER BY is only supported when the partition key is restricted by an EQ or an IN."),
        ("WHERE k = 1 ORDER BY nope", "Undefined column name nope in table ks.t"),
        ("WHERE k = 1 ORDER BY v", "Order by is currently only supported on the clustered columns of the PRIMARY KEY"),
        ("WHERE k = 1 ORDER BY b", "following their declared order in the PRIMARY KEY"),
        ("WHERE k = 1 ORDER BY b, a", "following their declared order in the PRIMARY KEY"),
        ("WHERE k = 1 ORDER BY a ASC, b ASC", "Unsupported order by relation"),
        ("LIMIT 0", "LIMIT must be strictly positive"),
        ("LIMIT -1", "LIMIT must be strictly positive"),
        ("LIMIT null", "Invalid null value of LIMIT"),
        ("LIMIT 'a'", 'Invalid STRING constant (a) for "[limit]" of type int'),
        ("PER PARTITION LIMIT 0", "PER PARTITION LIMIT must be strictly positive"),
    ],
)
def test_orders_and_limits_that_cannot_be(cql: Cql, rest: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT v FROM t {rest}")
    assert words in str(caught.value)


def test_a_bound_limit(cql: Cql) -> None:
    assert len(cql.rows("SELECT v FROM t LIMIT ?", encode(INT, 3))) == 3
    assert len(cql.rows("SELECT v FROM t LIMIT ?", UNSET)) == 9


def test_a_page_goes_on_in_the_middle_of_a_partition_with_its_statics(cql: Cql) -> None:
    for text in ("SELECT s, v FROM t WHERE k = 1", "SELECT s, v FROM t WHERE k = 1 ORDER BY a ASC"):
        pages = cql.pages(text, 1)
        assert [row[0] for page in pages for row in page] == ["one"] * 4


# ---- DISTINCT


def test_distinct_partitions(cql: Cql) -> None:
    assert sorted(cql.rows("SELECT DISTINCT k, s FROM t")) == [(1, "one"), (2, None), (3, "alone")]
    assert cql.rows("SELECT DISTINCT k FROM t WHERE k IN (1, 3, 9)") == [(1,), (3,)]
    assert cql.rows("SELECT DISTINCT s FROM t WHERE k = 1") == [("one",)]
    assert cql.rows("SELECT DISTINCT k FROM t WHERE s = 'alone' ALLOW FILTERING") == [(3,)]
    assert len(cql.rows("SELECT DISTINCT k FROM t LIMIT 2")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* FROM t", "must only request partition key columns and/or static columns"),
        ("k, v FROM t", "must only request partition key columns and/or static columns (not v)"),
        ("s FROM t", "must request all the partition key columns (missing k)"),
        ("k FROM t WHERE k = 1 AND a = 1", "only supports restriction by partition key and/or static columns"),
        ("k FROM t WHERE a = 1 ALLOW FILTERING", "only supports restriction by partition key and/or static columns"),
        ("k FROM t WHERE v = 1 ALLOW FILTERING", "only supports restriction by partition key and/or static columns"),
    ],
)
def test_what_distinct_refuses(cql: Cql, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT DISTINCT {text}")
    assert words in str(caught.value)


# ---- aggregates


def test_aggregates(cql: Cql) -> None:
    text = "SELECT count(*), count(v), min(v), max(v), sum(v), avg(v), min(n), sum(d), avg(d), avg(f), max(a) FROM t"
    found = (9, 8, 100, 211, 1244, 155, "n0", Decimal("8.04"), Decimal("1.00"), 1.0, 1)
    assert cql.rows(text) == [found]
    assert cql.rows(f"{text} LIMIT 1") == [found]


def test_aggregates_of_nothing(cql: Cql) -> None:
    for where in ("k = 77", "k IN ()", "k = 1 AND a > 5 AND a < 2", "v = 999 ALLOW FILTERING"):
        text = f"SELECT count(*), count(v), min(v), max(n), sum(v), avg(v), sum(d), avg(f), v FROM t WHERE {where}"
        assert cql.rows(text) == [(0, 0, None, None, 0, 0, Decimal(0), 0.0, None)]


def test_a_column_beside_an_aggregate_is_the_first_rows(cql: Cql) -> None:
    assert cql.rows("SELECT v, count(*), a FROM t WHERE k = 2") == [(210, 4, 1)]


# ---- filters


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("v = 110", [110]),
        ("v >= 210", [210, 211]),
        ("n = 'n1' AND k = 1", [111, 101]),
        ("d = 1.500", [110, 210]),
        ("d = 1.5 AND k = 1", [110]),
        ("d = 1.510 AND k = 1", [111]),
        ("u = 1h AND k = 2", [210, 211]),
        ("s = 'one' AND a = 0", [100, 101]),
        ("s = 'alone'", [None]),
        ("l CONTAINS 1 AND k = 1", [110, 111, 101]),
        ("m CONTAINS 1 AND k = 1", [110, 111]),
        ("m CONTAINS KEY 'a' AND k = 1", [110, 111, 100, 101]),
        ("m CONTAINS KEY 'z'", []),
        ("m['a'] = 1 AND k = 1", [110, 111]),
        ("m['a'] < 1 AND k = 1", [100, 101]),
        ("m['z'] = 1", []),
        ("e CONTAINS 0 AND k = 1", [100, 101]),
        ("e = {7, 0} AND k = 1", [100, 101]),
        ("e IN ({0, 7}, {9}) AND k = 1", [100, 101]),
        ("b = 1 AND k = 1", [111, 101]),
        ("b > 0 AND v < 105 AND k = 1", [101]),
        ("l CONTAINS 1 AND l CONTAINS 0 AND k = 1", [110, 101]),
    ],
)
def test_filters(cql: Cql, where: str, found: list[int]) -> None:
    text = f"SELECT v FROM t WHERE {where} ALLOW FILTERING"
    assert [row[0] for row in cql.rows(text)] == found
    assert [row[0] for page in cql.pages(text, 2) for row in page] == found


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("l[0] = 1", "Column l is no map: its elements cannot be compared"),
        ("m[null] = 1", "Invalid null value in condition for column m"),
        ("m CONTAINS null", "Invalid null value in condition for column m"),
        ("v IN (1, null)", "Invalid null value in condition for column v"),
        ("(a, b) > (1, 2, 3)", "Expected 2 elements in value tuple, but got 3"),
    ],
)
def test_filters_that_cannot_be(cql: Cql, where: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT v FROM t WHERE {where} ALLOW FILTERING")
    assert words in str(caught.value)


# ---- rows written by an older schema


def test_rows_from_before_a_column_came_or_went() -> None:
    cql = Cql()
    cql.run("CREATE TABLE t (k int, c int, v int, w text, PRIMARY KEY (k, c))")
    cql.run("INSERT INTO t (k, c, v, w) VALUES (1, 1, 5, 'old')")
    cql.run("ALTER TABLE t ADD x int")
    cql.run("INSERT INTO t (k, c, v, w, x) VALUES (1, 2, 6, 'new', 7)")
    assert cql.rows("SELECT * FROM t") == [(1, 1, 5, "old", None), (1, 2, 6, "new", 7)]
    cql.run("ALTER TABLE t DROP v")
    assert cql.rows("SELECT * FROM t") == [(1, 1, "old", None), (1, 2, "new", 7)]
    cql.run("ALTER TABLE t ADD v int")
    assert cql.rows("SELECT c, v, w FROM t") == [(1, None, "old"), (2, None, "new")]


# ---- partitions in the order of their keys


@pytest.fixture(scope="module")
def wide() -> Cql:
    """Partitions 0 to 39: those above 35 are empty, every fourth has a static value alone, others up to five rows."""
    made = Cql()
    made.run("CREATE TABLE w (k int, q text, c int, s int static, PRIMARY KEY ((k, q), c))")
    for k in range(36):
        made.run(f"INSERT INTO w (k, q, s) VALUES ({k - 20}, 'q', {k})")
        for c in range(k % 4 * (1 + k % 2)):
            made.run(f"INSERT INTO w (k, q, c) VALUES ({k - 20}, 'q', {c})")
    return made


@pytest.mark.parametrize("rest", ["", "AND c >= 1", "AND c IN (0, 2)", "PER PARTITION LIMIT 2", "LIMIT 17"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 30, 1000])
def test_partitions_come_in_key_order_on_pages_of_any_size(wide: Cql, rest: str, size: int) -> None:
    keys = ", ".join(str(k - 20) for k in reversed(range(40)))
    text = f"SELECT k, c, s FROM w WHERE k IN ({keys}) AND q IN ('z', 'q') {rest}"
    pages = wide.pages(text, size)
    found = [row for page in pages for row in page]
    assert max(map(len, pages)) <= size
    assert found == wide.rows(text)
    assert found == sorted(found, key=lambda row: (row[0], -1 if row[1] is None else row[1]))
    scan = wide.rows(f"SELECT k, c, s FROM w {'PER PARTITION LIMIT 2' if 'PER' in rest else ''}")
    matching = {
        "AND c >= 1": [row for row in scan if row[1] is not None and row[1] >= 1],
        "AND c IN (0, 2)": [row for row in scan if row[1] in (0, 2)],
    }.get(rest, scan)
    assert len(found) == min(len(matching), 17 if "LIMIT 17" in rest else len(matching))
    assert set(found) <= set(matching)


def test_many_narrow_partitions_are_one_read(wide: Cql) -> None:
    keys = ", ".join(str(k - 20) for k in range(40))
    wide.rows_store.queries.clear()
    wide.rows(f"SELECT k FROM w WHERE k IN ({keys}) AND q = 'q'")
    assert len(wide.rows_store.queries) == 1


def test_pages_of_an_older_release_continue_in_its_order(wide: Cql) -> None:
    keys = ", ".join(str(k - 20) for k in range(40))
    text = f"SELECT DISTINCT k, q, s FROM w WHERE k IN ({keys}) AND q = 'q'"
    by_token = [row[0] for row in wide.rows("SELECT DISTINCT k, q FROM w")]
    first = wide.found("SELECT DISTINCT k, q, s FROM w", page_size=5)
    assert first.paging_state is not None
    assert [row[0] for row in wide.rows(text, paging_state=first.paging_state)] == by_token[5:]


def test_functions_of_aggregates(cql: Cql) -> None:
    assert cql.rows("SELECT intasblob(max(v)), count(*), k, blobasint(intasblob(min(v))) FROM t WHERE k = 1") == [
        (encode(INT, 111), 4, 1, 100)
    ]
    assert cql.rows("SELECT intasblob(max(v)), count(*), k FROM t WHERE k = 99") == [(None, 0, None)]
    assert names(cql, "SELECT intasblob(max(v)) FROM t") == ["system.intasblob(system.max(v))"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT count(*) FROM t PER PARTITION LIMIT 1", "PER PARTITION LIMIT is not allowed with aggregate queries"),
        ("SELECT DISTINCT k FROM t PER PARTITION LIMIT 1", "PER PARTITION LIMIT is not allowed with SELECT DISTINCT"),
        ("SELECT v FROM t USING TIMEOUT null", "Timeout value cannot be null"),
        ("SELECT v + 1 FROM t", "arithmetic on columns: not supported in this release"),
        ("SELECT intasblob(v + 1) FROM t", "arithmetic on columns: not supported in this release"),
        ("SELECT ttl(l[1]) FROM t", "an element or field of a column: not supported in this release"),
    ],
)
def test_what_is_not_allowed_together(cql: Cql, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(text)
    assert words in str(caught.value)


def test_an_in_of_one_value_is_an_equality(cql: Cql) -> None:
    by_value = cql.rows("SELECT v FROM t WHERE k = 1 AND a = 1 ORDER BY b DESC")
    assert cql.rows("SELECT v FROM t WHERE k IN (1) AND a IN (1) ORDER BY b DESC") == by_value
    assert cql.rows("SELECT v FROM t WHERE k = 1 AND (a, b) IN ((1, 0)) ORDER BY a ASC") == [(110,)]
