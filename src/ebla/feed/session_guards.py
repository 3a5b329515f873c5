"""Session guards in a shard or the bulk process: an operation holds one while it has effects there.

A guard is entered only after a read barrier: this process's list of sessions may be behind, and a session that was
closed meanwhile must not be entered. It is released when the effect is over. Until then every barrier that has seen the
session closed waits for it. INV-ROWS-3: nothing is merged under a session after such a barrier returned.
"""

from typing import Protocol

from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import Refused, Stale, Unavailable
from ebla.model.identity import SessionId
from ebla.model.transaction import Revision
from ebla.ports.clock import Clock
from ebla.topology.sessions import BarrierProof, FrozenGuard, GuardRefusal, SessionStateMachine
from ebla.topology.snapshot import Session

BARRIER_MS = 5_000
"""For the read barrier of group 0 before a guard is entered."""


class ReadBarrierSource(Protocol):
    async def read_barrier(self, deadline_ms: int) -> Revision: ...

    def changed(self) -> None:
        """The report of this process may have changed."""
        ...


class SessionClosed(Stale):
    """The operation is over. Nothing of it has any effect any more."""


class SessionGuards:
    def __init__(
        self, view: TopologyView, barriers: ReadBarrierSource, clock: Clock, barrier_ms: int = BARRIER_MS
    ) -> None:
        self._view = view
        self._barriers = barriers
        self._clock = clock
        self._barrier_ms = barrier_ms
        self._sessions: SessionStateMachine | None = None

    def on_view_installed(self, view: View) -> None:
        """To be called in the step that installs the view."""
        sessions = self._sessions or SessionStateMachine(view.revision)
        self._sessions = sessions.followed(view.snapshot, view.revision)

    @property
    def closing(self) -> tuple[SessionId, ...]:
        """Sessions that are held but no longer listed: barriers wait for them."""
        return () if self._sessions is None else tuple(self._sessions.closing())

    @property
    def held(self) -> int:
        return 0 if self._sessions is None else sum(self._sessions.guards.values())

    def listed(self, session: SessionId) -> Session | None:
        """As far as the feed has come, which may be behind. None: it is closed, or was never opened."""
        return None if self._sessions is None else self._sessions.listed.get(session)

    def hold_guard(self, session: SessionId, deadline_ms: int) -> "GuardHold":
        """For `async with`. Entering raises `SessionClosed` if the session is closed, `Unavailable` if that cannot be
        determined."""
        return GuardHold(self, FrozenGuard(session), deadline_ms)

    async def enter(self, guard: FrozenGuard, deadline_ms: int) -> None:
        """What `hold_guard` does at its beginning; `release` is its end."""
        proof = await self._proof(deadline_ms)
        assert self._sessions is not None, "a revision was reached, so a view was installed"
        self._sessions = _entered(self._sessions, guard, proof)

    def hold_guard_without_barrier(self, session: SessionId) -> "UnverifiedGuardHold":
        """For `with`. Without a read barrier, for work whose effect counts only after a later step that has one. It is
        counted like any other guard, so a barrier that has seen the session closed waits for it. Entering raises
        `SessionClosed`, or `Unavailable` before the first view is installed."""
        return UnverifiedGuardHold(self, FrozenGuard(session))

    def enter_without_barrier(self, guard: FrozenGuard) -> None:
        """What `hold_guard_without_barrier` does at its beginning; `release` is its end."""
        if self._sessions is None:
            raise _refused(guard.session, GuardRefusal.NO_BARRIER)
        proof = BarrierProof(self._sessions.applied, self._clock.wall_us() // 1000)
        self._sessions = _entered(self._sessions, guard, proof)

    async def catch_up(self, deadline_ms: int) -> None:
        """Afterwards `listed` is right about every session that was closed before the call. Raises `Unavailable`."""
        await self._proof(deadline_ms)

    def release(self, guard: FrozenGuard) -> None:
        assert self._sessions is not None
        self._sessions = self._sessions.released(guard)
        if guard.session not in self._sessions.guards and guard.session not in self._sessions.listed:
            self._barriers.changed()

    async def _proof(self, deadline_ms: int) -> BarrierProof:
        deadline_ms = min(deadline_ms, self._barrier_ms)
        revision = await self._barriers.read_barrier(deadline_ms)
        if not await self._view.wait_revision(revision, deadline_ms / 1000):
            raise Unavailable(
                f"the topology has not come here up to revision {revision.index} within {deadline_ms} ms",
                advice="try again in a moment",
            )
        return BarrierProof(revision, self._clock.wall_us() // 1000)


class GuardHold:
    """Not a generator: one that is dropped with its process must not resume later."""

    def __init__(self, guards: SessionGuards, guard: FrozenGuard, deadline_ms: int) -> None:
        self._guards = guards
        self._guard = guard
        self._deadline_ms = deadline_ms

    async def __aenter__(self) -> None:
        await self._guards.enter(self._guard, self._deadline_ms)

    async def __aexit__(self, *_: object) -> None:
        self._guards.release(self._guard)


class UnverifiedGuardHold:
    """Not a generator, for the same reason."""

    def __init__(self, guards: SessionGuards, guard: FrozenGuard) -> None:
        self._guards = guards
        self._guard = guard

    def __enter__(self) -> None:
        self._guards.enter_without_barrier(self._guard)

    def __exit__(self, *_: object) -> None:
        self._guards.release(self._guard)


def _entered(sessions: SessionStateMachine, guard: FrozenGuard, proof: BarrierProof) -> SessionStateMachine:
    refusal = sessions.refusal(guard, proof)
    if refusal is not None:
        raise _refused(guard.session, refusal)
    return sessions.entered(guard, proof)


def _refused(session: SessionId, refusal: GuardRefusal) -> Refused | Unavailable:
    match refusal:
        case GuardRefusal.NOT_LISTED:
            return SessionClosed(
                f"session {session} is closed, or was never opened", advice="the operation it belongs to is over"
            )
        case GuardRefusal.PAST_DEADLINE:
            return SessionClosed(f"session {session} is past its deadline", advice="start the job again")
        case GuardRefusal.NO_BARRIER | GuardRefusal.BEHIND_BARRIER:
            return Unavailable(f"whether session {session} is open is not known here", advice="try again in a moment")
