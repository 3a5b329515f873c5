"""Pages of a replica's rows, of any size and direction, add up to the whole; and digests depend only on the content of
rows."""

import random
from collections.abc import Callable
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.replica.shard_rig import NOW_S, OWN, ShardRig, in_shard, read_of, small_cluster, write_of
from tests.unit.storage.small_table import CELLS, MAP, SMALL, STATIC, clustering_of, head_of, key_of, prefix_of
from tests.unit.topology.small_cluster import replica

from ebla.model.cql_types import parse_type
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.model.schema import Column, ColumnKind, TableSchema, with_column, without_column
from ebla.options import CommitLogMode
from ebla.replica.replica_context import ReplicaLimits
from ebla.storage.codec.key_codec import prefix_end, split_key
from ebla.storage.codec.live_rows import is_live_row
from ebla.storage.codec.row_codec import decode_row, encode_head, encode_row, is_head
from ebla.storage.codec.row_digest import digest_rows
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_values
from ebla.topology.tablet_map import tablet_map
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest, Span

TABLETS = tablet_map(SMALL.id, [(OWN,)] * 4)
PARTITIONS, ROWS = 8, 6
SEEDS = st.integers(0, 1 << 32)
EXAMPLES = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)


def random_cell(rng: random.Random, timestamp_us: int) -> Cell:
    match rng.randrange(4):
        case 0:
            return Cell(timestamp_us=timestamp_us, value=None, ttl_s=0, at_s=NOW_S - rng.randrange(50))
        case 1:
            return Cell(timestamp_us=timestamp_us, value=b"\0\0\0\1", ttl_s=30, at_s=NOW_S + rng.randrange(-40, 40))
        case _:
            return Cell(timestamp_us=timestamp_us, value=rng.randrange(4).to_bytes(4))


def random_row(rng: random.Random) -> Row:
    timestamp_us = rng.randrange(1, 60)
    if rng.random() < 0.5:
        cells = {number: Cell(timestamp_us=timestamp_us, value=rng.randrange(9).to_bytes(4)) for number in CELLS}
        return Row(marker=RowMarker(timestamp_us), deletion=None, cells=cells)
    cells = {number: random_cell(rng, rng.randrange(1, 60)) for number in CELLS if rng.random() < 0.7}
    marker = RowMarker(timestamp_us, 10, NOW_S + rng.randrange(-9, 9)) if rng.random() < 0.3 else None
    deletion = Deletion(rng.randrange(60), NOW_S - rng.randrange(40)) if rng.random() < 0.2 else None
    collections = {}
    if rng.random() < 0.4:
        paths = {rng.randrange(3).to_bytes(4): random_cell(rng, rng.randrange(60)) for _ in range(2)}
        cleared = Deletion(rng.randrange(60), NOW_S - 5) if rng.random() < 0.5 else None
        collections = {MAP: CollectionCells(cleared, paths)}
    return Row(marker=marker, deletion=deletion, cells=cells, collections=collections)


def random_head(rng: random.Random) -> PartitionHead:
    low, high = sorted((rng.randrange(ROWS + 1), rng.randrange(ROWS + 1)))
    ranges = (
        (RangeDeletion(clustering_of(low), clustering_of(high), Deletion(rng.randrange(60), NOW_S - 3)),)
        if low < high
        else ()
    )
    deletion = Deletion(rng.randrange(40), NOW_S - 8) if rng.random() < 0.4 else None
    static = (
        Row(marker=None, deletion=None, cells={STATIC: random_cell(rng, rng.randrange(60))})
        if rng.random() < 0.5
        else Row()
    )
    return PartitionHead(deletion, ranges, static)


def random_items(rng: random.Random, heads: float) -> list[Item]:
    items: list[Item] = []
    for _ in range(rng.randrange(1, 90)):
        partition = rng.randrange(PARTITIONS)
        if rng.random() < heads:
            items.append((head_of(partition), encode_head(random_head(rng), SMALL.version)))
        else:
            row = random_row(rng)
            items.append((key_of(partition, rng.randrange(ROWS)), encode_row(row, 1, SMALL.layouts[-1])))
    return items


async def fill(shard: ShardRig, items: list[Item], rng: random.Random, seals: float) -> None:
    for item in items:
        assert (await shard.write(write_of(item))).failures == ()
        if rng.random() < seals:
            await shard.store.seal(rng.choice(list(shard.store.stacks.values())))


async def whole_of(shard: ShardRig, span: Span = (b"", None)) -> list[Item]:
    """By the scan of the stacks themselves."""
    found: list[Item] = []
    for stack in sorted(shard.store.stacks.values(), key=lambda one: one.entry.range):
        found += (await shard.store.open(stack)).scan(*span)
    return found


