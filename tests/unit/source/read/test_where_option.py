"""Conditions that a user writes in CQL: on keys and tokens alone, and nothing else beside them."""

import uuid

import pytest

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator
from ebla.model.token import Token, TokenRange, token_of
from ebla.model.values import encode
from ebla.source.read.planner import KeyRestrictions
from ebla.source.read.pushdown import push_filters
from ebla.source.read.where_option import parse_where
from ebla.storage.codec.key_codec import partition_prefix

SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)),
    "ks",
    "Strange Name",
    (
        Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
        Column(name="day", type=parse_type("date"), kind=ColumnKind.CLUSTERING, position=0),
        Column(name="Who", type=parse_type("text"), kind=ColumnKind.CLUSTERING, position=1),
        Column(name="v", type=parse_type("int"), kind=ColumnKind.REGULAR),
    ),
)


def of_int(number: int) -> bytes:
    return encode(parse_type("int"), number)


def test_nothing() -> None:
    assert parse_where(SCHEMA, "") == KeyRestrictions()


def test_conditions_on_keys() -> None:
    found = parse_where(SCHEMA, "k IN (1, 2, 1) AND day >= '1970-01-02' and \"Who\" < 'it''s'")
    assert found == KeyRestrictions(
        conditions=(
            KeyCondition("k", KeyOperator.IN, (of_int(1), of_int(2))),
            KeyCondition("day", KeyOperator.GREATER_OR_EQUAL, (encode(parse_type("date"), 1),)),
            KeyCondition("Who", KeyOperator.LESS, (b"it's",)),
        )
    )


def test_tokens() -> None:
    found = parse_where(SCHEMA, "token(k) > -5 AND token(k) <= 9")
    assert found == KeyRestrictions(ranges=(TokenRange(Token(-5), Token(9)),))
    assert parse_where(SCHEMA, "token(k) > 5 AND token(k) < 6") == KeyRestrictions(ranges=())


def test_partitions_that_are_named_are_read_alone() -> None:
    start = parse_where(SCHEMA, "k = 7 AND day = '1970-01-01'")
    found = push_filters(SCHEMA, (ColumnSelector("v"),), (), start)
    token = token_of(of_int(7))
    assert found.partitions == (partition_prefix(token, of_int(7)),)
    assert found.ranges == (TokenRange(Token(token - 1), token),)
    assert [condition.column for condition in found.conditions] == ["day"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v = 1", "v is not a key column"),
        ("kk = 1", "no column 'kk'; did you mean 'k'"),
        ("k = ?", "plain literals"),
        ("k IN ()", "at least one"),
        ("k != 1", "only =, <"),
        ("k = 'x'", "k"),
        ("k = 1 OR k = 2", "AND"),
        ("(k, day) = (1, '1970-01-01')", "single columns"),
        ("token(day) > 1", r"token\(\) takes k"),
        ("token(k) != 1", "tokens are compared"),
        ("k = 1 LIMIT 5", "only conditions"),
        ("k = 1 ORDER BY day DESC", "only conditions"),
        ("k =", "line 1"),
    ],
)
def test_what_is_no_condition_on_keys(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_where(SCHEMA, text)
