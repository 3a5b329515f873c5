"""The supervisor with real, tiny children; and the two ways in which a child dies with its parent, each alone."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in

from ebla.options import NodeLimits
from ebla.runtime import child_policy
from ebla.runtime.supervisor import ChildCommand, Supervisor
from ebla.runtime.system_clock import SystemClock
from ebla.wire.verbs import ProcessState

LIMITS = NodeLimits(
    child_start_ms=20_000,
    child_silence_ms=20_000,
    child_exits_max=3,
    child_exits_window_ms=60_000,
    child_restart_pause_ms=0,
    stop_ms=500,
)
WAIT_S = 20.0


class RecordedReports:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        self.events.append((event, dict(details)))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


async def until(condition: Callable[[], object]) -> None:
    """The caller sets the bound."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


def shell(code: str) -> ChildCommand:
    """The flags of the parent follow as $0 and on, and are ignored."""
    return ChildCommand("shard-0", ("/bin/sh", "-c", code))


def test_a_child_that_keeps_ending_makes_the_supervisor_give_up_with_the_reason() -> None:
    reports = RecordedReports()
    supervisor = Supervisor([shell("exit 7")], LIMITS, SystemClock(), reports)
    asyncio.run(asyncio.wait_for(supervisor.run(), WAIT_S))
    assert supervisor.gave_up == "shard-0 ended 3 times within 60000 ms; the last time it ended with status 7"
    assert reports.names() == ["child.started", "child.ended"] * 3
    (status,) = supervisor.statuses()
    assert (status.pid, status.restarts, status.state) == (0, 3, ProcessState.GONE)


def test_a_command_that_does_not_exist_is_told_and_given_up() -> None:
    reports = RecordedReports()
    supervisor = Supervisor([ChildCommand("shard-0", ("/nonexistent/x",))], LIMITS, SystemClock(), reports)
    asyncio.run(asyncio.wait_for(supervisor.run(), WAIT_S))
    assert supervisor.gave_up is not None
    assert "could not be started" in supervisor.gave_up
    assert reports.names() == ["child.not_started"] * 3


