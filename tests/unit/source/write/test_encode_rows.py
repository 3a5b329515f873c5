"""Rows of Spark's as CQL would have written them, compared with a model that knows one row at a time."""

from random import Random

import pyarrow as pa
import pytest
from tests.unit.source.write.encode_rows_rig import TYPES, RowValues, batch_of, encoded, random_row
from tests.unit.storage.random_rows import MIXED, stored_key, stored_prefix

from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, Row, RowMarker, merge_heads, merge_rows
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.storage.codec.key_codec import head_key
from ebla.storage.columns.load_encoding import WriteStamp

NUMBER = {one.name: one.number for one in MIXED.columns}


# ---- the model


class Model:
    """What a table holds after one statement for each row, all of one timestamp."""

    def __init__(self, form: RowEncoding) -> None:
        self.form = form
        self.held: dict[bytes, Row | PartitionHead] = {}

    def write(self, row: RowValues, names: list[str]) -> None:
        stamp = self.form.stamp
        deletion = Deletion(stamp.timestamp_us, stamp.at_s)
        match row.get("op") or "upsert":
            case "delete_partition":
                self._add_head(row, PartitionHead(deletion))
            case "delete":
                self._add_row(row, Row(deletion=deletion))
            case _:
                self._insert(row, [name for name in names if name not in ("op", "ttl")])

    def _insert(self, row: RowValues, names: list[str]) -> None:
        stamp = self.form.stamp
        own = row.get("ttl") if self.form.ttl_column else None
        ttl_s = stamp.ttl_s if own is None else own
        expires_s = stamp.at_s + ttl_s if ttl_s else 0
        static = {name: row[name] for name in names if name == "s"}
        cells = self._cells(static, ttl_s, expires_s)
        if cells:
            self._add_head(row, PartitionHead(static=Row(cells=cells)))
        if row["c"] is None:
            return
        regular = {name: row[name] for name in names if name in ("w", "x")}
        collections = {}
        if "m" in names:
            given = row["m"]
            if given is not None:
                elements = {
                    key.encode(): Cell(
                        timestamp_us=stamp.timestamp_us, value=value.to_bytes(4), ttl_s=ttl_s, at_s=expires_s
                    )
                    for key, value in given
                }
                collections[NUMBER["m"]] = CollectionCells(Deletion(stamp.timestamp_us - 1, stamp.at_s), elements)
            elif stamp.nulls_delete:
                collections[NUMBER["m"]] = CollectionCells(Deletion(stamp.timestamp_us, stamp.at_s))
        marker = RowMarker(stamp.timestamp_us, ttl_s, expires_s)
        self._add_row(
            row,
            Row(marker=marker, deletion=None, cells=self._cells(regular, ttl_s, expires_s), collections=collections),
        )

    def _cells(self, values: RowValues, ttl_s: int, expires_s: int) -> dict[int, Cell]:
        stamp = self.form.stamp
        cells = {}
        for name, value in values.items():
            if value is None and stamp.nulls_delete:
                cells[NUMBER[name]] = Cell(timestamp_us=stamp.timestamp_us, value=None, ttl_s=0, at_s=stamp.at_s)
            if value is not None:
                wire = value.to_bytes(4) if name == "x" else value.encode()
                cells[NUMBER[name]] = Cell(timestamp_us=stamp.timestamp_us, value=wire, ttl_s=ttl_s, at_s=expires_s)
        return cells

    def _add_row(self, row: RowValues, change: Row) -> None:
        wire = {"p": row["p"].encode(), "c": row["c"].to_bytes(4, signed=True), "d": row["d"].encode()}
        key = stored_key(MIXED, wire)
        known = self.held.get(key, Row())
        assert isinstance(known, Row)
        self.held[key] = merge_rows(known, change)

    def _add_head(self, row: RowValues, change: PartitionHead) -> None:
        key = head_key(stored_prefix([row["p"].encode()]))
        known = self.held.get(key, PartitionHead())
        assert isinstance(known, PartitionHead)
        self.held[key] = merge_heads(known, change)


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_of_the_model(seed: int) -> None:
    rng = Random(seed)
    stamp = WriteStamp(
        timestamp_us=1_700_000_000_000_000,
        at_s=1_700_000_000,
        nulls_delete=rng.random() < 0.5,
        ttl_s=rng.choice([0, 0, 60]),
    )
    form = RowEncoding(schema=MIXED, stamp=stamp, ttl_column=rng.choice(["", "ttl"]), op_column=rng.choice(["", "op"]))
    dropped = {name for name in ("w", "x", "m", "ttl", "op") if rng.random() < 0.3} - {*form.own_columns}
    dropped |= {name for name in ("ttl", "op") if name not in form.own_columns}
    names = [name for name in TYPES.names if name not in dropped]
    rows = [random_row(rng) for _ in range(rng.choice([1, 3, 40]))]
    if not form.op_column:
        rows = [row for row in rows if row["op"] in (None, "upsert")] or [random_row(Random(0)) | {"op": None}]
        rows = [row | {"op": None} for row in rows]
    model = Model(form)
    for row in rows:
        model.write(row, names)
    assert encoded(form, batch_of(rows, names)) == model.held


# ---- what is refused


def test_a_null_key_is_told_by_its_row() -> None:
    rows: list[RowValues] = [
        {"p": "a", "c": 1, "d": "t"},
        {"p": "b", "c": None, "d": "t"},
        {"p": None, "c": 2, "d": "t"},
    ]
    with pytest.raises(InvalidRequest, match=r"key column 'c' of ks\.t is null in 2 rows .* is p=b, c=None, d=t"):
        encode_rows(
            RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=1, at_s=1)), batch_of(rows, ["p", "c", "d"])
        )


def test_a_missing_key_column_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"key column 'd' of ks\.t is missing"):
        encode_rows(
            RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=1, at_s=1)),
            batch_of([{"p": "a", "c": 1}], ["p", "c"]),
        )


def test_a_partition_is_deleted_without_the_rest_of_the_key() -> None:
    batch = batch_of([{"p": "a", "op": "DELETE_Partition"}], ["p", "op"])
    found = encoded(RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=9, at_s=5), op_column="op"), batch)
    assert found == {head_key(stored_prefix([b"a"])): PartitionHead(Deletion(9, 5))}


def test_static_columns_alone_need_the_partition_key() -> None:
    rows: list[RowValues] = [{"p": None, "s": "x"}]
    with pytest.raises(InvalidRequest, match="key column 'p'"):
        encode_rows(RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=1, at_s=1)), batch_of(rows, ["p", "s"]))


def test_an_unknown_operation_is_named_with_those_there_are() -> None:
    batch = batch_of([{"p": "a", "op": "remove"}], ["p", "op"])
    with pytest.raises(InvalidRequest, match="holds 'remove'; it may hold upsert, delete, delete_partition"):
        encode_rows(RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=1, at_s=1), op_column="op"), batch)


def test_a_ttl_must_be_seconds() -> None:
    batch = pa.record_batch({"p": ["a"], "c": pa.array([1], pa.int32()), "d": ["t"], "ttl": ["5s"]})
    with pytest.raises(InvalidRequest, match="TTL column 'ttl' has type string"):
        encode_rows(RowEncoding(schema=MIXED, stamp=WriteStamp(timestamp_us=1, at_s=1), ttl_column="ttl"), batch)
