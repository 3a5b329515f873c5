"""Rows that a commit has in its own hands: those of tasks that had few, and those that a replica lacks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HostId
from ebla.model.token import TokenRange
from ebla.model.transfers import TransferTarget
from ebla.source.write.commit_deps import PAUSE_S, WORTH_ANOTHER_TRY, CommitDeps, StagedRowStream, StagingClient
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.run_staging import RECORD_BYTES, Stager, new_attempt
from ebla.source.write.small_writes import can_write_by_cql, unpack_batches, write_by_cql
from ebla.source.write.sorted_runs import rows_within, sort_and_route
from ebla.source.write.staged_replicas import LateTarget, StagedByTask, StagedReplicas, choose_copy_sources
from ebla.source.write.task_messages import RUN_BYTES
from ebla.storage.codec.row_file import records_of
from ebla.wire.table_calls import StagedRun, StagingPlan


class SmallRows:
    """Of all tasks that had few, as their messages brought them."""

    def __init__(self, form: RowEncoding, packed: Sequence[bytes]) -> None:
        self._form = form
        self._batches = [batch for one in packed for batch in unpack_batches(one)]

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def can_write_by_cql(self) -> bool:
        return bool(self) and can_write_by_cql(self._form.schema, self._batches)

    def write_by_cql(self, ways: CommitDeps, level: ConsistencyLevel) -> None:
        write_by_cql(ways.contact, self._form, self._batches, level, ways.timeout_s)

    def staged(self, ways: CommitDeps, plan: StagingPlan) -> StagedByTask:
        """As one more run, where they are not few together."""
        stager = Stager(plan.targets, ways.connect, short_cut=ways.uses_local_files)
        try:
            encoded = [encode_rows(self._form, batch) for batch in self._batches]
            stager.stage(sort_and_route(self._form.schema, plan.routes, encoded))
        finally:
            stager.close()
        return stager.staged()


# ---- replicas that lack rows


def copy_to_late_target(ways: CommitDeps, plan: StagingPlan, brought: StagedReplicas, late: LateTarget) -> None:
    """All rows of the ranges to the place that was opened for them. A node that cannot be reached is done without, as
    long as another has the same."""
    present = dict(brought.targets)
    carrier = ways.connect()
    try:
        while True:
            chosen = choose_copy_sources(plan, present, late)
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
    except WORTH_ANOTHER_TRY:
        # The place itself: whether it is done without is for the nodes to say, by the level.
        ways.pause(PAUSE_S)
        return
    finally:
        carrier.close()
    brought.targets[late.target.transfer] = late.target
    brought.ranges[late.target.transfer] = late.ranges
    brought.runs = [run for run in brought.runs if run.transfer != late.target.transfer] + runs


class _SourceGone(Exception):
    def __init__(self, host: HostId) -> None:
        super().__init__(str(host))
        self.host = host


def _copied(
    carrier: StagingClient,
    plan: StagingPlan,
    what: tuple[StagedReplicas, list[int]],
    source: TransferTarget,
    late: LateTarget,
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
                yield StagedRun(
                    host=late.target.host,
                    transfer=late.target.transfer,
                    attempt=attempt,
                    file=file,
                    rows=sum(map(len, part)),
                )
        finally:
            found.cancel()
        if found.is_merged:
            return


def _parts(
    source: TransferTarget, found: StagedRowStream, within: tuple[Sequence[TokenRange], Sequence[TokenRange]]
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
def _as_source(source: TransferTarget) -> Iterator[None]:
    try:
        yield
    except WORTH_ANOTHER_TRY as error:
        raise _SourceGone(source.host) from error
