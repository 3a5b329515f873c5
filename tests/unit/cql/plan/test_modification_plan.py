"""INSERT, UPDATE and DELETE: the stored rows, and the errors."""

from typing import Any

import pytest
from tests.unit.cql.world import NOW_US, Cql

from ebla.model.cql_types import CqlType, parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import encode, join_elements
from ebla.wire.cql.messages import UNSET

ROW = "k = 1 AND a = 1 AND b = 'x'"


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run(
        "CREATE TABLE t (k int, a int, b text, s int static, sl list<int> static, v int, w int, l list<int>, "
        "e set<text>, m map<text, int>, f frozen<list<int>>, PRIMARY KEY (k, a, b))"
    )
    return made


def value(kind: str | CqlType, python: Any) -> bytes:
    return encode(parse_type(kind) if isinstance(kind, str) else kind, python)


INT = parse_type("int")


# ---- rows and their cells


@pytest.mark.parametrize(
    ("columns", "missing"), [("k, b, s", "a"), ("k, a, s", "b"), ("k, b, v", "a"), ("k, v", "a, b")]
)
def test_an_insert_drops_no_key_column(cql: Cql, columns: str, missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"Some clustering keys are missing: {missing}$"):
        cql.executor.prepare(cql.session, f"INSERT INTO t ({columns}) VALUES (?, ?{', ?' * (columns.count(',') - 1)})")


@pytest.mark.parametrize(
    ("changes", "column", "found"),
    [
        ("m['a'] = 9, m['a'] = 6", "m", [("a", 9)]),
        ("m['a'] = 6, m['a'] = 9", "m", [("a", 9)]),
        ("e = e - {'c'}, e = e + {'c', 'd'}", "e", ["d"]),
        ("e = e + {'c', 'd'}, e = e - {'c'}", "e", ["d"]),
        ("m['a'] = null, m['a'] = 5, m['b'] = 1", "m", [("b", 1)]),
    ],
)
def test_two_changes_of_one_element_follow_the_tie_rule(cql: Cql, changes: str, column: str, found: Any) -> None:
    cql.run(f"UPDATE t SET {changes} WHERE {ROW}")
    assert cql.rows(f"SELECT {column} FROM t") == [(found,)]


def test_insert_marks_a_row_and_update_does_not(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b) VALUES (1, 1, 'x')")
    cql.run("UPDATE t SET v = 1 WHERE k = 2 AND a = 1 AND b = 'x'")
    assert cql.rows("SELECT k, v FROM t") == [(1, None), (2, 1)]
    cql.run("DELETE v FROM t WHERE k IN (1, 2) AND a = 1 AND b = 'x'")
    assert cql.rows("SELECT k, v FROM t") == [(1, None)]


def test_null_deletes_and_unset_leaves_alone(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, v, w, l) VALUES (1, 1, 'x', 1, 2, [1])")
    cql.run("INSERT INTO t (k, a, b, v, w, l) VALUES (1, 1, 'x', ?, ?, ?)", None, UNSET, UNSET)
    assert cql.rows("SELECT v, w, l FROM t") == [(None, 2, [1])]
    cql.run(f"UPDATE t SET v = ?, w = ?, l = ? WHERE {ROW}", UNSET, None, None)
    assert cql.rows("SELECT v, w, l FROM t") == [(None, None, None)]


def test_an_update_of_nothing_but_unset_values_writes_nothing(cql: Cql) -> None:
    cql.run(f"UPDATE t SET v = ?, l = ? WHERE {ROW}", UNSET, UNSET)
    assert not any(cql.rows_store.tables.values())


