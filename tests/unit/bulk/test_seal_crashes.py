"""A seal in which the process dies before each of its disk calls in turn: it is there whole, or not at all."""

import asyncio
import dataclasses
import enum
import uuid
from collections.abc import Sequence
from functools import partial

import pytest
from tests.unit.bulk import staging_rig
from tests.unit.bulk.seal_of_runs_rig import THREE, records_of
from tests.unit.bulk.seal_of_runs_rig import order_of as order_of_runs
from tests.unit.bulk.staged_rows_rig import ITEMS
from tests.unit.bulk.staging_rig import FILES, FIRST, PLACE, SESSION, TRANSFER, StagingRig, order_of
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.failing_disk import Died, FailingDisk, Failure

from ebla.bulk.staging_state import TransferPhase
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import AttemptId
from ebla.model.transfers import StagingKind
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.row_file import items_of, read_row_file
from ebla.storage.codec.staging_format import SealedFile, read_sealed, sealed_path
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine

CALLS_MAX = 200


class What(enum.Enum):
    """Is sealed."""

    FILES = "files"
    ROWS = "rows"
    RUNS = "runs"

    @property
    def kind(self) -> StagingKind:
        return StagingKind.FILES if self is What.FILES else StagingKind.ROWS

    @property
    def runs(self) -> dict[AttemptId, Sequence[Item]]:
        return dict(THREE) if self is What.RUNS else {FIRST: ITEMS}


OTHER = AttemptId(uuid.UUID(int=20))
ORDERS = {
    What.FILES: order_of(FIRST),
    What.ROWS: order_of_runs(What.ROWS.runs),
    What.RUNS: order_of_runs(What.RUNS.runs),
}
OTHERS = {
    What.FILES: dataclasses.replace(ORDERS[What.FILES], attempt=OTHER),
    What.ROWS: order_of_runs({OTHER: ITEMS}),
    What.RUNS: order_of_runs({OTHER: ITEMS}),
}
CASES = [(What.FILES, 1 << 20), (What.ROWS, 1 << 20), (What.ROWS, 0), (What.RUNS, 1 << 20), (What.RUNS, 0)]


async def stage(disk: ProcessDisk, what: What) -> None:
    """Durably, so that what is lost afterwards was lost by the seal."""
    rig = await StagingRig(disk).begin()
    staged = await rig.opened(what.kind)
    attempts = (FIRST, OTHER) if what is What.FILES else (*what.runs, OTHER)
    for attempt in attempts:
        rows = {"rows": records_of(what.runs.get(attempt, ITEMS))}
        await rig.put_all(staged, attempt, FILES if what is What.FILES else rows)
    folders = dict.fromkeys([PLACE, *(f"{PLACE}/{attempt}" for attempt in attempts)])
    for path in rig.below(PLACE):
        file = disk.open(f"{PLACE}/{path}")
        await file.sync()
        file.close()
        folders[f"{PLACE}/{path}".rpartition("/")[0]] = None
    for folder in folders:
        await disk.sync_folder(folder)


async def failing_seal(disk: ProcessDisk, what: What, call: int, failure: Failure) -> bool:
    """Whether the call came."""
    failing = FailingDisk(disk)
    rig = await StagingRig(disk, failing).begin()
    failing.arm(failure, call)
    staged = rig.staging.find(SESSION, TRANSFER)
    try:
        await rig.sealer.seal(staged, ORDERS[what])
    except Died:
        return True
    except DiskFull:
        assert staged.state.phase is TransferPhase.OPEN
        assert await read_sealed(disk, PLACE) is None
        assert not [name for name in rig.below(PLACE) if name.endswith((".new", ".copy"))]
        return True
    return False


async def check_whole(disk: ProcessDisk, sealed: SealedFile, what: What) -> None:
    """INV-XFER-2."""
    if what is What.FILES:
        found = {
            f"{number}/{name}": StagingRig(disk).read(f"{PLACE}/{layer.folder}/{name}")
            for number, layer in enumerate(sealed.layers)
            for name in disk.list_folder(f"{PLACE}/{layer.folder}")
        }
        assert found == FILES
    elif sealed.rows_file:
        batches = [batch async for batch in read_row_file(disk, f"{PLACE}/{sealed.rows_file}")]
        assert [item for batch in batches for item in items_of(batch)] == ITEMS
    else:
        layer = await MemoryEngine(disk).open(f"{PLACE}/{sealed.layers[0].folder}", writable=False)
        assert list(layer.scan()) == ITEMS
        await layer.discard()


