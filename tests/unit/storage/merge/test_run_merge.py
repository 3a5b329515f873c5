"""Runs of staged rows merged into one stream: every key once, by the rule of all rows, however they are cut."""

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest
from tests.async_tests import runs_in
from tests.unit.bulk.staging_rig import machine
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows

from ebla.bulk.open_puts import file_checksum
from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.rows import PartitionHead, Row
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.ports.disk import File
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row
from ebla.storage.codec.row_file import encode_rows, items_of, rows_batch
from ebla.storage.columns.sidecar import open_sidecar
from ebla.storage.compaction import layer_build
from ebla.storage.compaction.layer_build import ROUNDS_SUFFIX, BuildJob, rebatch, run_build
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.merge import run_merge
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.merge.run_merge import MergeRounds, RunRules, largest_record_bytes, merge_groups, merge_run_files

RULES = RunRules(WHOLE_RING, MIXED)


def write_run(disk: ProcessDisk, path: str, items: Sequence[Item], rng: random.Random) -> str:
    """In records of all lengths."""
    file = disk.create(path)
    start = 0
    while start < len(items):
        end = start + rng.randrange(1, 12)
        file.append(encode_rows(rows_batch(items[start:end])))
        start = end
    file.close()
    return path


def runs_of(seed: int, count: int, rows: int = 40) -> list[list[Item]]:
    drawn = RandomRows(seed, Mix(plain=0.5, partitions=4, rows=rows))
    return [drawn.layer() for _ in range(count)]


def items_in(batches: Sequence[pa.RecordBatch]) -> list[Item]:
    return [item for batch in batches for item in items_of(batch)]


def meaning(items: Sequence[Item]) -> list[tuple[bytes, Row | PartitionHead]]:
    """Cells are stored in the order in which they came together, which differs from round to round."""
    return [
        (key, decode_head(value) if value[1] & RowFlag.HEAD else decode_row(value, MIXED.layouts))
        for key, value in items
    ]


def written(disk: ProcessDisk, runs: Sequence[Sequence[Item]], seed: int = 1) -> list[str]:
    disk.make_folder("/data")
    rng = random.Random(seed)
    return [write_run(disk, f"/data/run{number}", items, rng) for number, items in enumerate(runs)]


