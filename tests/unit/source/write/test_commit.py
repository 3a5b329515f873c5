"""The commit of a write: what counts, what is retried, and which replicas get rows they lack."""

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.unit.source.write_fakes import (
    HOSTS,
    SESSION,
    FakeCommit,
    FakeContact,
    FakeNodes,
    down,
    plan_of,
    target,
)
from tests.unit.storage.random_rows import column, table

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest, Overloaded, Stale, TooFewReplicas, Unavailable, Unreachable
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import ColumnKind
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.source.write import commit
from ebla.source.write.commit import commit_rows, with_rerun_advice
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.staged_replicas import LateTarget, choose_copy_sources
from ebla.source.write.task_writer import write_rows
from ebla.source.write.write_job import CommitDeps, WriteJob, WriteTaskResult, WriteTaskSpec
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.columns.load_encoding import WriteStamp
from ebla.wire.table_calls import (
    CommitWriteAnswer,
    CommitWriteRequest,
    MissingCopy,
    StagingPlan,
    StagingRoute,
)

NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))
LISTED = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "list<int>"))
FORM = RowEncoding(schema=NARROW, stamp=WriteStamp(timestamp_us=1_700_000_000_000_000, at_s=1_700_000_000))
TABLETS = WHOLE_RING.split(4)
JOB = WriteJob(session=SESSION, table=NARROW.id, job="job", level=ConsistencyLevel.QUORUM)


def batch(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"p": pa.array(range(start, start + count), pa.int32()), "v": pa.array(["v"] * count)})


def keys_of(*batches: pa.RecordBatch) -> set[bytes]:
    return {key for one in batches for key in encode_rows(FORM, one)[0].to_pylist()}


class Rig:
    """Three tasks have written to a plan; a commit ends it."""

    def __init__(self, hosts: Sequence[int] = (0, 1, 2), ranges: Sequence[TokenRange] = TABLETS) -> None:
        self.plan: StagingPlan = plan_of(NARROW, ranges, hosts)
        self.nodes = FakeNodes()
        self.answers = FakeCommit()
        self.contact = FakeContact(commit_write=self.answers)
        self.pauses: list[float] = []
        self.time = itertools.count()
        self.tasks: list[WriteTaskResult] = []
        self.written: list[pa.RecordBatch] = []

    def task(self, start: int, count: int, small_rows: int = 0) -> WriteTaskResult:
        order = WriteTaskSpec(plan=self.plan, job=JOB, small_rows=small_rows)
        self.written.append(batch(start, count))
        self.tasks.append(write_rows(order, FORM, [self.written[-1]], self.nodes.connect))
        return self.tasks[-1]

    def commit(self) -> CommitWriteAnswer:
        deps = CommitDeps(
            client=self.contact,
            connect=self.nodes.connect,
            timeout_s=5.0,
            uses_local_files=True,
            sleep=self.pauses.append,
            clock=lambda: sum(self.pauses),
        )
        return commit_rows(deps, JOB, self.plan, lambda: FORM, self.tasks)

    @property
    def last(self) -> CommitWriteRequest:
        return self.answers.requests[-1]

    def keys_at(self, host: int, request: CommitWriteRequest) -> set[bytes]:
        counted = [run for run in request.runs if run.host == HOSTS[host]]
        return {key for run in counted for key, _ in self.nodes.rows(run)}


def test_the_runs_of_the_messages_count_and_no_others() -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.task(0, 999)
    zombie = rig.tasks.pop()
    rig.task(300, 300)
    rig.written.pop(1)
    rig.commit()
    named = {run.attempt for run in rig.last.runs}
    assert named == {run.attempt for task in rig.tasks for run in task.runs}
    assert not named & {run.attempt for run in zombie.runs}
    for host in range(3):
        assert rig.keys_at(host, rig.last) == keys_of(*rig.written)
    assert rig.last.targets == rig.plan.targets
    assert (rig.last.session, rig.last.job, rig.last.level) == (SESSION, "job", ConsistencyLevel.QUORUM)


def test_without_rows_the_job_still_ends() -> None:
    rig = Rig()
    rig.task(0, 0)
    rig.commit()
    assert rig.last.runs == ()


def test_a_transfer_that_any_task_could_not_reach_counts_for_nothing() -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.nodes.broken[HOSTS[1]] = down()
    rig.task(300, 300)
    rig.nodes.broken.clear()
    rig.task(600, 300)
    rig.commit()
    assert {run.host for run in rig.last.runs} == {HOSTS[0], HOSTS[2]}
    assert {one.host for one in rig.last.targets} == {HOSTS[0], HOSTS[2]}


def test_rows_that_no_replica_has_all_of_are_not_taken_for_none() -> None:
    rig = Rig()
    for number in range(3):  # nodes that restart one after another
        rig.nodes.broken = {HOSTS[number]: down()}
        rig.task(300 * number, 300)
    rig.nodes.broken = {}
    with pytest.raises(Unavailable, match="none has all rows"):
        rig.commit()
    assert rig.answers.requests == []


