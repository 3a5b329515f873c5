"""A pool of worker processes, forked from one fork server (`fork_server.py`) and run at low priority.

Compactions, builds and scans hold the interpreter for long stretches. In the bulk process they would keep it from
sending heartbeats, so each runs in a process of its own. A worker that finished its job well is kept for the next one
for a while. One that is late, died, or whose caller gave up is killed and reaped. Nothing a worker writes has an effect
until the caller makes it so, so every error here says: not applied.

The server is started for the first job. It ends after a while without jobs, or when this process ends.
"""

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import cast

from ebla.bulk.workers.fork_server import CONTROL_MESSAGE, ControlKind
from ebla.bulk.workers.messages import FRAME_HEADER, WorkerFrameKind, frame_header, read_frame_header
from ebla.model.errors import EblaError, Outcome, Unavailable
from ebla.runtime.priorities import lower_child_priority

NICENESS = 10
"""Below the process that serves the streams."""
END_S = 30.0
"""For a worker or the server to end before the server is killed."""
CHANNEL_BYTES = 1 << 20
_READ_BYTES = 4096
IDLE_WORKERS_MAX = 4
"""Kept for the next job; each holds about 100 MB."""
WORKER_IDLE_S = 20.0
SERVER_IDLE_S = 600.0
"""Without any job. The server itself holds 40 MB, and a job that comes every few minutes finds it ready."""


class WorkerFailed(EblaError):
    """The job came to nothing; nothing has changed."""

    outcome = Outcome.NOT_APPLIED


