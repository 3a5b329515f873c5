"""Rows as Spark passes them, and their encoding."""

from random import Random
from typing import Any

import pyarrow as pa
from tests.unit.storage.random_rows import MIXED

from ebla.model.rows import PartitionHead, Row
from ebla.source.write.encode_rows import RowEncoding, RowOperation, encode_rows
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row
from ebla.storage.merge.chunk_merge import sort_rows

TYPES = pa.schema(
    [
        ("p", pa.string()), ("c", pa.int32()), ("d", pa.string()), ("s", pa.string()), ("w", pa.string()),
        ("x", pa.int64()), ("m", pa.map_(pa.string(), pa.int32())), ("ttl", pa.int32()), ("op", pa.string()),
    ]
)  # fmt: skip

RowValues = dict[str, Any]


def batch_of(rows: list[RowValues], names: list[str]) -> pa.RecordBatch:
    fields = [TYPES.field(name) for name in names]
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


def encoded(form: RowEncoding, batch: pa.RecordBatch) -> dict[bytes, Row | PartitionHead]:
    rows = sort_rows(MIXED, *encode_rows(form, batch))
    found: dict[bytes, Row | PartitionHead] = {}
    for key, value in zip(rows.column(0).to_pylist(), rows.column(1).to_pylist()):
        found[key] = decode_head(value) if value[1] & RowFlag.HEAD else decode_row(value, MIXED.layouts)
    return found


def random_row(rng: Random) -> RowValues:
    row: RowValues = {
        "p": rng.choice("abc"),
        "c": rng.randrange(-2, 2),
        "d": rng.choice(["", "t"]),
        "s": rng.choice([None, "s", "u"]),
        "w": rng.choice([None, "", "w", "z" * 300]),
        "x": rng.choice([None, 0, 7]),
        "m": rng.choice([None, None, [], [("k", 3)], [("k", 4), ("l", 5)]]),
        "ttl": rng.choice([None, 0, 5, 90_000]),
        "op": rng.choice([None, *([RowOperation.UPSERT.value] * 4), "delete", "delete_partition"]),
    }
    if row["op"] == "delete_partition":
        row["c"] = rng.choice([None, 1])
    if row["op"] in (None, "upsert") and rng.random() < 0.1:
        row |= {"c": None, "d": None, "w": None, "x": None, "m": None}
    return row