async def pages_of(shard: ShardRig, request: Callable[[tuple[Span, ...]], ReadRowsRequest]) -> list[ReadRowsAnswer]:
    """Reads as a router does: from the last key on, until a page is full."""
    pages: list[ReadRowsAnswer] = []
    spans: tuple[Span, ...] = request(()).spans
    while True:
        asked = request(spans)
        page = await shard.server.read(asked, 1_000)
        pages.append(page)
        if page.is_whole:
            return pages
        assert page.last_key
        spans = rest_of(spans, page.last_key, is_reversed=asked.is_reversed)


def rest_of(spans: tuple[Span, ...], key: bytes, *, is_reversed: bool) -> tuple[Span, ...]:
    rest: list[Span] = []
    for start, end in spans:
        if is_reversed and start < key:
            rest.append((start, key if end is None or end > key else end))
        if not is_reversed and (end is None or end > key):
            rest.append((max(start, key + b"\0"), end))
    return tuple(rest)


def with_spans(request: ReadRowsRequest, spans: tuple[Span, ...]) -> ReadRowsRequest:
    return ReadRowsRequest(
        version=request.version,
        table=request.table,
        spans=spans or request.spans,
        rows_max=request.rows_max,
        now_s=request.now_s,
        is_reversed=request.is_reversed,
        bytes_max=request.bytes_max,
        partition_rows_max=request.partition_rows_max,
    )


def live(items: list[Item] | tuple[Item, ...]) -> int:
    return sum(not is_head(value) and is_live_row(value, SMALL, NOW_S) for _, value in items)


@EXAMPLES
@given(SEEDS)
def test_pages_together_are_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    rows_max, bytes_max = rng.randrange(1, 12), rng.choice([60, 300, 1 << 20])
    bounds = ReplicaLimits(turn_items_max=rng.choice([1, 20, 512]), page_items_max=rng.choice([512, 4096]))
    is_reversed = rng.random() < 0.5
    request = read_of(rows_max=rows_max, bytes_max=bytes_max, is_reversed=is_reversed)

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(rng.choice([TABLETS, None])))
        await fill(shard, random_items(rng, rng.choice([0.0, 0.3])), rng, rng.choice([0.0, 0.1]))
        whole = await whole_of(shard)
        pages = await pages_of(shard, lambda spans: with_spans(request, spans))
        together = [item for page in pages for item in page.items]
        assert together == (whole[::-1] if is_reversed else whole)
        for page in pages:
            assert page.live_rows == live(page.items) <= rows_max
            size_bytes = sum(len(key) + len(value) for key, value in page.items[:-1])
            assert size_bytes < bytes_max
        for page, after in pairwise(pages):
            assert not after.items or (page.last_key > after.items[0][0]) is is_reversed

    in_shard(work, mode=CommitLogMode.PERIODIC, bounds=bounds)


@EXAMPLES
@given(SEEDS)
def test_slices_are_what_lies_in_them(seed: int) -> None:
    """Also where they begin behind the head that deletes some of their rows."""
    rng = random.Random(seed)
    is_reversed = rng.random() < 0.5
    bounds = sorted({key_of(rng.randrange(PARTITIONS), rng.randrange(ROWS)) for _ in range(6)})
    spans = tuple(zip(bounds[::2], bounds[1::2]))

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(TABLETS))
        await fill(shard, random_items(rng, 0.3), rng, 0.05)
        whole = await whole_of(shard)
        expected = [item for item in whole if any(start <= item[0] < end for start, end in spans)]
        if spans:
            page = await shard.server.read(read_of(*spans, is_reversed=is_reversed), 1_000)
            assert list(page.items) == (expected[::-1] if is_reversed else expected)
            assert page.is_whole

    in_shard(work, mode=CommitLogMode.PERIODIC, bounds=ReplicaLimits(turn_items_max=rng.choice([1, 512])))


@EXAMPLES
@given(SEEDS)
def test_a_limit_for_each_partition_keeps_its_first_rows(seed: int) -> None:
    rng = random.Random(seed)
    is_reversed, rows_max = rng.random() < 0.5, rng.randrange(1, 4)

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(TABLETS))
        await fill(shard, random_items(rng, 0.2), rng, 0.05)
        whole = await whole_of(shard)
        counts: dict[bytes, int] = {}
        expected = []
        for key, value in reversed(whole) if is_reversed else whole:
            prefix = split_key(key)[0]
            if is_head(value) or counts.get(prefix, 0) < rows_max:
                expected.append((key, value))
                counts[prefix] = counts.get(prefix, 0) + live([(key, value)])
        page = await shard.server.read(read_of(is_reversed=is_reversed, partition_rows_max=rows_max), 1_000)
        assert list(page.items) == expected
        assert page.is_whole

    in_shard(work, mode=CommitLogMode.PERIODIC, bounds=ReplicaLimits(turn_items_max=rng.choice([1, 40, 512])))


