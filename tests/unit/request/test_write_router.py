"""Writes through a router: who gets them, when they are acknowledged, what is said where they are not."""

import asyncio

import pytest
from tests.async_tests import settled
from tests.unit.request.write_rig import (
    AT_REST,
    MOVED,
    MOVING,
    QUORUM,
    A,
    B,
    C,
    D,
    WriteRig,
    in_simulated_time,
    mutation,
    mutations,
    refuse_all,
    running,
)

from ebla.aio import long_work
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    TooFewReplicas,
    TooLarge,
    WriteFailed,
    WriteTimeout,
)
from ebla.request.router_types import Mutation, RouterLimits
from ebla.wire.row_messages import WriteFailure, WriteRowsAnswer, WriteRowsRequest

SMALL = RouterLimits(
    writes_in_flight_max=64,
    target_writes_max=4,
    frame_writes_max=2,
    frames_in_flight_max=1,
    waiting_writes_max=8,
    lag_wait_ms=200,
    stalled_ms=500,
)


async def test_a_write_goes_to_every_replica_and_is_acknowledged_by_a_quorum() -> None:
    async with running() as rig:
        let_go = rig.clients.hold(C)
        await rig.begin()
        assert [rig.clients.writes_to(target) for target in (A, B, C)] == [1, 1, 1]
        assert rig.clients.sent[A][0].writes[0].version == 5
        let_go.set()
    rig.assert_all_released()


async def test_the_version_is_held_until_the_last_replica_has_answered() -> None:
    async with running() as rig:
        let_go = rig.clients.hold(C)
        await rig.begin()
        await settled()
        assert (rig.view.held, rig.view.released) == (1, 0)
        rig.install(MOVED, 6)
        assert rig.view.versions.oldest(rig.view.current.version) == 5
        let_go.set()
        await settled()
        assert rig.view.versions.oldest(rig.view.current.version) == 6
    rig.assert_all_released()


async def test_a_client_that_gives_up_leaves_the_version_held() -> None:
    async with running() as rig:
        let_go = [rig.clients.hold(target) for target in (A, B, C)]
        answer = rig.begin()
        await settled()
        answer.cancel()
        await settled()
        assert (rig.view.held, rig.view.released) == (1, 0)
        for event in let_go:
            event.set()
    rig.assert_all_released()


async def test_a_pending_replica_gets_the_write_and_must_acknowledge_too() -> None:
    async with running(MOVING) as rig:
        let_go = rig.clients.hold(C), rig.clients.hold(D)
        answer = rig.begin()
        await settled()
        assert rig.clients.writes_to(D) == 1
        assert not answer.done(), "two of four are a quorum of the natural ones alone"
        let_go[1].set()
        await answer
        let_go[0].set()


async def test_down_replicas_are_skipped_and_too_few_are_told_before_anything_is_sent() -> None:
    async with running() as rig:
        rig.view.down = frozenset({A.host})
        await rig.begin()
        assert rig.clients.writes_to(A) == 0
        assert rig.clients.writes_to(B) == 1
        rig.clients.refused = frozenset({B})
        with pytest.raises(TooFewReplicas) as caught:
            rig.begin()
        assert (caught.value.required, caught.value.alive) == (2, 1)
        assert rig.clients.writes_to(C) == 1
        await rig.begin(level=ConsistencyLevel.ONE)
    rig.assert_all_released()


async def test_a_timeout_says_how_many_answered() -> None:
    async with running() as rig:
        let_go = rig.clients.hold(B), rig.clients.hold(C)
        with pytest.raises(WriteTimeout, match=r"1 of 2 replicas acknowledged within 10\d\d ms") as caught:
            await rig.begin()
        assert (caught.value.received, caught.value.required) == (1, 2)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert "same timestamp" in caught.value.advice
        assert rig.view.released == 0
        for event in let_go:
            event.set()
    rig.assert_all_released()


