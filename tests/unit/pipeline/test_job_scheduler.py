"""What the pipeline decides about jobs: their records, their places, what is taken over."""

from uuid import UUID

import msgspec
import pytest

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.records.jobs import (
    ENDED_STATES,
    TRANSITIONS,
    CompareReplicas,
    CopyTablets,
    JobEvent,
    JobProgress,
    JobRecord,
    JobResult,
    JobSpec,
    JobState,
    JobTransition,
    StreamRange,
    abandoned,
    apply_transition,
)
from ebla.model.token import WHOLE_RING
from ebla.pipeline.job_scheduler import (
    ActiveJob,
    CancelJob,
    CancelWaitingJob,
    ExplainWait,
    JobLimits,
    PruneJob,
    SchedulerState,
    StartJob,
    TakeOverJob,
    claim_of,
    next_steps,
)

TABLE, OTHER_TABLE = TableId(UUID(int=1)), TableId(UUID(int=2))
A, B, C = (HostId(UUID(int=number)) for number in (11, 12, 13))
OWN, FOREIGN = UUID(int=21), UUID(int=22)
SESSION, OTHER_SESSION = SessionId(UUID(int=31)), SessionId(UUID(int=32))
LIMITS = JobLimits(file_jobs_max=2, row_jobs_max=1, runs_max=2, ended_kept_max=2)
RESULT = JobResult(bytes_moved=5)


def job(number: int = 1, spec: JobSpec | None = None, **changes: object) -> JobRecord:
    spec = spec or CopyTablets(table=TABLE, tablets=(number,), source=A, target=B)
    record = JobRecord(id=JobId(UUID(int=number)), spec=spec, what="a job", submitted_ms=number, life_ms=9)
    return msgspec.structs.replace(record, **changes)


def running(number: int = 1, session: SessionId = SESSION, owner: UUID = FOREIGN, **changes: object) -> JobRecord:
    begun = {"state": JobState.RUNNING, "session": session, "owner": owner, "runs": 1}
    return job(number, None, **begun | changes)


def scene(*jobs: JobRecord, active: dict[JobId, ActiveJob] | None = None, **changes: object) -> SchedulerState:
    return SchedulerState(records={one.id: one for one in jobs}, active=active or {}, owner=OWN, **changes)  # type: ignore[arg-type]  # few fields


# ---- records


def test_every_change_has_its_place_or_none() -> None:
    """An ended job stays as it is, whatever is said of it."""
    for state in JobState:
        for event in JobEvent:
            record = job(state=state, session=SESSION if state is JobState.RUNNING else None, runs=1)
            session = SESSION if event is JobEvent.BEGUN else None
            after = apply_transition(
                record, JobTransition(event=event, now_ms=50, cause="why", session=session), LIMITS.runs_max
            )
            assert (after is None) == ((state, event) not in TRANSITIONS)
            assert after is None or state not in ENDED_STATES
            if after is not None:
                assert (after.state is JobState.RUNNING) == (after.session is not None)
                assert (after.ended_ms == 50) == (after.state in ENDED_STATES)


def test_every_state_is_reached_from_the_first() -> None:
    reached, before = {JobState.WAITING}, 0
    while len(reached) != before:
        before = len(reached)
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in reached}
    # FAILED is also where runs that are used up lead.
    assert reached == set(JobState)


def test_a_run_is_counted_when_it_begins_and_not_if_the_engine_went_away() -> None:
    begun = apply_transition(
        job(), JobTransition(event=JobEvent.BEGUN, now_ms=7, session=SESSION, owner=OWN), LIMITS.runs_max
    )
    assert begun is not None
    assert (begun.runs, begun.session, begun.owner, begun.started_ms) == (1, SESSION, OWN, 7)
    away = apply_transition(
        begun, JobTransition(event=JobEvent.AWAY, now_ms=8, cause="pipeline unavailable: no Java"), LIMITS.runs_max
    )
    assert away is not None
    assert (away.state, away.runs, away.session, away.owner) == (JobState.WAITING, 0, None, None)
    assert away.cause == "pipeline unavailable: no Java"


