"""Rows that the commit handles itself: those of tasks that had few, and copies for replicas that lack some."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.transfers import TransferTarget
from ebla.source.write.commit import RETRY_BACKOFF
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.run_staging import RECORD_BYTES, Stager
from ebla.source.write.small_writes import can_write_by_cql, unpack_batches, write_by_cql
from ebla.source.write.sorted_runs import rows_within, sort_and_route
from ebla.source.write.staged_replicas import LateTarget, StagedReplicas, choose_copy_sources
from ebla.source.write.write_job import RUN_BYTES, CommitDeps
from ebla.storage.codec.row_file import records_of
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_streams import StagedRecordStream
from ebla.transfers.spark_worker import new_attempt_id
from ebla.wire.table_calls import StagedRun, StagingPlan


class SmallRows:
    """The rows of all tasks that had few, as their messages carried them."""

    def __init__(self, encoding: RowEncoding, packed: Sequence[bytes]) -> None:
        self._encoding = encoding
        self._batches = [batch for one in packed for batch in unpack_batches(one)]

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def can_write_by_cql(self) -> bool:
        return bool(self) and can_write_by_cql(self._encoding.schema, self._batches)

    def write_by_cql(self, deps: CommitDeps, level: ConsistencyLevel) -> None:
        write_by_cql(deps.client, self._encoding, self._batches, level, deps.timeout_s)

    def stage(self, deps: CommitDeps, plan: StagingPlan, staged: StagedReplicas) -> None:
        """As one more run, where they are too many together for CQL."""
        stager = Stager(plan.targets, deps.connect, uses_local_files=deps.uses_local_files)
        try:
            encoded = [encode_rows(self._encoding, batch) for batch in self._batches]
            stager.stage(sort_and_route(self._encoding.schema, plan.routes, encoded))
        finally:
            stager.close()
        staged.add(stager.runs, stager.lost)


# ---- replicas that lack rows


def copy_to_late_target(deps: CommitDeps, plan: StagingPlan, staged: StagedReplicas, late: LateTarget) -> None:
    """Copies all rows of the ranges to the target that was opened for them. A source that cannot be reached is left
    out, as long as another has the same rows."""
    present = dict(staged.targets)
    client = deps.connect()
    try:
        while True:
            chosen = choose_copy_sources(plan, present, late)
            try:
                runs = [
                    run
                    for transfer, routes in chosen.items()
                    for run in _copy_from(client, present[transfer], staged, late, _rows_of(plan, routes, late))
                ]
            except _SourceLost as lost:
                present = {one: target for one, target in present.items() if target.host != lost.host}
                continue
            break
    except EblaError as error:
        if not error.is_transient:
            raise
        # The target itself cannot be reached. The nodes decide by the consistency level whether to go on without it.
        deps.sleep(RETRY_BACKOFF.first_s)
        return
    finally:
        client.close()
    staged.targets[late.target.transfer] = late.target
    staged.ranges[late.target.transfer] = late.ranges
    staged.runs = [run for run in staged.runs if run.transfer != late.target.transfer] + runs


_RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]


def _rows_of(plan: StagingPlan, routes: Sequence[int], late: LateTarget) -> _RowFilter:
    """Rows that the target lacks and that are in one of the routes."""
    ranges = [plan.routes[place].range for place in routes]
    return lambda batch: rows_within(rows_within(batch, late.ranges), ranges)


def _copy_from(
    client: FlightClient, source: TransferTarget, staged: StagedReplicas, late: LateTarget, row_filter: _RowFilter
) -> Iterator[StagedRun]:
    for run in [run for run in staged.counted if run.transfer == source.transfer]:
        with _source_errors(source):
            rows = client.get_staged_rows(source, run.attempt, run.file)
        try:
            for batches in _runs_in_memory(source, rows, row_filter):
                attempt = new_attempt_id()
                file = client.put_records(late.target, attempt, list(records_of(batches, RECORD_BYTES)))
                yield StagedRun(
                    host=late.target.host,
                    transfer=late.target.transfer,
                    attempt=attempt,
                    file=file,
                    rows=sum(map(len, batches)),
                )
        finally:
            rows.cancel()
        if rows.is_merged:
            return


def _runs_in_memory(
    source: TransferTarget, rows: StagedRecordStream, row_filter: _RowFilter
) -> Iterator[list[pa.RecordBatch]]:
    collected: list[pa.RecordBatch] = []
    size_bytes = 0
    batches = iter(rows)
    while True:
        with _source_errors(source):
            batch = next(batches, None)
        if batch is None:
            break
        kept = row_filter(batch)
        if len(kept):
            collected.append(kept)
            size_bytes += kept.nbytes
        if size_bytes >= RUN_BYTES:
            yield collected
            collected, size_bytes = [], 0
    if collected:
        yield collected


class _SourceLost(Exception):
    def __init__(self, host: HostId) -> None:
        super().__init__(str(host))
        self.host = host


@contextmanager
def _source_errors(source: TransferTarget) -> Iterator[None]:
    """Distinguishes a transient error of the source from one of the target."""
    try:
        yield
    except EblaError as error:
        if error.is_transient:
            raise _SourceLost(source.host) from error
        raise
