"""The columns beside a base: checked when read, readable by anyone."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows
from tests.unit.storage.rigs import Rig

from ebla.model.errors import Refused
from ebla.storage.columns import sidecar
from ebla.storage.columns.chunks import KEY, ChunkShape, chunk_of, whole_shape
from ebla.storage.columns.sidecar import Sidecar, SidecarWriter, open_sidecar
from ebla.storage.layers.layer import Item, LayerDamaged
from ebla.storage.scan.stack_scan import ALL_KEYS

pytestmark = runs_in(real_time)

ITEMS = RandomRows(2, Mix(plain=0.7, partitions=30, rows=400)).layer()
KEYS = [key for key, _ in ITEMS]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(sidecar, "BLOCK_ROWS", 7)
    return Rig("memory", tmp_path)


async def write(rig: Rig, items: list[Item], sizes: Sequence[int] = (10,)) -> None:
    """In chunks of these sizes, again and again."""
    rig.disk.make_folder(rig.path())
    writer = SidecarWriter(rig.disk, rig.path(), MIXED)
    shape = whole_shape(MIXED)
    start = 0
    for size in cycle(sizes):
        if start >= len(items):
            break
        keys, values = zip(*items[start : start + size])
        writer.add(chunk_of(shape, pa.array(keys, pa.binary()), pa.array(values, pa.binary())))
        start += size
    await writer.finish()


async def opened(rig: Rig) -> Sidecar:
    found = await open_sidecar(rig.disk, rig.path())
    assert found is not None
    return found


def keys_of(found: Sidecar, *spans: tuple[bytes, bytes | None]) -> list[bytes]:
    chunks = found.chunks(whole_shape(MIXED), spans)
    return [key for chunk in chunks for key in chunk.column(KEY).to_pylist()]


async def test_spans_cut_through_blocks(rig: Rig) -> None:
    await write(rig, ITEMS)
    found = await opened(rig)
    assert len(found.index.blocks) == -(-len(ITEMS) // 10)
    assert keys_of(found, *ALL_KEYS) == KEYS
    for first in (0, 3, 7, 20):
        for last in (first, first + 1, first + 4, first + 15, len(KEYS) - 1):
            assert keys_of(found, (KEYS[first], KEYS[last])) == KEYS[first:last]
    assert keys_of(found, (KEYS[3] + b"\0", KEYS[5]), (KEYS[9], None)) == [KEYS[4], *KEYS[9:]]
    assert keys_of(found, (b"", KEYS[0])) == []
    few = ChunkShape(MIXED, (MIXED.column("x").number,))
    chunk = next(iter(found.chunks(few, ALL_KEYS)))
    assert chunk.schema == few.arrow_schema
    found.close()


async def test_blocks_are_cut_evenly_and_small_chunks_gathered(rig: Rig) -> None:
    items = ITEMS[:39]
    await write(rig, items, (3, 3, 20, 1, 10, 2))
    found = await opened(rig)
    assert [block.rows for block in found.index.blocks] == [6, 7, 7, 6, 6, 5, 2]
    assert keys_of(found, *ALL_KEYS) == KEYS[:39]
    found.close()


async def test_large_rows_make_short_blocks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "BLOCK_ROWS", 1000)
    monkeypatch.setattr(sidecar, "BLOCK_BYTES", 2000)
    await write(rig, ITEMS)
    found = await opened(rig)
    assert max(block.rows for block in found.index.blocks) < 40
    assert keys_of(found, *ALL_KEYS) == KEYS


def test_any_arrow_reader_opens_it(rig: Rig) -> None:
    rig.run(write(rig, ITEMS))
    with pa.OSFile(rig.path("layer/columns.arrow")) as file:
        assert pa.ipc.open_file(file).read_all().column("key").to_pylist() == KEYS


async def test_a_base_without_rows_has_one_too(rig: Rig) -> None:
    await write(rig, [])
    assert keys_of(await opened(rig), *ALL_KEYS) == []


async def test_no_sidecar_is_none(rig: Rig) -> None:
    rig.disk.make_folder(rig.path())
    assert await open_sidecar(rig.disk, rig.path()) is None


@pytest.mark.parametrize("name", ["columns.arrow", "columns.index"])
async def test_a_damaged_byte_is_noticed(rig: Rig, name: str) -> None:
    await write(rig, ITEMS)
    index = (await opened(rig)).index
    good = rig.read(f"layer/{name}")
    places = [block.offset + block.size_bytes // 2 for block in index.blocks] if "arrow" in name else [30, 100]
    for place in places:
        rig.write(f"layer/{name}", good[:place] + bytes((good[place] ^ 1,)) + good[place + 1 :])
        with pytest.raises(LayerDamaged, match="columns"):
            keys_of(await opened(rig), *ALL_KEYS)
    rig.write(f"layer/{name}", good[:200])
    with pytest.raises(LayerDamaged, match="columns"):
        keys_of(await opened(rig), *ALL_KEYS)


async def test_a_missing_file_and_a_newer_format(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(rig, ITEMS)
    rig.disk.unlink(rig.path("layer/columns.arrow"))
    with pytest.raises(LayerDamaged, match="cannot be opened"):
        await open_sidecar(rig.disk, rig.path())
    rig.disk.remove_folder(rig.path())
    with monkeypatch.context() as newer:
        newer.setattr(sidecar, "SIDECAR_FORMAT", 2)
        await write(rig, ITEMS)
    with pytest.raises(Refused, match="format 2"):
        await open_sidecar(rig.disk, rig.path())


def test_the_index_is_small(rig: Rig) -> None:
    rig.run(write(rig, ITEMS))
    index = rig.run(opened(rig)).index
    assert sum(block.rows for block in index.blocks) == len(ITEMS)
    assert len(msgspec.msgpack.encode(index.blocks)) < 120 * len(index.blocks)
