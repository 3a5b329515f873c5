"""Several files of an attempt on one stream, and what becomes of them when it breaks."""

import os
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow.flight as flight
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.flight_rig import ATTEMPT, QUICK, FlightRig, flight_rig

from ebla.bulk.flight_streams import split_files
from ebla.bulk.multi_file_put import split_put
from ebla.bulk.stream_service import IncomingPut
from ebla.model.errors import Corruption, InvalidRequest, Overloaded, Stale
from ebla.model.identity import ShardNumber
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import ROWS_NAME, CheckpointFile, CheckpointLayer, CheckpointPart, StagedFile
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.wire.flight_format import BYTES_SCHEMA, FILES_TOGETHER_MAX, bytes_batch
from ebla.wire.frames import encode
from ebla.wire.transfer_messages import FilesQuery, FlightPut

pytestmark = runs_in(real_time)

SMALL = 1 << 16
SIZES = {0: {"a.sst": 200_000, "b": 0, "c": 17, "d": 40_000, "e": 40_000}, 1: {"CURRENT": 16, "f.sst": 65_536}}
CONTENTS = {f"{layer}/{name}": os.urandom(size) for layer, files in SIZES.items() for name, size in files.items()}
PLACES = [CheckpointFileRef(0, layer, name) for layer, files in SIZES.items() for name in files]
WHOLE = tuple(
    StagedFile(name=one.staged_name, size_bytes=len(data), checksum=zlib.crc32(data))
    for one, data in zip(PLACES, CONTENTS.values())
)


def add_layers(rig: FlightRig) -> None:
    for name, data in CONTENTS.items():
        path = rig.folder / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    layers = tuple(
        CheckpointLayer(
            folder=str(layer), range=WHOLE_RING, files=tuple(CheckpointFile(name, size) for name, size in files.items())
        )
        for layer, files in SIZES.items()
    )
    rig.stream_service.parts = (CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=layers),)


async def moved(rig: FlightRig, grouped_bytes: int = 1 << 20, direct_read_bytes: int = 0) -> tuple[StagedFile, ...]:
    limits = replace(QUICK, grouped_bytes=grouped_bytes, direct_read_bytes=direct_read_bytes)
    return await rig.ask(lambda client: client.move_files(rig.source(), PLACES, rig.target(), ATTEMPT), limits)


def is_all_there(rig: FlightRig) -> bool:
    return all(rig.stream_service.staged(name) == data for name, data in CONTENTS.items())


@pytest.mark.parametrize("direct_read_bytes", [0, 1 << 20])
async def test_files_move_together_as_they_are(tmp_path: Path, direct_read_bytes: int) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)
        assert await moved(rig, direct_read_bytes=direct_read_bytes) == WHOLE
        assert is_all_there(rig)
        assert rig.stream_service.sources_ever == 1
        assert rig.stream_service.sent_bytes == sum(len(data) for data in CONTENTS.values())
        await rig.wait_for(lambda: rig.stream_service.places == rig.stream_service.sources == 0)


async def test_a_large_file_has_a_stream_of_its_own(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)
        assert sorted(await moved(rig, grouped_bytes=140_000), key=lambda one: one.name) == sorted(
            WHOLE, key=lambda one: one.name
        )
        assert is_all_there(rig)
        assert rig.stream_service.sources_ever == 3


@pytest.mark.parametrize("name", ["0/a.sst", "0/d", "1/f.sst"])
async def test_what_breaks_goes_on_file_by_file(tmp_path: Path, name: str) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)
        broken: list[str] = []

        def appended(place: IncomingPut) -> None:
            if place.name == name and not broken:
                broken.append(name)
                raise Overloaded("no more for now")

        rig.stream_service.appended = appended
        assert await moved(rig) == WHOLE
        assert is_all_there(rig)
        assert broken
        await rig.wait_for(lambda: rig.stream_service.places == rig.stream_service.sources == 0)


async def test_an_attempt_that_has_begun_is_filled_file_by_file(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)
        for name in ("0/a.sst", "0/c"):
            begun = rig.folder / "staging" / str(ATTEMPT) / name
            begun.parent.mkdir(parents=True, exist_ok=True)
            begun.write_bytes(CONTENTS[name][:5])
        assert await moved(rig) == WHOLE
        assert is_all_there(rig)


async def test_a_closed_session_ends_the_stream(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)
        rig.stream_service.appended = lambda _: rig.stream_service.listed.clear()
        with pytest.raises(Stale, match="is closed"):
            await moved(rig)
        await rig.wait_for(lambda: rig.stream_service.places == rig.stream_service.sources == 0)


async def test_other_bytes_than_the_source_has_are_noticed(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_layers(rig)

        def appended(place: IncomingPut) -> None:
            if place.name == "0/d":
                place.checksum ^= 1

        rig.stream_service.appended = appended
        with pytest.raises(Corruption, match="0/d arrived at"):
            await moved(rig)


@pytest.mark.parametrize("sent", [[b"12"], [b"1234"], [b"123", b"4567", b"8"]])
async def test_a_stream_with_less_or_more_than_was_announced_is_refused(tmp_path: Path, sent: list[bytes]) -> None:
    async with flight_rig(tmp_path) as rig:
        put = FlightPut(ticket=rig.target().ticket, attempt=ATTEMPT, name="0/a", size_bytes=3, more=(("0/b", 4),))

        def send(client: FlightClient) -> None:
            connection = client._connection(rig.target().host, rig.address)
            writer, reader = connection.do_put(flight.FlightDescriptor.for_command(encode(put)), BYTES_SCHEMA)
            assert reader.read() is not None
            for data in sent:
                writer.write_batch(bytes_batch(data))
            writer.done_writing()
            writer.close()

        with pytest.raises(flight.FlightError):
            await rig.ask(send)
        await rig.wait_for(lambda: rig.stream_service.places == 0)


def test_only_files_come_together_and_not_too_many() -> None:
    good = FlightPut(ticket=b"", attempt=ATTEMPT, name="0/a", size_bytes=1, more=(("0/b", 2),))
    assert split_put(good) == [
        FlightPut(ticket=b"", attempt=ATTEMPT, name="0/a", size_bytes=1),
        FlightPut(ticket=b"", attempt=ATTEMPT, name="0/b", size_bytes=2),
    ]
    rows = FlightPut(ticket=b"", attempt=ATTEMPT, name=ROWS_NAME, size_bytes=0, offset=7)
    assert split_put(rows) == [rows]
    many = tuple((f"0/{number}", 1) for number in range(FILES_TOGETHER_MAX))
    for bad in (
        FlightPut(ticket=b"", attempt=ATTEMPT, name="0/a", size_bytes=5, offset=1, more=good.more),
        FlightPut(ticket=b"", attempt=ATTEMPT, name=ROWS_NAME, size_bytes=0, offset=0, more=good.more),
        FlightPut(ticket=b"", attempt=ATTEMPT, name="0/a", size_bytes=1, offset=0, more=((ROWS_NAME, 0),)),
        FlightPut(ticket=b"", attempt=ATTEMPT, name="0/a", size_bytes=1, offset=0, more=many),
    ):
        with pytest.raises(InvalidRequest):
            split_put(bad)
    assert split_files(FilesQuery(part=3, layer=0, file="a", offset=5, more=((1, "b"),))) == [
        FilesQuery(part=3, layer=0, file="a", offset=5),
        FilesQuery(part=3, layer=1, file="b"),
    ]
    with pytest.raises(InvalidRequest):
        split_files(FilesQuery(part=0, layer=0, file="a", offset=0, more=tuple((0, name) for name, _ in many)))
