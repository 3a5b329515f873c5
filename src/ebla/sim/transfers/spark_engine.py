"""`ports.transfer_engine.TransferEngine` in simulation: an engine with all the faults of Spark.

Its driver lives and dies with the pipeline process. Its executors are units of the world, on the nodes' machines and on
others, and fail like any unit. At random it runs a task twice, at once or while the first attempt hangs; lets an
attempt go on long after it was cancelled; kills one silently; loses the whole engine; reports superseded attempts, and
reports results twice. For the faults of attempts see `attempts.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ebla.model.errors import EblaError, Stale, Unavailable
from ebla.model.identity import AttemptId, CheckpointId, HostId, JobId, TransferId
from ebla.model.transfers import FileMove, RowMove, TransferResult, TransferTask
from ebla.ports.environment import Environment
from ebla.ports.transfer_engine import EngineState, EngineStatus, PipelineUnavailable, TaskCounts, WorkFailed
from ebla.sim.rng import SimRng
from ebla.sim.transfers.attempts import AttemptFaults, AttemptLost, SimAttempt, SimExecutor, draw_fault_plan
from ebla.sim.transfers.flight import BulkHandle
from ebla.sim.world import World
from ebla.storage.layers.layer import Item

ATTEMPTS_MAX = 3
SPECULATE_AFTER_S = 3.0
"""An attempt that has not reported for this long gets a second one beside it."""
GIVE_UP_AFTER_S = 15.0
POLL_S = 0.2
OUTAGE_MEAN_S = 4.0
LOCAL_SHARE = 0.6


def _ignore(*_: object) -> None:
    pass


def _no_bulk(host: HostId) -> BulkHandle:
    raise LookupError(f"no bulk process of {host} is known")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFaults:
    """The probability of each fault of the engine, independent of the others."""

    duplicate: float = 0.2
    report_superseded: float = 0.3
    report_twice: float = 0.2
    lose_engine: float = 0.02
    attempts_faults: AttemptFaults = field(default_factory=AttemptFaults)


NO_ENGINE_FAULTS = EngineFaults(
    duplicate=0.0,
    report_superseded=0.0,
    report_twice=0.0,
    lose_engine=0.0,
    attempts_faults=AttemptFaults(hangs=0.0, ignores_cancel=0.0, dies=0.0, corrupts=0.0, short_cut=0.0, keeps_open=0.0),
)


@dataclass(slots=True, kw_only=True)
class SimSparkEngine:
    """What outlives every driver: the executors, and whether the engine can be used."""

    world: World
    bulk_of: Callable[[HostId], BulkHandle] = _no_bulk
    """Finds the bulk process of a node."""
    executors: list[SimExecutor] = field(default_factory=list)
    faults: EngineFaults = field(default_factory=EngineFaults)
    generation: int = 0
    """Grows when the engine is lost: results of an earlier generation do not count."""
    back_at: float = 0.0
    attempts: int = 0
    zombies: int = 0
    """Attempts that went on after their job had ended."""
    refused: int = 0
    """Attempts whose session was closed, or whose staging was gone."""
    note_files: Callable[[FileMove], None] = _ignore
    """Called before the first attempt at a file move."""
    note_rows: Callable[[TransferId, Sequence[Item], tuple[CheckpointId, ...]], None] = _ignore

    @property
    def is_away(self) -> bool:
        return self.world.now() < self.back_at

    def lose(self, seconds: float) -> None:
        """Running attempts go on, but no result arrives."""
        self.world.log("engine", f"is lost for {seconds:.1f} s")
        self.generation += 1
        self.back_at = self.world.now() + seconds

    def running(self) -> list[SimExecutor]:
        return [one for one in self.executors if not one.unit.down and one.environment is not None]


@dataclass(slots=True, kw_only=True)
class _Piece:
    """One task, as its driver sees it."""

    work: TransferTask
    job: "_Job"
    attempts: list[SimAttempt] = field(default_factory=list)
    results: list[Sequence[TransferResult]] = field(default_factory=list)
    """The results of the attempts that reported, in that order."""
    failures: list[EblaError] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def is_running(self) -> bool:
        return any(not one.ended for one in self.attempts)


@dataclass(slots=True)
class _Job:
    generation: int
    pieces: list[_Piece] = field(default_factory=list)
    over: bool = False


class SimTransfers:
    """`ports.transfer_engine.TransferEngine`, in one incarnation of a pipeline process."""

    def __init__(self, environment: Environment, engine: SimSparkEngine) -> None:
        self._rng = SimRng(f"transfers {environment.rng.uuid()}")
        self._engine = engine
        self._jobs: dict[JobId, _Job] = {}

    def status(self) -> EngineStatus:
        if self._engine.is_away:
            return EngineStatus(
                state=EngineState.UNAVAILABLE, cause="the simulated engine is unavailable", master="sim", version="0"
            )
        return EngineStatus(state=EngineState.READY, cause="", master="sim", version="0")

    def tasks(self, job: JobId) -> TaskCounts:
        found = self._jobs.get(job)
        if found is None:
            return TaskCounts()
        done = sum(bool(piece.results) for piece in found.pieces)
        running = sum(piece.is_running() for piece in found.pieces)
        return TaskCounts(done, running, len(found.pieces))

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        engine, faults = self._engine, self._engine.faults
        self._check(engine.generation)
        if self._rng.happens(faults.lose_engine):
            engine.lose(self._rng.exponential(OUTAGE_MEAN_S))
        running = self._jobs[job] = _Job(engine.generation)
        running.pieces = [_Piece(work=one, job=running) for one in work]
        for one in work:
            if isinstance(one, FileMove):
                engine.note_files(one)
        try:
            async with asyncio.TaskGroup() as tasks:
                ends = [tasks.create_task(self._carry_out(piece)) for piece in running.pieces]
            for end in ends:
                failure = end.result()
                if failure is not None:
                    raise failure
        finally:
            # Also if the caller was cancelled. An attempt that checks this stops at its next step; some never check.
            running.over = True
            self._jobs.pop(job, None)
            for attempt in (one for piece in running.pieces for one in piece.attempts):
                attempt.cancelled = True
        results = [result for piece in running.pieces for result in self._reported(piece)]
        self._rng.shuffle(results)
        return results

    # -- one piece ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, piece: _Piece) -> EblaError | None:
        """Why the task failed; None if it succeeded."""
        began = self._engine.world.now()
        twice = self._rng.happens(self._engine.faults.duplicate)
        self._launch(piece)
        if twice:
            self._launch(piece)
        quiet_since = began
        while not piece.results:
            if self._is_lost(piece.job.generation):
                return PipelineUnavailable("the simulated engine was lost", advice="it recovers without intervention")
            now = self._engine.world.now()
            hangs = now - quiet_since > SPECULATE_AFTER_S
            if hangs or not piece.is_running():
                if len(piece.attempts) >= ATTEMPTS_MAX and (not piece.is_running() or now - began > GIVE_UP_AFTER_S):
                    return _failed(piece)
                if len(piece.attempts) < ATTEMPTS_MAX:
                    self._launch(piece)
                quiet_since = now
            piece.heard.clear()
            await self._wait(piece)
        if self._rng.happens(self._engine.faults.report_superseded):
            await asyncio.sleep(self._rng.exponential(0.3))  # other attempts may report, too
        return None

    async def _wait(self, piece: _Piece) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await piece.heard.wait()
        except TimeoutError:
            pass

    def _launch(self, piece: _Piece) -> None:
        engine = self._engine
        executors = engine.running()
        if not executors:
            piece.failures.append(Unavailable("there is no executor"))
            return
        executor = self._rng.choice(self._near(piece.work, executors) or executors)
        engine.attempts += 1
        rng = self._rng.fork(f"attempt {engine.attempts}")
        attempts_faults = engine.faults.attempts_faults
        attempt = SimAttempt(
            id=AttemptId(self._rng.uuid()), work=piece.work, rng=rng, fault_plan=draw_fault_plan(rng, attempts_faults)
        )
        piece.attempts.append(attempt)
        executor.inbox.put_nowait((attempt, lambda end: self._ended(piece, attempt, end)))

    def _near(self, work: TransferTask, executors: Sequence[SimExecutor]) -> list[SimExecutor]:
        """Often the executors on the target's machine, which may use hard links."""
        if not isinstance(work, FileMove) or not self._rng.happens(LOCAL_SHARE):
            return []
        disk = self._engine.bulk_of(work.target.host).unit.machine.disk
        return [one for one in executors if one.unit.machine.disk is disk]

    def _ended(self, piece: _Piece, attempt: SimAttempt, end: "Sequence[TransferResult] | EblaError") -> None:
        """Called in the executor's incarnation: it only records the result."""
        attempt.ended = True
        if piece.job.over:
            self._engine.zombies += 1
        if isinstance(end, AttemptLost):
            attempt.ended = False  # not reported: it looks as if it hung
        elif isinstance(end, EblaError):
            self._engine.refused += isinstance(end, Stale)
            piece.failures.append(end)
        else:
            piece.results.append(end)
        piece.heard.set()

    def _reported(self, piece: _Piece) -> list[TransferResult]:
        """The results of one attempt, not always the first; or of all attempts; or all of them twice."""
        faults, reported = self._engine.faults, list(piece.results)
        if not self._rng.happens(faults.report_superseded):
            reported = [self._rng.choice(reported)]
        results = [result for results in reported for result in results]
        return results + results if self._rng.happens(faults.report_twice) else results

    def _check(self, generation: int) -> None:
        if self._is_lost(generation):
            raise PipelineUnavailable("the simulated engine is unavailable", advice="it recovers without intervention")

    def _is_lost(self, generation: int) -> bool:
        return self._engine.is_away or self._engine.generation != generation


def _failed(piece: _Piece) -> WorkFailed:
    """With the cause and the transfer that the real engine would name."""
    texts = "; ".join(f"{type(one).__name__}: {one}" for one in piece.failures)
    cause = type(piece.failures[-1]).__name__ if piece.failures else ""
    transfer = str(piece.work.targets[0].target.transfer) if isinstance(piece.work, RowMove) else ""
    return WorkFailed(f"every attempt failed: {texts or 'no answer'}", cause=cause, transfer=transfer)
