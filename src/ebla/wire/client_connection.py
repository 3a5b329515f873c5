"""The client side of one connection: greeting, requests in flight, their deadlines, back-pressure.

Requests go one way only, from the side that connected; the other direction has a connection of its own. A request is
answered at most once: its id leaves the table with the first answer, the deadline or the cancellation, and a frame for
an id that is not in the table is dropped. So frames may be lost, repeated or overtake one another, as they do in the
simulator. The worst that follows is a deadline.

What a caller may rely on: its request runs at most once (INV-WIRE-1), an error that says "not applied" stays true
(INV-WIRE-2), an answer belongs to its request (INV-WIRE-3), and the call ends by its deadline (INV-WIRE-4).
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ebla.aio.deadline_timer import DeadlineTimer
from ebla.aio.eager import needs_task
from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    EblaError,
    HostLeft,
    InternalError,
    Overloaded,
    TooLarge,
    Unreachable,
)
from ebla.model.identity import HostId
from ebla.ports.transport import Link
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import (
    PROTOCOL_NEWEST,
    PROTOCOL_OLDEST,
    AnswerFrame,
    CancelFrame,
    FailureFrame,
    HelloFrame,
    Introduction,
    Lane,
    NoticeFrame,
    RefusalFrame,
    RefusalReason,
    RequestFrame,
    WelcomeFrame,
    decode,
    encode,
    with_body,
)
from ebla.wire.limits import WireLimits
from ebla.wire.verbs import A, Notice, Q, Verb


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """What a connection is for. `expected_host` is None only if the host is not known yet."""

    lane: Lane
    expected_host: HostId | None = None


_Outcome = asyncio.Future[msgspec.Raw | EblaError]
"""Holds the answer's body or the error. It never raises, so an abandoned one logs no warning."""

_Pending = tuple[_Outcome, float, int]
"""A request in flight: its outcome, deadline and bytes. A plain tuple, because there is one per request."""


