"""File locks: exclusive, reported with the holder's pid, freed by any death, and not disturbed by checks."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebla.runtime import file_lock
from ebla.runtime.file_lock import LockHeld

HOLD = (
    "import sys, pathlib\nfrom ebla.runtime import file_lock\n"
    "lock = file_lock.acquire(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()\n"
)


def holder(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_held_lock_is_refused_with_the_holders_pid_and_free_once_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "shard-0.lock"
    with holder(path) as process:
        with pytest.raises(LockHeld, match=f"process {process.pid} holds .*shard-0.lock"):
            file_lock.acquire(path)
        held = file_lock.find_held_lock(tmp_path)
        assert held is not None
        assert held.holder == process.pid
        process.kill()
        process.wait(60)
    assert file_lock.find_held_lock(tmp_path) is None
    file_lock.acquire(path).release()


def test_a_released_or_missing_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert file_lock.find_lock_holder(path) is None
    assert not path.exists()
    lock = file_lock.acquire(path)
    assert path.read_text() == f"{os.getpid()}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert file_lock.find_lock_holder(path) is not None
    lock.release()
    assert file_lock.find_lock_holder(path) is None


def test_somebody_who_looks_at_that_instant_does_not_make_an_acquire_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lock"
    file_lock.acquire(path).release()
    looking = os.open(path, os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    pauses: list[float] = []

    def looked(seconds: float) -> None:
        pauses.append(seconds)
        os.close(looking)

    monkeypatch.setattr("ebla.runtime.file_lock.time.sleep", looked)
    file_lock.acquire(path).release()
    assert len(pauses) == 1
