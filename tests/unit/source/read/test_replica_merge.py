"""Rows of replicas that know different things, merged in a task, are what one node that knew all would show."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.naive_scan import ALL, TIMES, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column, stored_key, stored_prefix, table

from ebla.model.errors import ConnectionLost, InvalidRequest, Stale
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import ColumnKind, TableSchema, with_column, without_column
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.model.token import WHOLE_RING
from ebla.source.read import replica_merge
from ebla.source.read.replica_merge import merge_replicas
from ebla.storage.codec.row_codec import decode_row, encode_row
from ebla.storage.codec.row_file import rows_batch
from ebla.storage.columns.chunks import chunk_of, whole_shape
from ebla.storage.layers.layer import Item
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import ScanQuery


def batches(items: Sequence[Item], rows: int, columns_of: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(items), rows):
        batch = rows_batch(items[start : start + rows])
        if columns_of is not None:
            batch = chunk_of(whole_shape(columns_of), batch.column(0), batch.column(1))
        yield batch


def shown(question: ScanQuery, streams: Sequence[Iterator[pa.RecordBatch]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in merge_replicas(question, streams):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("seed", range(24))
def test_replicas_together_show_what_their_rows_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    if seed % 2:
        monkeypatch.setattr(replica_merge, "CHUNK_ROWS", rng.randrange(1, 10))
    rows = RandomRows(seed, Mix(plain=rng.choice([0.9, 0.5, 0.1]), partitions=rng.choice([2, 5]), rows=60))
    replicas = [rows.layer() for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.5:
        # As a rule they know the same, but for a few rows.
        replicas = [[item for item in replicas[0] if rng.random() < 0.95] for _ in replicas]
    prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(6))
    for number in range(6):
        question = ScanQuery(
            schema=MIXED,
            columns=rng.choice(
                [ALL, TIMES, select_values("xp"), select_values("s"), (ColumnSelector("", SelectorKind.TOKEN, "t"),)]
            ),
            now_s=rng.randrange(20),
            conditions=random_conditions(rng) if number % 2 else (),
            partitions=tuple(rng.sample(prefixes, rng.randrange(4))) if number > 2 else (),
        )
        size, by_column = rng.choice([1, 7, 100]), [rng.choice([None, MIXED]) for _ in replicas]
        found = shown(question, [batches(items, size, one) for items, one in zip(replicas, by_column)])
        assert str(found) == str(expected([(items, WHOLE_RING, False) for items in replicas], question)), question


def test_a_replica_that_breaks_ends_the_answer() -> None:
    items = RandomRows(3).layer()

    def breaking() -> Iterator[pa.RecordBatch]:
        yield rows_batch(items[:3])
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost):
        list(merge_replicas(ScanQuery(schema=MIXED, columns=ALL, now_s=0), [batches(items, 5), breaking()]))


def test_a_question_without_sense_is_refused_before_a_row_is_read() -> None:
    replica = batches(RandomRows(3).layer(), 5)
    with pytest.raises(InvalidRequest, match="no column"):
        list(merge_replicas(ScanQuery(schema=MIXED, columns=select_values(["nope"]), now_s=0), [replica]))
    assert next(replica).equals(next(batches(RandomRows(3).layer(), 5)))


def test_rows_of_a_newer_schema_are_told() -> None:
    newer = with_column(MIXED, column("new", "int"))
    rows = RandomRows(1, Mix(plain=1.0))
    rows.schema = newer
    with pytest.raises(Stale, match="schema version"):
        list(merge_replicas(ScanQuery(schema=MIXED, columns=ALL, now_s=0), [batches(rows.layer(), 10)]))


def test_columns_of_another_version_are_taken_by_number() -> None:
    """A column came that the task does not know of, and one went that it asks for."""
    first = table(column("p", "int", ColumnKind.PARTITION_KEY), column("a", "int"), column("b", "int"))
    newer = without_column(with_column(first, column("c", "int")), "a")
    a, b = first.column("a").number, first.column("b").number
    items = sorted(
        (stored_key(first, {"p": number.to_bytes(4)}), encode_row(row, 1, first.layouts[0]))
        for number, row in enumerate(
            [
                Row(
                    marker=RowMarker(1),
                    deletion=None,
                    cells={a: Cell(timestamp_us=1, value=bytes(4)), b: Cell(timestamp_us=1, value=bytes(4))},
                ),
                Row(marker=None, deletion=None, cells={a: Cell(timestamp_us=1, value=bytes(4))}),
            ]
        )
    )
    question = ScanQuery(schema=first, columns=select_values("pab"), now_s=0)
    seen = shown(question, [batches(items, 9, newer)])
    assert seen == [{"p": 0, "a": None, "b": 0}]
    assert len(shown(question, [batches(items, 9, newer), batches(items, 9)])) == 2
    later = ScanQuery(schema=newer, columns=select_values("pbc"), now_s=0)
    assert shown(later, [batches(items, 9, first)]) == [{"p": 0, "b": 0, "c": None}]
    # The row is complete to the node that sent it, and not to this task: the older cell shows through.
    whole = next(key for key, value in items if len(decode_row(value, first.layouts).cells) == 2)
    c = newer.column("c").number
    older = [
        (
            whole,
            encode_row(
                Row(marker=None, deletion=None, cells={c: Cell(timestamp_us=0, value=bytes(4))}),
                newer.version,
                newer.layouts[-1],
            ),
        )
    ]
    assert shown(later, [batches(items, 9, first), batches(older, 9, newer)]) == [{"p": 0, "b": 0, "c": 0}]
