"""Tasks that move the files of checkpoints, as they are, into staging.

Each move of each try draws an attempt of its own, so no two of them ever write to one place, whoever runs the task
again or twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from ebla.model.errors import EblaError
from ebla.model.transfers import FileMove, MoveResult
from ebla.pipeline.task_outcome import TaskFailed, TaskFailure, failure_of, is_final, moved_batch
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.transfers.link_path import can_link, link_files
from ebla.transfers.spark_worker import new_attempt_id, prepare_worker

_moves = msgspec.msgpack.Decoder(tuple[FileMove, ...])


def encode_file_moves(moves: Sequence[FileMove]) -> bytes:
    return msgspec.msgpack.encode(tuple(_trimmed(move) for move in moves))


def _trimmed(move: FileMove) -> FileMove:
    """Without the files of other parts: a checkpoint of many tablets would travel whole with each of them."""
    parts = tuple(
        part if place == move.part else msgspec.structs.replace(part, layers=())
        for place, part in enumerate(move.source.parts)
    )
    return msgspec.structs.replace(move, source=msgspec.structs.replace(move.source, parts=parts))


@dataclass(frozen=True)
class FileMoveTask:
    """For `mapInArrow`: numbers of tasks come in, what was staged goes out."""

    tasks: tuple[bytes, ...]
    authority: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with FlightClient(self.authority) as client:
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    yield moved_batch([_outcome(client, move) for move in _moves.decode(self.tasks[task])])


def _outcome(client: FlightClient, move: FileMove) -> MoveResult | TaskFailure:
    try:
        return move_files(client, move)
    except EblaError as error:
        if is_final(error):
            return failure_of(error)
        raise TaskFailed(error) from error
    except OSError as error:
        raise TaskFailed(error) from error


def move_files(client: FlightClient, move: FileMove) -> MoveResult:
    part = move.source.parts[move.part]
    if can_link(move.source, move.target):
        try:
            return link_files(move.source, part, move.target, new_attempt_id())
        except OSError:
            # Gone, full or forbidden: the doors of the nodes say in words which. What was linked is swept there.
            pass
    attempt = new_attempt_id()
    places = [
        CheckpointFileRef(move.part, number, file.name)
        for number, layer in enumerate(part.layers)
        for file in layer.files
    ]
    staged = client.move_files(move.source, places, move.target, attempt)
    return MoveResult(
        transfer=move.target.transfer, attempt=attempt, files=staged, size_bytes=sum(file.size_bytes for file in staged)
    )