@pytest.mark.parametrize("error", [Overloaded("busy"), Unreachable("gone"), TooFewReplicas("two are down")])
def test_a_commit_is_asked_until_it_has_come_to_its_end(error: Unavailable) -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.answers.answers = [error] * 4
    rig.commit()
    assert len(rig.answers.requests) == 5
    assert len({one.runs for one in rig.answers.requests}) == 1
    assert rig.pauses == [1.0, 2.0, 4.0, 8.0]


def test_asking_again_has_an_end() -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.answers.answers = [down()] * 1_000
    with pytest.raises(Unreachable):
        rig.commit()
    assert sum(rig.pauses) <= commit.RETRY_S_MAX


def test_what_nobody_can_mend_is_not_asked_again() -> None:
    rig = Rig()
    rig.answers.answers = [InvalidRequest("the table is gone")]
    with pytest.raises(InvalidRequest):
        rig.commit()
    assert len(rig.answers.requests) == 1


# ---- small writes


def test_few_rows_are_written_by_cql_and_then_the_job_ends() -> None:
    rig = Rig()
    rig.task(0, 5, small_rows=10)
    rig.task(5, 7, small_rows=10)
    rig.commit()
    ((statements, level, timestamp_us),) = rig.contact.batches
    assert len(statements) == 12
    assert (level, timestamp_us) == (ConsistencyLevel.QUORUM, FORM.stamp.timestamp_us)
    assert rig.last.runs == ()
    assert rig.nodes.puts == []


def test_rows_are_announced_before_they_are_written_by_cql() -> None:
    """A driver that was frozen for hours, while another run of its job came to an end, must not write any more."""
    rig = Rig()
    rig.task(0, 5, small_rows=10)
    rig.commit()
    assert [request.announces_rows for request in rig.answers.requests] == [True, False]
    assert rig.answers.requests[0].runs == ()
    late = Rig()
    late.task(0, 5, small_rows=10)
    late.answers.answers = [CommitWriteAnswer(is_done=True)]
    assert late.commit().is_done
    overtaken = Rig()
    overtaken.task(0, 5, small_rows=10)
    overtaken.answers.answers = [Stale("another run has taken over")]
    with pytest.raises(Stale):
        overtaken.commit()
    assert late.contact.batches == overtaken.contact.batches == []


def test_many_small_tasks_are_staged_as_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.source.write.small_writes.BY_CQL_ROWS_MAX", 11)
    rig = Rig()
    rig.task(0, 5, small_rows=10)
    rig.task(5, 7, small_rows=10)
    rig.commit()
    assert rig.contact.batches == []
    assert rig.keys_at(2, rig.last) == keys_of(*rig.written)
    assert len(rig.last.runs) <= 3 * len(TABLETS)


def test_lists_are_always_staged() -> None:
    """Their elements have names by which CQL tells statements of a batch apart."""
    rig = Rig()
    plan = plan_of(LISTED, TABLETS, (0,))
    form = RowEncoding(schema=LISTED, stamp=FORM.stamp)
    given = pa.record_batch({"p": pa.array([1], pa.int32()), "V": pa.array([[1, 2]])})
    task = write_rows(WriteTaskSpec(plan=plan, job=JOB, small_rows=10), form, [given], rig.nodes.connect)
    assert task.small
    deps = CommitDeps(client=rig.contact, connect=rig.nodes.connect, timeout_s=5.0)
    commit_rows(deps, JOB, plan, lambda: form, [task])
    assert rig.contact.batches == []
    assert [run.rows for run in rig.last.runs] == [1]


# ---- replicas that lack rows


def lacking(host: int, within: TokenRange, number: int = 0) -> CommitWriteAnswer:
    return CommitWriteAnswer(lacking=(MissingCopy(target(host, within, number=number), within),))


@pytest.mark.parametrize("merged", [False, True])
def test_a_replica_that_came_meanwhile_is_brought_all_rows_of_its_range(merged: bool) -> None:
    rig = Rig()
    rig.nodes.merged = merged
    rig.task(0, 300)
    rig.task(300, 300)
    rig.answers.answers = [lacking(3, TABLETS[1])]
    rig.commit()
    assert rig.keys_at(3, rig.last) == {key for key in keys_of(*rig.written) if decode_token(key) in TABLETS[1]}
    assert target(3, TABLETS[1]) in rig.last.targets
    brought = [run for run in rig.last.runs if run.host == HOSTS[3]]
    assert len(brought) == (1 if merged else 2), "what is merged is brought once"
    assert {run for run in rig.last.runs if run.host != HOSTS[3]} == {*rig.answers.requests[0].runs}


def test_a_range_over_several_routes_is_brought_from_each() -> None:
    rig = Rig()
    rig.task(0, 600)
    whole = TokenRange(TABLETS[0].start, TABLETS[3].end)
    rig.answers.answers = [lacking(4, whole)]
    rig.commit()
    assert rig.keys_at(4, rig.last) == keys_of(*rig.written)


