"""Compactions for the shards: a few at a time, in order, bounded, and nothing left of one that was cancelled."""

import asyncio
import math
from collections.abc import Mapping

import pytest
from tests.async_tests import real_time, runs_in, settled
from tests.unit.bulk.compaction_service_rig import Compactions, job_of
from tests.unit.wire.rig import introduction

from ebla.bulk.compaction_service import WAITING_MAX, CompactionService
from ebla.model.errors import Outcome, Overloaded, Refused
from ebla.options import NodeLimits
from ebla.storage.compaction.compaction_plan import CompactionResult
from ebla.wire.frames import Lane
from ebla.wire.server import IncomingCall


class Rig:
    def __init__(self, limits: NodeLimits, waiting_max: int = WAITING_MAX) -> None:
        self.runner = Compactions()
        self.reports: list[str] = []
        self.service = CompactionService(self.runner, limits, self.report, waiting_max)

    def report(self, event: str, _details: Mapping[str, object]) -> None:
        self.reports.append(event)

    async def ask(self, number: int, remaining_s: float = math.inf) -> CompactionResult:
        loop = asyncio.get_running_loop()
        call = IncomingCall(peer=introduction(1), lane=Lane.DATA, expires_at=loop.time() + remaining_s, loop=loop)
        return await self.service.serve(job_of(number), call)


@runs_in(real_time)
async def test_a_few_compactions_run_at_a_time_and_the_others_in_order() -> None:
    rig = Rig(NodeLimits(compactions_max=2))
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(rig.ask(number)) for number in range(1, 6)]
        await settled()
        assert (rig.runner.started, rig.service.running, rig.service.waiting) == ([1, 2], 2, 3)
        for number in range(1, 6):
            rig.runner.end(number)
            await settled()
            assert len(rig.runner.running) <= 2
    assert rig.runner.started == [1, 2, 3, 4, 5]
    assert [task.result().facts.rows for task in calls] == [1, 2, 3, 4, 5]
    assert (rig.service.running, rig.service.waiting) == (0, 0)
    assert rig.reports == ["compaction.done"] * 5


async def test_one_more_than_the_queue_holds_is_refused() -> None:
    rig = Rig(NodeLimits(compactions_max=1), waiting_max=1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.ask(1))
        tasks.create_task(rig.ask(2))
        await settled()
        with pytest.raises(Overloaded) as caught:
            await rig.ask(3)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        for number in (1, 2):
            rig.runner.end(number)
            await settled()
    assert rig.runner.started == [1, 2]


async def test_a_cancelled_compaction_ends_at_once_whether_it_runs_or_waits() -> None:
    """As when the shard that requested it dies: its connection ends, and its calls with it."""
    rig = Rig(NodeLimits(compactions_max=1))
    async with asyncio.TaskGroup() as tasks:
        running, waiting, last = (tasks.create_task(rig.ask(number)) for number in (1, 2, 3))
        await settled()
        waiting.cancel()
        await settled()
        running.cancel()
        await settled()
        assert rig.runner.cancelled == [1]
        assert list(rig.runner.running) == [3], "the slot went to the next that still waits"
        rig.runner.end(3)
    assert last.result().facts.rows == 3
    assert (rig.service.running, rig.service.waiting) == (0, 0)


async def test_a_failed_compaction_is_reported_and_frees_its_slot() -> None:
    rig = Rig(NodeLimits(compactions_max=1))
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(_refused(rig, 1))
        tasks.create_task(rig.ask(2))
        await settled()
        rig.runner.fail(1, Refused("the disk says no"))
        await settled()
        rig.runner.end(2)
    assert failing.result() == "the disk says no"
    assert rig.reports == ["compaction.failed", "compaction.done"]


async def test_a_compaction_ends_before_the_deadline_of_its_call() -> None:
    rig = Rig(NodeLimits(compactions_max=1))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.ask(1, remaining_s=5.0))
        await settled()
        rig.runner.end(1)
    assert 4.0 <= rig.runner.deadlines_s[0] < 5.0


async def _refused(rig: Rig, number: int) -> str:
    with pytest.raises(Refused) as caught:
        await rig.ask(number)
    return caught.value.message