def test_a_child_that_does_not_end_when_asked_is_killed_and_reaped() -> None:
    async def run() -> int:
        supervisor = Supervisor([shell("trap '' TERM; echo up; exec sleep 60")], LIMITS, SystemClock(), reports)
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(WAIT_S):
            await until(lambda: supervisor.statuses()[0].pid)
            pid = supervisor.statuses()[0].pid
            await until(lambda: _ignores_term(pid))
            supervisor.stop()
            await running
        return pid

    reports = RecordedReports()
    pid = asyncio.run(run())
    assert reports.names() == ["child.started", "child.asked", "child.killed", "child.ended"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _ignores_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


def test_a_cancelled_supervisor_leaves_no_child() -> None:
    async def run() -> int:
        supervisor = Supervisor([shell("exec sleep 60")], LIMITS, SystemClock(), RecordedReports())
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(WAIT_S):
            await until(lambda: supervisor.statuses()[0].pid)
            pid = supervisor.statuses()[0].pid
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        return pid

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@runs_in(real_time)
@pytest.mark.usefixtures("default_hangup")
async def test_a_signal_waits_until_the_child_was_heard() -> None:
    """A child that has just been started would be ended by it: its handler is not there yet."""

    reports = RecordedReports()

    supervisor = Supervisor([shell("exec sleep 60")], LIMITS, SystemClock(), reports)
    running = asyncio.ensure_future(supervisor.run())
    async with asyncio.timeout(WAIT_S):
        await until(lambda: supervisor.statuses()[0].pid)
        pid = supervisor.statuses()[0].pid
        supervisor.forward_signal(signal.SIGHUP)
        supervisor.forward_signal(signal.SIGHUP)
        assert not _has_pending(pid, signal.SIGHUP)
        supervisor.heard("shard-0", pid)
        await until(lambda: supervisor.statuses()[0].restarts == 1)
        await until(lambda: supervisor.statuses()[0].pid)
        again = supervisor.statuses()[0].pid
        supervisor.heard("shard-0", again)
        supervisor.forward_signal(signal.SIGHUP)
        await until(lambda: supervisor.statuses()[0].restarts == 2)
        supervisor.stop()
        await running
    ends = [details["how"] for name, details in reports.events if name == "child.ended"]
    assert ends[:2] == ["was ended by SIGHUP"] * 2


@pytest.fixture
def default_hangup() -> Iterator[None]:
    """A child inherits an ignored SIGHUP, as under nohup, and would never end by it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def _has_pending(pid: int, number: signal.Signals) -> bool:
    """Or is dead of it."""
    if not _is_alive(pid):
        return True
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << number - 1 for mask in pending)


# A child like Spark: it starts a process, which starts workers in a process group of their own; none of them notices
# the end of another.
FAMILY = """
    import os, subprocess, sys, time
    worker = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(60)"
    java = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(60)"
    java = subprocess.Popen([sys.executable, "-c", java], stdout=subprocess.PIPE)
    line = java.stdout.readline().decode().strip()
    with open(sys.argv[1] + ".new", "w") as out:
        out.write(f"{java.pid} {line}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(60)
"""


def family_of(supervisor: Supervisor, path: Path) -> list[int]:
    """The child, what it started, and what that started."""
    return [supervisor.statuses()[-1].pid, *map(int, path.read_text().split())]


def family(path: Path) -> ChildCommand:
    return ChildCommand("pipeline", (sys.executable, "-c", textwrap.dedent(FAMILY), str(path)), optional=True)


@pytest.mark.parametrize("end", ["unwanted", "killed from outside", "supervisor cancelled"])
def test_a_child_takes_everything_along_that_it_started(tmp_path: Path, end: str) -> None:
    async def run() -> list[int]:
        supervisor = Supervisor(
            [shell("exec sleep 60"), family(tmp_path / "pids")], LIMITS, SystemClock(), RecordedReports()
        )
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(WAIT_S):
            supervisor.want("pipeline", True)
            await until((tmp_path / "pids").exists)
            pids = family_of(supervisor, tmp_path / "pids")
            assert all(_is_alive(pid) for pid in pids)
            if end == "supervisor cancelled":
                running.cancel()
            elif end == "unwanted":
                supervisor.want("pipeline", False)
            else:
                os.kill(pids[0], signal.SIGKILL)
            await until(lambda: not any(_is_alive(pid) for pid in pids))
            supervisor.stop()
            await asyncio.wait([running])
        return pids

    asyncio.run(run())


@runs_in(real_time)
async def test_an_optional_child_comes_and_goes_and_never_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_policy, "AGAIN_MS", 1)
    failing = ChildCommand("pipeline", ("/bin/sh", "-c", "exit 3"), optional=True)
    supervisor = Supervisor([shell("exec sleep 60"), failing], LIMITS, SystemClock(), RecordedReports())
    running = asyncio.ensure_future(supervisor.run())
    async with asyncio.timeout(WAIT_S):
        assert [status.name for status in supervisor.statuses()] == ["shard-0"]
        supervisor.want("pipeline", True)
        await until(lambda: supervisor.statuses()[-1].restarts > LIMITS.child_exits_max)
        shown = supervisor.statuses()[-1]
        assert (shown.name, shown.last_exit) == ("pipeline", "ended with status 3")
        assert supervisor.gave_up is None
        supervisor.want("pipeline", False)
        await until(lambda: len(supervisor.statuses()) == 1)
        supervisor.stop()
        await running
    assert supervisor.gave_up is None


def test_children_are_spawned_from_the_main_thread_only() -> None:
    """The death signal comes when the *thread* that forked ends: one that ends early would kill a healthy child."""
    errors: list[BaseException] = []

    def elsewhere() -> None:
        supervisor = Supervisor([shell("exit 0")], LIMITS, SystemClock(), RecordedReports())
        try:
            asyncio.run(supervisor.run())
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(WAIT_S)
    assert len(errors) == 1


# A parent that spawns one child as the supervisor does, prints its pid and waits to be killed.
PARENT = """
    import os, subprocess, sys, time
    reading, writing = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), str(reading)], pass_fds=(reading,),
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(60)
"""
CHILD = """
    import os, sys, time
    from ebla.runtime import death_signal
    {hurt}
    death_signal.die_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    print("watching", flush=True)
    time.sleep(60)
"""
WITHOUT_PIPE = "death_signal._watch = lambda pipe: None"
WITHOUT_SIGNAL = "death_signal.sys = type(sys)('sys'); death_signal.sys.platform = 'other'"


@pytest.mark.parametrize("hurt", ["pass", WITHOUT_PIPE, WITHOUT_SIGNAL], ids=["both", "signal", "pipe"])
def test_a_child_dies_with_its_killed_parent_by_each_means_alone(hurt: str) -> None:
    code = textwrap.dedent(CHILD.format(hurt=hurt))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _is_alive(child)
        parent.kill()
        parent.wait(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while _is_alive(child):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def test_a_child_whose_parent_is_already_another_ends_at_once() -> None:
    code = textwrap.dedent(CHILD.format(hurt="pass"))
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "1", str(reading)], pass_fds=(reading,), capture_output=True, timeout=WAIT_S
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
