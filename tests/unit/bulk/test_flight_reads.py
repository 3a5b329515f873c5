"""Tables over Flight, by the ticket of a read: rows, hashes, and where the files are."""

import shutil
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.flight_rig import CHECKPOINT, FlightRig, build_part, flight_rig
from tests.unit.bulk.flight_rows_rig import LOWER, PLAIN, UPPER, asked, merged, plain_items, stacks, stored

from ebla.bulk.tickets import Grant, GrantKind
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import AttemptId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import ScanStack, TransferSource
from ebla.wire.flight_format import byte_values
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import (
    FilesQuery,
    HashesQuery,
    LocateQuery,
    StagedRowsQuery,
    StoredRowsQuery,
)

pytestmark = runs_in(real_time)


def source(rig: FlightRig, expires_ms: int = 10_000) -> TransferSource:
    grant = Grant(
        kind=GrantKind.READ, session=None, subject=CHECKPOINT, table=rig.stream_service.schema.id, expires_ms=expires_ms
    )
    return rig.source(ticket=rig.stream_service.tickets.sign(grant))


async def test_rows_and_hashes_of_a_read_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        parts = stacks(6)
        for part, part_range in zip(parts, (LOWER, UPPER), strict=True):
            await build_part(rig, part, part_range=part_range)
        found = await rig.answer(source(rig), StoredRowsQuery(range=WHOLE_RING))
        assert stored(found) == merged(parts)
        (hashes,) = await rig.answer(source(rig), HashesQuery(UPPER, 4, 0))
        (expected,) = await rig.answer(rig.source(), HashesQuery(UPPER, 4, 0))
        assert hashes.equals(expected)
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_typed_rows_of_a_read(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(20), WHOLE_RING, True)], PLAIN)
        table = pa.Table.from_batches(await rig.answer(source(rig), asked(["k", "v"])))
        assert sorted(table.column("k").to_pylist()) == list(range(20))


async def test_where_the_files_are(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(20), LOWER, True)], PLAIN)
        (batch,) = await rig.answer(source(rig), LocateQuery(WHOLE_RING))
        (data,) = byte_values(batch)
        located = msgspec.msgpack.decode(data, type=CheckpointFiles)
        folder = str(tmp_path / "checkpoint")
        (part,) = rig.stream_service.parts
        expected = ScanStack(WHOLE_RING, ((f"{folder}/{part.layers[0].folder}", LOWER),))
        assert located == CheckpointFiles(machine="here.1", folder=folder, stacks=(expected,), schema=PLAIN)
        (batch,) = await rig.answer(source(rig), LocateQuery(UPPER))
        (data,) = byte_values(batch)
        assert msgspec.msgpack.decode(data, type=CheckpointFiles).stacks == (ScanStack(WHOLE_RING, ()),)
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_only_what_has_a_part_of_the_range_is_opened(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        parts = stacks(6)
        for part, part_range in zip(parts, (LOWER, UPPER), strict=True):
            await build_part(rig, part, part_range=part_range)
        shutil.rmtree(tmp_path / "checkpoint" / "stack1")
        found = await rig.answer(source(rig), StoredRowsQuery(range=LOWER))
        assert stored(found) == merged(parts, LOWER)
        with pytest.raises(EblaError):
            await rig.answer(source(rig), StoredRowsQuery(range=WHOLE_RING))


async def test_what_is_opened_after_its_thread_gave_up_is_let_go(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, loop_wait_s=0.2, life_s=25) as rig:
        await build_part(rig, [(plain_items(2), WHOLE_RING, False)], PLAIN)
        rig.stream_service.read_opened = lambda: time.sleep(0.5)  # blocks the loop
        with pytest.raises(DeadlineExceeded):
            await rig.answer(source(rig), StoredRowsQuery(range=WHOLE_RING))
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_a_range_that_the_node_does_not_own_is_refused(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(20), WHOLE_RING, False)], PLAIN)
        rig.stream_service.owned = LOWER
        for query in (_rows, LocateQuery, _hashes):
            with pytest.raises(Stale, match="no complete copy"):
                await rig.answer(source(rig), query(UPPER))
        assert await rig.answer(source(rig), StoredRowsQuery(range=LOWER))
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


def _rows(token_range: TokenRange) -> StoredRowsQuery:
    return StoredRowsQuery(range=token_range)


def _hashes(token_range: TokenRange) -> HashesQuery:
    return HashesQuery(token_range, 2, 0)


async def test_a_ticket_of_a_read_opens_rows_and_nothing_else(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(2), WHOLE_RING, False)], PLAIN)
        with pytest.raises(InvalidRequest, match="for the rows of a table"):
            await rig.answer(source(rig), FilesQuery(part=0, layer=0, file="CURRENT"))
        with pytest.raises(Refused, match="for a read, not for a put"):
            await rig.answer(source(rig), StagedRowsQuery(AttemptId(CHECKPOINT)))
        with pytest.raises(InvalidRequest, match="for a checkpoint"):
            await rig.answer(rig.source(), LocateQuery(WHOLE_RING))
        with pytest.raises(Refused, match="expired"):
            await rig.answer(source(rig, expires_ms=10), StoredRowsQuery(range=WHOLE_RING))
        given = source(rig).ticket
        forged = given[:-1] + bytes([given[-1] ^ 1])
        with pytest.raises(Refused, match="not signed"):
            await rig.answer(rig.source(ticket=forged), StoredRowsQuery(range=WHOLE_RING))
        for noise in (b"", b"x" * 40, b"\x01" + b"\xff" * 60):
            with pytest.raises(Refused):
                await rig.answer(rig.source(ticket=noise), StoredRowsQuery(range=WHOLE_RING))
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_a_stream_ends_where_its_table_was_dropped(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(3000, 5000), WHOLE_RING, True)], PLAIN)

        def dropped(sent_bytes: int) -> None:
            if sent_bytes > 4 << 20:
                raise NotFound("there is no such table any more")

        rig.stream_service.sent = dropped
        with pytest.raises(NotFound, match="any more"):
            await rig.answer(source(rig), StoredRowsQuery(range=WHOLE_RING))
        await rig.wait_for(lambda: rig.stream_service.sources == 0)
