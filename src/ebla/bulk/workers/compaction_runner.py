"""Folds in processes of their own; the child's half is `python -m ebla.bulk.workers.compaction_worker`. Nothing has
changed until the shard swaps the result in."""

import msgspec

from ebla.bulk.workers.subprocess_job import WorkerFailed, run_in_subprocess
from ebla.model.errors import EblaError, Outcome
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult


class CompactionFailed(EblaError):
    """The fold came to nothing; the layers are as they were."""

    outcome = Outcome.NOT_APPLIED


class CompactionOutcome(msgspec.Struct, frozen=True, array_like=True):
    """`result`, or what went wrong in words."""

    result: CompactionResult | None
    failure: str = ""


class CompactionProcesses:
    """`bulk.fold_desk.Folding`. Starting a process costs a few tenths of a second, against folds of seconds to
    minutes."""

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        return await compact_in_process(job, deadline_s)


async def compact_in_process(job: CompactionJob, deadline_s: float) -> CompactionResult:
    """Raises `CompactionFailed`."""
    try:
        answer = await run_in_subprocess("ebla.bulk.workers.compaction_worker", msgspec.msgpack.encode(job), deadline_s)
    except WorkerFailed as failure:
        raise CompactionFailed(f"the fold of {job.output_folder}: {failure.message}", advice="fold again") from failure
    outcome = msgspec.msgpack.decode(answer, type=CompactionOutcome)
    if outcome.result is None:
        raise CompactionFailed(outcome.failure)
    return outcome.result
