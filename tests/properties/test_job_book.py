"""In any order of events no two jobs write to one stack at once, and an ended job has its session closed."""

from uuid import UUID

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.records.jobs import (
    ENDED_STATES,
    CompareReplicas,
    CopyTablets,
    JobEvent,
    JobRecord,
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
    JobStep,
    PruneJob,
    SchedulerState,
    StartJob,
    TakeOverJob,
    claim_of,
    moves_files,
    next_steps,
)

TABLES = [TableId(UUID(int=number)) for number in (1, 2)]
HOSTS = [HostId(UUID(int=number)) for number in (11, 12)]
LIMITS = JobLimits(file_jobs_max=2, row_jobs_max=2, runs_max=2, ended_kept_max=3)

TABLETS = st.sets(st.integers(0, 2), min_size=1).map(lambda numbers: tuple(sorted(numbers)))
specs: st.SearchStrategy[JobSpec] = st.one_of(
    st.builds(
        CopyTablets,
        table=st.sampled_from(TABLES),
        tablets=TABLETS,
        source=st.just(HOSTS[0]),
        target=st.sampled_from(HOSTS),
    ),
    st.builds(
        StreamRange,
        table=st.sampled_from(TABLES),
        range=st.just(WHOLE_RING),
        sources=st.just(()),
        target=st.sampled_from(HOSTS),
    ),
    st.builds(CompareReplicas, st.sampled_from(TABLES), st.none(), st.booleans()),
)
endings = st.sampled_from([JobEvent.SUCCEEDED, JobEvent.BROKE, JobEvent.REFUSED, JobEvent.AWAY])


class Pipelines(RuleBasedStateMachine):
    """One pipeline after the other; each may die between any two steps. Sessions are what they opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[JobId, JobRecord] = {}
        self.active: dict[JobId, ActiveJob] = {}
        self.open: set[SessionId] = set()
        self.drawn: list[tuple[JobId, SessionId]] = []
        self.serial = 100
        self.owner = UUID(int=1)
        self.away = False
        self.now = 0

    def _new_id(self) -> UUID:
        self.serial += 1
        return UUID(int=self.serial)

    @rule(spec=specs)
    def ask(self, spec: JobSpec) -> None:
        self.now += 1
        job = JobId(self._new_id())
        self.records[job] = JobRecord(id=job, spec=spec, what="", submitted_ms=self.now, life_ms=1)

    @rule(data=st.data())
    def ask_to_cancel(self, data: st.DataObject) -> None:
        if self.records:
            job = data.draw(st.sampled_from(sorted(self.records)))
            if self.records[job].state not in ENDED_STATES:
                self.records[job] = msgspec.structs.replace(self.records[job], cancel_requested=True)

    @rule()
    def engine_comes_or_goes(self) -> None:
        self.away = not self.away

    @rule()
    def another_leads(self) -> None:
        """Drops all runs as they are: their sessions stay open."""
        self.active = {}
        self.owner = self._new_id()

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        unavailable = "no Java" if self.away else None
        steps = next_steps(
            SchedulerState(records=self.records, active=self.active, owner=self.owner, unavailable=unavailable), LIMITS
        )
        assert len({step.job for step in steps}) == len(steps), "one step for each job"
        done = data.draw(st.integers(0, len(steps)))
        for step in steps[:done]:
            self._take(step)

    @rule(data=st.data(), ending=endings)
    def a_run_ends(self, data: st.DataObject, ending: JobEvent) -> None:
        if not self.active:
            return
        job = data.draw(st.sampled_from(sorted(self.active)))
        session = self.active.pop(job).session
        assert session is not None
        self.open.discard(session)
        self._note(job, JobTransition(event=ending, now_ms=self.now))

    def _take(self, step: JobStep) -> None:
        match step:
            case StartJob(job):
                session = SessionId(self._new_id())
                self._note(job, JobTransition(event=JobEvent.BEGUN, now_ms=self.now, session=session, owner=self.owner))
                self.drawn.append((job, session))
                self.open.add(session)
                self.active[job] = ActiveJob(session)
            case TakeOverJob(job):
                found = self.records[job].session
                if found is not None:
                    self.open.discard(found)
                self._note(job, abandoned(self.records[job], self.now))
            case CancelJob(job):
                session_of = self.active.pop(job).session
                assert session_of is not None
                self.open.discard(session_of)
                self._note(job, JobTransition(event=JobEvent.CANCELLED, now_ms=self.now))
            case CancelWaitingJob(job):
                self._note(job, JobTransition(event=JobEvent.CANCELLED, now_ms=self.now))
            case ExplainWait(job, cause):
                self.records[job] = msgspec.structs.replace(self.records[job], cause=cause)
            case PruneJob(job):
                del self.records[job]

    def _note(self, job: JobId, change: JobTransition) -> None:
        after = apply_transition(self.records[job], change, LIMITS.runs_max)
        assert after is not None, (self.records[job], change)
        self.records[job] = after

    @invariant()
    def what_has_ended_or_waits_has_no_open_session(self) -> None:
        for job, session in self.drawn:
            record = self.records.get(job)
            if session in self.open:
                assert record is not None
                assert record.state is JobState.RUNNING
                assert record.session == session

    @invariant()
    def no_two_jobs_write_to_one_stack(self) -> None:
        running = [job for job in self.records.values() if job.session is not None]
        for number, job in enumerate(running):
            for other in running[number + 1 :]:
                one, two = claim_of(job.spec), claim_of(other.spec)
                assert one is None or two is None or not one.meets(two)

    @invariant()
    def no_more_run_than_may(self) -> None:
        running = [job for job in self.records.values() if job.session is not None]
        assert sum(moves_files(job.spec) for job in running) <= LIMITS.file_jobs_max
        assert sum(not moves_files(job.spec) for job in running) <= LIMITS.row_jobs_max
        assert all(job.runs <= LIMITS.runs_max for job in self.records.values())


TestPipelines = Pipelines.TestCase
TestPipelines.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
