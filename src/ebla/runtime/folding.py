"""A fold in a process of its own, at low priority: it reads checkpoints and writes one folder, and never meets the
shard's loop, its GIL or its open layers.

The child's half is `python -m ebla.runtime.fold_process`. The job goes to its standard input, the outcome comes from
its standard output, each behind its length. The input stays open: its end means that the parent is gone, and then the
child is too. Whatever becomes of the child, nothing has changed until the shard swaps the result in, so every error
here says: not applied.
"""

import asyncio
import os
import struct
import sys

import msgspec

from ebla.model.errors import EblaError, Outcome
from ebla.storage.fold_plan import FoldJob, FoldResult

NICENESS = 10
"""Serving comes first; a fold takes what is left."""
LENGTH = struct.Struct(">I")


class FoldFailed(EblaError):
    """The fold came to nothing; the layers are as they were."""

    outcome = Outcome.NOT_APPLIED


class FoldOutcome(msgspec.Struct, frozen=True, array_like=True):
    """`result`, or what went wrong in words."""

    result: FoldResult | None
    failure: str = ""


class FoldProcesses:
    """`bulk.fold_desk.Folding`. A process for each fold and not a thread: a fold holds the interpreter for long
    stretches, which would keep the process that answers from answering, and one that dies of its input or of memory
    takes nobody along. Starting it costs a few tenths of a second, against folds of seconds to minutes."""

    async def fold(self, job: FoldJob, deadline_s: float) -> FoldResult:
        return await fold_in_process(job, deadline_s)


async def fold_in_process(job: FoldJob, deadline_s: float) -> FoldResult:
    """Raises `FoldFailed`. A child that is late, or whose caller is cancelled, is killed and reaped first."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ebla.runtime.fold_process",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        async with asyncio.timeout(deadline_s):
            process.stdin.write(framed(msgspec.msgpack.encode(job)))
            await process.stdin.drain()
            (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            outcome = msgspec.msgpack.decode(await process.stdout.readexactly(size), type=FoldOutcome)
    except TimeoutError:
        raise FoldFailed(f"the fold of {job.output_folder} took longer than {deadline_s:g} s") from None
    except (asyncio.IncompleteReadError, OSError) as error:
        raise FoldFailed(f"the process that folded {job.output_folder} died", advice="fold again") from error
    finally:
        await _reaped(process)
    if outcome.result is None:
        raise FoldFailed(outcome.failure)
    return outcome.result


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


def framed(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data
