"""Several attempts at rows count together: each is looked at, all of them are merged, and no other is ever named."""

import asyncio
import random
import uuid
import zlib
from dataclasses import replace

import pytest
from tests.async_tests import runs_in
from tests.unit.bulk import staging_rig
from tests.unit.bulk.seal_of_runs_rig import THIRD, THREE, Runs, order_of, records_of, staged_run
from tests.unit.bulk.staged_rows_rig import ITEMS
from tests.unit.bulk.staging_rig import FIRST, PLACE, SECOND, SESSION, TRANSFER, StagingRig, machine
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import plain

from ebla.bulk.seal import SealSpec
from ebla.bulk.staged_rows import StagedRows, find_staged_rows
from ebla.bulk.staging import StagedTransfer
from ebla.bulk.staging_state import SealRefused, TransferPhase
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.errors import Corruption, DiskFull, EblaError, InvalidRequest, Overloaded, Refused
from ebla.model.identity import AttemptId, TransferId
from ebla.model.rows import Cell, Deletion, Row
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import ScanStack, StagedFile, StagingKind
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import encode_rows, items_of, read_row_file, rows_batch
from ebla.storage.codec.staging_format import SealedFile, read_sealed
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.merge.row_merge import merge_all

MERGED_MAX = pytest.mark.parametrize("merged_max", [1 << 20, 0], ids=["merged", "layer"])


async def staged_runs(rig: StagingRig, runs: Runs, tokens: TokenRange = WHOLE_RING) -> StagedTransfer:
    staged = await rig.opened(StagingKind.ROWS, tokens)
    for attempt, items in runs.items():
        await rig.put(staged, attempt, "rows", records_of(items))
    return staged


async def found_items(disk: ProcessDisk, sealed: SealedFile) -> list[Item]:
    if sealed.rows_file:
        batches = [batch async for batch in read_row_file(disk, f"{PLACE}/{sealed.rows_file}")]
        items = [item for batch in batches for item in items_of(batch)]
        assert len(items) == sealed.rows
        return items
    (layer,) = sealed.layers
    opened = await MemoryEngine(disk).open(f"{PLACE}/{layer.folder}", writable=False)
    items = list(opened.scan())
    assert opened.facts.rows == len(items)
    await opened.discard()
    return items


def merged(runs: Runs) -> list[Item]:
    """By the rule of all rows, one key at a time."""
    found: dict[bytes, list[bytes]] = {}
    for items in runs.values():
        for key, value in items:
            found.setdefault(key, []).append(value)
    return [(key, merge_all(values, SMALL)) for key, values in sorted(found.items())]


