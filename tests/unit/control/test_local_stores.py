"""INV-START-3: control creates, adopts and checks the stores of the shards: killed before every file operation, and
with parts of a store gone."""

import uuid
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.failing_disk import Died, FailingDisk, Failure
from tests.unit.storage.small_table import SMALL

from ebla.control.group0.join_state import JoinStateFile, StoreMark
from ebla.control.local_stores import LocalStores
from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.errors import Refused
from ebla.model.identity import HostId, ShardNumber, StoreId
from ebla.model.token import WHOLE_RING
from ebla.observe.event_reporter import discard_event
from ebla.ports.disk import Disk
from ebla.ports.environment import Environment
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ShardManifest,
    StackEntry,
    read_manifest,
    save_manifest,
)
from ebla.storage.store_identity import log_folder

DATA = "/data/n"
HOST = HostId(uuid.UUID(int=1))
SHARDS = 2
STACK = StackEntry(
    incarnation=Incarnation(1),
    table=SMALL.id,
    range=WHOLE_RING,
    live=LayerEntry(id=LayerId(1), range=WHOLE_RING),
)
HELD = ShardManifest(generation=7, tables=(SMALL,), stacks=(STACK,))

Life = Callable[[Disk], Awaitable[None]]


class Folder:
    def __init__(self) -> None:
        self.machine = Machine(1)
        self.past_none = True

    def run(self, life: Life) -> None:
        async def main(disk: Disk) -> None:
            await life(disk)

        self.machine.run(main)

    def stores(self, disk: Disk) -> LocalStores:
        rng = self.machine.rng
        environment = Environment(clock=None, rng=rng, disk=disk, transport=None)  # type: ignore[arg-type]  # unused
        return LocalStores(environment, DATA, HOST, JoinStateFile(disk, f"{DATA}/group0-mark"), discard_event)

    async def start(self, disk: Disk) -> None:
        async def is_past_none() -> bool:
            return self.past_none

        await self.stores(disk).prepare(SHARDS, is_past_none)

    async def begin(self, disk: Disk, data_format: str | None = None, *shards: int) -> None:
        """With stores of the previous release for these shards."""
        await make_durable_folder(disk, "/data")
        await make_durable_folder(disk, DATA)
        if data_format is not None:
            file = disk.create(f"{DATA}/FORMAT")
            file.append(data_format.encode())
            await file.sync()
            file.close()
            await disk.sync_folder(DATA)
        for number in shards:
            folder = f"{DATA}/shard-{number}"
            await make_durable_folder(disk, folder)
            await (await SegmentedLog.open(disk, self.machine.rng, log_folder(folder), 4096)).close()
            await save_manifest(disk, folder, HELD)


async def marks(disk: Disk) -> tuple[StoreMark, ...]:
    return (await JoinStateFile(disk, f"{DATA}/group0-mark").load()).stores


async def ids(disk: Disk) -> list[StoreId | None]:
    found = [await read_manifest(disk, f"{DATA}/shard-{number}") for number in range(SHARDS)]
    return [None if each is None else each.store for each in found]


