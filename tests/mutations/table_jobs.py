"""Bugs of jobs over whole tables: records, places, levels, versions.

Where a directed test shows the bug it is the check; seeds are, where it takes whole nodes.
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
    # -- rows that are nowhere
    Mutation(
        name="table-jobs-a-range-that-nobody-has-is-taken-for-empty",
        module="ebla.source.write.staged_replicas",
        function="check_every_range_staged",
        find="if not any(plan.targets[target].transfer in present for target in route.targets):",
        replace="if False:",
        check=COMMITS,
        why="nodes that were started anew one after another: each lacks some rows, and the job is done without any",
    ),
    Mutation(
        name="table-jobs-a-place-on-vnodes-is-a-copy-of-everything",
        module="ebla.broker.write_layout",
        function="has_all_rows",
        find="return staged.covers(stack, route.range)",
        replace="return True",
        check=PLANS,
        why="as a node leaves, one that takes over a range counts as a copy of rows that it was never sent",
    ),
    Mutation(
        name="table-jobs-a-partial-place-counts",
        module="ebla.broker.write_commit",
        function="_CommitCall._open_missing",
        find="self.progress.incomplete = frozenset(missing)",
        replace="",
        check=JOBS,
        why="where no new place can be opened, one that lacks a range is counted as a copy of it",
    ),
    Mutation(
        name="table-jobs-announced-rows-are-not-noted",
        module="ebla.broker.write_commit",
        function="_CommitCall.announce",
        find=("await self._fresh_view()\nawait self._mark_adopting()"),
        replace="await self._fresh_view()",
        check=ANNOUNCED,
        why="a commit that fails after rows went over CQL says that none is seen",
    ),
    # -- records
    Mutation(
        name="table-jobs-a-run-again-draws-a-timestamp",
        module="ebla.model.records.write_jobs",
        function="_taken_over",
        find=("session=run.session,\nopened_ms=run.now_ms,"),
        replace=("session=run.session,\ntimestamp_us=record.timestamp_us + 1,\nopened_ms=run.now_ms,"),
        check=BOOK,
        why="rows of a run that failed lose against nothing, and a job that is run again is two",
    ),
    Mutation(
        name="table-jobs-done-is-opened-again",
        module="ebla.model.records.write_jobs",
        function="record_opened",
        find=("if is_done(record, run.batch):\n    return record"),
        replace="",
        check=JOBS,
        why="a batch that Spark commits twice is written twice, over what was written since",
    ),
    Mutation(
        name="table-jobs-the-run-before-is-not-closed",
        module="ebla.broker.write_opening",
        function="WriteOpener._open_run",
        find=("for session in record.closing:\n    await self._client.close_session(session, deadline)"),
        replace="",
        check=JOBS,
        why="a driver that was frozen goes on with its commit after another has ended the job",
    ),
    Mutation(
        name="table-jobs-only-the-last-run-is-closed",
        module="ebla.model.records.write_jobs",
        function="_taken_over",
        find="closing = (*record.closing, record.session)",
        replace="closing = (record.session,)",
        check=BOOK,
        why="the run before the last, whose successor died before it closed it, still commits",
    ),
    Mutation(
        name="table-jobs-any-run-commits",
        module="ebla.model.records.write_jobs",
        function="require_current_run",
        find="if not is_done(record, run.batch) and (record.session, record.batch) != (run.session, run.batch):",
        replace="if not is_done(record, run.batch) and record.batch != run.batch:",
        check=BOOK,
        why="a run that was overtaken before its session was opened ends the job with its own rows",
    ),
    Mutation(
        name="table-jobs-adoption-is-not-noted",
        module="ebla.broker.write_commit",
        function="_CommitCall._mark_adopting",
        find=("await self._change(record_adopting)\nself.progress.visibility = RowVisibility.SOME"),
        replace="self.progress.visibility = RowVisibility.SOME",
        check=JOBS,
        why="a second call says that no row is seen, and the first has shown some",
    ),
    # -- levels and versions
    Mutation(
        name="table-jobs-pending-replicas-are-not-counted",
        module="ebla.broker.write_layout",
        function="write_layout",
        find="wanted.datacenter, pending)",
        replace="wanted.datacenter)",
        check=PLANS,
        why="after a move a quorum is read that has none of the job's rows",
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
        why="one replica has it by the old map and one by the new, and neither map has a quorum of it",
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
        why="a barrier passes while a commit routed by the version before it is still on its way",
    ),
    Mutation(
        name="table-jobs-adoption-dies-with-its-client",
        module="ebla.broker.write_commit",
        function="_HeldAdoption.adopt",
        find="results.answers[stack] = await asyncio.shield(answer)",
        replace="results.answers[stack] = await answer",
        check=JOBS,
        why="an answer that comes to a commit whose client is gone breaks the shard",
    ),
    # -- places
    Mutation(
        name="table-jobs-a-place-without-rows-is-a-copy",
        module="ebla.broker.write_layout",
        function="has_all_rows",
        find="return bool(staged.runs_of(stack)) or not any(staged.runs_of(other) for other in route.stacks)",
        replace="return True",
        check=JOBS,
        why="a replica that no task reached is acknowledged as one that has the rows",
    ),
    Mutation(
        name="table-jobs-late-replicas-are-passed-over",
        module="ebla.broker.write_commit",
        function="_CommitCall.commit",
        find=("if missing:\n    return CommitWriteAnswer(lacking=missing)"),
        replace="assert missing is not None",
        check=JOBS,
        why="a replica that came while the job ran never gets its rows, and nobody is told",
    ),
    Mutation(
        name="table-jobs-one-run-of-several-is-sealed",
        module="ebla.broker.write_commit",
        function="_CommitCall._seal_one",
        find="for run in runs]",
        replace="for run in runs[:1]]",
        check=JOBS,
        why="of what a place was brought by several tasks only the first one's rows are there",
    ),
    Mutation(
        name="table-jobs-without-admission",
        module="ebla.broker.write_opening",
        function="WriteOpener._admit",
        find="if count >= most:",
        replace="if count >= most << 20:",
        check=JOBS,
        why="a few hundred jobs at once leave nothing of the disks to those that serve",
    ),
    # -- reads
    Mutation(
        name="table-reads-planned-by-what-the-shard-happens-to-know",
        module="ebla.broker.read_broker",
        function="TableReadBroker.open",
        find="view = await self._deps.fresh_view(deadline)",
        replace="view = self._deps.view.current",
        check=CALLS,
        why="a node that lags sends readers to replicas that have not had writes for long",
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
        why="a job says that it is done, and a tablet whose replicas moved has nothing of it",
        limit_s=SEEDS_S,
    ),
)