def job_of(disk: ProcessDisk, paths: Sequence[str]) -> BuildJob:
    checksums = tuple(file_checksum(disk, path) for path in paths)
    return BuildJob(
        rows_files=tuple(paths), output_folder="/data/layer", range=WHOLE_RING, schema=MIXED, checksums=checksums
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window", [1, 5, 1 << 20])
@runs_in(lambda work: machine().run(work))
async def test_runs_are_merged_as_one_row_after_another_would_be(
    disk: ProcessDisk, /, seed: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of several rows share a token; rows of all shapes are in several runs."""
    monkeypatch.setattr(run_merge, "WINDOW_ROWS", window)
    monkeypatch.setattr(run_merge, "WINDOW_ROWS_OF_RUN", 1)
    runs = runs_of(seed, 2 + seed)
    found = items_in(list(merge_run_files(disk, written(disk, runs, seed), RULES)))
    assert found == list(merge_streams(runs, MIXED))


@runs_in(lambda work: machine().run(work))
async def test_runs_one_behind_another_pass_as_they_are(disk: ProcessDisk, /) -> None:
    items = runs_of(3, 1, 60)[0]
    runs = [items[:20], items[20:], []]
    paths = written(disk, runs)
    assert items_in(list(merge_run_files(disk, paths, RULES))) == items
    assert items_in(list(merge_run_files(disk, paths[:1], RULES))) == runs[0]
    assert list(merge_run_files(disk, paths[2:], RULES)) == []


@runs_in(lambda work: machine().run(work))
async def test_every_run_is_looked_at(disk: ProcessDisk, /) -> None:
    """Order and range within each, although together they could be put right."""
    items = runs_of(4, 1, 60)[0]
    tokens = [decode_token(key) for key, _ in items]
    backwards = encode_rows(rows_batch([items[5], items[2]]))
    paths = written(disk, [items[:10], items[10:]])
    outside = RunRules(TokenRange(Token(tokens[0] - 1), Token(tokens[-1] - 1)), MIXED)
    with pytest.raises(InvalidRequest, match="outside"):
        list(merge_run_files(disk, paths, outside))
    wrapping = RunRules(TokenRange(Token(tokens[20]), Token(tokens[20] - 1)), MIXED)
    with pytest.raises(InvalidRequest, match=f"token {tokens[20]}, outside"):
        list(merge_run_files(disk, paths, wrapping))
    disk.create("/data/bad").append(backwards)
    with pytest.raises(InvalidRequest, match="order"):
        list(merge_run_files(disk, [*paths, "/data/bad"], RULES))
    disk.create("/data/cut").append(backwards[:-1])
    with pytest.raises(Corruption, match="ends within a record"):
        list(merge_run_files(disk, [*paths, "/data/cut"], RULES))


# -- many


def test_groups_hold_to_both_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_merge, "RUNS_OPEN_MAX", 4)
    monkeypatch.setattr(run_merge, "BUFFERED_BYTES_MAX", 100)
    assert merge_groups([1] * 3) == [range(3)]
    assert merge_groups([1] * 9) == [range(4), range(4, 8), range(8, 9)]
    assert merge_groups([40, 40, 40, 10]) == [range(2), range(2, 4)]
    assert merge_groups([200, 200, 200]) == [range(2), range(2, 3)], "two at least, or it would never end"
    assert merge_groups([0]) == [range(1)]


class CountedDisk:
    """How many files are open at once."""

    def __init__(self, disk: ProcessDisk) -> None:
        self._disk = disk
        self.open_now = self.open_most = 0

    def open(self, path: str) -> File:
        file = self._disk.open(path)
        close = file.close
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)

        def closed() -> None:
            self.open_now -= 1
            close()

        file.close = closed  # type: ignore[method-assign] # counted
        return file

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)


@runs_in(lambda work: machine().run(work))
async def test_many_runs_are_merged_in_rounds_with_few_files_open(
    disk: ProcessDisk, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_merge, "RUNS_OPEN_MAX", 5)
    runs = runs_of(7, 60, 12)
    paths = written(disk, runs)
    counted = CountedDisk(disk)
    rounds = MergeRounds(counted, RULES, "/data/rounds")  # type: ignore[arg-type] # a disk but for its type
    few = await rounds.few(paths)
    assert len(few) <= 5
    found = items_in(list(merge_run_files(counted, few, RULES)))  # type: ignore[arg-type] # likewise
    assert meaning(found) == meaning(list(merge_streams(runs, MIXED)))
    assert (counted.open_now, counted.open_most) == (0, 5)
    assert [path for path in paths if not disk.exists(path)] == [], "the runs themselves stay"
    assert sorted(f"/data/rounds/{name}" for name in disk.list_folder("/data/rounds")) == sorted(
        path for path in few if path not in paths
    )
    await rounds.remove()
    assert not disk.exists("/data/rounds")


@runs_in(lambda work: machine().run(work))
async def test_a_build_of_many_runs_leaves_the_layer_alone(
    disk: ProcessDisk, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_merge, "RUNS_OPEN_MAX", 3)
    monkeypatch.setattr(layer_build, "CHUNK_ROWS", 7)
    runs = runs_of(8, 20, 12)
    paths = written(disk, runs)
    engine = MemoryEngine(disk)
    result = await run_build(engine, disk, job_of(disk, paths))
    layer = await engine.open("/data/layer", writable=False)
    expected = list(merge_streams(runs, MIXED))
    assert meaning(list(layer.scan())) == meaning(expected)
    assert result.rows == len(expected)
    assert layer.facts == result.facts
    assert await open_sidecar(disk, "/data/layer") is not None
    assert not disk.exists("/data/layer" + ROUNDS_SUFFIX)
    assert set(disk.list_folder("/data")) == {"layer", *(path.removeprefix("/data/") for path in paths)}


@runs_in(lambda work: machine().run(work))
async def test_a_build_that_is_given_up_or_fails_in_a_round_leaves_nothing(
    disk: ProcessDisk, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_merge, "RUNS_OPEN_MAX", 3)
    runs = runs_of(9, 9, 30)
    paths = written(disk, runs)
    before = disk.list_folder("/data")
    job = job_of(disk, paths)
    building = asyncio.create_task(run_build(MemoryEngine(disk), disk, job))
    while not disk.exists("/data/layer" + ROUNDS_SUFFIX):  # noqa: ASYNC110 # the disk has no event for this
        await asyncio.sleep(0)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert disk.list_folder("/data") == before
    disk.create("/data/bad").append(b"no rows at all")
    bad = job_of(disk, [*paths, "/data/bad"])
    with pytest.raises(Corruption):
        await run_build(MemoryEngine(disk), disk, bad)
    assert disk.list_folder("/data") == ["bad", *before]


@runs_in(lambda work: machine().run(work))
async def test_the_largest_record_of_a_run_is_found_by_headers(disk: ProcessDisk, /) -> None:
    records = [encode_rows(rows_batch(runs_of(1, 1, 40)[0][:count])) for count in (2, 9, 4)]
    disk.make_folder("/data")
    disk.create("/data/run").append(b"".join(records))
    assert largest_record_bytes(disk, "/data/run") == len(records[1])


def test_batches_are_evened_and_keep_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_build, "CHUNK_ROWS", 10)
    sizes = [11, 4, 1, 2, 30, 3, 3, 3, 14, 1, 10, 2, 1]
    items = [(bytes((0, 0, 0, 0, 0, 0, 0, number)), b"v") for number in range(sum(sizes))]
    batches, start = [], 0
    for size in sizes:
        batches.append(rows_batch(items[start : start + size]))
        start += size
    found = list(rebatch(batches))
    assert items_in(found) == items
    assert [len(batch) for batch in found] == [11, 5, 2, 10, 10, 10, 6, 3, 14, 1, 10, 3]


@pytest.mark.parametrize("places", [(0, 0), (1, 0)])
@runs_in(lambda work: machine().run(work))
async def test_rows_of_one_token_are_looked_at_key_by_key(disk: ProcessDisk, /, places: tuple[int, int]) -> None:
    """Their tokens do not decide whether they ascend."""
    keys = [bytes(8) + bytes((place,)) for place in (0, 1)]
    items = [(keys[place], b"v") for place in places]
    disk.make_folder("/data")
    file = disk.create("/data/run")
    file.append(encode_rows(rows_batch(items)))
    file.close()
    with pytest.raises(InvalidRequest, match="not in the order"):
        list(merge_run_files(disk, ["/data/run"], RULES))


@pytest.mark.parametrize("open_max", [2, 256])
@pytest.mark.parametrize("wrong", range(4))
@runs_in(lambda work: machine().run(work))
async def test_a_run_that_is_another_than_was_brought_becomes_no_layer(
    disk: ProcessDisk, /, wrong: int, open_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, in order and of the right length, in a round or in the last merge."""
    monkeypatch.setattr(run_merge, "RUNS_OPEN_MAX", open_max)
    job = job_of(disk, written(disk, runs_of(9, 4)))
    checksums = list(job.checksums)
    checksums[wrong] ^= 1
    with pytest.raises(Corruption, match=f"run{wrong} is not what its source has"):
        await run_build(MemoryEngine(disk), disk, msgspec.structs.replace(job, checksums=tuple(checksums)))
    assert not disk.exists("/data/layer")
    assert (await run_build(MemoryEngine(disk), disk, job)).rows
