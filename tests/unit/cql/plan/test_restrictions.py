"""The relations that WHERE allows, and Cassandra's error messages."""

import pytest
from tests.unit.cql.world import Cql

from ebla.cql.plan.restrictions import CARTESIAN_PRODUCT_MAX, FILTERING_ERROR
from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.token import token_of
from ebla.model.values import encode
from ebla.wire.cql.messages import UNSET


@pytest.fixture(scope="module")
def cql() -> Cql:
    made = Cql()
    made.run(
        "CREATE TABLE t (k int, a int, b int, c int, s int static, v int, l list<int>, m map<int, int>, "
        "f frozen<list<int>>, d duration, PRIMARY KEY (k, a, b, c))"
    )
    made.run("CREATE TABLE two (p int, q text, v int, PRIMARY KEY ((p, q)))")
    made.run("INSERT INTO two (p, q, v) VALUES (1, 'x', 7)")
    for a in range(3):
        for b in range(3):
            made.run(f"INSERT INTO t (k, a, b, c, v) VALUES (1, {a}, {b}, 0, {a * 10 + b})")
    return made


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nope = 1", "Undefined column name nope in table ks.t"),
        ("k = 1 AND k = 2", "k cannot be restricted by more than one relation if it includes an Equal"),
        ("k IN (1) AND k IN (2)", "k cannot be restricted by more than one relation if it includes a IN"),
        ("k = 1 AND a = 1 AND a > 0", "a cannot be restricted by more than one relation if it includes an Equal"),
        ("k = 1 AND a > 1 AND a >= 0", "More than one restriction was found for the start bound on a"),
        ("k = 1 AND a < 1 AND (a, b) < (0, 1)", "More than one restriction was found for the end bound on a"),
        ("k = 1 AND a = null", "Invalid null value in condition for column a"),
        ("k = 1 AND a IN (1, null)", "Invalid null value in condition for column a"),
        ("k = 1 AND a != 1", 'Unsupported "!=" relation: a'),
        ("k = 1 AND (a, b) != (1, 1)", 'Unsupported "!=" relation: a, b'),
        ("m[1] != 1", 'Unsupported "!=" relation: m'),
        ("token(k) != 1", 'Unsupported "!=" relation: k'),
        ("v LIKE 'a%'", "LIKE restriction is only supported on properly indexed columns, and v is not"),
        ("v IS NOT NULL", "IS NOT NULL"),
        ("v CONTAINS 1", "Cannot use CONTAINS on non-collection column v"),
        ("l CONTAINS KEY 1", "Cannot use CONTAINS KEY on non-map column l"),
        ("l = [1]", "Collection column 'l' (list<int>) cannot be restricted by a '=' relation"),
        ("d > 1h", "Slice restrictions are not supported on duration columns (d)"),
        ("k = 1 AND (a, v) = (1, 1)", "can only be applied to clustering columns but was applied to: v"),
        ("k = 1 AND (b, a) = (1, 1)", "Clustering columns must appear in the PRIMARY KEY order"),
        ("k = 1 AND (a, c) = (1, 1)", "Clustering columns must appear in the PRIMARY KEY order"),
        ("k = 1 AND (a, a) = (1, 1)", 'Column "a" appeared twice in a relation'),
        ("k = 1 AND (a, b) = (1)", "Expected 2 elements in value tuple, but got 1"),
        ("k = 1 AND (a, b) > (1, 2, 3)", "Expected 2 elements in value tuple, but got 3"),
        ("k = 1 AND (a, b) IN ((1, 2), (1))", "Expected 2 elements in value tuple, but got 1"),
        ("token(a) > 1", "must contain only partition key components, and a is none"),
        ("token(k) > 1 AND k = 1", "cannot be restricted by both a normal relation and a token relation"),
        ("token(k) > token(1, 2)", "Invalid number of arguments in call to function token: 1 required"),
        ("token(k) > null", "Invalid null value for the token of a partition key"),
        ("v = 1", FILTERING_ERROR),
        ("a = 1", FILTERING_ERROR),
        ("k > 1", FILTERING_ERROR),
        ("k = 1 AND v = 1", FILTERING_ERROR),
        ("k = 1 AND a = 1 AND b = 1 AND c = 1 AND v = 1", FILTERING_ERROR),
        ("k = 1 AND s = 1", FILTERING_ERROR),
        ("f CONTAINS 1", FILTERING_ERROR),
        ("k = 1 AND b = 1", 'PRIMARY KEY column "b" cannot be restricted as preceding column "a" is not restricted'),
        ("k = 1 AND a = 1 AND c = 1", 'column "c" cannot be restricted as preceding column "b" is not restricted'),
        (
            "k = 1 AND a > 1 AND b = 1",
            'column "b" cannot be restricted (preceding column "a" is restricted by a non-EQ',
        ),
        ("k = 1 AND a = 1 AND (a, b) > (1, 1)", 'Column "a" cannot be restricted by both a relation of its own and'),
    ],
)
def test_what_is_refused(cql: Cql, where: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT v FROM t WHERE {where}")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("k = 1 AND a = 1", [10, 11, 12]),
        ("k = 1 AND a IN (2, 0, 2) AND b = 1", [1, 21]),
        ("k IN (2, 1) AND a = 0", [0, 1, 2]),
        ("k = 1 AND a > 0 AND a < 2", [10, 11, 12]),
        ("k = 1 AND a >= 1 AND (a, b) <= (2, 0)", [10, 11, 12, 20]),
        ("k = 1 AND (a, b) > (1, 1)", [12, 20, 21, 22]),
        ("k = 1 AND (a, b, c) >= (1, 1, 0) AND (a, b) < (2, 1)", [11, 12, 20]),
        ("k = 1 AND (a, b) IN ((0, 1), (2, 2), (9, 9))", [1, 22]),
        ("k = 1 AND (a, b) = (1, 1) AND c = 0", [11]),
        ("k = 1 AND a = 1 AND (b, c) > (0, 0)", [11, 12]),
        ("k = 1 AND (a) = (1)", [10, 11, 12]),
        ("(k = 1) AND (a = 2 AND b = 2)", [22]),
        ("k = 1 AND a IN ()", []),
        ("k IN ()", []),
        ("k = 1 AND a > 2 AND a < 1", []),
        ("k = 1 AND v > 20 ALLOW FILTERING", [21, 22]),
        ("b = 1 ALLOW FILTERING", [1, 11, 21]),
        ("k > 0 AND a = 2 ALLOW FILTERING", [20, 21, 22]),
        ("k = 1 AND a > 0 AND b = 1 ALLOW FILTERING", [11, 21]),
        ("k = 1 AND a = 1 AND (a, b) > (1, 1) ALLOW FILTERING", [12]),
        ("(a, b) IN ((0, 0), (1, 1)) ALLOW FILTERING", [0, 11]),
        ("(a, b) >= (2, 1) ALLOW FILTERING", [21, 22]),
        ("v IN (5, 10, 11) ALLOW FILTERING", [10, 11]),
        (f"token(k) = {int(token_of((1).to_bytes(4)))} AND a = 0 ALLOW FILTERING", [0, 1, 2]),
        ("token(k) >= token(1) AND token(k) <= token(1) AND v < 2 ALLOW FILTERING", [0, 1]),
        ("token(k) > token(1) AND token(k) < token(1)", []),
        ("token(k) > 1 AND token(k) < -1", []),
    ],
)
def test_what_is_found(cql: Cql, where: str, values: list[int]) -> None:
    assert [row[0] for row in cql.rows(f"SELECT v FROM t WHERE {where}")] == values