@EXAMPLES
@given(SEEDS)
def test_single_rows_read_by_gets_are_those_of_scans(seed: int) -> None:
    rng = random.Random(seed)

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(TABLETS))
        await fill(shard, random_items(rng, rng.choice([0.0, 0.3])), rng, 0.05)
        whole = dict(await whole_of(shard))
        for partition in range(PARTITIONS):
            for row in range(ROWS):
                head, key = head_of(partition), key_of(partition, row)
                found = await shard.server.read(read_of((head, head + b"\0"), (key, key + b"\0")), 1_000)
                points = await shard.server.read(read_of((head, head + b"\0"), (key, key + b"\0"), rows_max=1), 1_000)
                assert points == found
                assert found.items == tuple((one, whole[one]) for one in (head, key) if one in whole)

    in_shard(work, mode=CommitLogMode.PERIODIC)


@EXAMPLES
@given(SEEDS)
def test_the_same_cells_have_the_same_digest_however_they_lie(seed: int) -> None:
    rng = random.Random(seed)
    items = random_items(rng, 0.2)
    shuffled = rng.sample(items, len(items))
    request = read_of(digest_only=True, gc_before_s=rng.choice([0, NOW_S - 20]))
    digests = []

    async def one(shard: ShardRig) -> ReadRowsAnswer:
        await shard.follow(small_cluster(TABLETS))
        await fill(shard, items, rng, 0.0)
        return await shard.server.read(request, 1_000)

    async def many(shard: ShardRig) -> ReadRowsAnswer:
        await shard.follow(small_cluster(tablet_map(SMALL.id, [(replica(1),)])))
        await fill(shard, shuffled, rng, 0.2)
        return await shard.server.read(request, 1_000)

    for layering in (one, many):
        answer = in_shard(layering, mode=CommitLogMode.PERIODIC)
        assert answer.items == ()
        digests.append(answer.digest)
    assert digests[0] == digests[1]


def altered() -> TableSchema:
    wider = with_column(SMALL, Column(name="z", type=parse_type("int"), kind=ColumnKind.REGULAR))
    return without_column(with_column(wider, Column(name="q", type=parse_type("int"), kind=ColumnKind.REGULAR)), "q")


@EXAMPLES
@given(SEEDS)
def test_digests_do_not_see_by_which_version_a_row_was_written(seed: int) -> None:
    rng = random.Random(seed)
    newer = altered()
    rows = [(key_of(0, number), random_row(rng)) for number in range(ROWS)]
    older = [(key, encode_row(row, 1, SMALL.layouts[-1])) for key, row in rows]
    rewritten = [(key, encode_row(row, newer.version, newer.layouts[-1])) for key, row in rows]
    assert digest_rows(older, newer, 0) == digest_rows(rewritten, newer, 0)


@EXAMPLES
@given(SEEDS)
def test_digests_tell_any_difference_that_counts(seed: int) -> None:
    """One more cell, live or a tombstone that may not be dropped yet, and the digest is another."""
    rng = random.Random(seed)
    key, value = key_of(1, 1), encode_row(random_row(rng), 1, SMALL.layouts[-1])
    added = (
        Cell(timestamp_us=1_000, value=None, ttl_s=0, at_s=NOW_S)
        if rng.random() < 0.5
        else Cell(timestamp_us=1_000, value=b"\0\0\0\7")
    )
    change = encode_row(Row(marker=None, deletion=None, cells={CELLS[0]: added}), 1, SMALL.layouts[-1])
    merged = merge_values(value, change, SMALL)
    assert decode_row(merged, SMALL.layouts) != decode_row(value, SMALL.layouts)
    assert digest_rows([(key, value)], SMALL, NOW_S) != digest_rows([(key, merged)], SMALL, NOW_S)
    assert digest_rows([(key, value)], SMALL, 0) != digest_rows([(key_of(1, 2), value)], SMALL, 0)


def test_what_may_be_collected_is_no_part_of_a_digest() -> None:
    gone = encode_row(Row(marker=None, deletion=Deletion(5, NOW_S - 30)), 1, SMALL.layouts[-1])
    expired = encode_row(
        Row(
            marker=None,
            deletion=None,
            cells={CELLS[0]: Cell(timestamp_us=7, value=b"\0\0\0\1", ttl_s=5, at_s=NOW_S - 30)},
        ),
        1,
        SMALL.layouts[-1],
    )
    head = encode_head(PartitionHead(Deletion(5, NOW_S - 30)), 1)
    items = [(head_of(1), head), (key_of(1, 1), gone), (key_of(1, 2), expired)]
    assert digest_rows(items, SMALL, NOW_S - 29) == digest_rows([], SMALL, 0)
    assert len({digest_rows(items[:count], SMALL, NOW_S - 30) for count in range(4)}) == 4
    assert prefix_end(prefix_of(1)) > key_of(1, 2)
