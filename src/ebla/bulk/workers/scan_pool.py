"""Scans of checkpoints in processes of their own, at low priority: reading rows holds the interpreter, and the process
that serves streams must stay able to answer its control.

The child's half is `python -m ebla.bulk.workers.scan_worker`. Each worker has a socket pair
(`bulk/workers/scan_messages.py`) and a
pipe whose end means that the parent is gone. A worker that has ended a job well is kept for the next one, for a while;
one that was given up in the middle, is late or broke is killed. Nothing is written by any of them, so every error here
says: not applied.

Workers are started, ended and reaped on the loop's thread: the kernel's death signal belongs to the thread that forked.
What a worker says is read by the thread that streams it, which a slow reader may hold for as long as it likes; the
worker waits with it, and the timer on the loop ends it all the same when its time is over.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ebla.bulk.workers.scan_messages import FRAME_HEADER, ScanFrameKind, ScanJob, frame_header, read_frame_header
from ebla.model.errors import DeadlineExceeded, EblaError, InternalError, Outcome, Overloaded, Unavailable
from ebla.runtime.priorities import lower_child_priority
from ebla.wire.flight_format import decode_failure
from ebla.wire.frames import encode

NICENESS = 10
"""Below the process that serves the streams."""
SOCKET_BYTES = 1 << 20


class ScanFailed(EblaError):
    """The scan came to nothing; it reads only, so nothing has changed."""

    outcome = Outcome.NOT_APPLIED


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPoolLimits:
    workers_max: int = 8
    """At a time. A task that merges replicas reads from each node once, so this many such tasks get on."""
    idle_max: int = 2
    """Kept for the next job; each holds about 100 MB."""
    idle_s: float = 30.0
    wait_s: float = 30.0
    """For a free worker."""
    scan_s: float = 3600.0
    silence_s: float = 120.0
    """A worker that says nothing for so long hangs: it says something with every few megabytes it reads."""
    reap_s: float = 5.0


class WorkerScan:
    """One job on one worker. Used by one thread, but for `kill`."""

    def __init__(self, workers: "ScanWorkerPool", worker: "_Worker", silence_s: float) -> None:
        self._workers = workers
        self._worker = worker
        self._silence_s = silence_s
        self._ended_well = False
        self._is_over = False
        self._late = False

    def ask(self, job: ScanJob) -> pa.Schema:
        """Sends the job; the schema of what it will answer."""
        data = encode(job)
        try:
            self._worker.sock.settimeout(self._silence_s)
            self._worker.sock.sendall(frame_header(ScanFrameKind.JOB, len(data)) + data)
        except OSError as error:
            raise self._broken() from error
        kind, body = self._read()
        if kind is not ScanFrameKind.SCHEMA:
            raise self._failure(kind, body)
        return pa.ipc.read_schema(pa.py_buffer(body))

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Until the worker says the end. Whatever breaks it off, `close` sees to the worker."""
        while True:
            kind, body = self._read()
            if kind is ScanFrameKind.END:
                self._ended_well = True
                return
            if kind is not ScanFrameKind.BATCH:
                raise self._failure(kind, body)
            yield pa.ipc.read_record_batch(pa.py_buffer(body), schema)

    def close(self) -> None:
        """From any thread, twice is no error. The worker goes on to its next job, or ends."""
        if not self._is_over:
            self._is_over = True
            self._workers.let_go(self._worker, ended_well=self._ended_well)

    def expire(self) -> None:
        """Its time is over. On the loop; the thread that reads finds the socket at its end. It may find it late, held
        up by a peer that takes nothing: its place is another's from now on."""
        self._late = True
        self._worker.kill()
        self._workers.release_slot(self._worker)

    def _read(self) -> tuple[ScanFrameKind, bytearray]:
        try:
            self._worker.sock.settimeout(self._silence_s)
            kind, size = read_frame_header(_read_exactly(self._worker.sock, FRAME_HEADER.size))
            return kind, _read_exactly(self._worker.sock, size)
        except TimeoutError:
            raise ScanFailed(f"the scan said nothing for {self._silence_s:g} s", advice="run it again") from None
        except (OSError, EOFError) as error:
            raise self._broken() from error

    def _broken(self) -> EblaError:
        if self._late:
            return DeadlineExceeded("the scan took longer than it may", advice="ask for a smaller range")
        return ScanFailed("the process that scanned died", advice="run it again")

    def _failure(self, kind: ScanFrameKind, body: bytearray) -> EblaError:
        if kind is ScanFrameKind.FAILURE:
            self._ended_well = True
            return decode_failure(bytes(body)) or InternalError("the scan failed in words that nobody understands")
        return InternalError(f"a scan said {kind.name} out of turn")


