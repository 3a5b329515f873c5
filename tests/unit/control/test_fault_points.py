"""Fault points: what a point does to the code that reaches it, and who may set it."""

import asyncio

import pytest
from tests.async_tests import settled

from ebla.control.fault_points import PAUSE_S_MAX, FaultInjected, FaultPoint, FaultPoints
from ebla.model.errors import InvalidRequest, Outcome, Refused
from ebla.observe.event_reporter import discard_event
from ebla.wire.fault_messages import FaultAction, FaultKind, FaultRequest

POINT, OTHER = FaultPoint.PURGE_PUSHED, FaultPoint.PURGE_TENTATIVE


class Rig:
    def __init__(self, *, is_enabled: bool = True) -> None:
        self.crashes = 0
        self.points = FaultPoints(self._crash, discard_event, is_enabled=is_enabled)

    def _crash(self) -> None:
        self.crashes += 1

    def view(self, point: FaultPoint = POINT) -> tuple[FaultKind | None, int, int]:
        found = next(one for one in self.points.points() if one.name == point)
        return found.kind, found.waiting, found.reached


async def test_a_point_that_is_not_set_does_nothing() -> None:
    rig = Rig()
    rig.points.set(OTHER, FaultKind.FAIL)
    await rig.points.reach(POINT)
    assert rig.view() == (None, 0, 0)


async def test_a_pause_ends_when_it_is_released() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.PAUSE)
    async with asyncio.TaskGroup() as tasks:
        paused = [tasks.create_task(rig.points.reach(POINT)) for _ in range(2)]
        await settled()
        assert not any(task.done() for task in paused)
        assert rig.view() == (FaultKind.PAUSE, 2, 2)
        rig.points.release(POINT)
    await rig.points.reach(POINT)
    assert rig.view() == (None, 0, 2)


async def test_a_pause_ends_by_itself_after_ten_minutes() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.PAUSE)
    began = asyncio.get_running_loop().time()
    await rig.points.reach(POINT)
    assert asyncio.get_running_loop().time() - began == pytest.approx(PAUSE_S_MAX)


async def test_once_stops_only_the_first() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.PAUSE, once=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.points.reach(POINT))
        await settled()
        await rig.points.reach(POINT)
        assert rig.view() == (FaultKind.PAUSE, 1, 1)
        rig.points.release(POINT)
    rig.points.set(POINT, FaultKind.FAIL, once=True)
    with pytest.raises(FaultInjected):
        await rig.points.reach(POINT)
    await rig.points.reach(POINT)


async def test_a_cancelled_pause_is_over() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.PAUSE, once=True)
    paused = asyncio.ensure_future(rig.points.reach(POINT))
    await settled()
    paused.cancel()
    await settled()
    assert rig.view() == (None, 0, 1)


async def test_setting_a_point_again_releases_what_waits_there_and_keeps_the_new_fault() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.PAUSE, once=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.points.reach(POINT))
        await settled()
        rig.points.set(POINT, FaultKind.FAIL, once=True)
    assert rig.view() == (FaultKind.FAIL, 0, 1)


async def test_a_failure_does_not_say_that_nothing_happened() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.FAIL)
    for _ in range(2):
        with pytest.raises(FaultInjected) as raised:
            await rig.points.reach(POINT)
        assert raised.value.outcome is Outcome.UNKNOWN


async def test_after_a_crash_the_code_does_not_go_on() -> None:
    rig = Rig()
    rig.points.set(POINT, FaultKind.CRASH)
    crashed = asyncio.ensure_future(rig.points.reach(POINT))
    await settled()
    assert (rig.crashes, crashed.done()) == (1, False)
    crashed.cancel()


ACTIONS = [
    FaultRequest(action=FaultAction.LIST),
    FaultRequest(action=FaultAction.SET, name=POINT, kind=FaultKind.FAIL),
    FaultRequest(action=FaultAction.RELEASE, name=POINT),
    FaultRequest(action=FaultAction.CLEAR),
]


@pytest.mark.parametrize("request_", ACTIONS)
async def test_a_node_without_the_option_refuses_every_command(request_: FaultRequest) -> None:
    rig = Rig(is_enabled=False)
    with pytest.raises(Refused):
        rig.points.execute(request_)
    assert rig.view() == (None, 0, 0)


async def test_the_commands() -> None:
    rig = Rig()
    listed, set_, released, _ = (rig.points.execute(one).points for one in ACTIONS)
    assert [one.name for one in listed] == list(FaultPoint)
    assert [one.kind for one in set_ if one.name == POINT] == [FaultKind.FAIL]
    assert released == listed
    rig.points.set(OTHER, FaultKind.CRASH)
    assert rig.points.execute(FaultRequest(action=FaultAction.CLEAR)).points == listed
    with pytest.raises(InvalidRequest) as raised:
        rig.points.execute(FaultRequest(action=FaultAction.SET, name="purge.push"))
    assert "purge.pushed" in raised.value.advice
