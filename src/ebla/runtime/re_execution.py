"""Control starts itself again when an activity does not stop or its event loop hangs.

The process keeps its pid and replaces its program, so its locks and sockets are closed and nothing of it is left. Its
children are killed and reaped first. How often that happened is passed on in the environment.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from ebla.runtime.priorities import restore_priority

RESTARTS_VARIABLE = "EBLA_CONTROL_RESTARTS"
TOTAL_VARIABLE = "EBLA_CONTROL_RESTARTS_TOTAL"
RESTARTS_WINDOW_MS = 60_000
RESTARTS_MAX = 5
KILL_CHILDREN_S = 2.0
"""A child in an uninterruptible sleep cannot be reaped. The next program waits for its lock anyway."""
WATCH_S = 0.5


def recent_restarts(text: str, now_ms: int) -> tuple[int, ...]:
    """When control was started again within the last minute, oldest first. Anything unreadable counts as none."""
    times = [int(word) for word in text.split(",") if word.isdecimal()]
    return tuple(one for one in times if now_ms - RESTARTS_WINDOW_MS < one <= now_ms)


def control_restarts() -> int:
    """How often control has started itself again since the node was started."""
    text = os.environ.get(TOTAL_VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def is_one_too_many(restarts: Sequence[int]) -> bool:
    return len(restarts) > RESTARTS_MAX


class ReExecution:
    """`restart` does not return. It may be called from any thread."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        kill_children: Callable[[], None],
        give_up: Callable[[str], None],
        niceness: int,
    ) -> None:
        """`give_up`: stores why the node stops, before the process exits. `niceness`: of the next program."""
        self._clock_ms = clock_ms
        self._kill_children = kill_children
        self._give_up = give_up
        self._niceness = niceness
        self._once = threading.Lock()

    def restart(self, reason: str, exit_status: int) -> None:
        """The sixth restart within a minute ends the node with `exit_status` instead."""
        if not self._once.acquire(blocking=False):
            return  # another thread does it
        now_ms = self._clock_ms()
        restarts = (*recent_restarts(os.environ.get(RESTARTS_VARIABLE, ""), now_ms), now_ms)
        killing = threading.Thread(target=self._kill_children, daemon=True)
        killing.start()
        killing.join(KILL_CHILDREN_S)
        if is_one_too_many(restarts):
            self._exit(f"{reason}; control was started again {RESTARTS_MAX} times within a minute", exit_status)
        os.environ[RESTARTS_VARIABLE] = ",".join(map(str, restarts))
        os.environ[TOTAL_VARIABLE] = str(control_restarts() + 1)
        sys.stderr.flush()
        restore_priority(0, self._niceness)
        try:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # our own program and arguments
        except OSError as error:
            self._exit(f"{reason}; control could not be started again: {error}", exit_status)

    def _exit(self, reason: str, exit_status: int) -> NoReturn:
        self._give_up(reason)
        sys.stderr.write(f"ebla: the node stopped: {reason}\n")
        sys.stderr.flush()
        os._exit(exit_status)


class LoopWatchdog:
    """A thread that calls `act` when the event loop has completed no turn for the period. Time in which the thread
    itself did not run (the process was stopped, the machine suspended) does not count."""

    def __init__(self, beats: Callable[[], int], period_ms: Callable[[], int], act: Callable[[str], None]) -> None:
        self._beats = beats
        self._period_ms = period_ms
        self._act = act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        seen, silent_s, before_s = self._beats(), 0.0, time.monotonic()
        while not self._stop.wait(WATCH_S):
            now_s = time.monotonic()
            silent_s += min(now_s - before_s, 2 * WATCH_S)
            before_s = now_s
            beats = self._beats()
            if beats != seen:
                seen, silent_s = beats, 0.0
            elif silent_s * 1000 >= self._period_ms():
                self._act(f"the event loop of control has completed no turn for {self._period_ms()} ms")
                return
