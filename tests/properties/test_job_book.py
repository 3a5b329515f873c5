"""Any course of events: no two jobs write to one stack at once, and what has ended has its session closed."""

from uuid import UUID

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.token import WHOLE_RING
from ebla.pipeline.job_book import (
    Attended,
    Begin,
    BookLimits,
    Cancel,
    Change,
    EndWaiting,
    Explain,
    Happening,
    Prune,
    Scene,
    Step,
    TakeOver,
    changed,
    claim_of,
    left,
    moves_files,
    next_steps,
)
from ebla.wire.jobs import ENDED, Compare, CopyTablets, Job, JobState, StreamRange, Wish

TABLES = [TableId(UUID(int=number)) for number in (1, 2)]
HOSTS = [HostId(UUID(int=number)) for number in (11, 12)]
LIMITS = BookLimits(file_jobs_max=2, row_jobs_max=2, runs_max=2, left_after_ms=0, kept_max=3)

TABLETS = st.sets(st.integers(0, 2), min_size=1).map(lambda numbers: tuple(sorted(numbers)))
wishes: st.SearchStrategy[Wish] = st.one_of(
    st.builds(CopyTablets, st.sampled_from(TABLES), TABLETS, st.just(HOSTS[0]), st.sampled_from(HOSTS)),
    st.builds(StreamRange, st.sampled_from(TABLES), st.just(WHOLE_RING), st.just(()), st.sampled_from(HOSTS)),
    st.builds(Compare, st.sampled_from(TABLES), st.none(), st.booleans()),
)
endings = st.sampled_from([Happening.SUCCEEDED, Happening.BROKE, Happening.REFUSED, Happening.AWAY])


class Pipelines(RuleBasedStateMachine):
    """One pipeline after the other; each may die between any two steps. Sessions are what they opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[JobId, Job] = {}
        self.attended: dict[JobId, Attended] = {}
        self.open: set[SessionId] = set()
        self.drawn: list[tuple[JobId, SessionId]] = []
        self.serial = 100
        self.keeper = UUID(int=1)
        self.away = False
        self.now = 0

    def _new_id(self) -> UUID:
        self.serial += 1
        return UUID(int=self.serial)

    @rule(wish=wishes)
    def ask(self, wish: Wish) -> None:
        self.now += 1
        job = JobId(self._new_id())
        self.records[job] = Job(job, wish, "", self.now, 1)

    @rule(data=st.data())
    def ask_to_cancel(self, data: st.DataObject) -> None:
        if self.records:
            job = data.draw(st.sampled_from(sorted(self.records)))
            if self.records[job].state not in ENDED:
                self.records[job] = msgspec.structs.replace(self.records[job], cancel_asked=True)

    @rule()
    def engine_comes_or_goes(self) -> None:
        self.away = not self.away

    @rule()
    def another_leads(self) -> None:
        """Runs are dropped where they are: their sessions stay open."""
        self.attended = {}
        self.keeper = self._new_id()

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        unavailable = "no Java" if self.away else None
        steps = next_steps(Scene(self.records, self.attended, self.keeper, unavailable), LIMITS)
        assert len({step.job for step in steps}) == len(steps), "one step for each job"
        done = data.draw(st.integers(0, len(steps)))
        for step in steps[:done]:
            self._take(step)

    @rule(data=st.data(), ending=endings)
    def a_run_ends(self, data: st.DataObject, ending: Happening) -> None:
        if not self.attended:
            return
        job = data.draw(st.sampled_from(sorted(self.attended)))
        session = self.attended.pop(job).session
        assert session is not None
        self.open.discard(session)
        self._note(job, Change(ending, self.now))

    def _take(self, step: Step) -> None:
        match step:
            case Begin(job):
                session = SessionId(self._new_id())
                self._note(job, Change(Happening.BEGUN, self.now, session=session, keeper=self.keeper))
                self.drawn.append((job, session))
                self.open.add(session)
                self.attended[job] = Attended(session)
            case TakeOver(job):
                found = self.records[job].session
                if found is not None:
                    self.open.discard(found)
                self._note(job, left(self.records[job], self.now))
            case Cancel(job):
                session_of = self.attended.pop(job).session
                assert session_of is not None
                self.open.discard(session_of)
                self._note(job, Change(Happening.CANCELLED, self.now))
            case EndWaiting(job):
                self._note(job, Change(Happening.CANCELLED, self.now))
            case Explain(job, cause):
                self.records[job] = msgspec.structs.replace(self.records[job], cause=cause)
            case Prune(job):
                del self.records[job]

    def _note(self, job: JobId, change: Change) -> None:
        after = changed(self.records[job], change, LIMITS)
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
                one, two = claim_of(job.wish), claim_of(other.wish)
                assert one is None or two is None or not one.meets(two)

    @invariant()
    def no_more_run_than_may(self) -> None:
        running = [job for job in self.records.values() if job.session is not None]
        assert sum(moves_files(job.wish) for job in running) <= LIMITS.file_jobs_max
        assert sum(not moves_files(job.wish) for job in running) <= LIMITS.row_jobs_max
        assert all(job.runs <= LIMITS.runs_max for job in self.records.values())


TestPipelines = Pipelines.TestCase
TestPipelines.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
