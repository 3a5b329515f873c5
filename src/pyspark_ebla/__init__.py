"""Found by Spark by its name: `spark.read.format("ebla")` needs no registration.

Spark imports every module of such a name whenever it looks for data sources, so this one imports nothing of ours until
somebody uses it.
"""

import importlib
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Tables of Ebla. What it does stands in `ebla.source.data_source`."""

    _is_planned = False

    @classmethod
    def name(cls) -> str:
        return "ebla"

    def schema(self) -> StructType:
        found: StructType = _source().table_schema(self.options)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        # What is pickled from here on goes to executors, where nobody needs a password.
        self._is_planned = True
        found: DataSourceReader = _source().make_reader(self.options, schema)
        return found

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        found: DataSourceWriter = _source().make_writer(self.options, schema, overwrite)
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        found: DataSourceStreamWriter = _source().make_stream_writer(self.options, schema, overwrite)
        return found

    def __reduce__(self) -> Any:
        options = {} if self._is_planned else dict(self.options)
        return importlib.import_module("ebla.source.code_shipping").ship(__name__, type(self).__name__, options)


def _source() -> Any:
    return importlib.import_module("ebla.source.data_source")
