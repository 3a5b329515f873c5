"""Sessions and guards: the right of one operation to have side effects, and how it ends.

A session is *open* while group 0 lists it, *closing* while it is no longer listed and a guard is still held, and then
*closed*. It never opens again: an id is never reused. Every message of an operation carries the session id as a *frozen
guard*. Before a side effect the guard is *materialised*, which succeeds only while the session is open, and it is held
until the effect is done. To close a session: delete the key, wait until every process has seen the deletion, wait until
no guard is held. A late effect, from a repeated message or an abandoned task, then finds no session and is refused.

A stage's session opens with the commit that enters the stage and closes with the one that leaves it; a request's
session spans its streaming; a bulk job's session ends with the job or at its deadline, which the leader enforces,
because the job's owner is outside the cluster and may vanish.

`SessionStateMachine` is one process's view of this: it follows the snapshots, counts guards, and reports when the
closing sessions are drained.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from ebla.model.identity import SessionId
from ebla.model.transaction import Revision
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind


class FrozenGuard(msgspec.Struct, frozen=True, tag="frozen_guard", array_like=True):
    """A guard on the wire: it names the session, and proves nothing until it is materialised."""

    session: SessionId


class GuardRefusal(enum.StrEnum):
    NO_BARRIER = "no_barrier"
    """No read barrier since the request arrived: this process may not have seen the session open, or close."""
    BEHIND_BARRIER = "behind_barrier"
    """The feed has not reached the barrier's revision yet; wait for it."""
    NOT_LISTED = "not_listed"
    """Closed, or never opened."""
    PAST_DEADLINE = "past_deadline"
    """The bulk job's deadline has passed, and the leader is about to close its session."""


@dataclass(frozen=True, slots=True)
class BarrierProof:
    """The revision that the caller's read barrier returned, and the wall time for deadlines.

    None: there was no read barrier, or it found no quorum.
    """

    revision: Revision | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class SessionStateMachine:
    """The sessions and guards of one process. Immutable: each step returns a new one."""

    applied: Revision
    """The revision that the feed has reached."""
    listed: FrozenMap[SessionId, Session] = field(default_factory=FrozenMap)
    guards: FrozenMap[SessionId, int] = field(default_factory=FrozenMap)
    """How many guards are held, by open or closing session; never zero."""

    def followed(self, snapshot: Snapshot, applied: Revision) -> "SessionStateMachine":
        """The state after the feed delivered this snapshot."""
        assert applied.history != self.applied.history or applied.index >= self.applied.index
        for session in self.closing():
            assert session not in snapshot.sessions, "a session that was closed is never opened again"
        return replace(self, listed=snapshot.sessions, applied=applied)

    def closing(self) -> Iterator[SessionId]:
        """The sessions that a barrier waits for: no longer listed, with guards still held."""
        return (session for session in sorted(self.guards) if session not in self.listed)

    @property
    def is_drained(self) -> bool:
        """Whether no effect of an unlisted session can still happen in this process."""
        return next(self.closing(), None) is None

    def refusal(self, guard: FrozenGuard, proof: BarrierProof) -> GuardRefusal | None:
        """Why this guard must not be materialised now; None if it may."""
        if proof.revision is None:
            return GuardRefusal.NO_BARRIER
        if not _reached(self.applied, proof.revision):
            return GuardRefusal.BEHIND_BARRIER
        session = self.listed.get(guard.session)
        if session is None:
            return GuardRefusal.NOT_LISTED
        if _is_overdue(session, proof.now_ms):
            return GuardRefusal.PAST_DEADLINE
        return None

    def entered(self, guard: FrozenGuard, proof: BarrierProof) -> "SessionStateMachine":
        """The state with one more guard held."""
        assert self.refusal(guard, proof) is None
        return replace(self, guards=self.guards.put(guard.session, self.guards.get(guard.session, 0) + 1))

    def released(self, guard: FrozenGuard) -> "SessionStateMachine":
        count = self.guards[guard.session]
        remaining = self.guards.put(guard.session, count - 1) if count > 1 else self.guards.without(guard.session)
        return replace(self, guards=remaining)


def _reached(applied: Revision, required: Revision) -> bool:
    """Revisions of different histories do not compare: the feed has to switch to the other history first."""
    return applied.history == required.history and applied.index >= required.index


def sessions_to_close(snapshot: Snapshot, now_ms: int) -> tuple[SessionId, ...]:
    """Bulk jobs whose session the leader must close now: their deadline has passed, or their table was dropped by a
    step that was decided before the session opened and committed after it."""
    jobs = (each for each in snapshot.sessions.values() if each.kind is SessionKind.BULK_JOB)
    over = (each for each in jobs if _is_overdue(each, now_ms) or each.table not in snapshot.tables)
    return tuple(sorted(each.id for each in over))


def _is_overdue(session: Session, now_ms: int) -> bool:
    return session.deadline_ms is not None and now_ms >= session.deadline_ms
