import itertools
import os
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from ebla.runtime import re_execution
from ebla.runtime.re_execution import (
    LoopWatchdog,
    ReExecution,
    control_restarts,
    is_one_too_many,
    recent_restarts,
)


def test_the_sixth_restart_within_a_minute_is_one_too_many() -> None:
    restarts = recent_restarts("1000,2000,3000,4000,5000", 60_999)
    assert not is_one_too_many(restarts)
    assert is_one_too_many((*restarts, 60_999))


def test_a_restart_of_more_than_a_minute_ago_does_not_count() -> None:
    assert recent_restarts("1000,2000", 61_000) == (2000,)


def test_unreadable_times_and_those_before_a_reboot_count_as_none() -> None:
    assert recent_restarts("x,,-5,90000", 1_000) == ()


def test_the_watchdog_acts_on_a_loop_without_turns() -> None:
    acted = threading.Event()
    watchdog = LoopWatchdog(lambda: 7, lambda: 500, lambda _why: acted.set())
    watchdog.start()
    assert acted.wait(10.0)
    watchdog.stop()


def test_time_in_which_the_watchdog_did_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was stopped, or the machine suspended, for an hour."""
    acted, looks, hour = (
        threading.Event(),
        itertools.count(),
        itertools.chain([0.0, 3_600.0], itertools.count(3_600.5, 0.5)),
    )
    monkeypatch.setattr(re_execution, "time", SimpleNamespace(monotonic=lambda: next(hour)))

    def beats() -> int:
        next(looks)
        return 7

    watchdog = LoopWatchdog(beats, lambda: 1_500, lambda _why: acted.set())
    watchdog.start()
    assert acted.wait(10.0)
    assert next(looks) == 3, "one look when it starts, one after the hour, and one more"


def test_a_process_executes_itself_again_five_times_and_then_gives_up() -> None:
    """The count survives in the environment, and the pid stays."""
    program = (
        "import os, time\n"
        "from ebla.runtime.re_execution import ReExecution\n"
        "print('run', os.getpid(), flush=True)\n"
        "clock = lambda: time.monotonic_ns() // 1_000_000\n"
        "say = lambda text='killed': print(text, flush=True)\n"
        "ReExecution(clock, say, say, os.getpriority(os.PRIO_PROCESS, 0)).restart('hung', 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 3, done.stderr
    assert len({line for line in lines if line.startswith("run")}) == 1
    assert [line.split()[0] for line in lines] == ["run", "killed"] * 6 + ["hung;"]


def test_the_count_of_restarts_survives_them_and_outlasts_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execv", lambda *_arguments: None)
    monkeypatch.setattr(re_execution, "restore_priority", lambda *_arguments: None)
    monkeypatch.delenv(re_execution.RESTARTS_VARIABLE, raising=False)
    monkeypatch.delenv(re_execution.TOTAL_VARIABLE, raising=False)
    assert control_restarts() == 0
    for number in range(1, 4):
        now_ms = number * re_execution.RESTARTS_WINDOW_MS
        ReExecution(partial(int, now_ms), lambda: None, lambda _reason: None, 0).restart("a test", 3)
        assert control_restarts() == number
        assert os.environ[re_execution.RESTARTS_VARIABLE] == str(now_ms), "the one before was a minute ago"
