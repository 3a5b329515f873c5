"""Jobs in processes of their own, at low priority: each reads some files and writes one folder, and meets nobody's
loop, GIL or open layers.

A job goes to the child's standard input, the outcome comes from its standard output, each behind its length. The input
stays open: its end means that the parent is gone, and then the child is too. Whatever becomes of the child, nothing
counts until whoever asked says so, so every error here says: not applied.

Large jobs, which come one by one, have a process each. Small ones, of which many come together, have forks of one that
is ready (`forked_jobs.py`).
"""

import asyncio
import os
import struct
import sys

from ebla.model.errors import EblaError, Outcome
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.priorities import lower_child_priority

NICENESS = 10
"""Serving comes first; such a job takes what is left."""

_LENGTH = struct.Struct(">I")
_STANDARD_INPUT = 0


class WorkerFailed(EblaError):
    """The job came to nothing."""

    outcome = Outcome.NOT_APPLIED


async def run_in_subprocess(module: str, job: bytes, deadline_s: float) -> bytes:
    """What the child answers. Raises `WorkerFailed`. A child that is late, or whose caller is cancelled, is killed and
    reaped first. A process and not a thread: the work holds the interpreter for long stretches, which would keep the
    process that answers from answering, and one that dies of its input or of memory takes nobody along."""
    child = await _started(module)
    try:
        return await _asked(child, job, deadline_s)
    finally:
        await _reaped(child)


async def _started(module: str) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    lower_child_priority(child.pid, NICENESS)
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
        raise WorkerFailed(f"it took longer than {deadline_s:g} s") from None
    except (asyncio.IncompleteReadError, OSError) as error:
        raise WorkerFailed("its process died", advice="try again") from error


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


def read_job() -> bytes:
    """Ends the process with its parent from then on."""
    try:
        job = _read_framed()
    except EOFError:
        raise SystemExit(1) from None
    die_with_parent(int(sys.argv[1]), _STANDARD_INPUT)
    return job


def write_outcome(outcome: bytes) -> None:
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
