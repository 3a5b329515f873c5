"""Tasks that move rows: from one replica or several, merged cell by cell, to each target what it lacks.

Rows are read and merged in the task's own thread, and each target is written to in one beside it, so that the slowest
of them sets the pace and none waits for its turn.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from ebla.model.errors import EblaError
from ebla.model.identity import AttemptId
from ebla.model.transfers import MoveResult, RowMove, RowTarget, StagedFile
from ebla.pipeline.row_merge import ReplicaMerge, clip_rows
from ebla.pipeline.task_outcome import TaskFailed, TaskFailure, failure_of, is_final, moved_batch
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.spark_worker import new_attempt_id, prepare_worker

AHEAD_BATCHES = 4
POLL_S = 0.5

_moves = msgspec.msgpack.Decoder(tuple[RowMove, ...])


def encode_row_moves(moves: Sequence[RowMove]) -> bytes:
    return msgspec.msgpack.encode(tuple(_trimmed(move) for move in moves))


def _trimmed(move: RowMove) -> RowMove:
    """Rows are asked for by range: which files they are in is the source's own business."""
    sources = tuple(msgspec.structs.replace(source, parts=()) for source in move.sources)
    return msgspec.structs.replace(move, sources=sources)


@dataclass(frozen=True)
class RowMoveTask:
    """For `mapInArrow`: numbers of tasks come in, what was staged goes out."""

    tasks: tuple[bytes, ...]
    authority: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for move in _moves.decode(self.tasks[task]):
                    yield moved_batch(_outcomes(move, self.authority))


def _outcomes(move: RowMove, authority: bytes) -> Sequence[MoveResult | TaskFailure]:
    try:
        return move_rows(move, authority)
    except EblaError as error:
        if is_final(error):
            return [failure_of(error)]
        raise TaskFailed(error) from error
    except OSError as error:
        raise TaskFailed(error) from error


def move_rows(move: RowMove, authority: bytes) -> list[MoveResult]:
    attempt = new_attempt_id()
    own = [to.own for to in move.targets if to.own is not None]
    writers = [_Writer(to=to, attempt=attempt, authority=authority) for to in move.targets]
    with FlightClient(authority) as client:
        streams = [client.get_rows(source, move.range) for source in move.sources]
        replicas = ReplicaMerge(streams, move.schema, own)
        try:
            for rows in replicas.merged():
                lacking = {place: replicas.lacking(place, rows) for place in dict.fromkeys(own)} if len(rows) else {}
                for writer in writers:
                    writer.write(rows if writer.to.own is None else lacking.get(writer.to.own, rows))
            return [writer.finish() for writer in writers]
        except BaseException:
            # Also where one of them fails at the end: the threads of the others would wait for more, for ever.
            for writer in writers:
                writer.abandon()
            raise


class _Broken(Exception):
    """The rows have come to no end, so what was staged of them must not look whole."""


@dataclass(slots=True, kw_only=True)
class _Writer:
    """One target, written to by a thread of its own. No row, no file."""

    to: RowTarget
    attempt: AttemptId
    authority: bytes
    rows: int = 0
    staged: StagedFile | None = None
    error: BaseException | None = None
    given_up: bool = False
    waiting: "queue.Queue[pa.RecordBatch | None]" = field(default_factory=lambda: queue.Queue(AHEAD_BATCHES))
    thread: threading.Thread | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        for part in clip_rows(rows, self.to.target.range):
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="rows-writer", daemon=True)
                self.thread.start()
            self.rows += len(part)
            self._hand_over(part)

    def finish(self) -> MoveResult:
        if self.thread is not None:
            self._hand_over(None)
            self.thread.join()
        if self.error is not None:
            raise self.error
        files = (self.staged,) if self.staged is not None else ()
        size = sum(file.size_bytes for file in files)
        return MoveResult(
            transfer=self.to.target.transfer, attempt=self.attempt, files=files, rows=self.rows, size_bytes=size
        )

    def abandon(self) -> None:
        self.given_up = True

    def _hand_over(self, part: pa.RecordBatch | None) -> None:
        """Bounded by what the thread itself waits for: when it is gone, its error is raised."""
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
        except BaseException as error:  # it is raised in the task's own thread
            self.error = error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                part = self.waiting.get(timeout=POLL_S)
            except queue.Empty:
                if self.given_up:
                    raise _Broken from None
                continue
            if part is None:
                return
            yield part
