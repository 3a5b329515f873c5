"""Conditions in the order of every type that a key may have, and the part of a partition that they leave."""

import operator
from random import Random

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import KEY_KINDS, MIXED, column, random_value, stored_key, stored_prefix, table

from ebla.model.byte_comparable import encode_comparable
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Row, RowMarker
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.selection import KeyCondition, KeyOperator
from ebla.storage.codec.key_codec import decode_clustering, head_key, in_spans, split_key
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.columns.chunks import KEY, ChunkShape, chunk_of, whole_shape
from ebla.storage.scan.key_filter import ClusteringSlice, KeyFilter, clustering_slice

ORDERS = {
    KeyOperator.EQUAL: operator.eq,
    KeyOperator.LESS: operator.lt,
    KeyOperator.LESS_OR_EQUAL: operator.le,
    KeyOperator.GREATER: operator.gt,
    KeyOperator.GREATER_OR_EQUAL: operator.ge,
}


def keyed(kind: str, *, desc: bool) -> TableSchema:
    return table(
        column("p", kind, ColumnKind.PARTITION_KEY),
        column("q", "int", ColumnKind.PARTITION_KEY, 1),
        column("c", kind, ColumnKind.CLUSTERING, desc=desc),
        column("v", "int"),
    )


def rows_of(schema: TableSchema, values: list[dict[str, bytes]]) -> dict[bytes, dict[str, bytes]]:
    return {stored_key(schema, one): one for one in values}


def chunk(schema: TableSchema, shape: ChunkShape, keys: list[bytes]) -> pa.RecordBatch:
    value = encode_row(Row(marker=RowMarker(1)), 1, schema.layouts[-1])
    return chunk_of(shape, pa.array(keys, pa.binary()), pa.array([value] * len(keys), pa.binary()))


def meets(asked: Column, condition: KeyCondition, value: bytes) -> bool:
    """Keys of partitions are equal where their bytes are."""
    against = condition.values[0]
    if condition.operator is KeyOperator.EQUAL and asked.kind is ColumnKind.PARTITION_KEY:
        return value == against
    left, right = (encode_comparable(asked.type, one) for one in (value, against))
    return bool(ORDERS[condition.operator](left, right))


@pytest.mark.parametrize("name", "pc")
@pytest.mark.parametrize("kind", KEY_KINDS)
def test_each_type_is_compared_in_its_own_order(kind: str, name: str) -> None:
    rng = Random(f"{kind} {name}")
    schema = keyed(kind, desc=rng.random() < 0.5)
    asked = schema.column(name)
    drawn = [{key: random_value(rng, schema.column(key).type) for key in "pqc"} for _ in range(60)]
    rows = rows_of(schema, [one for one in drawn if one["p"]])
    keys = sorted(rows)
    for sign in ORDERS:
        against = rng.choice(list(rows.values()))[name]
        condition = KeyCondition(name, sign, (against,))
        kept = KeyFilter(schema, (condition,))
        for shape in (ChunkShape(schema), whole_shape(schema)):
            found = kept.kept(shape, chunk(schema, shape, keys)).column(KEY).to_pylist()
            assert found == [key for key in keys if meets(asked, condition, rows[key][name])], condition
    several = [one[name] for one in rng.choices(list(rows.values()), k=4)]
    within = KeyFilter(schema, (KeyCondition(name, KeyOperator.IN, tuple(several)),))
    found = within.kept(ChunkShape(schema), chunk(schema, ChunkShape(schema), keys)).column(KEY).to_pylist()
    wanted = [encode_comparable(asked.type, one) for one in several]
    by_order = [key for key in keys if encode_comparable(asked.type, rows[key][name]) in wanted]
    assert found == ([key for key in keys if rows[key]["p"] in several] if name == "p" else by_order)


