"""Guards of sessions in a shard or the bulk process: the right of an operation to have effects there, held meanwhile.

A guard is entered only after a read barrier: the list of sessions that this process has may be behind, and a session
that was closed meanwhile must not be entered. It is released when the effect is over; until then every barrier that
has seen the session closed waits for it. INV-ROWS-3: nothing is merged under a session after such a barrier returned.
"""

from typing import Protocol

from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import Refused, Stale, Unavailable
from ebla.model.identity import SessionId
from ebla.model.transaction import Revision
from ebla.ports.clock import Clock
from ebla.topology.sessions import BarrierProof, FrozenGuard, GuardRefusal, SessionStateMachine
from ebla.topology.snapshot import Session


class ReadBarrierSource(Protocol):
    async def read_barrier(self, deadline_ms: int) -> Revision: ...

    def changed(self) -> None:
        """What this process reports may be something else now."""
        ...


class SessionClosed(Stale):
    """The operation that this was for is over. Nothing of it has any effect any more."""


class SessionGuards:
    def __init__(self, view: TopologyView, barriers: ReadBarrierSource, clock: Clock, barrier_ms: int) -> None:
        self._view = view
        self._barriers = barriers
        self._clock = clock
        self._barrier_ms = barrier_ms
        self._book: SessionStateMachine | None = None

    def on_view_installed(self, view: View) -> None:
        """To be called in the step in which the view is installed."""
        book = self._book or SessionStateMachine(view.revision)
        self._book = book.followed(view.snapshot, view.revision)

    @property
    def closing(self) -> tuple[SessionId, ...]:
        """Held, though no longer listed: what barriers wait for."""
        return () if self._book is None else tuple(self._book.closing())

    @property
    def held(self) -> int:
        return 0 if self._book is None else sum(self._book.guards.values())

    def listed(self, session: SessionId) -> Session | None:
        """By what the feed has brought so far, which may be behind. None: it is closed, or was never opened."""
        return None if self._book is None else self._book.listed.get(session)

    def hold_guard(self, session: SessionId, deadline_ms: int) -> "GuardHold":
        """For `async with`: held inside. Entering raises `Stale` where the session is closed, `Unavailable` where that
        cannot be found out."""
        return GuardHold(self, FrozenGuard(session), deadline_ms)

    async def enter(self, guard: FrozenGuard, deadline_ms: int) -> None:
        """What `hold_guard` does at its beginning; `release` is its end."""
        proof = await self._proof(deadline_ms)
        assert self._book is not None, "a revision was reached, so a view was installed"
        refusal = self._book.refusal(guard, proof)
        if refusal is not None:
            raise _refused(guard.session, refusal)
        self._book = self._book.entered(guard, proof)

    def hold_guard_without_barrier(self, session: SessionId) -> "UnverifiedGuardHold":
        """For `with`. Without a barrier, for work whose effect comes to count only by a later step that has one. It is
        counted as any other, so a barrier that knows of the end waits for it. Entering raises `SessionClosed`, or
        `Unavailable` before anything is known here."""
        return UnverifiedGuardHold(self, FrozenGuard(session))

    def enter_without_barrier(self, guard: FrozenGuard) -> None:
        """What `hold_guard_without_barrier` does at its beginning; `release` is its end."""
        if self._book is None:
            raise _refused(guard.session, GuardRefusal.NO_BARRIER)
        proof = BarrierProof(self._book.applied, self._clock.wall_us() // 1000)
        refusal = self._book.refusal(guard, proof)
        if refusal is not None:
            raise _refused(guard.session, refusal)
        self._book = self._book.entered(guard, proof)

    async def catch_up(self, deadline_ms: int) -> None:
        """What `listed` says of a session that was closed before the call is right afterwards. Raises
        `Unavailable`."""
        await self._proof(deadline_ms)

    def release(self, guard: FrozenGuard) -> None:
        assert self._book is not None
        self._book = self._book.released(guard)
        if guard.session not in self._book.guards and guard.session not in self._book.listed:
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
    """Not a generator: one that is dropped with its process must not go on at some later time."""

    def __init__(self, guards: SessionGuards, guard: FrozenGuard, deadline_ms: int) -> None:
        self._guards = guards
        self._guard = guard
        self._deadline_ms = deadline_ms

    async def __aenter__(self) -> None:
        await self._guards.enter(self._guard, self._deadline_ms)

    async def __aexit__(self, *_: object) -> None:
        self._guards.release(self._guard)


class UnverifiedGuardHold:
    """Not a generator either."""

    def __init__(self, guards: SessionGuards, guard: FrozenGuard) -> None:
        self._guards = guards
        self._guard = guard

    def __enter__(self) -> None:
        self._guards.enter_without_barrier(self._guard)

    def __exit__(self, *_: object) -> None:
        self._guards.release(self._guard)


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
