from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import InsertStatement
from ebla.cql.parse.terms import BindMarker, Term
from ebla.cql.plan.binder import (
    Binder,
    BoundRequest,
    TermReceiver,
    invalid_value_test,
    is_constant,
    values_in_marker_order,
)
from ebla.model.cql_types import SCALARS, CqlType, ListType, MapType, SetType, TupleType, is_assignable, parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import decode, encode, join_elements, join_fields, validation_error
from ebla.wire.cql.messages import UNSET, BoundValue, ColumnSpec, QueryParameters

INT = SCALARS["int"]


def term_of(text: str) -> tuple[Term, tuple[BindMarker, ...]]:
    parsed = parse(f"INSERT INTO t (k) VALUES ({text})")
    assert isinstance(parsed.statement, InsertStatement)
    return parsed.statement.values[0], parsed.markers


def no_bytes(_count: int) -> bytes:
    raise AssertionError("nothing here is random")


def value_of(kind: str, text: str, *values: BoundValue) -> Any:
    term, markers = term_of(text)
    source = Binder(keyspace="ks", table="t", markers=markers).source(term, TermReceiver("c", parse_type(kind)))
    found = source(BoundRequest(values, 0, no_bytes))
    return decode(parse_type(kind), found) if isinstance(found, bytes) else found


@pytest.mark.parametrize(
    ("kind", "sent", "stored"),
    [
        ("frozen<set<int>>", [3, 1, 2, 1], [1, 2, 3]),
        ("frozen<map<int, int>>", [(2, 2), (1, 1)], [(1, 1), (2, 2)]),
        ("list<frozen<set<int>>>", [[2, 1], [3]], [[1, 2], [3]]),
        ("tuple<int, frozen<set<text>>>", (1, ["b", "a"]), (1, ["a", "b"])),
        ("frozen<set<frozen<set<int>>>>", [[3, 2], [1], [2, 3]], [[1], [2, 3]]),
        ("frozen<map<frozen<set<int>>, frozen<set<int>>>>", [([2, 1], [4, 3]), ([1, 2], [6, 5])], [([1, 2], [5, 6])]),
    ],
)
def test_bound_sets_and_maps_are_sorted_at_any_depth(kind: str, sent: Any, stored: Any) -> None:
    assert value_of(kind, "?", _as_sent(parse_type(kind), sent)) == stored


