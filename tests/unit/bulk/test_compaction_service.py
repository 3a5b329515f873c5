"""Folds for the shards: so many at a time, in order, bounded, and nothing left of one that was given up."""

import asyncio
import math
from collections.abc import Mapping

import pytest
from tests.async_tests import real_time, runs_in, settled
from tests.unit.wire.rig import introduction

from ebla.bulk.compaction_service import CompactionService, CompactionServiceLimits
from ebla.model.errors import EblaError, Outcome, Overloaded, Refused
from ebla.model.token import WHOLE_RING
from ebla.sim.workloads.small_table import SMALL
from ebla.storage.compaction.compaction_plan import CompactionInput, CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import KEEP_ALL
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.manifest import Incarnation, LayerId
from ebla.wire.frames import Lane
from ebla.wire.server import IncomingCall


def job_of(number: int) -> CompactionJob:
    inputs = (CompactionInput(LayerId(1), f"/data/in-{number}", WHOLE_RING),)
    return CompactionJob(
        incarnation=Incarnation(number),
        inputs=inputs,
        output=LayerId(2),
        output_folder=f"/data/out-{number}",
        range=WHOLE_RING,
        rule=KEEP_ALL,
        schema=SMALL,
    )


class Folds:
    """Folds that last until they are released, and remember how each ended."""

    def __init__(self) -> None:
        self.running: dict[int, asyncio.Future[CompactionResult]] = {}
        self.begun: list[int] = []
        self.dropped: list[int] = []
        self.deadlines_s: list[float] = []

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        self.begun.append(job.incarnation)
        self.deadlines_s.append(deadline_s)
        done: asyncio.Future[CompactionResult] = asyncio.get_running_loop().create_future()
        self.running[job.incarnation] = done
        try:
            return await done
        except asyncio.CancelledError:
            self.dropped.append(job.incarnation)
            raise
        finally:
            del self.running[job.incarnation]

    def end(self, number: int) -> None:
        self.running[number].set_result(CompactionResult(LayerFacts(rows=number)))

    def fail(self, number: int, error: EblaError) -> None:
        self.running[number].set_exception(error)


class Desk:
    def __init__(self, limits: CompactionServiceLimits) -> None:
        self.folds = Folds()
        self.told: list[str] = []
        self.desk = CompactionService(self.folds, limits, self.report)

    def report(self, event: str, _details: Mapping[str, object]) -> None:
        self.told.append(event)

    async def ask(self, number: int, remaining_s: float = math.inf) -> CompactionResult:
        loop = asyncio.get_running_loop()
        call = IncomingCall(peer=introduction(1), lane=Lane.DATA, expires_at=loop.time() + remaining_s, loop=loop)
        return await self.desk.serve(job_of(number), call)


@runs_in(real_time)
async def test_folds_run_so_many_at_a_time_and_the_others_in_their_order() -> None:
    desk = Desk(CompactionServiceLimits(folds_max=2))
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(desk.ask(number)) for number in range(1, 6)]
        await settled()
        assert (desk.folds.begun, desk.desk.running, desk.desk.waiting) == ([1, 2], 2, 3)
        for number in range(1, 6):
            desk.folds.end(number)
            await settled()
            assert len(desk.folds.running) <= 2
    assert desk.folds.begun == [1, 2, 3, 4, 5]
    assert [task.result().facts.rows for task in asked] == [1, 2, 3, 4, 5]
    assert (desk.desk.running, desk.desk.waiting) == (0, 0)
    assert desk.told == ["fold.done"] * 5


async def test_one_too_many_in_line_is_refused_and_nothing_happened_to_it() -> None:
    desk = Desk(CompactionServiceLimits(folds_max=1, waiting_max=1))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(desk.ask(1))
        tasks.create_task(desk.ask(2))
        await settled()
        with pytest.raises(Overloaded) as caught:
            await desk.ask(3)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        for number in (1, 2):
            desk.folds.end(number)
            await settled()
    assert desk.folds.begun == [1, 2]


async def test_a_fold_that_is_withdrawn_ends_at_once_whether_it_runs_or_waits() -> None:
    """As when the shard that asked dies: its connection ends, and with it the calls."""
    desk = Desk(CompactionServiceLimits(folds_max=1))
    async with asyncio.TaskGroup() as tasks:
        running, waiting, last = (tasks.create_task(desk.ask(number)) for number in (1, 2, 3))
        await settled()
        waiting.cancel()
        await settled()
        running.cancel()
        await settled()
        assert desk.folds.dropped == [1]
        assert list(desk.folds.running) == [3], "the room went to the next that still waits"
        desk.folds.end(3)
    assert last.result().facts.rows == 3
    assert (desk.desk.running, desk.desk.waiting) == (0, 0)


async def test_a_failed_fold_is_told_and_makes_room() -> None:
    desk = Desk(CompactionServiceLimits(folds_max=1))
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(_refused(desk, 1))
        tasks.create_task(desk.ask(2))
        await settled()
        desk.folds.fail(1, Refused("the disk says no"))
        await settled()
        desk.folds.end(2)
    assert failing.result() == "the disk says no"
    assert desk.told == ["fold.failed", "fold.done"]


async def test_a_fold_has_what_is_left_of_its_deadline_and_never_more_than_the_bound() -> None:
    desk = Desk(CompactionServiceLimits(folds_max=2, fold_ms=60_000))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(desk.ask(1, remaining_s=5.0))
        tasks.create_task(desk.ask(2, remaining_s=900.0))
        await settled()
        for number in (1, 2):
            desk.folds.end(number)
    assert 4.0 < desk.folds.deadlines_s[0] <= 5.0
    assert desk.folds.deadlines_s[1] == 60.0


async def _refused(desk: Desk, number: int) -> str:
    with pytest.raises(Refused) as caught:
        await desk.ask(number)
    return caught.value.message
