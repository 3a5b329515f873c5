"""Bugs of scans for jobs: each shows a row that was not requested, leaves one out, or returns a wrong write time."""

from tests.mutations.framework import Mutation, PytestCheck

SCAN = PytestCheck("tests/unit/storage/scan/test_stack_scan.py")
CONDITIONS = PytestCheck("tests/unit/storage/scan/test_key_filter.py")
MERGE = PytestCheck("tests/unit/storage/merge/test_chunk_merge.py")
REPLICAS = PytestCheck("tests/unit/source/read/test_replica_merge.py")

MUTATIONS = (
    Mutation(
        name="scans-times-of-other-rows-forgotten",
        module="ebla.storage.codec.live_rows",
        function="VisibleTransform.row",
        find="self.note(item[0], row)",
        replace="pass",
        check=SCAN,
        why="the write time of a partly updated row is read as the year 1970",
    ),
    Mutation(
        name="scans-expired-cells-have-times",
        module="ebla.storage.scan.scan_columns",
        function="cell_time",
        find="if cell is None or not cell.is_live(now_s):",
        replace="if cell is None:",
        check=SCAN,
        why="a deleted cell has a write time",
    ),
    Mutation(
        name="scans-conditions-drop-heads",
        module="ebla.storage.scan.key_filter",
        function="KeyFilter.kept",
        find="keep &= (met | is_head) if test.of_rows else met",
        replace="keep &= met",
        check=SCAN,
        why="rows of a deleted partition come back in a filtered read",
    ),
    Mutation(
        name="scans-conditions-leave-lonely-heads",
        module="ebla.storage.scan.stack_scan",
        function="_View.__init__",
        find="self._shows_static and not self._filter.needs_rows",
        replace="self._shows_static",
        check=SCAN,
        why="a partition without any row meets a condition on rows",
    ),
    Mutation(
        name="scans-floats-compared-by-arrow",
        module="ebla.storage.scan.key_filter",
        function="",
        find="Scalar.TIMESTAMP, Scalar.TINYINT,\n)",
        replace="Scalar.TIMESTAMP, Scalar.TINYINT, Scalar.DOUBLE, Scalar.FLOAT,\n)",
        check=CONDITIONS,
        why="NaN, the greatest number of CQL, is left out of everything",
    ),
    Mutation(
        name="scans-descending-slice-turned",
        module="ebla.storage.scan.key_filter",
        function="_bounded",
        find="(_UPPER, _LOWER) if column.descending else (_LOWER, _UPPER)",
        replace="(_LOWER, _UPPER)",
        check=CONDITIONS,
        why="a slice of a descending column is read from the wrong end",
    ),
    Mutation(
        name="scans-partitions-unordered",
        module="ebla.storage.scan.stack_scan",
        function="query_spans",
        find="for prefix in sorted(set(query.partitions))",
        replace="for prefix in query.partitions",
        check=SCAN,
        why="rows of layers that are read in different orders are not merged",
    ),
    Mutation(
        name="scans-rows-of-one-time-are-the-same",
        module="ebla.storage.merge.chunk_merge",
        function="same_rows",
        find="found &= _same_values(column.type, one.column(name), other.column(name))",
        replace="pass",
        check=MERGE,
        why="of two writes with the same timestamp, replicas keep different ones",
    ),
    Mutation(
        name="scans-minus-zero-is-zero",
        module="ebla.storage.merge.chunk_merge",
        function="_same_values",
        find="if one.type in _BITS:",
        replace="if not len(one):",
        check=MERGE,
        why="of replicas that differ in the sign of a zero, the first one wins",
    ),
    Mutation(
        name="scans-newest-need-not-agree",
        module="ebla.storage.merge.chunk_merge",
        function="_winners",
        find="settled |= may_stand & _newest_agree(shape, chunk, groups, (looked_at, winners))",
        replace="settled |= may_stand",
        check=MERGE,
        why="of two writes with the same timestamp and an older one, the position wins",
    ),
    Mutation(
        name="scans-columns-of-another-version-uncounted",
        module="ebla.source.read.replica_merge",
        function="_chunk",
        find="return with_completeness(shape, pa.RecordBatch.from_arrays(columns, schema=wanted))",
        replace="return pa.RecordBatch.from_arrays(columns, schema=wanted)",
        check=REPLICAS,
        why="a row whose only column was dropped is still shown",
    ),
)
