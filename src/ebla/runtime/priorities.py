"""Who goes first where processors are short: serving, then whatever keeps a process heard, then the moving of bytes.

Niceness is a thread's own on Linux, and what a thread starts inherits it: so the threads that move bytes, and whatever
they start, stand behind the loop of their process, which must go on telling control that it lives.

Many kernels weigh sessions first (`autogroup`), and niceness only within one. Each child of a node has a session of its
own, so without a word to the kernel about the session its niceness would mean nothing to the shards.

Niceness says how much of a processor one gets, not how soon. Whoever wakes up waits until the one that runs has had its
slice, a millisecond or more, however nice that is; a write that goes from shard to shard and back waits so several
times. Newer kernels let a thread ask for a shorter slice, and who has one is let in before those with longer ones.
"""

import ctypes
import os
import platform
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

NICENESS_MAX = 19
SERVING_NICENESS = -10
"""Nine tenths of a processor that another wants as well. Serving wants little of it for long, but that at once."""
AUTOGROUP_TRIES_MAX = 20
AUTOGROUP_PAUSE_S = 0.1
"""The kernel takes a word about a session every tenth of a second, from all of the machine, unless from its root."""

SHORT_SLICE_NS = 300_000
"""Longer than most turns of a loop that serves. On two processors that were never idle, threads that wake every 2 ms
were late by 5.9 ms in one of a hundred cases without it and by 2.5 ms with it; half of them by 0.5 and by 0.1 ms."""

_GROUP = Path("/proc/self/autogroup")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, niceness, priority, runtime (which is the slice), deadline, period."""


def raise_serving_priority(niceness: int = SERVING_NICENESS, group: Path = _GROUP) -> None:
    """This process, where the kernel lets it: as root, with `CAP_SYS_NICE`, or within `RLIMIT_NICE`. Threads and
    processes that it starts from now on go first as well. Elsewhere it competes as an equal. Blocks for two seconds at
    most."""
    _weigh_session(niceness, group)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def lower_session_priority(niceness: int, group: Path = _GROUP) -> None:
    """All of the session that this process leads, where the kernel weighs sessions. For good: few may take it back.
    Only once the process has begun: a machine without a free processor would keep it from ever being heard. Blocks for
    two seconds at most."""
    _weigh_session(niceness, group)


def _weigh_session(niceness: int, group: Path) -> None:
    if os.getsid(0) != os.getpid():
        return  # somebody else's, who may have other things in it
    for _ in range(AUTOGROUP_TRIES_MAX):
        try:
            group.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)
        except OSError:
            return  # a kernel that does not weigh sessions, or does not let us: niceness is all there is
        else:
            return


def lower_thread_priority(niceness: int) -> None:
    """The calling thread, and threads and processes that it starts from now on: nicer than they are by so much."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, _sum(os.getpriority(os.PRIO_PROCESS, thread), niceness))


def shorten_thread_slice(slice_ns: int = SHORT_SLICE_NS) -> None:
    """The calling thread, and threads and processes that it starts from now on: gets its part of a processor in short
    slices, and so is let in soon after it wakes up. Its part stays the same. A kernel that knows of no such wish
    (before Linux 6.12) goes on as before."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    told = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, told, 0)  # refused: as it was


def lower_child_priority(pid: int, niceness: int) -> None:
    """A child that was just started and is not reaped: nicer than this thread by so much."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _sum(os.getpriority(os.PRIO_PROCESS, 0), niceness))
    except ProcessLookupError:
        pass  # it has ended already, and whoever waits for it learns how


def _sum(niceness: int, more: int) -> int:
    return min(NICENESS_MAX, niceness + more)