@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """One forked process, and this side's end of its channel."""

    number: int
    server: "_ServerProcess"
    channel: socket.socket
    pid: int = 0
    """0 until the server has reported it."""
    reaped: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.TimerHandle | None = None

    async def call(self, kind: WorkerFrameKind, job: bytes) -> tuple[WorkerFrameKind, bytearray]:
        """Raises `OSError` or `EOFError` where the worker died."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.channel, frame_header(kind, len(job)) + job)
        answer, size = read_frame_header(await self._receive(FRAME_HEADER.size))
        return answer, await self._receive(size)

    async def _receive(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            count = await loop.sock_recv_into(self.channel, view[received:])
            if not count:
                raise EOFError
            received += count
        return data

    def is_alive(self) -> bool:
        """As the kernel sees it. The server reports a death later, when its turn comes."""
        self.channel.setblocking(False)
        try:
            self.channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # the end of the channel, or bytes that belong to no job


class WorkerPool:
    """All methods run on the loop."""

    def __init__(
        self,
        module: str = "ebla.bulk.workers.worker_process",
        *,
        worker_idle_s: float = WORKER_IDLE_S,
        server_idle_s: float = SERVER_IDLE_S,
    ) -> None:
        self._module = module
        self._worker_idle_s = worker_idle_s
        self._server_idle_s = server_idle_s
        self._starting = asyncio.Lock()
        self._server: _ServerProcess | None = None
        self._ending: list[_ServerProcess] = []
        self._idle: list[Worker] = []
        self._leased = 0
        self._server_expiry: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Of the workers that exist, busy or idle."""
        servers = [*self._ending, *([self._server] if self._server is not None else ())]
        return [worker.pid for server in servers for worker in server.workers.values() if worker.pid]

    async def lease(self) -> Worker:
        """Every lease ends by `release` or `discard`. Raises `Unavailable` after `close`."""
        if self._is_closed:
            raise Unavailable("the bulk process is ending", advice="try again in a moment")
        self._cancel_server_expiry()
        self._leased += 1
        try:
            return self._take_idle() or (await self._running_server()).fork()
        except BaseException:
            self._end_lease()
            raise

    def release(self, worker: Worker, *, reusable: bool) -> None:
        """The worker takes another job, or ends."""
        if reusable and not self._is_closed and len(self._idle) < IDLE_WORKERS_MAX and worker.is_alive():
            loop = asyncio.get_running_loop()
            worker.expiry = loop.call_later(self._worker_idle_s, self._expire, worker)
            self._idle.append(worker)
        else:
            worker.server.kill(worker)
            worker.channel.close()
        self._end_lease()

    async def discard(self, worker: Worker) -> None:
        """Returns when the worker is dead and reaped."""
        self.release(worker, reusable=False)
        try:
            async with asyncio.timeout(END_S):
                await worker.reaped.wait()
        except TimeoutError:
            await worker.server.end()  # other jobs of this server are lost with it

    async def close(self) -> None:
        """For good."""
        self._is_closed = True
        self._cancel_server_expiry()
        self._end_server()
        for server in self._ending:
            await server.end()
        self._ending.clear()

    def _take_idle(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            assert worker.expiry is not None
            worker.expiry.cancel()
            if worker.is_alive():
                return worker
            self._drop(worker)
        return None

    def _expire(self, worker: Worker) -> None:
        self._idle.remove(worker)
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        worker.server.kill(worker)
        worker.channel.close()

    async def _running_server(self) -> "_ServerProcess":
        async with self._starting:
            if self._server is None or self._server.has_exited:
                self._server = await _start_server(self._module)
            return self._server

    def _end_lease(self) -> None:
        self._leased -= 1
        if not self._leased and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._server_expiry = loop.call_later(self._server_idle_s, self._end_server)

    def _cancel_server_expiry(self) -> None:
        if self._server_expiry is not None:
            self._server_expiry.cancel()
            self._server_expiry = None

    def _end_server(self) -> None:
        for worker in list(self._idle):
            assert worker.expiry is not None
            worker.expiry.cancel()
            self._expire(worker)
        self._ending = [server for server in self._ending if not server.has_exited]
        if self._server is not None:
            self._server.close()
            self._ending.append(self._server)
            self._server = None


async def _start_server(module: str) -> "_ServerProcess":
    ours, theirs = socket.socketpair()
    with theirs:
        command = (sys.executable, "-m", module, str(os.getpid()), str(theirs.fileno()))
        # Forking is safe in a process with one thread, and numpy would start threads for linear algebra.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        try:
            _, server = await asyncio.get_running_loop().subprocess_exec(
                lambda: _ServerProcess(ours),
                *command,
                stdin=subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
    return server


class _ServerProcess(asyncio.SubprocessProtocol):
    """The fork server, seen from the pool."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = bytearray()
        self._number = 0
        self._is_closed = False
        self._exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self.workers: dict[int, Worker] = {}
        """Those that are not reaped."""

    @property
    def has_exited(self) -> bool:
        return self._exited.is_set()

    def fork(self) -> Worker:
        """The channel can be used at once; the worker reads it when it runs."""
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHANNEL_BYTES)
            ours.setblocking(False)
            self._number += 1
            worker = self.workers[self._number] = Worker(number=self._number, server=self, channel=ours)
            self._send(ControlKind.FORK, worker.number, theirs)
        return worker

    def kill(self, worker: Worker) -> None:
        if not worker.reaped.is_set():
            self._send(ControlKind.KILL, worker.number)

    def close(self) -> None:
        """The server ends, and its workers with it."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()

    async def end(self) -> None:
        """Returns when the server is reaped."""
        self.close()
        try:
            async with asyncio.timeout(END_S):
                await self._exited.wait()
        except TimeoutError:
            assert self._transport is not None
            self._transport.kill()
            await self._exited.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        lower_child_priority(self._transport.get_pid(), NICENESS)
        asyncio.get_running_loop().add_reader(self._control, self._receive)

    def process_exited(self) -> None:
        """The kernel kills the workers with the server, before the server can be reaped."""
        assert self._transport is not None
        self._transport.close()
        self.close()
        for worker in self.workers.values():
            worker.reaped.set()
        self.workers.clear()
        self._exited.set()

    def _receive(self) -> None:
        try:
            data = self._control.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            return  # the exit of the process follows
        self._received += data
        while len(self._received) >= CONTROL_MESSAGE.size:
            kind, number, pid = CONTROL_MESSAGE.unpack_from(self._received)
            del self._received[: CONTROL_MESSAGE.size]
            if kind == ControlKind.FORKED:
                self.workers[number].pid = pid
            else:
                self.workers.pop(number).reaped.set()

    def _send(self, kind: ControlKind, number: int, channel: socket.socket | None = None) -> None:
        """A server that is gone takes nothing; the exit of its process is reported by `process_exited`."""
        if self._is_closed:
            return
        message = CONTROL_MESSAGE.pack(kind, number, 0)
        try:
            if channel is None:
                self._control.sendall(message)
            else:
                socket.send_fds(self._control, [message], [channel.fileno()])
        except OSError:
            pass
