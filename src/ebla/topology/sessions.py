"""Sessions and guards: the right of one operation to have side effects, and how it ends.

A session is open while group 0 lists it. Whoever works for an operation carries its session id, a *frozen guard*,
through every message; around each section that has effects the guard is *materialised*, which succeeds only while the
session is open, and held until the effect is done. Closing is: delete the key, let every process see it, wait for the
guards held. So an effect that comes late, from a repeated message or a task that was given up, meets a session that is
gone, and is refused.

`SessionStateMachine` is one process's view of that: it follows the snapshots it is fed, counts guards, and says what
drained.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from ebla.model.identity import SessionId
from ebla.model.transaction import Revision
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind


class SessionOpenCause(enum.StrEnum):
    ENTERING_STAGE = "entering_stage"
    """The commit by which a tablet enters a stage with side effects; each such stage has a session of its own."""
    STARTING_REQUEST = "starting_request"
    """The commit by which a node operation begins to stream."""
    SUBMITTING_JOB = "submitting_job"


class SessionCloseCause(enum.StrEnum):
    LEAVING_STAGE = "leaving_stage"
    ENDING_REQUEST = "ending_request"
    """The commit by which streaming ends, well or not."""
    ENDING_JOB = "ending_job"
    """Committed, cancelled, or past its deadline, which the leader enforces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRule:
    opened: SessionOpenCause
    closed: SessionCloseCause
    names_tablet: bool
    has_deadline: bool
    """A bulk job's owner is outside the cluster and may vanish; stages and requests are the coordinator's."""
    survives_retry: bool
    """Whether a second attempt at the same thing runs under the same session."""


SESSION_RULES: Mapping[SessionKind, SessionRule] = MappingProxyType(
    {
        SessionKind.STAGE: SessionRule(
            opened=SessionOpenCause.ENTERING_STAGE,
            closed=SessionCloseCause.LEAVING_STAGE,
            names_tablet=True,
            has_deadline=False,
            survives_retry=True,
        ),
        SessionKind.REQUEST: SessionRule(
            opened=SessionOpenCause.STARTING_REQUEST,
            closed=SessionCloseCause.ENDING_REQUEST,
            names_tablet=False,
            has_deadline=False,
            survives_retry=True,
        ),
        SessionKind.BULK_JOB: SessionRule(
            opened=SessionOpenCause.SUBMITTING_JOB,
            closed=SessionCloseCause.ENDING_JOB,
            names_tablet=False,
            has_deadline=True,
            survives_retry=False,
        ),
    }
)


class SessionPhase(enum.StrEnum):
    NOT_OPENED = "not_opened"
    OPEN = "open"
    CLOSING = "closing"
    """No longer listed; guards may be held."""
    CLOSED = "closed"


class SessionEvent(enum.StrEnum):
    LISTED = "listed"
    UNLISTED = "unlisted"
    DRAINED = "drained"
    """No guard is held."""


PHASES: Mapping[tuple[SessionPhase, SessionEvent], SessionPhase] = MappingProxyType(
    {
        (SessionPhase.NOT_OPENED, SessionEvent.LISTED): SessionPhase.OPEN,
        (SessionPhase.OPEN, SessionEvent.LISTED): SessionPhase.OPEN,
        (SessionPhase.OPEN, SessionEvent.DRAINED): SessionPhase.OPEN,
        (SessionPhase.OPEN, SessionEvent.UNLISTED): SessionPhase.CLOSING,
        (SessionPhase.CLOSING, SessionEvent.UNLISTED): SessionPhase.CLOSING,
        (SessionPhase.CLOSING, SessionEvent.DRAINED): SessionPhase.CLOSED,
    }
)
"""One way only: nothing leads from closing or closed back to open, since an id is never used again. What is not here
cannot happen."""


class FrozenGuard(msgspec.Struct, frozen=True, tag="frozen_guard", array_like=True):
    """A permit as it travels: it names the session and proves nothing by itself."""

    session: SessionId