def _as_sent(kind: CqlType, value: Any) -> bytes:
    """As a driver may send it: `encode` drops duplicates."""
    match kind:
        case ListType(element=element) | SetType(element=element):
            return join_elements([_as_sent(element, one) for one in value], len(value))
        case MapType(key=key, value=inner):
            parts = [part for left, right in value for part in (_as_sent(key, left), _as_sent(inner, right))]
            return join_elements(parts, len(value))
        case TupleType(elements=elements):
            return join_fields([_as_sent(one, part) for one, part in zip(elements, value, strict=True)])
        case _:
            return encode(kind, value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("list<int>", "[]", []),
        ("list<int>", "[3, 1, 3]", [3, 1, 3]),
        ("set<int>", "{3, 1, 3}", [1, 3]),
        ("set<int>", "{}", []),
        ("map<text, int>", "{}", []),
        ("map<text, int>", "{'b': 1, 'a': 2, 'b': 3}", [("a", 2), ("b", 3)]),
        ("frozen<map<int, frozen<list<text>>>>", "{1: ['a', 'b']}", [(1, ["a", "b"])]),
        ("tuple<int, text>", "(1, 'a')", (1, "a")),
        ("tuple<int, text>", "(1)", (1, None)),
        ("tuple<int, text>", "(null, 'a')", (None, "a")),
        ("int", "(1)", 1),
        ("int", "(int) 1", 1),
        ("text", "(ascii) 'a'", "a"),
        ("varint", "(bigint) 7", 7),
        ("int", "null", None),
        ("int", "1 + 2 * 3 - 4", 3),
        ("int", "-7 / 2", -3),
        ("int", "-7 % 2", -1),
        ("int", "- (int) 5", -5),
        ("double", "1 / 4", 0.25),
        ("double", "-5.5 % 2", -1.5),
        ("decimal", "1.10 + 2", Decimal("3.10")),
        ("float", "3e38 * 10", float("inf")),
        ("int", "1 + null", None),
        ("blob", "intAsBlob(1)", b"\0\0\0\1"),
        ("text", "blobAsText(textAsBlob('x'))", "x"),
        ("timestamp", "toTimestamp('1970-01-02')", 86_400_000),
        ("blob", "asciiAsBlob('a')", b"a"),
    ],
)
def test_constants_are_worked_out_at_once(kind: str, text: str, value: Any) -> None:
    term, markers = term_of(text)
    assert is_constant(
        Binder(keyspace="ks", table="t", markers=markers).source(term, TermReceiver("c", parse_type(kind)))
    )
    assert value_of(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "values", "value"),
    [
        ("int", "?", [encode(INT, 5)], 5),
        ("int", "?", [None], None),
        ("int", "?", [UNSET], UNSET),
        ("list<int>", "[?, 2]", [encode(INT, 5)], [5, 2]),
        ("set<int>", "{?, ?}", [encode(INT, 5), encode(INT, 1)], [1, 5]),
        ("map<int, int>", "{?: ?}", [encode(INT, 5), encode(INT, 1)], [(5, 1)]),
        ("tuple<int, int>", "(?, 1)", [None], (None, 1)),
        ("int", "? + 1", [encode(INT, 5)], 6),
        ("int", "(int) ? * ?", [encode(INT, 5), encode(INT, 3)], 15),
        ("text", "blobastext(?)", [b"a"], "a"),
        ("decimal", "?", [bytes(4) + b"\x7f" * 1785], Decimal(int.from_bytes(b"\x7f" * 1785))),
        ("list<int>", "?", [encode(parse_type("list<int>"), [1])], [1]),
    ],
)
def test_markers(kind: str, text: str, values: Sequence[BoundValue], value: Any) -> None:
    assert value_of(kind, text, *values) == value


@pytest.mark.parametrize(
    ("kind", "text", "values", "words"),
    [
        ("int", "?", [b"\1"], 'Invalid value for "c" of type int: a int has 4 bytes, not 1'),
        ("text", "?", [b"\xff"], 'Invalid value for "c" of type text'),
        ("decimal", "?", [bytes(4) + b"\x7f" * 1786], "a decimal has at most 1785 bytes of digits"),
        ("list<int>", "?", [b"\0\0\0\1"], 'Invalid value for "c" of type list<int>'),
        ("list<int>", "[?]", [b"\1"], 'Invalid value for "value(c)" of type int'),
        ("list<int>", "[?]", [None], "null is not supported inside collections"),
        ("list<int>", "[null]", [], "null is not supported inside collections"),
        ("set<int>", "{?}", [UNSET], "unset value is not supported inside value(c)"),
        ("int", "? + 1", [UNSET], "Invalid unset value for an argument"),
        ("list<int>", "{1}", [], "Invalid set or map literal for c of type list<int>"),
        ("set<int>", "[1]", [], "Invalid list literal for c of type set<int>"),
        ("map<int, int>", "{1}", [], "Invalid set literal for c of type map<int, int>"),
        ("set<int>", "{1: 2}", [], "Invalid set or map literal for c of type set<int>"),
        ("tuple<int, int>", "(1, 2, 3)", [], "too many elements"),
        ("int", "(1, 2)", [], "Invalid tuple literal for c of type int"),
        ("list<int>", "['a']", [], 'Invalid STRING constant (a) for "value(c)" of type int'),
        ("map<int, text>", "{'a': 'b'}", [], 'Invalid STRING constant (a) for "key(c)" of type int'),
        ("int", "(text) 'a'", [], 'Type error: cannot assign a value of type text to "c" of type int'),
        ("int", "now()", [], "cannot assign result of function now (type timeuuid)"),
        ("int", "nope()", [], "Unknown function 'nope'"),
        ("int", "token(1)", [], "Unknown function 'token'"),
        ("blob", "intasblob('a')", [], "Invalid call to function intasblob, none of its type signatures match"),
        ("blob", "intasblob(1, 2)", [], "Invalid number of arguments in call to function intasblob: 1 required but 2"),
        ("blob", "intasblob(k)", [], "a column (k) is not allowed here"),
        ("text", "'a' + 'b'", [], "the '+' operation is not supported for values of type text"),
        ("int", "1 / 0", [], "division by zero"),
        ("int", "2147483647 + 1", [], "is not a value of type int"),
        ("double", "1.0 % 0", [], "division by zero"),
        ("double", "Infinity % 2", [], "the '%' operation has no double as its result"),
        ("decimal", "1e400000 * 1e700000", [], "the '*' operation has no decimal as its result"),
    ],
)
def test_what_does_not_fit(kind: str, text: str, values: Sequence[BoundValue], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        value_of(kind, text, *values)
    assert words in str(caught.value)


def test_variables_have_the_name_of_their_marker_or_of_its_place() -> None:
    term, markers = term_of('[?, :x, :"Y"]')
    binder = Binder(keyspace="ks", table="t", markers=markers)
    binder.source(term, TermReceiver("c", parse_type("list<int>")))
    assert binder.variables() == tuple(
        ColumnSpec(keyspace="ks", table="t", name=name, type=INT) for name in ("value(c)", "x", "Y")
    )


def test_a_marker_without_a_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="bind marker 1"):
        Binder(keyspace="ks", table="t", markers=(BindMarker(0),)).variables()
    assert Binder(keyspace="ks", table="t", markers=(BindMarker(0),)).variables(all_known=False) == ()


