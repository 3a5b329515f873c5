"""What `format("ebla")` does, by the names that Spark's data source calls."""

import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ebla.source import stream_writer, writer
from ebla.source.contact import Contact
from ebla.source.options import read_options
from ebla.source.reader import PushingReader, TableReader, asked_columns, describe
from ebla.source.type_mapping import spark_schema

FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def table_schema(options: Mapping[str, str]) -> StructType:
    asked = read_options(options)
    with Contact(asked.access.contact) as contact:
        schema = describe(contact, asked.access)
    return spark_schema(schema, asked_columns(schema, asked))


def make_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    asked = read_options(options)
    return (PushingReader if asked.takes_filters and _is_asked_for_filters() else TableReader)(asked, schema)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    return writer.make_writer(options, schema, overwrite)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    return stream_writer.make_stream_writer(options, schema, overwrite)


def _is_asked_for_filters() -> bool:
    """With `spark.sql.python.filterPushdown.enabled` Spark plans a query that has filters in a Python process of
    another kind, and only there it asks a reader for them. Elsewhere a reader that takes filters is an error while the
    setting is off, and of no use while it is on."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return FILTERS_WORKER in sys.modules or (started_as is not None and started_as.name == FILTERS_WORKER)