async def test_a_replica_that_says_nothing_in_time_is_no_refusal() -> None:
    async with running() as rig:
        for target in (B, C):
            rig.clients.behaviours[target] = lambda _: DeadlineExceeded("late")
        with pytest.raises(WriteTimeout):
            await rig.begin()
    rig.assert_all_released()


async def test_refusals_that_make_the_level_impossible_are_told_at_once_with_the_reason() -> None:
    async with running() as rig:
        let_go = rig.clients.hold(A)
        rig.clients.behaviours[B] = refuse_all("disk_full")
        rig.clients.behaviours[C] = lambda _: ConnectionLost("gone")
        with pytest.raises(WriteFailed, match="disk_full") as caught:
            await rig.begin()
        assert (caught.value.received, caught.value.required, caught.value.failed) == (0, 2, 2)
        assert caught.value.outcome is Outcome.UNKNOWN
        let_go.set()
    rig.assert_all_released()


async def test_one_refusal_does_not_keep_a_quorum_from_acknowledging() -> None:
    async with running() as rig:
        rig.clients.behaviours[A] = refuse_all("disk_full")
        await rig.begin()
    rig.assert_all_released()


async def test_writes_of_one_turn_leave_in_one_frame_per_replica() -> None:
    async with running() as rig:
        await asyncio.gather(*(rig.begin(mutation(token)) for token in range(30)))
        assert [len(request.writes) for request in rig.clients.sent[A]] == [30]
        await rig.begin(*mutations(40))
        assert [len(request.writes) for request in rig.clients.sent[B]] == [30, 40]
    rig.assert_all_released()


async def test_a_batch_says_how_many_of_its_writes_were_not_acknowledged() -> None:
    def refuse_two(request: WriteRowsRequest) -> WriteRowsAnswer:
        assert len(request.writes) == 5
        return WriteRowsAnswer(
            tuple(
                WriteFailure(index=index, error="corruption", outcome="not_applied", message="damaged")
                for index in (1, 3)
            )
        )

    async with running() as rig:
        rig.clients.behaviours[A] = rig.clients.behaviours[B] = refuse_two
        with pytest.raises(WriteFailed, match="2 of 5 writes were not acknowledged at QUORUM"):
            await rig.begin(*mutations(5))
    rig.assert_all_released()


# Stale


def stale_below(version: int, outcome: str = "not_applied") -> object:
    def answer(request: WriteRowsRequest) -> WriteRowsAnswer:
        return WriteRowsAnswer(
            tuple(
                WriteFailure(index=index, error="stale", outcome=outcome, message="fenced")
                for index, write in enumerate(request.writes)
                if write.version < version
            )
        )

    return answer


def all_stale_below(rig: WriteRig, version: int, outcome: str = "not_applied") -> None:
    for target in (A, B, C, D):
        rig.clients.behaviours[target] = stale_below(version, outcome)  # type: ignore[assignment]  # see above


@pytest.mark.parametrize("outcome", ["not_applied", "unknown"])
async def test_a_stale_write_waits_for_the_newer_version_and_goes_again(outcome: str) -> None:
    async with running() as rig:
        all_stale_below(rig, 6, outcome)
        answer = rig.begin()
        await settled()
        assert not answer.done()
        assert rig.view.released == 1, "the version that was refused is no longer held while waiting"
        rig.install(MOVED, 6)
        await answer
        assert [request.writes[0].version for request in rig.clients.sent[B]] == [5, 6]
        assert [request.writes[0].version for request in rig.clients.sent[D]] == [6]
        assert rig.clients.sent[B][0].writes[0].items == rig.clients.sent[B][1].writes[0].items
        assert rig.counted("router_write_retries_total") == 1
    rig.assert_all_released()


async def test_where_the_newer_version_is_there_already_nothing_is_waited_for() -> None:
    async with running() as rig:
        all_stale_below(rig, 6)
        answer = rig.begin()
        rig.install(AT_REST, 6)
        await answer
    rig.assert_all_released()


