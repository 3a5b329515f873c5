"""Bugs of jobs over whole tables: records, places, levels, versions.

Where a directed test shows the bug it is the check; seeds are, where it takes whole nodes.
"""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("table_jobs", "1-12")
SEEDS_S = 500
JOBS = PytestCheck("tests/unit/broker/test_write_jobs.py")
BOOK = PytestCheck("tests/unit/broker/test_write_job_states.py")
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
        find="return staged.covers(place, route.range)",
        replace="return True",
        check=PLANS,
        why="as a node leaves, one that takes over a range counts as a copy of rows that it was never sent",
    ),
    Mutation(
        name="table-jobs-a-partial-place-counts",
        module="ebla.broker.write_commit",
        function="_Commit._open_lacking",
        find="self._partial = wanted",
        replace="",
        check=JOBS,
        why="where no new place can be opened, one that lacks a range is counted as a copy of it",
    ),
    Mutation(
        name="table-jobs-announced-rows-are-not-noted",
        module="ebla.broker.write_commit",
        function="_Commit.announce",
        find="await self._look()\nawait self._mark_adopting()",
        replace="await self._look()",
        check=ANNOUNCED,
        why="a commit that fails after rows went over CQL says that none is seen",
    ),
    # -- records
    Mutation(
        name="table-jobs-a-run-again-draws-a-timestamp",
        module="ebla.broker.write_job_states",
        function="_taken_over",
        find="session=run.session,\nopened_ms=run.now_ms,",
        replace="session=run.session,\ntimestamp_us=record.timestamp_us + 1,\nopened_ms=run.now_ms,",
        check=BOOK,
        why="rows of a run that failed lose against nothing, and a job that is run again is two",
    ),
    Mutation(
        name="table-jobs-done-is-opened-again",
        module="ebla.broker.write_job_states",
        function="record_opened",
        find="if is_done(record, run.batch):\n    return None",
        replace="",
        check=JOBS,
        why="a batch that Spark commits twice is written twice, over what was written since",
    ),
    Mutation(
        name="table-jobs-the-run-before-is-not-closed",
        module="ebla.broker.write_opening",
        function="WriteOpener._open_run",
        find="for session in record.closing:\n    await self._sessions.close(session, deadline.left_ms)",
        replace="",
        check=JOBS,
        why="a driver that was frozen goes on with its commit after another has ended the job",
    ),
    Mutation(
        name="table-jobs-only-the-last-run-is-closed",
        module="ebla.broker.write_job_states",
        function="_taken_over",
        find="closing = (*record.closing, record.session)",
        replace="closing = (record.session,)",
        check=BOOK,
        why="the run before the last, whose successor died before it closed it, still commits",
    ),
    Mutation(
        name="table-jobs-any-run-commits",
        module="ebla.broker.write_job_states",
        function="require_current_run",
        find="if not is_done(record, run.batch) and (record.session, record.batch) != (run.session, run.batch):",
        replace="if not is_done(record, run.batch) and record.batch != run.batch:",
        check=BOOK,
        why="a run that was overtaken before its session was opened ends the job with its own rows",
    ),
    Mutation(
        name="table-jobs-adoption-is-not-noted",
        module="ebla.broker.write_commit",
        function="_Commit._mark_adopting",
        find="await self._change(record_adopting)\nself.progress.seen = RowVisibility.SOME",
        replace="self.progress.seen = RowVisibility.SOME",
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
        find="if all(has(place) for place in copy.places):\n    acks.acknowledge(position)",
        replace="if any(has(place) for place in copy.places):\n    acks.acknowledge(position)",
        check=PLANS,
        why="a tablet that moves inside a node arrives there without the job's rows",
    ),
    Mutation(
        name="table-jobs-acknowledgements-of-two-versions-add-up",
        module="ebla.broker.write_commit",
        function="_Commit._adopt",
        find="lambda place: place in found.found or self._brings_nothing(place)) is None:",
        replace="lambda place: place in self.progress.adopted or self._brings_nothing(place)) is None:",
        check=JOBS,
        why="one replica has it by the old map and one by the new, and neither map has a quorum of it",
    ),
    Mutation(
        name="table-jobs-the-version-is-not-held",
        module="ebla.broker.adopt_calls",
        function="AdoptCalls._ask",
        find="found = await parts.doors.shard(place.replica, ADOPT, request, parts.limits.adopt_ms)",
        replace=(
            "parts.view.release(request.version)\n"
            "try:\n"
            "    found = await parts.doors.shard(place.replica, ADOPT, request, parts.limits.adopt_ms)\n"
            "finally:\n"
            "    parts.view.hold(request.version)"
        ),
        check=JOBS,
        why="a barrier passes while a commit routed by the version before it is still on its way",
    ),
    Mutation(
        name="table-jobs-adoption-dies-with-its-client",
        module="ebla.broker.adopt_calls",
        function="AdoptCalls.attempt",
        find="adopted.found[place] = await asyncio.shield(answer)",
        replace="adopted.found[place] = await answer",
        check=JOBS,
        why="an answer that comes to a commit whose client is gone breaks the shard",
    ),
    # -- places
    Mutation(
        name="table-jobs-a-place-without-rows-is-a-copy",
        module="ebla.broker.write_layout",
        function="has_all_rows",
        find="return bool(staged.runs_at(place)) or not any(siblings)",
        replace="return True",
        check=JOBS,
        why="a replica that no task reached is acknowledged as one that has the rows",
    ),
    Mutation(
        name="table-jobs-late-replicas-are-passed-over",
        module="ebla.broker.write_commit",
        function="_Commit.run_through",
        find="if lacking:\n    return CommitWriteAnswer(lacking=lacking)",
        replace="assert lacking is not None",
        check=JOBS,
        why="a replica that came while the job ran never gets its rows, and nobody is told",
    ),
    Mutation(
        name="table-jobs-one-run-of-several-is-sealed",
        module="ebla.broker.write_commit",
        function="_Commit._seal_one",
        find="more=tuple(((run.attempt, run.file) for run in runs[1:]))",
        replace="more=()",
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
        find="view = await fresh_view(self._parts, deadline)",
        replace="view = self._parts.view.current",
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
        function="_Commit.run_through",
        find="if all(self.progress.is_met(route) for route in routes):",
        replace="if any(self.progress.is_met(route) for route in routes):",
        check=SEEDS,
        why="a job says that it is done, and a tablet whose replicas moved has nothing of it",
        limit_s=SEEDS_S,
    ),
)
