"""Niceness of threads, children and sessions. All of it is taken in other threads and processes: it is for good."""

import ctypes
import os
import platform
import resource
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ebla.runtime.priorities import (
    NICENESS_MAX,
    SHORT_SLICE_NS,
    lower_child_priority,
    lower_session_priority,
    lower_thread_priority,
    raise_serving_priority,
    shorten_thread_slice,
)

SESSION = """
import sys
from pathlib import Path
from ebla.runtime.priorities import lower_session_priority
lower_session_priority(7, Path(sys.argv[1]))
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
        lower_thread_priority(2)
        started = threading.Thread(target=below)
        started.start()
        started.join()

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    expected = min(NICENESS_MAX, own + 2)
    assert seen == [expected, expected]
    assert niceness() == own


SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def slice_ns() -> int:
    """Of the calling thread, as the kernel tells it."""
    buffer = ctypes.create_string_buffer(ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, buffer, ATTRIBUTES.size, 0) == 0
    return int(ATTRIBUTES.unpack(buffer.raw)[5])


def knows_slices() -> bool:
    numbers = platform.release().split(".")[:2]
    return sys.platform == "linux" and platform.machine() in SCHED_GETATTR and tuple(map(int, numbers)) >= (6, 12)


@pytest.mark.skipif(not knows_slices(), reason="Linux supports slices from 6.12 on")
def test_a_thread_and_what_it_starts_get_short_slices_and_no_more_than_before() -> None:
    own, seen = slice_ns(), list[tuple[int, int]]()

    def below() -> None:
        seen.append((slice_ns(), niceness()))

    def first() -> None:
        lower_thread_priority(1)
        shorten_thread_slice()
        below()
        started = threading.Thread(target=below)
        started.start()
        started.join()

    before = niceness()
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    assert seen == [(SHORT_SLICE_NS, min(NICENESS_MAX, before + 1))] * 2
    assert (slice_ns(), niceness()) == (own, before)
    assert own > SHORT_SLICE_NS


def test_a_child_stands_back() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lower_child_priority(child.pid, 100)
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICENESS_MAX
    child.communicate(b"\n")
    lower_child_priority(child.pid, 1)  # it is gone, which is for others to find out


@pytest.mark.parametrize("leads", [True, False])
def test_only_who_leads_a_session_speaks_for_it(tmp_path: Path, leads: bool) -> None:
    group = tmp_path / "autogroup"
    subprocess.run([sys.executable, "-c", SESSION, str(group)], start_new_session=leads, check=True, timeout=60)
    assert group.exists() == leads
    assert not leads or group.read_text() == "7"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not weigh sessions")
def test_the_kernel_takes_it() -> None:
    program = SESSION.replace("Path(sys.argv[1])", f"Path('{AUTOGROUP}')") + f"print(Path('{AUTOGROUP}').read_text())"
    said = subprocess.run(
        [sys.executable, "-c", program], start_new_session=True, check=True, capture_output=True, text=True, timeout=60
    )
    assert said.stdout.split()[-2:] == ["nice", "7"]


def test_raise_serving_priority_where_it_may(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from ebla.runtime.priorities import raise_serving_priority
raise_serving_priority(-3, Path(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
    group = tmp_path / "autogroup"
    said = subprocess.run(
        [sys.executable, "-c", script, str(group)],
        start_new_session=True,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert group.read_text() == "-3"
    may = os.geteuid() == 0 or 20 - resource.getrlimit(resource.RLIMIT_NICE)[0] <= -3
    assert not may or said.stdout == "-3\n"


def test_who_may_not_go_first_goes_on_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(os, "getsid", lambda _pid: os.getpid())
    before = niceness()
    raise_serving_priority(-3, tmp_path / "autogroup")
    assert niceness() == before


def test_a_kernel_without_sessions_is_no_error(tmp_path: Path) -> None:
    lower_session_priority(7, tmp_path / "missing" / "autogroup")
    assert list(tmp_path.iterdir()) == [], "nothing is made where the kernel has nothing"
