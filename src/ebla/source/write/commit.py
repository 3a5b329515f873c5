"""The end of a write, in Spark's driver: what all tasks have brought becomes part of the table.

The runs that count are those of the messages Spark hands over, one of each task, whatever other attempts have staged.
`commit_write` is asked until it has come to its end, and each time goes on where it was interrupted. A replica that
came meanwhile, or that some task could not reach, is brought the rows that another one has.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ebla.model.errors import EblaError, Unavailable
from ebla.source.write.commit_deps import PAUSE_MOST_S, PAUSE_S, WORTH_ANOTHER_TRY, CommitDeps, WriteJob
from ebla.source.write.staged_replicas import StagedByTask, StagedReplicas, check_every_range_staged, late_targets
from ebla.source.write.task_messages import WriteTaskResult
from ebla.wire.table_calls import COMMIT_WRITE, CommitWriteAnswer, CommitWriteRequest, StagingPlan

if TYPE_CHECKING:
    from ebla.source.write.driver_rows import SmallRows
    from ebla.source.write.encode_rows import RowEncoding

COMMIT_S = 3600.0
"""For a commit whose plan has no deadline."""
RETRY_S_MAX = 120.0
"""How long nodes that do not answer, or are too few, are asked again without any that answers."""
LATE_ROUNDS_MAX = 32


def commit_rows(
    ways: CommitDeps,
    job: WriteJob,
    plan: StagingPlan,
    form: Callable[[], "RowEncoding"],
    tasks: Sequence[WriteTaskResult],
) -> CommitWriteAnswer:
    """Raises what could not be mended; then the job may be partly visible, and its name makes it safe to run again.
    The form of rows is asked for where some are at hand here."""
    brought = StagedReplicas.from_plan(plan)
    for task in tasks:
        brought.add(StagedByTask(task.runs, task.lost))
    check_every_range_staged(plan, brought.targets)
    if any(task.small for task in tasks):
        few: SmallRows = _driver_rows().SmallRows(form(), [task.small for task in tasks])
        if few.can_write_by_cql:
            announced = _asked(ways, _request(job, announces_rows=True), plan.deadline_ms)
            if announced.is_done:
                return announced
            few.write_by_cql(ways, job.level)
        elif few:
            brought.add(few.staged(ways, plan))
            check_every_range_staged(plan, brought.targets)
    return _commit(ways, job, plan, brought)


def _driver_rows() -> Any:
    """All that rows are made and sent with takes longer to load than most commits take, and few of them need it."""
    return importlib.import_module("ebla.source.write.driver_rows")


def _request(
    job: WriteJob, brought: StagedReplicas | None = None, *, announces_rows: bool = False
) -> CommitWriteRequest:
    named = brought or StagedReplicas({}, {})
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


def _commit(ways: CommitDeps, job: WriteJob, plan: StagingPlan, brought: StagedReplicas) -> CommitWriteAnswer:
    for _ in range(LATE_ROUNDS_MAX):
        answer = _asked(ways, _request(job, brought), plan.deadline_ms)
        if not answer.lacking:
            return answer
        for late in late_targets(answer.lacking):
            _driver_rows().copy_to_late_target(ways, plan, brought, late)
    raise Unavailable(
        f"replicas of the table changed {LATE_ROUNDS_MAX} times while the job was committed",
        advice="run the job again, with the same name, when nodes are not added or removed",
    )


def _asked(ways: CommitDeps, request: CommitWriteRequest, deadline_ms: int) -> CommitWriteAnswer:
    """Every error but those that nobody can mend is followed by another try, within bounds: asked again, a commit goes
    on where it was."""
    began, pause_s = ways.clock(), PAUSE_S
    while True:
        left_s = max(ways.timeout_s, deadline_ms / 1000 - time.time()) if deadline_ms else COMMIT_S
        try:
            return ways.contact.call(COMMIT_WRITE, request, left_s)
        except WORTH_ANOTHER_TRY:
            if ways.clock() - began + pause_s > RETRY_S_MAX:
                raise
        ways.pause(pause_s)
        pause_s = min(PAUSE_MOST_S, pause_s * 2)


def with_rerun_advice(error: EblaError, job: str) -> EblaError:
    """The error of a commit, with what it means for whoever runs the job."""
    again = f"run it again with the option job={job!r}" if job else "run it again with a name (option `job`)"
    return type(error)(
        f"the write did not come to its end, and some of it may be visible: {error.message}",
        advice=f"{again}, which is safe; {error.advice}" if error.advice else f"{again}, which is safe",
    )
