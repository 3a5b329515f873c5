"""Rows of replicas that know different things, merged in a task, are what one node that knew all would show."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.naive_scan import ALL, TIMES, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column, stored_key, stored_prefix, table

from ebla.model.asked_rows import AskedColumn, AskedKind
from ebla.model.errors import ConnectionLost, InvalidRequest, Stale
from ebla.model.rows import Cell, Marker, Row
from ebla.model.schema import ColumnKind, TableSchema, with_column, without_column
from ebla.model.token import WHOLE_RING
from ebla.source import merged_read
from ebla.source.merged_read import merged_rows
from ebla.storage.asked_columns import values_of
from ebla.storage.columns import chunk_of, whole_shape
from ebla.storage.layer import Item
from ebla.storage.row_codec import decode_row, encode_row
from ebla.storage.row_file import rows_batch
from ebla.storage.scan import Question


def batches(items: Sequence[Item], rows: int, columns_of: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(items), rows):
        batch = rows_batch(items[start : start + rows])
        if columns_of is not None:
            batch = chunk_of(whole_shape(columns_of), batch.column(0), batch.column(1))
        yield batch


def shown(question: Question, streams: Sequence[Iterator[pa.RecordBatch]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in merged_rows(question, streams):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("seed", range(24))
def test_replicas_together_show_what_their_rows_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    if seed % 2:
        monkeypatch.setattr(merged_read, "CHUNK_ROWS", chance.randrange(1, 10))
    rows = RandomRows(seed, Mix(chance.choice([0.9, 0.5, 0.1]), chance.choice([2, 5]), 60))
    replicas = [rows.layer() for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.5:
        # As a rule they know the same, but for a few rows.
        replicas = [[item for item in replicas[0] if chance.random() < 0.95] for _ in replicas]
    prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(6))
    for number in range(6):
        question = Question(
            MIXED,
            chance.choice([ALL, TIMES, values_of("xp"), values_of("s"), (AskedColumn("", AskedKind.TOKEN, "t"),)]),
            chance.randrange(20),
            conditions=random_conditions(chance) if number % 2 else (),
            partitions=tuple(chance.sample(prefixes, chance.randrange(4))) if number > 2 else (),
        )
        size, by_column = chance.choice([1, 7, 100]), [chance.choice([None, MIXED]) for _ in replicas]
        found = shown(question, [batches(items, size, one) for items, one in zip(replicas, by_column)])
        assert str(found) == str(expected([(items, WHOLE_RING, False) for items in replicas], question)), question


def test_a_replica_that_breaks_ends_the_answer() -> None:
    items = RandomRows(3).layer()

    def breaking() -> Iterator[pa.RecordBatch]:
        yield rows_batch(items[:3])
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost):
        list(merged_rows(Question(MIXED, ALL, 0), [batches(items, 5), breaking()]))


def test_a_question_without_sense_is_refused_before_a_row_is_read() -> None:
    replica = batches(RandomRows(3).layer(), 5)
    with pytest.raises(InvalidRequest, match="no column"):
        list(merged_rows(Question(MIXED, values_of(["nope"]), 0), [replica]))
    assert next(replica).equals(next(batches(RandomRows(3).layer(), 5)))


def test_rows_of_a_newer_schema_are_told() -> None:
    newer = with_column(MIXED, column("new", "int"))
    rows = RandomRows(1, Mix(1.0))
    rows.schema = newer
    with pytest.raises(Stale, match="schema version"):
        list(merged_rows(Question(MIXED, ALL, 0), [batches(rows.layer(), 10)]))


def test_columns_of_another_version_are_taken_by_number() -> None:
    """A column came that the task does not know of, and one went that it asks for."""
    first = table(column("p", "int", ColumnKind.PARTITION_KEY), column("a", "int"), column("b", "int"))
    newer = without_column(with_column(first, column("c", "int")), "a")
    a, b = first.column("a").number, first.column("b").number
    items = sorted(
        (stored_key(first, {"p": number.to_bytes(4)}), encode_row(row, 1, first.layouts[0]))
        for number, row in enumerate(
            [
                Row(Marker(1), None, {a: Cell(1, bytes(4)), b: Cell(1, bytes(4))}),
                Row(None, None, {a: Cell(1, bytes(4))}),
            ]
        )
    )
    question = Question(first, values_of("pab"), 0)
    seen = shown(question, [batches(items, 9, newer)])
    assert seen == [{"p": 0, "a": None, "b": 0}]
    assert len(shown(question, [batches(items, 9, newer), batches(items, 9)])) == 2
    later = Question(newer, values_of("pbc"), 0)
    assert shown(later, [batches(items, 9, first)]) == [{"p": 0, "b": 0, "c": None}]
    # The row is complete to the node that sent it, and not to this task: the older cell shows through.
    whole = next(key for key, value in items if len(decode_row(value, first.layouts).cells) == 2)
    c = newer.column("c").number
    older = [(whole, encode_row(Row(None, None, {c: Cell(0, bytes(4))}), newer.version, newer.layouts[-1]))]
    assert shown(later, [batches(items, 9, first), batches(older, 9, newer)]) == [{"p": 0, "b": 0, "c": 0}]
