"""CPU priorities: serving comes first, then what keeps a process alive for its supervisor, then bulk work.

Niceness is per thread on Linux, and inherited by what a thread starts. So the threads that move bytes, and what they
start, run behind the loop of their process, which must keep sending heartbeats.

Many kernels schedule sessions first (`autogroup`), and apply niceness only within one. Each child of a node has a
session of its own, so without setting the session's niceness its own would mean nothing to the shards.

Niceness decides how much of a processor a thread gets, not how soon. A thread that wakes up waits until the running one
has used its slice, a millisecond or more, however nice that one is; a write that goes from shard to shard and back
waits several times. Newer kernels let a thread request a shorter slice, and schedule it before those with longer ones.
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
"""Nine tenths of a contended processor. Serving needs little of it, but at once."""
AUTOGROUP_TRIES_MAX = 20
AUTOGROUP_PAUSE_S = 0.1
"""The kernel accepts one such change every tenth of a second for the whole machine, except from root."""

SHORT_SLICE_NS = 300_000
"""Longer than most callbacks of a serving loop. On two processors that were never idle, threads that wake every 2 ms
were late by 5.9 ms in one of a hundred cases without it and by 2.5 ms with it; half of them by 0.5 and by 0.1 ms."""

_GROUP = Path("/proc/self/autogroup")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, niceness, priority, runtime (which is the slice), deadline, period."""


def raise_serving_priority(niceness: int = SERVING_NICENESS, group: Path = _GROUP) -> None:
    """Of this process, where the kernel allows it: as root, with `CAP_SYS_NICE`, or within `RLIMIT_NICE`. Threads and
    processes that it starts from now on inherit it. Elsewhere it keeps its priority. Blocks for two seconds at most."""
    _set_session_niceness(niceness, group)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def lower_session_priority(niceness: int, group: Path = _GROUP) -> None:
    """Of the whole session that this process leads, where the kernel schedules sessions. Permanent: few processes may
    raise it again. Call it after the process has started: on a busy machine it would otherwise never send its first
    heartbeat. Blocks for two seconds at most."""
    _set_session_niceness(niceness, group)


def _set_session_niceness(niceness: int, group: Path) -> None:
    if os.getsid(0) != os.getpid():
        return  # another process leads it, and may have other work in it
    for _ in range(AUTOGROUP_TRIES_MAX):
        try:
            group.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)
        except OSError:
            return  # the kernel does not schedule sessions, or does not allow it: niceness is all there is
        else:
            return


def lower_thread_priority(niceness: int) -> None:
    """Of the calling thread, and of threads and processes that it starts from now on, by so much."""
    if sys.platform == "linux":  # elsewhere it would change the whole process
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, _sum(os.getpriority(os.PRIO_PROCESS, thread), niceness))


def shorten_thread_slice(slice_ns: int = SHORT_SLICE_NS) -> None:
    """Of the calling thread, and of threads and processes that it starts from now on: it gets its share of a processor
    in short slices, and so runs soon after it wakes up. The share stays the same. Before Linux 6.12 it has no
    effect."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # a refusal changes nothing


def lower_child_priority(pid: int, niceness: int) -> None:
    """Of a child that was just started and is not reaped: nicer than this thread by so much."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _sum(os.getpriority(os.PRIO_PROCESS, 0), niceness))
    except ProcessLookupError:
        pass  # it has exited already; its parent learns how when it waits for it


def restore_priority(pid: int, niceness: int) -> None:
    """Gives a child, or the calling thread (0), the niceness from before this process raised its own priority. A new
    program inherits niceness, and each sets its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)


def _sum(niceness: int, more: int) -> int:
    return min(NICENESS_MAX, niceness + more)
