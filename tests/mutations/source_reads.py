"""Bugs of tables read by a user's Spark: rows twice or not at all, filters with another meaning."""

from tests.mutations.framework import Mutation, PytestCheck

FOLLOW = PytestCheck("tests/unit/source/read/test_failover.py")
PLAN = PytestCheck("tests/unit/source/read/test_planner.py")
SHARES = PytestCheck("tests/unit/source/read/test_split_rows.py")
READER = PytestCheck("tests/unit/source/read/test_reader.py")
PUSH = PytestCheck("tests/unit/source/read/test_pushdown.py")
TYPES = PytestCheck("tests/unit/source/test_spark_types.py")
CONTACT = PytestCheck("tests/unit/source/test_contact_points.py")
READS = PytestCheck("tests/unit/bulk/test_table_snapshots.py")

MUTATIONS = (
    Mutation(
        name="source-goes-on-within-a-token",
        module="ebla.source.read.failover",
        function="WholeTokenBuffer.add",
        find='cut = int(np.searchsorted(tokens, last, side="left"))',
        replace="cut = len(tokens)",
        check=FOLLOW,
        why="after a failover in the middle of a partition, the rest of that partition is lost",
    ),
    Mutation(
        name="source-held-rows-let-out-twice",
        module="ebla.source.read.failover",
        function="WholeTokenBuffer.drop_held",
        find="self._held, self._held_bytes, self._held_token = [], 0, None",
        replace="self._held_bytes, self._held_token = 0, None",
        check=FOLLOW,
        why="rows that were buffered when a node crashed are returned twice, by it and by the next one",
    ),
    Mutation(
        name="source-goes-on-in-the-middle-of-a-partition",
        module="ebla.source.read.failover",
        function="read_with_failover",
        find="if whole.is_in_middle:",
        replace="if False:",
        check=FOLLOW,
        why="a large partition is read again from its start although many of its rows were already returned",
    ),
    Mutation(
        name="source-level-reached-by-failed-sources",
        module="ebla.source.read.failover",
        function="choose_replicas",
        find="left = [source for source in members if source not in failures]",
        replace="left = list(members)",
        check=FOLLOW,
        why="a failed node is retried for ever instead of one that would answer",
    ),
    Mutation(
        name="source-parts-of-a-range-left-out",
        module="ebla.source.read.planner",
        function="_clipped",
        find="if other.start >= mine.end:",
        replace="if other.start >= mine.end or clipped:",
        check=PLAN,
        why="of several ranges in a query, only the first of each tablet is read",
    ),
    Mutation(
        name="source-asks-for-all-where-none-is-named",
        module="ebla.source.read.split_rows",
        function="SplitRows.open_rows",
        find="if split.partitions and not partitions:",
        replace="if False:",
        check=SHARES,
        why="all partitions of the range after the last one that a query names are read",
    ),
    Mutation(
        name="source-shows-what-has-expired",
        module="ebla.source.read.split_reader",
        function="at_current_time",
        find="now_s=max(split.now_s, int(wall_s))",
        replace="now_s=split.now_s",
        check=READER,
        why="a DataFrame that is used again hours later shows expired rows",
    ),
    Mutation(
        name="source-joins-pieces-of-other-replicas",
        module="ebla.source.read.planner",
        function="_joined",
        find="key = (tuple(sorted(part.planned.sources)), part.planned.needed, part.planned.groups)",
        replace="key = (part.planned.needed, part.planned.groups)",
        check=PLAN,
        why="each task depends on every node, and one that is down fails them all",
    ),
    Mutation(
        name="source-order-of-floating-numbers-pushed",
        module="ebla.source.read.pushdown",
        function="",
        find="Scalar.INT: _Rule(_integer),",
        replace="Scalar.INT: _Rule(_integer),\nScalar.DOUBLE: _Rule(lambda value: value),",
        check=PUSH,
        why="-0.0 and 0.0 are equal to Spark and not to CQL",
    ),
    Mutation(
        name="source-uuids-compared-as-texts",
        module="ebla.source.read.pushdown",
        function="",
        find="Scalar.UUID: _Rule(_uuid, is_equality_only=True)",
        replace="Scalar.UUID: _Rule(_uuid)",
        check=PUSH,
        why="the order of uuids in CQL differs from the order of their texts in Spark",
    ),
    Mutation(
        name="source-partitions-without-their-other-conditions",
        module="ebla.source.read.pushdown",
        function="push_filters",
        find="one.column not in keys or one.operator not in _EQUALITY",
        replace="one.column not in keys",
        check=PUSH,
        why="a partition that is named but excluded by a range is returned",
    ),
    Mutation(
        name="source-timestamps-rounded",
        module="ebla.source.arrow_conversion",
        function="_scalar_to_stored",
        find="case Scalar.TIMESTAMP if pa.types.is_timestamp(column.type) and cuts_timestamps:",
        replace="case Scalar.TIMESTAMP if pa.types.is_timestamp(column.type):",
        check=TYPES,
        why="microseconds are lost silently",
    ),
    Mutation(
        name="source-slices-of-lists-from-their-begin",
        module="ebla.source.arrow_conversion",
        function="_offsets_and_child",
        find="return (offsets - first).astype(np.int32), child.slice(first, last - first)",
        replace="return (offsets - first).astype(np.int32), child.slice(0, last - first)",
        check=TYPES,
        why="lists in a slice of a batch contain elements of other rows",
    ),
    Mutation(
        name="source-statement-of-unknown-outcome-sent-again",
        module="ebla.source.contact_points",
        function="CqlClient._with_failover",
        find="if error.outcome is Outcome.UNKNOWN and not is_idempotent:",
        replace="if False:",
        check=CONTACT,
        why="a table is truncated a second time, after others have written rows",
    ),
    Mutation(
        name="source-runs-share-a-point",
        module="ebla.bulk.tickets",
        function="for_run",
        find="return msgspec.structs.replace(grant, subject=uuid.uuid5(grant.subject, run)) if run else grant",
        replace="return grant",
        check=READS,
        why="a DataFrame that is used again does not see rows written since its first use",
    ),
)
