"""Requests: deadlines, cancels, at most one answer, back-pressure, errors with their outcome."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.async_tests import real_time, runs_in, settled
from tests.unit.wire.rig import (
    DATA_ECHO,
    ECHO,
    RUMOUR,
    SERVER_ADDRESS,
    SLOW,
    EchoAnswer,
    EchoRequest,
    Rig,
    Rumour,
    introduction,
    running_rig,
)

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Outcome,
    Overloaded,
    Stale,
    TooLarge,
    Unreachable,
)
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import AnswerFrame, CancelFrame, Lane, RequestFrame, decode, encode, with_body
from ebla.wire.limits import WireLimits
from ebla.wire.peers import connect
from ebla.wire.server import IncomingCall


def sent_of(rig: Rig, kind: type) -> int:
    return sum(isinstance(decode(frame), kind) for frame in rig.client_link.sent)


async def slow_call(caller: RpcClientConnection, text: str, deadline_ms: int = 20_000) -> EchoAnswer:
    return await caller.call(SLOW, EchoRequest(text), deadline_ms)


async def test_a_call_is_answered_inline_or_by_a_task() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        assert await caller.call(ECHO, EchoRequest("clay"), 1000) == EchoAnswer("clay")
        rig.release.set()
        assert await slow_call(caller, "tablet") == EchoAnswer("tablet")


async def test_the_deadline_ends_the_call_and_the_work() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        with pytest.raises(DeadlineExceeded) as caught:
            await slow_call(caller, "late", deadline_ms=20)
        assert caught.value.outcome is Outcome.UNKNOWN
        await settled()
        assert rig.slow_cancelled == ["late"]
        assert caller.in_flight == 0
        assert await caller.call(ECHO, EchoRequest("still here"), 1000) == EchoAnswer("still here")


async def test_the_server_stops_late_work_by_itself() -> None:
    """The caller's Cancel is lost: the remaining time that travelled with the request must do."""
    async with running_rig() as rig:
        caller = await rig.connect()
        work = rig.tasks.create_task(_outcome(slow_call(caller, "orphan", deadline_ms=20)))
        await settled()
        rig.client_link.held = True
        assert isinstance(await work, DeadlineExceeded)
        await rig.slow_stopped.wait()
        assert rig.slow_cancelled == ["orphan"]


async def test_remaining_time_travels() -> None:
    async with running_rig() as rig:
        seen: list[int] = []

        async def look(request: EchoRequest, call: IncomingCall) -> EchoAnswer:
            seen.append(call.remaining_ms())
            return EchoAnswer(request.text)

        rig.server.serve(DATA_ECHO, look)
        caller = await rig.connect(Lane.DATA)
        await caller.call(DATA_ECHO, EchoRequest(""), 750)
        assert 0 < seen[0] <= 750


async def test_cancelling_the_caller_cancels_the_work() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        work = rig.tasks.create_task(slow_call(caller, "unwanted"))
        await settled()
        assert rig.slow_started == ["unwanted"]
        work.cancel()
        await settled()
        assert rig.slow_cancelled == ["unwanted"]
        assert sent_of(rig, CancelFrame) == 1
        assert caller.in_flight == 0


async def test_a_cancel_right_behind_the_request_leaves_nothing_counted() -> None:
    """Request and Cancel arrive in one turn: the task is cancelled before its first step."""
    async with running_rig(WireLimits(running_requests_max=1)) as rig:
        caller = await rig.connect()
        for number in range(3):
            rig.client_link.held = True
            work = rig.tasks.create_task(slow_call(caller, f"never {number}"))
            await settled()
            work.cancel()
            await settled()
            rig.client_link.held = False
            rig.client_link.flush()
            await settled()
        assert rig.slow_started == []
        rig.release.set()
        assert await slow_call(caller, "room left") == EchoAnswer("room left")