class GuardRefusal(enum.StrEnum):
    NO_BARRIER = "no_barrier"
    """No read barrier since the request came: the list this process has may be outdated, in either direction."""
    BEHIND_BARRIER = "behind_barrier"
    """The feed has not reached the revision of the barrier yet; wait for it."""
    NOT_LISTED = "not_listed"
    """Closed, or never opened."""
    PAST_DEADLINE = "past_deadline"
    """A bulk job's time is over, and the leader is about to close its session."""


@dataclass(frozen=True, slots=True)
class BarrierProof:
    """What the asker brings: the revision its read barrier returned, and the wall time for deadlines.

    None: the barrier was not done, or found no quorum.
    """

    revision: Revision | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class SessionStateMachine:
    """What one process knows. Immutable: each step gives a new book."""

    applied: Revision
    """How far the feed has come."""
    listed: FrozenMap[SessionId, Session] = field(default_factory=FrozenMap)
    guards: FrozenMap[SessionId, int] = field(default_factory=FrozenMap)
    """Held, by session, open or closing; never zero."""

    def phase(self, session: SessionId) -> SessionPhase:
        """Not opened yet counts as closed: nobody may act under it, and a process that came late cannot tell."""
        if session in self.listed:
            return SessionPhase.OPEN
        return SessionPhase.CLOSING if session in self.guards else SessionPhase.CLOSED

    def followed(self, snapshot: Snapshot, applied: Revision) -> "SessionStateMachine":
        """The book after the feed delivered this snapshot."""
        assert applied.history != self.applied.history or applied.index >= self.applied.index
        for session in self.closing():
            assert session not in snapshot.sessions, "a session that was closed is never opened again"
        return replace(self, listed=snapshot.sessions, applied=applied)

    def closing(self) -> Iterator[SessionId]:
        """What a barrier waits for: sessions no longer listed that still have guards."""
        return (session for session in sorted(self.guards) if session not in self.listed)

    @property
    def is_drained(self) -> bool:
        """No effect of a session that is not listed can still happen here."""
        return next(self.closing(), None) is None

    def refusal(self, guard: FrozenGuard, proof: BarrierProof) -> GuardRefusal | None:
        """Why this guard must not be materialised now; None: it may."""
        if proof.revision is None:
            return GuardRefusal.NO_BARRIER
        if not _reached(self.applied, proof.revision):
            return GuardRefusal.BEHIND_BARRIER
        session = self.listed.get(guard.session)
        if session is None:
            return GuardRefusal.NOT_LISTED
        if session.deadline_ms is not None and proof.now_ms >= session.deadline_ms:
            return GuardRefusal.PAST_DEADLINE
        return None

    def entered(self, guard: FrozenGuard, proof: BarrierProof) -> "SessionStateMachine":
        """The book with one more guard held."""
        assert self.refusal(guard, proof) is None
        return replace(self, guards=self.guards.put(guard.session, self.guards.get(guard.session, 0) + 1))

    def released(self, guard: FrozenGuard) -> "SessionStateMachine":
        count = self.guards[guard.session]
        remaining = self.guards.put(guard.session, count - 1) if count > 1 else self.guards.without(guard.session)
        return replace(self, guards=remaining)


def _reached(applied: Revision, wanted: Revision) -> bool:
    """Another history is another line of events: the feed has to change over to it first."""
    return applied.history == wanted.history and applied.index >= wanted.index


def sessions_to_close(snapshot: Snapshot, now_ms: int) -> tuple[SessionId, ...]:
    """Bulk jobs whose session the leader must close now: their time is up, or their table was dropped by a step that
    was decided before they opened and committed after it."""
    overdue = overdue_sessions(snapshot, now_ms)
    return tuple(each for each in sorted(snapshot.sessions) if each in overdue or _lost_its_table(snapshot, each))


def _lost_its_table(snapshot: Snapshot, session: SessionId) -> bool:
    row = snapshot.sessions[session]
    return row.kind is SessionKind.BULK_JOB and row.table not in snapshot.tables


def overdue_sessions(snapshot: Snapshot, now_ms: int) -> tuple[SessionId, ...]:
    """Bulk jobs whose session the leader must close now, by id."""
    sessions = (snapshot.sessions[each] for each in sorted(snapshot.sessions))
    return tuple(each.id for each in sessions if each.deadline_ms is not None and now_ms >= each.deadline_ms)