@MERGED_MAX
@runs_in(lambda work: machine().run(work))
async def test_runs_become_one_layer_or_one_file_of_rows(
    disk: ProcessDisk, /, merged_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-XFER-2: all of them, whole; and nothing else is left."""
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    rig = await StagingRig(disk).begin()
    other = AttemptId(uuid.UUID(int=99))
    staged = await staged_runs(rig, {**THREE, other: ITEMS})
    sealed = await rig.sealer.seal(staged, order_of(THREE))
    assert await found_items(disk, sealed) == ITEMS
    assert sealed.size_bytes == sum(staged_run(items).size_bytes for items in THREE.values())
    assert set(sealed.attempts) == set(THREE)
    left = [name for name in rig.below(PLACE) if name not in ("SEALED", "target", staging_rig.MACHINE)]
    assert all(name.startswith(sealed.rows_file or sealed.layers[0].folder) for name in left), left


@MERGED_MAX
@pytest.mark.parametrize("seed", range(3))
@runs_in(lambda work: machine().run(work))
async def test_a_key_in_several_runs_is_merged_by_the_rule_of_all_rows(
    disk: ProcessDisk, /, merged_max: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    rng = random.Random(seed)
    attempts = [AttemptId(uuid.UUID(int=100 + number)) for number in range(5)]

    def item(partition: int, row: int) -> Item:
        kind = rng.randrange(4)
        if kind == 0:
            return key_of(partition, row), value_of(Row(marker=None, deletion=Deletion(5, 1), cells={}))
        return plain(partition, row, 5, number=rng.randrange(3))

    runs = {
        attempt: sorted(item(partition, row) for partition in range(12) for row in range(3) if rng.random() < 0.6)
        for attempt in attempts
    }
    rig = await StagingRig(disk).begin()
    sealed = await rig.sealer.seal(await staged_runs(rig, runs), order_of(runs))
    assert await found_items(disk, sealed) == merged(runs)


@runs_in(lambda work: machine().run(work))
async def test_with_one_timestamp_a_delete_beats_a_value_and_then_the_larger_bytes_count(disk: ProcessDisk, /) -> None:
    key = key_of(1, 1)
    values = [
        value_of(Row(marker=None, deletion=None, cells={3: Cell(timestamp_us=5, value=value)}))
        for value in (b"b", b"c", b"a")
    ]
    runs = dict(zip((FIRST, SECOND, THIRD), ([(key, value)] for value in values)))
    gone = AttemptId(uuid.UUID(int=14))
    rig = await StagingRig(disk).begin()
    sealed = await rig.sealer.seal(await staged_runs(rig, runs), order_of(runs))
    assert await found_items(disk, sealed) == [(key, values[1])]
    await rig.staging.drop_session(SESSION)
    deleted = {
        **runs,
        gone: [
            (
                key,
                value_of(Row(marker=None, deletion=None, cells={3: Cell(timestamp_us=5, value=None, ttl_s=0, at_s=1)})),
            )
        ],
    }
    sealed = await rig.sealer.seal(await staged_runs(rig, deleted), order_of(deleted))
    assert await found_items(disk, sealed) == [(key, deleted[gone][0][1])]


@MERGED_MAX
def test_the_same_set_again_is_the_same_seal_and_another_is_refused(
    merged_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-XFER-2, also by a process that was started since."""
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    other_order = {attempt: THREE[attempt] for attempt in (THIRD, SECOND, FIRST)}
    others: list[Runs] = [
        {FIRST: ITEMS[::3]},
        {FIRST: ITEMS[::3], SECOND: ITEMS[1::3]},
        {**THREE, AttemptId(TRANSFER): []},
    ]

    async def check(rig: StagingRig, staged: StagedTransfer, sealed: SealedFile) -> None:
        for runs in (THREE, other_order):
            assert await rig.sealer.seal(staged, order_of(runs)) == sealed
        for runs in others:
            with pytest.raises(SealRefused, match=f"sealed with other attempts .{FIRST}, {SECOND}, {THIRD}"):
                await rig.sealer.seal(staged, order_of(runs))

    async def main(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = await staged_runs(rig, THREE)
        sealed = await rig.sealer.seal(staged, order_of(THREE))
        await check(rig, staged, sealed)
        again = await StagingRig(disk).begin()
        await check(again, again.staging.find(SESSION, TRANSFER), sealed)
        assert await read_sealed(disk, PLACE) == sealed

    machine().run(main)


TOKENS = sorted(decode_token(key) for key, _ in ITEMS)


@MERGED_MAX
@pytest.mark.parametrize(
    ("records", "tokens", "failure", "words"),
    [
        (records_of(ITEMS[1::3])[:-5], WHOLE_RING, Corruption, "ends within a record"),
        (encode_rows(rows_batch([ITEMS[4], ITEMS[1]])), WHOLE_RING, InvalidRequest, "order"),
        (records_of(ITEMS[1::3]), TokenRange(Token(TOKENS[0] - 1), Token(TOKENS[-1] - 1)), InvalidRequest, "outside"),
    ],
    ids=["not whole", "order", "range"],
)
@runs_in(lambda work: machine().run(work))
async def test_a_run_that_is_not_as_it_should_be_keeps_all_from_being_sealed(
    disk: ProcessDisk,
    /,
    records: bytes,
    tokens: TokenRange,
    failure: type[EblaError],
    words: str,
    merged_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    good: Runs = {FIRST: [item for item in ITEMS[::3] if decode_token(item[0]) in tokens]}
    rig = await StagingRig(disk).begin()
    staged = await staged_runs(rig, good, tokens)
    await rig.put(staged, SECOND, "rows", records)
    order = order_of(good)
    bad = SealSpec(
        attempt=FIRST,
        files=order.files,
        layers=(),
        schema=SMALL,
        more=((SECOND, StagedFile(name="rows", size_bytes=len(records), checksum=zlib.crc32(records))),),
    )
    with pytest.raises(failure, match=words):
        await rig.sealer.seal(staged, bad)
    assert staged.state.phase is TransferPhase.OPEN
    assert await read_sealed(disk, PLACE) is None
    assert await found_items(disk, await rig.sealer.seal(staged, order)) == good[FIRST]


@pytest.mark.parametrize(
    ("second", "failure", "words"),
    [
        (StagedFile(name="rows", size_bytes=3, checksum=1), Corruption, "bytes, and 3 were staged"),
        (
            StagedFile(name="rows", size_bytes=len(records_of(ITEMS[1::3])), checksum=1),
            Corruption,
            "not what its source has",
        ),
        (StagedFile(name="0/x", size_bytes=3, checksum=1), InvalidRequest, "staged as 'rows'"),
    ],
    ids=["size", "checksum", "name"],
)
@runs_in(lambda work: machine().run(work))
async def test_every_run_must_be_what_was_brought(
    disk: ProcessDisk, /, second: StagedFile, failure: type[EblaError], words: str
) -> None:
    rig = await StagingRig(disk).begin()
    staged = await staged_runs(rig, THREE)
    order = SealSpec(
        attempt=FIRST, files=(staged_run(THREE[FIRST]),), layers=(), schema=SMALL, more=((SECOND, second),)
    )
    with pytest.raises(failure, match=words):
        await rig.sealer.seal(staged, order)
    assert staged.state.phase is TransferPhase.OPEN


@runs_in(lambda work: machine().run(work))
async def test_what_no_seal_can_name(disk: ProcessDisk, /) -> None:
    rig = await StagingRig(disk).begin()
    staged = await staged_runs(rig, THREE)
    file = staged_run(THREE[FIRST])
    for order, words in (
        (
            SealSpec(attempt=FIRST, files=(file,), layers=(), schema=SMALL, more=((FIRST, file),)),
            "names an attempt twice",
        ),
        (
            SealSpec(attempt=FIRST, files=(), layers=(), schema=SMALL, more=((SECOND, file),)),
            "each with its files",
        ),
    ):
        with pytest.raises(InvalidRequest, match=words):
            await rig.sealer.seal(staged, order)
    missing = SealSpec(
        attempt=FIRST, files=(file,), layers=(), schema=SMALL, more=((AttemptId(uuid.UUID(int=77)), file),)
    )
    with pytest.raises(Refused, match="was not staged by this attempt"):
        await rig.sealer.seal(staged, missing)
    assert (await rig.sealer.seal(staged, order_of(THREE))).attempts == (FIRST, SECOND, THIRD), "none of it counted"


@runs_in(lambda work: machine().run(work))
async def test_of_files_one_attempt_counts(disk: ProcessDisk, /) -> None:
    rig = await StagingRig(disk).begin()
    staged = await rig.put_all(await rig.opened(), FIRST)
    order = SealSpec(
        attempt=FIRST,
        files=staging_rig.staged_files(staging_rig.FILES),
        layers=staging_rig.RANGES,
        schema=SMALL,
        more=((SECOND, staged_run(ITEMS)),),
    )
    with pytest.raises(InvalidRequest, match="only attempts of rows"):
        await rig.sealer.seal(staged, order)


@runs_in(lambda work: machine().run(work))
async def test_a_seal_needs_room_for_what_it_makes(disk: ProcessDisk, /) -> None:
    rig = await StagingRig(disk).begin()
    staged = await staged_runs(rig, THREE)
    disk.free_bytes = lambda path: 100  # type: ignore[method-assign] # what is left
    with pytest.raises(DiskFull, match="does not fit"):
        await rig.sealer.seal(staged, order_of(THREE))
    assert staged.state.phase is TransferPhase.OPEN


# -- what was staged, for replicas that come later


@runs_in(lambda work: machine().run(work))
async def test_before_the_seal_each_attempt_has_its_own_rows_and_behind_it_all_have_the_same(
    disk: ProcessDisk, /
) -> None:
    rig = await StagingRig(disk, limits=TransferLimits(rows_merged_bytes_max=0)).begin()
    staged = await staged_runs(rig, {**THREE, AttemptId(TRANSFER): ITEMS})
    for attempt, items in THREE.items():
        found = find_staged_rows(rig.disk, staged, attempt)
        assert (rig.read(found.path), found.is_merged) == (records_of(items), False)
    with pytest.raises(Refused, match="has no rows here"):
        find_staged_rows(rig.disk, staged, AttemptId(SESSION))
    with pytest.raises(Corruption):
        await rig.sealer.seal(staged, replace(order_of(THREE), more=((SECOND, StagedFile(name="rows", size_bytes=1)),)))
    assert rig.read(find_staged_rows(rig.disk, staged, FIRST).path) == records_of(THREE[FIRST]), (
        "though it was taken over"
    )
    sealed = await rig.sealer.seal(staged, order_of(THREE))
    again = await StagingRig(disk).begin()
    for one in (rig, again):
        found = find_staged_rows(one.disk, one.staging.find(SESSION, TRANSFER), THIRD)
        layer = ScanStack(WHOLE_RING, ((f"{PLACE}/{sealed.layers[0].folder}", WHOLE_RING),))
        assert found == StagedRows(layer=layer, is_merged=True)
        with pytest.raises(Refused, match="named other attempts") as caught:
            find_staged_rows(one.disk, staged, AttemptId(TRANSFER))
    assert "has no rows here" in caught.value.message
    await rig.staging.release(SESSION, [TRANSFER])
    with pytest.raises(Refused, match="released"):
        find_staged_rows(rig.disk, staged, FIRST)


@runs_in(lambda work: machine().run(work))
async def test_while_runs_are_merged_there_is_nothing_to_be_had(disk: ProcessDisk, /) -> None:
    rig = await StagingRig(disk).begin()
    staged = await staged_runs(rig, THREE)
    async with asyncio.TaskGroup() as tasks:
        sealing = tasks.create_task(rig.sealer.seal(staged, order_of(THREE)))
        await asyncio.sleep(0.001)
        with pytest.raises(Overloaded, match="is being merged"):
            find_staged_rows(rig.disk, staged, FIRST)
    path = f"{PLACE}/{sealing.result().rows_file}"
    assert find_staged_rows(rig.disk, staged, FIRST) == StagedRows(path, is_merged=True)
    files = await rig.staging.open(SESSION, TransferId(SESSION), staging_rig.target())
    with pytest.raises(InvalidRequest, match="moves files"):
        find_staged_rows(rig.disk, files, FIRST)