@dataclass(slots=True, eq=False, kw_only=True)
class _Worker:
    process: asyncio.subprocess.Process
    sock: socket.socket
    idle_since_s: float = 0.0
    expiry: asyncio.TimerHandle | None = field(default=None)
    has_slot: bool = True

    def kill(self) -> None:
        if self.process.returncode is None:
            try:
                self.process.kill()
            except ProcessLookupError:
                pass


class ScanWorkerPool:
    """`bulk.flight_server.Scans`. `run` must be running; when it ends, so does every worker."""

    def __init__(self, limits: ScanPoolLimits | None = None) -> None:
        self._limits = limits or ScanPoolLimits()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._room = asyncio.Semaphore(self._limits.workers_max)
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        self._started = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """Of the workers there are, at work or idle."""
        return [worker.process.pid for worker in self._all]

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._started.set()
                try:
                    while True:
                        await asyncio.sleep(self._limits.idle_s / 4)
                        self._expire_idle(self._loop.time())
                finally:
                    self._tasks = None
        finally:
            for worker in self._all:
                worker.kill()
            for worker in self._idle:
                worker.sock.close()
            for worker in list(self._all):
                await self._reaped(worker)

    async def start(self, deadline_s: float) -> WorkerScan:
        """A worker for one job. `Overloaded` where none gets free in time."""
        await self._started.wait()
        try:
            async with asyncio.timeout(min(self._limits.wait_s, deadline_s)):
                await self._room.acquire()
        except TimeoutError:
            raise Overloaded(
                f"{self._limits.workers_max} scans are running already", advice="run the job again later"
            ) from None
        try:
            worker = self._kept() or await self._spawned()
        except BaseException:
            self._room.release()
            raise
        worker.has_slot = True
        stream = WorkerScan(self, worker, self._limits.silence_s)
        assert self._loop is not None
        worker.expiry = self._loop.call_later(min(deadline_s, self._limits.scan_s), stream.expire)
        return stream

    def let_go(self, worker: _Worker, *, ended_well: bool) -> None:
        """From any thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._let_go, worker, ended_well)
        except RuntimeError:  # the loop is closed, and the worker was reaped before that
            worker.sock.close()

    def release_slot(self, worker: _Worker) -> None:
        """On the loop; once for each job."""
        if worker.has_slot:
            worker.has_slot = False
            self._room.release()

    def _kept(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.returncode is None:
                return worker
            self._end(worker)
        return None

    async def _spawned(self) -> _Worker:
        if self._tasks is None:
            raise Unavailable("the bulk process is ending")
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ebla.bulk.workers.scan_worker",
                    str(os.getpid()),
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
        worker = _Worker(process=process, sock=ours)
        self._all.append(worker)
        lower_child_priority(process.pid, NICENESS)
        return worker

    def _let_go(self, worker: _Worker, ended_well: bool) -> None:
        if worker.expiry is not None:
            worker.expiry.cancel()
        self.release_slot(worker)
        assert self._loop is not None
        if ended_well and worker.process.returncode is None and len(self._idle) < self._limits.idle_max:
            worker.idle_since_s = self._loop.time()
            self._idle.append(worker)
        else:
            self._end(worker)

    def _expire_idle(self, now_s: float) -> None:
        for worker in list(self._idle):
            if now_s - worker.idle_since_s >= self._limits.idle_s:
                self._idle.remove(worker)
                self._end(worker)

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        worker.sock.close()
        if self._tasks is not None:
            self._tasks.create_task(self._reaped(worker))

    async def _reaped(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        await worker.process.wait()
        if worker in self._all:
            self._all.remove(worker)


def _read_exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        count = sock.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return data
