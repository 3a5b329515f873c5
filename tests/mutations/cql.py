"""Bugs of the language: what a statement means, what it refuses, what it shows."""

from tests.mutations.framework import Mutation, PytestCheck

BIND = PytestCheck("tests/unit/cql/plan/test_binder.py")
RESTRICTIONS = PytestCheck("tests/unit/cql/plan/test_restrictions.py")
SPANS = PytestCheck("tests/unit/cql/plan/test_key_spans.py")
WRITES = PytestCheck("tests/unit/cql/plan/test_modification_plan.py")
SELECT = PytestCheck("tests/unit/cql/plan/test_select_plan.py")
SCHEMA = PytestCheck("tests/unit/cql/plan/test_schema_plan.py")
DESCRIBE = PytestCheck("tests/unit/cql/test_describe.py")
SYSTEM = PytestCheck("tests/unit/cql/test_system_tables.py")
EXECUTE = PytestCheck("tests/unit/cql/test_executor.py")
CACHES = PytestCheck("tests/unit/cql/test_lru_cache.py")

MUTATIONS = (
    Mutation(
        name="cql-slice-forgets-that-a-column-descends",
        module="ebla.cql.plan.key_spans",
        find="        beyond = end.is_lower != column.descending\n",
        replace="        beyond = end.is_lower\n",
        check=SPANS,
        why="a slice of a table in descending order shows the other rows",
    ),
    Mutation(
        name="cql-bound-values-unchecked",
        module="ebla.cql.plan.binder",
        find="            if type(value) is bytes and check(value):\n",
        replace="            if type(value) is bytes and not value and check(value):\n",
        check=BIND,
        why="bytes that are no value of the column are stored, and no client can read the row again",
    ),
    Mutation(
        name="cql-sets-keep-the-order-of-the-text",
        module="ebla.cql.plan.binder",
        find="        ordered = sorted(kept, key=lambda part: encode_comparable(element, part))\n",
        replace="        ordered = list(kept)\n",
        check=BIND,
        why="two equal frozen sets are different keys",
    ),
    Mutation(
        name="cql-unset-deletes",
        module="ebla.cql.plan.row_changes",
        find="        if isinstance(value, Unset):\n            return\n        draft.cells[number]",
        replace="        if isinstance(value, Unset):\n            value = None\n        draft.cells[number]",
        check=WRITES,
        why="a driver that leaves a column out deletes it",
    ),
    Mutation(
        name="cql-whole-collection-leaves-the-old-elements",
        module="ebla.cql.plan.row_changes",
        find="element_cells(column, kind, value, draft), draft.times.deletion_before())\n",
        replace="element_cells(column, kind, value, draft))\n",
        check=WRITES,
        why="assigning a list adds to what was there",
    ),
    Mutation(
        name="cql-appends-of-one-batch-share-a-place",
        module="ebla.cql.plan.row_changes",
        find="            first = draft.order << _PLACE_BITS\n",
        replace="            first = 0\n",
        check=EXECUTE,
        why="of two elements added to a list in one batch one is lost",
    ),
    Mutation(
        name="cql-default-time-to-live-ignored",
        module="ebla.cql.plan.modification_plan",
        find="        default_s = self.schema.options.default_ttl_s\n",
        replace="        default_s = 0\n",
        check=WRITES,
        why="rows of a table that should expire stay for ever",
    ),
    Mutation(
        name="cql-update-marks-its-row",
        module="ebla.cql.plan.modification_plan",
        find="        return self._plan(restrictions, statement.using)\n",
        replace="        return self._plan(restrictions, statement.using, marks_row=True)\n",
        check=WRITES,
        why="a row whose last column is deleted does not go away",
    ),
    Mutation(
        name="cql-filtering-never-demanded",
        module="ebla.cql.plan.select_plan",
        find="    if not statement.allow_filtering:\n",
        replace="    if statement.allow_filtering:\n",
        check=RESTRICTIONS,
        why="a statement reads the whole table without anybody having asked for that",
    ),
    Mutation(
        name="cql-limit-starts-again-on-every-page",
        module="ebla.cql.plan.select_plan",
        find="            left -= len(rows)\n",
        replace="",
        check=SELECT,
        why="LIMIT 10 shows ten rows of every page",
    ),
    Mutation(
        name="cql-replicas-cut-what-is-filtered-afterwards",
        module="ebla.cql.plan.select_plan",
        find="        if self.filters:\n            return 0\n",
        replace="",
        check=SELECT,
        why="PER PARTITION LIMIT with a filter misses rows",
    ),
    Mutation(
        name="cql-reversed-pages-end-with-a-row-that-is-not-there",
        module="ebla.cql.plan.row_source",
        find="            self._shown.update(one.prefix for one in found)\n",
        replace="            self._shown.clear()\n",
        check=SELECT,
        why="a partition's statics show up once more as a row without keys",
    ),
    Mutation(
        name="cql-plans-outlive-their-table",
        module="ebla.cql.executor",
        find="        return schema is None or self._parts.view.current.schemas.get(schema.id) is schema\n",
        replace="        return True\n",
        check=EXECUTE,
        why="a prepared statement goes on writing by a schema that was altered",
    ),
    Mutation(
        name="cql-batch-statements-draw-their-own-times",
        module="ebla.cql.executor",
        find="            mutations += compiled.plan.mutations(bound, replace(moment, sequence=sequence), known)\n",
        replace="            mutations += compiled.plan.mutations(bound, self._moment(parameters), known)\n",
        check=EXECUTE,
        why="half a batch is newer than a write that came between",
    ),
    Mutation(
        name="cql-caches-forget-the-newest",
        module="ebla.cql.lru_cache",
        find="            del self._entries[next(iter(self._entries))]\n",
        replace="            del self._entries[next(reversed(self._entries))]\n",
        check=CACHES,
        why="once full, nothing that is prepared can be executed",
    ),
    Mutation(
        name="cql-alter-keyspace-resets-durable-writes",
        module="ebla.cql.plan.schema_plan",
        find="    kept = before is None or before.durable_writes\n",
        replace="    kept = True\n",
        check=SCHEMA,
        why="changing a replication factor changes something else",
    ),
    Mutation(
        name="cql-describe-forgets-quotes",
        module="ebla.cql.create_statements",
        find="    if _PLAIN.fullmatch(name) and name.upper() not in RESERVED_WORDS:\n",
        replace="    if name.upper() not in RESERVED_WORDS:\n",
        check=DESCRIBE,
        why="a schema that was described creates other names",
    ),
    Mutation(
        name="cql-topology-without-its-transition",
        module="ebla.cql.system_tables.topology_tables",
        find='        "transition_state": state.transition,\n',
        replace="",
        check=SYSTEM,
        why="whoever watches a join sees a cluster at rest",
    ),
    Mutation(
        name="cql-bare-partitions-hidden",
        module="ebla.cql.plan.row_decoder",
        find="        if self._held is not None:\n            held",
        replace="        if self._held is not None and not self._static:\n            held",
        check=SELECT,
        why="a partition that has static values alone is not there",
    ),
)
