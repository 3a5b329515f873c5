"""Folds in processes of their own; the child's half is `python -m ebla.runtime.fold_process`. Nothing has changed until
the shard swaps the result in."""

import msgspec

from ebla.model.errors import EblaError, Outcome
from ebla.runtime.job_process import JobFailed, run_in_process
from ebla.storage.fold_plan import FoldJob, FoldResult


class FoldFailed(EblaError):
    """The fold came to nothing; the layers are as they were."""

    outcome = Outcome.NOT_APPLIED


class FoldOutcome(msgspec.Struct, frozen=True, array_like=True):
    """`result`, or what went wrong in words."""

    result: FoldResult | None
    failure: str = ""


class FoldProcesses:
    """`bulk.fold_desk.Folding`. Starting a process costs a few tenths of a second, against folds of seconds to
    minutes."""

    async def fold(self, job: FoldJob, deadline_s: float) -> FoldResult:
        return await fold_in_process(job, deadline_s)


async def fold_in_process(job: FoldJob, deadline_s: float) -> FoldResult:
    """Raises `FoldFailed`."""
    try:
        answer = await run_in_process("ebla.runtime.fold_process", msgspec.msgpack.encode(job), deadline_s)
    except JobFailed as failure:
        raise FoldFailed(f"the fold of {job.output_folder}: {failure.message}", advice="fold again") from failure
    outcome = msgspec.msgpack.decode(answer, type=FoldOutcome)
    if outcome.result is None:
        raise FoldFailed(outcome.failure)
    return outcome.result
