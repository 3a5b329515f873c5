"""When a leader sends its entries and its commit index, and to which peers."""

import asyncio

import pytest
from tests.async_tests import runs_in, settled
from tests.unit.control.raft.driver_rig import CLIENT, LEADER, THREE, Peer, add_one, running, simulate

from ebla.raft.driver_policy import APPEND_HOLD_MS, LATE_HOLDS_MAX, ROUNDS_TO_RANK
from ebla.raft.events import Campaign
from ebla.raft.membership import MemberChange, MemberChangeKind, MembershipChange, encode_change
from ebla.raft.messages import (
    Append,
    AppendResponse,
    EntryKind,
    PeerId,
    PreVoteResponse,
    ReadIndexRequest,
    VoteResponse,
)
from ebla.sim.world import World

pytestmark = runs_in(simulate)


async def lead_three(peer: Peer) -> int:
    """Elected by peer 2, which also holds the first entry of the term. Gives the term."""
    await peer.hear(Campaign())
    term = peer.server.core.term + 1
    await peer.hear(PreVoteResponse(sender=LEADER, to=PeerId(1), term=term, granted=True))
    await asyncio.sleep(0.01)
    await peer.hear(VoteResponse(sender=LEADER, to=PeerId(1), term=term, granted=True))
    await asyncio.sleep(0.01)
    assert peer.server.is_leader
    await commit_all(peer)
    await asyncio.sleep(0.05)
    peer.wire.sendings.clear()
    return term


async def commit_all(peer: Peer) -> None:
    core = peer.server.core
    for other in (LEADER, PeerId(3)):
        await peer.hear(AppendResponse(sender=other, to=PeerId(1), term=core.term, index=core.last_index))
    await asyncio.sleep(0)


def appends(peer: Peer) -> list[tuple[PeerId, int, int]]:
    """To whom, with how many entries, telling which commit."""
    return [(one.to, len(one.entries), one.commit) for one in peer.wire.sent(Append) if isinstance(one, Append)]


async def test_a_commit_is_told_by_the_next_append_or_else_after_a_moment(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        for serial in (1, 2):
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
            await asyncio.sleep(0)
            await commit_all(peer)
        assert appends(peer) == [(LEADER, 1, 2), (PeerId(3), 1, 2), (LEADER, 1, 3), (PeerId(3), 1, 3)]
        peer.wire.sendings.clear()
        await asyncio.sleep(0.01)
        assert appends(peer) == [(LEADER, 0, 4), (PeerId(3), 0, 4)]

    await running(peer, THREE, work)


async def test_a_peer_whose_proposal_it_was_is_told_at_once(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        peer.server.propose(add_one(1), EntryKind.COMMAND, PeerId(3))
        await asyncio.sleep(0)
        peer.wire.sendings.clear()
        await commit_all(peer)
        assert appends(peer) == [(PeerId(3), 0, 3)]

    await running(peer, THREE, work)


async def show_who_is_quick(peer: Peer) -> None:
    """Peer 2: so that what is for peer 3 may be held."""
    for _ in range(ROUNDS_TO_RANK):
        peer.server.propose(add_one(peer.server.core.last_index), EntryKind.COMMAND)
        await asyncio.sleep(0)
        await commit_all(peer)
    await asyncio.sleep(0.1)
    peer.wire.sendings.clear()


async def test_who_is_not_needed_for_a_commit_has_its_appends_a_moment_later_as_one(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        await show_who_is_quick(peer)
        before = peer.server.core.commit_index
        for serial in (101, 102, 103):
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
            await asyncio.sleep(0)
            await peer.hear(
                AppendResponse(
                    sender=LEADER, to=PeerId(1), term=peer.server.core.term, index=peer.server.core.last_index
                )
            )
            await peer.machine.wait_answer(CLIENT, serial)
        assert appends(peer) == [(LEADER, 1, before), (LEADER, 1, before + 1), (LEADER, 1, before + 2)]
        peer.wire.sendings.clear()
        await asyncio.sleep(0.1)
        assert (PeerId(3), 3, before + 3) in appends(peer)

    await running(peer, THREE, work)


async def test_a_commit_that_waits_for_whom_it_was_held_from_waits_a_moment_only(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        await show_who_is_quick(peer)
        # A heartbeat takes what is held along, so not every hold lasts to its end.
        for serial in range(101, 105 + LATE_HOLDS_MAX):
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
            await asyncio.sleep(1.5 * APPEND_HOLD_MS / 1000)
            assert any(to == PeerId(3) and count for to, count, _ in appends(peer))
            core = peer.server.core
            await peer.hear(AppendResponse(sender=PeerId(3), to=PeerId(1), term=core.term, index=core.last_index))
            await peer.machine.wait_answer(CLIENT, serial)
            peer.wire.sendings.clear()
        await asyncio.sleep(0.1)
        peer.wire.sendings.clear()
        peer.server.propose(add_one(201), EntryKind.COMMAND)
        await asyncio.sleep(0)
        assert [to for to, _, _ in appends(peer)] == [LEADER, PeerId(3)]

    await running(peer, THREE, work)


async def test_what_is_held_leaves_before_what_follows_it_whoever_is_chosen_by_then(world: World, /) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        await show_who_is_quick(peer)
        first = peer.server.core.last_index + 1
        peer.server.propose(add_one(101), EntryKind.COMMAND)
        await settled()
        peer.server._policy.reset_ranking()
        peer.server.propose(add_one(102), EntryKind.COMMAND)
        await settled()
        sent = [one for one in peer.wire.sent(Append) if isinstance(one, Append) and one.to == PeerId(3)]
        assert [entry.index for one in sent for entry in one.entries] == [first, first + 1]

    await running(peer, THREE, work)


@pytest.mark.parametrize("asks_by", ["reading", "proposing"])
async def test_nothing_is_held_from_a_peer_that_waits(world: World, /, asks_by: str) -> None:
    peer = Peer(world)

    async def work() -> None:
        await lead_three(peer)
        await show_who_is_quick(peer)
        peer.server.propose(add_one(101), EntryKind.COMMAND)
        await settled()
        assert [to for to, _, _ in appends(peer)] == [LEADER]
        if asks_by == "reading":
            await peer.hear(ReadIndexRequest(sender=PeerId(3), to=PeerId(1), read_context=b"a context"))
        else:
            peer.server.propose(add_one(102), EntryKind.COMMAND, PeerId(3))
        await settled()
        assert PeerId(3) in [to for to, _, _ in appends(peer)]

    await running(peer, THREE, work)


@pytest.mark.parametrize("leaving", [1, 3])
async def test_a_change_of_members_is_told_before_it_is_applied(world: World, /, leaving: int) -> None:
    """Once it is applied, the removed peer is no longer known, and a leader that removed itself leads no more: a peer
    that did not learn of it by then waits for an election, or forever."""
    peer = Peer(world)
    sent_before: list[list[tuple[PeerId, int, int]]] = []

    async def work() -> None:
        await lead_three(peer)
        peer.on_applied = lambda _entry: sent_before.append(appends(peer))
        change = MembershipChange((MemberChange(MemberChangeKind.REMOVE, PeerId(leaving)),))
        peer.server.propose(encode_change(change), EntryKind.MEMBERS)
        await asyncio.sleep(0)
        peer.wire.sendings.clear()
        await commit_all(peer)
        await asyncio.sleep(0.01)
        assert sent_before == [[(LEADER, 0, 3), (PeerId(3), 0, 3)]]

    await running(peer, THREE, work)


# ---- reads
