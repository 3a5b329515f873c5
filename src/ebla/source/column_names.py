"""Which column of a table a column of Spark's is meant for."""

from ebla.model.schema import Column, TableSchema
from ebla.source.suggestions import missing_column


def find_column(schema: TableSchema, name: str) -> Column:
    """The column of this name or, since Spark's names have no case, the one whose name differs by that alone. Raises
    `NotFound`."""
    found = schema.by_name.get(name)
    if found is not None:
        return found
    alike = [column for column in schema.columns if column.name.lower() == name.lower()]
    if len(alike) != 1:
        raise missing_column(schema.full_name, name, schema.by_name)
    return alike[0]
