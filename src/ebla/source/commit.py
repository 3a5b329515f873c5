"""The end of a write, in Spark's driver: what all tasks have brought becomes part of the table.

The runs that count are those of the messages Spark hands over, one of each task, whatever other attempts have staged.
`commit_write` is asked until it has come to its end, and each time goes on where it was interrupted. A replica that
came meanwhile, or that some task could not reach, is brought the rows that another one has.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import pyarrow as pa

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    EblaError,
    Overloaded,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import AttemptId, HostId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.token import TokenRange
from ebla.model.transfers import StagedFile, Target
from ebla.source.encode_rows import RowForm, encode_rows
from ebla.source.runs import RUN_BYTES, RunBuffer, rows_within
from ebla.source.small_writes import Batches, may_go_by_cql, unpack_batches, write_by_cql
from ebla.source.stage_runs import RECORD_BYTES, Sink, Staged, Stager, new_attempt
from ebla.source.task_write import TaskRows
from ebla.storage.row_file import records_of
from ebla.wire.table_access import (
    COMMIT_WRITE,
    BroughtRanges,
    CommitWriteAnswer,
    CommitWriteRequest,
    LackingCopy,
    StagedRun,
    TableCall,
    WritePlan,
)

Q = TypeVar("Q")
A = TypeVar("A")

COMMIT_S = 3600.0
"""For a commit whose plan has no deadline."""
PATIENCE_S = 120.0
"""How long nodes that do not answer, or are too few, are asked again without any that answers."""
PAUSE_S, PAUSE_MOST_S = 1.0, 8.0
LACKING_ROUNDS_MAX = 32

_WORTH_ANOTHER_TRY = (Unreachable, ConnectionLost, DeadlineExceeded, Overloaded, Unavailable)


class Caller(Batches, Protocol):
    """`contact.Contact`, as far as a commit needs it."""

    def call(self, call: TableCall[Q, A], request: Q, timeout_s: float) -> A: ...


class Carrier(Sink, Protocol):
    """A way to the nodes that can also bring back what was staged."""

    def get_staged(self, target: Target, attempt: AttemptId, expected: StagedFile) -> "StagedRows": ...


class StagedRows(Protocol):
    """Batches in key order."""

    is_merged: bool
    """They are those of all runs of the transfer."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WriteJob:
    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """What a commit acts by."""

    contact: Caller
    connect: Callable[[], Carrier]
    timeout_s: float
    """For what is answered at once."""
    uses_short_cut: bool = True
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Brought:
    """What is where, as far as it counts."""

    targets: dict[TransferId, Target]
    ranges: dict[TransferId, tuple[TokenRange, ...]]
    """What each of them has all rows of."""
    runs: list[StagedRun] = field(default_factory=list)

    @classmethod
    def by_plan(cls, plan: WritePlan) -> "_Brought":
        ranges: dict[TransferId, list[TokenRange]] = {target.transfer: [] for target in plan.targets}
        for route in plan.routes:
            for place in route.targets:
                ranges[plan.targets[place].transfer].append(route.range)
        targets = {target.transfer: target for target in plan.targets}
        return cls(targets, {transfer: tuple(found) for transfer, found in ranges.items()})

    def add(self, staged: Staged) -> None:
        self.runs += staged.runs
        for transfer in staged.lost:
            self.drop(transfer)

    def drop(self, transfer: TransferId) -> None:
        """It lacks rows, so that nothing of it may count. The nodes find a replica without a place, and open one."""
        self.targets.pop(transfer, None)

    @property
    def counted(self) -> tuple[StagedRun, ...]:
        return tuple(run for run in self.runs if run.transfer in self.targets)

    @property
    def partly(self) -> tuple[BroughtRanges, ...]:
        """Those that are for more than they were brought."""
        return tuple(
            BroughtRanges(transfer, self.ranges[transfer])
            for transfer, target in self.targets.items()
            if self.ranges[transfer] != (target.range,)
        )


