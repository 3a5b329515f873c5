"""What was staged of rows is read back over Flight, for replicas that came later: of one attempt, or of all."""

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.flight_rig import ATTEMPT, FlightRig, build_part, flight_rig
from tests.unit.bulk.flight_rows_rig import PLAIN, plain_items, stored

from ebla.bulk.staged_rows import StagedRows
from ebla.model.errors import ConnectionLost, Corruption, Stale
from ebla.model.identity import AttemptId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import ScanStack, StagedFile, StagingKind
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.layers.layer import Item
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_streams import StagedRecordStream
from ebla.wire.flight_format import END_OF_ROWS, MERGED_RUNS, NO_BYTES, bytes_batch

pytestmark = runs_in(real_time)

ITEMS = plain_items(300)


async def put(rig: FlightRig, items: list[Item] = ITEMS) -> StagedFile:
    batches = [rows_batch(items[start : start + 90]) for start in range(0, len(items), 90)]
    return await rig.ask(lambda client: client.put_rows(rig.target(StagingKind.ROWS), ATTEMPT, batches))


async def read_back(
    rig: FlightRig, expected: StagedFile | None = None, attempt: AttemptId = ATTEMPT
) -> tuple[bool, list[Item]]:
    def ask(client: FlightClient) -> tuple[bool, list[Item]]:
        found = client.get_staged_rows(rig.target(StagingKind.ROWS), attempt, expected)
        return found.is_merged, stored(list(found))

    return await rig.ask(ask)


async def test_what_an_attempt_has_put_comes_back_as_it_was(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        brought = await put(rig)
        assert await read_back(rig, brought) == (False, ITEMS)
        assert rig.stream_service.sent_bytes == brought.size_bytes
        with pytest.raises(Corruption):
            await read_back(rig, StagedFile(name="rows", size_bytes=brought.size_bytes, checksum=brought.checksum ^ 1))
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_what_was_sealed_comes_as_one_whichever_attempt_is_asked_for(tmp_path: Path) -> None:
    """Of a file of rows, of a layer, and of nothing at all."""
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(ITEMS, WHOLE_RING, True)], PLAIN)
        layer = (f"{tmp_path}/checkpoint/{rig.stream_service.parts[0].layers[0].folder}", WHOLE_RING)
        brought = StagedFile(name="rows", size_bytes=1, checksum=1)
        other = AttemptId(uuid.UUID(int=5))
        rig.stream_service.rows = StagedRows(layer=ScanStack(WHOLE_RING, (layer,)), is_merged=True)
        assert await read_back(rig, brought, other) == (True, ITEMS)
        (tmp_path / "rows").write_bytes(encode_rows(rows_batch(ITEMS)))
        rig.stream_service.rows = StagedRows(f"{tmp_path}/rows", is_merged=True)
        assert await read_back(rig, brought, other) == (True, ITEMS)
        rig.stream_service.rows = StagedRows(is_merged=True)
        assert await read_back(rig, brought, other) == (True, [])
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_only_the_ticket_by_which_it_was_put_opens_it(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await put(rig)
        rig.stream_service.listed.clear()
        with pytest.raises(Stale, match="is closed"):
            await read_back(rig)
        assert rig.stream_service.sources == 0


async def test_a_file_that_ends_within_a_record_is_told_as_damaged(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await put(rig)
        path = tmp_path / "staging" / str(ATTEMPT) / "rows"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(Corruption, match="ends at"):
            await read_back(rig)
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


class Chunks:
    """`pyarrow.flight.FlightStreamReader`, as far as it is used."""

    def __init__(self, *chunks: tuple[pa.RecordBatch, bytes]) -> None:
        self._chunks = iter(chunks)

    def read_chunk(self) -> "Chunk":
        return Chunk(*next(self._chunks))

    def cancel(self) -> None:
        pass


class Chunk:
    def __init__(self, data: pa.RecordBatch, metadata: bytes) -> None:
        self.data = data
        self.app_metadata = pa.py_buffer(metadata) if metadata else None


RECORD = (bytes_batch(encode_rows(rows_batch(ITEMS[:3]))), b"")


@pytest.mark.parametrize("chunks", [(RECORD,), (), ((NO_BYTES, MERGED_RUNS), RECORD)])
def test_a_stream_that_breaks_is_no_end(chunks: tuple[tuple[pa.RecordBatch, bytes], ...]) -> None:
    whole = StagedRecordStream(Chunks(*chunks, (NO_BYTES, END_OF_ROWS)), "there")
    assert len(stored(list(whole))) == 3 * (RECORD in chunks)
    with pytest.raises(ConnectionLost, match="before the end marker"):
        list(StagedRecordStream(Chunks(*chunks), "there"))
