"""Starts, watches, restarts and ends the children of a node. `child_policy.py` decides what is done when.

Children never outlive this process: `death_signal.py` is the child's half of that. A child that is killed, or ends,
takes along every process of its session.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from ebla.model.errors import EblaError
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeLimits
from ebla.ports.clock import Clock
from ebla.runtime.child_policy import (
    ChildEffect,
    ChildPolicy,
    ChildState,
    Finished,
    Kill,
    Killed,
    NotStarted,
    RunningChild,
    Spawn,
    Starting,
    StartPending,
    Terminate,
    Terminating,
    pid_of,
)
from ebla.runtime.priorities import restore_priority
from ebla.wire.verbs import ProcessState, ProcessStatus

TICK_MS = 100
PARENT_FLAG = "--parent"
PIPE_FLAG = "--parent-pipe"


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """How a child is started. The flags that tell it its parent are added."""

    name: str
    arguments: tuple[str, ...]
    optional: bool = False
    """Runs while it is wanted; its exits never stop the node."""


BeforeSpawn = Callable[[str], Awaitable[Sequence[str]]]


async def _no_arguments(_child: str) -> Sequence[str]:
    return ()


PROCESS_STATES: dict[type[ChildState], ProcessState] = {
    NotStarted: ProcessState.GONE,
    StartPending: ProcessState.WAITING,
    Starting: ProcessState.STARTING,
    RunningChild: ProcessState.RUNNING,
    Terminating: ProcessState.STOPPING,
    Killed: ProcessState.KILLED,
    Finished: ProcessState.GONE,
}


class Supervisor:
    """Make and run it on the main thread: the death signal of a child is tied to the thread that spawned it, and the
    main thread lives as long as the process."""

    def __init__(
        self, commands: Sequence[ChildCommand], limits: NodeLimits, clock: Clock, report: EventReporter
    ) -> None:
        self._commands = {command.name: command for command in commands}
        essential = [command.name for command in commands if not command.optional]
        optional = [command.name for command in commands if command.optional]
        self.niceness = os.getpriority(os.PRIO_PROCESS, 0)
        """Of the children at their start."""
        self._policy = ChildPolicy(essential, limits, clock.boot_ms(), optional=optional)
        self._clock = clock
        self._report = report
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started_wall_us: dict[str, int] = {}
        self._kept_signals: dict[int, dict[signal.Signals, None]] = {}
        self._pipe: tuple[int, int] | None = None
        self._wake = asyncio.Event()
        self._due: list[str] = []
        self._has_ended = False
        self.before_spawn: BeforeSpawn = _no_arguments
        """Called before a child is started, each time; returns further arguments for it. If it raises, the node
        stops."""
        self.refusal: str | None = None
        """Why a child must not be started."""

    @property
    def gave_up(self) -> str | None:
        """Why the node must stop, once its children have exited too often or one must not be started."""
        return self.refusal or self._policy.gave_up

    def heard(self, name: str, pid: int) -> None:
        """A heartbeat of a child. One of an unknown or dead child changes nothing."""
        self._policy.heard(name, pid, self._clock.boot_ms())
        for number in self._kept_signals.pop(pid, ()):
            self._signal(pid, number)

    def want(self, name: str, wanted: bool) -> None:
        """Whether an optional child is to run from now on. Else it is terminated, then killed."""
        self._carry_out(self._policy.want(name, wanted, self._clock.boot_ms()))
        self._wake.set()

    def kill(self, name: str, reason: str) -> None:
        """Kills the child with its session, if it lives. It is gone once `statuses` shows another pid or none."""
        self._carry_out(self._policy.kill(name, reason, self._clock.boot_ms()))
        self._wake.set()

    def statuses(self) -> tuple[ProcessStatus, ...]:
        """Of every child except optional ones that were not started."""
        return tuple(
            ProcessStatus(
                name=child.name,
                pid=pid_of(child.state) or 0,
                started_wall_us=self._started_wall_us.get(child.name, 0),
                restarts=child.exits_total,
                state=PROCESS_STATES[type(child.state)],
                last_exit=child.last_exit,
            )
            for child in self._policy.children.values()
            if not isinstance(child.state, NotStarted)
        )

    def stop(self) -> None:
        """Terminates every child; `run` returns once all are reaped."""
        self._carry_out(self._policy.stop(self._clock.boot_ms()))
        self._wake.set()

    def forward_signal(self, number: signal.Signals) -> None:
        """Sends a signal to every live child. A child that has sent no heartbeat yet may have no handler, and the
        signal would kill it: it gets the signal after its first heartbeat."""
        for child in self._policy.children.values():
            match child.state:
                case Starting(pid=pid):
                    self._kept_signals.setdefault(pid, {})[number] = None
                case RunningChild(pid=pid):
                    self._signal(pid, number)
                case _:
                    pass

    async def run(self) -> None:
        """Returns once every child is gone for good: after `stop`, or when `gave_up` has a reason."""
        self._pipe = os.pipe()
        try:
            while True:
                self._reap()
                self._carry_out(self._policy.tick(self._clock.boot_ms()))
                while self._due:
                    await self._start(self._due.pop(0))
                if self._policy.finished:
                    return
                try:
                    async with asyncio.timeout(TICK_MS / 1000):
                        await self._wake.wait()
                    self._wake.clear()
                except TimeoutError:
                    pass
        finally:
            # Processes are left only after an error or a cancellation: `finished` means that all are reaped.
            self.kill_all()
            for end in self._pipe:
                os.close(end)

    def kill_all(self) -> None:
        """Kills and reaps every child with its session. Nothing is started or reaped elsewhere from then on: another
        thread than that of `run` may call this, before this process executes itself again. A child that is being
        spawned at that moment is missed here. It ends when its pipe is closed."""
        self._has_ended = True
        for process in list(self._processes.values()):
            kill_session(process.pid)
            process.wait()

    def _carry_out(self, effects: Sequence[ChildEffect]) -> None:
        for effect in effects:
            match effect:
                case Spawn(name):
                    self._due.append(name)
                case Terminate(pid):
                    self._report("child.asked", {"pid": pid})
                    self._signal(pid, signal.SIGTERM)
                case Kill(pid):
                    self._report("child.killed", {"pid": pid})
                    self._kill(pid)
                case _:
                    assert_never(effect)

    async def _start(self, name: str) -> None:
        try:
            arguments = await self.before_spawn(name)
        except (EblaError, OSError) as error:
            self.refusal = str(error)
            self._carry_out(self._policy.stop(self._clock.boot_ms()))
            return
        if isinstance(self._policy.children[name].state, StartPending):  # the node may have been stopped meanwhile
            self._spawn(self._commands[name], arguments)

    def _spawn(self, command: ChildCommand, further: Sequence[str]) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert self._pipe is not None
        if self._has_ended:
            return
        reading, _ = self._pipe
        arguments = [*command.arguments, *further, PARENT_FLAG, str(os.getpid()), PIPE_FLAG, str(reading)]
        try:
            # A session of its own: Ctrl-C in a terminal reaches only the control process, which terminates its
            # children; and the processes that a child starts are found by its session.
            process = subprocess.Popen(  # noqa: S603  # the arguments are our own
                arguments, stdin=subprocess.DEVNULL, pass_fds=(reading,), start_new_session=True
            )
        except OSError as error:
            self._report("child.not_started", {"child": command.name, "error": str(error)})
            self._carry_out(self._policy.spawn_failed(command.name, str(error), self._clock.boot_ms()))
            return
        self._processes[command.name] = process
        restore_priority(process.pid, self.niceness)
        self._started_wall_us[command.name] = self._clock.wall_us()
        self._report("child.started", {"child": command.name, "pid": process.pid})
        self._policy.spawned(command.name, process.pid, self._clock.boot_ms())

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Through Popen, which never signals a pid that it has reaped and the kernel may have reused."""
        for process in self._processes.values():
            if process.pid == pid:
                process.send_signal(number)

    def _kill(self, pid: int) -> None:
        if any(process.pid == pid for process in self._processes.values()):
            kill_session(pid)

    def _reap(self) -> None:
        """Kills what an exited child left running before it is reaped, and so before the next one starts."""
        for name, process in list(self._processes.items()):
            if self._has_ended:
                return
            if has_exited(process.pid):
                kill_session(process.pid)
                status = process.wait()
                del self._processes[name]
                self._kept_signals.pop(process.pid, None)
                how = _how_it_ended(status)
                self._report("child.ended", {"child": name, "pid": process.pid, "how": how})
                self._carry_out(self._policy.exited(name, process.pid, how, self._clock.boot_ms()))


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    named = [known.name for known in signal.Signals if known == -status]
    return f"was ended by {named[0] if named else f'signal {-status}'}"


