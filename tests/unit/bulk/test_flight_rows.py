"""Rows and hashes over Flight: scanned in other processes, equal to what storage itself says; and rows into staging."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.cut_proxy import cut_proxy
from tests.unit.bulk.flight_rig import ATTEMPT, Layer, build_part, flight_rig
from tests.unit.bulk.flight_rows_rig import LOWER, PLAIN, UPPER, asked, merged, plain_item, plain_items, stacks, stored
from tests.unit.storage.random_rows import (
    KEY_KINDS,
    VALUE_KINDS,
    arrow_column,
    column,
    random_value,
    stored_key,
    table,
)

from ebla.bulk import flight_streams
from ebla.bulk.stream_service import IncomingPut
from ebla.bulk.workers.bulk_workers import BulkWorkers, ScanFailed
from ebla.bulk.workers.pool import WorkerPool
from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, InvalidRequest, NotFound, Overloaded, Stale
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import ColumnKind
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import StagedFile, StagingKind
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.codec.row_file import ROWS_SCHEMA, decode_records, rows_batch
from ebla.storage.layers.layer import Item
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.transfers.flight_streams import FlightClientLimits
from ebla.wire.transfer_messages import HashesQuery

pytestmark = runs_in(real_time)


@pytest.mark.parametrize("ranges", [(WHOLE_RING, WHOLE_RING), (UPPER, LOWER)])
async def test_stored_rows_are_those_of_all_stacks_in_key_order(tmp_path: Path, ranges: tuple[TokenRange, ...]) -> None:
    """Stacks of vnodes all have the whole ring, and are merged; those of tablets follow one another."""
    async with flight_rig(tmp_path) as rig:
        parts = stacks(3) if ranges[0] == WHOLE_RING else list(reversed(stacks(3)))
        for part, part_range in zip(parts, ranges):
            await build_part(rig, part, part_range=part_range)
        for asked in (WHOLE_RING, TokenRange(Token(-(1 << 62)), Token(1 << 62)), TokenRange(Token(5), Token(4))):
            found = await rig.read_rows(asked)
            assert stored(found) == merged(parts, asked)
        await rig.wait_for(lambda: rig.stream_service.sources == 0)
        await rig.wait_for(lambda: len(rig.workers.pool.pids) == 1)  # one that ended well takes the next scan


async def test_a_layer_is_clipped_to_its_range_and_its_stacks(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        items = merged(stacks(4))
        await build_part(rig, [(items, UPPER, False)], part_range=WHOLE_RING)
        await build_part(rig, [(items, WHOLE_RING, False)], part_range=LOWER)
        found = await rig.read_rows()
        assert stored(found) == items
        rig.stream_service.parts = rig.stream_service.parts[:1]
        found = await rig.read_rows()
        assert stored(found) == [item for item in items if decode_token(item[0]) in UPPER]


async def test_typed_rows_of_every_type_are_what_storage_says(tmp_path: Path) -> None:
    columns = [column("p", "bigint", ColumnKind.PARTITION_KEY)]
    # Of a decimal in a key the order keeps its value and not how many digits it was written with.
    kinds = [kind for kind in KEY_KINDS if kind != "decimal"]
    columns += [column(f"k{place}", kind, ColumnKind.CLUSTERING, place) for place, kind in enumerate(kinds)]
    columns += [column(f"v{place}", kind) for place, kind in enumerate(VALUE_KINDS)]
    schema = table(*columns)
    rng = Random(8)
    rows = [{one.name: random_value(rng, one.type) for one in schema.columns} for _ in range(80)]
    for row in rows:
        for place in range(len(VALUE_KINDS)):
            if rng.random() < 0.2:
                del row[f"v{place}"]
    by_key = {stored_key(schema, row): row for row in rows}

    def encoded(row: dict[str, bytes]) -> bytes:
        cells = {one.number: Cell(timestamp_us=7, value=row[one.name]) for one in schema.regular if one.name in row}
        return encode_row(Row(marker=RowMarker(7), deletion=None, cells=cells), 1, schema.layouts[-1])

    items = sorted((key, encoded(row)) for key, row in by_key.items())
    names = tuple(one.name for one in schema.columns)
    expected = pa.table(
        {one.name: arrow_column(one.type, [by_key[key].get(one.name) for key, _ in items]) for one in schema.columns}
    )
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(items[:50], WHOLE_RING, True), (items[40:], WHOLE_RING, False)], schema)

        def read(client: FlightClient) -> pa.Table:
            return pa.Table.from_batches(list(client.get_batches(rig.source(), asked(names))))

        found = await rig.ask(read)
        assert found.schema.names == expected.schema.names
        for name in names:
            ours, theirs = found.column(name).combine_chunks(), expected.column(name).combine_chunks()
            # What is not a number equals nothing, itself included; its text does.
            assert ours.equals(theirs) or ours.to_string(window=100) == theirs.to_string(window=100)


async def test_wrong_questions_are_refused_and_the_worker_goes_on(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(10), WHOLE_RING, False)], PLAIN)
        with pytest.raises(NotFound, match="no column"):
            await rig.ask(lambda client: list(client.get_batches(rig.source(), asked(("no",)))))
        with pytest.raises(InvalidRequest, match="at least one column"):
            await rig.ask(lambda client: list(client.get_batches(rig.source(), asked(()))))
        with pytest.raises(InvalidRequest, match="0 buckets"):
            await rig.hashes(HashesQuery(WHOLE_RING, 0, 0))
        assert len(stored(await rig.read_rows())) == 10
        await rig.wait_for(lambda: len(rig.workers.pool.pids) == 1)


async def test_a_damaged_layer_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(1000), WHOLE_RING, False)], PLAIN)
        layer = tmp_path / "checkpoint" / rig.stream_service.parts[0].layers[0].folder
        for file in layer.glob("*.sst"):
            file.unlink()
        with pytest.raises(EblaError, match="damaged"):
            await rig.read_rows()


# -- hashes


async def test_hashes_are_of_what_rows_say_and_not_of_layers(tmp_path: Path) -> None:
    parts = stacks(6)
    items = merged(parts)
    query = HashesQuery(WHOLE_RING, 8, 10)
    hashes = []
    for name, built in (("one", parts), ("two", [[(items, WHOLE_RING, True)]])):
        (tmp_path / name).mkdir()
        async with flight_rig(tmp_path / name) as rig:
            for part in built:
                await build_part(rig, part)
            found = await rig.hashes(query)
            assert found.schema.names == ["bucket", "hash", "rows"]
            hashes.append(found.to_pylist())
    assert hashes[0] == hashes[1]
    assert sum(line["rows"] for line in hashes[0])


async def test_one_changed_cell_shows_in_its_bucket(tmp_path: Path) -> None:
    items = plain_items(300)
    changed = dict(items)
    key = items[150][0]
    changed[key] = plain_item(int.from_bytes(key[10:18]), b"y" * 20)[1]
    hashes = []
    for name, layer in (("one", items), ("two", sorted(changed.items()))):
        (tmp_path / name).mkdir()
        async with flight_rig(tmp_path / name) as rig:
            await build_part(rig, [(layer, WHOLE_RING, False)], PLAIN)
            found = await rig.hashes(HashesQuery(WHOLE_RING, 16, 0))
            hashes.append(found.to_pylist())
    differing = [one["bucket"] for one, other in zip(*hashes) if one["hash"] != other["hash"]]
    assert differing == [place for place, part in enumerate(WHOLE_RING.split(16)) if decode_token(key) in part]
    assert [one["rows"] for one in hashes[0]] == [one["rows"] for one in hashes[1]]


# -- workers that are given up


def large(rows: int = 4000) -> list[Layer]:
    return [(plain_items(rows, 10_000), WHOLE_RING, False)]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_killed_worker_is_a_clear_error_and_the_next_scan_has_another(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, large(), PLAIN)

        def read(client: FlightClient) -> None:
            rows = client.get_rows(rig.source(), WHOLE_RING)
            next(rows)
            os.kill(rig.worker_pid(), signal.SIGKILL)
            list(rows)

        with pytest.raises(EblaError, match="the process that scanned died"):
            await rig.ask(read)
        assert issubclass(ScanFailed, EblaError)
        assert len(stored(await rig.read_rows())) == 4000


async def test_a_reader_that_leaves_takes_its_worker_along(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, large(), PLAIN)
        seen: list[int] = []

        def read(client: FlightClient) -> None:
            next(client.get_rows(rig.source(), WHOLE_RING))
            seen.append(rig.worker_pid())

        await rig.ask(read)
        await rig.wait_for(lambda: rig.workers.pool.pids == [] and not is_alive(seen[0]))
        assert rig.stream_service.sources == 0


async def test_a_scan_that_takes_too_long_is_ended_however_slow_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_streams, "SCAN_S", 1.5)
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, large(), PLAIN)
        loop = asyncio.get_running_loop()

        async def gone() -> None:
            await rig.wait_for(lambda: len(rig.workers.pool.pids) == 1)
            pid = rig.workers.pool.pids[0]
            await rig.wait_for(lambda: not is_alive(pid) or b"Z" in Path(f"/proc/{pid}/stat").read_bytes())

        def read(client: FlightClient) -> None:
            rows = client.get_rows(rig.source(), WHOLE_RING)
            next(rows)
            asyncio.run_coroutine_threadsafe(gone(), loop).result(30)
            list(rows)

        with pytest.raises(DeadlineExceeded, match="longer than it may"):
            await rig.ask(read)


async def test_scans_at_a_time_are_bounded(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, workers=BulkWorkers(scans_max=1, scan_wait_s=0.2)) as rig:
        await build_part(rig, large(), PLAIN)

        def read(client: FlightClient) -> None:
            rows = client.get_rows(rig.source(), WHOLE_RING)
            next(rows)
            with pytest.raises(Overloaded, match="1 scans"):
                next(client.get_rows(rig.source(), WHOLE_RING))
            list(rows)

        await rig.ask(read)
        await rig.wait_for(lambda: len(rig.workers.pool.pids) == 1)


async def test_idle_workers_end(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, workers=BulkWorkers(WorkerPool(worker_idle_s=0.4))) as rig:
        await build_part(rig, [(plain_items(10), WHOLE_RING, False)], PLAIN)
        await rig.read_rows()
        await rig.wait_for(lambda: rig.workers.pool.pids == [])


async def test_a_session_that_closes_ends_a_scan(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, large(), PLAIN)

        def close(_: int) -> None:
            rig.stream_service.listed.clear()

        rig.stream_service.sent = close
        with pytest.raises(Stale, match="closed"):
            await rig.read_rows()
        await rig.wait_for(lambda: rig.workers.pool.pids == [])


# -- rows into staging


def in_batches(items: Sequence[Item], rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(items), rows):
        yield rows_batch(items[start : start + rows])


def staged_rows(rig: Any) -> list[Item]:
    return stored(list(decode_records(rig.stream_service.staged("rows"))))


async def test_rows_are_staged_as_records(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        items = plain_items(5000, 300)
        target = rig.target(StagingKind.ROWS)
        limits = FlightClientLimits(attempts_max=2, pause_s=0.05, record_bytes=1 << 16)
        staged = await rig.ask(lambda client: client.put_rows(target, ATTEMPT, in_batches(items, 700)), limits)
        assert staged.name == "rows"
        assert staged.size_bytes == len(rig.stream_service.staged("rows"))
        assert staged_rows(rig) == items


async def test_no_rows_are_an_empty_file(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        target = rig.target(StagingKind.ROWS)
        assert await rig.ask(lambda client: client.put_rows(target, ATTEMPT, [])) == StagedFile(
            name="rows", size_bytes=0, checksum=0
        )


@pytest.mark.parametrize("record", [1, 5, 20])
@pytest.mark.parametrize("is_kept", [True, False])
async def test_rows_go_on_after_a_break(tmp_path: Path, record: int, is_kept: bool) -> None:
    """The record under which the connection breaks was written, or was not; it is there once."""
    async with flight_rig(tmp_path) as rig:
        items = plain_items(3000, 100)
        appended: list[int] = []

        def break_once(place: IncomingPut) -> None:
            appended.append(1)
            if len(appended) == record:
                if not is_kept:
                    path = rig.stream_service._path(ATTEMPT, "rows")
                    before = list(decode_records(path.read_bytes()))[:-1]
                    size = len(path.read_bytes()) - place_of(before, path)
                    os.truncate(path, len(path.read_bytes()) - size)
                raise ConnectionLost("as if the cable were cut")

        rig.stream_service.appended = break_once
        target = rig.target(StagingKind.ROWS)
        staged = await rig.ask(lambda client: client.put_rows(target, ATTEMPT, in_batches(items, 120)))
        assert staged_rows(rig) == items
        assert staged.size_bytes == len(rig.stream_service.staged("rows"))


async def test_rows_go_on_after_a_cut_of_the_connection(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        items = plain_items(2000, 4000)
        async with cut_proxy(rig.address, 3 << 20) as (proxy, address):
            target = msgspec.structs.replace(rig.target(StagingKind.ROWS), flight=address)
            await rig.ask(lambda client: client.put_rows(target, ATTEMPT, in_batches(items, 50)))
            assert (proxy.cuts, proxy.connections) == (1, 2)
        assert staged_rows(rig) == items


def place_of(batches: Sequence[pa.RecordBatch], path: Path) -> int:
    """Where the records of these end."""
    data = path.read_bytes()
    end = 0
    for _ in batches:
        end += 12 + int.from_bytes(data[end : end + 4], "little")
    return end


async def test_an_error_of_the_rows_own_source_is_not_taken_for_their_end(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:

        def broken() -> Iterator[pa.RecordBatch]:
            yield rows_batch(plain_items(10))
            raise ConnectionLost("the other node is gone")

        with pytest.raises(ConnectionLost, match="the other node"):
            await rig.ask(lambda client: client.put_rows(rig.target(StagingKind.ROWS), ATTEMPT, broken()))
        await rig.wait_for(lambda: rig.stream_service.places == 0)


async def test_a_closed_session_ends_rows_at_the_next_record(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:

        def close(place: IncomingPut) -> None:
            rig.stream_service.listed.clear()

        rig.stream_service.appended = close
        batches = in_batches(plain_items(1000, 100), 100)
        with pytest.raises(Stale, match="closed"):
            await rig.ask(lambda client: client.put_rows(rig.target(StagingKind.ROWS), ATTEMPT, batches))
        assert rig.stream_service.refused == 1
        assert len(staged_rows(rig)) == 100


async def test_what_comes_for_rows_must_be_a_record(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(3), WHOLE_RING, False)], PLAIN)
        file = CheckpointFileRef(0, 0, rig.stream_service.parts[0].layers[0].files[0].name)
        with pytest.raises(EblaError, match="record"):
            await rig.ask(
                lambda client: client.move_file(rig.source(), file, rig.target(StagingKind.ROWS), ATTEMPT, "rows")
            )
        assert rig.stream_service.staged("rows") == b""


async def test_schemas_of_both_sides_are_the_same(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        await build_part(rig, [(plain_items(3), WHOLE_RING, False)], PLAIN)
        found = await rig.read_rows()
        assert found[0].schema == ROWS_SCHEMA
        # So rows of one node go to another as they come.
        target = rig.target(StagingKind.ROWS)
        await rig.ask(lambda client: client.put_rows(target, ATTEMPT, client.get_rows(rig.source(), WHOLE_RING)))
        assert staged_rows(rig) == plain_items(3)
