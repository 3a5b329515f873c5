"""Few rows as CQL statements, which must leave behind what a run of the same rows does."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from tests.unit.source.write.encode_rows_rig import TYPES, RowValues, batch_of, encoded, random_row
from tests.unit.source.write_fakes import FakeContact
from tests.unit.storage.random_rows import MIXED, column, table

from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import DeleteStatement, InsertStatement
from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.modification_plan import WriteTime, plan_modification
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest
from ebla.model.rows import PartitionHead, Row
from ebla.model.schema import ColumnKind, TableSchema
from ebla.request.timestamps import WriteTimestamps
from ebla.runtime.system_clock import SystemClock
from ebla.source.cql_client import BoundStatement
from ebla.source.write import small_writes
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.small_writes import can_write_by_cql, pack_batches, to_statements, unpack_batches, write_by_cql
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row
from ebla.storage.columns.load_encoding import WriteStamp
from ebla.storage.merge.row_merge import merge_values

STAMP = WriteStamp(timestamp_us=1_700_000_000_000_000, at_s=1_700_000_000)
NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))

ANY_TIMESTAMP = WriteTimestamps(SystemClock(), 0)


def left_behind(
    schema: TableSchema, statements: list[BoundStatement], stamp: WriteStamp
) -> dict[bytes, Row | PartitionHead]:
    """By the planner of a node."""
    held: dict[bytes, bytes] = {}
    for sequence, statement in enumerate(statements):
        parsed = parse(statement.text)
        assert isinstance(parsed.statement, InsertStatement | DeleteStatement)
        plan = plan_modification(parsed.statement, schema, parsed.markers)
        bound = BoundRequest(statement.values, stamp.timestamp_us, bytes)
        for mutation in plan.mutations(
            bound,
            WriteTime(timestamp_us=stamp.timestamp_us, now_s=stamp.at_s, timestamps=ANY_TIMESTAMP, sequence=sequence),
        ):
            for key, value in mutation.items:
                held[key] = merge_values(held[key], value, schema) if key in held else value
    return {
        key: decode_head(value) if value[1] & RowFlag.HEAD else decode_row(value, schema.layouts)
        for key, value in held.items()
    }


@pytest.mark.parametrize("seed", range(40))
def test_statements_leave_behind_what_a_run_does(seed: int) -> None:
    rng = Random(seed)
    stamp = WriteStamp(
        timestamp_us=STAMP.timestamp_us, at_s=STAMP.at_s, nulls_delete=rng.random() < 0.5, ttl_s=rng.choice([0, 0, 60])
    )
    form = RowEncoding(schema=MIXED, stamp=stamp, ttl_column="ttl", op_column="op")
    rows = [random_row(rng) for _ in range(rng.choice([1, 3, 30]))]
    given = batch_of(rows, TYPES.names)
    found = left_behind(MIXED, [one for _, one in to_statements(form, given)], stamp)
    assert found == encoded(form, given)


def test_a_partition_of_one_row() -> None:
    form = RowEncoding(schema=NARROW, stamp=STAMP, op_column="op")
    given = pa.record_batch({"p": pa.array([1, 2], pa.int32()), "op": ["delete_partition", "delete"]})
    keys, values = encode_rows(form, given)
    found = left_behind(NARROW, [one for _, one in to_statements(form, given)], STAMP)
    assert found == {key: decode_row(value, NARROW.layouts) for key, value in zip(keys.to_pylist(), values.to_pylist())}


def test_names_are_quoted_and_values_are_bound() -> None:
    odd = table(column('P "x"', "int", ColumnKind.PARTITION_KEY), column("select", "text"))
    given = pa.record_batch({'P "x"': pa.array([1], pa.int32()), "select": ["'; DROP"]})
    (only,) = [one for _, one in to_statements(RowEncoding(schema=odd, stamp=STAMP), given)]
    assert only.text == 'INSERT INTO "ks"."t" ("P ""x""", "select") VALUES (?, ?) USING TTL 0'
    assert only.values == [(1).to_bytes(4), b"'; DROP"]