def test_heads_stay_for_the_rows_that_may_follow() -> None:
    prefix, other = sorted(stored_prefix([name]) for name in (b"a", b"b"))
    keys = [head_key(prefix), head_key(other)]
    shape = ChunkShape(MIXED)
    row = encode_row(Row(marker=RowMarker(1)), 1, MIXED.layouts[-1])
    heads = chunk_of(shape, pa.array(keys, pa.binary()), pa.array([row[:1] + b"\x04" + row[2:]] * 2, pa.binary()))
    of_rows = KeyFilter(MIXED, (KeyCondition("c", KeyOperator.EQUAL, (bytes(4),)),))
    assert len(of_rows.kept(shape, heads)) == 2
    assert of_rows.needs_rows
    of_partition = KeyFilter(MIXED, (KeyCondition("p", KeyOperator.EQUAL, (b"a",)),))
    assert of_partition.kept(shape, heads).column(KEY).to_pylist() == [head_key(stored_prefix([b"a"]))]
    assert not of_partition.needs_rows


@pytest.mark.parametrize("seed", range(30))
def test_a_slice_holds_every_row_that_meets_the_conditions(seed: int) -> None:
    rng = Random(seed)
    schema = table(
        column("p", "int", ColumnKind.PARTITION_KEY),
        column("c", rng.choice(["int", "text", "boolean"]), ColumnKind.CLUSTERING, desc=rng.random() < 0.5),
        column("d", "tinyint", ColumnKind.CLUSTERING, 1, desc=rng.random() < 0.5),
        column("v", "int"),
    )
    drawn = [{"p": bytes(4), **{name: random_value(rng, schema.column(name).type) for name in "cd"}} for _ in range(80)]
    keys = sorted(rows_of(schema, drawn))
    prefix = split_key(keys[0])[0]
    signs = list(ORDERS)
    narrowed = 0
    for _ in range(20):
        names = rng.choice(["c", "cd", "cc", "ccdd", "d"])
        conditions = tuple(KeyCondition(name, rng.choice(signs), (rng.choice(drawn)[name],)) for name in names)
        spans = clustering_slice(schema, conditions).spans(prefix)
        assert in_spans(head_key(prefix), spans)
        for key in keys:
            wire = dict(zip("cd", decode_clustering(schema.clustering, split_key(key)[2])))
            wanted = all(meets(schema.column(one.column), one, wire[one.column]) for one in conditions)
            inside = in_spans(key, spans)
            assert inside or not wanted
            narrowed += not inside
    assert narrowed


def test_one_bound_leaves_exactly_its_rows() -> None:
    schema = table(
        column("p", "int", ColumnKind.PARTITION_KEY), column("c", "tinyint", ColumnKind.CLUSTERING), column("v", "int")
    )
    keys = [stored_key(schema, {"p": bytes(4), "c": bytes([number])}) for number in range(10)]
    prefix = split_key(keys[0])[0]
    for sign, order in ORDERS.items():
        spans = clustering_slice(schema, (KeyCondition("c", sign, (bytes([5]),)),)).spans(prefix)
        assert [in_spans(key, spans) for key in keys] == [order(number, 5) for number in range(10)]
    assert clustering_slice(schema, ()) == ClusteringSlice()
    nothing = (
        KeyCondition("c", KeyOperator.GREATER, (bytes([5]),)),
        KeyCondition("c", KeyOperator.LESS, (bytes([5]),)),
    )
    assert not any(in_spans(key, clustering_slice(schema, nothing).spans(prefix)) for key in keys)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (KeyCondition("x", KeyOperator.EQUAL, (bytes(4),)), "not part of the key"),
        (KeyCondition("s", KeyOperator.EQUAL, (b"",)), "not part of the key"),
        (KeyCondition("nope", KeyOperator.EQUAL, (b"",)), "no column"),
        (KeyCondition("c", KeyOperator.EQUAL, ()), "one value, not 0"),
        (KeyCondition("c", KeyOperator.LESS, (bytes(4), bytes(4))), "one value, not 2"),
        (KeyCondition("c", KeyOperator.EQUAL, (bytes(3),)), "not a int"),
        (KeyCondition("d", KeyOperator.IN, (b"a", b"\xff")), "not a text"),
    ],
)
def test_conditions_without_sense_are_refused(condition: KeyCondition, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        KeyFilter(MIXED, (condition,))


def test_none_of_no_values() -> None:
    keys = [stored_key(MIXED, {"p": b"a", "c": bytes(4), "d": b""})]
    nothing = KeyFilter(MIXED, (KeyCondition("c", KeyOperator.IN, ()),))
    assert len(nothing.kept(ChunkShape(MIXED), chunk(MIXED, ChunkShape(MIXED), keys))) == 0
