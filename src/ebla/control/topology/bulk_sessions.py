"""Sessions of bulk jobs, opened and closed on any node, and ended by the leader when their time is over.

Both verbs may be repeated: an opening is found by its id, and what is closed stays closed. So an attempt that was not
answered is followed by another one, on what group 0 says by then.

INV-XFER-1: once a close has been answered, no effect of the session happens any more on any node but those the answer
names as down. The commit ends the giving out of guards; the barrier waits until each process has seen it and has let
go of those it holds.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from ebla.control.group0.client import error_of
from ebla.control.group0.node import Group0Node
from ebla.control.topology.barrier_client import BarrierClient, BarrierOutcome
from ebla.control.topology.schema_service import TopologySource
from ebla.group0.commands import ConditionFailed, Done, Forgotten, LockRevoked, Rejected
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound, Outcome, Refused, Stale
from ebla.model.identity import RequestId, SessionId, TopologyVersion
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection as CommandRefused
from ebla.topology.apply.command import apply_command
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
"""Of the time left, what one commit may take; the rest is for finding out, and for the next."""
AGAIN_MS_MAX = 50
LOOK_MS = 500
COMMIT_MS = 5_000

SessionCommand = OpenBulkSession | CloseSessions
Decide = Callable[[Snapshot], SessionCommand | None]
"""What to commit, from what is there; None: it is so already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeps:
    group0: Group0Node
    topology: TopologySource
    barriers: BarrierClient
    rng: Rng
    clock: Clock
    report: EventReporter


