"""An order to stream ranges among scripted processes: repeats, errors, and what is reported."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.pipeline.jobs_rig import FILE_BYTES, HISTORY, ScriptedCluster, ScriptedEngine
from tests.unit.pipeline.ring_rig import FIRST, NEW, ON_TABLETS, ORDER, SECOND, SESSION, joining
from tests.unit.topology.small_cluster import host

from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.errors import Corruption, DiskFull, EblaError, NotFound, Unreachable
from ebla.model.identity import JobId, TransferId
from ebla.model.transaction import Revision
from ebla.model.transfers import MoveResult, RowMove, TransferResult, TransferTask
from ebla.pipeline import ring_streaming
from ebla.pipeline.ring_copies import ring_copies
from ebla.pipeline.ring_streaming import RingStreaming, StreamContext, StreamWatcher
from ebla.ports.transfer_engine import EngineState, EngineStatus, PipelineUnavailable, SourceDamaged, WorkFailed
from ebla.sim.rng import SimRng
from ebla.topology.snapshot import Snapshot
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.transfers.transfer_run import TransferStep
from ebla.wire.topology_messages import StreamResult, StreamWatchAnswer, StreamWatchRequest
from ebla.wire.transfer_messages import (
    AdoptRequest,
    OpenStagingAnswer,
    OpenStagingRequest,
    ReleaseRequest,
    SealRequest,
    TakeCheckpointRequest,
)

COPIES = ring_copies(joining(), (FIRST, SECOND), SESSION)
IDS = {copy.transfers[0] for copy in COPIES}
RANGES = sum(len(copy.parts) for copy in COPIES)
AWAY = EngineStatus(state=EngineState.UNAVAILABLE, cause="Java is missing")


class HangingEngine(ScriptedEngine):
    """A run waits until the gate is open. Some answer a cancellation with an error."""

    lost_cancellations = 0

    def __init__(self, rng: SimRng) -> None:
        super().__init__(rng)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing_on: dict[TransferId, EblaError] = {}
        """Raised once instead of the result."""

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if not self.lost_cancellations:
                raise
            self.lost_cancellations -= 1
            raise Unreachable("the permit has ended") from None
        moved = await super().run(job, work)
        for result in moved:
            failure = self.failing_on.pop(result.transfer, None) if isinstance(result, MoveResult) else None
            if failure is not None:
                raise failure
        return moved


class Rig:
    def __init__(self, snapshot: Snapshot | None = None) -> None:
        rng = SimRng("rig")
        self.topology = TopologyView()
        self._index = 0
        self.install(snapshot or joining())
        self.cluster = ScriptedCluster(rng, self.topology.current.version)
        self.engine = HangingEngine(rng)
        limits = TransferCallLimits(patience_ms=0)
        self.context = StreamContext(
            client=TransferClient(self.cluster, rng, limits), engine=self.engine, topology=self.topology
        )
        self.steps: list[TransferStep] = []
        self.streaming = self.new_streaming()

    def new_streaming(self) -> RingStreaming:
        return RingStreaming(self.context, ORDER, self._reach)

    def install(self, snapshot: Snapshot) -> None:
        self._index += 1
        self.topology.install(view_of(snapshot, Revision(HISTORY, self._index)))

    async def _reach(self, step: TransferStep) -> None:
        self.steps.append(step)

    @property
    def result(self) -> StreamResult:
        return self.streaming.result

    @property
    def moves(self) -> list[RowMove]:
        return [one for work in self.engine.ran for one in work if isinstance(one, RowMove)]

    def moved(self) -> list[TransferId]:
        return [to.target.transfer for move in self.moves for to in move.targets]

    def answer_stagings(self, **flags: Any) -> None:
        def answer(request: OpenStagingRequest) -> OpenStagingAnswer:
            return OpenStagingAnswer(self.cluster._target(request, NEW), **flags)

        self.cluster.free_answers["open_staging"] = answer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.streaming.run())
            yield
            running.cancel()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_everything_is_copied_under_the_session_of_the_topology(rig: Rig) -> None:
    await rig.streaming.run()
    assert (rig.result.is_done, rig.result.error) == (True, "")
    progress = rig.result.progress
    assert (progress.ranges_done, progress.ranges_total) == (RANGES, RANGES)
    assert progress.bytes_moved == len(COPIES) * FILE_BYTES <= progress.bytes_total
    assert set(rig.moved()) == IDS
    assert {(one.session, one.version) for one in rig.cluster.of(OpenStagingRequest)} == {(SESSION, ORDER.version)}
    assert {(one.session, one.version) for one in rig.cluster.of(TakeCheckpointRequest)} == {(SESSION, ORDER.version)}
    assert {one.session for one in rig.cluster.of(AdoptRequest)} == {SESSION}
    assert not [call for call in rig.cluster.calls if "session" in call]
    assert rig.steps == list(TransferStep)


async def test_one_job_has_the_ranges_of_all_tables_each_with_its_sources(rig: Rig) -> None:
    await rig.streaming.run()
    assert len(rig.engine.ran) == 1
    by_id = {copy.transfers[0]: copy for copy in COPIES}
    for move in rig.moves:
        copy = by_id[move.targets[0].target.transfer]
        assert {source.table for source in move.sources} == {copy.table}
        read = [(part.range, tuple(move.sources[number].host for number in part.sources)) for part in move.parts]
        assert read == [(part.range, part.hosts) for part in copy.parts]
    # Targets hold their tombstones before anything is read.
    calls = rig.cluster.words()
    assert max(n for n, call in enumerate(calls) if call.startswith("open_staging")) < min(
        n for n, call in enumerate(calls) if call.startswith("take_checkpoint")
    )


async def test_a_repeat_moves_nothing_that_was_adopted(rig: Rig) -> None:
    await rig.streaming.run()
    first = {one.transfer for one in rig.cluster.of(OpenStagingRequest)}
    rig.engine.ran.clear()
    rig.cluster.requests.clear()
    rig.answer_stagings(is_done=True)
    rig.streaming = rig.new_streaming()
    await rig.streaming.run()
    assert {one.transfer for one in rig.cluster.of(OpenStagingRequest)} == first == IDS
    assert all(one.is_repeatable for one in rig.cluster.of(OpenStagingRequest))
    assert rig.engine.ran == []
    assert (rig.cluster.of(TakeCheckpointRequest), rig.cluster.of(AdoptRequest)) == ([], [])
    assert not [one for one in rig.cluster.of(ReleaseRequest) if one.transfers]
    assert (rig.result.is_done, rig.result.progress.ranges_done) == (True, RANGES)


async def test_what_was_sealed_is_only_adopted(rig: Rig) -> None:
    rig.answer_stagings(is_sealed=True)
    await rig.streaming.run()
    assert rig.engine.ran == []
    assert not rig.cluster.of(SealRequest)
    assert {one.transfer for one in rig.cluster.of(AdoptRequest)} == IDS
    assert rig.result.is_done


async def test_what_one_job_has_moved_is_adopted_before_the_last_one_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_streaming, "JOB_BYTES", 1)
    last = COPIES[-1].transfers[0]
    rig.engine.failing_on = {last: WorkFailed("a task failed", cause="Unreachable", transfer=str(last))}
    await rig.streaming.run()
    assert rig.result.is_done
    moved = rig.moved()
    # At most the two jobs that ran at the same time are moved again.
    assert len(IDS) < len(moved) <= len(IDS) + 2
    assert moved.count(COPIES[0].transfers[0]) == 1
    assert rig.result.progress.bytes_moved == len(IDS) * FILE_BYTES


async def test_nothing_to_move_needs_no_spark() -> None:
    rig = Rig(joining([ON_TABLETS]))
    rig.engine.state = AWAY
    await rig.streaming.run()
    assert rig.result.is_done
    assert rig.cluster.calls == []


# ---- errors


async def test_a_failed_transfer_is_named_and_tried_again_with_growing_pauses(rig: Rig) -> None:
    copy = COPIES[0]
    failure = WorkFailed("a task failed: cut off", cause="Unreachable", transfer=str(copy.transfers[0]))
    rig.engine.failing = [failure] * 7
    async with rig.running():
        await asyncio.sleep(0.5)
        expected = f"ks.first ({copy.range.start}, {copy.range.end}] to 127.0.0.4: a task failed: cut off"
        assert (rig.result.error, rig.result.is_final, rig.result.is_done) == (expected, False, False)
        await asyncio.sleep(1 + 2 + 4 + 8 + 16 + 30 + 30 - 0.5)
        assert len(rig.engine.ran) == 7
        await asyncio.sleep(2)
        assert rig.streaming.result.error == ""
    assert rig.streaming.result.is_done
    assert len(rig.engine.ran) == 8


@pytest.mark.parametrize(
    ("verb", "error", "is_final", "place"),
    [
        ("open_staging", DiskFull("no room"), True, "to 127.0.0.4"),
        ("adopt", DiskFull("no room"), True, "to 127.0.0.4"),
        ("take_checkpoint", DiskFull("no room"), False, "from 127.0.0."),
        ("take_checkpoint", Corruption("a layer is damaged"), True, "from 127.0.0."),
        ("seal", Corruption("it changed on its way"), False, "to 127.0.0.4"),
        ("take_checkpoint", Unreachable("cut off"), False, "from 127.0.0."),
    ],
)
async def test_only_a_full_target_and_a_damaged_source_are_final(
    rig: Rig, verb: str, error: EblaError, is_final: bool, place: str
) -> None:
    rig.cluster.failing[verb] = [error]
    async with rig.running():
        await asyncio.sleep(0.9)
        assert rig.result.is_final is is_final
        assert place in rig.result.error
        assert "ks." in rig.result.error
        assert error.message in rig.result.error
        await asyncio.sleep(5)
        assert rig.result.is_done is not is_final


@pytest.mark.parametrize("cause", [SourceDamaged.__name__, DiskFull.__name__])
async def test_a_task_may_find_what_no_repeat_mends(rig: Rig, cause: str) -> None:
    rig.engine.failing = [WorkFailed("a task failed", cause=cause, transfer=str(COPIES[1].transfers[0]))]
    await rig.streaming.run()
    assert rig.result.is_final
    assert rig.result.error.startswith("ks.")


async def test_it_waits_for_spark(rig: Rig) -> None:
    rig.engine.state = AWAY
    async with rig.running():
        await asyncio.sleep(60)
        assert (rig.result.unavailable, rig.result.error) == ("Java is missing", "")
        rig.engine.state = EngineStatus(state=EngineState.READY)
        rig.engine.failing = [PipelineUnavailable("Spark was lost")]
        await asyncio.sleep(5)
        assert (rig.result.unavailable, rig.result.is_done) == ("", True)


# ---- the topology changes meanwhile


async def test_a_source_that_is_excluded_is_replaced_at_once(rig: Rig) -> None:
    rig.engine.gate.clear()
    async with rig.running():
        await asyncio.sleep(1)
        rig.install(joining(excluded=[host(2)], version=6))
        await asyncio.sleep(0.1)
        rig.engine.gate.set()
        await asyncio.sleep(1)
        assert (rig.result.is_done, rig.result.error) == (True, "")
    assert set(rig.moved()) == IDS
    assert all(source.host != host(2) for move in rig.moves for source in move.sources)


async def test_a_dropped_table_ends_its_transfers_and_no_others(rig: Rig) -> None:
    rig.cluster.failing["seal"] = [NotFound("there is no table")]
    async with rig.running():
        await asyncio.sleep(0.5)
        rig.install(joining([SECOND, ON_TABLETS], version=6))
        await asyncio.sleep(5)
        assert (rig.result.is_done, rig.result.error) == (True, "")
    kept = [copy for copy in COPIES if copy.table == SECOND]
    assert rig.result.progress.ranges_total == sum(len(copy.parts) for copy in kept)


async def test_it_plans_by_the_version_of_its_order() -> None:
    rig = Rig(joining(version=4))
    async with rig.running():
        await asyncio.sleep(1)
        assert rig.cluster.calls == []
        rig.install(joining(version=5))
        await asyncio.sleep(1)
        assert rig.result.is_done


# ---- orders


class WatchedControl:
    """Answers a watch when the order changes, or when its hold ends."""

    def __init__(self) -> None:
        self.answer = StreamWatchAnswer(0)
        self.requests: list[StreamWatchRequest] = []

    async def call(self, request: StreamWatchRequest, deadline_ms: int) -> StreamWatchAnswer:
        self.requests.append(request)
        waited_ms = 0
        while request.seen == self.answer.number and waited_ms < request.hold_ms:
            await asyncio.sleep(0.01)
            waited_ms += 10
        assert waited_ms <= deadline_ms
        return self.answer


async def test_orders_are_run_reported_and_withdrawn(rig: Rig) -> None:
    control = WatchedControl()
    watcher = StreamWatcher(rig.context, control.call, 42)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watcher.run())
        rig.engine.gate.clear()
        control.answer = StreamWatchAnswer(1, ORDER, ("stream.opened", "stream.before_seal"))
        await asyncio.sleep(2.5)
        reports = [one.result for one in control.requests if one.result is not None and one.hold_ms]
        assert len(reports) >= 2
        assert {one.reached for one in control.requests} == {"", "stream.opened"}
        control.answer = StreamWatchAnswer(2, None)
        await asyncio.sleep(1)
        rig.engine.gate.set()
        await asyncio.sleep(1)
        assert rig.engine.ran == []
        control.answer = StreamWatchAnswer(3, ORDER)
        await asyncio.sleep(0.5)
        last = control.requests[-1]
        assert last.result is not None
        assert (last.seen, last.result.is_done, last.pid) == (3, True, 42)
        running.cancel()


async def test_a_run_that_loses_its_cancellation_is_cancelled_again(rig: Rig) -> None:
    """Otherwise: the permit ends, calls fail for that, and the run is repeated for ever without a permit."""
    control = WatchedControl()
    watcher = StreamWatcher(rig.context, control.call, 42)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watcher.run())
        rig.engine.gate.clear()
        rig.engine.lost_cancellations = 1
        control.answer = StreamWatchAnswer(1, ORDER)
        await asyncio.sleep(1)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=10)
    assert done
    assert rig.engine.lost_cancellations == 0
