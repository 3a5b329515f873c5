"""What a Raft peer's shell promises, one promise at a time. Whole groups under faults: `tests/sim/test_raft.py`."""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence

import pytest
from tests.async_tests import runs_in
from tests.unit.control.raft.driver_rig import ALONE, CLIENT, LEADER, THREE, Peer, add_one, running, simulate

from ebla.group0.start_record import MustNotRun
from ebla.model.errors import Unavailable, leaf_errors
from ebla.model.identity import HistoryId
from ebla.raft.driver_policy import APPENDS_PER_SEND_MAX
from ebla.raft.effects import LogWrite
from ebla.raft.events import PeerUnreachable
from ebla.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    PeerId,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from ebla.sim.clusters.raft_state_machine import (
    LastResult,
    RegisterContent,
    chunks_of,
)
from ebla.sim.world import World
from ebla.wire.group0_messages import SnapshotChunk

HISTORY = HistoryId(uuid.UUID(int=7))


pytestmark = runs_in(simulate)


def append(index: int, *, count: int = 1, commit: int = 0, prev_term: int = 1) -> Append:
    entries = tuple(Entry(index=index + offset, term=2) for offset in range(count))
    return Append(
        sender=LEADER, to=PeerId(1), term=2, prev_index=index - 1, prev_term=prev_term, commit=commit, entries=entries
    )


# ---- answers and the disk


