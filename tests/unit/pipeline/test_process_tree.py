"""Who descends from whom."""

import os
import subprocess
import sys

from ebla.pipeline.process_tree import ProcessMark, below, descendants, is_running, kill


def mark(pid: int) -> ProcessMark:
    return ProcessMark(pid, 0)


def test_all_below_and_nobody_else() -> None:
    known = [(mark(2), 1), (mark(3), 2), (mark(4), 3), (mark(5), 1), (mark(6), 2)]
    assert sorted(one.pid for one in below(2, known)) == [3, 4, 6]
    assert below(4, known) == ()


def test_a_circle_is_left() -> None:
    """A listing is not taken at one moment: numbers may come back in between."""
    assert sorted(one.pid for one in below(1, [(mark(2), 1), (mark(1), 2)])) == [1, 2]


def test_real_ones_are_found_and_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (found,) = [one for one in descendants(os.getpid()) if one.pid == child.pid]
        assert is_running(found)
        assert not is_running(ProcessMark(found.pid, found.started + 1))
        kill(ProcessMark(found.pid, found.started + 1))
        assert child.poll() is None
        kill(found)
        assert child.wait(10) == -9
        assert not is_running(found)
    finally:
        child.kill()
        child.communicate()
