"""A table's shape is checked when it is declared, and column numbers are never reused."""

import uuid

import pytest

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.identity import TableId
from ebla.model.schema import (
    Column,
    ColumnKind,
    TableSchema,
    decode_schema,
    encode_schema,
    new_schema,
    with_column,
    without_column,
)

IDENTITY = (TableId(uuid.UUID(int=1)), "ks", "t")


def column(name: str, kind: ColumnKind = ColumnKind.REGULAR, type_name: str = "int") -> Column:
    return Column(name, parse_type(type_name), kind)


KEY = column("k", ColumnKind.PARTITION_KEY)


def table(*columns: Column) -> TableSchema:
    return new_schema(IDENTITY, columns)


def test_columns_stand_in_one_order_and_survive_the_store() -> None:
    schema = table(column("b"), column("a"), column("c", ColumnKind.CLUSTERING), KEY)
    assert [one.name for one in schema.columns] == ["k", "c", "a", "b"]
    assert decode_schema(encode_schema(schema)) == schema
    assert [one.name for one in schema.regular] == ["a", "b"]


def test_a_name_dropped_and_declared_again_is_another_column() -> None:
    schema = table(KEY, column("v"))
    again = with_column(without_column(schema, "v"), column("v"))
    assert again.column("v").number > schema.column("v").number
    assert again.version == schema.version + 2
    assert again.layouts == ((1,), (), (2,))


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ((column("v"),), "primary key"),
        ((KEY, column("k")), "twice"),
        ((KEY, column("s", ColumnKind.STATIC)), "clustering key"),
        ((column("k", ColumnKind.PARTITION_KEY, "list<int>"),), "frozen"),
        ((KEY, column("c", ColumnKind.CLUSTERING, "duration")), "no order"),
    ],
)
def test_impossible_shapes_are_refused(columns: tuple[Column, ...], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        table(*columns)


@pytest.mark.parametrize("name", ["", "n" * 49])
def test_names_have_a_length(name: str) -> None:
    for keyspace, own in ((name, "t"), ("ks", name)):
        with pytest.raises(InvalidRequest, match="1 to 48 characters"):
            new_schema((IDENTITY[0], keyspace, own), (KEY,))
    assert new_schema((IDENTITY[0], "k" * 48, "t" * 48), (KEY,)).partition_key == (KEY,)


def test_key_columns_neither_come_nor_go() -> None:
    schema = table(KEY, column("v"))
    with pytest.raises(InvalidRequest):
        without_column(schema, "k")
    with pytest.raises(InvalidRequest):
        with_column(schema, column("c", ColumnKind.CLUSTERING))
    with pytest.raises(InvalidRequest, match="no column"):
        schema.column("nope")