def test_later_timestamps_win_whatever_comes_last(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, v) VALUES (1, 1, 'x', 5) USING TIMESTAMP 20")
    cql.run("INSERT INTO t (k, a, b, v, w) VALUES (1, 1, 'x', 6, 6) USING TIMESTAMP 10")
    assert cql.rows("SELECT v, w, writetime(v), writetime(w) FROM t") == [(5, 6, 20, 10)]
    cql.run(f"DELETE FROM t USING TIMESTAMP 15 WHERE {ROW}")
    assert cql.rows("SELECT v, w FROM t") == [(5, None)]
    cql.run(f"UPDATE t USING TIMESTAMP ? SET v = 7 WHERE {ROW}", value("bigint", 30))
    assert cql.rows("SELECT v, writetime(v) FROM t") == [(7, 30)]


def test_the_clients_timestamp_and_the_servers(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, v) VALUES (1, 1, 'x', 5)", timestamp_us=123)
    assert cql.rows("SELECT writetime(v) FROM t") == [(123,)]
    cql.run("INSERT INTO t (k, a, b, v) VALUES (1, 1, 'x', 5) USING TIMESTAMP ?", UNSET, timestamp_us=124)
    assert cql.rows("SELECT writetime(v) FROM t") == [(124,)]
    cql.run("INSERT INTO t (k, a, b, v) VALUES (1, 1, 'x', 5)")
    assert cql.rows("SELECT writetime(v) FROM t")[0][0] >= NOW_US


def test_what_lives_for_a_while(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, v, e) VALUES (1, 1, 'x', 5, {'y'}) USING TTL 100")
    cql.run(f"UPDATE t USING TTL 10 SET w = 1 WHERE {ROW}")
    cql.clock.now_us += 9_000_000
    assert cql.rows("SELECT v, w, e, ttl(v), ttl(w) FROM t") == [(5, 1, ["y"], 91, 1)]
    cql.clock.now_us += 1_000_000
    assert cql.rows("SELECT v, w, ttl(w), writetime(w) FROM t") == [(5, None, None, None)]
    cql.clock.now_us += 90_000_000
    assert cql.rows("SELECT * FROM t") == []


def test_a_tables_own_time_to_live(cql: Cql) -> None:
    cql.run("ALTER TABLE t WITH default_time_to_live = 50")
    cases = (("", 50), (" USING TTL 0", None), (" USING TTL null", None), (" USING TTL 7", 7))
    for number, (using, left) in enumerate(cases):
        cql.run(f"INSERT INTO t (k, a, b, v) VALUES (1, {number}, 'x', 5){using}")
        assert cql.rows(f"SELECT ttl(v) FROM t WHERE k = 1 AND a = {number}") == [(left,)]
    cql.run("INSERT INTO t (k, a, b, v) VALUES (9, 1, 'x', 5) USING TTL ?", UNSET)
    assert cql.rows("SELECT ttl(v) FROM t WHERE k = 9") == [(50,)]


# ---- static columns


def test_static_columns_belong_to_the_partition(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, s) VALUES (1, 7)")
    assert cql.rows("SELECT k, a, s FROM t") == [(1, None, 7)]
    cql.run("INSERT INTO t (k, a, b, s, v) VALUES (1, 1, 'x', 8, 1)")
    cql.run("INSERT INTO t (k, a, b, v) VALUES (1, 2, 'x', 2)")
    assert cql.rows("SELECT a, s, v FROM t WHERE k = 1") == [(1, 8, 1), (2, 8, 2)]
    cql.run("UPDATE t SET sl = [1, 2] WHERE k = 1")
    cql.run("UPDATE t SET sl[1] = 5, sl = sl + [6] WHERE k = 1")
    assert cql.rows("SELECT sl FROM t WHERE k = 1 LIMIT 1") == [([1, 5, 6],)]
    cql.run("DELETE s, sl[0] FROM t WHERE k = 1")
    assert cql.rows("SELECT a, s, sl FROM t WHERE k = 1") == [(1, None, [5, 6]), (2, None, [5, 6])]


# ---- collections


