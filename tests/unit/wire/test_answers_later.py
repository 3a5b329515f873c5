"""Verbs that give a future: answered, failed, withdrawn and bounded as those that run as tasks are."""

import asyncio

import pytest
from tests.async_tests import settled
from tests.unit.wire.rig import DATA_ECHO, EchoAnswer, EchoRequest, Rig, running_rig

from ebla.aio.eager_future import EagerFuture
from ebla.model.errors import ConnectionLost, DeadlineExceeded, InternalError, Overloaded, Stale
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.frames import Lane
from ebla.wire.limits import WireLimits
from ebla.wire.server import IncomingCall


class Futures:
    def __init__(self, rig: Rig) -> None:
        self.given: list[EagerFuture[str]] = []
        self.refusal: Exception | None = None
        rig.server.serve_future(DATA_ECHO, self._begin, EchoAnswer)

    def _begin(self, _request: EchoRequest, _call: IncomingCall) -> EagerFuture[str]:
        if self.refusal is not None:
            raise self.refusal
        self.given.append(EagerFuture())
        return self.given[-1]


async def test_a_reply_is_answered_in_the_step_that_gives_it() -> None:
    async with running_rig() as rig:
        given: list[EagerFuture[str]] = []

        def begin(_request: EchoRequest, _call: IncomingCall) -> EagerFuture[str]:
            given.append(EagerFuture())
            return given[-1]

        rig.server.serve_future(DATA_ECHO, begin, EchoAnswer)
        caller = await rig.connect(Lane.DATA)
        asked = rig.tasks.create_task(_ask(caller))
        refused = rig.tasks.create_task(_hears(caller, Stale))
        withdrawn = rig.tasks.create_task(_ask(caller))
        await settled()
        given[0].set_result("tablet")
        assert rig.server.awaited == 2
        given[1].set_exception(Stale("revoked"))
        withdrawn.cancel()
        await settled()
        assert given[2].cancelled()
        assert rig.server.awaited == 0
        assert await asked == EchoAnswer("tablet")
        await refused


async def _ask(caller: RpcClientConnection, deadline_ms: int = 20_000) -> EchoAnswer:
    return await caller.call(DATA_ECHO, EchoRequest("clay"), deadline_ms)


async def _hears(caller: RpcClientConnection, error: type[Exception]) -> None:
    with pytest.raises(error):
        await _ask(caller)


async def test_the_answer_is_made_of_what_the_future_is_given() -> None:
    async with running_rig() as rig:
        futures, caller = Futures(rig), await rig.connect(Lane.DATA)
        asked = [rig.tasks.create_task(_ask(caller)) for _ in range(2)]
        await settled()
        for number in (1, 0):
            futures.given[number].set_result(f"tablet {number}")
        assert [await one for one in asked] == [EchoAnswer("tablet 0"), EchoAnswer("tablet 1")]


@pytest.mark.parametrize(("given", "heard"), [(Stale("revoked"), Stale), (KeyError("broke"), InternalError)])
def test_an_error_is_its_callers_to_hear(given: Exception, heard: type[Exception]) -> None:
    async def run() -> None:
        async with running_rig() as rig:
            futures, caller = Futures(rig), await rig.connect(Lane.DATA)
            asked = rig.tasks.create_task(_hears(caller, heard))
            await settled()
            futures.given[0].set_exception(given)
            await asked
            futures.refusal = given
            await _hears(caller, heard)

    asyncio.run(run())


async def test_the_deadline_the_caller_and_the_end_of_the_link_withdraw_it() -> None:
    async with running_rig() as rig:
        futures, caller = Futures(rig), await rig.connect(Lane.DATA)
        with pytest.raises(DeadlineExceeded):
            await _ask(caller, deadline_ms=20)
        asked = rig.tasks.create_task(_ask(caller))
        await settled()
        asked.cancel()
        await settled()
        left = rig.tasks.create_task(_hears(caller, ConnectionLost))
        await settled()
        caller.close("gone")
        await left
        assert [one.cancelled() for one in futures.given] == [True, True, True]


async def test_they_count_among_the_requests_under_way() -> None:
    async with running_rig(WireLimits(running_requests_max=1)) as rig:
        futures, caller = Futures(rig), await rig.connect(Lane.DATA)
        first = rig.tasks.create_task(_ask(caller))
        await settled()
        with pytest.raises(Overloaded):
            await _ask(caller)
        futures.given[0].set_result("room again")
        await first
        second = rig.tasks.create_task(_ask(caller))
        await settled()
        futures.given[1].set_result("second")
        assert await second == EchoAnswer("second")
