"""One run of a job among scripted processes: the order of its steps, retries, and results."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.unit.pipeline.jobs_rig import (
    FILE_BYTES,
    HOSTS,
    LoopClock,
    ScriptedCluster,
    ScriptedEngine,
    T,
    a_job,
    a_snapshot,
    a_view,
    in_simulated_time,
    without_table,
)
from tests.unit.topology.small_cluster import TABLE

from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    NotFound,
    Refused,
    Stale,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import SessionId, TopologyVersion
from ebla.model.records.jobs import CompareReplicas, CopyTablets, JobProgress, JobResult, JobSpec, StreamRange
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import ComparisonTask, FileMove, RowMove, StagedFile
from ebla.pipeline.job_runner import JobRunner, JobTimedOut, NewSession
from ebla.ports.transfer_engine import PipelineUnavailable
from ebla.sim.rng import SimRng
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.transfer_messages import AdoptRequest, OpenSessionRequest, OpenStagingRequest, SealRequest

A, B, C = HOSTS
"""Tablet 0 is on A and B, tablet 1 on B and C."""
DRAWN = NewSession(SessionId(UUID(int=77)), TopologyVersion(1))
COPY = CopyTablets(table=TABLE, tablets=(0,), source=A, target=B)


class Rig:
    def __init__(self, tablets: int = 2, copies: int = 2) -> None:
        self.rng = SimRng("rig")
        self.view = a_view(a_snapshot(tablets, copies))
        self.cluster = ScriptedCluster(self.rng, self.view.current.version)
        self.engine = ScriptedEngine(self.rng)
        client = TransferClient(self.cluster, self.rng, TransferCallLimits())
        self.runner = JobRunner(client=client, engine=self.engine, topology=self.view, clock=LoopClock(), rng=self.rng)
        self.reported: list[JobProgress] = []
        self.taken_over = False

    def report(self, progress: JobProgress) -> None:
        self.reported.append(progress)

    async def confirm(self) -> None:
        self.cluster.calls.append("confirm")
        if self.taken_over:
            raise Stale("it was taken over")

    async def run(self, spec: JobSpec, **changes: Any) -> JobResult:
        return await self.runner.run(a_job(1, spec, **changes), DRAWN, self)


def run(rig: Rig, spec: JobSpec, **changes: Any) -> JobResult:
    return in_simulated_time(rig.run(spec, **changes))


def until(work: Coroutine[Any, Any, T], seconds: float) -> T:
    async def within() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return in_simulated_time(within())


# ---- files


def test_the_target_is_opened_before_the_checkpoint_and_adopts_what_was_sealed() -> None:
    rig = Rig()
    result = run(rig, COPY)
    assert rig.cluster.words() == [
        "open_session",
        "confirm",
        "open_staging n2",
        "take_checkpoint n1",
        "open_staging n2",
        "seal n2",
        "adopt n2/1",
        "release n1",
        "release n2",
    ]
    assert result == JobResult(bytes_moved=FILE_BYTES, layers=1, short_cut=True)
    first, sized = rig.cluster.of(OpenStagingRequest)
    assert first.transfer == sized.transfer
    assert (first.size_bytes, sized.size_bytes) == (0, FILE_BYTES), "room is asked for once the size is known"
    (adopted,) = rig.cluster.of(AdoptRequest)
    assert (adopted.session, adopted.transfer) == (DRAWN.session, first.transfer)


def test_a_session_is_asked_for_with_what_was_known_when_its_id_was_drawn() -> None:
    rig = Rig()
    run(rig, COPY)
    (opened,) = rig.cluster.of(OpenSessionRequest)
    assert (opened.session, opened.known_version, opened.life_ms) == (DRAWN.session, DRAWN.known_version, 3_600_000)


def test_without_the_short_cut_nobody_knows_the_machine() -> None:
    rig = Rig()
    result = run(rig, CopyTablets(table=TABLE, tablets=(0,), source=A, target=B, short_cut=False))
    (move,) = rig.engine.ran[0]
    assert isinstance(move, FileMove)
    assert (move.source.machine, move.source.folder, move.target.machine, move.target.folder) == ("", "", "", "")
    assert not result.short_cut


def test_an_empty_replica_moves_nothing() -> None:
    rig = Rig()
    rig.cluster.empty_sources = {A}
    assert run(rig, COPY) == JobResult()
    assert rig.engine.ran == []
    assert "seal n2" not in rig.cluster.calls


def test_several_tablets_are_a_transfer_each_from_one_checkpoint() -> None:
    rig = Rig(copies=3)
    rig.cluster.parts_at = {A: 2}
    result = run(rig, CopyTablets(table=TABLE, tablets=(1, 0), source=A, target=B))
    assert (result.bytes_moved, result.layers) == (2 * FILE_BYTES, 2)
    sealed = rig.cluster.of(SealRequest)
    assert len({one.transfer for one in sealed}) == 2
    words = rig.cluster.words()
    assert words.count("take_checkpoint n1") == 1
    assert words.index("take_checkpoint n1") > 1 + words.index("open_staging n2"), "both places are open by then"
    assert [one.size_bytes for one in rig.cluster.of(OpenStagingRequest)] == [0, 0, FILE_BYTES], (
        "room, once for the node"
    )


def test_a_tablet_that_was_cut_anew_meanwhile_is_not_taken_for_an_empty_one() -> None:
    rig = Rig()
    rig.cluster.parts_at = {A: 2}
    with pytest.raises(Stale, match="the source now has"):
        run(rig, COPY)
    assert rig.engine.ran == []


def test_what_fails_in_passing_is_asked_again() -> None:
    rig = Rig()
    rig.cluster.failing["adopt"] = [Unreachable("no way"), ConnectionLost("gone"), Unavailable("starting")]
    rig.cluster.failing["open_session"] = [DeadlineExceeded("slow")]
    run(rig, COPY)
    assert rig.cluster.calls.count("adopt n2/1") == 4
    assert len(set(rig.cluster.of(AdoptRequest))) == 1, "the same question"


def test_what_is_refused_is_not_asked_again() -> None:
    rig = Rig()
    rig.cluster.failing["open_staging"] = [Refused("the shard is in another life")]
    with pytest.raises(Refused, match="another life"):
        run(rig, COPY)
    assert rig.cluster.calls.count("open_staging n2") == 1


def test_patience_has_an_end() -> None:
    rig = Rig()
    rig.cluster.failing["adopt"] = [Unreachable("no way")] * 1000
    with pytest.raises(Unreachable):
        until(rig.run(COPY), 120)


def test_of_several_attempts_the_first_whole_one_is_sealed() -> None:
    rig = Rig()
    rig.engine.attempts = 2
    rig.cluster.failing["seal"] = [Corruption("a file differs from its description")]
    run(rig, COPY)
    first, second = rig.cluster.of(SealRequest)
    assert first.transfer == second.transfer
    assert first.attempt != second.attempt


def test_an_attempt_that_is_not_whole_is_no_transfer() -> None:
    rig = Rig()
    rig.cluster.failing["seal"] = [Corruption("a file differs from its description")]
    with pytest.raises(Corruption):
        run(rig, COPY)
    assert "adopt n2/1" not in rig.cluster.calls


@pytest.mark.parametrize(
    "reported",
    [
        (),
        (StagedFile(name="0/rows", size_bytes=FILE_BYTES - 1, checksum=1),),
        (StagedFile(name="0/rows", size_bytes=FILE_BYTES, inode=99),),
        (
            StagedFile(name="0/rows", size_bytes=FILE_BYTES, checksum=1),
            StagedFile(name="1/rows", size_bytes=FILE_BYTES, checksum=1),
        ),
    ],
    ids=["nothing", "too short", "another file", "too many"],
)
def test_an_attempt_that_tells_of_other_files_than_the_source_has_is_not_sealed(
    reported: tuple[StagedFile, ...],
) -> None:
    """INV-XFER-2."""
    rig = Rig()
    rig.engine.reported_files = reported
    with pytest.raises(InternalError, match="no complete attempt"):
        run(rig, COPY)
    assert rig.cluster.of(SealRequest) == []


def test_a_run_that_was_taken_over_does_nothing_under_its_session() -> None:
    rig = Rig()
    rig.taken_over = True
    with pytest.raises(Stale):
        run(rig, COPY)
    assert rig.cluster.words() == ["open_session", "confirm"]


def test_what_makes_no_sense_is_refused_before_a_session_is_opened() -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match="no tablet 9"):
        run(rig, CopyTablets(table=TABLE, tablets=(9,), source=A, target=B))
    assert rig.cluster.calls == []


def test_the_engine_may_be_away() -> None:
    rig = Rig()
    rig.engine.failing = [PipelineUnavailable("no Java")]
    with pytest.raises(PipelineUnavailable):
        run(rig, COPY)


def test_a_job_has_its_time() -> None:
    rig = Rig()
    rig.engine.takes_s = 1e6
    with pytest.raises(JobTimedOut, match="not done within 20 s"):
        run(rig, COPY, life_ms=20_000)


def test_progress_comes_from_the_target_and_the_engine() -> None:
    rig = Rig()
    rig.engine.takes_s = 3

    async def receive() -> JobResult:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(rig.run(COPY))
            await asyncio.sleep(1.5)
            transfer = rig.cluster.of(OpenStagingRequest)[0].transfer
            rig.cluster.received[transfer] = 400
        return running.result()

    in_simulated_time(receive())
    steps = [one.step for one in rig.reported]
    assert steps[0] == "opening a session"
    assert "copying files" in steps
    assert any(
        (one.bytes_done, one.bytes_total, one.tasks_done, one.tasks_total) == (400, 1000, 1, 2) for one in rig.reported
    )
    assert rig.reported[-1].bytes_done == FILE_BYTES


# ---- rows


def test_rows_of_a_range_are_streamed_tablet_by_tablet() -> None:
    rig = Rig(tablets=2, copies=3)
    result = run(rig, StreamRange(table=TABLE, range=WHOLE_RING, sources=(A, C), target=B))
    (work,) = rig.engine.ran
    assert len(work) == 2
    for move in work:
        assert isinstance(move, RowMove)
        assert [source.host for source in move.sources] == [A, C]
        assert [(one.target.host, one.own) for one in move.targets] == [(B, None)]
        assert move.targets[0].target.range == move.range
        assert move.schema is not None
    words = rig.cluster.words()
    assert words.index("take_checkpoint n1") > max(
        place for place, word in enumerate(words) if word == "open_staging n2"
    )
    assert words.count("adopt n2/1") == 2
    assert result.rows == 14


def test_a_target_that_lacks_nothing_seals_nothing() -> None:
    rig = Rig(copies=3)
    rig.engine.lacking = set()
    assert run(rig, StreamRange(table=TABLE, range=WHOLE_RING, sources=(A,), target=B)).rows == 0
    assert "seal n2" not in rig.cluster.calls
    assert "adopt n2/1" not in rig.cluster.calls


# ---- comparing


def test_equal_replicas_have_no_difference() -> None:
    rig = Rig()
    result = run(rig, CompareReplicas(TABLE))
    assert result == JobResult(rows=20, ranges_compared=2)
    (work,) = rig.engine.ran
    for one in work:
        assert isinstance(one, ComparisonTask)
        assert one.gc_before_s == 1_700_000_000 - 864_000
    assert [[source.host for source in one.sources] for one in work if isinstance(one, ComparisonTask)] == [
        [A, B],
        [B, C],
    ]


POINT = Token(-5_000_000_000)


def test_a_table_that_is_dropped_while_it_is_compared_ends_the_job_in_words() -> None:
    rig = Rig()

    def dropped(_bucket: TokenRange, _look: int) -> bool:
        rig.view.install(without_table(rig.view.current))
        return True

    rig.engine.differs = dropped
    with pytest.raises(NotFound, match="dropped"):
        run(rig, CompareReplicas(TABLE))


def test_what_differs_for_a_moment_is_no_difference() -> None:
    """A write was under way between two checkpoints."""
    rig = Rig()
    rig.engine.differs = lambda bucket, look: POINT in bucket and look < 3
    result = run(rig, CompareReplicas(TABLE))
    assert result.differences_total == 0
    assert rig.engine.looks == 3
    assert rig.cluster.calls.count("take_checkpoint n1") == 3, "each look has checkpoints of its own"


def test_what_differs_each_time_is_told_ever_more_narrowly() -> None:
    rig = Rig()
    rig.engine.differs = lambda bucket, _look: POINT in bucket
    result = run(rig, CompareReplicas(TABLE))
    assert result.differences_total == 1
    (found,) = result.differences
    assert POINT in found.range
    assert found.range.width <= (1 << 63) // (16**4) + 1
    assert found.replicas == ((A, "00", 3), (B, "01", 3))
    assert not any(isinstance(one, RowMove) for work in rig.engine.ran for one in work)


def test_only_the_first_differences_are_kept_and_all_are_counted() -> None:
    rig = Rig()
    rig.engine.differs = lambda bucket, _look: True
    result = run(rig, CompareReplicas(TABLE))
    assert len(result.differences) == 100
    assert result.differences_total == 2 * 4_096
    assert rig.engine.looks == 4, "however many they are, each look is one piece of work"


def test_what_differs_elsewhere_each_time_is_no_difference() -> None:
    rig = Rig()
    points = (POINT, Token(POINT - 2**60), Token(POINT - 2**61), Token(2**62))
    rig.engine.differs = lambda bucket, look: points[(look - 1) % 4] in bucket
    assert run(rig, CompareReplicas(TABLE)).differences_total == 0


def test_healing_brings_to_each_replica_what_it_lacks_and_looks_again() -> None:
    rig = Rig()

    def differs(bucket: TokenRange, _look: int) -> bool:
        return POINT in bucket and not any(isinstance(one, RowMove) for work in rig.engine.ran for one in work)

    rig.engine.differs = differs
    rig.engine.lacking = {B}
    result = run(rig, CompareReplicas(TABLE, heal=True))
    assert result.differences_total == 0
    assert result.healed_rows == 7
    (moves,) = [work for work in rig.engine.ran if isinstance(work[0], RowMove)]
    (move,) = moves
    assert isinstance(move, RowMove)
    assert [(one.target.host, one.own) for one in move.targets] == [(A, 0), (B, 1)]
    assert [source.host for source in move.sources] == [A, B]
    assert POINT in move.range
    assert "adopt n1/1" not in rig.cluster.calls
    assert rig.cluster.calls.count("adopt n2/1") == 1
    assert isinstance(rig.engine.ran[-1][0], ComparisonTask), "what was healed is compared again"


def test_what_differs_still_after_healing_is_told() -> None:
    rig = Rig()
    rig.engine.differs = lambda bucket, _look: POINT in bucket
    result = run(rig, CompareReplicas(TABLE, heal=True))
    assert result.differences_total == 1
    assert result.healed_rows == 14


def test_a_table_with_one_copy_is_equal_to_itself() -> None:
    rig = Rig(copies=1)
    assert run(rig, CompareReplicas(TABLE)) == JobResult()
    assert rig.engine.ran == []


@pytest.mark.parametrize("verb", ["take_checkpoint", "open_staging", "seal", "adopt"])
def test_an_error_on_the_way_is_raised_as_it_is(verb: str) -> None:
    rig = Rig()
    rig.cluster.failing[verb] = [Stale("the session is closed")] * 3
    with pytest.raises(EblaError, match="the session is closed"):
        run(rig, StreamRange(table=TABLE, range=TokenRange(Token(TOKEN_A), Token(TOKEN_B)), sources=(A,), target=B))


TOKEN_A, TOKEN_B = -(2**62), -(2**61)
