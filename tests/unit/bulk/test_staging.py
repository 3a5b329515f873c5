"""Places for transfers: what attempts bring, what a seal makes of it, what is left after whatever goes wrong."""

import asyncio
import uuid
import zlib
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in
from tests.unit.bulk.staging_rig import (
    FILES,
    FIRST,
    FOLDER,
    MACHINE,
    PLACE,
    RANGES,
    SECOND,
    SESSION,
    TRANSFER,
    StagingRig,
    machine,
    order_of,
    staged_files,
    target,
)
from tests.unit.storage.small_table import SMALL

from ebla.bulk.seal import SealSpec
from ebla.bulk.staging_state import SealRefused, TransferPhase
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.errors import Corruption, DiskFull, InvalidRequest, Overloaded, Refused, Stale
from ebla.model.identity import AttemptId, SessionId, TransferId
from ebla.model.token import Token, TokenRange
from ebla.model.transfers import StagedFile, StagingKind
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.staging_format import read_sealed, read_target
from ebla.wire.transfer_messages import FlightPut


def in_staging(work: Callable[[StagingRig], Awaitable[None]], limits: TransferLimits | None = None) -> None:
    async def main(disk: ProcessDisk) -> None:
        await work(await StagingRig(disk, limits=limits).begin())

    machine().run(main)


pytestmark = runs_in(in_staging)


async def sealed_bytes(rig: StagingRig) -> dict[str, bytes]:
    """By layer and file, as the marker names them."""
    sealed = await read_sealed(rig.own, PLACE)
    assert sealed is not None
    found = {}
    for number, layer in enumerate(sealed.layers):
        for name in rig.own.list_folder(f"{PLACE}/{layer.folder}"):
            found[f"{number}/{name}"] = rig.read(f"{PLACE}/{layer.folder}/{name}")
    return found


async def test_an_attempt_is_brought_in_pieces_and_sealed_whole(rig: StagingRig, /) -> None:
    staged = await rig.put_all(await rig.opened(), FIRST)
    await rig.put(staged, SECOND, "0/000001.sst", b"less")
    assert staged.status.received_bytes == sum(map(len, FILES.values()))
    assert staged.status.attempts == 2
    sealed = await rig.sealer.seal(staged, order_of(FIRST))
    assert sealed.attempt == FIRST
    assert [layer.range for layer in sealed.layers] == list(RANGES)
    assert staged.copied_files == 0
    assert await sealed_bytes(rig) == FILES
    assert sorted(rig.own.list_folder(PLACE)) == sorted(
        ["SEALED", MACHINE, sealed.layers[0].folder.split("/")[0], "target"]
    )
    assert staged.status.phase == "sealed"
    assert await read_target(rig.own, PLACE) == target()


async def test_a_seal_again_changes_nothing_and_another_attempt_is_told_who_counts(rig: StagingRig, /) -> None:
    """INV-XFER-2."""
    staged = await rig.put_all(await rig.opened(), FIRST)
    await rig.put_all(staged, SECOND)
    first = await rig.sealer.seal(staged, order_of(FIRST))
    assert await rig.sealer.seal(staged, order_of(FIRST)) == first
    with pytest.raises(SealRefused, match=str(FIRST)) as caught:
        await rig.sealer.seal(staged, order_of(SECOND))
    assert caught.value.winners == (FIRST,)
    with pytest.raises(Refused, match="nothing more is accepted"):
        await rig.put(staged, SECOND, "0/000001.sst", b"more")