@pytest.mark.parametrize("previous", [False, True], ids=["created", "adopted"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_after_a_crash_at_any_file_operation_the_next_start_goes_on_with_the_ids_it_drew(
    previous: bool, power: bool
) -> None:
    tried = 0
    while _dies(previous, power, tried):
        tried += 1
    assert tried > 20


def _dies(previous: bool, power: bool, before_call: int) -> bool:
    """False: there are fewer calls."""
    folder, died = Folder(), False
    drawn: list[StoreMark] = []

    async def first(disk: Disk) -> None:
        nonlocal died
        if previous:
            await folder.begin(disk, "1\n", 0, 1)
        else:
            await folder.begin(disk)
        failing = FailingDisk(disk)
        failing.arm(Failure.DEATH, before_call)
        try:
            await folder.start(failing)
        except Died:
            died = True

    async def second(disk: Disk) -> None:
        drawn.extend(await marks(disk))
        await folder.start(disk)
        known = await marks(disk)
        assert all(each.is_created for each in known)
        assert [each.store for each in known[: len(drawn)]] == [each.store for each in drawn]
        assert await ids(disk) == [each.store for each in known]
        if previous:
            held = await read_manifest(disk, f"{DATA}/shard-1")
            assert held is not None
            assert msgspec.structs.replace(held, store=None, log_id=0, generation=7) == HELD
            file = disk.open(f"{DATA}/FORMAT")
            assert file.read(0, 9) == b"2\n"
            file.close()

    folder.run(first)
    if power:
        folder.machine.lose_power()
    folder.run(second)
    return died


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("manifest", "is missing in /data/n/shard-1"),
        ("log/manifest", "the commit log of store "),
    ],
)
def test_a_lost_store_or_log_refuses_the_start_and_the_restart_of_its_shard(lost: str, words: str) -> None:
    folder = Folder()

    async def life(disk: Disk) -> None:
        await folder.begin(disk)
        await folder.start(disk)
        stores = folder.stores(disk)
        disk.unlink(f"{DATA}/shard-1/{lost}")
        before = await marks(disk)
        for _ in range(2):
            with pytest.raises(Refused, match=words) as refused:
                await folder.start(disk)
        assert "shard 1: " in refused.value.message
        assert f"remove host {HOST} on another node" in (refused.value.advice or "")
        assert await marks(disk) == before
        await stores._mark.load()
        with pytest.raises(Refused, match=words):
            await stores.check(ShardNumber(1))

    folder.run(life)


def test_a_foreign_store_or_log_refuses_the_start() -> None:
    folder = Folder()

    async def life(disk: Disk) -> None:
        await folder.begin(disk)
        await folder.start(disk)
        known = await read_manifest(disk, f"{DATA}/shard-0")
        assert known is not None
        other = msgspec.structs.replace(known, log_id=known.log_id ^ 1)
        await save_manifest(disk, f"{DATA}/shard-0", other)
        with pytest.raises(Refused, match=r"holds commit log .* instead of"):
            await folder.start(disk)
        await save_manifest(disk, f"{DATA}/shard-0", msgspec.structs.replace(known, store=StoreId(uuid.UUID(int=9))))
        with pytest.raises(Refused, match="holds store 00000000-0000-0000-0000-000000000009 instead of"):
            await folder.start(disk)

    folder.run(life)


@pytest.mark.parametrize("part", ["", "/log", "/layers"])
def test_a_store_a_log_or_layers_put_back_from_an_earlier_start_refuse_the_start(part: str) -> None:
    folder = Folder()
    disk_of_machine, put_back = folder.machine.disk, f"{DATA}/shard-1{part}"

    async def first(disk: Disk) -> None:
        await folder.begin(disk)
        await folder.start(disk)

    async def next_start(disk: Disk) -> None:
        mark = JoinStateFile(disk, f"{DATA}/group0-mark")
        await mark.save(incarnation=(await mark.load()).incarnation + 1)
        await folder.start(disk)

    async def refused(disk: Disk) -> None:
        before = await marks(disk)
        with pytest.raises(Refused, match=f"{DATA}/shard-1/.* is an older copy: it ends at incarnation 1, .* has 2"):
            await folder.start(disk)
        assert await marks(disk) == before

    folder.run(first)
    older = disk_of_machine.copy_folder(put_back)
    folder.run(next_start)
    newer = disk_of_machine.copy_folder(put_back)
    disk_of_machine.put_folder(put_back, older)
    folder.run(refused)
    disk_of_machine.put_folder(put_back, newer)
    folder.run(next_start)


def test_layers_that_are_gone_do_not_refuse_the_start() -> None:
    """The shard quarantines them."""
    folder = Folder()

    async def life(disk: Disk) -> None:
        await folder.begin(disk)
        await folder.start(disk)
        disk.remove_folder(f"{DATA}/shard-1/layers")
        await folder.start(disk)

    folder.run(life)


def test_a_previous_release_without_one_of_its_stores_is_refused_only_if_it_had_stores() -> None:
    folder = Folder()

    async def life(disk: Disk) -> None:
        await folder.begin(disk, "1\n", 0)
        with pytest.raises(Refused, match="shard 1: its store is missing"):
            await folder.start(disk)
        folder.past_none = False
        await folder.start(disk)
        assert len(await marks(disk)) == SHARDS

    folder.run(life)
