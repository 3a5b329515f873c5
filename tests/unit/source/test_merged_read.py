"""Rows of replicas that know different things, merged in a task, are what one node that knew all would show."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.naive_scan import ALL, TIMES, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column, stored_prefix

from ebla.model.asked_rows import AskedColumn, AskedKind
from ebla.model.errors import ConnectionLost, InvalidRequest, Stale
from ebla.model.schema import with_column
from ebla.model.token import WHOLE_RING
from ebla.source import merged_read
from ebla.source.merged_read import merged_rows
from ebla.storage.asked_columns import values_of
from ebla.storage.layer import Item
from ebla.storage.row_file import rows_batch
from ebla.storage.scan import Question


def batches(items: Sequence[Item], rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(items), rows):
        yield rows_batch(items[start : start + rows])


def shown(question: Question, replicas: Sequence[Sequence[Item]], rows: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in merged_rows(question, [batches(items, rows) for items in replicas]):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_replicas_together_show_what_their_rows_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    if seed % 2:
        monkeypatch.setattr(merged_read, "CHUNK_ROWS", chance.randrange(1, 10))
    rows = RandomRows(seed, Mix(chance.choice([0.9, 0.5, 0.1]), chance.choice([2, 5]), 60))
    replicas = [rows.layer() for _ in range(chance.randrange(1, 4))]
    prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(6))
    for number in range(6):
        question = Question(
            MIXED,
            chance.choice([ALL, TIMES, values_of("xp"), values_of("s"), (AskedColumn("", AskedKind.TOKEN, "t"),)]),
            chance.randrange(20),
            conditions=random_conditions(chance) if number % 2 else (),
            partitions=tuple(chance.sample(prefixes, chance.randrange(4))) if number > 2 else (),
        )
        found = shown(question, replicas, chance.choice([1, 7, 100]))
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
    assert next(replica)


def test_rows_of_a_newer_schema_are_told() -> None:
    newer = with_column(MIXED, column("new", "int"))
    rows = RandomRows(1, Mix(1.0))
    rows.schema = newer
    with pytest.raises(Stale, match="schema version"):
        list(merged_rows(Question(MIXED, ALL, 0), [batches(rows.layer(), 10)]))
