"""What `format("ebla")` does, by the names that Spark's data source calls.

Spark asks in processes of its own, each for one of these, and most of them start for nothing else: only what the one
that is asked for needs is loaded.
"""

import importlib
import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ebla.source.options import parse_read_options

FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def table_schema(options: Mapping[str, str]) -> StructType:
    asked = parse_read_options(options)
    found: StructType = importlib.import_module("ebla.source.read.reader").infer_schema(asked)
    return found


def make_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    asked = parse_read_options(options)
    reader = importlib.import_module("ebla.source.read.reader")
    is_pushing = asked.takes_filters and _is_asked_for_filters()
    found: DataSourceReader = (reader.PushdownReader if is_pushing else reader.TableReader)(asked, schema)
    return found


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    found: DataSourceWriter = importlib.import_module("ebla.source.write.writer").make_writer(
        options, schema, overwrite
    )
    return found


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    streams = importlib.import_module("ebla.source.write.stream_writer")
    found: DataSourceStreamWriter = streams.make_stream_writer(options, schema, overwrite)
    return found


def _is_asked_for_filters() -> bool:
    """With `spark.sql.python.filterPushdown.enabled` Spark plans a query that has filters in a Python process of
    another kind, and only there it asks a reader for them. Elsewhere a reader that takes filters is an error while the
    setting is off, and of no use while it is on."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return FILTERS_WORKER in sys.modules or (started_as is not None and started_as.name == FILTERS_WORKER)
