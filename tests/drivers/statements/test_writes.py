"""INSERT, UPDATE, DELETE and BATCH: times, TTL, collections, statics, ranges, unset values."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, SimpleStatement

Rows = Callable[..., list[tuple[Any, ...]]]
Refused = Callable[..., str]
Table = Callable[[str], str]

PLAIN = "k int PRIMARY KEY, v int, w text"
WIDE = "p int, a int, b int, v int, PRIMARY KEY (p, a, b)"
COLLECTIONS = "k int PRIMARY KEY, l list<int>, s set<text>, m map<text, int>"
STATIC = "p int, c int, s int static, m map<text, int> static, v int, PRIMARY KEY (p, c)"


def test_an_update_without_values_leaves_no_row(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    select = f"SELECT k, v, w FROM {name} WHERE k = {key}"
    session.execute(f"UPDATE {name} SET v = 1 WHERE k = {key}")
    assert rows(select) == [(key, 1, None)]
    session.execute(f"UPDATE {name} SET v = null WHERE k = {key}")
    assert rows(select) == []
    session.execute(f"INSERT INTO {name} (k) VALUES ({key})")
    assert rows(select) == [(key, None, None)]
    session.execute(f"UPDATE {name} SET v = 1 WHERE k = {key}")
    session.execute(f"DELETE v FROM {name} WHERE k = {key}")
    assert rows(select) == [(key, None, None)]
    session.execute(f"DELETE FROM {name} WHERE k = {key}")
    assert rows(select) == []


def test_timestamps_decide(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    select = f"SELECT v, writetime(v) FROM {name} WHERE k = {key}"
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TIMESTAMP 100")
    session.execute(f"UPDATE {name} USING TIMESTAMP 99 SET v = 2 WHERE k = {key}")
    assert rows(select) == [(1, 100)]
    session.execute(f"DELETE FROM {name} USING TIMESTAMP 99 WHERE k = {key}")
    assert rows(select) == [(1, 100)]
    session.execute(f"UPDATE {name} USING TIMESTAMP 100 SET v = 5 WHERE k = {key}")
    assert rows(select) == [(5, 100)], "of two values of one time the larger one wins"
    session.execute(f"DELETE v FROM {name} USING TIMESTAMP 100 WHERE k = {key}")
    assert rows(select) == [(None, None)], "a deletion wins against a value of its time"
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 3) USING TIMESTAMP -5")
    assert rows(select) == [(None, None)]
    other = key + 500_000
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({other}, 3) USING TIMESTAMP -5")
    assert rows(f"SELECT v, writetime(v) FROM {name} WHERE k = {other}") == [(3, -5)]


def test_times_of_the_request_and_of_the_statement(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1)")
    ((written,),) = rows(f"SELECT writetime(v) FROM {name} WHERE k = {key}")
    assert abs(written - time.time() * 1_000_000) < 60_000_000
    prepared = session.prepare(f"UPDATE {name} USING TIMESTAMP ? AND TTL ? SET v = ? WHERE k = ?")
    session.execute(prepared, (written + 10, 1000, 2, key))
    ((again, ttl),) = rows(f"SELECT writetime(v), ttl(v) FROM {name} WHERE k = {key}")
    assert again == written + 10
    assert 900 < ttl <= 1000


def test_values_live_for_their_time(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    session.execute(f"INSERT INTO {name} (k, v, w) VALUES ({key}, 1, 'w') USING TTL 1")
    session.execute(f"UPDATE {name} SET w = 'stays' WHERE k = {key}")
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key + 500_000}, 1) USING TTL 1")
    ends_at = time.monotonic() + 10
    while rows(f"SELECT k FROM {name} WHERE k = {key + 500_000}"):
        assert time.monotonic() < ends_at, "a row with a TTL of one second is still there"
    assert rows(f"SELECT v, w FROM {name} WHERE k = {key}") == [(None, "stays")]


def test_ttl_of_the_table_and_of_statements(session: Any, rows: Rows, refused: Refused, key: int) -> None:
    name = "with_ttl"
    session.execute(f"CREATE TABLE IF NOT EXISTS {name} ({PLAIN}) WITH default_time_to_live = 5000")
    select = f"SELECT ttl(v) FROM {name} WHERE k = {key}"
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1)")
    ((ttl,),) = rows(select)
    assert 4900 < ttl <= 5000
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TTL 0")
    assert rows(select) == [(None,)]
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TTL 100")
    ((ttl,),) = rows(select)
    assert 0 < ttl <= 100
    prepared = session.prepare(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TTL ?")
    session.execute(prepared, (UNSET_VALUE,))
    ((ttl,),) = rows(select)
    assert 4900 < ttl <= 5000
    assert "TTL" in refused(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TTL -1")
    assert "ttl is too large" in refused(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TTL 630720001")


def test_unset_values_change_nothing(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    insert = session.prepare(f"INSERT INTO {name} (k, v, w) VALUES (?, ?, ?)")
    session.execute(insert, (key, 1, "a"))
    session.execute(insert, (key, UNSET_VALUE, "b"))
    session.execute(insert, (key, 2))
    assert rows(f"SELECT v, w FROM {name} WHERE k = {key}") == [(2, "b")]
    session.execute(insert, (key, None, UNSET_VALUE))
    assert rows(f"SELECT v, w FROM {name} WHERE k = {key}") == [(None, "b")]
    select = session.prepare(f"SELECT v FROM {name} WHERE k = ? LIMIT ?")
    assert len(list(session.execute(select, (key, UNSET_VALUE)))) == 1
    filtered = session.prepare(f"SELECT v FROM {name} WHERE k = ? AND v = ? ALLOW FILTERING")
    with pytest.raises(InvalidRequest, match=r"(?i)unset"):
        session.execute(filtered, (key, UNSET_VALUE))


def test_named_and_positional_values(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    insert = session.prepare(f"INSERT INTO {name} (k, v, w) VALUES (:key, :value, :word)")
    session.execute(insert, {"word": "w", "key": key, "value": 7})
    assert rows(f"SELECT v, w FROM {name} WHERE k = %(k)s", {"k": key}) == [(7, "w")]
    select = session.prepare(f"SELECT v FROM {name} WHERE k = :k AND v = :v ALLOW FILTERING")
    assert [row.v for row in session.execute(select, {"k": key, "v": 7})] == [7]
    assert [variable.name for variable in insert.column_metadata] == ["key", "value", "word"]
    session.execute(insert, {"key": key, "value": 8})
    assert rows(f"SELECT v, w FROM {name} WHERE k = {key}") == [(8, "w")]


def test_markers_everywhere(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(WIDE)
    for a, b in itertools.product((1, 2, 3), (1, 2)):
        session.execute(f"INSERT INTO {name} (p, a, b, v) VALUES ({key}, {a}, {b}, {a * b})")
    for where, values, expected in (
        ("p = ? AND (a, b) > ?", (key, (2, 1)), 3),
        ("p = ? AND (a, b) > (?, ?)", (key, 2, 1), 3),
        ("p = ? AND (a, b) IN ?", (key, [(1, 1), (2, 2)]), 2),
        ("p = ? AND (a, b) IN (?, ?)", (key, (1, 1), (2, 2)), 2),
        ("p = ? AND (a, b) IN ((?, ?), (1, 2))", (key, 1, 1), 2),
        ("p = ? AND a IN ?", (key, [1, 3]), 4),
        ("p = ? AND a IN (?, ?)", (key, 1, 3), 4),
        ("p IN ? AND a = ?", ([key, -1], 1), 2),
        ("p = ? LIMIT ?", (key, 2), 2),
        ("p = ? PER PARTITION LIMIT ?", (key, 3), 3),
        ("token(p) = token(?)", (key,), 6),
        ("p = ? AND a >= ? AND a < ?", (key, 2, 3), 2),
    ):
        prepared = session.prepare(f"SELECT * FROM {name} WHERE {where}")
        assert len(list(session.execute(prepared, values))) == expected, where


def test_ranges_are_deleted(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(WIDE)
    every = list(itertools.product((1, 2, 3), (1, 2, 3)))
    insert = session.prepare(f"INSERT INTO {name} (p, a, b, v) VALUES (?, ?, ?, 0)")
    for where, kept in (
        ("a = 2", [one for one in every if one[0] != 2]),
        ("a > 1", [one for one in every if one[0] <= 1]),
        ("a = 2 AND b >= 2", [one for one in every if not (one[0] == 2 and one[1] >= 2)]),
        ("(a, b) <= (2, 2)", [one for one in every if one > (2, 2)]),
        ("a IN (1, 3)", [one for one in every if one[0] == 2]),
        ("a = 1 AND b IN (1, 2)", [one for one in every if one not in ((1, 1), (1, 2))]),
        ("a = 3 AND b = 3", every[:-1]),
    ):
        for a, b in every:
            session.execute(insert, (key, a, b))
        session.execute(f"DELETE FROM {name} WHERE p = {key} AND {where}")
        assert rows(f"SELECT a, b FROM {name} WHERE p = {key}") == kept, where
        assert rows(f"SELECT a, b FROM {name} WHERE p = {key} ORDER BY a DESC") == kept[::-1], where
    session.execute(f"DELETE FROM {name} WHERE p IN ({key}, -1)")
    assert rows(f"SELECT * FROM {name} WHERE p = {key}") == []


def test_what_writes_must_name(table: Table, refused: Refused) -> None:
    name = table(WIDE)
    for statement, output in (
        (f"INSERT INTO {name} (p, a, v) VALUES (1, 1, 1)", "Some clustering keys are missing: b"),
        (f"INSERT INTO {name} (a, b, v) VALUES (1, 1, 1)", "Some partition key parts are missing: p"),
        (f"INSERT INTO {name} (p, a, b, v) VALUES (1, 1, 1)", "Unmatched column names/values"),
        (f"INSERT INTO {name} (p, a, b, v, v) VALUES (1, 1, 1, 1, 1)", "duplicates"),
        (f"INSERT INTO {name} (p, a, b, v) VALUES (null, 1, 1, 1)", "null"),
        (f"INSERT INTO {name} (p, a, b, v) VALUES (1, null, 1, 1)", "null"),
        (f"INSERT INTO {name} (p, a, b, none) VALUES (1, 1, 1, 1)", "Undefined column name none"),
        (f"UPDATE {name} SET v = 1 WHERE p = 1 AND a = 1", "Some clustering keys are missing: b"),
        (f"UPDATE {name} SET v = 1 WHERE p = 1 AND a = 1 AND b > 1", "Slice"),
        (f"UPDATE {name} SET a = 1 WHERE p = 1 AND a = 1 AND b = 1", "PRIMARY KEY part a found in SET part"),
        (f"UPDATE {name} SET v = 1 WHERE token(p) = 1 AND a = 1 AND b = 1", "token"),
        (f"DELETE FROM {name} WHERE a = 1", "Some partition key parts are missing: p"),
        (f"DELETE v FROM {name} WHERE p = 1", "Some clustering keys are missing: a, b"),
        (f"DELETE FROM {name} WHERE p = 1 AND b = 1", 'preceding column "a" is not restricted'),
        (f"DELETE a FROM {name} WHERE p = 1 AND a = 1 AND b = 1", "PRIMARY KEY part"),
        (f"DELETE FROM {name} WHERE p = 1 AND v = 1", "v"),
    ):
        assert output in refused(statement), statement


def test_empty_strings_are_keys_of_rows_and_no_keys_of_partitions(
    session: Any, table: Table, rows: Rows, refused: Refused
) -> None:
    name = table("p text, c text, v int, PRIMARY KEY (p, c)")
    session.execute(f"INSERT INTO {name} (p, c, v) VALUES ('x', '', 1)")
    session.execute(f"INSERT INTO {name} (p, c, v) VALUES ('x', 'a', 2)")
    assert rows(f"SELECT c, v FROM {name} WHERE p = 'x'") == [("", 1), ("a", 2)]
    assert rows(f"SELECT v FROM {name} WHERE p = 'x' AND c = ''") == [(1,)]
    assert rows(f"SELECT v FROM {name} WHERE p = 'x' AND c > ''") == [(2,)]
    assert "Key may not be empty" in refused(f"INSERT INTO {name} (p, c, v) VALUES ('', 'a', 1)")
    assert "Key may not be empty" in refused(f"SELECT * FROM {name} WHERE p = ''")
    pair = table("p text, q text, v int, PRIMARY KEY ((p, q))")
    session.execute(f"INSERT INTO {pair} (p, q, v) VALUES ('', '', 1)")
    assert rows(f"SELECT v FROM {pair} WHERE p = '' AND q = ''") == [(1,)]


def test_lists(session: Any, table: Table, rows: Rows, refused: Refused, key: int) -> None:
    name = table(COLLECTIONS)
    select = f"SELECT l FROM {name} WHERE k = {key}"
    for change, expected in (
        ("l = [1, 2]", [1, 2]),
        ("l = l + [3, 4]", [1, 2, 3, 4]),
        ("l = [8, 9] + l", [8, 9, 1, 2, 3, 4]),
        ("l = [7] + l", [7, 8, 9, 1, 2, 3, 4]),
        ("l += [1]", [7, 8, 9, 1, 2, 3, 4, 1]),
        ("l = l - [1, 9]", [7, 8, 2, 3, 4]),
        ("l -= [8]", [7, 2, 3, 4]),
        ("l[1] = 20", [7, 20, 3, 4]),
        ("l[0] = null", [20, 3, 4]),
        ("l = [5]", [5]),
        ("l = null", None),
        ("l = l + [6]", [6]),
        ("l = []", None),
    ):
        session.execute(f"UPDATE {name} SET {change} WHERE k = {key}")
        ((found,),) = rows(select) or [(None,)]
        assert found == expected, change
    session.execute(f"UPDATE {name} SET l = [1, 2, 3] WHERE k = {key}")
    session.execute(f"DELETE l[1] FROM {name} WHERE k = {key}")
    assert rows(select) == [([1, 3],)]
    assert "out of bound" in refused(f"UPDATE {name} SET l[5] = 1 WHERE k = {key}")
    assert "out of bound" in refused(f"DELETE l[-1] FROM {name} WHERE k = {key}")
    assert "null" in refused(f"UPDATE {name} SET l[0] = 1 WHERE k = -1")


def test_sets_and_maps(session: Any, table: Table, rows: Rows, refused: Refused, key: int) -> None:
    name = table(COLLECTIONS)
    session.execute(f"INSERT INTO {name} (k) VALUES ({key})")
    for change, expected in (
        ("s = {'b', 'a', 'b'}", {"a", "b"}),
        ("s = s + {'c'}", {"a", "b", "c"}),
        ("s = s - {'a', 'none'}", {"b", "c"}),
        ("s += {''}", {"", "b", "c"}),
        ("s = {}", None),
    ):
        session.execute(f"UPDATE {name} SET {change} WHERE k = {key}")
        assert rows(f"SELECT s FROM {name} WHERE k = {key}") == [(expected,)], change
    for change, entries in (
        ("m = {'b': 1, 'a': 2}", {"a": 2, "b": 1}),
        ("m['c'] = 3", {"a": 2, "b": 1, "c": 3}),
        ("m = m + {'a': 5, 'd': 6}", {"a": 5, "b": 1, "c": 3, "d": 6}),
        ("m = m - {'b'}", {"a": 5, "c": 3, "d": 6}),
        ("m['d'] = null", {"a": 5, "c": 3}),
    ):
        session.execute(f"UPDATE {name} SET {change} WHERE k = {key}")
        ((found,),) = rows(f"SELECT m FROM {name} WHERE k = {key}")
        assert dict(found) == entries, change
        assert list(found) == sorted(found), "maps come in the order of their keys"
    session.execute(f"DELETE m['a'] FROM {name} WHERE k = {key}")
    ((found,),) = rows(f"SELECT m FROM {name} WHERE k = {key}")
    assert dict(found) == {"c": 3}
    session.execute(f"UPDATE {name} SET s = {{'a', 'b'}} WHERE k = {key}")
    session.execute(f"DELETE s['a'] FROM {name} WHERE k = {key}")
    assert rows(f"SELECT s FROM {name} WHERE k = {key}") == [({"b"},)]
    prepared = session.prepare(f"UPDATE {name} SET m[?] = ?, s = s + ?, l = ? + l WHERE k = ?")
    session.execute(prepared, ("z", 9, {"q"}, [1], key))
    ((found, texts, numbers),) = rows(f"SELECT m, s, l FROM {name} WHERE k = {key}")
    assert (dict(found), texts, numbers) == ({"c": 3, "z": 9}, {"b", "q"}, [1])
    assert refused(f"UPDATE {name} SET m = m + ['x'] WHERE k = {key}")
    assert refused(f"UPDATE {name} SET m = {{'a': 1}} + m WHERE k = {key}")
    assert refused(f"UPDATE {name} SET s[0] = 'x' WHERE k = {key}")


def test_elements_have_their_own_times(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(COLLECTIONS)
    session.execute(f"UPDATE {name} USING TIMESTAMP 10 SET m = {{'a': 1, 'b': 1}} WHERE k = {key}")
    session.execute(f"UPDATE {name} USING TIMESTAMP 20 SET m['a'] = 2 WHERE k = {key}")
    session.execute(f"UPDATE {name} USING TIMESTAMP 15 SET m = {{'c': 3}} WHERE k = {key}")
    ((found,),) = rows(f"SELECT m FROM {name} WHERE k = {key}")
    assert dict(found) == {"a": 2, "c": 3}


def test_static_collections(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(STATIC)
    session.execute(f"INSERT INTO {name} (p, c, v) VALUES ({key}, 1, 1)")
    session.execute(f"UPDATE {name} SET m['a'] = 1, s = 5 WHERE p = {key}")
    session.execute(f"UPDATE {name} SET m['b'] = 2, v = 2 WHERE p = {key} AND c = 1")
    ((s, m, v),) = rows(f"SELECT s, m, v FROM {name} WHERE p = {key}")
    assert (s, dict(m), v) == (5, {"a": 1, "b": 2}, 2)
    session.execute(f"DELETE m['a'], s FROM {name} WHERE p = {key}")
    ((s, m),) = rows(f"SELECT s, m FROM {name} WHERE p = {key}")
    assert (s, dict(m)) == (None, {"b": 2})
    session.execute(f"DELETE FROM {name} WHERE p = {key}")
    assert rows(f"SELECT * FROM {name} WHERE p = {key}") == []


def test_statics_belong_to_no_row(table: Table, refused: Refused) -> None:
    name = table(STATIC)
    output = "Invalid restrictions on clustering columns since the {} statement modifies only static columns"
    assert output.format("UPDATE") in refused(f"UPDATE {name} SET s = 1 WHERE p = 1 AND c = 1")
    assert output.format("DELETE") in refused(f"DELETE s FROM {name} WHERE p = 1 AND c = 1")
    assert "Some clustering keys are missing: c" in refused(f"UPDATE {name} SET s = 1, v = 1 WHERE p = 1")
    assert "Some clustering keys are missing: c" in refused(f"DELETE s, v FROM {name} WHERE p = 1")


def test_batches_of_a_statement(session: Any, table: Table, rows: Rows, refused: Refused, key: int) -> None:
    name = table(PLAIN)
    other = key + 500_000
    session.execute(
        f"BEGIN BATCH INSERT INTO {name} (k, v) VALUES ({key}, 1); UPDATE {name} SET w = 'x' WHERE k = {key};"
        f" INSERT INTO {name} (k, v) VALUES ({other}, 1); DELETE FROM {name} WHERE k = {other}; APPLY BATCH"
    )
    assert rows(f"SELECT v, w FROM {name} WHERE k = {key}") == [(1, "x")]
    assert rows(f"SELECT v, w FROM {name} WHERE k = {other}") == []
    ahead_us = time.time_ns() // 1000 + 3_600_000_000
    session.execute(
        f"BEGIN UNLOGGED BATCH USING TIMESTAMP {ahead_us} UPDATE {name} SET v = 2 WHERE k = {key} APPLY BATCH;"
    )
    assert rows(f"SELECT v, writetime(v) FROM {name} WHERE k = {key}") == [(2, ahead_us)]
    session.execute("BEGIN BATCH APPLY BATCH")
    both = f"BEGIN BATCH USING TIMESTAMP 1 INSERT INTO {name} (k) VALUES (1) USING TIMESTAMP 2; APPLY BATCH"
    assert "Timestamp must be set either on BATCH or individual statements" in refused(both)
    assert "counter" in refused(f"BEGIN COUNTER BATCH UPDATE {name} SET v = 1 WHERE k = 1; APPLY BATCH").lower()
    prepared = session.prepare(
        f"BEGIN BATCH INSERT INTO {name} (k, v) VALUES (?, ?); INSERT INTO {name} (k, w) VALUES (?, ?); APPLY BATCH"
    )
    session.execute(prepared, (other, 5, other, "five"))
    assert rows(f"SELECT v, w FROM {name} WHERE k = {other}") == [(5, "five")]


def test_batches_of_the_protocol(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    insert = session.prepare(f"INSERT INTO {name} (k, v, w) VALUES (?, ?, ?)")
    for kind in (BatchType.LOGGED, BatchType.UNLOGGED):
        batch = BatchStatement(batch_type=kind)
        batch.add(insert, (key, 1, "a"))
        batch.add(SimpleStatement(f"UPDATE {name} SET w = %s WHERE k = %s"), ("b", key + 500_000))
        batch.add(insert, (key, 2, UNSET_VALUE))
        answer = session.execute(batch)
        assert rows(f"SELECT v, w FROM {name} WHERE k IN ({key}, {key + 500_000})") in (
            [(2, "a"), (None, "b")],
            [(None, "b"), (2, "a")],
        )
        warnings = answer.response_future.warnings or []
        assert any("logged batch" in one for one in warnings) is (kind is BatchType.LOGGED)
    session.execute(BatchStatement())
    wrong = BatchStatement()
    wrong.add(SimpleStatement(f"SELECT * FROM {name}"))
    with pytest.raises(InvalidRequest, match="only UPDATE, INSERT and DELETE"):
        session.execute(wrong)
    counters = BatchStatement(batch_type=BatchType.COUNTER)
    counters.add(insert, (key, 1, "a"))
    with pytest.raises(InvalidRequest, match="counter"):
        session.execute(counters)


def test_rows_of_a_batch_have_one_time(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    session.execute(
        f"BEGIN BATCH INSERT INTO {name} (k, v) VALUES ({key}, 1); INSERT INTO {name} (k, v) VALUES ({key}, 2);"
        f" INSERT INTO {name} (k, w) VALUES ({key}, 'w'); APPLY BATCH"
    )
    ((v, first, second),) = rows(f"SELECT v, writetime(v), writetime(w) FROM {name} WHERE k = {key}")
    assert (v, first) == (2, second)
    session.execute(
        f"BEGIN BATCH INSERT INTO {name} (k, v) VALUES ({key}, 9); DELETE FROM {name} WHERE k = {key}; APPLY BATCH"
    )
    assert rows(f"SELECT * FROM {name} WHERE k = {key}") == []


def test_truncate_empties_a_table(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table("k int PRIMARY KEY, truncated int")
    insert = session.prepare(f"INSERT INTO {name} (k, truncated) VALUES (?, 1)")
    for k in range(20):
        session.execute(insert, (k,))
    for words in ("TRUNCATE", "TRUNCATE TABLE"):
        session.execute(f"{words} {name}")
        assert rows(f"SELECT * FROM {name}") == []
        session.execute(insert, (key,))
        assert rows(f"SELECT k FROM {name}") == [(key,)]


def test_using_timeout(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(PLAIN)
    session.execute(f"INSERT INTO {name} (k, v) VALUES ({key}, 1) USING TIMEOUT 5s AND TTL 100")
    session.execute(f"UPDATE {name} USING TIMEOUT 1500ms SET v = 2 WHERE k = {key}")
    assert rows(f"SELECT v FROM {name} WHERE k = {key} USING TIMEOUT 5s") == [(2,)]
    session.execute(f"DELETE FROM {name} USING TIMEOUT 5s WHERE k = {key}")
    assert rows(f"SELECT v FROM {name} WHERE k = {key}") == []
