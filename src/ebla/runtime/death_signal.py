"""A child that cannot outlive its parent, by two independent mechanisms.

The kernel's death signal ends the child even when its loop or interpreter hangs, but only Linux has it, and it is tied
to the *thread* that forked: `supervisor.py` spawns from the main thread only. The pipe works everywhere: only the
parent holds its write end, so end-of-file means that the parent is gone, but a thread of ours must run to see it.
"""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, pipe: int) -> None:
    """Call it first thing in a child. `parent` is the pid that spawned it, `pipe` the read end it inherited."""
    set_death_signal(parent)
    threading.Thread(target=_watch, args=(pipe,), name="parent-pipe", daemon=True).start()


def set_death_signal(parent: int) -> None:
    """The first mechanism alone, for a child that watches for the parent's end itself."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died between the fork and prctl; then no signal ever comes.
    if os.getppid() != parent:
        kill_own_process()


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    kill_own_process()


def kill_own_process() -> None:
    """As the kernel would: without `finally`, exit hooks or a flush that could still write for a dead node."""
    os.kill(os.getpid(), signal.SIGKILL)
