"""Sessions of bulk jobs: any node opens and closes them, and the leader ends them when they are overdue.

Both verbs are idempotent: an opening is found by its id, and a closed session stays closed. So an attempt without an
answer is followed by another one, based on what group 0 says by then.

INV-XFER-1: once a close has been answered, no effect of the session happens any more on any node except those that the
answer lists as down. The commit stops new guards; the barrier waits until each process has seen the commit and released
the guards it holds.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebla.control.topology.barrier_client import BarrierOutcome
from ebla.control.topology.deps import TopologyDeps, expires_at, out_of_time, remaining_ms
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound, Outcome, Refused, Stale
from ebla.model.identity import RequestId, SessionId, TopologyVersion
from ebla.topology.apply.schema import may_be_closed
from ebla.topology.commands import CloseSessions, OpenBulkSession
from ebla.topology.sessions import sessions_to_close
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest, OpenSessionAnswer, OpenSessionRequest
from ebla.wire.verbs import CLOSE_SESSION, OPEN_SESSION

ATTEMPT_SHARE = 0.5
"""The share of the remaining time that one commit may take; the rest is for finding out its outcome and for the
next."""
CHECK_MS = 500
COMMIT_MS = 5_000

SessionCommand = OpenBulkSession | CloseSessions
Decide = Callable[[Snapshot], SessionCommand | None]
"""What to commit, given the topology; None: nothing to do."""


class BulkSessionService:
    def __init__(self, deps: TopologyDeps, life_ms_max: int) -> None:
        self._deps = deps
        self._life_ms_max = life_ms_max
        self._last_report = ""

    def serve_on(self, server: Server) -> None:
        server.serve(OPEN_SESSION, self._serve_open)
        server.serve(CLOSE_SESSION, self._serve_close)

    async def _serve_open(self, request: OpenSessionRequest, call: IncomingCall) -> OpenSessionAnswer:
        return await self.open(request, call.work_ms())

    async def _serve_close(self, request: CloseSessionRequest, call: IncomingCall) -> CloseSessionAnswer:
        return await self.close(request.session, call.work_ms())

    # ---- opening

    async def open(self, request: OpenSessionRequest, within_ms: int) -> OpenSessionAnswer:
        """Raises `DeadlineExceeded` if it is unknown whether the session is open: call again with the same id, or close
        it."""
        if request.life_ms <= 0:
            raise InvalidRequest(f"a session's lifetime is positive, not {request.life_ms} ms")
        expires = expires_at(within_ms)
        first = await self._deps.read(remaining_ms(expires))
        deadline_ms = self._deps.now_ms() + min(request.life_ms, self._life_ms_max)
        opening = new_opening(request, first, deadline_ms)
        now = await self._settle(lambda snapshot: plan_open(opening, snapshot), expires)
        listed = now.sessions[request.session]
        assert listed.deadline_ms is not None
        return OpenSessionAnswer(listed.deadline_ms, now.version)

    # ---- closing

    async def close(self, session: SessionId, within_ms: int) -> CloseSessionAnswer:
        """Returns once all its effects are over on every node that is up. Raises `DeadlineExceeded` if a node did not
        confirm that in time (then the session is closed, and another call keeps waiting), or if the outcome is
        unknown."""
        expires = expires_at(within_ms)
        now = await self._settle(lambda snapshot: plan_close(session, snapshot), expires)
        assert session not in now.sessions
        members = [node.host for node in now.members()]
        request = NodeBarrierRequest(now.version, drain=True)
        outcome = await self._deps.barriers.request(members, request, remaining_ms(expires))
        if outcome.lacking:
            raise _not_drained(session, now.version, outcome)
        return CloseSessionAnswer(outcome.down)

    # ---- the leader's part

    async def enforce(self, check_effect: Callable[[], None]) -> None:
        """Until cancelled: ends overdue sessions, beside the coordinator's loop and under its activity."""
        watched: dict[SessionId, int] = {}
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            snapshot = self._deps.topology.snapshot
            times = SessionTimes(self._deps.now_ms(), self._deps.clock.boot_ms(), self._life_ms_max)
            watched = refresh_watched(watched, snapshot, times.boot_ms)
            over = sessions_to_end(snapshot, watched, times)
            if over:
                check_effect()
                await self._end(over, check_effect)

    async def _end(self, over: tuple[SessionId, ...], check_effect: Callable[[], None]) -> None:
        """One attempt; the next check makes another. Does not wait for guards: a caller that needs the end of a session
        closes it, and `close` waits."""
        names = ", ".join(str(session) for session in over)
        try:
            snapshot = self._deps.topology.snapshot
            done = await self._deps.commit(snapshot, (CloseSessions(over),), COMMIT_MS, (), check_effect)
        except EblaError as error:
            self._report_once("session.not_ended", {"sessions": names, "cause": error.message})
            return
        if done is not None:
            self._last_report = ""
            self._deps.report("session.overdue", {"sessions": names, "version": done.version})

    def _report_once(self, event: str, fields: dict[str, object]) -> None:
        if str(fields) != self._last_report:  # once, not at every check
            self._last_report = str(fields)
            self._deps.report(event, fields)

    # ---- both

    async def _settle(self, decide: Decide, expires: float) -> Snapshot:
        """Commits until `decide` has nothing left to do; returns that topology."""
        unanswered: EblaError | None = None
        while remaining_ms(expires) > 0:
            try:
                snapshot = await self._deps.read(remaining_ms(expires))
                command = decide(snapshot)
                if command is None:
                    return snapshot
                attempt_ms = max(1, int(remaining_ms(expires) * ATTEMPT_SHARE))
                done = await self._deps.commit(snapshot, (command,), attempt_ms)
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED and unanswered is None:
                    raise
                if error.outcome is Outcome.NOT_APPLIED:
                    raise _unknown_outcome(error) from unanswered
                unanswered = error
                continue
            if done is not None:
                return done
            await self._deps.pause()
        raise out_of_time() if unanswered is None else _unknown_outcome(unanswered)


