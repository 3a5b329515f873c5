import asyncio
from collections.abc import Awaitable, Callable

from tests.async_tests import runs_in

from ebla.control.raft.commit_notices import HOLD_MS, CommitNotices
from ebla.raft.events import SendCommit
from ebla.raft.messages import PeerId
from ebla.raft.waiting_peers import WAITING_MS, WaitingPeers
from ebla.sim.world import World

TWO, THREE = PeerId(2), PeerId(3)


def nobody_told(_index: int) -> bool:
    return False


def simulate(scenario: Callable[[World], Awaitable[None]]) -> None:
    World(seed=1, seconds=10.0).run(scenario)


pytestmark = runs_in(simulate)


async def test_a_peer_that_waits_for_its_proposals_is_told_at_once_for_a_while(_world: World, /) -> None:
    asked: list[SendCommit] = []
    waiting = WaitingPeers()
    notices = CommitNotices(asked.append, waiting, nobody_told)
    notices.committed(4, 0)
    waiting.asked(TWO, 1_000)
    waiting.asked(THREE, 1_050)
    notices.committed(5, 1_000 + WAITING_MS - 1)
    notices.committed(6, 1_000 + WAITING_MS)
    assert asked == [SendCommit(5, TWO), SendCommit(5, THREE), SendCommit(6, THREE)]


async def test_everybody_is_told_of_every_commit_after_a_moment(_world: World, /) -> None:
    asked: list[SendCommit] = []
    notices = CommitNotices(asked.append, WaitingPeers(), nobody_told)
    for index in (4, 5, 6):
        notices.committed(index, 0)
    assert asked == []
    await asyncio.sleep(HOLD_MS * 1.5 / 1000)
    assert asked == [SendCommit(4)]
    await asyncio.sleep(HOLD_MS / 1000)
    assert asked == [SendCommit(4), SendCommit(6)]
    await asyncio.sleep(1.0)
    assert len(asked) == 2
    notices.committed(7, 0)
    await asyncio.sleep(1.0)
    assert asked[2:] == [SendCommit(7)]


async def test_what_everybody_knows_by_then_is_not_told(_world: World, /) -> None:
    asked: list[SendCommit] = []
    notices = CommitNotices(asked.append, WaitingPeers(), lambda index: index < 6)
    for index in (4, 5, 6):
        notices.committed(index, 0)
    await asyncio.sleep(1.0)
    assert asked == [SendCommit(6)]
