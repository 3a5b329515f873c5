"""When a child process is started, terminated, killed and given up: a state machine without a clock or a process.

Each event is a method that returns effects, and `supervisor.py` carries them out. What it promises:

- a child counts as gone only once it was reaped (`exited`); one that was sent SIGKILL is not gone yet;
- a child that sends no heartbeat for `child_silence_ms`, or none within `child_start_ms` of its start, is killed;
- `child_exits_max` exits of one essential child within `child_exits_window_ms` stop the node, with the reason;
- an optional child runs while it is wanted; however often it exits, the node continues, and it is started again after a
  pause that doubles from `AGAIN_MS` to `AGAIN_MS_MAX`, until it has run for `child_exits_window_ms`;
- after `stop` nothing is started any more; a child that does not end when terminated is killed after
  `child_stop_ms`.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from ebla.options import NodeLimits

AGAIN_MS = 1_000
AGAIN_MS_MAX = 60_000
STALL_MS = 1_000
"""Two ticks further apart than this mean that the supervisor itself was suspended or starved."""


class ChildKind(enum.StrEnum):
    ESSENTIAL = "essential"
    """Without it there is no node."""
    OPTIONAL = "optional"
    """Runs while it is wanted."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Optional and not wanted: never started, or reaped."""


@dataclass(frozen=True, slots=True)
class StartPending:
    """Not running; started when due."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class Starting:
    """Spawned, no heartbeat yet."""

    pid: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class RunningChild:
    pid: int
    since_ms: int
    heard_ms: int


@dataclass(frozen=True, slots=True)
class Terminating:
    """Sent SIGTERM."""

    pid: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Killed:
    """Sent SIGKILL and not reaped: it may still be writing."""

    pid: int
    since_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Reaped, or never started, and not started again."""


ChildState: TypeAlias = NotStarted | StartPending | Starting | RunningChild | Terminating | Killed | Finished


@dataclass(frozen=True, slots=True)
class Spawn:
    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    pid: int


@dataclass(frozen=True, slots=True)
class Kill:
    pid: int


ChildEffect: TypeAlias = Spawn | Terminate | Kill


@dataclass(slots=True, kw_only=True)
class Child:
    """One child and its history."""

    name: str
    state: ChildState
    exits_ms: list[int] = field(default_factory=list)
    """When it exited, within the window."""
    exits_total: int = 0
    last_exit: str = ""
    kind: ChildKind = ChildKind.ESSENTIAL
    wanted: bool = True
    spawned_ms: int = 0
    failures: int = 0
    """How often an optional child exited unasked since it last ran for long."""


def pid_of(state: ChildState) -> int | None:
    return state.pid if isinstance(state, Starting | RunningChild | Terminating | Killed) else None


