"""Reading a table, in a task: its split of the plan."""

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


class SplitReader:
    def __init__(self, shown_json: str) -> None:
        self._shown_json = shown_json

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return  # Spark makes an empty partition where the plan has none
        prepare_worker()
        spark_schema = to_arrow_schema(StructType.fromJson(json.loads(self._shown_json)), timezone="UTC")
        split = at_current_time(decode_split(partition.value), time.time())
        kinds = [
            split.schema.column(one.name).type if one.kind is SelectorKind.VALUE else None for one in split.columns
        ]
        names = tuple(f"node {source.host} at {source.flight}" for source in split.sources)
        pause = threading.Event()
        with SplitRows(split, _run()) as rows:
            for split_range in split.ranges:
                for batch in read_with_failover(split_range, rows.open_rows, names, pause.wait):
                    shown = pa.RecordBatch.from_arrays(batch.columns[:-1], batch.schema.names[:-1])
                    yield columns_to_spark(kinds, shown, spark_schema)

    def __reduce__(self) -> ReduceValue:
        return ship(__name__, type(self).__name__, self._shown_json)


def at_current_time(split: InputSplit, wall_s: float) -> InputSplit:
    """A DataFrame that is used again reads the table as it is then: rows that expired since the plan are gone, even
    where nodes still have them on disk."""
    return msgspec.structs.replace(split, now_s=max(split.now_s, int(wall_s)))


def _run() -> str:
    """Identifies the query of this task. Spark plans a DataFrame once and runs it as often as it is used. Each run
    reads the table as it is then; all its tasks read the same snapshot on each node."""
    context = TaskContext.get()
    if context is None:
        return ""
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"query {execution}" if execution else f"stage {context.stageId()}"