async def test_a_repeated_request_runs_once() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        rig.release.set()
        await slow_call(caller, "once")
        again = next(frame for frame in rig.client_link.sent if isinstance(decode(frame), RequestFrame))
        assert rig.server_link.events is not None
        rig.server_link.events.frame_received(again)
        await settled()
        assert rig.slow_started == ["once"]


@runs_in(real_time)
async def test_overtaken_requests_run_once_each() -> None:
    async with running_rig() as rig:
        await rig.connect()
        rig.release.set()
        events = rig.server_link.events
        assert events is not None
        frames = {
            n: encode(RequestFrame(id=n, verb=SLOW.number, remaining_ms=1000, body=with_body(EchoRequest(str(n)))))
            for n in (1, 2, 3, 4)
        }
        for number in (3, 1, 3, 2, 1, 4, 2, 4):
            events.frame_received(frames[number])
        await settled()
        assert rig.slow_started == ["3", "1", "2", "4"]


async def test_only_the_first_answer_counts() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        work = rig.tasks.create_task(slow_call(caller, "x"))
        await settled()
        caller.frame_received(encode(AnswerFrame(1, with_body(EchoAnswer("first")))))
        caller.frame_received(encode(AnswerFrame(1, with_body(EchoAnswer("second")))))
        assert await work == EchoAnswer("first")


async def test_errors_keep_their_class_and_outcome() -> None:
    async with running_rig() as rig:

        def refuse(request: EchoRequest, call: IncomingCall) -> EchoAnswer:
            if request.text == "defect":
                raise KeyError("a defect of ours")
            raise Stale("the version moved on", advice="read it again")

        rig.server.serve(DATA_ECHO, refuse)
        caller = await rig.connect(Lane.DATA)
        with pytest.raises(Stale) as caught:
            await caller.call(DATA_ECHO, EchoRequest(""), 1000)
        assert caught.value.advice == "read it again"
        with pytest.raises(InternalError, match="data_echo broke") as broken:
            await caller.call(DATA_ECHO, EchoRequest("defect"), 1000)
        assert broken.value.outcome is Outcome.UNKNOWN
        assert [name for name, _ in rig.events if name == "wire.verb_broke"]


async def test_unknown_verbs_and_wrong_lanes_are_told() -> None:
    async with running_rig() as rig:
        caller = await rig.connect(Lane.CONTROL)
        with pytest.raises(InvalidRequest, match="verb 9003 is not known"):
            await caller.call(DATA_ECHO, EchoRequest(""), 1000)
        data = await rig.connect(Lane.DATA)
        with pytest.raises(InvalidRequest, match="belongs to the CONTROL lane"):
            await data.call(ECHO, EchoRequest(""), 1000)
        assert await caller.call(ECHO, EchoRequest("fine"), 1000) == EchoAnswer("fine")


async def test_an_unreadable_body_fails_that_request_alone() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        wrong: Any = Rumour(5)  # type: ignore[arg-type]  # a wrong body on purpose
        with pytest.raises(InvalidRequest, match="unreadable"):
            await caller.call(ECHO, wrong, 1000)
        assert await caller.call(ECHO, EchoRequest("fine"), 1000) == EchoAnswer("fine")


async def test_a_frame_over_the_limit_is_refused_at_the_sender() -> None:
    async with running_rig(WireLimits(frame_bytes_max=2048)) as rig:
        caller = await rig.connect()
        with pytest.raises(TooLarge) as caught:
            await caller.call(ECHO, EchoRequest("x" * 3000), 1000)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert await caller.call(ECHO, EchoRequest("fine"), 1000) == EchoAnswer("fine")


async def test_an_answer_over_the_limit_does_not_claim_that_nothing_happened() -> None:
    async with running_rig(WireLimits(frame_bytes_max=2048)) as rig:

        def swell(request: EchoRequest, call: IncomingCall) -> EchoAnswer:
            return EchoAnswer("y" * 3000)

        rig.server.serve(DATA_ECHO, swell)
        caller = await rig.connect(Lane.DATA)
        with pytest.raises(InternalError, match="over the limit") as caught:
            await caller.call(DATA_ECHO, EchoRequest(""), 1000)
        assert caught.value.outcome is Outcome.UNKNOWN


