"""Layers of staged rows, made in processes of their own; the child's half is `python -m ebla.runtime.build_process`.
Nothing counts until the transfer is sealed."""

import msgspec

from ebla.model.errors import EblaError, Outcome
from ebla.runtime.job_process import JobFailed, run_in_process
from ebla.storage.build_rows import BuildJob, BuildResult
from ebla.wire.failures import error_of
from ebla.wire.frames import Failure


class BuildFailed(EblaError):
    """No layer was made of the rows; they are as they were."""

    outcome = Outcome.NOT_APPLIED


class BuildOutcome(msgspec.Struct, frozen=True, array_like=True):
    """One of the two."""

    result: BuildResult | None
    failure: Failure | None = None


class BuildProcesses:
    """`bulk.staging.LayerBuilding`."""

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        """Raises `BuildFailed`, and what went wrong in the child as it is: a full disk, rows that are none."""
        try:
            answer = await run_in_process("ebla.runtime.build_process", msgspec.msgpack.encode(job), deadline_s)
        except JobFailed as failure:
            raise BuildFailed(f"the layer of {job.rows_files[0]}: {failure.message}", advice="seal again") from failure
        outcome = msgspec.msgpack.decode(answer, type=BuildOutcome)
        if outcome.failure is not None:
            raise error_of(outcome.failure)
        assert outcome.result is not None
        return outcome.result
