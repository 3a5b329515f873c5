"""The process that Spark's driver lives in, with another one in its place."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ebla.pipeline import java_process
from ebla.pipeline.java_process import PipedProcess, ProcessSpec
from ebla.runtime.supervisor import session_pids

WAITING = "import sys; sys.stdin.read()"
LAST_WORDS = f"{WAITING}; print('the end')"


def started(folder: Path) -> PipedProcess:
    return PipedProcess(
        ProcessSpec(
            command=[sys.executable, "-c", WAITING], environment=dict(os.environ), folder=folder, log=folder / "log"
        )
    )


def test_it_ends_with_its_input(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.stop()
    assert process.exit_code == 0


def test_whoever_ends_our_session_finds_it_though_it_is_frozen(tmp_path: Path) -> None:
    """Killed, we cannot end it, and frozen it would not notice: control ends what is in the session of its child."""
    process = started(tmp_path)
    try:
        os.kill(process.pid, signal.SIGSTOP)
        assert process.pid in session_pids(os.getsid(0))
        assert os.getpgid(process.pid) == process.pid, "Ctrl-C in a terminal is not for it"
    finally:
        process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_it_and_what_it_starts_stand_behind_us(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = f"import os, subprocess, sys; {WAITING}; subprocess.run(['nice'])"
    process = PipedProcess(
        ProcessSpec(
            command=[sys.executable, "-c", program], environment=dict(os.environ), folder=tmp_path, log=log, niceness=3
        )
    )
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, own + 3)
    process.stop()
    assert log.read_text() == f"{min(19, own + 3)}\n"


def test_a_log_that_is_held_open_is_copied_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_process, "LOG_BYTES_MAX", 10)
    log = tmp_path / "log"
    process = PipedProcess(
        ProcessSpec(command=[sys.executable, "-c", LAST_WORDS], environment=dict(os.environ), folder=tmp_path, log=log)
    )
    log.write_text("short")
    process.rotate_log()
    assert log.read_text() == "short"
    log.write_text("long enough to be put aside")
    process.rotate_log()
    assert (tmp_path / "log.1").read_text() == "long enough to be put aside"
    process.stop()
    assert log.read_text() == "the end\n", "it goes on at the beginning of the file, with no hole before it"
    log.unlink()
    process.rotate_log()


def test_descendants_are_found_and_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (found,) = [one for one in java_process.descendants(os.getpid()) if one.pid == child.pid]
        assert java_process.is_running(found)
        java_process.kill_process(found)
        assert child.wait(10) == -9
        assert not java_process.is_running(found)
        java_process.kill_process(found)
    finally:
        child.kill()
        child.communicate()