class ChildPolicy:
    """The children of one node. `gave_up` holds the reason once they made the node stop."""

    def __init__(self, names: Sequence[str], limits: NodeLimits, now_ms: int, *, optional: Sequence[str] = ()) -> None:
        assert len({*names, *optional}) == len(names) + len(optional)
        self.limits = limits
        self.children = {name: Child(name=name, state=StartPending(now_ms)) for name in names}
        for name in optional:
            self.children[name] = Child(name=name, state=NotStarted(), kind=ChildKind.OPTIONAL, wanted=False)
        self.gave_up: str | None = None
        self.stopping = False
        self._ticked_ms = now_ms

    @property
    def finished(self) -> bool:
        return all(isinstance(child.state, Finished) for child in self.children.values())

    # ---- events. Each returns what to do now.

    def tick(self, now_ms: int) -> list[ChildEffect]:
        """Time passed. Call it at least every few hundred milliseconds."""
        pause_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        if pause_ms > STALL_MS:
            self._forgive(pause_ms)
        effects: list[ChildEffect] = []
        for child in self.children.values():
            effects += self._check(child, now_ms)
        return effects

    def spawned(self, name: str, pid: int, now_ms: int) -> None:
        child = self.children[name]
        assert isinstance(child.state, StartPending)
        child.state = Starting(pid, now_ms)
        child.spawned_ms = now_ms

    def spawn_failed(self, name: str, reason: str, now_ms: int) -> list[ChildEffect]:
        return self._on_exit(self.children[name], f"could not be started: {reason}", now_ms)

    def heard(self, name: str, pid: int, now_ms: int) -> None:
        """A heartbeat. The pid tells a child from its predecessor, whose last heartbeat may be in flight."""
        child = self.children.get(name)
        if child is None or pid_of(child.state) != pid:
            return
        match child.state:
            case Starting(since_ms=since_ms):
                child.state = RunningChild(pid, since_ms, now_ms)
            case RunningChild():
                child.state = replace(child.state, heard_ms=now_ms)
            case _:
                pass

    def exited(self, name: str, pid: int, how: str, now_ms: int) -> list[ChildEffect]:
        """It was reaped."""
        child = self.children[name]
        assert pid_of(child.state) == pid
        reason = f"{child.state.reason} and was killed" if isinstance(child.state, Killed) else how
        return self._on_exit(child, reason, now_ms)

    def want(self, name: str, wanted: bool, now_ms: int) -> list[ChildEffect]:
        """Whether an optional child is to run from now on. A child that is ending ends first: two of one kind never run
        at once."""
        child = self.children[name]
        assert child.kind is ChildKind.OPTIONAL
        if self.stopping or child.wanted == wanted:
            return []
        child.wanted, child.failures = wanted, 0
        match child.state:
            case NotStarted() if wanted:
                child.state = StartPending(now_ms)
            case StartPending() if not wanted:
                child.state = NotStarted()
            case Starting(pid=pid) | RunningChild(pid=pid) if not wanted:
                child.state = Terminating(pid, now_ms)
                return [Terminate(pid)]
            case _:
                pass
        return []

    def kill(self, name: str, reason: str, now_ms: int) -> list[ChildEffect]:
        """It must end now; it is started again if it is to run."""
        child = self.children[name]
        match child.state:
            case Starting(pid=pid) | RunningChild(pid=pid) | Terminating(pid=pid):
                child.state = Killed(pid, now_ms, reason)
                return [Kill(pid)]
            case _:
                return []

    def stop(self, now_ms: int) -> list[ChildEffect]:
        """From now on nothing is started."""
        self.stopping = True
        effects: list[ChildEffect] = []
        for child in self.children.values():
            match child.state:
                case NotStarted() | StartPending():
                    child.state = Finished()
                case Starting(pid=pid) | RunningChild(pid=pid):
                    child.state = Terminating(pid, now_ms)
                    effects.append(Terminate(pid))
                case Terminating() | Killed() | Finished():
                    pass
                case _:
                    assert_never(child.state)
        return effects

    # ---- decisions

    def _forgive(self, pause_ms: int) -> None:
        """Time in which the supervisor itself did not run does not count as silence of a child.

        Without this: the machine sleeps, or the node is stopped and continued (SIGSTOP, SIGCONT); the first tick comes
        before the heartbeats that wait in the socket are read, and every healthy child is killed.
        """
        for child in self.children.values():
            match child.state:
                case Starting(since_ms=since_ms):
                    child.state = replace(child.state, since_ms=since_ms + pause_ms)
                case RunningChild(heard_ms=heard_ms):
                    child.state = replace(child.state, heard_ms=heard_ms + pause_ms)
                case _:
                    pass

    def _check(self, child: Child, now_ms: int) -> list[ChildEffect]:
        match child.state:
            case StartPending(due_ms) if now_ms >= due_ms:
                return [Spawn(child.name)]
            case Starting(pid, since_ms) if now_ms - since_ms >= self.limits.child_start_ms:
                child.state = Killed(
                    pid, now_ms, f"sent no heartbeat within {self.limits.child_start_ms} ms of its start"
                )
                return [Kill(pid)]
            case RunningChild(pid, _, heard_ms) if now_ms - heard_ms >= self.limits.child_silence_ms:
                child.state = Killed(pid, now_ms, f"was silent for {now_ms - heard_ms} ms")
                return [Kill(pid)]
            case Terminating(pid, since_ms) if now_ms - since_ms >= self.limits.child_stop_ms:
                child.state = Killed(pid, now_ms, f"did not end within {self.limits.child_stop_ms} ms of SIGTERM")
                return [Kill(pid)]
            case _:
                return []

    def _on_exit(self, child: Child, reason: str, now_ms: int) -> list[ChildEffect]:
        child.last_exit = reason
        if self.stopping:
            child.state = Finished()
            return []
        if child.kind is ChildKind.OPTIONAL:
            self._on_optional_exit(child, now_ms)
            return []
        child.exits_total += 1
        child.exits_ms = [at for at in child.exits_ms if now_ms - at < self.limits.child_exits_window_ms] + [now_ms]
        if len(child.exits_ms) < self.limits.child_exits_max:
            child.state = StartPending(now_ms + self.limits.child_restart_pause_ms)
            return []
        child.state = Finished()
        self.gave_up = (
            f"{child.name} ended {len(child.exits_ms)} times within {self.limits.child_exits_window_ms} ms; "
            f"the last time it {child.last_exit}"
        )
        return self.stop(now_ms)

    def _on_optional_exit(self, child: Child, now_ms: int) -> None:
        if not child.wanted:
            child.state = NotStarted()
            return
        was_terminated = isinstance(child.state, Terminating)  # and has been wanted again since
        if was_terminated:
            child.state = StartPending(now_ms)
            return
        child.exits_total += 1
        ran_long = (
            not isinstance(child.state, StartPending) and now_ms - child.spawned_ms >= self.limits.child_exits_window_ms
        )
        child.failures = 1 if ran_long else child.failures + 1
        child.state = StartPending(now_ms + self._pause_ms(child.failures))

    def _pause_ms(self, failures: int) -> int:
        doublings = min(failures - 1, AGAIN_MS_MAX.bit_length())
        return min(AGAIN_MS << doublings, AGAIN_MS_MAX)