class BulkSessionService:
    def __init__(self, parts: SessionDeps, life_ms_max: int) -> None:
        self._parts = parts
        self._life_ms_max = life_ms_max
        self._loop = asyncio.get_running_loop()
        self._told = ""

    def serve_on(self, server: Server) -> None:
        server.serve(OPEN_SESSION, self._serve_open)
        server.serve(CLOSE_SESSION, self._serve_close)

    async def _serve_open(self, request: OpenSessionRequest, call: IncomingCall) -> OpenSessionAnswer:
        return await self.open(request, call.work_ms())

    async def _serve_close(self, request: CloseSessionRequest, call: IncomingCall) -> CloseSessionAnswer:
        return await self.close(request.session, call.work_ms())

    # ---- opening

    async def open(self, request: OpenSessionRequest, within_ms: int) -> OpenSessionAnswer:
        """Raises `DeadlineExceeded` where nobody knows whether it is open: ask again by the same id, or close it."""
        if request.life_ms <= 0:
            raise InvalidRequest(f"a session lives for some time, not {request.life_ms} ms")
        expires_at = self._loop.time() + within_ms / 1000
        first = await self._look(self._remaining_ms(expires_at))
        deadline_ms = self._now_ms() + min(request.life_ms, self._life_ms_max)
        opening = new_opening(request, first, deadline_ms)
        now = await self._settle(lambda snapshot: plan_open(opening, snapshot), expires_at)
        listed = now.sessions[request.session]
        assert listed.deadline_ms is not None
        return OpenSessionAnswer(listed.deadline_ms, now.version)

    # ---- closing

    async def close(self, session: SessionId, within_ms: int) -> CloseSessionAnswer:
        """Returns once every effect of it is over on every node that is up. Raises `DeadlineExceeded` where a node did
        not confirm that in time: then it is closed, and asking again goes on waiting; or where nobody knows."""
        expires_at = self._loop.time() + within_ms / 1000
        now = await self._settle(lambda snapshot: plan_close(session, snapshot), expires_at)
        assert session not in now.sessions
        members = [node.host for node in now.members()]
        request = NodeBarrierRequest(now.version, drain=True)
        asked = await self._parts.barriers.ask(members, request, self._remaining_ms(expires_at))
        if asked.lacking:
            raise _not_drained(session, now.version, asked)
        return CloseSessionAnswer(asked.down)

    # ---- the leader's part

    async def enforce(self) -> None:
        """Until cancelled: while this node leads, it ends what is overdue. A node that leads no longer and does not
        know it yet commits nothing without a quorum, and what it would commit is right whoever does."""
        watched: dict[SessionId, int] = {}
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            group0, snapshot = self._parts.group0, self._parts.topology.snapshot
            times = SessionTimes(self._now_ms(), self._parts.clock.boot_ms(), self._life_ms_max)
            watched = refresh_watched(watched, snapshot, times.boot_ms)
            over = sessions_to_end(snapshot, watched, times)
            if over and group0.is_running and group0.running.raft.is_leader:
                await self._end(over)

    async def _end(self, over: tuple[SessionId, ...]) -> None:
        """One attempt; the next look makes another. Nobody waits for guards here: whoever has an interest in the end
        of a session asks for its close, and that waits."""
        names = ", ".join(str(session) for session in over)
        try:
            done = await self._try(CloseSessions(over), self._parts.topology.snapshot, COMMIT_MS)
        except EblaError as error:
            self._tell("session.not_ended", {"sessions": names, "cause": error.message})
            return
        if done is not None:
            self._told = ""
            self._parts.report("session.overdue", {"sessions": names, "version": done.version})

    def _tell(self, event: str, fields: dict[str, object]) -> None:
        if str(fields) != self._told:  # once, not twice a second
            self._told = str(fields)
            self._parts.report(event, fields)

    # ---- both

    async def _settle(self, decide: Decide, expires_at: float) -> Snapshot:
        """The topology in which it is so."""
        unanswered: EblaError | None = None
        while self._remaining_ms(expires_at) > 0:
            try:
                snapshot = await self._look(self._remaining_ms(expires_at))
                command = decide(snapshot)
                if command is None:
                    return snapshot
                attempt_ms = max(1, int(self._remaining_ms(expires_at) * ATTEMPT_SHARE))
                done = await self._try(command, snapshot, attempt_ms)
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED and unanswered is None:
                    raise
                if error.outcome is Outcome.NOT_APPLIED:
                    raise _nobody_knows(error) from unanswered
                unanswered = error
                continue
            if done is not None:
                return done
            await asyncio.sleep(self._parts.rng.random() * AGAIN_MS_MAX / 1000)
        raise _out_of_time() if unanswered is None else _nobody_knows(unanswered)

    async def _try(self, command: SessionCommand, snapshot: Snapshot, within_ms: int) -> Snapshot | None:
        """None where something else was committed first. Raises what tells its outcome."""
        applied = apply_command(snapshot, command)
        if isinstance(applied, CommandRefused):
            raise Refused(applied.reason)
        answer = await self._parts.group0.running.calls.transact(applied.transaction, within_ms)
        match answer:
            case Done():
                return applied.snapshot
            case ConditionFailed():
                return None
            case Forgotten() | LockRevoked() | Rejected():
                raise error_of(answer)
            case _:
                assert_never(answer)

    async def _look(self, within_ms: int) -> Snapshot:
        await self._parts.group0.running.calls.read_barrier(within_ms)
        return self._parts.topology.snapshot

    def _remaining_ms(self, expires_at: float) -> int:
        return max(0, int((expires_at - self._loop.time()) * 1000))

    def _now_ms(self) -> int:
        return self._parts.clock.wall_us() // 1000


def _nobody_knows(cause: EblaError) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"it is not known whether the session was or will be changed: {cause.message}",
        advice="ask again for the same session",
    )


def _out_of_time() -> Refused:
    return Refused("other changes of the topology came first, again and again, and time ran out", advice="try again")


def _not_drained(session: SessionId, version: TopologyVersion, asked: BarrierOutcome) -> DeadlineExceeded:
    hosts = "; ".join(f"host {host}: {cause}" for host, cause in asked.lacking)
    return DeadlineExceeded(
        f"session {session} is closed to new effects (version {version}), but not every node has confirmed in time "
        f"that the old ones are over: {hosts}",
        advice="close it again to go on waiting",
    )


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
