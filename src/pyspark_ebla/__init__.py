"""Spark finds this package by its name: `spark.read.format("ebla")` needs no registration.

Spark imports every package of such a name whenever it looks for data sources, so this one imports nothing of Ebla until
a table is used.
"""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Tables of Ebla. The work is done in `ebla.source.data_source`, imported on first use."""

    _is_planned = False

    @classmethod
    def name(cls) -> str:
        return "ebla"

    def schema(self) -> StructType:
        from ebla.source import data_source  # on first use, see above

        return data_source.table_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ebla.source import data_source  # on first use, see above

        # What is pickled from here on goes to executors, which do not need the password.
        self._is_planned = True
        return data_source.make_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ebla.source import data_source  # on first use, see above

        return data_source.make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from ebla.source import data_source  # on first use, see above

        return data_source.make_stream_writer(self.options, schema, overwrite)

    def __reduce__(self) -> Any:
        from ebla.source.code_shipping import ship  # on first use, see above

        options = {} if self._is_planned else dict(self.options)
        return ship(__name__, type(self).__name__, options)
