"""A child and whatever it started, as one thing: the processes of a session, which only setsid() leaves.

A process group does not do: the Python workers of Spark are in one of their own, and killed in the middle of their work
they would be neither in the group nor children of anybody we know. What they started stays in the session.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

ROUNDS_MAX = 20
"""A process that forks while it is looked for shows in the next round."""

_PROC = Path("/proc")
_ZOMBIE = "Z"


def has_exited(pid: int) -> bool:
    """Whether a child of ours has ended. It is not reaped: until then nobody else gets its pid, nor a session or group
    of that number, and what is left of it can be looked for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_session(session: int) -> None:
    """Ends every process of the session. To be called while its first process is alive, or ended and not reaped."""
    try:
        os.killpg(session, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody in it; some systems say so of a zombie in other words
    if sys.platform != "linux":
        return
    killed: set[int] = set()  # they may show for a while yet, and start nothing any more
    for _ in range(ROUNDS_MAX):
        left = [pid for pid in session_pids(session) if pid not in killed]
        if not left:
            return
        for pid in left:
            _kill(pid, session)
        killed.update(left)


def session_pids(session: int) -> Iterator[int]:
    """Living processes of a session, in no order. Linux only."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _is_in(int(entry.name), session):
            yield int(entry.name)


def _is_in(pid: int, session: int) -> bool:
    try:
        # Its name, in brackets, may hold blanks and brackets itself.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False  # it ended meanwhile
    return int(fields[3]) == session and fields[0] != _ZOMBIE


def _kill(pid: int, session: int) -> None:
    """The descriptor stands for the process that is looked at, whoever gets its number next."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _is_in(pid, session):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended meanwhile
    finally:
        os.close(descriptor)
