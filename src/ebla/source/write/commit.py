"""The commit of a write, in Spark's driver: the rows of all tasks become part of the table.

The runs that count are those in the messages Spark hands over, one for each task, whatever other attempts have staged.
`commit_write` is called until it has ended; each call continues where the one before was interrupted. A replica that
appeared meanwhile, or that some task could not reach, gets the rows copied from another replica.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ebla.aio.retry import Backoff, retry_blocking
from ebla.model.errors import EblaError, Unavailable
from ebla.source.write.staged_replicas import StagedReplicas, check_every_range_staged, late_targets
from ebla.source.write.write_job import CommitDeps, WriteJob, WriteTaskResult
from ebla.wire.table_calls import COMMIT_WRITE, CommitWriteAnswer, CommitWriteRequest, StagingPlan

if TYPE_CHECKING:
    from ebla.source.write.encode_rows import RowEncoding

COMMIT_S = 3600.0
"""For a commit whose plan has no deadline."""
RETRY_S_MAX = 120.0
"""How long a commit is retried while no node answers, or too few do."""
RETRY_BACKOFF = Backoff(first_s=1.0, max_s=8.0)
LATE_ROUNDS_MAX = 32


def commit_rows(
    deps: CommitDeps,
    job: WriteJob,
    plan: StagingPlan,
    load_encoding: Callable[[], "RowEncoding"],
    tasks: Sequence[WriteTaskResult],
) -> CommitWriteAnswer:
    """Raises what could not be repaired; then the job may be partly visible, and its name makes it safe to run again.
    The row encoding is loaded only where tasks left rows to the commit."""
    staged = StagedReplicas.from_plan(plan)
    for task in tasks:
        staged.add(task.runs, task.lost)
    check_every_range_staged(plan, staged.targets)
    if any(task.small for task in tasks):
        # Most commits have no rows themselves, and importing this takes longer than they do.
        from ebla.source.write.driver_rows import SmallRows

        small = SmallRows(load_encoding(), [task.small for task in tasks])
        if small.can_write_by_cql:
            announced = _commit_once(deps, _request(job, announces_rows=True), plan.deadline_ms)
            if announced.is_done:
                return announced
            small.write_by_cql(deps, job.level)
        elif small:
            small.stage(deps, plan, staged)
            check_every_range_staged(plan, staged.targets)
    return _commit(deps, job, plan, staged)


def _request(
    job: WriteJob, staged: StagedReplicas | None = None, *, announces_rows: bool = False
) -> CommitWriteRequest:
    named = staged or StagedReplicas({}, {})
    return CommitWriteRequest(
        session=job.session,
        table=job.table,
        job=job.job,
        level=job.level,
        runs=named.counted,
        targets=tuple(named.targets.values()),
        batch=job.batch,
        brought=named.partial_ranges,
        announces_rows=announces_rows,
    )


def _commit(deps: CommitDeps, job: WriteJob, plan: StagingPlan, staged: StagedReplicas) -> CommitWriteAnswer:
    for _ in range(LATE_ROUNDS_MAX):
        answer = _commit_once(deps, _request(job, staged), plan.deadline_ms)
        if not answer.lacking:
            return answer
        # Rarely needed, and importing this takes longer than most commits do.
        from ebla.source.write.driver_rows import copy_to_late_target

        for late in late_targets(answer.lacking):
            copy_to_late_target(deps, plan, staged, late)
    raise Unavailable(
        f"replicas of the table changed {LATE_ROUNDS_MAX} times during the commit",
        advice="run the job again, with the same name, when nodes are not added or removed",
    )


def _commit_once(deps: CommitDeps, request: CommitWriteRequest, deadline_ms: int) -> CommitWriteAnswer:
    """Retries transient errors: a commit that is called again continues where it was."""

    def call() -> CommitWriteAnswer:
        left_s = max(deps.timeout_s, deadline_ms / 1000 - time.time()) if deadline_ms else COMMIT_S
        return deps.client.call(COMMIT_WRITE, request, left_s)

    return retry_blocking(call, RETRY_BACKOFF, timeout_s=RETRY_S_MAX, clock=deps.clock, sleep=deps.sleep)


def with_rerun_advice(error: EblaError, job: str) -> EblaError:
    """The error of a commit, with what it means for the user of the job."""
    again = f"run it again with the option job={job!r}" if job else "run it again with a name (option `job`)"
    return type(error)(
        f"the write did not end, and some of it may be visible: {error.message}",
        advice=f"{again}, which is safe; {error.advice}" if error.advice else f"{again}, which is safe",
    )
