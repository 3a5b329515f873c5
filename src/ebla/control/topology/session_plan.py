"""What opening and closing the session of a bulk job mean for the topology, from what it says now. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import RequestId, SessionId, TopologyVersion
from ebla.topology.apply.schema import may_be_closed
from ebla.topology.commands import CloseSessions, OpenBulkSession
from ebla.topology.sessions import sessions_to_close
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind
from ebla.wire.transfer_messages import OpenSessionRequest


@dataclass(frozen=True, slots=True)
class SessionTimes:
    wall_ms: int
    boot_ms: int
    life_ms_max: int


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """One wish, through all attempts at it."""

    session: Session
    known_version: TopologyVersion
    """As in `OpenBulkSession`: what was closed later may be this one."""


def new_opening(request: OpenSessionRequest, snapshot: Snapshot, deadline_ms: int) -> SessionOpening:
    """The wish as it stands when it is first looked at; `snapshot` is what a quorum knew after it came."""
    session = Session(
        id=request.session,
        kind=SessionKind.BULK_JOB,
        table=request.table,
        request=RequestId(request.job),
        deadline_ms=deadline_ms,
    )
    return SessionOpening(session, snapshot.version if request.known_version is None else request.known_version)


def plan_open(opening: SessionOpening, snapshot: Snapshot) -> OpenBulkSession | None:
    """None: it is open. INV-XFER-1: raises `Stale` where it may have been closed already; nothing opens it again."""
    session = opening.session
    listed = snapshot.sessions.get(session.id)
    if listed is not None:
        same = (listed.kind, listed.table, listed.request) == (session.kind, session.table, session.request)
        if not same:
            raise InvalidRequest(f"session {session.id} is open for something else", advice="draw another id")
        return None
    if may_be_closed(snapshot, session.id, opening.known_version):
        raise Stale(f"session {session.id} is closed, or may be", advice="draw another id and ask again")
    if session.table not in snapshot.tables:
        raise NotFound(f"there is no table {session.table}")
    return OpenBulkSession(session, opening.known_version)


def refresh_watched(watched: Mapping[SessionId, int], snapshot: Snapshot, boot_ms: int) -> dict[SessionId, int]:
    """Since when this node has seen each bulk session that is listed, by a clock that nobody sets."""
    listed = (each for each in sorted(snapshot.sessions) if snapshot.sessions[each].kind is SessionKind.BULK_JOB)
    return {session: watched.get(session, boot_ms) for session in listed}


def sessions_to_end(snapshot: Snapshot, watched: Mapping[SessionId, int], times: SessionTimes) -> tuple[SessionId, ...]:
    """Bulk sessions that the leader ends now. A deadline is a wall time of the node that was asked, whose clock may
    have been far ahead: no session lives longer under the eyes of one leader than any may."""
    overdue = sessions_to_close(snapshot, times.wall_ms)
    outlived = [each for each, since_ms in watched.items() if times.boot_ms - since_ms >= times.life_ms_max]
    return tuple(each for each in sorted(snapshot.sessions) if each in overdue or each in outlived)


def plan_close(session: SessionId, snapshot: Snapshot) -> CloseSessions | None:
    """None: it is known to be closed, and nobody begins anything under it any more."""
    if session in snapshot.state.bulk_closed:
        return None
    listed = snapshot.sessions.get(session)
    if listed is not None and listed.kind is not SessionKind.BULK_JOB:
        raise Refused(f"session {session} is that of a {listed.kind}, and ends with it")
    return CloseSessions((session,))