INT = parse_type("int")
ONE = encode(INT, 1)
BOUND = {
    "k = ? AND a = ?": (ONE, ONE),
    "k IN ? AND a = ?": (encode(parse_type("list<int>"), [1, 3]), ONE),
    "k = ? AND a IN ?": (ONE, encode(parse_type("list<int>"), [1])),
    "k = ? AND (a, b) IN ?": (ONE, encode(parse_type("list<frozen<tuple<int, int>>>"), [(1, 0), (1, 1), (1, 2)])),
    "k = ? AND (a, b) >= ? AND (a, b) < (2, 0)": (ONE, encode(parse_type("tuple<int, int>"), (1, 0))),
    "k = ? AND (a, b) IN (?, (1, 1), (1, 2))": (ONE, encode(parse_type("tuple<int, int>"), (1, 0))),
    "k = ? AND (a, b) > (?, 9) AND a < 2": (ONE, encode(INT, 0)),
    "token(k) = token(?) AND a = ? ALLOW FILTERING": (ONE, ONE),
}


@pytest.mark.parametrize("where", BOUND)
def test_bound_keys(cql: Cql, where: str) -> None:
    assert cql.rows(f"SELECT v FROM t WHERE {where}", *BOUND[where]) == [(10,), (11,), (12,)]


