"""Compactions, layer builds and scans of the bulk process, each in a worker process of one pool."""

import asyncio
import os
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from ebla.bulk.workers.messages import ScanJob, WorkerFrameKind, receive_frame, send_frame
from ebla.bulk.workers.pool import Worker, WorkerFailed, WorkerPool
from ebla.model.errors import DeadlineExceeded, EblaError, InternalError, Outcome, Overloaded
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.layer_build import BuildJob, BuildResult
from ebla.wire.flight_format import decode_failure
from ebla.wire.frames import encode


class CompactionFailed(EblaError):
    """The compaction came to nothing; the layers are as they were."""

    outcome = Outcome.NOT_APPLIED


class BuildFailed(EblaError):
    """No layer was built from the rows; they are as they were."""

    outcome = Outcome.NOT_APPLIED


class ScanFailed(EblaError):
    """The scan came to nothing; it only reads, so nothing has changed."""

    outcome = Outcome.NOT_APPLIED


BUILDS_MAX = max(1, min(4, os.cpu_count() or 1))
"""At a time. A Spark job brings rows for every tablet at once; the other builds wait. Compactions are bounded by the
service that starts them."""
SCANS_MAX = 8
"""At a time. A task that merges replicas reads from each node once, so this many such tasks make progress."""
SCAN_WAIT_S = 30.0
"""For a free slot."""
SCAN_SILENCE_S = 120.0
"""A worker that sends nothing for so long hangs: it sends a frame for every few megabytes it reads."""


class BulkWorkers:
    """`CompactionRunner`, `RowLayerBuilder`, and scans. To be closed at the end."""

    def __init__(
        self,
        pool: WorkerPool | None = None,
        *,
        builds_max: int = BUILDS_MAX,
        scans_max: int = SCANS_MAX,
        scan_wait_s: float = SCAN_WAIT_S,
    ) -> None:
        self.pool = pool or WorkerPool()
        self._scans_max = scans_max
        self._scan_wait_s = scan_wait_s
        self._build_slots = asyncio.Semaphore(builds_max)
        self._scan_slots = asyncio.Semaphore(scans_max)

    async def close(self) -> None:
        await self.pool.close()

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        """Raises `CompactionFailed`."""
        try:
            answer = await run_in_worker(self.pool, WorkerFrameKind.COMPACT, msgspec.msgpack.encode(job), deadline_s)
        except EblaError as error:
            raise CompactionFailed(f"compaction into {job.output_folder}: {error}", advice="compact again") from error
        return msgspec.msgpack.decode(answer, type=CompactionResult)

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        """Raises `BuildFailed`, and what went wrong with the rows or the disk as the worker raised it."""
        async with self._build_slots:
            try:
                answer = await run_in_worker(self.pool, WorkerFrameKind.BUILD, msgspec.msgpack.encode(job), deadline_s)
            except WorkerFailed as failure:
                message = f"build of a layer from {job.rows_files[0]}: {failure.message}"
                raise BuildFailed(message, advice="seal again") from failure
        return msgspec.msgpack.decode(answer, type=BuildResult)

    async def start(self, deadline_s: float) -> "WorkerScan":
        """A worker for one scan. Raises `Overloaded` where no slot gets free in time."""
        try:
            async with asyncio.timeout(min(self._scan_wait_s, deadline_s)):
                await self._scan_slots.acquire()
        except TimeoutError:
            raise Overloaded(f"{self._scans_max} scans are running already", advice="run the job again later") from None
        try:
            worker = await self.pool.lease()
        except BaseException:
            self._scan_slots.release()
            raise
        return WorkerScan(self.pool, worker, self._scan_slots, deadline_s)


