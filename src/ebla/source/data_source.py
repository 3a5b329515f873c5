"""The entry points of `format("ebla")`: what Spark's data source calls.

Spark calls each of them in a process of its own, and most of these processes start for nothing else. So each imports
only what it needs.
"""

import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ebla.source.options import parse_read_options

FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def table_schema(options: Mapping[str, str]) -> StructType:
    from ebla.source.read.reader import infer_schema  # start-up time, see above

    return infer_schema(parse_read_options(options))


def make_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    from ebla.source.read.reader import PushdownReader, TableReader  # start-up time, see above

    parsed = parse_read_options(options)
    return (PushdownReader if parsed.takes_filters and _is_filters_worker() else TableReader)(parsed, schema)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    from ebla.source.write import writer  # start-up time, see above

    return writer.make_writer(options, schema, overwrite)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    from ebla.source.write import stream_writer  # start-up time, see above

    return stream_writer.make_stream_writer(options, schema, overwrite)


def _is_filters_worker() -> bool:
    """With `spark.sql.python.filterPushdown.enabled` Spark plans a query that has filters in a Python process of
    another kind, and calls `pushFilters` only there. In other processes a reader with that method is an error while the
    setting is off, and useless while it is on."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return FILTERS_WORKER in sys.modules or (started_as is not None and started_as.name == FILTERS_WORKER)
