"""Answers queries of rows from an opened checkpoint: in a node's scan workers, and in tasks that read local files."""

from collections.abc import Iterator

import pyarrow as pa

from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import whole_shape
from ebla.storage.scan.range_hashes import HASHES_SCHEMA
from ebla.storage.scan.stack_scan import CheckpointScan, ScanQuery, output_schema
from ebla.wire.transfer_messages import HashesQuery, StoredRowsQuery, TypedRowsQuery


def answer_scan(
    scan: CheckpointScan, query: StoredRowsQuery | TypedRowsQuery | HashesQuery
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Batches in key order. Raises `InvalidRequest` at once for an invalid query; while reading `LayerDamaged`, or
    `Stale` where rows have a newer schema than the one that came with the checkpoint."""
    match query:
        case StoredRowsQuery(range=token_range, conditions=conditions, partitions=partitions):
            if query.by_column and scan.has_columns():
                return whole_shape(scan.schema).arrow_schema, scan.by_column(token_range, conditions, partitions)
            return ROWS_SCHEMA, scan.stored(token_range, conditions, partitions)
        case TypedRowsQuery():
            asked = ScanQuery(
                schema=scan.schema,
                columns=query.columns,
                now_s=query.now_s,
                conditions=query.conditions,
                partitions=query.partitions,
            )
            return output_schema(asked), scan.typed(query.range, asked)
        case HashesQuery():
            return HASHES_SCHEMA, iter((scan.hashes(query.range, query.buckets, query.gc_before_s),))