@runs_in(real_time)
async def test_a_full_connection_makes_callers_wait_then_refuses() -> None:
    limits = WireLimits(in_flight_requests_max=4, waiting_requests_max=2, admission_wait_ms=30)
    async with running_rig(limits) as rig:
        caller = await rig.connect()
        running = [rig.tasks.create_task(slow_call(caller, str(n))) for n in range(4)]
        await settled()
        waiting = [rig.tasks.create_task(_outcome(slow_call(caller, f"w{n}"))) for n in range(2)]
        await settled()
        assert caller.in_flight == 4
        with pytest.raises(Overloaded, match="already wait") as caught:
            await slow_call(caller, "one too many")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert [type(await task) for task in waiting] == [Overloaded, Overloaded]
        assert rig.slow_started == ["0", "1", "2", "3"]
        rig.release.set()
        assert [(await task).text for task in running] == ["0", "1", "2", "3"]


@runs_in(real_time)
async def test_calls_that_begin_in_one_eager_step_are_not_more_than_may_wait() -> None:
    """Each of them finds the line empty in its first step: they wait only once they run as tasks."""
    async with running_rig(WireLimits(in_flight_requests_max=1, waiting_requests_max=2)) as rig:
        caller = await rig.connect()
        running = rig.tasks.create_task(slow_call(caller, "running"))
        await settled()
        begun = [run_eagerly(slow_call(caller, f"w{n}")) for n in range(5)]
        tasks = [rig.tasks.create_task(_outcome(one)) for one in begun if type(one) is Suspended]
        assert len(tasks) == 5
        await settled()
        assert [task.done() for task in tasks] == [False, False, True, True, True]
        rig.release.set()
        assert [type(await task) for task in tasks] == [EchoAnswer] * 2 + [Overloaded] * 3
        assert (await running).text == "running"


@runs_in(real_time)
async def test_waiting_callers_go_in_order_and_never_over_the_limit() -> None:
    async with running_rig(WireLimits(in_flight_requests_max=2, admission_wait_ms=5000)) as rig:
        caller = await rig.connect()
        most = 0

        async def one(number: int) -> int:
            nonlocal most
            answer = await caller.call(SLOW, EchoRequest(str(number)), 10_000)
            most = max(most, caller.in_flight)
            return int(answer.text)

        rig.release.set()
        tasks = [rig.tasks.create_task(one(n)) for n in range(50)]
        while not all(task.done() for task in tasks):
            assert caller.in_flight <= 2
            await asyncio.sleep(0)
        assert rig.slow_started == [str(n) for n in range(50)]
        assert most <= 2


async def test_a_turn_that_is_not_used_goes_to_the_next_in_line() -> None:
    def refuse() -> None:
        raise Stale("too late")

    limits = WireLimits(in_flight_requests_max=1, frame_bytes_max=10_000, admission_wait_ms=5_000)
    async with running_rig(limits) as rig:
        caller = await rig.connect()
        running = rig.tasks.create_task(slow_call(caller, "running"))
        await settled()
        refused = rig.tasks.create_task(_outcome(caller.call(SLOW, EchoRequest("refused"), 20_000, refuse)))
        large = rig.tasks.create_task(_outcome(slow_call(caller, "z" * 20_000)))
        last = rig.tasks.create_task(slow_call(caller, "last"))
        await settled()
        rig.release.set()
        await settled()
        assert (await running).text == "running"
        assert [type(await refused), type(await large)] == [Stale, TooLarge]
        assert last.done()
        assert (await last).text == "last"