async def test_a_vote_leaves_after_its_sync(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        peer.disk.behaviour.sync_ms = 400.0
        await peer.hear(VoteRequest(sender=LEADER, to=PeerId(1), term=2, last_index=5, last_term=1))
        await asyncio.sleep(0.15)
        assert peer.wire.sent(VoteResponse) == []
        await asyncio.sleep(1.0)
        assert peer.wire.sent(VoteResponse) == [VoteResponse(sender=PeerId(1), to=LEADER, term=2, granted=True)]

    await running(peer, THREE, work)


async def test_an_acknowledgement_leaves_after_its_sync(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        peer.disk.behaviour.sync_ms = 400.0
        await peer.hear(append(2))
        await asyncio.sleep(0.15)
        assert peer.wire.sent(AppendResponse) == []
        await asyncio.sleep(1.0)
        assert AppendResponse(sender=PeerId(1), to=LEADER, term=2, index=2) in peer.wire.sent(AppendResponse)

    await running(peer, THREE, work)


async def test_a_message_that_contradicts_the_log_ends_the_peer(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await peer.hear(Heartbeat(sender=LEADER, to=PeerId(1), term=5, commit=9))
        await asyncio.sleep(1.0)

    with pytest.raises(ExceptionGroup) as ended:
        await running(peer, THREE, work)
    (error,) = leaf_errors(ended.value)
    assert isinstance(error, MustNotRun)
    assert "up to 9, and its log ends at 1" in error.message
    assert "ebla group0 remove" in error.advice
    assert not peer.wire.sent(HeartbeatResponse)
    await peer.server.close()


async def test_what_gathers_during_a_sync_shares_the_next_one(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        batches: list[int] = []
        persist = peer.server.log.persist

        async def count(writes: Sequence[LogWrite]) -> None:
            batches.append(sum(len(write.entries) for write in writes))
            await persist(writes)

        peer.server.log.persist = count  # type: ignore[method-assign]  # one log, from outside
        peer.disk.behaviour.sync_ms = 200.0
        for index in range(2, 12):
            await peer.hear(append(index, prev_term=1 if index == 2 else 2))
            await asyncio.sleep(0.001)
        await asyncio.sleep(2.0)
        assert peer.server.core.last_index == 11
        assert [count for count in batches if count] == [1, 9]

    await running(peer, THREE, work)


async def test_a_full_disk_is_waited_out(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await peer.lead()
        await asyncio.sleep(0.1)
        peer.disk.fill()
        # The first goes alone and finds room in the segment; for the others there is none.
        for serial in range(1, 200):
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
        await asyncio.sleep(1.0)
        assert "raft.disk_full" in peer.events
        assert peer.machine.content.values == {"counter": 1}
        peer.disk.heal()
        await asyncio.sleep(1.0)
        assert peer.machine.content.values == {"counter": 199}

    await running(peer, ALONE, work)


async def test_a_restart_finds_everything_answered(world: World, /) -> None:
    peer = Peer(world, snapshot_entries_max=7)

    async def work() -> None:
        await peer.lead()
        for serial in range(1, 31):
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
            async with asyncio.timeout(5):
                assert await peer.machine.wait_answer(CLIENT, serial) == serial

    async def again() -> None:
        await asyncio.sleep(0.1)
        assert peer.machine.content.values == {"counter": 30}

    await running(peer, ALONE, work)
    before = peer.machine.content
    peer.restart()
    await running(peer, ALONE, again)
    assert peer.machine.content.index >= before.index
    assert peer.server.core.state.log.snapshot.index > 1, "the log was cut meanwhile"


# ---- proposals and messages


async def test_no_sending_holds_more_appends_than_a_frame_can(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await peer.hear(*(append(5, prev_term=9) for _ in range(APPENDS_PER_SEND_MAX * 2 + 1)))
        await asyncio.sleep(0.1)
        assert [len(messages) for _, messages in peer.wire.sendings] == [8, 8, 1]

    await running(peer, THREE, work)


async def test_an_append_that_was_dropped_is_told_to_the_core(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        heard: list[object] = []
        step = peer.server.core.step

        def listen(event: object, now_ms: int) -> object:
            heard.append(event)
            return step(event, now_ms)  # type: ignore[arg-type]  # any event will do

        peer.server.core.step = listen  # type: ignore[method-assign,assignment]  # one core, from outside
        peer.wire.is_up = False
        peer.server._send([append(2), Heartbeat(sender=PeerId(1), to=PeerId(3), term=2)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [event for event in heard if isinstance(event, PeerUnreachable)] == [PeerUnreachable(PeerId(1))]

    await running(peer, THREE, work)


async def test_reads_of_two_lives_never_share_a_name(world: World, /) -> None:
    """An answer to the first life's read must not pass for one to the second's, nor peer 1's for peer 3's."""
    peer = Peer(world)
    names: list[bytes] = []

    async def work() -> None:
        await peer.hear(Heartbeat(sender=LEADER, to=PeerId(1), term=2))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable):
            await peer.server.read_index()
        names.extend(one.read_context for one in peer.wire.sent(ReadIndexRequest) if isinstance(one, ReadIndexRequest))

    await running(peer, THREE, work)
    peer.restart()
    await running(peer, THREE, work)
    assert len(names) == 2
    assert len(set(names)) == 2
    assert all(name.startswith((1).to_bytes(8)) for name in names)


async def test_reads_of_one_turn_share_a_round_and_an_answer_serves_all(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await peer.hear(Heartbeat(sender=LEADER, to=PeerId(1), term=2))
        await asyncio.sleep(0.05)
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(peer.server.read_index()) for _ in range(5)]
            await asyncio.sleep(0.05)
            (asked,) = peer.wire.sent(ReadIndexRequest)
            assert isinstance(asked, ReadIndexRequest)
            await peer.hear(
                ReadIndexResponse(sender=LEADER, to=PeerId(1), term=2, index=7, read_context=asked.read_context)
            )
        assert [reader.result() for reader in readers] == [7] * 5

    await running(peer, THREE, work)


async def test_a_read_ends_when_the_leader_changes(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await peer.hear(Heartbeat(sender=LEADER, to=PeerId(1), term=2))
        await asyncio.sleep(0.05)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(_outcome(peer.server.read_index()))
            await asyncio.sleep(0.02)
            await peer.hear(Heartbeat(sender=PeerId(3), to=PeerId(1), term=3))
        assert "the leader changed" in reader.result()

    await running(peer, THREE, work)


async def _outcome(work: Awaitable[int]) -> str:
    try:
        return str(await work)
    except Unavailable as error:
        return error.message


# ---- snapshots


def snapshot(index: int, sender: PeerId = LEADER, term: int = 2) -> tuple[InstallSnapshot, list[bytes]]:
    message = InstallSnapshot(sender=sender, to=PeerId(1), term=term, snapshot=SnapshotMeta(index, term, THREE))
    given = {f"client {number}": LastResult(number, number) for number in range(20)}
    return message, list(
        chunks_of(
            RegisterContent(index=index, digest=b"past", membership=THREE, values={"counter": index}, given=given)
        )
    )


async def deliver(peer: Peer, message: InstallSnapshot, chunks: list[bytes], sending: int = 1) -> None:
    """As a sender does that waits for each answer. Returns once it is stored."""
    for number, data in enumerate(chunks):
        chunk = SnapshotChunk(
            history=HISTORY, message=message, number=number, data=data, last=number == len(chunks) - 1, sending=sending
        )
        answer = await peer.server.receive_chunk(chunk)
        while not answer.stored and (chunk.last or not answer.taken):
            answer = await peer.server.receive_chunk(chunk)
        if answer.stored:
            return


async def test_a_snapshot_is_installed_and_acknowledged_once_it_is_durable(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await deliver(peer, *snapshot(40))
        assert peer.machine.content.index == 1, "the core has not heard of it yet"
        await asyncio.sleep(0.2)
        assert peer.machine.content.values == {"counter": 40}
        assert AppendResponse(sender=PeerId(1), to=LEADER, term=2, index=40) in peer.wire.sent(AppendResponse)

    async def again() -> None:
        assert peer.machine.content.values == {"counter": 40}
        assert peer.server.core.last_index == 40

    await running(peer, THREE, work)
    peer.restart()
    await running(peer, THREE, again)


async def test_a_snapshot_of_our_own_may_be_overtaken_by_a_leaders(world: World, /) -> None:
    """While ours is being stored, the core takes the leader's and its log begins behind it; then ours is finished."""
    peer = Peer(world, snapshot_entries_max=3)

    async def work() -> None:
        await peer.hear(append(2, count=3, commit=4))
        async with asyncio.timeout(5):
            await peer.machine.wait_applied(4)
        peer.disk.behaviour.sync_ms = 100.0
        message, chunks = snapshot(40)
        await deliver(peer, message, chunks)
        await asyncio.sleep(2.0)
        assert peer.server.core.state.log.snapshot.index == 40
        assert peer.machine.content.values == {"counter": 40}
        await peer.hear(append(41, commit=40, prev_term=2))
        await asyncio.sleep(1.0)
        assert peer.server.core.last_index == 41

    await running(peer, THREE, work)


async def test_a_leaders_snapshot_replaces_a_longer_log_for_good(world: World, /) -> None:
    """Entries of a lost branch that came back with a restart would make the log look older than the snapshot in it: the
    peer would vote for a candidate that lacks what the snapshot holds."""
    peer = Peer(world)

    async def work() -> None:
        await peer.hear(append(2, count=50))
        await asyncio.sleep(0.1)
        assert peer.server.core.last_index == 51
        await deliver(peer, *snapshot(40, term=3))
        await asyncio.sleep(0.2)

    async def again() -> None:
        assert peer.server.core.last_index == 40

    await running(peer, THREE, work)
    peer.restart()
    await running(peer, THREE, again)


async def test_a_snapshot_the_core_does_not_want_is_forgotten(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        for sending, index in enumerate((40, 30, 35, 50)):
            await deliver(peer, *snapshot(index), sending)
            await asyncio.sleep(0.2)
        assert peer.machine.content.values == {"counter": 50}
        assert peer.server._snapshots._stored == {}

    await running(peer, THREE, work)