async def look_and_seal_again(disk: ProcessDisk, what: What, *, power_lost: bool = False) -> bool:
    """Whether it was sealed before. The same seal asked again ends well in either case; unless the power took the old
    name of a file and not the new one along, and then another attempt counts."""
    found = await read_sealed(disk, PLACE)
    if found is not None:
        assert found.attempts == ORDERS[what].attempts
        await check_whole(disk, found, what)
    rig = await StagingRig(disk).begin()
    staged = rig.staging.find(SESSION, TRANSFER)
    assert (staged.state.phase is TransferPhase.SEALED) == (found is not None)
    try:
        sealed = await rig.sealer.seal(staged, ORDERS[what])
    except Refused:
        assert power_lost
        assert found is None
        assert staged.state.phase is TransferPhase.OPEN
        sealed = await rig.sealer.seal(staged, OTHERS[what])
    await check_whole(disk, sealed, what)
    return found is not None


@pytest.mark.parametrize(("what", "merged_max"), CASES)
@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "power"])
def test_a_seal_that_is_cut_off_is_there_whole_or_not_at_all(
    what: What, merged_max: int, power_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    ends: list[bool] = []
    for call in range(CALLS_MAX):
        machine = Machine(call)
        machine.run(lambda disk: stage(disk, what))
        if not machine.run(partial(failing_seal, what=what, call=call, failure=Failure.DEATH)):
            break
        if power_lost:
            machine.lose_power()
        ends.append(machine.run(lambda disk: look_and_seal_again(disk, what, power_lost=power_lost)))
    else:
        pytest.fail("it never came to its end")
    assert {True, False} == set(ends)


@pytest.mark.parametrize(("what", "merged_max"), CASES)
def test_a_seal_without_space_seals_nothing_and_can_be_asked_again(
    what: What, merged_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_rig, "ROWS_MERGED_BYTES_MAX", merged_max)
    for call in range(CALLS_MAX):
        machine = Machine(call)
        machine.run(lambda disk: stage(disk, what))
        if not machine.run(partial(failing_seal, what=what, call=call, failure=Failure.NO_SPACE)):
            assert call > 3
            break
        assert machine.run(lambda disk: look_and_seal_again(disk, what)) is False
    else:
        pytest.fail("it never came to its end")


def test_a_caller_that_gives_up_leaves_it_sealed_or_open() -> None:
    """At any moment: the state in memory is what is on disk, so that no second attempt is named beside the first."""
    phases = []
    for step in range(40):
        machine = Machine(step)

        async def story(disk: ProcessDisk, seconds: float = 0.0006 * step) -> TransferPhase:
            rig = await StagingRig(disk).begin()
            staged = rig.staging.find(SESSION, TRANSFER)
            try:
                async with asyncio.timeout(seconds):
                    await rig.sealer.seal(staged, ORDERS[What.FILES])
            except TimeoutError:
                pass
            phase = staged.state.phase
            assert (await read_sealed(disk, PLACE) is not None) == (phase is TransferPhase.SEALED)
            await check_whole(disk, await rig.sealer.seal(staged, ORDERS[What.FILES]), What.FILES)
            return phase

        machine.run(lambda disk: stage(disk, What.FILES))
        phases.append(machine.run(story))
    assert set(phases) == {TransferPhase.OPEN, TransferPhase.SEALED}


def test_a_seal_whose_last_sync_was_not_waited_for_is_synced_before_it_is_answered() -> None:
    """INV-XFER-2, in a process that found the attempts on disk."""
    machine = Machine(1)

    async def story(disk: ProcessDisk) -> None:
        rig = await StagingRig(disk).begin()
        staged = rig.staging.find(SESSION, TRANSFER)
        synced: list[str] = []
        sync = disk.sync_folder

        async def given_up(path: str) -> None:
            if disk.exists(sealed_path(PLACE)):
                synced.append(path)
                if len(synced) == 1:
                    raise asyncio.CancelledError
            await sync(path)

        rig.own.sync_folder = given_up  # type: ignore[method-assign]  # the moment at which it is given up
        with pytest.raises(asyncio.CancelledError):
            await rig.sealer.seal(staged, ORDERS[What.FILES])
        assert staged.state.phase is TransferPhase.SEALED
        await rig.sealer.seal(staged, ORDERS[What.FILES])
        assert synced == [PLACE, PLACE]

    machine.run(lambda disk: stage(disk, What.FILES))
    machine.run(story)
