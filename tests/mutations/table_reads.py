"""Bugs of reads of whole tables at the bulk process: which copy is read, what it holds, how long it is kept."""

from tests.mutations.framework import Mutation, PytestCheck

READS = PytestCheck("tests/unit/bulk/test_table_snapshots.py")
COVERAGE = PytestCheck("tests/unit/bulk/test_read_coverage.py")
SHARD = PytestCheck("tests/unit/replica/test_checkpoints.py")

MUTATIONS = (
    # -- what is there
    Mutation(
        name="table-reads-coverage-not-checked",
        module="ebla.bulk.table_snapshots",
        find="        if not point.coverage.has(asked, grant.lives):\n",
        replace="        if not asked.width:\n",
        check=READS,
        why="a tablet that has moved away is read as one without rows, and a job counts too few",
    ),
    Mutation(
        name="table-reads-another-life-will-do",
        module="ebla.bulk.table_snapshots",
        find="        if not point.coverage.has(asked, grant.lives):\n",
        replace="        if not point.coverage.has(asked, point.coverage.lives):\n",
        check=READS,
        why="two copies of one replica are taken for a quorum, and what a third had acknowledged is missing",
    ),
    Mutation(
        name="table-reads-part-of-a-range-is-enough",
        module="ebla.bulk.read_coverage",
        find="    return all(any(one.covers(piece) for one in ranges) for piece in asked.unwrapped())\n",
        replace="    return any(one.overlaps(piece) for one in ranges for piece in asked.unwrapped())\n",
        check=COVERAGE,
        why="of a range that reaches into another node's the rows of that one are missing",
    ),
    Mutation(
        name="table-reads-owned-afterwards-is-enough",
        module="ebla.bulk.read_coverage",
        find="        if _covers(before.by_shard.get(part.shard, ()), part.range)\n        and _covers(",
        replace="        if _covers(",
        check=COVERAGE,
        why="a replica is read that was still being filled when its files were linked",
    ),
    Mutation(
        name="table-reads-owned-before-is-enough",
        module="ebla.bulk.read_coverage",
        find="    ranges = _common(before.of_node, after.of_node)\n",
        replace="    ranges = before.of_node\n",
        check=COVERAGE,
        why="a range is read that the node had given away, and cleaned, before its files were linked",
    ),
    Mutation(
        name="table-reads-any-shard-of-the-node-will-do",
        module="ebla.bulk.read_coverage",
        find="            if replica.host == host:\n"
        "                by_shard.setdefault(replica.shard, []).append(tablet)\n",
        replace="            if replica.host == host:\n"
        "                for number in range(shard_count):\n"
        "                    by_shard.setdefault(ShardNumber(number), []).append(tablet)\n",
        check=COVERAGE,
        why="while a tablet moves between two shards of a node the half filled copy is read for the whole one",
    ),
    Mutation(
        name="table-reads-vnodes-without-one-of-the-shards",
        module="ebla.bulk.read_coverage",
        find="    if any(ShardNumber(number) not in there for number in range(after.shard_count)):\n",
        replace="    if not there:\n",
        check=COVERAGE,
        why="the rows of a shard that had no stack yet are missing, and nobody is told",
    ),
    # -- at which point
    Mutation(
        name="table-reads-taken-without-a-read-barrier",
        module="ebla.bulk.table_snapshots",
        find="        await parts.guards.catch_up(min(deadline_ms, parts.limits.barrier_ms))\n",
        replace="",
        check=READS,
        why="a node that has not heard of a move serves the copy that writes do not reach any more",
    ),
    Mutation(
        name="table-reads-shards-not-held-to-the-version",
        module="ebla.bulk.table_snapshots",
        find="        asked = max(version, before.version)\n",
        replace="        asked = ANY_VERSION\n",
        check=READS,
        why="a shard that is behind links its files before it takes the writes that were acknowledged",
    ),
    Mutation(
        name="table-reads-judged-behind-the-shard",
        module="ebla.bulk.table_snapshots",
        find="            after = await self._view_at(record.version, deadline_ms)\n",
        replace="            after = parts.view.current\n",
        check=READS,
        why="a shard that knew of a change is judged by a topology without it",
    ),
    Mutation(
        name="table-reads-read-by-the-schema-from-before",
        module="ebla.bulk.table_snapshots",
        find="            schema = self._schema(after, table)\n",
        replace="            self._schema(after, table)\n            schema = self._schema(before, table)\n",
        check=READS,
        why="rows that were written just after a column was added cannot be read",
    ),
    Mutation(
        name="table-reads-shard-does-not-wait-for-the-version",
        module="ebla.replica.checkpoints",
        find="        await wait_version(parts, request.version, deadline_ms)\n        if request.session is None:\n",
        replace="        if request.session is None:\n",
        check=SHARD,
        why="a checkpoint lacks writes that were routed to the shard by a version that it had not installed",
    ),
    Mutation(
        name="table-reads-a-new-point-for-each-question",
        module="ebla.bulk.table_snapshots",
        find="                if kept.point is None or not await",
        replace="                if kept.point is None or version == ANY_VERSION or not await",
        check=READS,
        why="the tasks of one job read a tablet at as many points",
    ),
    Mutation(
        name="table-reads-opened-again-without-what-came",
        module="ebla.bulk.table_snapshots",
        find="        return _places(view, point.record.table) is point.places\n",
        replace="        return view.version >= version\n",
        check=READS,
        why="a job that plans again is sent to a node for a tablet, and away from it, for ever",
    ),
    Mutation(
        name="table-reads-opened-for-nobody",
        module="ebla.bulk.flight_streams",
        find="            self._calls.tell(self._close, opened)\n",
        replace="            self._calls.tell(self._close, list(opened))\n",
        check=PytestCheck(
            "tests/unit/bulk/test_flight_reads.py::test_what_is_opened_after_its_thread_gave_up_is_let_go"
        ),
        why="a checkpoint that was ready a moment too late is in use until its ticket ends",
    ),
    # -- how long
    Mutation(
        name="table-reads-dropped-under-a-stream",
        module="ebla.bulk.table_snapshots",
        find="        return not self.askers and (self.point is None or not self.point.uses)\n",
        replace="        return not self.askers\n",
        check=READS,
        why="files go from under a task that reads slowly",
    ),
    Mutation(
        name="table-reads-removed-under-a-stream",
        module="ebla.bulk.table_snapshots",
        find="        while (point := next((one for one in self._leaving if not one.uses), None)) is not None:\n",
        replace="        while (point := next(iter(self._leaving), None)) is not None:\n",
        check=READS,
        why="files go from under a task when its read is opened again",
    ),
    Mutation(
        name="table-reads-given-up-while-it-is-taken",
        module="ebla.bulk.table_snapshots",
        find="        return not self.askers and (self.point is None or not self.point.uses)\n",
        replace="        return self.point is None or not self.point.uses\n",
        check=READS,
        why="a checkpoint is taken that nobody knows of, and its files stay until the process ends",
    ),
    Mutation(
        name="table-reads-idle-for-ever",
        module="ebla.bulk.table_snapshots",
        find="            idle = kept.is_closed or now_ms - kept.used_ms >= self._parts.limits.reads_idle_ms\n",
        replace="            idle = kept.is_closed\n",
        check=READS,
        why="each job that ends without a word keeps the files of its table on all disks",
    ),
    Mutation(
        name="table-reads-kept-after-a-drop",
        module="ebla.bulk.table_snapshots",
        find="(kept.table not in tables or now_ms >= kept.expires_ms):\n",
        replace="now_ms >= kept.expires_ms:\n",
        check=READS,
        why="the space of a dropped table does not come back while a task is frozen",
    ),
    Mutation(
        name="table-reads-outlive-their-tickets",
        module="ebla.bulk.table_snapshots",
        find="(kept.table not in tables or now_ms >= kept.expires_ms):\n",
        replace="kept.table not in tables:\n",
        check=READS,
        why="a task that is frozen in the middle of a stream keeps files for ever",
    ),
    Mutation(
        name="table-reads-everyone-takes",
        module="ebla.bulk.table_snapshots",
        find="            async with kept.taking:\n                if",
        replace="            if True:\n                if",
        check=READS,
        why="two hundred tasks that begin at once make all shards link two hundred copies",
    ),
    Mutation(
        name="table-reads-of-a-former-life-are-kept",
        module="ebla.bulk.checkpoint_store",
        find=" and record.session is not None:\n",
        replace=":\n",
        check=READS,
        why="after each start of the process the checkpoints of all reads stay on disk",
    ),
)
