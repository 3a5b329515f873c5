"""What becomes of a snapshot on its way here: in pieces, twice, interrupted, replaced, onto a slow or full disk."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.control.raft.snapshot_receiver import (
    CHUNKS_EARLY_MAX,
    IDLE_MS_MAX,
    UNSYNCED_BYTES_MAX,
    UNWRITTEN_BYTES_MAX,
    WRITE_BYTES,
    SnapshotActions,
    SnapshotReceiver,
)
from ebla.control.raft.storage import RaftStorage
from ebla.journal.checked_file import TEMPORARY_SUFFIX
from ebla.model.errors import Corruption, DiskFull, EblaError, Refused
from ebla.model.identity import HistoryId
from ebla.raft.messages import InstallSnapshot, PeerId, SnapshotMeta
from ebla.sim.world import World
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

FOLDER = "/data/raft"
HISTORY = HistoryId(uuid.UUID(int=7))
LARGE = 1 << 20


class Gathered:
    """A receiver that keeps everything, and dislikes the word bad."""

    def __init__(self) -> None:
        self.data = b""

    def add(self, data: bytes) -> None:
        if data == b"bad":
            raise Corruption("it is bad")
        self.data += data

    def finish(self) -> bytes:
        return self.data


class Rig:
    """One peer's receiver, over a Raft log on a simulated disk."""

    def __init__(self, world: World, tasks: asyncio.TaskGroup, log: RaftStorage) -> None:
        self.environment = world.scenario_environment(f"p {world.loop.next_number()}")
        self.disk = list(world._machines.values())[-1].disk
        self.tasks = tasks
        self.log = log
        self.wanted = True
        self.stored: list[tuple[int, bytes]] = []
        self.not_needed: list[int] = []
        actions = SnapshotActions(
            new_sink=Gathered,
            new_file=self._new_file,
            is_wanted=lambda _message: self.wanted,
            on_stored=self._is_stored,
            on_unneeded=self._is_not_needed,
        )
        self.incoming: SnapshotReceiver[bytes] = SnapshotReceiver(
            self.environment.disk, self.environment.clock, actions
        )

    @classmethod
    async def make(cls, world: World, tasks: asyncio.TaskGroup) -> "Rig":
        rig = cls(world, tasks, None)  # type: ignore[arg-type]  # opened below, on the rig's own disk
        rig.log, _ = await RaftStorage.open(rig.environment.disk, rig.environment.rng, FOLDER)
        return rig

    async def _new_file(self, meta: SnapshotMeta, tag: str):  # type: ignore[no-untyped-def]  # as the log's own
        return await self.log.begin_snapshot(meta, tag)

    async def _is_stored(self, message: InstallSnapshot, content: bytes) -> None:
        self.stored.append((message.snapshot.index, content))

    def _is_not_needed(self, message: InstallSnapshot) -> None:
        self.not_needed.append(message.snapshot.index)

    async def take(self, chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        return await self.incoming.take(chunk, self.tasks)

    def files(self) -> list[str]:
        return [name for name in self.environment.disk.list_folder(FOLDER) if name.startswith("snapshot-")]

    async def content(self, index: int, term: int = 2) -> bytes:
        return b"".join([piece async for piece in self.log.read_snapshot(SnapshotMeta(index, term))])


def chunk(
    number: int, data: bytes, *, last: bool = False, index: int = 40, term: int = 2, sending: int = 1
) -> SnapshotChunk:
    message = InstallSnapshot(sender=PeerId(term), to=PeerId(1), term=term, snapshot=SnapshotMeta(index, term))
    return SnapshotChunk(history=HISTORY, message=message, number=number, data=data, last=last, sending=sending)


def simulate(work: Callable[[Rig], Awaitable[None]]) -> None:
    async def scenario(world: World) -> None:
        async with asyncio.TaskGroup() as tasks:
            rig = await Rig.make(world, tasks)
            await work(rig)
            if rig.incoming._current is not None:
                rig.incoming._stop(rig.incoming._current)

    World(seed=1, seconds=600.0).run(scenario)


pytestmark = runs_in(simulate)


async def refused(work: Awaitable[SnapshotChunkAnswer], kind: type[EblaError] = Refused) -> None:
    with pytest.raises(kind):
        await work


async def test_it_is_stored_as_it_was_sent_whatever_overtakes_or_comes_twice(rig: Rig, /) -> None:
    assert await rig.take(chunk(0, b"a")) == SnapshotChunkAnswer()
    for number in (2, 1, 1, 2, 0):
        assert (await rig.take(chunk(number, b"abc"[number : number + 1]))).taken
    await asyncio.sleep(0.05)
    assert rig.files() == ["snapshot-00000000000000000040-2.from-2.new"]
    answer = await rig.take(chunk(3, b"d", last=True))
    assert answer.stored
    assert rig.stored == [(40, b"abcd")]
    assert rig.files() == ["snapshot-00000000000000000040-2"]
    assert await rig.content(40) == b"abcd"
    assert (await rig.take(chunk(3, b"d", last=True))).stored, "the answer may have been lost"
    assert len(rig.stored) == 1


async def test_the_last_one_may_come_before_others(rig: Rig, /) -> None:
    await rig.take(chunk(0, b"a"))
    async with asyncio.TaskGroup() as tasks:
        last = tasks.create_task(rig.take(chunk(2, b"c", last=True)))
        await asyncio.sleep(0.1)
        assert not last.done()
        await rig.take(chunk(1, b"b"))
    assert last.result().stored
    assert rig.stored == [(40, b"abc")]


async def test_none_may_be_missing_too_early_or_of_another_snapshot(rig: Rig, /) -> None:
    await refused(rig.take(chunk(1, b"b")))
    await rig.take(chunk(0, b"a"))
    await refused(rig.take(chunk(CHUNKS_EARLY_MAX + 1, b"z")))
    await refused(rig.take(chunk(-1, b"z")))
    await refused(rig.take(chunk(1, b"z", index=41)))
    await refused(rig.take(chunk(1, b"z", sending=2)))
    await refused(rig.take(chunk(1, b"z", term=3)))
    assert not (await rig.take(chunk(2, b"c", last=True))).stored, "one is missing"
    assert rig.stored == []
    await rig.take(chunk(1, b"b"))
    assert (await rig.take(chunk(2, b"c", last=True))).stored
    assert await rig.content(40) == b"abc"


@pytest.mark.parametrize(("term", "sending", "index"), [(3, 1, 40), (3, 1, 39), (2, 2, 40)])
async def test_a_later_leaders_or_a_later_try_takes_its_place(rig: Rig, /, term: int, sending: int, index: int) -> None:
    await rig.take(chunk(0, b"a"))
    waits = asyncio.ensure_future(rig.take(chunk(2, b"c", last=True)))
    await asyncio.sleep(0.05)
    await rig.take(chunk(0, b"x", term=term, sending=sending, index=index))
    await refused(waits)
    await asyncio.sleep(0.05)
    assert len(rig.files()) == 1, "nothing is left of the former"
    await refused(rig.take(chunk(1, b"b")))
    await refused(rig.take(chunk(0, b"a")))
    assert (await rig.take(chunk(1, b"y", term=term, sending=sending, index=index, last=True))).stored
    assert rig.stored == [(index, b"xy")]
    assert rig.files() == [f"snapshot-{index:020d}-{term}"]


async def test_one_that_is_being_put_in_place_is_let_finish(rig: Rig, /) -> None:
    rig.disk.behaviour.sync_ms = 300.0
    await rig.take(chunk(0, b"a"))
    waits = asyncio.ensure_future(rig.take(chunk(1, b"b", last=True)))
    await asyncio.sleep(0.05)
    await refused(rig.take(chunk(0, b"x", term=3)))
    assert (await waits).stored
    assert not (await rig.take(chunk(0, b"x", term=3))).stored


async def test_one_whose_sender_is_gone_is_removed(rig: Rig, /) -> None:
    await rig.take(chunk(0, b"a"))
    await asyncio.sleep(IDLE_MS_MAX / 2000)
    rig.incoming.drop_idle()
    await rig.take(chunk(1, b"b"))
    await asyncio.sleep(IDLE_MS_MAX / 1000 - 1)
    rig.incoming.drop_idle()
    await asyncio.sleep(0.1)
    assert len(rig.files()) == 1
    await asyncio.sleep(2)
    rig.incoming.drop_idle()
    await asyncio.sleep(0.1)
    assert rig.files() == []
    await refused(rig.take(chunk(2, b"c", last=True)))


async def test_what_a_crash_left_is_swept_at_the_next_start(rig: Rig, /) -> None:
    await rig.take(chunk(0, b"a" * LARGE))
    await asyncio.sleep(0.1)
    (left,) = rig.files()
    assert left.endswith(TEMPORARY_SUFFIX)
    await RaftStorage.open(rig.environment.disk, rig.environment.rng, FOLDER)
    assert rig.files() == []
    await refused(rig.take(chunk(0, b"x", term=1)))


async def test_a_full_disk_is_told_and_leaves_nothing(rig: Rig, /) -> None:
    await rig.take(chunk(0, b"a"))
    await asyncio.sleep(0.1)
    rig.disk.fill()
    with pytest.raises(DiskFull):
        await rig.take(chunk(1, b"b" * LARGE, last=True))
    await refused(rig.take(chunk(1, b"b" * LARGE, last=True)), DiskFull)
    assert rig.files() == []
    rig.disk.heal()
    await rig.take(chunk(0, b"a", sending=2))
    assert (await rig.take(chunk(1, b"b" * LARGE, last=True, sending=2))).stored


async def test_nonsense_is_refused_and_leaves_nothing(rig: Rig, /) -> None:
    """Not as damage: at the sender it would pass for that of its own disk, and stop it."""
    await rig.take(chunk(0, b"a"))
    await refused(rig.take(chunk(1, b"bad")))
    await asyncio.sleep(0.1)
    assert rig.files() == []


async def test_one_that_was_overtaken_by_entries_is_not_kept(rig: Rig, /) -> None:
    await rig.take(chunk(0, b"a"))
    rig.wanted = False
    assert (await rig.take(chunk(1, b"b", last=True))).stored
    assert (rig.stored, rig.not_needed, rig.files()) == ([], [40], [])


async def test_a_slow_disk_sets_the_pace_and_shows_progress(rig: Rig, /) -> None:
    rig.disk.behaviour.sync_ms = 20_000.0
    number = 0
    while (answer := await rig.take(chunk(number, b"a" * LARGE))).taken:
        number += 1
    held = number * LARGE - UNSYNCED_BYTES_MAX
    assert held <= UNWRITTEN_BYTES_MAX + WRITE_BYTES, "what it holds for the disk is bounded"
    before = answer.progress
    while not (answer := await rig.take(chunk(number, b"a" * LARGE))).taken:
        pass
    assert answer.progress > before
    while not (answer := await rig.take(chunk(number + 1, b"b", last=True))).stored:
        pass
    assert await rig.content(40) == b"a" * LARGE * (number + 1) + b"b"


async def test_it_is_announced_only_once_it_is_durable(rig: Rig, /) -> None:
    rig.disk.behaviour.sync_ms = 1_000.0
    waits = asyncio.ensure_future(rig.take(chunk(0, b"a", last=True)))
    await asyncio.sleep(0.3)
    assert rig.stored == []
    assert rig.files() == ["snapshot-00000000000000000040-2.from-2.new"]
    await waits
    while not rig.stored:
        await rig.take(chunk(0, b"a", last=True))
    rig.disk.lose_power()
    assert await rig.content(40) == b"a"
