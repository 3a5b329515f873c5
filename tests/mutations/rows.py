"""Bugs of rows: fences, barriers, guards, levels, repairs, pages.

The check is a directed test where one shows the bug, and simulator seeds where it takes whole nodes or to show that
the scenario alone would catch it.
"""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("rows", "1-12")
SEEDS_S = 400
WRITES = PytestCheck("tests/unit/replica/test_row_writes.py")
GUARDS = PytestCheck("tests/unit/replica/test_guards.py")
STACKS = PytestCheck("tests/unit/replica/test_replica_stacks.py")
BARRIER = PytestCheck("tests/unit/control/topology/test_node_barrier.py")
ROUTED_WRITES = PytestCheck("tests/unit/request/test_write_router.py", "tests/unit/request/test_write_plan.py")
ROUTED_READS = PytestCheck("tests/unit/request/test_read_router.py")
SHORT_READS = PytestCheck("tests/unit/request/test_short_reads.py", "tests/unit/request/test_reconcile.py")

MUTATIONS = (
    Mutation(
        name="rows-value-before-expiry",
        module="ebla.model.rows",
        function="_rank",
        find='cell.at_s, cell.value or b"", cell.ttl_s)',
        replace='cell.value or b"", cell.at_s, cell.ttl_s)',
        check=PytestCheck("tests/properties/test_rows.py"),
        why="a cell that is about to expire wins over one of the same timestamp that lives longer",
    ),
    # -- fences
    Mutation(
        name="rows-fence-not-rechecked-after-the-write",
        module="ebla.replica.row_writes",
        function="ReplicaWriter._finish",
        find="self._check_after(batch)",
        replace="",
        check=WRITES,
        why="a write that a barrier did not wait for is acknowledged, and is on a replica that is no longer read",
    ),
    Mutation(
        name="rows-overtaken-write-told-as-not-applied",
        module="ebla.replica.replica_context",
        function="OvertakenByFence",
        find="outcome = Outcome.UNKNOWN",
        replace="outcome = Outcome.NOT_APPLIED",
        check=WRITES,
        why="a write that was applied is reported as not applied",
    ),
    Mutation(
        name="rows-fence-not-looked-at-before-the-effect",
        module="ebla.replica.row_writes",
        function="ReplicaWriter._apply",
        find="if writes[index].version >= fence:",
        replace="if writes[index].version >= 0:",
        check=WRITES,
        why="a request that waited for its layer has an effect after the barrier that excluded it",
    ),
    Mutation(
        name="rows-fence-not-there-at-all",
        module="ebla.feed.topology_view",
        function="view_of",
        find="fence=snapshot.fence, names=names)",
        replace="fence=TopologyVersion(0), names=names)",
        check=SEEDS,
        why="late copies of abandoned writes reach replicas that were already streamed from",
        limit_s=SEEDS_S,
    ),
    # -- barriers
    Mutation(
        name="rows-barrier-forgets-guards",
        module="ebla.control.topology.node_barrier",
        function="barrier_waits_for",
        find=", guards_held(report)]",
        replace="]",
        check=BARRIER,
        why="a stage ends while its rows are still being merged",
    ),
    Mutation(
        name="rows-barrier-forgets-bulk",
        module="ebla.control.topology.node_barrier",
        function="takes_part",
        find="return child == BULK or child.startswith(SHARD_PREFIX)",
        replace="return child.startswith(SHARD_PREFIX)",
        check=SEEDS,
        why="a part of a finished operation continues in the bulk process",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="rows-barrier-forgets-writes-of-replicas",
        module="ebla.replica.row_writes",
        function="ReplicaWriter._finish",
        find="self._view.hold(version)\nself.waiting += 1",
        replace="version = TopologyVersion(1 << 40)\nself._view.hold(version)\nself.waiting += 1",
        check=WRITES,
        why="a write with an old version is applied although a barrier has excluded that version",
    ),
    Mutation(
        name="rows-barrier-acknowledged-before-it-is-prepared",
        module="ebla.feed.topology_follower",
        function="TopologyFollower._install_newest",
        find="await self._follower.prepare(view, before)",
        replace="self._view.install(view)\nself._to_report.set()\nawait self._follower.prepare(view, before)",
        check=PytestCheck("tests/unit/feed/test_topology_follower.py"),
        why="writes of a pending replica are counted before it is open",
    ),
    Mutation(
        name="rows-barrier-does-not-wait-for-pending-replicas",
        module="ebla.control.topology.node_barrier",
        function="barrier_waits_for",
        find="pending_closed(report), ",
        replace="",
        check=BARRIER,
        why="a stage that writes to both sets begins before the new one takes writes",
    ),
    Mutation(
        name="rows-version-installed-before-its-replicas-are-there",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks.prepare",
        find="missing = [place for place in wanted if place not in self._known]",
        replace=(
            "later = [(table, one.ranges[at]) for table, one in plan.items() for at in one.pending]\n"
            "missing = [place for place in wanted if place not in self._known and place not in later]\n"
            "there = {table: [at for at in one.ranges if at not in one.pending] for table, one in plan.items()}\n"
            "plan = {\n"
            "    table: replace(one, ranges={at: one.ranges[at] for at in there[table]}, moving=())\n"
            "    for table, one in plan.items()\n"
            "}"
        ),
        check=STACKS,
        why="the barrier that opens a pending replica returns although the replica accepts no writes",
    ),
    # -- sessions
    Mutation(
        name="rows-session-not-held-around-the-effect",
        module="ebla.feed.session_guards",
        function="GuardHold",
        find="await self._guards.enter(self._guard, self._deadline_ms)",
        replace=(
            "await self._guards.enter(self._guard, self._deadline_ms)\n"
            "self._guards.release(self._guard)\n"
            "self._guards.release = lambda _guard: None"
        ),
        check=GUARDS,
        why="rows of a session are still written after it was closed everywhere",
    ),
    Mutation(
        name="rows-session-looked-up-without-a-read-barrier",
        module="ebla.feed.session_guards",
        function="SessionGuards._proof",
        find="revision = await self._barriers.read_barrier(deadline_ms)",
        replace="revision = self._view.current.revision",
        check=GUARDS,
        why="a lagging shard lets a finished operation continue",
    ),
    # -- levels of writes
    Mutation(
        name="rows-pending-replica-not-counted",
        module="ebla.request.write_plan",
        function="WritePlanCache.compute_plan",
        find="needed = required_replies(level, replicas.counts(writing.natural), self._datacenter, pending)",
        replace="needed = required_replies(level, replicas.counts(writing.natural), self._datacenter)",
        check=ROUTED_WRITES,
        why="a write acknowledged in a move is on too few of the replicas that are read after it",
    ),
    Mutation(
        name="rows-pending-replica-not-written",
        module="ebla.request.write_plan",
        function="plan_write",
        find="for replica in (*replicas.natural, *replicas.pending):",
        replace="for replica in replicas.natural:",
        check=ROUTED_WRITES,
        why="rows written while a tablet moves are missing at its target",
    ),
    Mutation(
        name="rows-version-released-when-the-client-is-answered",
        module="ebla.request.write_router",
        function="WriteRouter._answer",
        find="answer.set_result(None)",
        replace=(
            "answer.set_result(None)\n"
            "self._view.release(call.version)\n"
            "self._view.hold(TopologyVersion(1 << 40))\n"
            "call.version = TopologyVersion(1 << 40)"
        ),
        check=SEEDS,
        why="a write in flight arrives after the barrier that should have waited for it",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="rows-stale-answer-counted-as-acknowledgement",
        module="ebla.request.outbox",
        function="Outbox._ended",
        find="write.on_reply(write.position, failures.get(index))",
        replace=(
            "failure = failures.get(index)\n"
            'write.on_reply(write.position, None if failure and failure.error == "stale" else failure)'
        ),
        check=ROUTED_WRITES,
        why="a write is acknowledged that replicas refused",
    ),
    Mutation(
        name="rows-acknowledged-before-it-is-durable",
        module="ebla.replica.row_writes",
        function="ReplicaWriter._finish",
        find="await self._wait_durable(batch)",
        replace="pass",
        check=PytestCheck("tests/sim/test_rows_power.py"),
        why="a power cut loses acknowledged writes",
    ),
    # -- reads
    Mutation(
        name="rows-digest-mismatch-ignored",
        module="ebla.request.reconcile",
        function="digests_match",
        find="return all(answer.digest == answers[0].digest for answer in answers)",
        replace="return len(answers) > 0",
        check=SEEDS,
        why="a quorum read returns the answer of the replica that missed the write",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="rows-short-read-ignored",
        module="ebla.request.short_reads",
        function="common_end",
        find="return max(ends) if is_reversed else min(ends)",
        replace="return min(ends) if is_reversed else max(ends)",
        check=SHORT_READS,
        why="deleted rows are shown because the replica with the tombstone was not read that far",
    ),
    Mutation(
        name="rows-read-repair-not-awaited",
        module="ebla.request.read_router",
        function="ReadRouter._repair",
        find="await repair.wait_met()",
        replace="pass",
        check=ROUTED_READS,
        why="a row that one quorum read returned is missing in the next",
    ),
    Mutation(
        name="rows-read-repair-left-out-in-a-move",
        module="ebla.request.read_repair",
        function="plan_repairs",
        find="if route.is_changing:",
        replace="if not route.needed:",
        check=ROUTED_READS,
        why="a row that was read is missing after the tablet has moved",
    ),
    Mutation(
        name="rows-read-fence-not-rechecked",
        module="ebla.replica.row_reads",
        function="ReplicaReader.read",
        find="if request.version < fence:",
        replace="if request.version < 0:",
        check=PytestCheck("tests/unit/replica/test_row_reads.py"),
        why="a page is read from a replica that has already left",
    ),
    Mutation(
        name="rows-page-begins-one-row-early",
        module="ebla.request.short_reads",
        function="spans_after",
        find='return clip_spans(spans, (b"", after) if is_reversed else (after + b"\\0", None))',
        replace='return clip_spans(spans, (b"", after + b"\\0") if is_reversed else (after, None))',
        check=SEEDS,
        why="a client that reads in pages gets rows twice",
        limit_s=SEEDS_S,
    ),
    # -- stacks
    Mutation(
        name="rows-doomed-stack-dropped-under-a-request",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks.settle",
        find="for one in [doomed for doomed in self._doomed if doomed.since <= oldest]:",
        replace="for one in list(self._doomed):",
        check=STACKS,
        why="a request that was sent in time finds no stack",
    ),
    Mutation(
        name="rows-dropped-table-keeps-its-folders",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks.settle",
        find="await self._store.drop_table(table)",
        replace="pass",
        check=STACKS,
        why="disks fill with tables that were dropped",
    ),
    Mutation(
        name="rows-returning-replica-keeps-its-old-rows",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks._drop_returning",
        find="for one in [doomed for doomed in self._doomed if doomed.place in returning]:",
        replace="for one in [doomed for doomed in self._doomed if not returning]:",
        check=STACKS,
        why="deleted rows come back with a replica that was away",
    ),
)