class RpcClientConnection:
    """Pass `open` to a transport's `connect`, then `wait_ready`, then `call` and `send`."""

    def __init__(self, introduction: Introduction, target: ConnectionTarget, limits: WireLimits) -> None:
        self._introduction = introduction
        self._target = target
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._frame_bytes_max = limits.frame_bytes_max
        self._next_id = 1
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._has_cancelled = False
        self._silent_deadlines = 0
        self._silent_since = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answer_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {}
        self._deadlines = DeadlineTimer(self._loop, limits.deadline_slack_ms, self._expire)
        self._greeted = asyncio.Event()
        self._closed = asyncio.Event()
        self.welcome: WelcomeFrame | None = None
        self.closed_cause: str | None = None
        self.has_left = False
        """Whether the peer says that this host has left the cluster."""

    # ---- opening and closing

    def open(self, link: Link) -> "RpcClientConnection":
        assert self._link is None
        self._link = link
        expected = self._target.expected_host
        if expected is not None and link.peer_host is not None and link.peer_host != expected:
            link.close(f"the certificate belongs to host {link.peer_host}, expected was {expected}")
            return self
        hello = HelloFrame(
            oldest=PROTOCOL_OLDEST,
            newest=PROTOCOL_NEWEST,
            lane=self._target.lane,
            frame_bytes_max=self._limits.frame_bytes_max,
            introduction=self._introduction,
            expected_host=expected,
        )
        link.send(encode(hello))
        return self

    async def wait_ready(self) -> WelcomeFrame:
        """Returns once the peer has accepted the greeting. The caller sets the timeout."""
        await self._greeted.wait()
        if self.has_left:
            raise HostLeft(f"{self._peer_name()}: {self.closed_cause}")
        if self.welcome is None or self.closed_cause is not None:
            raise Unreachable(f"{self._peer_name()}: {self.closed_cause}")
        return self.welcome

    async def wait_closed(self) -> str:
        """Returns the cause once the connection has ended."""
        await self._closed.wait()
        assert self.closed_cause is not None
        return self.closed_cause

    def close(self, cause: str) -> None:
        if self._link is not None:
            self._link.close(cause)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def link_closed(self, cause: str) -> None:
        self.closed_cause = self.closed_cause or cause
        self._deadlines.close()
        pending, self._pending = self._pending, {}
        self._pending_bytes = 0
        for outcome, _, _ in pending.values():
            if not outcome.done():
                outcome.set_result(ConnectionLost(f"{self._peer_name()}: {self.closed_cause}"))
        while self._waiting:
            self._waiting.popleft().set_result(None)
        self._greeted.set()
        self._closed.set()

    def frame_received(self, frame: bytes) -> None:
        self._silent_deadlines = 0
        try:
            message = decode(frame)
        except EblaError as error:
            self._fail(error.message)
            return
        if type(message) is AnswerFrame:
            self._settle(message.id, message.body)
        elif type(message) is FailureFrame:
            self._settle(message.id, error_from_frame(message))
        elif type(message) is WelcomeFrame:
            self._welcomed(message)
        elif type(message) is RefusalFrame:
            self.has_left = message.reason == RefusalReason.LEFT
            self._fail(f"refused by the peer: {message.message}")
        else:
            self._fail(f"a {type(message).__name__} is not for the side that connected")

    def _fail(self, cause: str) -> None:
        assert self._link is not None
        self.closed_cause = self.closed_cause or cause
        self._link.close(cause)

    def _welcomed(self, welcome: WelcomeFrame) -> None:
        if self.welcome is not None:
            return
        host, ours = welcome.introduction.host, self._introduction
        expected = self._target.expected_host
        assert self._link is not None
        if expected is not None and host != expected:
            self._fail(f"it is host {host}, expected was {expected}")
        elif self._link.peer_host is not None and self._link.peer_host != host:
            self._fail(f"it says to be host {host}, its certificate is for {self._link.peer_host}")
        elif not PROTOCOL_OLDEST <= welcome.version <= PROTOCOL_NEWEST:
            self._fail(f"it chose protocol version {welcome.version}, which was not offered")
        elif ours.cluster is not None and welcome.introduction.cluster not in (None, ours.cluster):
            self._fail(f"it belongs to cluster {welcome.introduction.cluster}")
        else:
            self._frame_bytes_max = min(self._frame_bytes_max, welcome.frame_bytes_max)
            self.welcome = welcome
            self._greeted.set()

    def _peer_name(self) -> str:
        where = "" if self._link is None else f" at {self._link.peer_address}"
        host = self._target.expected_host
        return f"peer{where}" if host is None else f"host {host}{where}"

    # ---- requests

    async def call(
        self, verb: Verb[Q, A], request: Q, deadline_ms: int, before_send: Callable[[], None] | None = None
    ) -> A:
        """Sends the request and waits for the answer. Raises what the peer raised, with the same class and outcome;
        `Overloaded` if there was no room in time, `Unreachable` if nothing was sent, `ConnectionLost` and
        `DeadlineExceeded` if the outcome is unknown. Cancelling the caller's task cancels the work at the peer."""
        expires_at = self._loop.time() + deadline_ms / 1000
        if self._waiting or not self._has_room():
            deadline_ms = await self._wait_for_room(verb, expires_at)
        try:
            if deadline_ms <= 0:
                raise DeadlineExceeded(f"{verb.name} to {self._peer_name()}: the time was over before it was sent")
            link = self._link
            if self.closed_cause is not None or link is None:
                raise Unreachable(f"{self._peer_name()}: {self.closed_cause}")
            request_id = self._next_id
            frame = encode(
                RequestFrame(id=request_id, verb=verb.number, remaining_ms=deadline_ms, body=with_body(request))
            )
            size = len(frame)
            if size > self._frame_bytes_max:
                raise _too_large(verb.name, size, self._frame_bytes_max)
            if before_send is not None:  # after every wait: from here on nothing comes between it and the frame
                before_send()
        except BaseException:
            if self._waiting:
                self._admit_waiting()  # it does not use its turn: else those behind it would wait out their time
            raise
        self._next_id = request_id + 1
        outcome: _Outcome = self._loop.create_future()
        self._pending[request_id] = (outcome, expires_at, size)
        self._pending_bytes += size
        link.send(frame)
        if expires_at < self._deadlines.armed_at:
            self._deadlines.note(expires_at)
        if self._waiting:
            self._admit_waiting()
        try:
            result = await outcome
        except asyncio.CancelledError:
            self._cancel(request_id)
            raise
        if isinstance(result, EblaError):
            raise result
        return self._decode_answer(verb, result)

    def send(self, notice: Notice[Q], message: Q) -> bool:
        """Sends a notice at once. False: it was dropped, because the connection is not ready or its queue is full."""
        link = self._link
        if self.welcome is None or link is None or self.closed_cause is not None:
            return False
        if link.queued_bytes > self._limits.notice_queue_bytes_max:
            return False
        frame = encode(NoticeFrame(notice.number, with_body(message)))
        if len(frame) > self._frame_bytes_max:
            raise _too_large(notice.name, len(frame), self._frame_bytes_max)
        link.send_now(frame)
        return True

    def _decode_answer(self, verb: Verb[Q, A], body: msgspec.Raw) -> A:
        decoder = self._answer_decoders.get(verb.number)
        if decoder is None:
            decoder = self._answer_decoders[verb.number] = msgspec.msgpack.Decoder(verb.answer)
        try:
            answer: A = decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InternalError(f"the answer of {verb.name} from {self._peer_name()} is unreadable: {error}") from None
        return answer

    def _settle(self, request_id: int, result: msgspec.Raw | EblaError) -> None:
        entry = self._pending.pop(request_id, None)
        if entry is not None:
            outcome, _, size = entry
            self._pending_bytes -= size
            if not outcome.done():
                outcome.set_result(result)
        if self._waiting:
            self._admit_waiting()

    def _cancel(self, request_id: int) -> None:
        entry = self._pending.pop(request_id, None)
        if entry is not None and self._link is not None:
            self._pending_bytes -= entry[2]
            self._has_cancelled = True
            self._link.send(encode(CancelFrame(request_id)))
            self._admit_waiting()

    def _expire(self, now: float) -> float:
        earliest = math.inf
        passed = []
        for request_id, (_, expires_at, _) in self._pending.items():
            if expires_at <= now:
                passed.append(request_id)
            elif expires_at < earliest:
                earliest = expires_at
        for request_id in passed:
            outcome = self._pending[request_id][0]
            self._cancel(request_id)
            if not outcome.done():
                outcome.set_result(DeadlineExceeded(f"{self._peer_name()} did not answer in time"))
        if passed:
            self._note_silence(now, len(passed))
        return earliest

    def _note_silence(self, now: float, deadlines: int) -> None:
        """Counts deadlines that passed without a frame from the peer. One connection may be dead while the network
        works (a middlebox forgot it, say), and TCP reports that only after tens of seconds: closing it lets a new one
        be tried. The time is checked as well as the number: a process that was stopped and continues finds all its
        deadlines passed at once, with the answers not read yet."""
        if self._silent_deadlines == 0:
            self._silent_since = now
        self._silent_deadlines += deadlines
        silent_ms = (now - self._silent_since) * 1000
        if self._silent_deadlines >= self._limits.silent_deadlines_max and silent_ms >= self._limits.silent_ms_max:
            count = self._silent_deadlines
            self._fail(f"nothing came for {silent_ms:.0f} ms and {count} requests were left unanswered")

    # ---- back-pressure

    def _has_room(self) -> bool:
        limits = self._limits
        if self.closed_cause is not None:
            return True  # nothing to wait for: the call fails at once
        if len(self._pending) >= limits.in_flight_requests_max or self._pending_bytes >= limits.in_flight_bytes_max:
            return False
        return not self._has_cancelled or self._is_queue_short()

    def _is_queue_short(self) -> bool:
        """Bytes of requests that ended early may still be in the link's queue, and a peer that does not read must not
        make us fill it with new requests. If none ended early, the requests in flight count every queued byte."""
        queued = 0 if self._link is None else self._link.queued_bytes
        self._has_cancelled = queued > 0
        return queued < self._limits.in_flight_bytes_max

    async def _wait_for_room(self, verb: Verb[Q, A], expires_at: float) -> int:
        """Waits its turn and returns what is left of the deadline, in milliseconds."""
        limits = self._limits
        await needs_task()
        if len(self._waiting) >= limits.waiting_requests_max:
            raise Overloaded(f"{verb.name} to {self._peer_name()}: {len(self._waiting)} requests already wait")
        try:
            async with asyncio.timeout_at(min(expires_at, self._loop.time() + limits.admission_wait_ms / 1000)):
                await self._wait_turn()
        except TimeoutError:
            raise Overloaded(
                f"{verb.name} to {self._peer_name()}: no room among {limits.in_flight_requests_max} requests and "
                f"{limits.in_flight_bytes_max} bytes in flight"
            ) from None
        return math.ceil((expires_at - self._loop.time()) * 1000)

    async def _wait_turn(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        self._admit_waiting()
        while True:
            try:
                await turn
            except asyncio.CancelledError:
                # The turn may have come in the same loop step as the cancellation: it goes to the next in line.
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self._admit_waiting()
                raise
            if self._has_room():
                return
            # Between being woken and running here, a call that saw an empty line took the room: go first in line again.
            turn = self._loop.create_future()
            self._waiting.appendleft(turn)

    def _admit_waiting(self) -> None:
        """Wakes the first in line if there is room; once it has sent, it wakes the next."""
        if self._waiting and self._has_room():
            self._waiting.popleft().set_result(None)


def _too_large(name: str, size: int, limit: int) -> TooLarge:
    return TooLarge(f"{name}: a frame of {size} bytes is over the limit of {limit}", advice="send less at once")
