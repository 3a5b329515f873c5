"""The twin of `runtime/layer_building.py`: layers of staged rows, made in the process that asks."""

import asyncio

from ebla.model.errors import DeadlineExceeded
from ebla.ports.disk import Disk
from ebla.storage.build_rows import BuildJob, BuildResult, run_build
from ebla.storage.memory import MemoryEngine


class SimBuilding:
    """`bulk.staging.LayerBuilding`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        try:
            async with asyncio.timeout(deadline_s):
                return await run_build(MemoryEngine(self._disk), self._disk, job)
        except TimeoutError:
            raise DeadlineExceeded(f"the layer of {job.rows_file} took longer than {deadline_s:g} s") from None
