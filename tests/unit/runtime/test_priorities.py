"""Niceness of threads, children and sessions. All of it is taken in other threads and processes: it is for good."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ebla.runtime.priorities import NICENESS_MAX, child_stands_back, session_stands_back, thread_stands_back

SESSION = """
import sys
from pathlib import Path
from ebla.runtime.priorities import session_stands_back
session_stands_back(7, Path(sys.argv[1]))
"""
AUTOGROUP = Path("/proc/self/autogroup")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_a_thread_and_what_it_starts_stand_back_alone() -> None:
    own, seen = niceness(), []

    def below() -> None:
        seen.append(niceness())
        seen.append(int(subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout))

    def first() -> None:
        thread_stands_back(2)
        started = threading.Thread(target=below)
        started.start()
        started.join()

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    expected = min(NICENESS_MAX, own + 2)
    assert seen == [expected, expected]
    assert niceness() == own


def test_a_child_stands_back() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child_stands_back(child.pid, 100)
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICENESS_MAX
    child.communicate(b"\n")
    child_stands_back(child.pid, 1)  # it is gone, which is for others to find out


@pytest.mark.parametrize("leads", [True, False])
def test_only_who_leads_a_session_speaks_for_it(tmp_path: Path, leads: bool) -> None:
    group = tmp_path / "autogroup"
    subprocess.run([sys.executable, "-c", SESSION, str(group)], start_new_session=leads, check=True, timeout=60)
    assert group.exists() == leads
    assert not leads or group.read_text() == "7"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not weigh sessions")
def test_the_kernel_takes_it() -> None:
    told = SESSION.replace("Path(sys.argv[1])", f"Path('{AUTOGROUP}')") + f"print(Path('{AUTOGROUP}').read_text())"
    said = subprocess.run(
        [sys.executable, "-c", told], start_new_session=True, check=True, capture_output=True, text=True, timeout=60
    )
    assert said.stdout.split()[-2:] == ["nice", "7"]


def test_a_kernel_without_sessions_is_no_error(tmp_path: Path) -> None:
    session_stands_back(7, tmp_path / "missing" / "autogroup")