def _unknown_outcome(cause: EblaError) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"it is not known whether the session was or will be changed: {cause.message}",
        advice="call again for the same session",
    )


def _not_drained(session: SessionId, version: TopologyVersion, outcome: BarrierOutcome) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"session {session} is closed to new effects (version {version}), but not every node confirmed in time "
        f"that its effects are over: {outcome.describe_lacking()}",
        advice="close it again to keep waiting",
    )


@dataclass(frozen=True, slots=True)
class SessionTimes:
    wall_ms: int
    boot_ms: int
    life_ms_max: int


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """One request to open a session, the same through all attempts."""

    session: Session
    known_version: TopologyVersion
    """As in `OpenBulkSession`: a session closed after this version may be this one."""


def new_opening(request: OpenSessionRequest, snapshot: Snapshot, deadline_ms: int) -> SessionOpening:
    """The request at the first attempt; `snapshot` is what a quorum knew after it arrived."""
    session = Session(
        id=request.session,
        kind=SessionKind.BULK_JOB,
        table=request.table,
        request=RequestId(request.job),
        deadline_ms=deadline_ms,
    )
    return SessionOpening(session, snapshot.version if request.known_version is None else request.known_version)


def plan_open(opening: SessionOpening, snapshot: Snapshot) -> OpenBulkSession | None:
    """None: it is open. INV-XFER-1: raises `Stale` if it may have been closed already; nothing opens it again."""
    session = opening.session
    listed = snapshot.sessions.get(session.id)
    if listed is not None:
        same = (listed.kind, listed.table, listed.request) == (session.kind, session.table, session.request)
        if not same:
            raise InvalidRequest(f"session {session.id} is open for something else", advice="draw another id")
        return None
    if may_be_closed(snapshot, session.id, opening.known_version):
        raise Stale(f"session {session.id} is closed, or may be", advice="draw another id and open that")
    if session.table not in snapshot.tables:
        raise NotFound(f"there is no table {session.table}")
    return OpenBulkSession(session, opening.known_version)


def refresh_watched(watched: Mapping[SessionId, int], snapshot: Snapshot, boot_ms: int) -> dict[SessionId, int]:
    """Since when this node has seen each listed bulk session, by its boot clock, which no one adjusts."""
    listed = (each for each in sorted(snapshot.sessions) if snapshot.sessions[each].kind is SessionKind.BULK_JOB)
    return {session: watched.get(session, boot_ms) for session in listed}


def sessions_to_end(snapshot: Snapshot, watched: Mapping[SessionId, int], times: SessionTimes) -> tuple[SessionId, ...]:
    """Bulk sessions that the leader ends now. A deadline is wall time of the node that opened the session, whose clock
    may have been far ahead. So a leader also ends a session that it has seen for longer than the longest lifetime."""
    overdue = sessions_to_close(snapshot, times.wall_ms)
    outlived = [each for each, since_ms in watched.items() if times.boot_ms - since_ms >= times.life_ms_max]
    return tuple(each for each in sorted(snapshot.sessions) if each in overdue or each in outlived)


def plan_close(session: SessionId, snapshot: Snapshot) -> CloseSessions | None:
    """None: it is known to be closed, and nothing new starts under it."""
    if session in snapshot.state.bulk_closed:
        return None
    listed = snapshot.sessions.get(session)
    if listed is not None and listed.kind is not SessionKind.BULK_JOB:
        raise Refused(f"session {session} is that of a {listed.kind}, and ends with it")
    return CloseSessions((session,))