async def test_bytes_in_flight_are_bounded() -> None:
    async with running_rig(WireLimits(in_flight_bytes_max=10_000, admission_wait_ms=20)) as rig:
        caller = await rig.connect()
        results = [rig.tasks.create_task(_outcome(slow_call(caller, "z" * 4000))) for _ in range(5)]
        await settled()
        assert caller.in_flight == 3
        assert [type(await task) for task in results[3:]] == [Overloaded, Overloaded]
        rig.release.set()
        assert [type(await task) for task in results[:3]] == [EchoAnswer] * 3


async def test_a_peer_that_does_not_read_does_not_fill_our_memory() -> None:
    """Deadlines free the places in flight, but what was queued is still there."""
    async with running_rig(WireLimits(in_flight_bytes_max=10_000, admission_wait_ms=5)) as rig:
        caller = await rig.connect()
        rig.client_link.held = True
        outcomes = [type(await _outcome(slow_call(caller, "z" * 4000, deadline_ms=5))) for _ in range(20)]
        assert outcomes[:3] == [DeadlineExceeded] * 3
        assert outcomes[3:] == [Overloaded] * 17
        assert rig.client_link.queued_bytes < 20_000


async def test_a_busy_server_refuses_more_work() -> None:
    async with running_rig(WireLimits(running_requests_max=2)) as rig:
        caller = await rig.connect()
        running = [rig.tasks.create_task(slow_call(caller, str(n))) for n in range(2)]
        await settled()
        with pytest.raises(Overloaded, match="in flight"):
            await slow_call(caller, "third")
        rig.release.set()
        assert len([await task for task in running]) == 2


async def test_a_lost_connection_leaves_the_outcome_open() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        work = rig.tasks.create_task(_outcome(slow_call(caller, "cut")))
        await settled()
        rig.server_link.close("pulled the plug")
        assert isinstance(await work, ConnectionLost)
        assert rig.slow_cancelled == ["cut"]
        with pytest.raises(Unreachable, match="pulled the plug"):
            await caller.call(ECHO, EchoRequest(""), 1000)
        assert caller.send(RUMOUR, Rumour("")) is False
        assert await caller.wait_closed() == "pulled the plug"


async def test_those_who_wait_for_room_are_told_nothing_was_sent() -> None:
    async with running_rig(WireLimits(in_flight_requests_max=1)) as rig:
        caller = await rig.connect()
        works = [rig.tasks.create_task(_outcome(slow_call(caller, str(n)))) for n in range(3)]
        await settled()
        rig.server_link.close("pulled the plug")
        assert [type(await work) for work in works] == [ConnectionLost, Unreachable, Unreachable]


async def test_notices_arrive_and_are_dropped_over_the_bound() -> None:
    async with running_rig(WireLimits(notice_queue_bytes_max=1000)) as rig:
        caller = await rig.connect(Lane.RAFT)
        assert caller.send(RUMOUR, Rumour("heard"))
        await settled()
        assert rig.rumours == ["heard"]
        rig.client_link.held = True
        taken = [caller.send(RUMOUR, Rumour("r" * 400)) for _ in range(5)]
        assert taken == [True, True, True, False, False]


async def test_a_time_that_is_over_is_not_sent() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        with pytest.raises(DeadlineExceeded):
            await caller.call(ECHO, EchoRequest(""), 0)
        assert sent_of(rig, RequestFrame) == 0


async def test_an_unreadable_frame_ends_the_callers_connection() -> None:
    async with running_rig() as rig:
        caller = await rig.connect()
        caller.frame_received(b"\xc1 garbage")
        assert "not a frame" in await caller.wait_closed()


async def test_the_certificate_must_be_the_expected_hosts() -> None:
    async with running_rig() as rig:
        ours = introduction(2)
        rig.transport.certificate_of_server = introduction(7).host
        with pytest.raises(Unreachable, match="certificate"):
            await connect(rig.context(ours), SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL, introduction(1).host))
        with pytest.raises(Unreachable, match="its certificate is for"):
            await connect(rig.context(ours), SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL))


async def _outcome(work: Awaitable[EchoAnswer]) -> object:
    try:
        return await work
    except Exception as error:
        return error
