"""Compactions that run until the test ends them."""

import asyncio

from tests.unit.storage.small_table import SMALL

from ebla.model.errors import EblaError
from ebla.model.token import WHOLE_RING
from ebla.storage.compaction.compaction_plan import CompactionInput, CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import KEEP_ALL
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.manifest import Incarnation, LayerId


def job_of(number: int) -> CompactionJob:
    inputs = (CompactionInput(LayerId(1), f"/data/in-{number}", (WHOLE_RING,)),)
    return CompactionJob(
        incarnation=Incarnation(number),
        inputs=inputs,
        output=LayerId(2),
        output_folder=f"/data/out-{number}",
        range=WHOLE_RING,
        rule=KEEP_ALL,
        schema=SMALL,
    )


class Compactions:
    """A runner whose compactions last until the test ends them."""

    def __init__(self) -> None:
        self.running: dict[int, asyncio.Future[CompactionResult]] = {}
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.deadlines_s: list[float] = []

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        self.started.append(job.incarnation)
        self.deadlines_s.append(deadline_s)
        done: asyncio.Future[CompactionResult] = asyncio.get_running_loop().create_future()
        self.running[job.incarnation] = done
        try:
            return await done
        except asyncio.CancelledError:
            self.cancelled.append(job.incarnation)
            raise
        finally:
            del self.running[job.incarnation]

    def end(self, number: int) -> None:
        self.running[number].set_result(CompactionResult(LayerFacts(rows=number)))

    def fail(self, number: int, error: EblaError) -> None:
        self.running[number].set_exception(error)
