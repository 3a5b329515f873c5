"""However writes lie over replicas, and whether those tell them by row or by column, a job sees the same of them."""

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.naive_scan import ALL, TIMES, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows

from ebla.model.token import WHOLE_RING
from ebla.source.merged_read import merged_rows
from ebla.storage.columns import chunk_of, whole_shape
from ebla.storage.layer import Item
from ebla.storage.merge import merge_streams
from ebla.storage.row_file import rows_batch
from ebla.storage.scan import Question

SEEDS = st.integers(0, 1 << 32)
EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True, print_blob=False)


def told(writes: list[list[Item]], *, by_column: bool) -> list[pa.RecordBatch]:
    """What a replica that has seen these answers."""
    items = list(merge_streams(writes, MIXED)) if writes else []
    if not items:
        return []
    batch = rows_batch(items)
    return [chunk_of(whole_shape(MIXED), batch.column(0), batch.column(1)) if by_column else batch]


@EXAMPLES
@given(SEEDS)
def test_a_job_sees_every_write_that_some_replica_has_seen(seed: int) -> None:
    chance = Random(seed)
    rows = RandomRows(seed, Mix(chance.choice([0.9, 0.5]), 4, 40))
    writes = [rows.layer() for _ in range(chance.randrange(1, 5))]
    seen_by = [chance.choice([(0,), (1,), (0, 1)]) for _ in writes]
    streams = [
        told([one for one, seen in zip(writes, seen_by) if number in seen], by_column=chance.random() < 0.5)
        for number in range(2)
    ]
    conditions = random_conditions(chance) if chance.random() < 0.5 else ()
    question = Question(MIXED, chance.choice([ALL, TIMES]), chance.randrange(20), conditions=conditions)
    found = [row for batch in merged_rows(question, streams) for row in batch.to_pylist()]
    assert str(found) == str(expected([(items, WHOLE_RING, False) for items in writes], question))