def test_batches_are_bounded_and_rows_of_a_partition_stand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_writes, "BATCH_STATEMENTS", 7)
    rows: list[RowValues] = [{"p": str(number % 5), "c": number, "d": "t"} for number in range(50)]
    contact = FakeContact()
    written = write_by_cql(
        contact, RowEncoding(schema=MIXED, stamp=STAMP), [batch_of(rows, ["p", "c", "d"])], ConsistencyLevel.ALL, 5.0
    )
    assert written == 50
    assert max(len(statements) for statements, _, _ in contact.batches) == 7
    partitions = [one.values[0] for statements, _, _ in contact.batches for one in statements]
    assert len([one for one, other in pairwise(partitions) if one != other]) == 4
    assert {(level, at) for _, level, at in contact.batches} == {(ConsistencyLevel.ALL, STAMP.timestamp_us)}
    monkeypatch.setattr(small_writes, "BATCH_BYTES", 10)
    contact = FakeContact()
    write_by_cql(
        contact, RowEncoding(schema=MIXED, stamp=STAMP), [batch_of(rows, ["p", "c", "d"])], ConsistencyLevel.ALL, 5.0
    )
    assert len(contact.batches) == 50


def test_messages_bring_batches_back() -> None:
    batches = [batch_of([random_row(Random(seed)) for _ in range(3)], TYPES.names) for seed in range(3)]
    assert unpack_batches(pack_batches(batches)) == batches
    assert unpack_batches(pack_batches([])) == []


def test_what_is_much_together_is_not_written_by_cql(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch_of([{"p": "a", "c": 1, "d": "t"}] * 10, ["p", "c", "d"])] * 3
    assert can_write_by_cql(MIXED, batches)
    monkeypatch.setattr(small_writes, "BY_CQL_ROWS_MAX", 29)
    assert not can_write_by_cql(MIXED, batches)
    monkeypatch.setattr(small_writes, "BY_CQL_ROWS_MAX", 30)
    monkeypatch.setattr(small_writes, "BY_CQL_BYTES_MAX", 50)
    assert not can_write_by_cql(MIXED, batches)


def test_null_keys_are_refused_here_too() -> None:
    with pytest.raises(InvalidRequest, match="key column 'c'"):
        list(
            to_statements(
                RowEncoding(schema=MIXED, stamp=STAMP), batch_of([{"p": "a", "c": None, "d": "t"}], ["p", "c", "d"])
            )
        )


FROZEN = table(
    column("p", "frozen<set<int>>", ColumnKind.PARTITION_KEY),
    column("c", "frozen<map<int, frozen<set<int>>>>", ColumnKind.CLUSTERING),
    column("v", "frozen<list<frozen<set<int>>>>"),
    column("s", "set<int>"),
)
FROZEN_TYPES = pa.schema(
    [
        ("p", pa.list_(pa.int32())),
        ("c", pa.map_(pa.int32(), pa.list_(pa.int32()))),
        ("v", pa.list_(pa.list_(pa.int32()))),
        ("s", pa.list_(pa.int32())),
    ]
)


def test_equal_frozen_values_are_equal_however_a_job_spells_them() -> None:
    """As CQL sorts them: the same row, under one key, with the same bytes."""
    spellings = [
        {"p": [3, 1, 2], "c": [(2, [9, 8]), (1, [])], "v": [[5, 4], [1]], "s": [2, 1]},
        {"p": [1, 2, 3, 3, 1], "c": [(1, [7]), (2, [8, 9, 8]), (1, [])], "v": [[4, 5, 5], [1, 1]], "s": [1, 2, 2]},
        {"p": [1, 2, 3], "c": [(1, []), (2, [8, 9])], "v": [[4, 5], [1]], "s": [1, 2]},
    ]
    form = RowEncoding(schema=FROZEN, stamp=STAMP)
    staged, by_cql = [], []
    for values in spellings:
        batch = pa.RecordBatch.from_pylist([values], schema=FROZEN_TYPES)
        keys, stored = encode_rows(form, batch)
        staged.append(list(zip(keys.to_pylist(), stored.to_pylist())))
        by_cql.append(left_behind(FROZEN, [one for _, one in to_statements(form, batch)], STAMP))
    assert staged[0] == staged[1] == staged[2]
    assert by_cql[0] == by_cql[1] == by_cql[2]
    ((key, value),) = staged[0]
    assert by_cql[0] == {key: decode_row(value, FROZEN.layouts)}
