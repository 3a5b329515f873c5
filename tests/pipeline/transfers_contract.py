"""The contract of the transfer engine's port, for Spark and for the simulated engine.

Each function is one test. It takes a rig that makes sources with known content and inspects staging. A simulated engine
with faults must behave here, except for what the port allows: to report a transfer twice.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import pyarrow.compute as pc
import pytest
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows

from ebla.model.identity import JobId
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import (
    BucketDifference,
    ComparisonResult,
    ComparisonTask,
    FileMove,
    MoveResult,
    RowMove,
    RowPart,
    RowTarget,
    StagingKind,
    TransferResult,
    TransferSource,
    TransferTarget,
)
from ebla.ports.transfer_engine import EngineState, TaskCounts, TransferEngine, WorkFailed
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import rows_batch
from ebla.storage.columns.chunks import ChunkShape, chunk_of
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan.range_hashes import RangeHasher

Files = Mapping[str, bytes]
"""The files of one layer, by name."""

BUCKETS = 8


class TransfersRig(Protocol):
    @property
    def transfers(self) -> TransferEngine: ...

    def new_job(self) -> JobId: ...

    async def files_source(self, *layers: Files) -> TransferSource:
        """One part with these layers."""
        ...

    async def rows_source(self, schema: TableSchema, rows: Sequence[Item]) -> TransferSource:
        """One part, on its own host."""
        ...

    async def target(self, kind: StagingKind, token_range: TokenRange = WHOLE_RING) -> TransferTarget: ...

    async def staged(self, target: TransferTarget, moved: MoveResult) -> Files:
        """What the reported attempt has staged, by file name."""
        ...

    async def staged_rows(self, target: TransferTarget, moved: MoveResult) -> Sequence[Item]: ...

    async def close_session(self) -> None:
        """The session of all sources and targets made so far."""
        ...

    async def wait_until_held(self, held: bool) -> None:
        """Stops all sources, so that tasks wait for them; or continues them."""
        ...


Contract = Callable[[TransfersRig], Awaitable[None]]


def moved_by_transfer(results: Sequence[TransferResult]) -> dict[str, MoveResult]:
    """Each transfer is reported at least once, by any of its attempts."""
    return {str(one.transfer): one for one in results if isinstance(one, MoveResult)}


def content(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


def some_rows(seed: int) -> list[Item]:
    return RandomRows(seed, Mix(plain=0.6, partitions=8, rows=60)).layer()


async def says_that_it_is_ready(rig: TransfersRig) -> None:
    status = rig.transfers.status()
    assert status.state is EngineState.READY
    assert status.cause == ""
    assert rig.transfers.tasks(rig.new_job()) == TaskCounts()


async def nothing_is_done_at_once(rig: TransfersRig) -> None:
    assert list(await rig.transfers.run(rig.new_job(), [])) == []


async def files_arrive_as_they_are(rig: TransfersRig) -> None:
    layers = ({"a.sst": content(1, 3000), "MANIFEST": b"m"}, {"b.sst": content(2, 1_500_000), "empty": b""})
    source = await rig.files_source(*layers)
    target = await rig.target(StagingKind.FILES)
    results = await rig.transfers.run(rig.new_job(), [FileMove(source, 0, target)])
    moved = moved_by_transfer(results)[str(target.transfer)]
    expected = {f"{place}/{name}": data for place, layer in enumerate(layers) for name, data in layer.items()}
    assert await rig.staged(target, moved) == expected
    assert {file.name: file.size_bytes for file in moved.files} == {name: len(data) for name, data in expected.items()}
    for file in moved.files:
        assert file.inode or file.checksum == zlib.crc32(expected[file.name]), file
    assert moved.size_bytes == sum(map(len, expected.values()))


async def every_transfer_is_reported(rig: TransfersRig) -> None:
    sources = [await rig.files_source({"f": content(number, 100 + number)}) for number in range(7)]
    targets = [await rig.target(StagingKind.FILES) for _ in sources]
    moves = [FileMove(source, 0, target) for source, target in zip(sources, targets)]
    moved = moved_by_transfer(await rig.transfers.run(rig.new_job(), moves))
    assert sorted(moved) == sorted(str(target.transfer) for target in targets)
    for number, target in enumerate(targets):
        assert await rig.staged(target, moved[str(target.transfer)]) == {"0/f": content(number, 100 + number)}


async def the_same_again_is_another_attempt(rig: TransfersRig) -> None:
    source, target = await rig.files_source({"f": b"bytes"}), await rig.target(StagingKind.FILES)
    both = [await rig.transfers.run(rig.new_job(), [FileMove(source, 0, target)]) for _ in range(2)]
    first, second = (moved_by_transfer(results)[str(target.transfer)] for results in both)
    assert first.attempt != second.attempt
    assert await rig.staged(target, first) == await rig.staged(target, second) == {"0/f": b"bytes"}


async def rows_of_one_replica_arrive(rig: TransfersRig) -> None:
    """Rows of the target's range, including tombstones and partition heads."""
    rows = some_rows(3)
    middle = sorted(decode_token(key) for key, _ in rows)[len(rows) // 2]
    upper = TokenRange(middle, WHOLE_RING.end)
    source = await rig.rows_source(MIXED, rows)
    whole, half = await rig.target(StagingKind.ROWS), await rig.target(StagingKind.ROWS, upper)
    moves = [RowMove(range=to.range, sources=(source,), targets=(RowTarget(to),)) for to in (whole, half)]
    moved = moved_by_transfer(await rig.transfers.run(rig.new_job(), moves))
    assert await rig.staged_rows(whole, moved[str(whole.transfer)]) == rows
    expected = [(key, value) for key, value in rows if decode_token(key) > middle]
    assert await rig.staged_rows(half, moved[str(half.transfer)]) == expected
    assert moved[str(half.transfer)].rows == len(expected)


async def rows_of_several_are_merged(rig: TransfersRig) -> None:
    replicas = [some_rows(seed) for seed in (4, 5, 6)]
    sources = tuple([await rig.rows_source(MIXED, rows) for rows in replicas])
    fresh = await rig.target(StagingKind.ROWS)
    owners = [await rig.target(StagingKind.ROWS) for _ in sources]
    targets = (RowTarget(fresh), *(RowTarget(to, own) for own, to in enumerate(owners)))
    results = await rig.transfers.run(
        rig.new_job(), [RowMove(range=WHOLE_RING, sources=sources, targets=targets, schema=MIXED)]
    )
    moved = moved_by_transfer(results)
    expected = list(merge_streams(replicas, MIXED))
    assert await rig.staged_rows(fresh, moved[str(fresh.transfer)]) == expected
    for to, has in zip(owners, replicas):
        known = dict(has)
        lacking = [(key, value) for key, value in expected if known.get(key) != value]
        assert await rig.staged_rows(to, moved[str(to.transfer)]) == lacking


async def parts_of_a_range_come_each_from_its_sources(rig: TransfersRig) -> None:
    """As one file in key order, so that one transfer brings many ranges."""
    replicas = [some_rows(seed) for seed in (4, 5, 6)]
    sources = tuple([await rig.rows_source(MIXED, rows) for rows in replicas])
    tokens = sorted(decode_token(key) for key, _ in replicas[0])
    low, high = tokens[len(tokens) // 4], tokens[len(tokens) // 2]
    first, last = TokenRange(WHOLE_RING.start, low), TokenRange(high, WHOLE_RING.end)
    target = await rig.target(StagingKind.ROWS)
    move = RowMove(
        range=WHOLE_RING,
        sources=sources,
        targets=(RowTarget(target),),
        schema=MIXED,
        parts=(RowPart(first, (1,)), RowPart(last, (0, 2))),
    )
    moved = moved_by_transfer(await rig.transfers.run(rig.new_job(), [move]))[str(target.transfer)]
    expected = [item for item in replicas[1] if decode_token(item[0]) in first]
    expected += [item for item in merge_streams([replicas[0], replicas[2]], MIXED) if decode_token(item[0]) in last]
    assert await rig.staged_rows(target, moved) == expected


async def who_lacks_nothing_is_sent_nothing(rig: TransfersRig) -> None:
    rows = some_rows(7)
    sources = tuple([await rig.rows_source(MIXED, rows) for _ in range(2)])
    target = await rig.target(StagingKind.ROWS)
    move = RowMove(range=WHOLE_RING, sources=sources, targets=(RowTarget(target, 1),), schema=MIXED)
    moved = moved_by_transfer(await rig.transfers.run(rig.new_job(), [move]))[str(target.transfer)]
    assert moved.files == ()
    assert moved.rows == 0


async def replicas_are_compared_by_bucket(rig: TransfersRig) -> None:
    rows = some_rows(8)
    changed = [*rows[:5], (rows[5][0], some_row_of_its_own(rows[5][1])), *rows[6:]]
    same = [await rig.rows_source(MIXED, rows) for _ in range(2)]
    other = await rig.rows_source(MIXED, changed)
    equal = ComparisonTask(range=WHOLE_RING, sources=(same[0], same[1]), buckets=BUCKETS, gc_before_s=0)
    unequal = ComparisonTask(range=WHOLE_RING, sources=(same[0], other, same[1]), buckets=BUCKETS, gc_before_s=0)
    assert list(await rig.transfers.run(rig.new_job(), [equal])) == [
        ComparisonResult(WHOLE_RING, BUCKETS, counted(rows))
    ]
    results = await rig.transfers.run(rig.new_job(), [unequal])
    different = [one for one in results if isinstance(one, BucketDifference)]
    token = decode_token(rows[5][0])
    assert different
    assert all(token in one.range and one.range in WHOLE_RING.split(BUCKETS) for one in different)
    hosts = [host for host, _, _ in different[0].replicas]
    hashes = [found for _, found, _ in different[0].replicas]
    assert hosts == [source.host for source in unequal.sources]
    assert hashes[0] == hashes[2] != hashes[1]
    assert any(isinstance(one, ComparisonResult) and one.range == WHOLE_RING for one in results)


def counted(rows: Sequence[Item]) -> int:
    """Without rows that partition heads delete."""
    hashes = RangeHasher(MIXED, WHOLE_RING, BUCKETS, 0)
    hashes.add(chunk_of(ChunkShape(MIXED), *rows_batch(rows).columns))
    total: int = pc.sum(hashes.result().column("rows")).as_py()
    return total


def some_row_of_its_own(other: bytes) -> bytes:
    """A different value."""
    return next(
        value for seed in range(100, 200) for _, value in some_rows(seed) if value[1] == other[1] and value != other
    )


async def a_closed_session_ends_the_work(rig: TransfersRig) -> None:
    source, target = await rig.files_source({"f": content(9, 10)}), await rig.target(StagingKind.FILES)
    await rig.close_session()
    with pytest.raises(WorkFailed, match="session") as caught:
        await rig.transfers.run(rig.new_job(), [FileMove(source, 0, target)])
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def a_cancelled_job_ends_for_its_caller(rig: TransfersRig) -> None:
    source, target = await rig.files_source({"f": content(10, 5_000_000)}), await rig.target(StagingKind.FILES)
    job = rig.new_job()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.transfers.run(job, [FileMove(source, 0, target)]))
        await rig.wait_until_held(held=True)
        running.cancel()
        async with asyncio.timeout(1.0):
            await asyncio.wait({running})
    assert running.cancelled()
    assert rig.transfers.tasks(job) == TaskCounts()
    await rig.wait_until_held(held=False)
    # Work that the previous job left running must not disturb the next.
    fresh = await rig.target(StagingKind.FILES)
    source = await rig.files_source({"f": b"next"})
    moved = moved_by_transfer(await rig.transfers.run(rig.new_job(), [FileMove(source, 0, fresh)]))
    assert await rig.staged(fresh, moved[str(fresh.transfer)]) == {"0/f": b"next"}


CONTRACTS: Sequence[Contract] = (
    says_that_it_is_ready,
    nothing_is_done_at_once,
    files_arrive_as_they_are,
    every_transfer_is_reported,
    the_same_again_is_another_attempt,
    rows_of_one_replica_arrive,
    rows_of_several_are_merged,
    parts_of_a_range_come_each_from_its_sources,
    who_lacks_nothing_is_sent_nothing,
    replicas_are_compared_by_bucket,
    a_closed_session_ends_the_work,
    a_cancelled_job_ends_for_its_caller,
)
