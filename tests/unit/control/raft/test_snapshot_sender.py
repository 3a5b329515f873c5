"""Sending a snapshot: a window of chunks, a slow peer, one that stalls, one that has it already."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.control.raft.snapshot_sender import (
    CHUNK_BYTES,
    CHUNKS_IN_FLIGHT_MAX,
    STALL_MS_MAX,
    SnapshotSender,
    SnapshotTransfer,
)
from ebla.model.errors import Refused, Unavailable
from ebla.model.identity import HistoryId
from ebla.raft.messages import InstallSnapshot, PeerId, SnapshotMeta
from ebla.sim.world import World
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

SENDING = SnapshotTransfer(
    HistoryId(uuid.UUID(int=7)),
    InstallSnapshot(sender=PeerId(2), to=PeerId(1), term=2, snapshot=SnapshotMeta(40, 2)),
    3,
)
CONTENT = [b"head", b"a" * (CHUNK_BYTES * 5 + 17), b"b" * CHUNK_BYTES * 90, b"end"]


class Far:
    """A peer that gives scripted answers after a delay."""

    def __init__(self, answer: Callable[[SnapshotChunk], SnapshotChunkAnswer], delay_s: float = 0.01) -> None:
        self.chunks: list[SnapshotChunk] = []
        self.under_way = 0
        self.most_under_way = 0
        self.read = 0
        self._answer = answer
        self._delay_s = delay_s

    async def send(self, chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        self.chunks.append(chunk)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(self._delay_s)
        self.under_way -= 1
        return self._answer(chunk)

    async def content(self) -> AsyncIterator[bytes]:
        for piece in CONTENT:
            self.read += 1
            yield piece

    async def be_sent(self) -> None:
        await SnapshotSender(SENDING, self.send).run(self.content())


def simulate(work: Callable[[], Awaitable[None]]) -> None:
    async def scenario(_world: World) -> None:
        await work()

    World(seed=1, seconds=600.0).run(scenario)


pytestmark = runs_in(simulate)


async def test_all_of_it_goes_in_small_chunks_several_at_once_the_first_alone() -> None:
    far = Far(lambda chunk: SnapshotChunkAnswer(stored=chunk.last))
    answered: list[int] = []

    async def watch(chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        assert chunk.number == 0 or answered[:1] == [0], "the first one begins it"
        answer = await far.send(chunk)
        answered.append(chunk.number)
        return answer

    await SnapshotSender(SENDING, watch).run(far.content())
    chunks = sorted(far.chunks, key=lambda chunk: chunk.number)
    assert b"".join(chunk.data for chunk in chunks) == b"".join(CONTENT)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(len(chunk.data) <= CHUNK_BYTES and chunk.sending == 3 for chunk in chunks)
    assert far.most_under_way == CHUNKS_IN_FLIGHT_MAX


async def test_a_peer_whose_disk_is_slow_is_asked_again_for_as_long_as_it_makes_progress() -> None:
    asked = 0

    def answer(chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        nonlocal asked
        asked += chunk.last
        return SnapshotChunkAnswer(taken=not chunk.last, stored=asked == 50, progress=asked)

    far = Far(answer, delay_s=STALL_MS_MAX / 1000 / 10)
    await far.be_sent()
    assert asked == 50


async def test_a_peer_whose_disk_stands_still_is_given_up() -> None:
    far = Far(lambda chunk: SnapshotChunkAnswer(taken=chunk.number < 5, progress=5), delay_s=2.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unavailable):
        await far.be_sent()
    assert STALL_MS_MAX / 1000 <= loop.time() - began < STALL_MS_MAX / 1000 + 10


@pytest.mark.parametrize("at", [0, 7])
async def test_a_peer_that_has_it_already_is_sent_no_more(at: int) -> None:
    far = Far(lambda chunk: SnapshotChunkAnswer(stored=chunk.number == at))
    await far.be_sent()
    assert len(far.chunks) <= at + 2 * CHUNKS_IN_FLIGHT_MAX < 95


async def test_a_refusal_ends_it() -> None:
    def answer(chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        if chunk.number == 9:
            raise Refused("a later one is on its way")
        return SnapshotChunkAnswer()

    with pytest.raises(Refused):
        await Far(answer).be_sent()


async def test_a_failure_of_the_own_disk_ends_it() -> None:
    async def gone() -> AsyncIterator[bytes]:
        yield b"head"
        yield b"more"
        raise FileNotFoundError("swept")

    far = Far(lambda _chunk: SnapshotChunkAnswer())
    with pytest.raises(FileNotFoundError):
        await SnapshotSender(SENDING, far.send).run(gone())
