"""A job sees the same rows however writes are spread over replicas, read by row or by column."""

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.naive_scan import ALL, TIMES, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows

from ebla.model.token import WHOLE_RING
from ebla.source.read.replica_merge import merge_replicas
from ebla.storage.codec.row_file import rows_batch
from ebla.storage.columns.chunks import chunk_of, whole_shape
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan.stack_scan import ScanQuery

SEEDS = st.integers(0, 1 << 32)
EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True, print_blob=False)


def replica_answer(writes: list[list[Item]], *, by_column: bool) -> list[pa.RecordBatch]:
    """What a replica that has seen these answers."""
    items = list(merge_streams(writes, MIXED)) if writes else []
    if not items:
        return []
    batch = rows_batch(items)
    return [chunk_of(whole_shape(MIXED), batch.column(0), batch.column(1)) if by_column else batch]


@EXAMPLES
@given(SEEDS)
def test_a_job_sees_every_write_that_some_replica_has_seen(seed: int) -> None:
    rng = Random(seed)
    rows = RandomRows(seed, Mix(plain=rng.choice([0.9, 0.5]), partitions=4, rows=40))
    writes = [rows.layer() for _ in range(rng.randrange(1, 5))]
    seen_by = [rng.choice([(0,), (1,), (0, 1)]) for _ in writes]
    streams = [
        replica_answer([one for one, seen in zip(writes, seen_by) if number in seen], by_column=rng.random() < 0.5)
        for number in range(2)
    ]
    conditions = random_conditions(rng) if rng.random() < 0.5 else ()
    question = ScanQuery(schema=MIXED, columns=rng.choice([ALL, TIMES]), now_s=rng.randrange(20), conditions=conditions)
    found = [row for batch in merge_replicas(question, streams) for row in batch.to_pylist()]
    assert str(found) == str(expected([(items, WHOLE_RING, False) for items in writes], question))
