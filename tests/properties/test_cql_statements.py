"""Random statements against a naive table of dicts: what SELECT shows is what was written, in the order of the keys."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cql.world import Cql

from ebla.model.token import token_of

PARTITIONS = st.integers(0, 3)
SMALL = st.integers(0, 3)
VALUES = st.one_of(st.none(), st.integers(0, 9))


@dataclass
class Naive:
    """Rows by (k, a, b); static values by k. `a` descends, `b` ascends."""

    rows: dict[tuple[int, int, int], int | None] = field(default_factory=dict)
    marked: set[tuple[int, int, int]] = field(default_factory=set)
    statics: dict[int, int] = field(default_factory=dict)

    def shown(self) -> list[tuple[Any, ...]]:
        """As `SELECT k, a, b, s, v`, in token order."""
        found: list[tuple[Any, ...]] = []
        for k in sorted(range(4), key=lambda key: token_of(key.to_bytes(4))):
            keys = sorted((key for key in self.rows if key[0] == k), key=lambda key: (-key[1], key[2]))
            keys = [key for key in keys if key in self.marked or self.rows[key] is not None]
            found += [(*key, self.statics.get(k), self.rows[key]) for key in keys]
            if not keys and k in self.statics:
                found.append((k, None, None, self.statics[k], None))
        return found


WRITES = st.one_of(
    st.tuples(st.just("insert"), PARTITIONS, SMALL, SMALL, VALUES),
    st.tuples(st.just("update"), PARTITIONS, SMALL, SMALL, VALUES),
    st.tuples(st.just("static"), PARTITIONS, VALUES),
    st.tuples(st.just("delete_row"), PARTITIONS, SMALL, SMALL),
    st.tuples(st.just("delete_slice"), PARTITIONS, SMALL),
    st.tuples(st.just("delete_range"), PARTITIONS, SMALL, SMALL, SMALL),
    st.tuples(st.just("delete_partition"), PARTITIONS),
)


def literal(value: int | None) -> str:
    return "null" if value is None else str(value)


def run(cql: Cql, naive: Naive, write: tuple[Any, ...]) -> None:
    match write:
        case ("insert", k, a, b, v):
            cql.run(f"INSERT INTO t (k, a, b, v) VALUES ({k}, {a}, {b}, {literal(v)})")
            naive.rows[k, a, b] = v
            naive.marked.add((k, a, b))
        case ("update", k, a, b, v):
            cql.run(f"UPDATE t SET v = {literal(v)} WHERE k = {k} AND a = {a} AND b = {b}")
            naive.rows[k, a, b] = v
        case ("static", k, s):
            cql.run(f"UPDATE t SET s = {literal(s)} WHERE k = {k}")
            naive.statics.pop(k, None)
            if s is not None:
                naive.statics[k] = s
        case ("delete_row", k, a, b):
            cql.run(f"DELETE FROM t WHERE k = {k} AND a = {a} AND b = {b}")
            forget(naive, lambda key: key == (k, a, b))
        case ("delete_slice", k, a):
            cql.run(f"DELETE FROM t WHERE k = {k} AND a = {a}")
            forget(naive, lambda key: key[:2] == (k, a))
        case ("delete_range", k, a, low, high):
            cql.run(f"DELETE FROM t WHERE k = {k} AND a = {a} AND b >= {low} AND b < {high}")
            forget(naive, lambda key: key[:2] == (k, a) and low <= key[2] < high)
        case ("delete_partition", k):
            cql.run(f"DELETE FROM t WHERE k = {k}")
            forget(naive, lambda key: key[0] == k)
            naive.statics.pop(k, None)


def forget(naive: Naive, is_gone: Any) -> None:
    for key in [key for key in naive.rows if is_gone(key)]:
        del naive.rows[key]
        naive.marked.discard(key)


def table() -> Cql:
    cql = Cql()
    cql.run(
        "CREATE TABLE t (k int, a int, b int, s int static, v int, PRIMARY KEY (k, a, b)) "
        "WITH CLUSTERING ORDER BY (a DESC, b ASC)"
    )
    return cql


def rows_of(shown: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without partitions that have static values alone: those show where no row is asked for."""
    return [row for row in shown if row[1] is not None]


COLUMNS = "k, a, b, s, v"


@settings(max_examples=40, deadline=None)
@given(st.lists(WRITES, max_size=25), st.integers(1, 7))
def test_scans_and_pages_show_what_was_written(writes: list[tuple[Any, ...]], size: int) -> None:
    cql, naive = table(), Naive()
    for write in writes:
        run(cql, naive, write)
    shown = naive.shown()
    assert cql.rows(f"SELECT {COLUMNS} FROM t") == shown
    pages = cql.pages(f"SELECT {COLUMNS} FROM t", size)
    assert [row for page in pages for row in page] == shown
    assert cql.rows("SELECT count(*) FROM t") == [(len(shown),)]
    limited = cql.pages(f"SELECT {COLUMNS} FROM t LIMIT 5", size)
    assert [row for page in limited for row in page] == shown[:5]
    first: dict[int, tuple[Any, ...]] = {}
    for row in shown:
        first.setdefault(row[0], row)
    distinct = cql.pages("SELECT DISTINCT k, s FROM t", size)
    assert [row for page in distinct for row in page] == [(row[0], row[3]) for row in first.values()]
    per_partition = cql.pages(f"SELECT {COLUMNS} FROM t PER PARTITION LIMIT 2", size)
    wanted = [row for k in first for row in [one for one in shown if one[0] == k][:2]]
    assert [row for page in per_partition for row in page] == wanted


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
SLICES = st.tuples(st.sampled_from(["<", "<=", ">", ">=", "="]), SMALL, SMALL)


@settings(max_examples=40, deadline=None)
@given(st.lists(WRITES, max_size=25), PARTITIONS, SLICES, st.integers(1, 4))
def test_slices_show_their_rows_in_either_order(
    writes: list[tuple[Any, ...]], k: int, cut: tuple[str, int, int], size: int
) -> None:
    cql, naive = table(), Naive()
    for write in writes:
        run(cql, naive, write)
    sign, x, y = cut
    compare = COMPARE[sign]
    mine = [row for row in rows_of(naive.shown()) if row[0] == k]
    for where, wanted in (
        (f"a {sign} {x}", [row for row in mine if compare(row[1], x)]),
        (f"a = {x} AND b {sign} {y}", [row for row in mine if row[1] == x and compare(row[2], y)]),
        (f"(a, b) {sign} ({x}, {y})", [row for row in mine if compare(row[1:3], (x, y))]),
    ):
        text = f"SELECT {COLUMNS} FROM t WHERE k = {k} AND {where}"
        assert cql.rows(text) == wanted
        reversed_pages = cql.pages(f"{text} ORDER BY a ASC, b DESC", size)
        assert [row for page in reversed_pages for row in page] == wanted[::-1]
    chosen = cql.rows(f"SELECT {COLUMNS} FROM t WHERE k IN ({k}, 2) AND a IN ({x}, {y}) AND b = {x}")
    assert chosen == [row for row in rows_of(naive.shown()) if row[0] in (k, 2) and row[1] in (x, y) and row[2] == x]
    filtered = cql.pages(f"SELECT {COLUMNS} FROM t WHERE v {sign} {x} ALLOW FILTERING", size)
    found = [row for page in filtered for row in page]
    assert found == [row for row in naive.shown() if row[4] is not None and compare(row[4], x)]