@pytest.mark.parametrize(
    ("change", "column", "left"),
    [
        ("l = l + [4, 5]", "l", [1, 2, 3, 4, 5]),
        ("l += [4]", "l", [1, 2, 3, 4]),
        ("l = [8, 9] + l", "l", [8, 9, 1, 2, 3]),
        ("l = l - [1, 3]", "l", [2]),
        ("l -= [2, 7]", "l", [1, 3]),
        ("l[0] = 7, l[2] = 9", "l", [7, 2, 9]),
        ("l[1] = null", "l", [1, 3]),
        ("l = l + [4], l = l + [5]", "l", [1, 2, 3, 4, 5]),
        ("l = [4] + l, l = [5] + l", "l", [5, 4, 1, 2, 3]),
        ("l = l + [4], l = [0] + l, l[0] = 7", "l", [0, 7, 2, 3, 4]),
        ("l = []", "l", None),
        ("l = [9]", "l", [9]),
        ("e = e + {'z', 'a'}", "e", ["a", "p", "q", "z"]),
        ("e = e - {'p', 'no'}", "e", ["q"]),
        ("e = null", "e", None),
        ("m = m + {'c': 3, 'a': 9}", "m", [("a", 9), ("b", 2), ("c", 3)]),
        ("m = m - {'a'}", "m", [("b", 2)]),
        ("m['a'] = 5", "m", [("a", 5), ("b", 2)]),
        ("m['a'] = null", "m", [("b", 2)]),
        ("m = {'z': 1}", "m", [("z", 1)]),
        ("f = [5]", "f", [5]),
    ],
)
def test_changes_of_collections(cql: Cql, change: str, column: str, left: Any) -> None:
    cql.run(
        "INSERT INTO t (k, a, b, l, e, m, f) VALUES (1, 1, 'x', [1, 2, 3], {'q', 'p'}, {'a': 1, 'b': 2}, [1])",
    )
    cql.run(f"UPDATE t SET {change} WHERE {ROW}")
    assert cql.rows(f"SELECT {column} FROM t") == [(left,)]


def test_elements_by_marker(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, l, m) VALUES (1, 1, 'x', [1, 2], {'a': 1})")
    one, two = value(INT, 1), value(INT, 2)
    cql.run(f"UPDATE t SET l[?] = ?, m[?] = ? WHERE {ROW}", one, value(INT, 9), b"b", two)
    assert cql.rows("SELECT l, m FROM t") == [([1, 9], [("a", 1), ("b", 2)])]
    cql.run(f"UPDATE t SET l = l - ?, m = m - ? WHERE {ROW}", value("list<int>", [9]), value("set<text>", ["a"]))
    assert cql.rows("SELECT l, m FROM t") == [([1], [("b", 2)])]
    cql.run(f"UPDATE t SET l = l + ?, m[?] = ? WHERE {ROW}", UNSET, b"b", UNSET)
    cql.run(f"UPDATE t SET l = l + ?, e = e - ? WHERE {ROW}", None, None)
    assert cql.rows("SELECT l, m FROM t") == [([1], [("b", 2)])]


def test_elements_of_lists_in_several_rows(cql: Cql) -> None:
    for a in range(4):
        cql.run(f"INSERT INTO t (k, a, b, l) VALUES (1, {a}, 'x', [{a}, 5, {a}])")
    cql.run("INSERT INTO t (k, a, b) VALUES (1, 9, 'x')")
    cql.run("UPDATE t SET l = l - [5] WHERE k = 1 AND a IN (9, 0, 1, 2, 3, 8) AND b = 'x'")
    assert cql.rows("SELECT l FROM t WHERE k = 1") == [([0, 0],), ([1, 1],), ([2, 2],), ([3, 3],), (None,)]
    cql.run("UPDATE t SET l[1] = 7 WHERE k = 1 AND a IN (0, 3) AND b = 'x'")
    assert cql.rows("SELECT l FROM t WHERE k = 1 AND a IN (0, 1, 3)") == [([0, 7],), ([1, 1],), ([3, 7],)]


