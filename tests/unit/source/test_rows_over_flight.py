"""What a task may ask of a node's scan workers, over Flight: equal to a plain reading of the rows."""

import asyncio
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.flight_rig import build_part, flight_rig
from tests.unit.storage.naive_scan import TIMES, Part, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, stored_prefix

from ebla.model.errors import InvalidRequest
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator, SelectorKind
from ebla.model.token import WHOLE_RING
from ebla.source.read.replica_merge import merge_replicas
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import whole_shape
from ebla.storage.scan.stack_scan import ScanQuery
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery


def test_typed_and_stored_rows_by_condition_and_partition(tmp_path: Path) -> None:
    rows = RandomRows(9, Mix(plain=0.6, partitions=5, rows=80))
    parts: list[Part] = [(rows.layer(), WHOLE_RING, True), (rows.layer(), WHOLE_RING, False)]
    rng = Random(9)
    prefixes = tuple(sorted(stored_prefix([f"p{number}".encode()]) for number in range(3)))

    async def main() -> None:
        async with flight_rig(tmp_path) as rig:
            await build_part(rig, parts)
            for number in range(4):
                conditions = random_conditions(rng) if number else ()
                chosen = prefixes if number % 2 else ()
                query = ScanQuery(schema=MIXED, columns=TIMES, now_s=3, conditions=conditions, partitions=chosen)
                model = expected(parts, query)
                asked = TypedRowsQuery(
                    range=WHOLE_RING, columns=TIMES, now_s=3, conditions=conditions, partitions=chosen
                )
                assert str(_rows(await rig.answer(rig.source(), asked))) == str(model)
                for by_column in (False, True):
                    stored = StoredRowsQuery(
                        range=WHOLE_RING, conditions=conditions, partitions=chosen, by_column=by_column
                    )
                    batches = await rig.answer(rig.source(), stored)
                    wanted = whole_shape(MIXED).arrow_schema if by_column else ROWS_SCHEMA
                    assert all(batch.schema == wanted for batch in batches)
                    assert str(_rows(list(merge_replicas(query, [batches, batches])))) == str(model)

    asyncio.run(main())


@runs_in(real_time)
async def test_wrong_questions_are_told_before_any_row(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(RandomRows(1).layer(), WHOLE_RING, True)])
        collection = TypedRowsQuery(range=WHOLE_RING, columns=(ColumnSelector("m", SelectorKind.TTL),), now_s=0)
        with pytest.raises(InvalidRequest, match="non-frozen collection m"):
            await rig.answer(rig.source(), collection)
        wrong = (KeyCondition("x", KeyOperator.EQUAL, (bytes(4),)),)
        for query in (
            TypedRowsQuery(range=WHOLE_RING, columns=(ColumnSelector("x"),), now_s=0, conditions=wrong),
            StoredRowsQuery(range=WHOLE_RING, conditions=wrong),
        ):
            with pytest.raises(InvalidRequest, match="not part of the key"):
                await rig.answer(rig.source(), query)


def _rows(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]
