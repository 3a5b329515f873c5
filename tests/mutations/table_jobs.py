"""Bugs of jobs over whole tables: records, staging places, consistency levels, versions.

The check is a directed test where one shows the bug, and simulator seeds where it takes whole nodes.
"""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("table_jobs", "1-12")
SEEDS_S = 500
JOBS = PytestCheck("tests/unit/broker/test_write_jobs.py")
BOOK = PytestCheck("tests/unit/model/test_write_jobs.py")
PLANS = PytestCheck("tests/unit/broker/test_write_layout.py")
READS = PytestCheck("tests/unit/broker/test_read_plan.py")
CALLS = PytestCheck("tests/unit/broker/test_broker.py")

ANNOUNCED = PytestCheck("tests/unit/broker/test_announced_rows.py")
COMMITS = PytestCheck("tests/unit/source/write/test_commit.py")

MUTATIONS = (
    # -- lost rows
    Mutation(
        name="table-jobs-a-range-that-nobody-has-is-taken-for-empty",
        module="ebla.source.write.staged_replicas",
        function="check_every_range_staged",
        find="if not any(plan.targets[target].transfer in present for target in route.targets):",
        replace="if False:",
        check=COMMITS,
        why="after a rolling restart each node lacks some rows, and the job reports success without them",
    ),
    Mutation(
        name="table-jobs-a-place-on-vnodes-is-a-copy-of-everything",
        module="ebla.broker.write_layout",
        function="has_all_rows",
        find="return staged.covers(stack, route.range)",
        replace="return True",
        check=PLANS,
        why="while a node leaves, a new owner of its range counts as a replica of rows that it never received",
    ),
    Mutation(
        name="table-jobs-a-partial-place-counts",
        module="ebla.broker.write_commit",
        function="_CommitCall._open_missing",
        find="self.progress.incomplete = frozenset(missing)",
        replace="",
        check=JOBS,
        why="when no new staging place can be opened, a replica without the range is counted as having it",
    ),
    Mutation(
        name="table-jobs-announced-rows-are-not-noted",
        module="ebla.broker.write_commit",
        function="_CommitCall.announce",
        find=("await self._fresh_view()\nawait self._mark_adopting()"),
        replace="await self._fresh_view()",
        check=ANNOUNCED,
        why="a commit that fails after rows were written over CQL reports that no row is visible",
    ),
    # -- records
    Mutation(
        name="table-jobs-a-run-again-draws-a-timestamp",
        module="ebla.model.records.write_jobs",
        function="_taken_over",
        find=("session=run.session,\nopened_ms=run.now_ms,"),
        replace=("session=run.session,\ntimestamp_us=record.timestamp_us + 1,\nopened_ms=run.now_ms,"),
        check=BOOK,
        why="a job that is run again gets a second timestamp and counts as two writes",
    ),
    Mutation(
        name="table-jobs-done-is-opened-again",
        module="ebla.model.records.write_jobs",
        function="record_opened",
        find=("if is_done(record, run.batch):\n    return record"),
        replace="",
        check=JOBS,
        why="a batch that Spark commits twice is written twice, and overwrites later writes",
    ),
    Mutation(
        name="table-jobs-the-run-before-is-not-closed",
        module="ebla.broker.write_opening",
        function="WriteOpener._open_run",
        find=("for session in record.closing:\n    await self._client.close_session(session, deadline)"),
        replace="",
        check=JOBS,
        why="a paused driver continues its commit after another one has ended the job",
    ),
    Mutation(
        name="table-jobs-only-the-last-run-is-closed",
        module="ebla.model.records.write_jobs",
        function="_taken_over",
        find="closing = (*record.closing, record.session)",
        replace="closing = (record.session,)",
        check=BOOK,
        why="a run still commits although it was replaced by one that crashed before closing its session",
    ),
    Mutation(
        name="table-jobs-any-run-commits",
        module="ebla.model.records.write_jobs",
        function="require_current_run",
        find="if not is_done(record, run.batch) and (record.session, record.batch) != (run.session, run.batch):",
        replace="if not is_done(record, run.batch) and record.batch != run.batch:",
        check=BOOK,
        why="a run that was replaced before its session was opened ends the job with its own rows",
    ),
    Mutation(
        name="table-jobs-adoption-is-not-noted",
        module="ebla.broker.write_commit",
        function="_CommitCall._mark_adopting",
        find=("await self._change(record_adopting)\nself.progress.visibility = RowVisibility.SOME"),
        replace="self.progress.visibility = RowVisibility.SOME",
        check=JOBS,
        why="a second call reports that no row is visible although the first has made some visible",
    ),
    # -- levels and versions
    Mutation(
        name="table-jobs-pending-replicas-are-not-counted",
        module="ebla.broker.write_layout",
        function="write_layout",
        find="wanted.datacenter, pending)",
        replace="wanted.datacenter)",
        check=PLANS,
        why="after a move, a quorum is read that has none of the job's rows",
    ),
    Mutation(
        name="table-jobs-half-of-a-copy-counts",
        module="ebla.broker.write_layout",
        function="count_acks",
        find=("if all(has(stack) for stack in copy.stacks):\n    acks.acknowledge(position)"),
        replace=("if any(has(stack) for stack in copy.stacks):\n    acks.acknowledge(position)"),
        check=PLANS,
        why="a tablet that moves inside a node arrives there without the job's rows",
    ),
    Mutation(
        name="table-jobs-acknowledgements-of-two-versions-add-up",
        module="ebla.broker.write_commit",
        function="_CommitCall._adopt",
        find="lambda stack: stack in adopted.answers or progress.has_nothing_to_adopt(stack)",
        replace="lambda stack: progress.is_adopted(stack) or progress.has_nothing_to_adopt(stack)",
        check=JOBS,
        why="one replica of the old set and one of the new have the rows, and neither set has a quorum of them",
    ),
    Mutation(
        name="table-jobs-the-version-is-not-held",
        module="ebla.broker.write_commit",
        function="_HeldAdoption._adopt_one",
        find="adopted = await self._client.adopt(request.table, target, version)",
        replace=(
            "self._deps.view.release(version)\n"
            "try:\n"
            "    adopted = await self._client.adopt(request.table, target, version)\n"
            "finally:\n"
            "    self._deps.view.hold(version)"
        ),
        check=JOBS,
        why="a barrier returns while a commit routed with the previous version is still in flight",
    ),
    Mutation(
        name="table-jobs-adoption-dies-with-its-client",
        module="ebla.broker.write_commit",
        function="_HeldAdoption.adopt",
        find="results.answers[stack] = await asyncio.shield(answer)",
        replace="results.answers[stack] = await answer",
        check=JOBS,
        why="an answer to a commit whose client is gone breaks the shard",
    ),
    # -- places
    Mutation(
        name="table-jobs-a-place-without-rows-is-a-copy",
        module="ebla.broker.write_layout",
        function="has_all_rows",
        find="return bool(staged.runs_of(stack)) or not any(staged.runs_of(other) for other in route.stacks)",
        replace="return True",
        check=JOBS,
        why="a replica that no task reached is counted as having the rows",
    ),
    Mutation(
        name="table-jobs-late-replicas-are-passed-over",
        module="ebla.broker.write_commit",
        function="_CommitCall.commit",
        find=("if missing:\n    return CommitWriteAnswer(lacking=missing)"),
        replace="assert missing is not None",
        check=JOBS,
        why="a replica added while the job ran never gets the job's rows, and the job reports success",
    ),
    Mutation(
        name="table-jobs-one-run-of-several-is-sealed",
        module="ebla.broker.write_commit",
        function="_CommitCall._seal_one",
        find="for run in runs]",
        replace="for run in runs[:1]]",
        check=JOBS,
        why="of the rows that several tasks staged at one replica, only those of the first task are visible",
    ),
    Mutation(
        name="table-jobs-without-admission",
        module="ebla.broker.write_opening",
        function="WriteOpener._admit",
        find="if count >= most:",
        replace="if count >= most << 20:",
        check=JOBS,
        why="a few hundred concurrent jobs leave no disk capacity for requests",
    ),
    # -- reads
    Mutation(
        name="table-reads-planned-by-what-the-shard-happens-to-know",
        module="ebla.broker.read_broker",
        function="TableReadBroker.open",
        find="view = await self._deps.fresh_view(deadline)",
        replace="view = self._deps.view.current",
        check=CALLS,
        why="a lagging node sends readers to replicas that no longer receive writes",
    ),
    Mutation(
        name="table-reads-one-copy-too-few",
        module="ebla.broker.read_plan",
        function="_read_piece",
        find="groups.append((loads.order(members), max(1, each.count)))",
        replace="groups.append((loads.order(members), max(1, each.count - 1)))",
        check=READS,
        why="a read at QUORUM misses what a quorum has acknowledged",
    ),
    Mutation(
        name="table-jobs-done-before-all-tablets-are",
        module="ebla.broker.write_commit",
        function="_CommitCall.commit",
        find="if all(self.progress.is_met(route) for route in routes):",
        replace="if any(self.progress.is_met(route) for route in routes):",
        check=SEEDS,
        why="a job reports success although a tablet whose replicas moved has none of its rows",
        limit_s=SEEDS_S,
    ),
)