def test_several_ranges_of_one_place_are_brought_together() -> None:
    """It counts as a copy of each of them: a forgotten one would be missing, unnoticed."""
    rig = Rig()
    rig.task(0, 600)
    whole = TokenRange(TABLETS[0].start, TABLETS[3].end)
    place = target(4, whole)
    rig.answers.answers = [CommitWriteAnswer(lacking=(MissingCopy(place, TABLETS[0]), MissingCopy(place, TABLETS[2])))]
    rig.commit()
    wanted = {
        key for key in keys_of(*rig.written) if decode_token(key) in TABLETS[0] or decode_token(key) in TABLETS[2]
    }
    assert rig.keys_at(4, rig.last) == wanted


def test_half_of_a_tablet_that_was_cut_gets_its_half() -> None:
    rig = Rig()
    rig.task(0, 600)
    half = TABLETS[2].split(2)[0]
    rig.answers.answers = [lacking(3, half)]
    rig.commit()
    assert rig.keys_at(3, rig.last) == {key for key in keys_of(*rig.written) if decode_token(key) in half}


def test_a_source_that_is_down_is_done_without() -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.nodes.broken[HOSTS[0]] = down()
    rig.answers.answers = [lacking(3, TABLETS[1])]
    rig.commit()
    assert rig.keys_at(3, rig.last) == {key for key in keys_of(*rig.written) if decode_token(key) in TABLETS[1]}


def test_a_lost_replica_is_brought_what_it_lacks_under_the_place_it_had() -> None:
    rig = Rig()
    rig.nodes.broken[HOSTS[1]] = down()
    rig.task(0, 300)
    rig.nodes.broken.clear()
    rig.answers.answers = [
        CommitWriteAnswer(lacking=tuple(MissingCopy(target(1, one), one) for one in TABLETS)),
    ]
    rig.commit()
    assert rig.keys_at(1, rig.last) == keys_of(*rig.written)


def test_a_place_that_cannot_be_reached_is_for_the_nodes_to_judge() -> None:
    rig = Rig()
    rig.task(0, 300)
    rig.nodes.broken[HOSTS[3]] = down()
    rig.answers.answers = [lacking(3, TABLETS[1])]
    rig.commit()
    assert {run.host for run in rig.last.runs} == {HOSTS[0], HOSTS[1], HOSTS[2]}
    assert rig.pauses == [1.0]


def test_places_that_never_end_do() -> None:
    rig = Rig()
    rig.task(0, 30)
    rig.answers.answers = [lacking(3, TABLETS[1], number) for number in range(100)]
    with pytest.raises(Unavailable, match="changed 32 times"):
        rig.commit()


def on_vnodes() -> StagingPlan:
    """Four nodes with one place each for the whole ring; of every range all but one have a copy."""
    routes = [
        StagingRoute(one, tuple(host for host in range(4) if host != number)) for number, one in enumerate(TABLETS)
    ]
    targets = tuple(target(host, WHOLE_RING) for host in range(4))
    return StagingPlan(
        schema=NARROW,
        state=WriteJobState.OPEN,
        timestamp_us=FORM.stamp.timestamp_us,
        targets=targets,
        routes=tuple(routes),
        authority=b"authority",
    )


def test_a_place_for_the_whole_ring_says_what_it_was_brought() -> None:
    """Its node may become a replica of more: without this it would count as a copy of rows that it was never sent."""
    rig = Rig()
    rig.plan = on_vnodes()
    rig.task(0, 600)
    late = target(0, WHOLE_RING, number=1)
    rig.answers.answers = [CommitWriteAnswer(lacking=tuple(MissingCopy(late, one) for one in TABLETS))]
    rig.commit()
    first, last = ({one.transfer: one.ranges for one in request.brought} for request in rig.answers.requests)
    assert first == {
        rig.plan.targets[host].transfer: tuple(one for place, one in enumerate(TABLETS) if place != host)
        for host in range(4)
    }
    assert last == {**first, late.transfer: tuple(TABLETS)}
    brought = {key for run in rig.last.runs if run.transfer == late.transfer for key, _ in rig.nodes.rows(run)}
    assert brought == keys_of(*rig.written)


def test_the_only_copy_is_brought_from_the_place_before() -> None:
    plan = plan_of(NARROW, [WHOLE_RING], (0,))
    late = LateTarget(target(0, WHOLE_RING, number=1), (WHOLE_RING,))
    assert list(choose_copy_sources(plan, {one.transfer: one for one in plan.targets}, late)) == [
        plan.targets[0].transfer
    ]


def test_without_anybody_who_has_the_rows_the_commit_fails() -> None:
    plan = plan_of(NARROW, TABLETS, (0,))
    late = LateTarget(target(3, TABLETS[0]), (TABLETS[0],))
    with pytest.raises(Unavailable, match="no replica that has the job's rows"):
        choose_copy_sources(plan, {}, late)
    present = {one.transfer: one for one in plan.targets}
    assert list(choose_copy_sources(plan, present, late)) == [target(0, TABLETS[0]).transfer]


def test_an_error_says_what_to_do() -> None:
    error = with_rerun_advice(Unreachable("connection refused", advice="look"), "nightly")
    assert isinstance(error, Unreachable)
    assert "some of it may be visible: connection refused" in str(error)
    assert "job='nightly'" in str(error)
    assert "option `job`" in str(with_rerun_advice(Unreachable("x"), ""))
