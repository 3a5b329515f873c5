"""Bugs of the pipeline's jobs: effects after an end, two at one place, work lost or done for ever."""

from tests.mutations.framework import Mutation, PytestCheck

BOOK = PytestCheck("tests/unit/pipeline/test_job_scheduler.py")
QUEUE = PytestCheck("tests/unit/pipeline/test_job_queue.py")
RUNNER = PytestCheck("tests/unit/pipeline/test_job_runner.py")
PLANS = PytestCheck("tests/unit/pipeline/test_job_plans.py")

MUTATIONS = (
    Mutation(
        name="jobs-taken-over-without-closing",
        module="ebla.pipeline.job_queue",
        function="JobQueue._take_over",
        find="if record.session is not None:\n    await self._runner.close(record.session)",
        replace="",
        check=QUEUE,
        why="what the former leader's tasks still do lands beside the new run",
    ),
    Mutation(
        name="jobs-cancelled-before-the-session-is-closed",
        module="ebla.pipeline.job_queue",
        function="JobQueue._run_to_end",
        find="await self._runner.close(drawn.session)",
        replace="running.cancel()",
        check=QUEUE,
        why="a task that outlives its cancellation could still be sealed",
    ),
    Mutation(
        name="jobs-ended-before-the-session-is-closed",
        module="ebla.pipeline.job_queue",
        function="JobQueue._attend",
        find="await self._runner.close(session)\nawait self._note(job, ending, session)",
        replace="await self._note(job, ending, session)\nawait self._runner.close(session)",
        check=QUEUE,
        why="a job that is told to be over may have effects yet",
    ),
    Mutation(
        name="jobs-run-not-confirmed",
        module="ebla.pipeline.job_runner",
        function="JobRunner._run",
        find="await handle.confirm()",
        replace="",
        check=RUNNER,
        why="a run that was taken over while its session was opened goes on under one that nobody closes",
    ),
    Mutation(
        name="jobs-ending-of-another-run-written",
        module="ebla.pipeline.job_queue",
        function="JobQueue._note.noted",
        find=("if found.session != session or (session is not None and found.owner != self._keeper):\n    return None"),
        replace="",
        check=QUEUE,
        why="a pipeline that lost its lead ends the run of the next",
    ),
    Mutation(
        name="jobs-lost-record-goes-on",
        module="ebla.pipeline.job_scheduler",
        function="_about_running",
        find="if not own.is_stopping and (lost or (record is not None and record.cancel_requested)):",
        replace="if not own.is_stopping and record is not None and record.cancel_requested:",
        check=BOOK,
        why="two pipelines work at one job until the older is ended from outside",
    ),
    Mutation(
        name="jobs-two-at-one-stack",
        module="ebla.pipeline.job_scheduler",
        function="_rival",
        find="if claim is not None and theirs is not None and claim.meets(theirs):",
        replace="if claim is not None and theirs is not None and claim == theirs and claim.host is None:",
        check=BOOK,
        why="two jobs bring layers into one stack at once",
    ),
    Mutation(
        name="jobs-engine-away-counts-as-a-run",
        module="ebla.pipeline.job_scheduler",
        function="apply_transition",
        find="{JobEvent.BEGUN: 1, JobEvent.AWAY: -1}",
        replace="{JobEvent.BEGUN: 1}",
        check=BOOK,
        why="a Spark that restarts a few times makes jobs fail",
    ),
    Mutation(
        name="jobs-broken-tried-for-ever",
        module="ebla.pipeline.job_scheduler",
        function="apply_transition",
        find="if change.event in COUNTED_EVENTS and job.runs >= limits.runs_max:",
        replace="if change.event in COUNTED_EVENTS and job.runs > limits.runs_max + 1_000_000:",
        check=BOOK,
        why="what can never be done is done again and again",
    ),
    Mutation(
        name="jobs-checkpoint-before-the-target-holds",
        module="ebla.pipeline.copy_steps",
        function="copy_rows",
        find=(
            "targets = await steps.all(\n"
            "    [partial(steps.open_staging, scope, place, StagingKind.ROWS, part) for part, place in places]\n"
            ")"
        ),
        replace=(
            "await take_checkpoints(run, [(one.range, one.sources) for one in wanted])\n"
            "targets = await steps.all(\n"
            "    [partial(steps.open_staging, scope, place, StagingKind.ROWS, part) for part, place in places]\n"
            ")"
        ),
        check=RUNNER,
        why="a tombstone that the target drops in between is missing under a row that the checkpoint still has",
    ),
    Mutation(
        name="jobs-different-at-first-sight",
        module="ebla.pipeline.compare_replicas",
        function="_look_again",
        find="for number in range(2, limits.compare_tries + 1):",
        replace="for number in range(2, 2):",
        check=RUNNER,
        why="every write that is under way looks like a replica that differs",
    ),
    Mutation(
        name="jobs-healed-without-own",
        module="ebla.pipeline.copy_steps",
        function="copy_rows",
        find="own.get(place.host)",
        replace="None",
        check=RUNNER,
        why="a heal writes everything everywhere, and hides what was missing",
    ),
    Mutation(
        name="jobs-part-of-a-shard-only",
        module="ebla.pipeline.job_plans",
        function="_borders",
        find="tokens.update(_shard_borders(shard_count, ignore_msb))",
        replace="pass",
        check=PLANS,
        why="a transfer goes to one shard and brings what belongs to two",
    ),
    Mutation(
        name="jobs-record-overwritten",
        module="ebla.pipeline.job_records",
        function="JobRecords._write_once",
        find="self._execute((KeyUnchanged(key, kept.revision),), PutKey(key,",
        replace="self._execute((), PutKey(key,",
        check=QUEUE,
        why="a cancel, or another pipeline's word, is lost under the next progress",
    ),
)