@pytest.mark.parametrize("event", [JobEvent.BROKE, JobEvent.LEFT])
def test_after_so_many_runs_it_has_failed(event: JobEvent) -> None:
    once = apply_transition(running(), JobTransition(event=event, now_ms=8, cause="a shard is gone"), LIMITS.runs_max)
    assert once is not None
    assert (once.state, once.cause) == (JobState.WAITING, "a shard is gone")
    last = apply_transition(
        running(runs=LIMITS.runs_max), JobTransition(event=event, now_ms=8, cause="a shard is gone"), LIMITS.runs_max
    )
    assert last is not None
    assert (last.state, last.cause, last.ended_ms) == (JobState.FAILED, "a shard is gone (tried 2 times)", 8)


def test_what_cannot_be_done_is_not_tried_again() -> None:
    refused = apply_transition(
        running(), JobTransition(event=JobEvent.REFUSED, now_ms=8, cause="no such tablet"), LIMITS.runs_max
    )
    assert refused is not None
    assert (refused.state, refused.cause) == (JobState.FAILED, "no such tablet")


def test_the_result_and_the_last_progress_of_what_is_done_stay() -> None:
    progress = JobProgress(step="copying", bytes_done=5, bytes_total=5)
    done = apply_transition(
        running(progress=progress), JobTransition(event=JobEvent.SUCCEEDED, now_ms=8, result=RESULT), LIMITS.runs_max
    )
    assert done is not None
    assert (done.state, done.result, done.progress) == (JobState.DONE, RESULT, progress)


def test_a_run_that_was_left_is_cancelled_if_that_was_asked_for() -> None:
    assert abandoned(running(), 9).event is JobEvent.LEFT
    assert abandoned(running(cancel_requested=True), 9).event is JobEvent.CANCELLED


# ---- places


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            CopyTablets(table=TABLE, tablets=(3,), source=C, target=B),
            True,
        ),
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=C),
            False,
        ),
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            CopyTablets(table=TABLE, tablets=(4,), source=A, target=B),
            False,
        ),
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            CopyTablets(table=OTHER_TABLE, tablets=(3,), source=A, target=B),
            False,
        ),
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            StreamRange(table=TABLE, range=WHOLE_RING, sources=(A,), target=B),
            True,
        ),
        (
            CopyTablets(table=TABLE, tablets=(3,), source=A, target=B),
            StreamRange(table=TABLE, range=WHOLE_RING, sources=(A,), target=C),
            False,
        ),
        (CopyTablets(table=TABLE, tablets=(3,), source=A, target=B), CompareReplicas(TABLE, heal=True), True),
        (StreamRange(table=TABLE, range=WHOLE_RING, sources=(A,), target=B), CompareReplicas(TABLE, heal=True), True),
        (CompareReplicas(TABLE, heal=True), CompareReplicas(OTHER_TABLE, heal=True), False),
    ],
)
def test_jobs_that_write_to_one_stack_meet(one: JobSpec, other: JobSpec, meet: bool) -> None:
    first, second = claim_of(one), claim_of(other)
    assert first is not None
    assert second is not None
    assert first.meets(second) == second.meets(first) == meet


def test_a_comparison_alone_writes_nowhere() -> None:
    assert claim_of(CompareReplicas(TABLE)) is None


def test_file_jobs_and_row_jobs_have_places_of_their_own() -> None:
    copies = [job(number, CopyTablets(table=TABLE, tablets=(number,), source=A, target=B)) for number in (1, 2, 3)]
    rows = [job(number, CompareReplicas(TABLE)) for number in (4, 5)]
    steps = next_steps(scene(*copies, *rows), LIMITS)
    assert steps == (
        StartJob(copies[0].id),
        StartJob(copies[1].id),
        ExplainWait(copies[2].id, "waits for a free slot"),
        StartJob(rows[0].id),
        ExplainWait(rows[1].id, "waits for a free slot"),
    )