MARKERS = (BindMarker(0), BindMarker(1, "b"), BindMarker(2, "B"), BindMarker(3, "b"))
VARIABLES = tuple(ColumnSpec(keyspace="ks", table="t", name=name, type=INT) for name in ("a", "b", "B", "b"))


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        (QueryParameters(values=(b"1", b"2", b"3", None)), [b"1", b"2", b"3", None]),
        (QueryParameters(values=(b"1", b"2", b"3"), names=("a", "b", "B")), [b"1", b"2", b"3", b"2"]),
        (QueryParameters(values=(b"1",), names=("b",)), [UNSET, b"1", b"1", b"1"]),
        (QueryParameters(values=(), names=()), [UNSET] * 4),
        (QueryParameters(values=(b"1", b"2"), names=("a", "other")), [b"1", UNSET, UNSET, UNSET]),
    ],
)
def test_values_by_place_and_by_name(parameters: QueryParameters, found: Sequence[BoundValue]) -> None:
    assert list(values_in_marker_order(parameters, MARKERS, VARIABLES)) == found


def test_as_many_values_as_markers() -> None:
    with pytest.raises(InvalidRequest, match="1 bound variables"):
        values_in_marker_order(QueryParameters(values=(b"1",)), MARKERS, VARIABLES)


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ("int", "int", True),
        ("int", "varint", True),
        ("int", "bigint", False),
        ("text", "blob", True),
        ("list<int>", "blob", True),
        ("bigint", "timestamp", True),
        ("timestamp", "bigint", True),
        ("timestamp", "date", False),
        ("blob", "text", False),
        ("timeuuid", "uuid", True),
        ("uuid", "timeuuid", False),
        ("list<ascii>", "frozen<list<text>>", True),
        ("map<int, timeuuid>", "map<varint, uuid>", True),
        ("set<int>", "list<int>", False),
        ("tuple<int, ascii>", "tuple<int, text>", True),
        ("tuple<int>", "tuple<int, text>", False),
    ],
)
def test_which_types_take_which_values(source: str, target: str, fits: bool) -> None:
    assert is_assignable(parse_type(source), parse_type(target)) is fits


@pytest.mark.parametrize("name", sorted(SCALARS))
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 4, bytes(8), b"\xff" * 8, bytes(16), "ä".encode(), b"abc"])
def test_the_quick_check_says_what_the_whole_one_does(name: str, data: bytes) -> None:
    assert invalid_value_test(SCALARS[name])(data) is (validation_error(SCALARS[name], data) is not None)