def commit_rows(
    ways: Ways, job: WriteJob, plan: WritePlan, form: RowForm, tasks: Sequence[TaskRows]
) -> CommitWriteAnswer:
    """Raises what could not be mended; then the job may be partly visible, and its name makes it safe to run again."""
    brought = _Brought.by_plan(plan)
    for task in tasks:
        brought.add(Staged(task.runs, task.lost))
    refuse_nowhere_whole(plan, brought.targets)
    small = [batch for task in tasks for batch in unpack_batches(task.small)]
    if small and may_go_by_cql(form.schema, small):
        announced = _asked(ways, _request(job, announces=True), plan.deadline_ms)
        if announced.is_done:
            return announced
        write_by_cql(ways.contact, form, small, job.level, ways.timeout_s)
    elif small:
        brought.add(_stage_small(ways, plan, form, small))
        refuse_nowhere_whole(plan, brought.targets)
    return _commit(ways, job, plan, brought)


def refuse_nowhere_whole(plan: WritePlan, present: Mapping[TransferId, Target]) -> None:
    """Each task reaches some replica, and yet no replica may have the rows of all tasks, as where nodes were started
    anew one after another. Nothing would be named for such a range, and the nodes would take it for one that the job
    has no rows for: the job would be done, without them."""
    for route in plan.routes:
        if not any(plan.targets[target].transfer in present for target in route.targets):
            raise Unavailable(
                f"of each replica of the tokens {route.range.start} to {route.range.end} some task could not reach the "
                "node, so that none has all rows of the job",
                advice="run the job again when nodes do not come and go",
            )


def _stage_small(ways: Ways, plan: WritePlan, form: RowForm, batches: Sequence[pa.RecordBatch]) -> Staged:
    """As one more run, where they are not few together."""
    stager = Stager(plan.targets, ways.connect, short_cut=ways.uses_short_cut)
    try:
        buffer = RunBuffer(form.schema, plan.routes)
        for batch in batches:
            buffer.add(encode_rows(form, batch))
        stager.stage(buffer.take())
    finally:
        stager.close()
    return stager.staged()


def _request(job: WriteJob, brought: _Brought | None = None, *, announces: bool = False) -> CommitWriteRequest:
    named = brought or _Brought({}, {})
    return CommitWriteRequest(
        job.session,
        job.table,
        job.job,
        job.level,
        named.counted,
        tuple(named.targets.values()),
        job.batch,
        named.partly,
        announces,
    )


def _commit(ways: Ways, job: WriteJob, plan: WritePlan, brought: _Brought) -> CommitWriteAnswer:
    for _ in range(LACKING_ROUNDS_MAX):
        answer = _asked(ways, _request(job, brought), plan.deadline_ms)
        if not answer.lacking:
            return answer
        for late in late_places(answer.lacking):
            _bring(ways, plan, brought, late)
    raise Unavailable(
        f"replicas of the table changed {LACKING_ROUNDS_MAX} times while the job was committed",
        advice="run the job again, with the same name, when nodes are not added or removed",
    )


def _asked(ways: Ways, request: CommitWriteRequest, deadline_ms: int) -> CommitWriteAnswer:
    """Every error but those that nobody can mend is followed by another try, within bounds: asked again, a commit goes
    on where it was."""
    began, pause_s = ways.clock(), PAUSE_S
    while True:
        left_s = max(ways.timeout_s, deadline_ms / 1000 - time.time()) if deadline_ms else COMMIT_S
        try:
            return ways.contact.call(COMMIT_WRITE, request, left_s)
        except _WORTH_ANOTHER_TRY:
            if ways.clock() - began + pause_s > PATIENCE_S:
                raise
        ways.pause(pause_s)
        pause_s = min(PAUSE_MOST_S, pause_s * 2)


# ---- replicas that lack rows


@dataclass(frozen=True, slots=True)
class LatePlace:
    """A place that was opened for rows of these ranges; of a table on vnodes there may be many."""

    target: Target
    ranges: tuple[TokenRange, ...]


def late_places(lacking: Sequence[LackingCopy]) -> list[LatePlace]:
    """All ranges of a place together: it counts as a copy of each of them, or of none."""
    ranges: dict[TransferId, list[TokenRange]] = {}
    for copy in lacking:
        ranges.setdefault(copy.target.transfer, []).append(copy.range)
    targets = {copy.target.transfer: copy.target for copy in lacking}
    return [LatePlace(targets[transfer], tuple(found)) for transfer, found in ranges.items()]