def test_what_writes_to_the_same_stack_waits_and_says_for_whom() -> None:
    first, second = (
        job(1, CopyTablets(table=TABLE, tablets=(3,), source=A, target=B)),
        job(2, CopyTablets(table=TABLE, tablets=(3,), source=C, target=B)),
    )
    waits = f"waits for job {first.id}, which writes to the same stacks"
    assert next_steps(scene(first, second), LIMITS) == (StartJob(first.id), ExplainWait(second.id, waits))
    explained = msgspec.structs.replace(second, cause=waits)
    assert next_steps(scene(first, explained), LIMITS) == (StartJob(first.id),), "it is not said twice"


def test_nothing_that_came_later_passes_one_that_waits_for_the_same() -> None:
    """Else a heal of the whole table would wait for ever behind tablets that are copied one after the other."""
    copy = running(1, owner=OWN)
    heal, later = (
        job(2, CompareReplicas(TABLE, heal=True)),
        job(3, CopyTablets(table=TABLE, tablets=(9,), source=A, target=C)),
    )
    steps = next_steps(scene(copy, heal, later, active={copy.id: ActiveJob(SESSION)}), LIMITS)
    assert [type(step) for step in steps] == [ExplainWait, ExplainWait]


def test_what_only_has_its_record_written_takes_no_place() -> None:
    recording = job(1, CopyTablets(table=TABLE, tablets=(3,), source=A, target=B))
    other = job(2, CopyTablets(table=TABLE, tablets=(3,), source=C, target=B))
    steps = next_steps(scene(recording, other, active={recording.id: ActiveJob(only_writes_record=True)}), LIMITS)
    assert steps == (StartJob(other.id),)


def test_with_the_engine_away_jobs_wait_with_the_cause() -> None:
    steps = next_steps(scene(job(), unavailable="no Java was found"), LIMITS)
    assert steps == (ExplainWait(job().id, "pipeline unavailable: no Java was found"),)


def test_a_job_that_broke_rests_and_keeps_its_cause() -> None:
    broke = job(cause="a shard is gone")
    assert next_steps(scene(broke, backing_off_until={broke.id: 100}, now_boot_ms=99), LIMITS) == ()
    assert next_steps(scene(broke, backing_off_until={broke.id: 100}, now_boot_ms=100), LIMITS) == (StartJob(broke.id),)


# ---- runs


def test_a_run_that_nobody_attends_to_is_taken_over() -> None:
    assert next_steps(scene(running()), LIMITS) == (TakeOverJob(running().id),)
    assert next_steps(scene(running(cancel_requested=True)), LIMITS) == (TakeOverJob(running().id),)


def test_what_is_left_keeps_its_place_until_its_session_is_closed() -> None:
    found, other = running(1), job(2, CopyTablets(table=TABLE, tablets=(1,), source=C, target=B))
    steps = next_steps(scene(found, other), LIMITS)
    assert [type(step) for step in steps] == [TakeOverJob, ExplainWait]


def test_cancel_is_told_once_to_what_runs_here() -> None:
    asked = running(owner=OWN, cancel_requested=True)
    assert next_steps(scene(asked, active={asked.id: ActiveJob(SESSION)}), LIMITS) == (CancelJob(asked.id),)
    assert next_steps(scene(asked, active={asked.id: ActiveJob(SESSION, is_stopping=True)}), LIMITS) == ()


def test_what_waits_is_cancelled_at_once() -> None:
    asked = job(cancel_requested=True)
    assert next_steps(scene(asked), LIMITS) == (CancelWaitingJob(asked.id),)


@pytest.mark.parametrize(
    "record",
    [
        running(owner=FOREIGN),
        running(session=OTHER_SESSION, owner=OWN),
        job(cause="left"),
        None,
    ],
    ids=["taken over", "another run", "put back", "gone"],
)
def test_a_run_whose_record_is_not_its_own_any_more_ends(record: JobRecord | None) -> None:
    active = {job().id: ActiveJob(SESSION)}
    found = scene(*([] if record is None else [record]), active=active)
    assert next_steps(found, LIMITS) == (CancelJob(job().id),)


def test_the_oldest_of_the_ended_go() -> None:
    ended = [job(number, state=JobState.DONE, ended_ms=100 - number) for number in (1, 2, 3, 4)]
    assert next_steps(scene(*ended), LIMITS) == (PruneJob(ended[3].id), PruneJob(ended[2].id))
