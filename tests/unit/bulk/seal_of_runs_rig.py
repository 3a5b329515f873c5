"""Staged runs and the order to seal them."""

import uuid
import zlib
from collections.abc import Mapping, Sequence

from tests.unit.bulk.staged_rows_rig import ITEMS
from tests.unit.bulk.staging_rig import FIRST, SECOND
from tests.unit.storage.small_table import SMALL

from ebla.bulk.seal import SealSpec
from ebla.model.identity import AttemptId
from ebla.model.transfers import StagedFile
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.layers.layer import Item

Runs = Mapping[AttemptId, Sequence[Item]]

THIRD = AttemptId(uuid.UUID(int=13))

THREE: Runs = {FIRST: ITEMS[::3], SECOND: ITEMS[1::3], THIRD: ITEMS[2::3]}


def records_of(items: Sequence[Item], rows: int = 7) -> bytes:
    return b"".join(encode_rows(rows_batch(items[start : start + rows])) for start in range(0, len(items), rows))


def staged_run(items: Sequence[Item]) -> StagedFile:
    records = records_of(items)
    return StagedFile(name="rows", size_bytes=len(records), checksum=zlib.crc32(records))


def order_of(runs: Runs) -> SealSpec:
    (first, items), *more = runs.items()
    return SealSpec(
        attempt=first,
        files=(staged_run(items),),
        layers=(),
        schema=SMALL,
        more=tuple((attempt, staged_run(one)) for attempt, one in more),
    )
