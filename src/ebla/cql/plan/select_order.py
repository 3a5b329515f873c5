"""ORDER BY and DISTINCT: what they allow, in the words people know. Pure."""

from ebla.cql.parse.statements import SelectedColumn, SelectStatement
from ebla.cql.plan.restrictions import Restrictions, columns_of
from ebla.model.errors import InvalidRequest
from ebla.model.schema import ColumnKind, TableSchema


def reads_reversed(schema: TableSchema, statement: SelectStatement, restrictions: Restrictions) -> bool:
    """Whether rows come from the last to the first. Raises `InvalidRequest` for an order that keys cannot give."""
    if not statement.order_by:
        return False
    if not restrictions.has_partition:
        raise InvalidRequest("ORDER BY is only supported when the partition key is restricted by an EQ or an IN.")
    fixed = _fixed_columns(schema, restrictions)
    expected = 0
    directions: list[bool] = []
    for ordering in statement.order_by:
        column = schema.by_name.get(ordering.column)
        if column is None:
            raise InvalidRequest(f"Undefined column name {ordering.column} in table {schema.full_name}")
        if column.kind is not ColumnKind.CLUSTERING:
            raise InvalidRequest(
                "Order by is currently only supported on the clustered columns of the PRIMARY KEY, got "
                f"{ordering.column}"
            )
        while expected < column.position and expected in fixed:
            expected += 1
        if column.position != expected:
            raise InvalidRequest(
                "Order by currently only supports the ordering of columns following their declared order in the "
                "PRIMARY KEY"
            )
        expected += 1
        directions.append(ordering.descending != column.descending)
    if len(set(directions)) > 1:
        raise InvalidRequest("Unsupported order by relation")
    return directions[0]


def _fixed_columns(schema: TableSchema, restrictions: Restrictions) -> frozenset[int]:
    """Clustering columns that have one value."""
    fixed: list[int] = []
    at = 0
    for group in restrictions.clustering:
        if group.is_single:
            fixed += range(at, at + group.width)
        at += group.width
    assert at <= len(schema.clustering)
    return frozenset(fixed)


def check_distinct(schema: TableSchema, statement: SelectStatement, restrictions: Restrictions) -> None:
    filtered = [schema.by_name[name].kind for relation in restrictions.filters for name in columns_of(relation)]
    within = any(kind not in (ColumnKind.PARTITION_KEY, ColumnKind.STATIC) for kind in filtered)
    if restrictions.clustering or restrictions.ends or within:
        raise InvalidRequest(
            "SELECT DISTINCT with WHERE clause only supports restriction by partition key and/or static columns."
        )
    names: list[str] = []
    for selector in statement.selectors:
        if not isinstance(selector, SelectedColumn):
            continue
        column = schema.by_name[selector.column]
        if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.STATIC):
            raise InvalidRequest(
                "SELECT DISTINCT queries must only request partition key columns and/or static columns "
                f"(not {column.name})"
            )
        names.append(column.name)
    if not statement.selectors:
        raise InvalidRequest("SELECT DISTINCT queries must only request partition key columns and/or static columns")
    missing = [column.name for column in schema.partition_key if column.name not in names]
    if missing and not restrictions.has_partition:
        raise InvalidRequest(
            f"SELECT DISTINCT queries must request all the partition key columns (missing {missing[0]})"
        )
