"""Jobs in forks of a process that is ready for them; that process's half is `job_forks.py`.

Of jobs of which many come together each costs little, and an interpreter that starts for them as much as a hundred
thousand rows. Whatever becomes of a fork, nothing counts until whoever asked says so, so every error here says: not
applied.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import cast

from ebla.bulk.workers.frames import WorkerFrame, WorkerFrameKind, WorkerFrameReader, encode_frame
from ebla.bulk.workers.subprocess_job import NICENESS, WorkerFailed
from ebla.runtime.priorities import lower_child_priority

END_S = 30.0
"""For a process to do what ends a job, or itself, before it is killed."""
_STANDARD_INPUT, _STANDARD_OUTPUT = 0, 1


class ForkPool:
    """So many at once; who comes meanwhile waits. The process is started for the first job, and ends when there was
    none for a while, or with this one."""

    def __init__(self, module: str, at_once: int, idle_s: float) -> None:
        self._module = module
        self._idle_s = idle_s
        self._room = asyncio.Semaphore(at_once)
        self._running = 0
        self._starting = asyncio.Lock()
        self._ready: _ReadyProcess | None = None
        self._leaving: list[_ReadyProcess] = []
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, job: bytes, deadline_s: float) -> bytes:
        """What a fork answers. Raises `WorkerFailed`. `deadline_s` is for the job itself. A fork that is late, or whose
        caller is cancelled, is killed and reaped first."""
        async with self._room:
            self._stay()
            self._running += 1
            try:
                return await self._asked(await self._process(), job, deadline_s)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)

    async def close(self) -> None:
        """For good, when no job runs."""
        self._stay()
        self._let_go()
        for process in self._leaving:
            await process.end()
        self._leaving.clear()

    async def _asked(self, process: "_ReadyProcess", job: bytes, deadline_s: float) -> bytes:
        number, asked = process.ask(job)
        try:
            async with asyncio.timeout(deadline_s):
                await asked.ended.wait()
        except TimeoutError:
            await self._killed(process, number, asked)
            raise WorkerFailed(f"it took longer than {deadline_s:g} s") from None
        except asyncio.CancelledError:
            await self._killed(process, number, asked)
            raise
        if asked.outcome is None:
            raise WorkerFailed("its process died", advice="try again")
        return asked.outcome

    async def _killed(self, process: "_ReadyProcess", number: int, asked: "_Asked") -> None:
        process.kill(number)
        try:
            async with asyncio.timeout(END_S):
                await asked.ended.wait()
        except TimeoutError:
            await process.end()  # whoever else is at work there loses it

    async def _process(self) -> "_ReadyProcess":
        async with self._starting:
            if self._ready is None or self._ready.is_over:
                command = (sys.executable, "-m", self._module, str(os.getpid()))
                # A process forks well that has one thread, and numpy would start some for algebra.
                around = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
                _, self._ready = await asyncio.get_running_loop().subprocess_exec(
                    _ReadyProcess, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, env=around
                )
            return self._ready

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _let_go(self) -> None:
        self._leaving = [one for one in self._leaving if not one.is_over]
        if self._ready is not None:
            self._ready.let_go()
            self._leaving.append(self._ready)
            self._ready = None


@dataclass(slots=True)
class _Asked:
    outcome: bytes | None = None
    """None at its end: whoever was at it has died."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _ReadyProcess(asyncio.SubprocessProtocol):
    """The process that forks, as seen from here."""

    def __init__(self) -> None:
        self._heard = WorkerFrameReader()
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def ask(self, job: bytes) -> tuple[int, _Asked]:
        """The number under which it runs, and what becomes of it."""
        self._number += 1
        asked = self._asked[self._number] = _Asked()
        self._say(WorkerFrame(WorkerFrameKind.JOB, self._number, job))
        return self._number, asked

    def kill(self, number: int) -> None:
        self._say(WorkerFrame(WorkerFrameKind.KILL, number))

    def let_go(self) -> None:
        """It ends by itself, and its forks with it."""
        if not self.is_over:
            self._input().close()

    async def end(self) -> None:
        """All that was asked of it has ended then."""
        self.let_go()
        try:
            async with asyncio.timeout(END_S):
                await self._over.wait()
        except TimeoutError:
            assert self._transport is not None
            self._transport.kill()
            await self._over.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        lower_child_priority(self._transport.get_pid(), NICENESS)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        assert fd == _STANDARD_OUTPUT
        for one in self._heard.take(data):
            asked = self._asked.pop(one.number)
            asked.outcome = one.body if one.kind is WorkerFrameKind.OUTCOME else None
            asked.ended.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has been reaped, and all it said was heard."""
        assert self._transport is not None
        self._transport.close()
        self._over.set()
        for asked in self._asked.values():
            asked.ended.set()
        self._asked.clear()

    def _say(self, one: WorkerFrame) -> None:
        if not self.is_over:
            self._input().write(encode_frame(one))

    def _input(self) -> asyncio.WriteTransport:
        assert self._transport is not None
        return cast("asyncio.WriteTransport", self._transport.get_pipe_transport(_STANDARD_INPUT))
