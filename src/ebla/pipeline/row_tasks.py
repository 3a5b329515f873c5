"""Tasks that copy rows: read from one replica or several, merged cell by cell, and to each target what it lacks.

The task's own thread reads and merges, and one thread per target writes: the slowest target sets the pace, and none
waits for another. Batches have the columns `key` and `value`, as rows are stored: with write times, tombstones and
partition heads.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.identity import AttemptId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import MoveResult, RowMove, RowPart, RowTarget, StagedFile, TransferSource
from ebla.pipeline.task_outcome import outcome_batch
from ebla.ports.transfer_engine import SourceDamaged
from ebla.storage.codec.key_codec import key_spans
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import KEY, STORED, ChunkShape, chunk_of
from ebla.storage.merge.chunk_merge import merge_chunks, rows_before, rows_through
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.spark_worker import new_attempt_id

QUEUED_BATCHES_MAX = 4
POLL_S = 0.5


def trim_row_move(move: RowMove) -> RowMove:
    """Without file lists: rows are requested by range."""
    sources = tuple(msgspec.structs.replace(source, parts=()) for source in move.sources)
    return msgspec.structs.replace(move, sources=sources)


def row_move_outcome(client: FlightClient, move: RowMove) -> pa.RecordBatch:
    return outcome_batch(partial(move_rows, client, move), str(move.targets[0].target.transfer))


def move_rows(client: FlightClient, move: RowMove) -> list[MoveResult]:
    """Parts are moved one after the other. They ascend, so each target still gets its rows in key order."""
    attempt = new_attempt_id()
    writers = [_Writer(to=to, attempt=attempt, authority=client.authority_pem) for to in move.targets]
    try:
        for part in move.row_parts:
            _move_part(client, move, part, writers)
        return [writer.finish() for writer in writers]
    except BaseException:
        # Also if one of them fails at its end: the threads of the others would wait for more rows forever.
        for writer in writers:
            writer.abandon()
        raise


def _move_part(client: FlightClient, move: RowMove, part: RowPart, writers: "Sequence[_Writer]") -> None:
    places = {source: place for place, source in enumerate(part.sources)}
    own = [places.get(writer.to.own) if writer.to.own is not None else None for writer in writers]
    kept = list(dict.fromkeys(place for place in own if place is not None))
    streams = [_rows_of(client, move.sources[source], part.range) for source in part.sources]
    replicas = ReplicaMerge(streams, move.schema, kept)
    for rows in replicas.merged():
        lacking = {place: replicas.lacking(place, rows) for place in kept} if len(rows) else {}
        for writer, place in zip(writers, own):
            writer.write(rows if place is None else lacking.get(place, rows))


def _rows_of(client: FlightClient, source: TransferSource, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
    try:
        yield from client.get_rows(source, token_range)
    except Corruption as error:
        raise SourceDamaged(f"on {source.host}: {error.message}", advice=error.advice) from error


class _Broken(Exception):
    """The rows did not come to their end, so what was staged must not look complete."""


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes to one target in its own thread. Without rows it stages no file."""

    to: RowTarget
    attempt: AttemptId
    authority: bytes
    rows: int = 0
    staged: StagedFile | None = None
    error: BaseException | None = None
    is_abandoned: bool = False
    waiting: "queue.Queue[pa.RecordBatch | None]" = field(default_factory=lambda: queue.Queue(QUEUED_BATCHES_MAX))
    thread: threading.Thread | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        for part in clip_rows(rows, self.to.target.range):
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="rows-writer", daemon=True)
                self.thread.start()
            self.rows += len(part)
            self._enqueue(part)

    def finish(self) -> MoveResult:
        if self.thread is not None:
            self._enqueue(None)
            self.thread.join()
        if self.error is not None:
            raise self.error
        files = (self.staged,) if self.staged is not None else ()
        size = sum(file.size_bytes for file in files)
        return MoveResult(
            transfer=self.to.target.transfer, attempt=self.attempt, files=files, rows=self.rows, size_bytes=size
        )

    def abandon(self) -> None:
        self.is_abandoned = True

    def _enqueue(self, part: pa.RecordBatch | None) -> None:
        """Bounded by the timeouts of the thread: if it fails, its error is raised here."""
        while True:
            try:
                self.waiting.put(part, timeout=POLL_S)
            except queue.Full:
                if self.error is not None:
                    raise self.error from None
            else:
                return

    def _run(self) -> None:
        try:
            with FlightClient(self.authority) as client:
                self.staged = client.put_rows(self.to.target, self.attempt, self._batches())
        except BaseException as error:  # raised again in the task's own thread
            self.error = error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                part = self.waiting.get(timeout=POLL_S)
            except queue.Empty:
                if self.is_abandoned:
                    raise _Broken from None
                continue
            if part is None:
                return
            yield part


# ---- merging


class ReplicaMerge:
    """Merges the streams of all sources, each in key order, cell by cell. For the sources in `kept`, their own rows are
    kept until `lacking` compares them with the merged ones."""

    def __init__(
        self, streams: Sequence[Iterator[pa.RecordBatch]], schema: TableSchema | None, kept: Sequence[int]
    ) -> None:
        if schema is None and len(streams) > 1:
            raise InvalidRequest("to merge rows of several replicas, the table's schema is needed")
        self._schema = schema
        self._had: dict[int, deque[pa.RecordBatch]] = {number: deque() for number in kept}
        self._streams = [self._record_read(number, stream) for number, stream in enumerate(streams)]

    def merged(self) -> Iterator[pa.RecordBatch]:
        if len(self._streams) == 1:
            yield from self._streams[0]
            return
        assert self._schema is not None
        shape = ChunkShape(self._schema)
        chunks = [(chunk_of(shape, *batch.columns) for batch in stream) for stream in self._streams]
        for chunk in merge_chunks(shape, chunks):
            yield pa.RecordBatch.from_arrays([chunk.column(KEY), chunk.column(STORED)], schema=ROWS_SCHEMA)

    def lacking(self, source: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The merged rows that this source does not have in exactly this form. Call it once for each batch, in
        order."""
        own = self._had_through(source, rows.column(0)[-1].as_py())
        if not len(own):
            return rows
        positions = pc.index_in(rows.column(0), value_set=own.column(0))
        same = pc.equal(rows.column(1), own.column(1).take(positions))
        return rows.filter(pc.invert(pc.fill_null(same, False)))

    def _record_read(self, number: int, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in stream:
            if number in self._had and len(batch):
                self._had[number].append(batch)
            yield batch

    def _had_through(self, source: int, end: bytes) -> pa.Table:
        """The source's rows up to that key. All of them have been read: rows are merged after that."""
        waiting = self._had[source]
        taken = []
        while waiting:
            batch = waiting.popleft()
            count = rows_through(batch.column(0), end)
            taken.append(batch.slice(0, count))
            if count < len(batch):
                waiting.appendleft(batch.slice(count))
                break
        return pa.Table.from_batches(taken, schema=ROWS_SCHEMA).combine_chunks()


def clip_rows(rows: pa.RecordBatch, to: TokenRange) -> list[pa.RecordBatch]:
    """The rows of a sorted batch whose tokens are in the range."""
    parts = []
    for start, end in key_spans(to):
        first = rows_before(rows.column(0), start)
        last = len(rows) if end is None else rows_before(rows.column(0), end)
        if first < last:
            parts.append(rows.slice(first, last - first))
    return parts
