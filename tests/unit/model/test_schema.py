"""A table's shape is checked when it is declared, and column numbers are never reused."""

import uuid

import pytest

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import TableId
from ebla.model.schema import (
    Column,
    ColumnKind,
    TableOptions,
    TableSchema,
    decode_schema,
    encode_schema,
    new_schema,
    with_column,
    with_options,
    with_renamed_column,
    without_column,
)

IDENTITY = (TableId(uuid.UUID(int=1)), "ks", "t")


def column(name: str, kind: ColumnKind = ColumnKind.REGULAR, type_name: str = "int") -> Column:
    return Column(name=name, type=parse_type(type_name), kind=kind)


KEY = column("k", ColumnKind.PARTITION_KEY)


def table(*columns: Column) -> TableSchema:
    return new_schema(*IDENTITY, columns)


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
        ((KEY, column("")), "1 to 1024 characters"),
        ((KEY, column("c" * 1_025)), "1 to 1024 characters"),
        ((KEY, column("j", ColumnKind.PARTITION_KEY)), "counted from 0"),
        ((KEY, Column(name="c", type=parse_type("int"), kind=ColumnKind.CLUSTERING, position=1)), "counted from 0"),
    ],
)
def test_impossible_shapes_are_refused(columns: tuple[Column, ...], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        table(*columns)


@pytest.mark.parametrize(
    ("keyspace", "name", "words"),
    [
        ("", "t", "keyspace name: 1 to 48"),
        ("k" * 49, "t", "keyspace name: 1 to 48"),
        ("ks", "", "table name: 1 to 222"),
        ("ks", "t" * 223, "table name: 1 to 222"),
    ],
)
def test_names_have_a_length(keyspace: str, name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{words} characters"):
        new_schema(IDENTITY[0], keyspace, name, (KEY,))
    assert new_schema(IDENTITY[0], "k" * 48, "t" * 222, (KEY,)).partition_key == (KEY,)


def test_a_dropped_column_comes_back_only_with_a_compatible_type() -> None:
    schema = without_column(table(KEY, column("v", type_name="set<text>")), "v")
    assert [(one.name, str(one.type)) for one in schema.dropped] == [("v", "set<text>")]
    for kind in ("set<int>", "frozen<set<text>>", "text"):
        with pytest.raises(InvalidRequest, match="incompatible with previous type set<text>"):
            with_column(schema, column("v", type_name=kind))
    again = with_column(schema, column("v", type_name="set<blob>"))
    assert [str(one.type) for one in without_column(again, "v").dropped] == ["set<blob>"]


def test_key_columns_neither_come_nor_go() -> None:
    schema = table(KEY, column("v"))
    with pytest.raises(InvalidRequest):
        without_column(schema, "k")
    with pytest.raises(InvalidRequest):
        with_column(schema, column("c", ColumnKind.CLUSTERING))
    with pytest.raises(InvalidRequest, match="no column"):
        schema.column("nope")


def test_a_key_column_renamed_keeps_its_number_and_place() -> None:
    schema = table(KEY, column("c", ColumnKind.CLUSTERING), column("v"))
    renamed = with_renamed_column(with_renamed_column(schema, "k", "id"), "c", "at")
    assert [(one.name, one.number) for one in renamed.columns] == [("id", 0), ("at", 1), ("v", 2)]
    assert renamed.version == 3
    assert renamed.layouts == ((2,), (2,), (2,))


def test_only_key_columns_are_renamed_and_only_to_free_names() -> None:
    schema = table(KEY, column("v"))
    with pytest.raises(InvalidRequest, match="not part of the key"):
        with_renamed_column(schema, "v", "w")
    with pytest.raises(InvalidRequest, match="already"):
        with_renamed_column(schema, "k", "v")
    with pytest.raises(InvalidRequest, match="1 to 1024"):
        with_renamed_column(schema, "k", "")
    with pytest.raises(NotFound, match="no column 'nope'"):
        with_renamed_column(schema, "nope", "w")


def test_other_options_are_another_version() -> None:
    schema = table(KEY, column("v"))
    changed = with_options(schema, TableOptions(comment="rows of mine"))
    assert changed.options.comment == "rows of mine"
    assert (changed.version, changed.columns) == (2, schema.columns)
    assert changed.layouts == ((1,), (1,))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (TableOptions(default_ttl_s=-1), "default_time_to_live"),
        (TableOptions(default_ttl_s=20 * 365 * 24 * 3600 + 1), "default_time_to_live"),
        (TableOptions(gc_grace_s=-1), "gc_grace_seconds"),
        (TableOptions(others=(("a", "1"), ("a", "2"))), "given twice"),
    ],
)
def test_options_have_bounds(options: TableOptions, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        new_schema(*IDENTITY, (KEY,), options)
    with pytest.raises(InvalidRequest, match=word):
        with_options(table(KEY), options)
