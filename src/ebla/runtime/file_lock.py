"""File locks that show whether a process of a node is alive.

The kernel frees a lock when the last process that holds the open file ends, however it ends. The file is opened
close-on-exec, so a grandchild cannot keep a dead child's lock. The holder writes its pid into the file: the lock shows
*whether* it is held, the pid only *by which process*.
"""

import fcntl
import os
import time
from pathlib import Path

from ebla.model.errors import Refused

_ATTEMPTS = 20
_PAUSE_S = 0.01


class LockHeld(Refused):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: int | None) -> None:
        who = f"process {holder}" if holder is not None else "another process"
        super().__init__(f"{who} holds {path}", advice="stop it, or wait until it is gone")
        self.path = path
        self.holder = holder


class FileLock:
    """A lock held until `release` or the end of this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Keeps the file: removing it would let two processes lock two files of one name."""
        os.close(self._descriptor)


def acquire(path: Path) -> FileLock:
    """Takes the lock, or raises `LockHeld` after a moment.

    The retries are for `find_lock_holder`, which holds a shared lock for a few microseconds: without them a status
    command at the wrong instant would make a starting child fail.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_ATTEMPTS - 1):
        if _locked(descriptor):
            break
        time.sleep(_PAUSE_S)
    else:
        if not _locked(descriptor):
            holder = _written_pid(descriptor)
            os.close(descriptor)
            raise LockHeld(path, holder)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return FileLock(path, descriptor)


def acquire_folder(path: Path) -> FileLock:
    """Takes the lock on a folder itself, which leaves no file in it, or raises `LockHeld` at once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not _locked(descriptor):
        os.close(descriptor)
        raise LockHeld(path, None)
    return FileLock(path, descriptor)


def find_lock_holder(path: Path) -> LockHeld | None:
    """None: the lock is free; a missing file is free. Leaves the file as it was."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # A shared lock detects an exclusive one, and two concurrent checks do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockHeld(path, _written_pid(descriptor))
    finally:
        os.close(descriptor)
    return None


def find_held_lock(folder: Path) -> LockHeld | None:
    """The first held lock among the files of a folder. A lock of this process itself counts as held."""
    for path in sorted(folder.glob("*.lock")):
        held = find_lock_holder(path)
        if held is not None:
            return held
    return None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written_pid(descriptor: int) -> int | None:
    """None in the moment between taking the lock and writing the pid."""
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
