"""Jobs in processes of their own, at low priority: each reads some files and writes one folder, and meets nobody's
loop, GIL or open layers.

A job goes to the child's standard input, the outcome comes from its standard output, each behind its length. The input
stays open: its end means that the parent is gone, and then the child is too. Whatever becomes of the child, nothing
counts until whoever asked says so, so every error here says: not applied.

Large jobs, which come one by one, have a process each. Small ones, of which many come together, are taken one after
another by a few that are kept: to start one takes as long as to write a hundred thousand rows.
"""

import asyncio
import os
import struct
import sys
from collections.abc import Iterator

from ebla.model.errors import EblaError, Outcome
from ebla.runtime.death_signal import die_with_parent

NICENESS = 10
"""Serving comes first; such a job takes what is left."""

_LENGTH = struct.Struct(">I")
_STANDARD_INPUT = 0


class JobFailed(EblaError):
    """The job came to nothing."""

    outcome = Outcome.NOT_APPLIED


async def run_in_process(module: str, job: bytes, deadline_s: float) -> bytes:
    """What the child answers. Raises `JobFailed`. A child that is late, or whose caller is cancelled, is killed and
    reaped first. A process and not a thread: the work holds the interpreter for long stretches, which would keep the
    process that answers from answering, and one that dies of its input or of memory takes nobody along."""
    child = await _started(module, ())
    try:
        return await _asked(child, job, deadline_s)
    finally:
        await _reaped(child)


class KeptProcesses:
    """So many at once; who comes meanwhile waits. Those without a job end after a while, or with the parent."""

    def __init__(self, module: str, at_once: int, idle_s: float) -> None:
        self._module = module
        self._idle_s = idle_s
        self._room = asyncio.Semaphore(at_once)
        self._idle: dict[asyncio.subprocess.Process, asyncio.TimerHandle] = {}
        self._leaving: list[asyncio.subprocess.Process] = []
        self._parent_ends, self._parent_lives = os.pipe()
        """Children watch one end for the end of the other, which is this process's alone. Not at their input: that
        would swallow the next job."""

    async def run(self, job: bytes, deadline_s: float) -> bytes:
        """What a child answers. Raises `JobFailed`. `deadline_s` is for the job itself. A child that is late, or whose
        caller is cancelled, is killed and reaped first."""
        async with self._room:
            child = self._kept() or await _started(self._module, (self._parent_ends,))
            try:
                answer = await _asked(child, job, deadline_s)
            except BaseException:
                await _reaped(child)
                raise
            timer = asyncio.get_running_loop().call_later(self._idle_s, self._let_go, child)
            self._idle[child] = timer
            return answer

    async def close(self) -> None:
        """For good, when no job runs."""
        for timer in self._idle.values():
            timer.cancel()
        for child in (*self._idle, *self._leaving):
            await _reaped(child)
        self._idle.clear()
        self._leaving.clear()
        os.close(self._parent_ends)
        os.close(self._parent_lives)

    def _kept(self) -> asyncio.subprocess.Process | None:
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.returncode is None:
                return child
        return None

    def _let_go(self, child: asyncio.subprocess.Process) -> None:
        del self._idle[child]
        assert child.stdin is not None
        child.stdin.close()
        self._leaving = [one for one in self._leaving if one.returncode is None] + [child]


async def _started(module: str, pipes: tuple[int, ...]) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        str(os.getpid()),
        *map(str, pipes),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=pipes,
    )
    try:
        os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    except ProcessLookupError:
        pass  # whoever asks it finds that out
    return child


async def _asked(child: asyncio.subprocess.Process, job: bytes, deadline_s: float) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(deadline_s):
            child.stdin.write(_framed(job))
            await child.stdin.drain()
            (size,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
            return await child.stdout.readexactly(size)
    except TimeoutError:
        raise JobFailed(f"it took longer than {deadline_s:g} s") from None
    except (asyncio.IncompleteReadError, OSError) as error:
        raise JobFailed("its process died", advice="try again") from error


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """Also where it ended well: it has said all it had to, and must not outlive its answer."""
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


# ---- in the child


def take_job() -> bytes:
    """Ends the process with its parent from then on."""
    try:
        job = _read_framed()
    except EOFError:
        raise SystemExit(1) from None
    die_with_parent(int(sys.argv[1]), _STANDARD_INPUT)
    return job


def take_jobs() -> Iterator[bytes]:
    """One after another, for `KeptProcesses`. Ends when the parent lets go of this process."""
    die_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    while True:
        try:
            job = _read_framed()
        except EOFError:
            return
        yield job


def tell_outcome(outcome: bytes) -> None:
    sys.stdout.buffer.write(_framed(outcome))
    sys.stdout.buffer.flush()


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _read_framed() -> bytes:
    (size,) = _LENGTH.unpack(_read_exactly(_LENGTH.size))
    return _read_exactly(size)


def _read_exactly(size: int) -> bytes:
    """From the descriptor itself: a buffered reader would swallow what the watch for the parent's end waits for."""
    data = b""
    while len(data) < size:
        part = os.read(_STANDARD_INPUT, size - len(data))
        if not part:
            raise EOFError("the parent says no more")
        data += part
    return data
