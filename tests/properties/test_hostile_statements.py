"""Large, deep and unclosed statements and values: refused, or done without keeping the loop for long."""

from typing import Any

import pytest
from tests.fuzz.cql_corpus import ACCEPTED, REFUSED, TABLE
from tests.fuzz.longest_turn import longest_turn
from tests.unit.cql.world import Cql

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest, TooLarge
from ebla.model.values import encode
from ebla.options import DEFAULT_LIMITS

ELEMENTS = DEFAULT_LIMITS.cql_elements_max


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run(TABLE)
    return made


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_largest_statements_are_executed(cql: Cql, name: str) -> None:
    with longest_turn() as turn:
        cql.run(ACCEPTED[name])
    assert turn.is_short, f"{turn.cpu_s * 1000:.0f} ms"


@pytest.mark.parametrize("name", REFUSED)
def test_larger_ones_are_refused(cql: Cql, name: str) -> None:
    with longest_turn() as turn, pytest.raises(InvalidRequest):
        cql.run(REFUSED[name])
    assert turn.is_short, f"{turn.cpu_s * 1000:.0f} ms"
    assert not cql.rows_store.tables


@pytest.mark.parametrize(
    ("kind", "statement", "value"),
    [
        ("list<int>", "INSERT INTO t (k, l) VALUES (1, ?)", list(range(ELEMENTS))),
        ("set<int>", "INSERT INTO t (k, e) VALUES (1, ?)", list(range(ELEMENTS, 0, -1))),
        ("map<int, int>", "UPDATE t SET m = ? WHERE k = 1", [(n, n) for n in range(ELEMENTS)]),
        ("list<int>", "UPDATE t SET v = 'a' WHERE k IN ?", list(range(10_000))),
        ("list<text>", "SELECT k FROM t WHERE v IN ? ALLOW FILTERING", list(map(str, range(ELEMENTS)))),
    ],
)
def test_many_bound_elements_do_not_keep_the_loop(cql: Cql, kind: str, statement: str, value: Any) -> None:
    data = encode(parse_type(kind), value)
    with longest_turn() as turn:
        cql.run(statement, data)
    assert turn.is_short, f"{turn.cpu_s * 1000:.0f} ms"


@pytest.mark.parametrize(
    ("kind", "statement", "value"),
    [
        ("list<int>", "INSERT INTO t (k, l) VALUES (1, ?)", [0] * (ELEMENTS + 1)),
        ("list<int>", "SELECT k FROM t WHERE k IN ?", [0] * (ELEMENTS + 1)),
        ("list<frozen<set<int>>>", "INSERT INTO t (k, f) VALUES (1, ?)", [list(range(300))] * 300),
    ],
)
def test_too_many_bound_elements_are_refused(cql: Cql, kind: str, statement: str, value: Any) -> None:
    with longest_turn() as turn, pytest.raises(TooLarge, match=r"elements are over limits\.cql_elements_max \(65536\)"):
        cql.run(statement, encode(parse_type(kind), value))
    assert turn.is_short, f"{turn.cpu_s * 1000:.0f} ms"


def test_long_bound_numbers_are_not_multiplied(cql: Cql) -> None:
    with pytest.raises(TooLarge, match="more than 4000 digits"):
        cql.run("INSERT INTO t (k, n) VALUES (1, ? * ?)", b"\1" * 2_000, b"\1")
