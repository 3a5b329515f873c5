"""Spark's processes end with ours, on whichever Java they run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebla.pipeline.java import JavaOrigin
from ebla.pipeline.java_process import descendants, is_running
from ebla.ports.transfer_engine import EngineState

END_S = 20.0


def path_without_java(folder: Path) -> str:
    """A PATH with what Spark's scripts need, without Java."""
    folder.mkdir()
    for name in ("sh", "bash", "env", "dirname", "ps", "cat", "head", "uname", "chmod", "rm", "ls"):
        for place in ("/bin", "/usr/bin"):
            if (program := Path(place, name)).exists() and not (folder / name).exists():
                (folder / name).symlink_to(program)
    return str(folder)


class Talking:
    """A process of `engine_process`, and its output."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.pipeline.engine_process", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        self._note = folder / "sockets-elsewhere"

    def wait_for(self, state: EngineState) -> list[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f"{state}|"):
                return line.strip().split("|")
        raise AssertionError("it ended")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._note.exists():
            # The next engine in this folder would remove it, and there is none.
            shutil.rmtree(self._note.read_text())


@pytest.fixture
def without_java(tmp_path: Path) -> Iterator[Talking]:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    talking = Talking(tmp_path / "spark", environment | {"PATH": path_without_java(tmp_path / "path")})
    yield talking
    talking.close()


def test_on_the_java_of_the_wheel_and_gone_with_a_killed_process(without_java: Talking) -> None:
    """Checks the whole tree: Java, the daemon of its Python workers, and the workers."""
    _, pid, place, _ = without_java.wait_for(EngineState.READY)
    assert place == JavaOrigin.WHEEL
    tree = descendants(without_java.process.pid)
    assert int(pid) in [mark.pid for mark in tree]
    # Java, daemon, and a worker for each of two slots.
    assert len(tree) >= 4
    os.kill(without_java.process.pid, signal.SIGKILL)
    ends_at = time.monotonic() + END_S
    while any(is_running(mark) for mark in tree) and time.monotonic() < ends_at:
        time.sleep(0.05)
    assert not [mark for mark in tree if is_running(mark)]