@pytest.mark.parametrize(
    ("where", "values", "words"),
    [
        ("k = ?", (UNSET,), "Invalid unset value for column k"),
        ("k = ?", (None,), "Invalid null value in condition for column k"),
        ("k IN ?", (None,), "Invalid null value for IN restriction on column k"),
        ("k IN ?", (UNSET,), "Invalid null value for IN restriction on column k"),
        ("k IN ?", (b"\1",), 'Invalid value for "in(k)" of type list<int>'),
        ("k = 1 AND (a, b) = ?", (ONE,), 'Invalid value for "in(a,b)"'),
        ("k = 1 AND (a, b) = ?", (b"",), "Expected 2 elements in value tuple, but got 0"),
        ("k = 1 AND a > ?", (UNSET,), "Invalid unset value for column a"),
        ("token(k) > ?", (UNSET,), "Invalid null value for the token"),
        ("v = ? ALLOW FILTERING", (UNSET,), "Invalid unset value for column v"),
        ("v = ? ALLOW FILTERING", (None,), "Invalid null value in condition for column v"),
    ],
)
def test_bound_keys_that_are_none(cql: Cql, where: str, values: tuple[bytes | None, ...], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.rows(f"SELECT v FROM t WHERE {where}", *values)
    assert words in str(caught.value)


def test_composite_partition_keys(cql: Cql) -> None:
    assert cql.rows("SELECT v FROM two WHERE p = 1 AND q IN ('x', 'y')") == [(7,)]
    assert cql.rows("SELECT v FROM two WHERE token(p, q) = token(1, 'x')") == [(7,)]
    with pytest.raises(InvalidRequest, match="ALLOW FILTERING"):
        cql.rows("SELECT v FROM two WHERE p = 1")
    assert cql.rows("SELECT v FROM two WHERE p = 1 ALLOW FILTERING") == [(7,)]
    with pytest.raises(InvalidRequest, match="all partition key components or none of them: q is missing"):
        cql.rows("SELECT v FROM two WHERE token(p) = 1")


def test_the_product_of_in_lists_is_bounded(cql: Cql) -> None:
    side = int(CARTESIAN_PRODUCT_MAX**0.5) + 1
    numbers = ", ".join(map(str, range(side)))
    with pytest.raises(InvalidRequest, match=f"cartesian product size {side * side} is greater than maximum"):
        cql.rows(f"SELECT v FROM t WHERE k = 1 AND a IN ({numbers}) AND b IN ({numbers})")
    many = encode(parse_type("list<int>"), range(CARTESIAN_PRODUCT_MAX + 1))
    with pytest.raises(InvalidRequest, match="partition key cartesian product"):
        cql.rows("SELECT v FROM t WHERE k IN ?", many)


def test_keys_have_a_length() -> None:
    cql = Cql()
    cql.run("CREATE TABLE t (k blob PRIMARY KEY)")
    with pytest.raises(InvalidRequest, match="Key may not be empty"):
        cql.run("INSERT INTO t (k) VALUES (0x)")
    with pytest.raises(InvalidRequest, match="Key length of 65536 is longer than maximum of 65535"):
        cql.run("INSERT INTO t (k) VALUES (?)", bytes(65536))
    cql.run("INSERT INTO t (k) VALUES (?)", bytes(65535))
