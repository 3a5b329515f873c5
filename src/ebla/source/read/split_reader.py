"""Reading a table in tasks: each reads the share that the plan gave it."""

import json
import threading
import time
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ebla.model.selection import SelectorKind
from ebla.source.arrow_conversion import columns_to_spark
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.read.failover import read_with_failover
from ebla.source.read.planner import InputSplit, decode_split
from ebla.source.read.split_rows import SplitRows
from ebla.transfers.spark_worker import prepare_worker


class ShareReader:
    def __init__(self, shown_json: str) -> None:
        self._shown_json = shown_json

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return  # Spark makes one where there are none
        prepare_worker()
        wanted = to_arrow_schema(StructType.fromJson(json.loads(self._shown_json)), timezone="UTC")
        share = at_current_time(decode_split(partition.value), time.time())
        kinds = [
            share.schema.column(one.name).type if one.kind is SelectorKind.VALUE else None for one in share.columns
        ]
        names = tuple(f"node {source.host} at {source.flight}" for source in share.sources)
        pause = threading.Event()
        with SplitRows(share, _run()) as rows:
            for piece in share.pieces:
                for batch in read_with_failover(piece, rows.of, names, pause.wait):
                    shown = pa.RecordBatch.from_arrays(batch.columns[:-1], batch.schema.names[:-1])
                    yield columns_to_spark(kinds, shown, wanted)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, type(self).__name__, self._shown_json)


def at_current_time(share: InputSplit, wall_s: float) -> InputSplit:
    """A frame that is used again reads the table as it is then: what has expired since it was planned is gone, though
    nodes may still have it on disk."""
    return msgspec.structs.replace(share, now_s=max(share.now_s, int(wall_s)))


def _run() -> str:
    """Of the query that this task is of. Spark plans a frame once and runs it as often as it is used; each run reads
    the table as it is then, in all its tasks as of one point on each node."""
    context = TaskContext.get()
    if context is None:
        return ""
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"query {execution}" if execution else f"stage {context.stageId()}"