def sources_of(plan: WritePlan, present: Mapping[TransferId, Target], late: LatePlace) -> dict[TransferId, list[int]]:
    """For each route that has a part of the ranges, whom to copy from: transfers, and the routes that each is for. The
    fewest that will do, as a rule, since a transfer that serves one route serves its neighbours."""
    chosen: dict[TransferId, list[int]] = {}
    for place, route in enumerate(plan.routes):
        if not any(route.range.overlaps(one) for one in late.ranges):
            continue
        offered = [plan.targets[target].transfer for target in route.targets]
        there = [one for one in offered if one in present and one != late.target.transfer]
        # Rather not from the place that it stands for: what was staged there may be gone, or broken.
        can = [one for one in there if _stack_of(present[one]) != _stack_of(late.target)] or there
        if not can:
            raise Unavailable(
                f"no replica that has the job's rows of {route.range.start} to {route.range.end} can be asked",
                advice="run the job again, with the same name",
            )
        transfer = next((one for one in can if one in chosen), can[0])
        chosen.setdefault(transfer, []).append(place)
    return chosen


def _bring(ways: Ways, plan: WritePlan, brought: _Brought, late: LatePlace) -> None:
    """All rows of the ranges to the place that was opened for them. A node that cannot be reached is done without, as
    long as another has the same."""
    present = dict(brought.targets)
    carrier = ways.connect()
    try:
        while True:
            chosen = sources_of(plan, present, late)
            try:
                runs = [
                    run
                    for transfer, routes in chosen.items()
                    for run in _copied(carrier, plan, (brought, routes), present[transfer], late)
                ]
            except _SourceGone as gone:
                present = {one: target for one, target in present.items() if target.host != gone.host}
                continue
            break
    except _WORTH_ANOTHER_TRY:
        # The place itself: whether it is done without is for the nodes to say, by the level.
        ways.pause(PAUSE_S)
        return
    finally:
        carrier.close()
    brought.targets[late.target.transfer] = late.target
    brought.ranges[late.target.transfer] = late.ranges
    brought.runs = [run for run in brought.runs if run.transfer != late.target.transfer] + runs


def _stack_of(target: Target) -> tuple[HostId, ShardNumber, TokenRange]:
    return target.host, target.shard, target.range


class _SourceGone(Exception):
    def __init__(self, host: HostId) -> None:
        super().__init__(str(host))
        self.host = host


def _copied(
    carrier: Carrier, plan: WritePlan, what: tuple[_Brought, list[int]], source: Target, late: LatePlace
) -> Iterator[StagedRun]:
    brought, routes = what
    ranges = [plan.routes[place].range for place in routes]
    for run in [run for run in brought.counted if run.transfer == source.transfer]:
        with _as_source(source):
            found = carrier.get_staged(source, run.attempt, run.file)
        try:
            for part in _parts(source, found, (late.ranges, ranges)):
                attempt = new_attempt()
                file = carrier.put_records(late.target, attempt, list(records_of(part, RECORD_BYTES)))
                yield StagedRun(late.target.host, late.target.transfer, attempt, file, sum(map(len, part)))
        finally:
            found.cancel()
        if found.is_merged:
            return


def _parts(
    source: Target, found: StagedRows, within: tuple[Sequence[TokenRange], Sequence[TokenRange]]
) -> Iterator[list[pa.RecordBatch]]:
    """What is in one of the ranges and in one of the routes, in runs that fit in memory."""
    lacking, routes = within
    part: list[pa.RecordBatch] = []
    size_bytes = 0
    batches = iter(found)
    while True:
        with _as_source(source):
            batch = next(batches, None)
        if batch is None:
            break
        kept = rows_within(rows_within(batch, lacking), routes)
        if len(kept):
            part.append(kept)
            size_bytes += kept.nbytes
        if size_bytes >= RUN_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


@contextmanager
def _as_source(source: Target) -> Iterator[None]:
    try:
        yield
    except _WORTH_ANOTHER_TRY as error:
        raise _SourceGone(source.host) from error


def told(error: EblaError, job: str) -> EblaError:
    """The error of a commit, with what it means for whoever runs the job."""
    again = f"run it again with the option job={job!r}" if job else "run it again with a name (option `job`)"
    return type(error)(
        f"the write did not come to its end, and some of it may be visible: {error.message}",
        advice=f"{again}, which is safe; {error.advice}" if error.advice else f"{again}, which is safe",
    )
