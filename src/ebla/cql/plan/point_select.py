"""The fast path of SELECT for one row by its full primary key, which most reads are.

It returns the same as the plan it is made from, in fewer steps: one key, one read, and the needed cells sliced from a
plain row. Plans with static columns, write times, LIMIT or functions have no fast path, and rows that are not plain are
decoded by the plan's own decoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.restrictions import KeyValueSource, check_partition_key, row_key_sources
from ebla.cql.plan.row_decoder import RowDecoder, RowValues, cell_indexes, key_indexes
from ebla.cql.plan.select_plan import SelectPlan
from ebla.model.schema import ColumnKind, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.storage.codec.key_codec import decode_clustering, encode_clustering, partition_prefix, row_key
from ebla.storage.codec.row_codec import is_plain, schema_version, take_plain_cells
from ebla.wire.cql.messages import ColumnSpec, Rows
from ebla.wire.row_messages import Item


class PointRead(msgspec.Struct, frozen=True, gc=False):
    """The row that one request reads."""

    partition: Sequence[bytes]
    clustering: bytes
    query: ReadQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSelectPlan:
    schema: TableSchema
    plan: SelectPlan
    columns: tuple[ColumnSpec, ...]
    width: int
    partition: tuple[KeyValueSource, ...]
    clustering: tuple[KeyValueSource, ...]
    partition_indexes: tuple[tuple[int, int], ...]
    """Pairs of index in the result and position in the partition key."""
    clustering_indexes: tuple[tuple[int, int], ...]
    cell_indexes: tuple[int, ...]
    """The index in the result of each cell of a plain row, up to the last one selected; -1: not selected."""

    def point(self, request: BoundRequest) -> PointRead:
        """Raises `InvalidRequest` if a key column has no value."""
        partition = [part(request) for part in self.partition]
        key = check_partition_key(composite_key(partition))
        clustering = b""
        if self.clustering:
            clustering = encode_clustering(self.schema.clustering, [part(request) for part in self.clustering])
        start = row_key(partition_prefix(token_of(key), key), clustering)
        query = ReadQuery(
            table=self.schema.id, spans=((start, start + b"\0"),), rows_max=1, now_s=request.now_us // 1_000_000
        )
        return PointRead(partition, clustering, query)

    def rows(self, point: PointRead, page: ReadPage) -> Rows:
        return Rows(self.columns, [self._values(point, item) for item in page.items])

    def _values(self, point: PointRead, item: Item) -> RowValues:
        stored = item[1]
        if not is_plain(stored) or schema_version(stored) != self.schema.version:
            return self._decode_any(point, item)
        values: RowValues = [None] * self.width
        for index, position in self.partition_indexes:
            values[index] = point.partition[position]
        if self.clustering_indexes:
            parts = decode_clustering(self.schema.clustering, point.clustering)
            for index, position in self.clustering_indexes:
                values[index] = parts[position]
        take_plain_cells(stored, self.cell_indexes, values)
        return values

    def _decode_any(self, point: PointRead, item: Item) -> RowValues:
        needed = self.plan.needs.columns
        reader = RowDecoder(self.schema, needed, point.query.now_s, with_cells=False)
        (found,) = reader.rows([item], bare_partitions=False)
        return [found.values[output.index] for output in self.plan.outputs if output.index is not None]


def point_select(plan: SelectPlan) -> PointSelectPlan | None:
    """None if the plan is not a read of one row by its key."""
    schema, restrictions = plan.schema, plan.restrictions
    keys = row_key_sources(schema, restrictions)
    is_point = not (restrictions.ends or restrictions.tokens or plan.filters)
    is_bare = not (plan.limit or plan.partition_limit or plan.distinct or plan.sorts or plan.is_aggregate)
    if keys is None or not is_point or not is_bare or schema.static or plan.needs.with_cells:
        return None
    columns = [plan.needs.columns[output.index] for output in plan.outputs if output.index is not None]
    is_plain = len(columns) == len(plan.outputs)
    if not is_plain or len({column.number for column in columns}) < len(columns):
        return None  # not only columns, or one of them twice: then it has two indexes
    by_number = {column.number: index for index, column in enumerate(columns) if column.kind is ColumnKind.REGULAR}
    return PointSelectPlan(
        schema=schema,
        plan=plan,
        columns=plan.columns,
        width=len(columns),
        partition=keys.partition,
        clustering=keys.clustering,
        partition_indexes=tuple(key_indexes(columns, ColumnKind.PARTITION_KEY)),
        clustering_indexes=tuple(key_indexes(columns, ColumnKind.CLUSTERING)),
        cell_indexes=tuple(cell_indexes(schema, by_number)),
    )
