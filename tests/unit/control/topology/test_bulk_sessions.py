"""The shell around sessions of bulk jobs: attempts, answers that do not come, nodes that do not confirm, deadlines."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in
from tests.unit.control.commit_rig import CommitRig
from tests.unit.topology.world import host

from ebla.control.topology.bulk_sessions import CHECK_MS, COMMIT_MS, BulkSessionService
from ebla.group0.commands import CommandAnswer
from ebla.model.errors import DeadlineExceeded, InvalidRequest, Refused, Stale, Unavailable
from ebla.model.identity import JobId, SessionId
from ebla.model.transaction import Transaction
from ebla.sim.clock import SimClock
from ebla.sim.rng import SimRng
from ebla.sim.world import World as SimWorld
from ebla.topology.commands import CloseSessions, DropTable
from ebla.wire.transfer_messages import OpenSessionAnswer, OpenSessionRequest

SESSION, JOB = SessionId(uuid.UUID(int=5)), JobId(uuid.UUID(int=6))
LIFE_MS_MAX = 60_000


class Rig(CommitRig):
    def __init__(self, around: SimWorld) -> None:
        super().__init__()
        self.table = self.world.create_table(2, 2)
        self.clock = SimClock(around.loop.time, SimRng("clock").random)
        self.sessions = BulkSessionService(self.deps("sessions", self.clock), LIFE_MS_MAX)

    async def open(self, life_ms: int = 10_000, within_ms: int = 1_000) -> OpenSessionAnswer:
        return await self.sessions.open(
            OpenSessionRequest(session=SESSION, table=self.table, job=JOB, life_ms=life_ms), within_ms
        )


def story(play: Callable[[Rig], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run(world: SimWorld) -> None:
        await play(Rig(world))

    SimWorld(1, 60.0).run(run)


pytestmark = runs_in(story)


async def test_a_session_is_open_until_it_is_closed_and_every_node_is_done_with_it(rig: Rig, /) -> None:
    answer = await rig.open()
    assert answer.deadline_ms == rig.clock.wall_us() // 1000 + 10_000
    assert list(rig.snapshot.sessions) == [SESSION]
    closed = await rig.sessions.close(SESSION, 1_000)
    assert closed.down == ()
    assert not rig.snapshot.sessions
    assert rig.confirmed == {host(number): answer.version + 1 for number in (1, 2, 3)}
    assert rig.drains == {True}


async def test_both_may_be_repeated(rig: Rig, /) -> None:
    first = await rig.open()
    assert await rig.open(life_ms=20_000) == first
    assert rig.commits == 1
    await rig.sessions.close(SESSION, 1_000)
    rig.confirmed.clear()
    await rig.sessions.close(SESSION, 1_000)
    assert rig.commits == 2
    assert len(rig.confirmed) == 3, "a repeated close waits again"
    with pytest.raises(Stale):
        await rig.open()


async def test_a_life_has_a_bound_and_is_not_nothing(rig: Rig, /) -> None:
    with pytest.raises(InvalidRequest):
        await rig.open(life_ms=0)
    answer = await rig.open(life_ms=LIFE_MS_MAX * 2)
    assert answer.deadline_ms == rig.clock.wall_us() // 1000 + LIFE_MS_MAX


@pytest.mark.parametrize("way", ["commit_unanswered", "commit_forgotten"])
async def test_a_commit_without_an_answer_is_found_by_reading(rig: Rig, /, way: str) -> None:
    rig.script = [getattr(rig, way)]
    await rig.open()
    rig.script = [getattr(rig, way)]
    await rig.sessions.close(SESSION, 1_000)
    assert rig.commits == 2


async def test_a_commit_that_was_lost_or_overtaken_is_tried_again(rig: Rig, /) -> None:
    rig.script = [rig.lose, rig.overtaken]
    await rig.open()
    rig.script = [rig.overtaken, rig.lose]
    await rig.sessions.close(SESSION, 1_000)
    assert rig.commits == 6


async def test_an_attempt_that_comes_after_the_close_opens_nothing(rig: Rig, /) -> None:
    """INV-XFER-1: the owner asks twice; the first attempt is committed when the job is over."""
    go_on = asyncio.Event()

    async def late(transaction: Transaction) -> CommandAnswer:
        await go_on.wait()
        return await rig.commit(transaction)

    rig.script = [late]
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_stale(rig.open(within_ms=5_000)))
        await asyncio.sleep(0.1)
        await rig.open()
        await rig.sessions.close(SESSION, 1_000)
        go_on.set()
    assert first.result()
    assert not rig.snapshot.sessions


async def _stale(opening: Awaitable[OpenSessionAnswer]) -> bool:
    with pytest.raises(Stale):
        await opening
    return True


async def test_what_is_not_known_says_so_and_what_did_not_happen_too(rig: Rig, /) -> None:
    rig.script = [rig.lose] * 1_000
    with pytest.raises(DeadlineExceeded, match="not known whether"):
        await rig.open()
    rig.script = [rig.lose, rig.refuse]
    with pytest.raises(DeadlineExceeded, match="not known whether"):
        await rig.open()
    rig.script = [rig.refuse]
    with pytest.raises(Unavailable, match="took nothing up"):
        await rig.open()
    rig.script = [rig.overtaken] * 1_000
    with pytest.raises(Refused, match="came first"):
        await rig.open()
    rig.script = []
    rig.quorum = False
    with pytest.raises(Unavailable):
        await rig.sessions.close(SESSION, 1_000)


async def test_who_is_down_is_named_and_not_waited_for(rig: Rig, /) -> None:
    await rig.open()
    rig.down = (host(2),)
    assert (await rig.sessions.close(SESSION, 1_000)).down == (host(2),)


async def test_a_node_that_does_not_confirm_makes_an_error_that_says_it_is_closed(rig: Rig, /) -> None:
    await rig.open()
    rig.silent = (host(3),)
    with pytest.raises(DeadlineExceeded, match="closed to new effects") as caught:
        await rig.sessions.close(SESSION, 5_000)
    assert str(host(3)) in caught.value.message
    assert str(host(2)) not in caught.value.message
    assert not rig.snapshot.sessions
    rig.silent = ()
    assert (await rig.sessions.close(SESSION, 1_000)).down == ()


async def test_a_node_that_lags_asks_before_it_says_that_nothing_is_open(rig: Rig, /) -> None:
    before = rig.snapshot
    await rig.open()
    rig.lagging = before
    await rig.sessions.close(SESSION, 1_000)
    assert not rig.snapshot.sessions


def with_leader(play: Callable[[Rig], Awaitable[None]]) -> None:
    async def run(rig: Rig) -> None:
        async with asyncio.TaskGroup() as tasks:
            enforcing = tasks.create_task(rig.sessions.enforce(lambda: None))
            await play(rig)
            enforcing.cancel()

    story(run)


LOOKS = 3 * CHECK_MS / 1000


@runs_in(with_leader)
async def test_the_leader_ends_what_is_overdue(rig: Rig, /) -> None:
    await rig.open(life_ms=5_000)
    await asyncio.sleep(4.9)
    assert rig.snapshot.sessions
    await asyncio.sleep(LOOKS)
    assert not rig.snapshot.sessions
    assert rig.reported == ["session.overdue"]


async def test_what_is_overdue_stays_if_the_coordinator_lost_its_right(rig: Rig, /) -> None:
    def check() -> None:
        raise Stale("the lease has ended")

    await rig.open(life_ms=1_000)
    with pytest.raises(Stale):
        await rig.sessions.enforce(check)
    assert rig.snapshot.sessions


@runs_in(with_leader)
async def test_the_leader_goes_on_after_commits_that_fail(rig: Rig, /) -> None:
    await rig.open(life_ms=1_000)
    rig.script = [rig.lose, rig.lose, rig.refuse, rig.overtaken]
    await asyncio.sleep(1 + COMMIT_MS / 1000)
    assert not rig.snapshot.sessions
    assert rig.reported == ["session.not_ended", "session.not_ended", "session.overdue"]


@runs_in(with_leader)
async def test_the_leader_ends_jobs_that_were_opened_while_their_table_was_dropped(rig: Rig, /) -> None:
    async def dropped_meanwhile(transaction: Transaction) -> CommandAnswer:
        dropping = rig.planned(DropTable(rig.table))
        answer = await rig.commit(transaction)
        await rig.commit(dropping)
        return answer

    rig.script = [dropped_meanwhile]
    await rig.open(life_ms=LIFE_MS_MAX)
    assert rig.snapshot.sessions
    await asyncio.sleep(LOOKS)
    assert not rig.snapshot.sessions


async def test_ending_nothing_twice_is_no_step(rig: Rig, /) -> None:
    await rig.open()
    await rig.sessions.close(SESSION, 1_000)
    assert rig.planned(CloseSessions((SESSION,))).changes == ()
