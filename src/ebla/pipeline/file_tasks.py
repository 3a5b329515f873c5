"""Tasks that copy the files of checkpoints into staging.

Each move of each task attempt has its own attempt id, so no two ever write to the same folder, even if Spark runs a
task again or twice at once.
"""

from functools import partial

import msgspec
import pyarrow as pa

from ebla.model.transfers import FileMove, MoveResult
from ebla.pipeline.task_outcome import outcome_batch
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.transfers.link_path import can_link, link_files
from ebla.transfers.spark_worker import new_attempt_id


def trim_file_move(move: FileMove) -> FileMove:
    """Without the files of other parts: otherwise each move of a checkpoint of many tablets would carry them all."""
    parts = tuple(
        part if number == move.part else msgspec.structs.replace(part, layers=())
        for number, part in enumerate(move.source.parts)
    )
    return msgspec.structs.replace(move, source=msgspec.structs.replace(move.source, parts=parts))


def file_move_outcome(client: FlightClient, move: FileMove) -> pa.RecordBatch:
    return outcome_batch(partial(move_files, client, move))


def move_files(client: FlightClient, move: FileMove) -> list[MoveResult]:
    part = move.source.parts[move.part]
    if can_link(move.source, move.target):
        try:
            return [link_files(move.source, part, move.target, new_attempt_id())]
        except OSError:
            # Gone, full or forbidden: over Flight the node reports which. Linked files are removed with the session.
            pass
    attempt = new_attempt_id()
    files = [
        CheckpointFileRef(move.part, number, file.name)
        for number, layer in enumerate(part.layers)
        for file in layer.files
    ]
    staged = client.move_files(move.source, files, move.target, attempt)
    size = sum(file.size_bytes for file in staged)
    return [MoveResult(transfer=move.target.transfer, attempt=attempt, files=staged, size_bytes=size)]