async def test_no_newer_version_in_time_leaves_the_outcome_unknown() -> None:
    async with running() as rig:
        all_stale_below(rig, 6, "unknown")
        with pytest.raises(WriteTimeout, match="stale"):
            await rig.begin()
    rig.assert_all_released()


async def test_a_stale_copy_does_not_matter_where_the_others_acknowledge() -> None:
    async with running() as rig:
        rig.clients.behaviours[A] = refuse_all("stale")
        let_go = rig.clients.hold(C)
        answer = rig.begin()
        await settled()
        assert not answer.done()
        let_go.set()
        await answer
        assert rig.counted("router_write_retries_total") == 0
    rig.assert_all_released()


def test_only_what_was_not_acknowledged_goes_again() -> None:
    def first_is_stale(request: WriteRowsRequest) -> WriteRowsAnswer:
        stale = (WriteFailure(index=0, error="stale", outcome="not_applied", message="fenced"),)
        return WriteRowsAnswer(stale if request.writes[0].version == 5 else ())

    async def run() -> None:
        async with running() as rig:
            for target in (A, B, C):
                rig.clients.behaviours[target] = first_is_stale
            answer = rig.begin(*mutations(3))
            await settled()
            rig.install(AT_REST, 6)
            await answer
            assert [len(request.writes) for request in rig.clients.sent[A]] == [3, 1]
        rig.assert_all_released()

    in_simulated_time(run())


async def test_a_second_try_that_cannot_start_does_not_claim_that_nothing_was_written() -> None:
    async with running() as rig:
        all_stale_below(rig, 6, "unknown")
        answer = rig.begin()
        await settled()
        rig.view.down = frozenset({B.host, C.host, D.host})
        rig.install(MOVED, 6)
        with pytest.raises(WriteFailed, match="could not be sent again: QUORUM needs 2") as caught:
            await answer
        assert caught.value.outcome is Outcome.UNKNOWN
    rig.assert_all_released()


async def test_a_client_that_gives_up_while_a_newer_version_is_awaited_ends_the_wait() -> None:
    async with running() as rig:
        all_stale_below(rig, 6)
        answer = rig.begin()
        await settled()
        answer.cancel()
        await settled()
        rig.install(MOVED, 6)
        await settled()
        assert len(rig.clients.sent[B]) == 1
    rig.assert_all_released()


async def test_a_client_that_gives_up_in_the_turn_of_its_answer_harms_nobody() -> None:
    """The copy that decides the second try also ends it, and with its version the client's patience."""
    async with running() as rig:
        all_stale_below(rig, 6)
        answer = rig.begin(level=ConsistencyLevel.ALL)
        await settled()
        rig.view.on_release = answer.cancel  # type: ignore[assignment]  # its result is not used
        rig.install(AT_REST, 6)
        with pytest.raises(asyncio.CancelledError):
            await answer
        await settled()
        await rig.begin()
    rig.assert_all_released()


# Limits


async def test_what_is_no_request_is_refused() -> None:
    async with running(limits=RouterLimits(write_bytes_max=100, request_writes_max=3)) as rig:
        with pytest.raises(InvalidRequest):
            rig.writes.write((), QUORUM, 100)
        with pytest.raises(InvalidRequest):
            rig.begin(*mutations(4))
        with pytest.raises(TooLarge):
            rig.begin(mutation(size=100))
        with pytest.raises(NotFound):
            rig.begin(Mutation(A.host, 5, ((b"k" * 11, b"v"),)))  # type: ignore[arg-type]  # an id of no table
    rig.assert_all_released()


async def test_a_shard_takes_only_so_many_writes_at_once() -> None:
    async with running(limits=RouterLimits(writes_in_flight_max=4096, target_writes_max=4096)) as rig:
        let_go = [rig.clients.hold(target) for target in (A, B, C)]
        first = rig.begin(*mutations(4000))
        await settled()
        with pytest.raises(Overloaded, match="4000 writes are in flight") as caught:
            rig.begin(*mutations(97))
        assert caught.value.outcome is Outcome.NOT_APPLIED
        for event in let_go:
            event.set()
        await first
        await settled()
        await rig.begin(*mutations(97))
    rig.assert_all_released()


