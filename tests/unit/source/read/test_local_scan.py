"""A task that opens the files itself reads what the node would have sent it, and leaves no trace."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.storage.naive_scan import ALL, TIMES, Part, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, layer_facts, stored_prefix

from ebla.model.errors import InvalidRequest
from ebla.model.selection import ColumnSelector
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.model.transfers import ScanStack
from ebla.runtime.file_disk import FileDisk
from ebla.source.read.local_scan import ReadOnlyDisk, open_located
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import ROWS_SCHEMA, items_of
from ebla.storage.columns.chunks import KEY, ChunkShape, chunk_of, stored_values, whole_shape
from ebla.storage.compaction.compactor import BaseLayerWriter
from ebla.storage.layers.layer import Item, LayerDamaged, build_layer
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan.stack_scan import ScanQuery
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

HALVES = (TokenRange(TOKEN_MIN, Token(0)), TokenRange(Token(0), TOKEN_MIN))


async def build(folder: Path, items: Sequence[Item], *, with_sidecar: bool) -> None:
    disk = FileDisk()
    try:
        engine = RocksEngine(disk)
        if not with_sidecar:
            await build_layer(engine, str(folder), items, layer_facts(MIXED, items))
            return
        writer = BaseLayerWriter(engine, disk, str(folder), MIXED)
        keys, values = (pa.array([item[side] for item in items], pa.binary()) for side in (0, 1))
        writer.add(chunk_of(ChunkShape(MIXED), keys, values))
        await writer.finish()
    finally:
        disk.close()


def located(folder: Path, seed: int) -> tuple[CheckpointFiles, list[Part]]:
    """Two tablets of a base with columns and a layer of rows each."""
    rows = RandomRows(seed, Mix(plain=0.5, partitions=5, rows=60))
    stacks, parts = [], []
    for number, half in enumerate(HALVES):
        layers = []
        for with_sidecar in (True, False):
            items = [item for item in rows.layer() if decode_token(item[0]) in half]
            path = folder / f"stack{number}-{with_sidecar}"
            asyncio.run(build(path, items, with_sidecar=with_sidecar))
            layers.append((str(path), WHOLE_RING))
            parts.append((items, half, with_sidecar))
        stacks.append(ScanStack(half, tuple(layers)))
    return CheckpointFiles(machine="machine", folder=str(folder), stacks=tuple(stacks), schema=MIXED), parts


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_typed_and_stored_rows_are_those_of_the_layers(tmp_path: Path) -> None:
    place, parts = located(tmp_path, 5)
    before = content(tmp_path)
    rng = RandomRows(6).rng
    prefixes = tuple(sorted(stored_prefix([f"p{number}".encode()]) for number in range(3)))
    with open_located(place) as scan:
        for columns in (ALL, TIMES):
            for conditions, partitions in (((), ()), (random_conditions(rng), ()), ((), prefixes)):
                asked = TypedRowsQuery(
                    range=WHOLE_RING, columns=columns, now_s=3, conditions=conditions, partitions=partitions
                )
                schema, batches = scan(asked)
                table = pa.Table.from_batches(list(batches), schema)
                model = ScanQuery(schema=MIXED, columns=columns, now_s=3, conditions=conditions, partitions=partitions)
                assert str(table.to_pylist()) == str(expected(parts, model))
        schema, batches = scan(StoredRowsQuery(range=WHOLE_RING))
        assert schema == ROWS_SCHEMA
        found = [item for batch in batches for item in items_of(batch)]
        assert found == list(merge_streams([items for items, _, _ in parts], MIXED))
        _, batches = scan(StoredRowsQuery(range=WHOLE_RING, conditions=(), partitions=prefixes))
        chosen = [item for batch in batches for item in items_of(batch)]
        assert chosen == [item for item in found if item[0].startswith(prefixes)]
        schema, batches = scan(StoredRowsQuery(range=WHOLE_RING, by_column=True))
        assert schema == whole_shape(MIXED).arrow_schema
        chunks = list(batches)
        values = [value for one in chunks for value in stored_values(whole_shape(MIXED), one).to_pylist()]
        assert list(zip((key for one in chunks for key in one.column(KEY).to_pylist()), values)) == found
        with pytest.raises(InvalidRequest, match="no column"):
            scan(TypedRowsQuery(range=WHOLE_RING, columns=(ColumnSelector("nope"),), now_s=0))
    assert content(tmp_path) == before


def test_a_reader_that_stops_early_leaves_nothing_open(tmp_path: Path) -> None:
    place, _ = located(tmp_path, 2)
    with open_located(place) as scan:
        _, batches = scan(StoredRowsQuery(range=WHOLE_RING))
        assert len(next(batches))
    for half in range(2):
        folder = place.stacks[half].layers[1][0]
        database = RocksEngine(ReadOnlyDisk()).open_database(folder, writable=True)  # no process holds its lock
        database.close()


def test_what_is_gone_is_told(tmp_path: Path) -> None:
    missing = CheckpointFiles(
        machine="m",
        folder=str(tmp_path),
        stacks=(ScanStack(WHOLE_RING, ((str(tmp_path / "none"), WHOLE_RING),)),),
        schema=MIXED,
    )
    with pytest.raises(LayerDamaged, match="none"):
        with open_located(missing):
            pass


def test_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    disk = ReadOnlyDisk()
    file = disk.open(str(tmp_path / "file"))
    assert file.read(2, 100) == b"23456789"
    assert file.size() == 10
    with pytest.raises(AssertionError, match="only reads"):
        file.append(b"x")
    with pytest.raises(AssertionError, match="only reads"):
        disk.unlink(file.path)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.size()


def test_rows_come_as_rows_where_there_are_no_columns(tmp_path: Path) -> None:
    asyncio.run(build(tmp_path / "rows", RandomRows(4).layer(), with_sidecar=False))
    stack = ScanStack(WHOLE_RING, ((str(tmp_path / "rows"), WHOLE_RING),))
    with open_located(CheckpointFiles(machine="", folder=str(tmp_path), stacks=(stack,), schema=MIXED)) as scan:
        schema, batches = scan(StoredRowsQuery(range=WHOLE_RING, by_column=True))
        assert schema == ROWS_SCHEMA
        assert [item for batch in batches for item in items_of(batch)] == RandomRows(4).layer()
