"""Processes that descend from another one, by what Linux tells of them; elsewhere none is known.

Spark's Python workers are children of a child of its Java process and end when it does. This is for those that do not:
one that is frozen takes no signal but the last.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process by more than its number, which the next one may get."""

    pid: int
    started: int
    """In ticks since the machine started."""


def below(root: int, known: Iterable[tuple[ProcessMark, int]]) -> tuple[ProcessMark, ...]:
    """Of processes and their parents those that descend from the root, which itself is not among them."""
    children: dict[int, list[ProcessMark]] = {}
    for mark, parent in known:
        children.setdefault(parent, []).append(mark)
    found: list[ProcessMark] = []
    waiting = [root]
    while waiting:
        born = children.pop(waiting.pop(), [])
        found += born
        waiting += [mark.pid for mark in born]
    return tuple(found)


def descendants(root: int) -> tuple[ProcessMark, ...]:
    pids = [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdigit()] if _PROCESSES.is_dir() else []
    known = [told for pid in pids if (told := _told(pid)) is not None]
    return below(root, known)


def is_running(mark: ProcessMark) -> bool:
    told = _told(mark.pid)
    return told is not None and told[0] == mark


def kill(mark: ProcessMark) -> None:
    if is_running(mark):
        try:
            os.kill(mark.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _told(pid: int) -> tuple[ProcessMark, int] | None:
    """The process and its parent; None where it is gone, or only its exit status is left."""
    try:
        text = (_PROCESSES / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold anything.
    fields = text.rpartition(")")[2].split()
    state, parent, started = fields[0], int(fields[1]), int(fields[19])
    return None if state in ("Z", "X") else (ProcessMark(pid, started), parent)