async def run_in_worker(pool: WorkerPool, kind: WorkerFrameKind, job: bytes, deadline_s: float) -> bytearray:
    """The result of a job that answers with one frame. Raises `WorkerFailed`, or what the worker raised. A worker that
    is late, or whose caller is cancelled, is dead and reaped when this ends."""
    worker = await pool.lease()
    try:
        async with asyncio.timeout(deadline_s):
            answer, body = await worker.call(kind, job)
    except TimeoutError:
        await pool.discard(worker)
        raise WorkerFailed(f"it took longer than {deadline_s:g} s") from None
    except (OSError, EOFError) as error:
        await pool.discard(worker)
        raise WorkerFailed("its process died", advice="try again") from error
    except BaseException:
        await pool.discard(worker)
        raise
    # After a compaction of gigabytes the allocator of its process would keep much of that memory.
    pool.release(worker, reusable=kind is not WorkerFrameKind.COMPACT)
    if answer is WorkerFrameKind.RESULT:
        return body
    raise _failure(answer, body)


def _failure(kind: WorkerFrameKind, body: bytearray) -> EblaError:
    if kind is WorkerFrameKind.FAILURE:
        return decode_failure(bytes(body)) or InternalError("a worker failed with an error that cannot be decoded")
    return InternalError(f"a worker sent {kind.name} out of turn")


class WorkerScan:
    """One scan on one worker. Its answer is read by the thread that streams it, which a slow reader may hold for any
    time; the worker waits with it, and the timer on the loop ends the scan all the same when its time is over."""

    def __init__(self, pool: WorkerPool, worker: Worker, slots: asyncio.Semaphore, deadline_s: float) -> None:
        self._pool = pool
        self._worker = worker
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._expiry = self._loop.call_later(deadline_s, self._expire)
        self._has_slot = True
        self._ended_well = False
        self._is_closed = False
        self._is_late = False

    def start(self, job: ScanJob) -> pa.Schema:
        """Sends the job and returns the schema of its answer."""
        try:
            self._worker.channel.settimeout(SCAN_SILENCE_S)
            send_frame(self._worker.channel, WorkerFrameKind.SCAN, encode(job))
        except OSError as error:
            raise self._broken() from error
        kind, body = self._receive()
        if kind is not WorkerFrameKind.SCHEMA:
            raise self._failed(kind, body)
        return pa.ipc.read_schema(pa.py_buffer(body))

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Until the end of the answer. Whatever breaks it off, `close` takes care of the worker."""
        while True:
            kind, body = self._receive()
            if kind is WorkerFrameKind.END:
                self._ended_well = True
                return
            if kind is not WorkerFrameKind.BATCH:
                raise self._failed(kind, body)
            yield pa.ipc.read_record_batch(pa.py_buffer(body), schema)

    def close(self) -> None:
        """From any thread; twice is no error. The worker takes its next job, or ends."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._loop.call_soon_threadsafe(self._release)
            except RuntimeError:  # the loop is closed, and the worker was reaped before that
                self._worker.channel.close()

    def _release(self) -> None:
        self._expiry.cancel()
        self._release_slot()
        self._pool.release(self._worker, reusable=self._ended_well and not self._is_late)

    def _expire(self) -> None:
        """The slot is free at once: the thread that reads may notice the end late, held up by its own peer."""
        self._is_late = True
        self._worker.server.kill(self._worker)
        self._release_slot()

    def _release_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.release()

    def _receive(self) -> tuple[WorkerFrameKind, bytearray]:
        try:
            self._worker.channel.settimeout(SCAN_SILENCE_S)
            return receive_frame(self._worker.channel)
        except TimeoutError:
            raise ScanFailed(f"the scan sent nothing for {SCAN_SILENCE_S:g} s", advice="run it again") from None
        except (OSError, EOFError) as error:
            raise self._broken() from error

    def _broken(self) -> EblaError:
        if self._is_late:
            return DeadlineExceeded("the scan took longer than it may", advice="ask for a smaller range")
        return ScanFailed("the process that scanned died", advice="run it again")

    def _failed(self, kind: WorkerFrameKind, body: bytearray) -> EblaError:
        self._ended_well = kind is WorkerFrameKind.FAILURE
        return _failure(kind, body)
