"""A stack of a shard that is compacted."""

from tests.unit.storage.store_rig import Rig

from ebla.model.errors import Unreachable
from ebla.sim.clusters.memory_compaction import compact_in_memory
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult


class Place:
    def __init__(self, rig: Rig, *, is_there: bool) -> None:
        self._rig = rig
        self._is_there = is_there

    async def compact(self, job: CompactionJob) -> CompactionResult:
        if not self._is_there:
            raise Unreachable("no bulk process")
        assert self._rig.engine is not None
        return await compact_in_memory(self._rig.engine, job)
