"""Rows that are staged: in order, of the range, merged where they are few and made into a layer where they are many."""

import zlib

import pytest
from tests.async_tests import runs_in
from tests.unit.bulk import staging_rig
from tests.unit.bulk.staged_rows_rig import ITEMS
from tests.unit.bulk.staging_rig import FIRST, PLACE, StagingRig, machine
from tests.unit.storage.small_table import SMALL

from ebla.bulk.seal import SealSpec
from ebla.model.errors import Corruption, InvalidRequest, Refused
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import StagedFile, StagingKind
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import encode_rows, items_of, read_row_file, rows_batch
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.wire.transfer_messages import FlightPut

PIECES = [encode_rows(rows_batch(ITEMS[start : start + 25])) for start in range(0, len(ITEMS), 25)]
RECORDS = b"".join(PIECES)
ROWS_FILES = (StagedFile(name="rows", size_bytes=len(RECORDS), checksum=zlib.crc32(RECORDS)),)


def order_of(records: bytes) -> SealSpec:
    return SealSpec(
        attempt=FIRST,
        files=(StagedFile(name="rows", size_bytes=len(records), checksum=zlib.crc32(records)),),
        layers=(),
        schema=SMALL,
    )


async def put_rows(rig: StagingRig, records: bytes, tokens: TokenRange = WHOLE_RING) -> None:
    staged = await rig.opened(StagingKind.ROWS, tokens)
    place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="rows", size_bytes=0))
    if records:
        await rig.puts.append(place, records)
    assert rig.puts.finish(place).received_bytes == len(records)
    rig.puts.close(place)


async def sealed_items(rig: StagingRig, records: bytes, tokens: TokenRange = WHOLE_RING) -> list[Item]:
    await put_rows(rig, records, tokens)
    staged = await rig.opened(StagingKind.ROWS, tokens)
    sealed = await rig.sealer.seal(staged, order_of(records))
    if sealed.rows_file:
        assert sealed.layers == ()
        batches = [batch async for batch in read_row_file(rig.own, f"{PLACE}/{sealed.rows_file}")]
        items = [item for batch in batches for item in items_of(batch)]
        assert len(items) == sealed.rows
        return items
    if not sealed.layers:
        return []
    (layer,) = sealed.layers
    assert layer.range == tokens
    opened = await MemoryEngine(rig.own).open(f"{PLACE}/{layer.folder}", writable=False)
    items = list(opened.scan())
    assert (opened.facts.rows, opened.facts.least_us, opened.facts.greatest_us) == (len(ITEMS), 5, 24)
    await opened.discard()
    assert not rig.own.exists(f"{PLACE}/{layer.folder.split('/')[0]}/rows")
    return items


@pytest.mark.parametrize("merged_max", [len(RECORDS), len(RECORDS) - 1])
@runs_in(lambda work: machine().run(work))
async def test_rows_are_merged_or_made_a_layer(
    disk: ProcessDisk, /, merged_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    assert await sealed_items(await StagingRig(disk).begin(), RECORDS) == ITEMS


@runs_in(lambda work: machine().run(work))
async def test_no_rows_are_nothing_to_adopt(disk: ProcessDisk, /) -> None:
    assert await sealed_items(await StagingRig(disk).begin(), b"") == []


TOKENS = sorted(decode_token(key) for key, _ in ITEMS)
TWICE = encode_rows(rows_batch([ITEMS[0], ITEMS[0]]))
BACKWARDS = encode_rows(rows_batch([ITEMS[1], ITEMS[0]]))
SHORT_KEY = encode_rows(rows_batch([(b"short", b"")]))


@pytest.mark.parametrize("merged_max", [1 << 20, 0], ids=["merged", "layer"])
@pytest.mark.parametrize(
    ("records", "tokens", "failure", "words"),
    [
        (PIECES[1] + PIECES[0], WHOLE_RING, InvalidRequest, "order"),
        (PIECES[0] + PIECES[0], WHOLE_RING, InvalidRequest, "order"),
        (TWICE, WHOLE_RING, InvalidRequest, "order"),
        (BACKWARDS, WHOLE_RING, InvalidRequest, "order"),
        (SHORT_KEY, WHOLE_RING, InvalidRequest, "too short"),
        (RECORDS, TokenRange(Token(TOKENS[0]), Token(TOKENS[-1])), InvalidRequest, "outside"),
        (RECORDS, TokenRange(Token(TOKENS[0] - 1), Token(TOKENS[-1] - 1)), InvalidRequest, "outside"),
        (RECORDS, TokenRange(Token(TOKENS[30]), Token(TOKENS[30] - 1)), InvalidRequest, "outside"),
        (RECORDS[:-5], WHOLE_RING, Corruption, "ends within a record"),
        (RECORDS[:50] + b"!" + RECORDS[51:], WHOLE_RING, Corruption, "damaged"),
    ],
    ids=["records", "record-twice", "row-twice", "rows", "key", "before", "behind", "hole", "cut", "rotten"],
)
@runs_in(lambda work: machine().run(work))
async def test_rows_that_are_not_as_they_should_be_are_not_sealed(
    disk: ProcessDisk,
    /,
    records: bytes,
    tokens: TokenRange,
    failure: type[Exception],
    words: str,
    merged_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    rig = await StagingRig(disk).begin()
    with pytest.raises(failure, match=words):
        await sealed_items(rig, records, tokens)
    assert not disk.exists(f"{PLACE}/SEALED")
    assert not [name for name in rig.below(PLACE) if "/0/" in name], "no half of a layer is left"


@runs_in(lambda work: machine().run(work))
async def test_a_stream_of_rows_that_broke_goes_on_at_a_record_or_begins_anew(disk: ProcessDisk, /) -> None:
    rig = await StagingRig(disk).begin()
    staged = await rig.opened(StagingKind.ROWS)
    place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="rows", size_bytes=0))
    await rig.puts.append(place, PIECES[0])
    await rig.puts.append(place, PIECES[1][:40])
    first = len(PIECES[0])
    with pytest.raises(Refused, match=f"has {first} bytes here"):
        await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="rows", size_bytes=0, offset=first + 40))
    place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="rows", size_bytes=0, offset=first))
    assert place.received_bytes == first
    for piece in PIECES[1:]:
        await rig.puts.append(place, piece)
    assert rig.puts.finish(place).checksum == zlib.crc32(RECORDS)
    reopened = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="rows", size_bytes=0))
    assert (reopened.received_bytes, reopened.checksum) == (0, 0)