def test_elements_are_deleted(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, l, e, m) VALUES (1, 1, 'x', [1, 2, 3], {'q', 'p'}, {'a': 1, 'b': 2})")
    cql.run(f"DELETE l[0], e['q'], m['b'] FROM t WHERE {ROW}")
    assert cql.rows("SELECT l, e, m FROM t") == [([2, 3], ["p"], [("a", 1)])]
    cql.run(f"DELETE l, e, m FROM t WHERE {ROW}")
    assert cql.rows("SELECT k, l, e, m FROM t") == [(1, None, None, None)]


def test_elements_of_sets_and_keys_of_maps_may_be_long(cql: Cql) -> None:
    long = b"x" * 66_560
    cql.run(f"UPDATE t SET m[?] = 1 WHERE {ROW}", long)
    cql.run(f"UPDATE t SET e = e + {{?}} WHERE {ROW}", long)
    assert cql.rows(f"SELECT m, e FROM t WHERE {ROW}") == [([(long.decode(), 1)], [long.decode()])]


# ---- deletes


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("k = 1", []),
        ("k = 1 AND a = 1", [0, 2]),
        ("k = 1 AND a = 1 AND b = 'x'", [0, 1, 2]),
        ("k = 1 AND a IN (0, 2)", [1, 1]),
        ("k = 1 AND a IN (0, 1) AND b = 'y'", [0, 1, 2]),
        ("k = 1 AND a >= 1", [0]),
        ("k = 1 AND a > 0 AND a < 2", [0, 2]),
        ("k = 1 AND a = 1 AND b > 'x'", [0, 1, 2]),
        ("k = 1 AND a = 1 AND b >= 'w' AND b <= 'z'", [0, 2]),
        ("k = 1 AND (a, b) > (1, 'x')", [0, 1]),
        ("k = 1 AND (a, b) IN ((0, 'x'), (2, 'x'))", [1, 1]),
        ("k IN (1, 2)", []),
        ("k IN ()", [0, 1, 1, 2]),
        ("k = 1 AND a > 5 AND a < 3", [0, 1, 1, 2]),
    ],
)
def test_rows_that_a_delete_leaves(cql: Cql, where: str, left: list[int]) -> None:
    for a, b in ((0, "x"), (1, "x"), (1, "y"), (2, "x")):
        cql.run(f"INSERT INTO t (k, a, b) VALUES (1, {a}, '{b}')")
    cql.run(f"DELETE FROM t WHERE {where}")
    assert [row[0] for row in cql.rows("SELECT a FROM t WHERE k = 1")] == left
    cql.run("INSERT INTO t (k, a, b) VALUES (1, 1, 'new')")
    assert ("new",) in cql.rows("SELECT b FROM t WHERE k = 1")


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("INSERT INTO t (k, a, nope) VALUES (1, 1, 1)", "Undefined column name nope in table ks.t"),
        ("INSERT INTO t (k, a) VALUES (1)", "Unmatched column names/values"),
        ("INSERT INTO t (k, k, a, b) VALUES (1, 1, 1, 'a')", "The column names contains duplicates"),
        ("INSERT INTO t (a, b) VALUES (1, 'a')", "Some partition key parts are missing: k"),
        ("INSERT INTO t (k, a, v) VALUES (1, 1, 1)", "Some clustering keys are missing: b"),
        ("INSERT INTO t (k) VALUES (1)", "Some clustering keys are missing: a, b"),
        ("INSERT INTO t (k, a, s) VALUES (1, 1, 1)", "Some clustering keys are missing: b"),
        ("INSERT INTO t (k, a, b) VALUES (null, 1, 'a')", "Invalid null value in condition for column k"),
        ("UPDATE t SET v = 1 WHERE k = 1", "Some clustering keys are missing: a, b"),
        ("UPDATE t SET v = 1 WHERE a = 1 AND b = 'a'", "Some partition key parts are missing: k"),
        ("UPDATE t SET a = 1 WHERE k = 1", "PRIMARY KEY part a found in SET part"),
        ("UPDATE t SET v = 1 WHERE k > 1", "Only EQ and IN relation are supported on the partition key"),
        (f"UPDATE t SET v = 1 WHERE {ROW} AND w = 1", "Invalid where clause contains non PRIMARY KEY columns: w"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND a > 1", "Slice restrictions are not supported on the clustering columns"),
        ("UPDATE t SET v = 1 WHERE token(k) = 1", "The token function cannot be used in WHERE clauses for UPDATE"),
        (f"UPDATE t SET v = v + 1 WHERE {ROW}", "Invalid operation (v = v + …) for non counter column v"),
        (f"UPDATE t SET f = f - [1] WHERE {ROW}", "Invalid operation (f = f - …) for frozen collection column f"),
        (f"UPDATE t SET m = {{'a': 1}} + m WHERE {ROW}", "only lists are prepended to"),
        (f"UPDATE t SET e['a'] = 1 WHERE {ROW}", "Invalid element assignment for e of type set<text>"),
        (f"UPDATE t SET v[1] = 1 WHERE {ROW}", "Invalid element assignment for v of type int"),
        (f"UPDATE t SET l[0] = 1 WHERE {ROW}", "Attempted to set an element on a list which is null"),
        (f"DELETE l[0] FROM t WHERE {ROW}", "Attempted to delete an element from a list which is null"),
        (f"UPDATE t SET m[null] = 1 WHERE {ROW}", "Invalid null value for map key of m"),
        (f"DELETE m[null] FROM t WHERE {ROW}", "Invalid null value for map key of m"),
        (f"DELETE v[0] FROM t WHERE {ROW}", "Invalid deletion operation for non collection column v"),
        ("DELETE a FROM t WHERE k = 1", "Invalid identifier a for deletion (should not be a PRIMARY KEY part)"),
        ("DELETE v FROM t WHERE k = 1", "Some clustering keys are missing: a, b"),
        ("DELETE FROM t WHERE a = 1", "Some partition key parts are missing: k"),
        ("DELETE FROM t WHERE k = 1 AND b = 'a'", 'column "b" cannot be restricted as preceding column "a" is not'),
        ("DELETE FROM t WHERE k = 1 AND a > 1 AND b = 'a'", "is restricted by a non-EQ relation"),
        ("DELETE FROM t WHERE k = 1 AND v = 1", "Invalid where clause contains non PRIMARY KEY columns: v"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TTL -1", "A TTL must be greater or equal to 0, but was -1"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TTL 630720001", "ttl is too large. requested (630720001)"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TIMESTAMP null", "Invalid null value of timestamp"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TIMESTAMP -9223372036854775808", "Out of bound timestamp"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TIMEOUT 1d", "Timeout values cannot be expressed in days"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TIMEOUT 1us", "granularity finer than milliseconds"),
        ("INSERT INTO t (k, a, b) VALUES (1, 1, 'a') USING TIMEOUT -1s", "Timeout values must be non-negative"),
    ],
)
def test_what_is_refused(cql: Cql, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.run(text)
    assert words in str(caught.value)
    assert not any(cql.rows_store.tables.values())


def test_an_index_beyond_the_list(cql: Cql) -> None:
    cql.run("INSERT INTO t (k, a, b, l) VALUES (1, 1, 'x', [1, 2])")
    for index in (-1, 2):
        with pytest.raises(InvalidRequest, match=f"List index {index} out of bound, list has size 2"):
            cql.run(f"UPDATE t SET l[{index}] = 1 WHERE {ROW}")


# ---- empty values and long keys


def test_an_empty_value_is_neither_null_nor_zero(cql: Cql) -> None:
    elements = join_elements([b"", value(INT, 5)], 2)
    cql.run(
        f"UPDATE t SET v = ?, w = blobasint(0x), l = ?, f = ?, m = {{'a': ?}} WHERE {ROW}", b"", elements, elements, b""
    )
    assert cql.found("SELECT v, w, l, f, intasblob(v) FROM t").rows == [[b"", b"", elements, elements, b""]]
    assert cql.rows("SELECT m, count(v), sum(v), min(v), max(v), v FROM t") == [([("a", None)], 1, 0, None, None, None)]
    assert cql.rows("SELECT a FROM t WHERE v = blobasint(0x) ALLOW FILTERING") == [(1,)]
    assert cql.rows("SELECT a FROM t WHERE v < 0 AND f = ? ALLOW FILTERING", elements) == [(1,)]
    assert cql.rows("SELECT a FROM t WHERE v = 0 ALLOW FILTERING") == []


def test_types_without_an_empty_value_refuse_it(cql: Cql) -> None:
    cql.run("CREATE TABLE small (k int PRIMARY KEY, v smallint, d date)")
    for column, kind in (("v", "smallint"), ("d", "date")):
        with pytest.raises(InvalidRequest, match=f'Invalid value for "{column}" of type {kind}'):
            cql.run(f"INSERT INTO small (k, {column}) VALUES (1, ?)", b"")
        with pytest.raises(InvalidRequest, match=f"is no {kind}"):
            cql.run(f"INSERT INTO small (k, {column}) VALUES (1, blobas{kind}(0x))")


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t (k, a, b) VALUES (1, ?, 'x')",
        "INSERT INTO t (k, a, b) VALUES (?, 1, 'x')",
        "DELETE FROM t WHERE k = 1 AND a = ?",
        "DELETE FROM t WHERE k = 1 AND a > ?",
        "SELECT v FROM t WHERE k = 1 AND a = ? AND b = 'x'",
        "SELECT v FROM t WHERE k = ?",
    ],
)
def test_keys_hold_no_empty_values(cql: Cql, text: str) -> None:
    with pytest.raises(InvalidRequest, match="Key may not be empty"):
        cql.run(text, b"")