# ---- The processes of a session: a child and everything it started, unless that called setsid(). A process group is
# not enough: Spark's Python workers have a group of their own, and after a kill they would be neither in the group nor
# children of any process we know. What they started stays in the session.

ROUNDS_MAX = 20
"""A process that forks during the search is found in the next round."""

_PROC = Path("/proc")
_ZOMBIE = "Z"


def has_exited(pid: int) -> bool:
    """Whether a child of ours has ended. It is not reaped yet: until then its pid, and a session or group of that
    number, cannot be reused, so that its remaining processes can be found."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_session(session: int) -> None:
    """Kills every process of the session. Call it while its leader is alive, or ended and not reaped."""
    try:
        os.killpg(session, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it is empty; some systems report a zombie differently
    if sys.platform != "linux":
        return
    killed: set[int] = set()  # they may be listed for a while, but start nothing any more
    for _ in range(ROUNDS_MAX):
        left = [pid for pid in session_pids(session) if pid not in killed]
        if not left:
            return
        for pid in left:
            _kill(pid, session)
        killed.update(left)


def session_pids(session: int) -> Iterator[int]:
    """Live processes of a session, in no order. Linux only."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _is_in(int(entry.name), session):
            yield int(entry.name)


def _is_in(pid: int, session: int) -> bool:
    try:
        # The name, in brackets, may itself contain blanks and brackets.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False  # it ended meanwhile
    return int(fields[3]) == session and fields[0] != _ZOMBIE


def _kill(pid: int, session: int) -> None:
    """The pidfd refers to this process even if its pid is reused."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _is_in(pid, session):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended meanwhile
    finally:
        os.close(descriptor)
