"""The transfer engine on Spark (`ports.transfer_engine`): asyncio outside, a thread for each running job inside.

The session is started in the background, and restarted with backoff when it is lost. Jobs that ran on the lost session
raise `PipelineUnavailable`: their tasks may go on or not, and nothing of them counts unless it is sealed.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from py4j.protocol import Py4JError

from ebla.aio.retry import Backoff
from ebla.model.identity import JobId
from ebla.model.transfers import TransferResult, TransferTask
from ebla.pipeline.class_archive import ClassTraining
from ebla.pipeline.spark_adapter import SparkAdapter
from ebla.pipeline.spark_jobs import SparkJobContext, run_spark_job
from ebla.pipeline.spark_session import SparkRuntime, SparkStart
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState, EngineStatus, PipelineUnavailable, TaskCounts

T = TypeVar("T")

JOBS_MAX = 16
"""Concurrent jobs; more wait."""
POLL_S = 0.25
"""How often the tasks of a running job are counted, and Spark is checked."""
SILENCE_MAX_S = 30.0
"""A Java process that does not answer for so long is killed."""
DEATH_NOTICE_S = 2.0
"""How long the Java process may live on after its connections have ended."""
ABORT_S = 10.0
"""How long an aborted start may take to clean up."""
CANCEL_RETRY_S = 0.2
CANCEL_TRIES_MAX = 150
RESTART_BACKOFF = Backoff(first_s=1.0, max_s=60.0)
STABLE_AFTER_S = 300.0
"""The backoff starts over after a session that has lived so long."""


@dataclass(slots=True)
class _Live:
    session: SparkRuntime
    adapter: SparkAdapter
    lost: str = ""
    """Why it cannot be used any more."""


@dataclass(slots=True, kw_only=True)
class _Running:
    job: JobId
    tag: str
    counts: TaskCounts = field(default_factory=TaskCounts)
    is_abandoned: threading.Event = field(default_factory=threading.Event)


class SparkEngine:
    """Runs jobs while `serve` runs."""

    def __init__(self, options: SparkOptions, authority: bytes, on_ready: Callable[[], None] | None = None) -> None:
        """`authority` is the certificate that the nodes' Flight servers are checked against, as PEM. `on_ready` is
        called in a thread whenever Spark has started."""
        self._on_ready = on_ready
        self._options = options
        self._authority = authority
        self._live: _Live | None = None
        self._status = EngineStatus(state=EngineState.STARTING, cause="Spark is starting", master=options.master)
        self._training = ClassTraining(options)
        self._running: list[_Running] = []
        self._serial = 0
        self._job_threads = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="spark-job")
        self._asking_threads = ThreadPoolExecutor(4, thread_name_prefix="spark-asking")
        # Separate from the others, which a hanging Java process would block: one checks it, one ends it.
        self._life_thread = ThreadPoolExecutor(1, thread_name_prefix="spark-life")
        self._end_thread = ThreadPoolExecutor(1, thread_name_prefix="spark-end")

    # -- ports.transfers ---------------------------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        return self._status

    def tasks(self, job: JobId) -> TaskCounts:
        counts = [one.counts for one in self._running if one.job == job]
        return TaskCounts(
            sum(one.done for one in counts), sum(one.running for one in counts), sum(one.total for one in counts)
        )

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        live = self._live
        if live is None:
            raise PipelineUnavailable(self._status.cause, advice="it is restarted automatically")
        self._serial += 1
        running = _Running(job=job, tag=f"{job}-{self._serial}")
        context = SparkJobContext(
            session=live.session, adapter=live.adapter, authority=self._authority, task_bytes=self._options.task_bytes
        )
        future = self._job_threads.submit(run_spark_job, context, running.tag, tuple(work), running.is_abandoned)
        self._running.append(running)
        try:
            return await self._follow(live, running, future)
        except BaseException:
            self._abandon(live, running, future)
            raise
        finally:
            self._running.remove(running)

    async def _follow(
        self, live: _Live, running: _Running, future: "Future[Sequence[TransferResult]]"
    ) -> Sequence[TransferResult]:
        ended = asyncio.wrap_future(future)
        ended.add_done_callback(_retrieve_error)
        while True:
            await asyncio.wait({ended}, timeout=POLL_S)
            if ended.done():
                return ended.result()
            if live.lost:
                raise PipelineUnavailable(live.lost, advice="it is restarted automatically")
            try:
                running.counts = await self._on(self._asking_threads, lambda: live.adapter.counts(running.tag))
            except (Py4JError, OSError):
                pass  # the job itself reports what is wrong

    def _abandon(self, live: _Live, running: _Running, future: "Future[Sequence[TransferResult]]") -> None:
        running.is_abandoned.set()
        if not future.cancel() and not future.done():
            self._asking_threads.submit(_cancel_until_over, live.adapter, running.tag, future)

    # -- the session -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until cancelled. Leaves no process behind."""
        failures = 0
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                cause = await self._one_session()
                failures = 1 if loop.time() - began > STABLE_AFTER_S else failures + 1
                pause_s = RESTART_BACKOFF.pause_s(failures)
                self._set_status(EngineState.UNAVAILABLE, f"{cause}; it is restarted in {pause_s:.0f} s")
                await asyncio.sleep(pause_s)
                self._set_status(EngineState.STARTING, f"{cause}; it is being restarted")
        finally:
            self._set_status(EngineState.UNAVAILABLE, "the pipeline is being stopped")
            await self._run_to_end(self._training.stop)
            for threads in (self._job_threads, self._asking_threads, self._life_thread, self._end_thread):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _one_session(self) -> str:
        """Returns why it ended."""
        start = SparkStart(self._options)
        try:
            session = await self._started(start)
        except PipelineUnavailable as error:
            return str(error)
        live = _Live(session, SparkAdapter(session.spark))
        try:
            self._status = EngineStatus(
                state=EngineState.READY,
                cause="",
                master=self._options.master,
                version=session.spark.version,
                user_interface=live.adapter.user_interface(),
            )
            self._live = live
            if self._on_ready is not None:
                await self._on(self._life_thread, self._on_ready)
            live.lost = await self._watch(live)
            return live.lost
        finally:
            self._live = None
            end = session.kill if live.lost else session.stop
            live.lost = live.lost or "the pipeline is being stopped"
            await self._run_to_end(end)

    async def _started(self, start: SparkStart) -> SparkRuntime:
        future = self._life_thread.submit(start.run)
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            waited = f"{self._options.start_timeout_s:.0f} s"
            raise PipelineUnavailable(
                f"Spark at {self._options.master} has not run a first task within {waited}",
                advice="check that it has workers with free cores",
            ) from error
        finally:
            if not future.done() or future.cancelled():
                await self._run_to_end(lambda: _abort(start, future))

    async def _watch(self, live: _Live) -> str:
        loop = asyncio.get_running_loop()
        ready_at = loop.time()
        while True:
            await asyncio.sleep(POLL_S)
            code = live.session.process.exit_code
            if code is not None:
                return f"Spark's Java process ended ({_ended(code)})"
            try:
                async with asyncio.timeout(SILENCE_MAX_S):
                    stopped = await self._on(self._life_thread, lambda: _has_stopped(live))
            except TimeoutError:
                return f"Spark's Java process has not answered for {SILENCE_MAX_S:.0f} s"
            if stopped:
                return f"Spark at {self._options.master} has stopped"
            await self._on(self._life_thread, live.session.process.rotate_log)
            await self._on(self._life_thread, lambda: self._training.poll(live.session, loop.time() - ready_at))

    def _set_status(self, state: EngineState, cause: str) -> None:
        self._status = EngineStatus(state=state, cause=cause, master=self._options.master)

    # -- threads -----------------------------------------------------------------------------------------------------

    async def _on(self, threads: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, function)

    async def _run_to_end(self, function: Callable[[], None]) -> None:
        """Runs the function to its end even if this task is cancelled meanwhile: otherwise a process would be left
        behind. Bounded by the timeouts of the function."""
        ending = asyncio.wrap_future(self._end_thread.submit(function))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError as error:
                cancelled = error
        ending.result()
        if cancelled is not None:
            raise cancelled


def _abort(start: SparkStart, future: "Future[SparkRuntime]") -> None:
    start.abort()
    wait([future], ABORT_S)


def _has_stopped(live: _Live) -> bool:
    """Whether Spark has stopped while its Java process goes on: the end of that is reported separately."""
    return not live.adapter.is_alive() and not live.session.process.wait_exit(DEATH_NOTICE_S)


def _retrieve_error(ended: "asyncio.Future[Sequence[TransferResult]]") -> None:
    """A cancelled caller does not retrieve the error, and asyncio would complain about that."""
    if not ended.cancelled():
        ended.exception()


def _cancel_until_over(adapter: SparkAdapter, tag: str, future: "Future[Sequence[TransferResult]]") -> None:
    """Repeatedly: its next job may have been on the way to Spark when the last one was cancelled."""
    for _ in range(CANCEL_TRIES_MAX):
        try:
            adapter.cancel(tag)
        except (Py4JError, OSError):
            return
        if wait([future], CANCEL_RETRY_S).done:
            return


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