def test_a_seal_is_known_to_the_next_life() -> None:
    async def seal(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        await rig.sealer.seal(await rig.put_all(await rig.opened(), FIRST), order_of(FIRST))

    async def later(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = rig.staging.find(SESSION, TRANSFER)
        assert (staged.state.phase, staged.state.winners) == (TransferPhase.SEALED, (FIRST,))
        assert (await rig.sealer.seal(staged, order_of(FIRST))).attempt == FIRST
        with pytest.raises(SealRefused, match=str(FIRST)):
            await rig.sealer.seal(staged, order_of(SECOND))
        assert await sealed_bytes(rig) == FILES

    here = machine()
    here.run(seal)
    here.lose_power()
    here.run(later)


def test_a_put_goes_on_where_it_broke_also_in_another_life() -> None:
    data = bytes(range(256)) * 40

    async def begin(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = await rig.opened()
        place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a.sst", size_bytes=len(data)))
        await rig.puts.append(place, data[:1000])
        again = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a.sst", size_bytes=len(data)))
        assert again.received_bytes == 1000
        with pytest.raises(Stale, match="no longer written"):
            await rig.puts.append(place, data[1000:1010])
        rig.puts.close(place)
        await rig.puts.append(again, memoryview(data)[1000:3000])

    async def go_on(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = await rig.opened()
        assert staged.state.attempts == {FIRST}
        place = await rig.puts.open(
            staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a.sst", size_bytes=len(data), offset=2000)
        )
        assert place.received_bytes == 3000
        with pytest.raises(Refused, match="send the rest"):
            rig.puts.finish(place)
        await rig.puts.append(place, data[3000:])
        assert rig.puts.finish(place).checksum == zlib.crc32(data)

    here = machine()
    here.run(begin)
    here.run(go_on)


BEGUN_S = 0.00002
"""After so long a write has begun, and none on the simulated disk has ended."""


async def test_a_place_is_taken_over_from_a_stream_that_is_just_writing(rig: StagingRig, /) -> None:
    data = bytes(range(256)) * 40
    staged = await rig.opened()
    put = FlightPut(ticket=b"", attempt=FIRST, name="0/a.sst", size_bytes=len(data))
    place = await rig.puts.open(staged, put)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(_stale(rig.puts.append(place, data[:1000])))
        await asyncio.sleep(BEGUN_S)
        again = await rig.puts.open(staged, put)
    assert writing.done()
    assert again.received_bytes == 1000, "it was written before the next stream got its offset"
    await rig.puts.append(again, data[1000:])
    assert rig.puts.finish(again).checksum == zlib.crc32(data)
    rig.puts.close(again)
    assert rig.own.has_no_writer(f"{PLACE}/{FIRST}/0/a.sst")


async def test_a_seal_does_not_close_a_file_under_a_write(rig: StagingRig, /) -> None:
    staged = await rig.opened()
    place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a.sst", size_bytes=10))
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(_stale(rig.puts.append(place, b"0123456789")))
        await asyncio.sleep(BEGUN_S)
        rig.puts.close_transfer(staged.transfer)
    assert writing.done()
    assert rig.own.has_no_writer(f"{PLACE}/{FIRST}/0/a.sst")


async def _stale(append: Awaitable[None]) -> None:
    with pytest.raises(Stale, match="no longer written"):
        await append


async def test_what_makes_no_sense_is_not_put(rig: StagingRig, /) -> None:
    staged = await rig.opened()
    for name in ("../key", "0/../../x", "a/b", "0/.hidden", "rows", "0/a/b", "00/a", "64/a", "-1/a", "0/", ""):
        with pytest.raises(InvalidRequest, match="not a name"):
            await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name=name, size_bytes=5))
    with pytest.raises(InvalidRequest, match="is invalid"):
        await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a", size_bytes=5, offset=6))
    with pytest.raises(Refused, match="continues at 3"):
        await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a", size_bytes=5, offset=3))
    place = await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a", size_bytes=5))
    await rig.puts.append(place, b"12345")
    with pytest.raises(InvalidRequest, match="announced with 5"):
        await rig.puts.append(place, b"6")
    assert rig.puts.finish(place).received_bytes == 5
    with pytest.raises(Refused, match="has 5 bytes here"):
        await rig.puts.open(staged, FlightPut(ticket=b"", attempt=FIRST, name="0/a", size_bytes=4))


@runs_in(in_staging, TransferLimits(attempts_max=2, transfers_max=1))
async def test_attempts_and_transfers_are_bounded(rig: StagingRig, /) -> None:
    staged = await rig.opened()
    await rig.put(staged, FIRST, "0/a", b"x")
    await rig.put(staged, SECOND, "0/a", b"x")
    with pytest.raises(Refused, match="2 attempts"):
        await rig.put(staged, AttemptId(uuid.UUID(int=13)), "0/a", b"x")
    with pytest.raises(Overloaded, match="1 transfers"):
        await rig.staging.open(SESSION, TransferId(uuid.UUID(int=3)), target())
    with pytest.raises(DiskFull, match="does not fit"):
        await rig.staging.open(SESSION, TRANSFER, target(), size_bytes=1 << 60)


@pytest.mark.parametrize(
    ("files", "failure", "words"),
    [
        (staged_files({**FILES, "1/missing": b"x"}), Refused, "was not staged"),
        (staged_files({**FILES, "1/000002.sst": b"second" * 201}), Corruption, "1206"),
        (staged_files({**FILES, "1/000002.sst": b"SECOND" * 200}), Corruption, "not what its source has"),
        (
            (*staged_files(FILES)[:2], StagedFile(name="1/000002.sst", size_bytes=1200, inode=77)),
            Corruption,
            "not what its source has",
        ),
        (staged_files(FILES)[:2], InvalidRequest, r"names files of layers \[0\]"),
        ((*staged_files(FILES), staged_files(FILES)[0]), InvalidRequest, "twice"),
        (staged_files({**FILES, "2/x": b""}), InvalidRequest, "names files of layers"),
    ],
)
async def test_what_is_not_whole_is_not_sealed(
    rig: StagingRig, /, files: tuple[StagedFile, ...], failure: type[Exception], words: str
) -> None:
    staged = await rig.put_all(await rig.opened(), FIRST)
    await rig.put_all(staged, SECOND)
    with pytest.raises(failure, match=words):
        await rig.sealer.seal(staged, SealSpec(attempt=FIRST, files=files, layers=RANGES, schema=SMALL))
    assert await read_sealed(rig.own, PLACE) is None
    assert staged.state.phase is TransferPhase.OPEN
    await rig.sealer.seal(staged, order_of(SECOND))
    assert await sealed_bytes(rig) == FILES
    assert sum(name.startswith("sealed-") for name in rig.own.list_folder(PLACE)) == 1


async def test_layers_beyond_the_place_are_refused(rig: StagingRig, /) -> None:
    half = TokenRange(Token(0), Token(100))
    staged = await rig.put_all(await rig.opened(tokens=half), FIRST)
    with pytest.raises(Refused, match="is outside the target"):
        await rig.sealer.seal(staged, order_of(FIRST))
    inner = TokenRange(Token(10), Token(20))
    sealed = await rig.sealer.seal(staged, order_of(FIRST, layers=(inner, half)))
    assert [layer.range for layer in sealed.layers] == [inner, half]


async def test_a_link_needs_no_checksum_and_is_not_read(rig: StagingRig, /) -> None:
    staged = await rig.opened()
    rig.own.make_folder("/data/checkpoint")
    source = rig.own.create("/data/checkpoint/a.sst")
    source.write(0, b"linked")
    source.close()
    rig.own.make_folder(f"{PLACE}/{FIRST}/0")
    rig.own.link("/data/checkpoint/a.sst", f"{PLACE}/{FIRST}/0/a.sst")
    inode = rig.own.inode("/data/checkpoint/a.sst")
    brought = (StagedFile(name="0/a.sst", size_bytes=6, inode=inode),)
    sealed = await rig.sealer.seal(staged, SealSpec(attempt=FIRST, files=brought, layers=RANGES[:1], schema=SMALL))
    assert staged.copied_files == 0
    assert rig.own.inode(f"{PLACE}/{sealed.layers[0].folder}/a.sst") == inode
    assert not rig.own.exists(f"{PLACE}/{FIRST}")


async def test_a_task_that_still_writes_cannot_reach_what_was_sealed(rig: StagingRig, /) -> None:
    """INV-XFER-4: by the file that it has open, and by the name it knows."""
    staged = await rig.put_all(await rig.opened(), FIRST)
    zombie = rig.own.open(f"{PLACE}/{FIRST}/0/000001.sst")
    sealed = await rig.sealer.seal(staged, order_of(FIRST))
    assert staged.copied_files == 1
    zombie.write(0, b"from the grave")
    assert not rig.own.exists(f"{PLACE}/{FIRST}")
    assert await sealed_bytes(rig) == FILES
    assert sealed.layers[0].folder.startswith(f"sealed-{FIRST.hex}-")


async def test_what_was_written_between_the_report_and_the_seal_is_noticed(rig: StagingRig, /) -> None:
    staged = await rig.put_all(await rig.opened(), FIRST)
    zombie = rig.own.open(f"{PLACE}/{FIRST}/0/000001.sst")
    zombie.write(0, b"!")
    with pytest.raises(Corruption, match="not what its source has"):
        await rig.sealer.seal(staged, order_of(FIRST))


async def test_a_place_is_opened_again_for_the_same_only(rig: StagingRig, /) -> None:
    first = await rig.opened()
    assert await rig.opened() is first
    with pytest.raises(Stale, match="another incarnation"):
        await rig.staging.open(SESSION, TRANSFER, target(incarnation=6))
    with pytest.raises(Refused, match="something else"):
        await rig.staging.open(SESSION, TRANSFER, target(StagingKind.ROWS))
    with pytest.raises(Refused, match="belongs to session"):
        await rig.staging.open(SessionId(uuid.UUID(int=9)), TRANSFER, target())


async def test_what_is_released_or_closed_leaves_nothing(rig: StagingRig, /) -> None:
    """INV-XFER-5."""
    staged = await rig.put_all(await rig.opened(), FIRST)
    other = await rig.staging.open(SESSION, TransferId(uuid.UUID(int=3)), target())
    await rig.staging.release(SESSION, [TRANSFER, TransferId(uuid.UUID(int=99))])
    assert rig.own.list_folder(f"{FOLDER}/{SESSION}") == [str(other.transfer)]
    with pytest.raises(SealRefused, match="released"):
        await rig.sealer.seal(staged, order_of(FIRST))
    with pytest.raises(Refused, match="released"):
        await rig.opened()
    await rig.staging.drop_session(SESSION)
    await rig.staging.remove_leftovers()
    assert rig.own.list_folder(FOLDER) == []
    assert rig.staging.sessions == ()
    with pytest.raises(Refused, match="no transfer"):
        rig.staging.find(SESSION, TRANSFER)


async def test_two_who_release_the_same_in_other_orders_do_not_wait_for_each_other(rig: StagingRig, /) -> None:
    first = await rig.opened()
    second = await rig.staging.open(SESSION, TransferId(uuid.UUID(int=3)), target())
    names = [first.transfer, second.transfer]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        async with first.changing, second.changing:  # until both have begun to wait
            asked = [tasks.create_task(rig.staging.release(SESSION, order)) for order in (names, names[::-1])]
            await asyncio.sleep(0)
    assert [sorted(task.result()) for task in asked] == [sorted(names)] * 2


def test_a_place_that_was_not_finished_is_removed_at_the_start() -> None:
    async def half(disk: ProcessDisk) -> None:
        disk.make_folder(f"{FOLDER}/{SESSION}/{uuid.UUID(int=4)}/{FIRST}")
        disk.create(f"{FOLDER}/key").close()

    async def later(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        assert rig.below(FOLDER) == ["key"]
        assert rig.staging.sessions == (SESSION,), "its folder is still there, to be swept"

    here = machine()
    here.run(half)
    here.run(later)


def test_a_full_disk_takes_the_attempt_along_and_leaves_the_others() -> None:
    here = machine()

    async def main(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = await rig.put_all(await rig.opened(), FIRST)
        here.disk.fill(100)
        with pytest.raises(DiskFull):
            await rig.put(staged, SECOND, "0/000001.sst", b"x" * 3000)
        assert staged.state.attempts == {FIRST}
        assert not disk.exists(f"{PLACE}/{SECOND}")
        here.disk.heal()
        await rig.sealer.seal(staged, order_of(FIRST))

    here.run(main)


def test_a_full_disk_at_the_seal_seals_nothing_and_leaves_no_copy() -> None:
    here = machine()

    async def main(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = await rig.put_all(await rig.opened(), FIRST)
        before = sum(map(len, map(rig.read, (f"{PLACE}/{one}" for one in rig.below(PLACE)))))
        zombie = rig.own.open(f"{PLACE}/{FIRST}/0/000001.sst")
        here.disk.fill(1000)
        with pytest.raises(DiskFull):
            await rig.sealer.seal(staged, order_of(FIRST))
        assert staged.state.phase is TransferPhase.OPEN
        assert await read_sealed(rig.own, PLACE) is None
        assert sum(map(len, map(rig.read, (f"{PLACE}/{one}" for one in rig.below(PLACE))))) == before
        here.disk.heal()
        await rig.sealer.seal(staged, order_of(FIRST))
        zombie.close()
        assert await sealed_bytes(rig) == FILES

    here.run(main)


async def test_nothing_to_bring_is_sealed_too(rig: StagingRig, /) -> None:
    staged = await rig.opened()
    sealed = await rig.sealer.seal(staged, SealSpec(attempt=FIRST, files=(), layers=(), schema=SMALL))
    assert (sealed.layers, sealed.rows_file, sealed.size_bytes) == ((), "", 0)
