"""A verb served eagerly answers in the first step if it can, and as a task if it has to wait."""

import gc

import pytest
from tests.async_tests import settled
from tests.unit.wire.rig import EchoAnswer, EchoRequest, Rig, running_rig

from ebla.model.errors import DeadlineExceeded, Stale
from ebla.wire.frames import Lane
from ebla.wire.server import IncomingCall
from ebla.wire.verbs import Verb

EITHER = Verb(number=9010, name="either", lane=Lane.CONTROL, request=EchoRequest, answer=EchoAnswer)


def serve_either(rig: Rig) -> None:
    async def either(request: EchoRequest, call: IncomingCall) -> EchoAnswer:
        if request.text == "stale":
            raise Stale("refused at once")
        if request.text.startswith("later"):
            return await rig.slow(request, call)
        return EchoAnswer(request.text)

    rig.server.serve_eagerly(EITHER, either)


async def test_an_answer_leaves_at_once_or_when_the_rest_is_done() -> None:
    async with running_rig() as rig:
        serve_either(rig)
        caller = await rig.connect()
        late = rig.tasks.create_task(caller.call(EITHER, EchoRequest("later"), 5_000))
        await settled()
        assert rig.slow_started == ["later"]
        assert await caller.call(EITHER, EchoRequest("now"), 1_000) == EchoAnswer("now")
        with pytest.raises(Stale):
            await caller.call(EITHER, EchoRequest("stale"), 1_000)
        assert not late.done()
        rig.release.set()
        assert await late == EchoAnswer("later")


async def test_what_goes_on_ends_with_its_deadline_and_with_its_caller() -> None:
    async with running_rig() as rig:
        serve_either(rig)
        caller = await rig.connect()
        with pytest.raises(DeadlineExceeded):
            await caller.call(EITHER, EchoRequest("later"), 30)
        await rig.slow_stopped.wait()
        assert rig.slow_cancelled == ["later"]
        unwanted = rig.tasks.create_task(caller.call(EITHER, EchoRequest("later too"), 5_000))
        await settled()
        unwanted.cancel()
        await settled()
        assert rig.slow_cancelled == ["later", "later too"]


async def test_what_began_ends_though_the_cancellation_comes_before_its_task_runs() -> None:
    """Its task is cancelled before the first step. What it holds must be released all the same."""
    async with running_rig() as rig:
        serve_either(rig)
        caller = await rig.connect()
        rig.client_link.held = True
        unwanted = rig.tasks.create_task(caller.call(EITHER, EchoRequest("later"), 5_000))
        await settled()
        unwanted.cancel()
        await settled()
        gc.disable()  # it would end it too, some time
        try:
            rig.client_link.held = False
            rig.client_link.flush()
            assert rig.slow_started == ["later"]
            await settled()
            assert rig.slow_cancelled == ["later"]
        finally:
            gc.enable()
