"""The process that Spark's driver lives in, with another one in its place."""

import os
import signal
import sys
from pathlib import Path

from ebla.pipeline.java_process import PipedProcess, ProcessStart
from ebla.runtime.process_session import members

WAITING = "import sys; sys.stdin.read()"


def started(folder: Path) -> PipedProcess:
    return PipedProcess(ProcessStart([sys.executable, "-c", WAITING], dict(os.environ), folder, folder / "log"))


def test_it_ends_with_its_input(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.stop()
    assert process.exit_code == 0


def test_whoever_ends_our_session_finds_it_though_it_is_frozen(tmp_path: Path) -> None:
    """Killed, we cannot end it, and frozen it would not notice: control ends what is in the session of its child."""
    process = started(tmp_path)
    try:
        os.kill(process.pid, signal.SIGSTOP)
        assert process.pid in members(os.getsid(0))
        assert os.getpgid(process.pid) == process.pid, "Ctrl-C in a terminal is not for it"
    finally:
        process.kill()
    assert process.exit_code == -signal.SIGKILL