async def test_many_mutations_are_sent_in_several_turns_and_acknowledged_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replies arrive before the last of them is sent, and nothing is released before that."""
    async with running() as rig:
        monkeypatch.setattr(long_work, "TURN_S", 0.0)  # no time passes in a turn of the simulated loop
        await rig.begin(*mutations(2000))
        assert [rig.clients.writes_to(target) for target in (A, B, C)] == [2000] * 3
        assert len(rig.clients.sent[A][0].writes) == 1, "the first turn has sent one"
        # Cancelled in the middle: what was sent ends, and the rest is never sent.
        again = rig.begin(*mutations(2000))

        def cancel_midway(_request: WriteRowsRequest) -> WriteRowsAnswer:
            if rig.clients.writes_to(A) > 2500:
                again.cancel()
            return WriteRowsAnswer()

        rig.clients.behaviours[A] = cancel_midway
        await settled()
        assert again.cancelled()
        assert rig.clients.writes_to(A) < 4000
    rig.assert_all_released()


async def test_a_large_request_without_replicas_sends_nothing() -> None:
    async with running() as rig:
        rig.clients.refused = frozenset((A, B, C))
        with pytest.raises(TooFewReplicas):
            await rig.begin(*mutations(2000))
        assert not rig.clients.sent
    rig.assert_all_released()


async def test_a_replica_that_lags_makes_new_writes_wait_for_it() -> None:
    async with running(limits=SMALL) as rig:
        let_go = rig.clients.hold(C)
        await asyncio.gather(*(rig.begin() for _ in range(4)))
        waiting = rig.begin()
        await settled()
        assert not waiting.done()
        assert rig.clients.writes_to(A) == 4
        let_go.set()
        await waiting
        await settled()
        assert rig.clients.writes_to(C) == 5
        assert rig.counted("router_replica_writes_skipped_total") == 0
    rig.assert_all_released()


async def test_a_replica_that_is_not_needed_is_waited_for_no_longer_than_the_bound() -> None:
    async with running(limits=SMALL) as rig:
        let_go = rig.clients.hold(C)
        await asyncio.gather(*(rig.begin() for _ in range(4)))
        began = asyncio.get_running_loop().time()
        await rig.begin()
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.2, abs=0.05)
        assert rig.counted("router_replica_writes_skipped_total") == 1
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(rig.begin() for _ in range(8)))
        assert asyncio.get_running_loop().time() - began < 0.05, "no write waits for a replica that does not answer"
        assert rig.counted("router_replica_writes_skipped_total") == 9
        let_go.set()
    rig.assert_all_released()
    assert rig.clients.writes_to(C) == 4


async def test_where_the_level_needs_the_one_that_lags_the_write_is_refused_unsent() -> None:
    async with running(limits=SMALL) as rig:
        let_go = rig.clients.hold(C)
        first = [rig.begin(level=ConsistencyLevel.ALL, ms=5000) for _ in range(4)]
        with pytest.raises(Overloaded, match="lags") as caught:
            await rig.begin(level=ConsistencyLevel.ALL, ms=1000)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert rig.clients.writes_to(A) == 4
        let_go.set()
        await asyncio.gather(*first)
    rig.assert_all_released()


async def test_only_so_many_requests_wait_for_room() -> None:
    async with running(limits=SMALL) as rig:
        let_go = rig.clients.hold(C)
        first = [rig.begin(level=ConsistencyLevel.ALL) for _ in range(4)]
        waiting = [rig.begin(level=ConsistencyLevel.ALL) for _ in range(8)]
        await settled()
        with pytest.raises(Overloaded, match="8 requests already wait"):
            await rig.begin(level=ConsistencyLevel.ALL)
        waiting.pop().cancel()
        await settled()
        let_go.set()
        await asyncio.gather(*first, *waiting)
    rig.assert_all_released()
    assert rig.clients.writes_to(A) == 11
