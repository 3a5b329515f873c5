"""A stack of a shard that is compacted."""

from tests.unit.storage.store_rig import Rig

from ebla.model.errors import Unreachable
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.compactor import run_compaction


class Place:
    def __init__(self, rig: Rig, *, is_there: bool) -> None:
        self._rig = rig
        self._is_there = is_there

    async def compact(self, job: CompactionJob) -> CompactionResult:
        if not self._is_there:
            raise Unreachable("no bulk process")
        assert self._rig.engine is not None
        return await run_compaction(self._rig.engine, self._rig.engine.disk, job)