def test_the_key_of_a_written_row_has_a_length(cql: Cql) -> None:
    long = b"x" * 70_000
    for text in ("INSERT INTO t (k, a, b, v) VALUES (1, 1, ?, 1)", "DELETE FROM t WHERE k = 1 AND a = 1 AND b = ?"):
        with pytest.raises(InvalidRequest, match=r"Key length of 70004 is longer than maximum of 65535"):
            cql.run(text, long)
    assert cql.rows("SELECT v FROM t WHERE k = 1 AND a = 1 AND b = ?", long) == []


def test_an_unset_index_of_a_list_deletes_nothing(cql: Cql) -> None:
    cql.run(f"UPDATE t SET l = [1, 2] WHERE {ROW}")
    cql.run(f"DELETE l[?] FROM t WHERE {ROW}", UNSET)
    assert cql.rows("SELECT l FROM t") == [([1, 2],)]
    with pytest.raises(InvalidRequest, match="Invalid unset value for map key"):
        cql.run(f"DELETE m[?] FROM t WHERE {ROW}", UNSET)


@pytest.mark.parametrize(
    ("text", "names", "key_positions"),
    [
        ("SELECT v FROM t WHERE token(k) >= token(?)", ["arg0(token)"], ()),
        ("SELECT v FROM t WHERE k = 1 + ?", ["arg1(_add)"], ()),
        (
            "UPDATE t SET v = ? * ? WHERE k = ? AND a = ? AND b = ?",
            ["arg0(_multiply)", "arg1(_multiply)", "k", "a", "b"],
            (2,),
        ),
    ],
)
def test_operands_and_arguments_are_no_columns(
    cql: Cql, text: str, names: list[str], key_positions: tuple[int, ...]
) -> None:
    prepared = cql.executor.prepare(cql.session, text)
    assert [one.name for one in prepared.variables] == names
    assert prepared.key_positions == key_positions
