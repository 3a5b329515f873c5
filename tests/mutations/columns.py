"""Bugs of chunks, scans, sidecars, folds and loads: each loses a cell, brings one back, or shows a wrong value."""

from tests.mutations.framework import Mutation, PytestCheck

COLUMNS = PytestCheck("tests/unit/storage/columns/test_chunks.py")
MERGE = PytestCheck("tests/unit/storage/merge/test_chunk_merge.py")
SCAN = PytestCheck("tests/unit/storage/scan/test_stack_scan.py")
FOLD = PytestCheck("tests/unit/storage/compaction/test_compactor.py")
SIDECAR = PytestCheck("tests/unit/storage/columns/test_sidecar.py")
LOAD = PytestCheck("tests/unit/storage/columns/test_load_encoding.py")

MUTATIONS = (
    Mutation(
        name="columns-newest-row-wins-whole",
        module="ebla.storage.merge.chunk_merge",
        find="may_stand = covers & marked & plain",
        replace="may_stand = marked & plain",
        check=MERGE,
        why="a cell that the newest row leaves out is lost",
    ),
    Mutation(
        name="columns-marker-forgotten",
        module="ebla.storage.merge.chunk_merge",
        find="may_stand = covers & marked & plain",
        replace="may_stand = covers & plain",
        check=MERGE,
        why="a row that was inserted vanishes once its cells are deleted",
    ),
    Mutation(
        name="columns-tie-by-place",
        module="ebla.storage.merge.chunk_merge",
        find="(alone & may_stand)",
        replace="may_stand",
        check=MERGE,
        why="of two writes of one microsecond, replicas keep different ones",
    ),
    Mutation(
        name="columns-window-too-long",
        module="ebla.storage.merge.chunk_merge",
        find="end = min(source.last_key() for source in ahead)",
        replace="end = max(source.last_key() for source in ahead)",
        check=MERGE,
        why="a key is there twice, out of order",
    ),
    Mutation(
        name="columns-tokens-are-the-order",
        module="ebla.storage.merge.chunk_merge",
        find="if (same == tokens_tie).all():",
        replace="if True:",
        check=MERGE,
        why="rows of one partition come in the order of their layers",
    ),
    Mutation(
        name="columns-head-forgotten-at-chunk-end",
        module="ebla.storage.merge.partition_heads",
        find="if self.spans and self.spans[-1].end == len(chunk):",
        replace="if False:",
        check=SCAN,
        why="deleted rows of a large partition come back in the next chunk",
    ),
    Mutation(
        name="columns-plain-rows-never-covered",
        module="ebla.storage.merge.partition_heads",
        find="        dropped = self._covered_plain(chunk)\n",
        replace="        dropped: list[int] = []\n",
        check=FOLD,
        why="a fold keeps what a range deletion covers, and it comes back when the deletion goes",
    ),
    Mutation(
        name="columns-slice-without-head",
        module="ebla.storage.scan.stack_scan",
        find='return (head, head + b"\\0"), (row_key(prefix, start), last)',
        replace="return (head, head), (row_key(prefix, start), last)",
        check=SCAN,
        why="a slice shows rows that a range deletion covers",
    ),
    Mutation(
        name="columns-layer-not-clipped",
        module="ebla.storage.scan.stack_scan",
        find="return [part for span in spans for part in clip_span(span, within)]",
        replace="return list(spans) if within else []",
        check=SCAN,
        why="after a split, a half shows rows of the other",
    ),
    Mutation(
        name="columns-bare-rows-shown",
        module="ebla.storage.scan.stack_scan",
        find="return chunk.filter(pa.array(~hidden)) if hidden.any() else chunk",
        replace="return chunk",
        check=SCAN,
        why="rows whose only column was dropped are still there",
    ),
    Mutation(
        name="columns-sidecar-unchecked",
        module="ebla.storage.columns.sidecar",
        find="if len(data) != block.size_bytes or crc32(data, 0) != block.checksum:",
        replace="if len(data) != block.size_bytes:",
        check=SIDECAR,
        why="a flipped bit on disk becomes a wrong value in a report",
    ),
    Mutation(
        name="columns-sidecar-loses-tail",
        module="ebla.storage.columns.sidecar",
        find="            self._write_waiting()\n            self._writer.close()\n",
        replace="            self._writer.close()\n",
        check=SIDECAR,
        why="scans miss the last rows of every base",
    ),
    Mutation(
        name="columns-old-sidecar-as-new",
        module="ebla.storage.columns.sidecar",
        find="if self.index.schema_version != shape.schema.version:",
        replace="if False:",
        check=SCAN,
        why="after a column is dropped, rows that had nothing else are still shown",
    ),
    Mutation(
        name="columns-fold-collects-before-covering",
        module="ebla.storage.compaction.compactor",
        find="left = row if covering is None else without_deleted(row, covering)",
        replace="left = row",
        check=FOLD,
        why="a fold drops a deletion and keeps what it deleted",
    ),
    Mutation(
        name="columns-added-column-complete",
        module="ebla.storage.columns.plain_columns",
        find="            walk.complete[:] &= is_multi_cell(column.type)\n",
        replace="",
        check=COLUMNS,
        why="a row written before a column was added hides that column's cell",
    ),
    Mutation(
        name="columns-null-is-empty",
        module="ebla.storage.columns.plain_columns",
        find="np.where(valid, sizes, -1)",
        replace="np.where(valid, sizes, 0)",
        check=COLUMNS,
        why="a text that was never written reads as an empty one",
    ),
    Mutation(
        name="columns-negative-floats",
        module="ebla.storage.columns.comparable_columns",
        find="    matrix = np.where(negative, ~matrix, matrix)\n    matrix[:, 0] |=",
        replace="    matrix[:, 0] |=",
        check=COLUMNS,
        why="negative numbers of a clustering column are stored where no read finds them",
    ),
    Mutation(
        name="columns-load-forgets-collections",
        module="ebla.storage.columns.load_encoding",
        find="    one_by_one = _has_elements(columns, many, moment)",
        replace="    one_by_one = np.zeros(len(moment), np.bool_)",
        check=LOAD,
        why="a bulk load forgets collections",
    ),
)
