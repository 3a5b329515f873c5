"""The server side of connections: greeting, dispatch by verb, deadlines, cancellation, limits.

A verb is served in one of four ways. A plain function answers in the same step. A coroutine function runs as a task
that ends with its deadline (INV-WIRE-5), its cancellation, or its connection. A coroutine function served eagerly runs
to its first wait in the same step, and only the rest becomes such a task. A function that returns a future needs no
task at all; the future is cancelled when the task would be.

A bad peer can harm its own connection only. An unknown verb or an unreadable request is answered with a
failure. Bytes that are no frame close the connection, with the cause in the event log.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.aio.deadline_timer import DeadlineTimer
from ebla.aio.eager import Suspended, needs_task, run_eagerly
from ebla.aio.eager_future import EagerFuture
from ebla.model.errors import EblaError, InternalError, InvalidRequest, Overloaded
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter, RateLimitedReporter
from ebla.ports.transport import Link
from ebla.wire.errors import failure_frame
from ebla.wire.frames import (
    OPERATOR_PROCESS,
    PROTOCOL_NEWEST,
    PROTOCOL_OLDEST,
    AnswerFrame,
    CancelFrame,
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
from ebla.wire.limits import DEFAULT_WIRE_LIMITS, WireLimits
from ebla.wire.verbs import A, Notice, Q, Verb

_MISSING_IDS_MAX = 4096
ANSWER_RESERVE_MS_MAX = 100
T = TypeVar("T")


class IncomingCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a served function gets besides the request. A struct, because one is made per request."""

    peer: Introduction
    lane: Lane
    expires_at: float
    """By the loop's clock; infinite for a notice."""
    loop: asyncio.AbstractEventLoop

    def remaining_ms(self) -> int:
        """The time left for calls made on behalf of this one; a day at most."""
        return max(0, math.floor(min(self.expires_at - self.loop.time(), 86_400.0) * 1000))

    def work_ms(self) -> int:
        """The time for the work itself. The answer must reach the caller before the caller's own deadline; otherwise it
        would not learn an outcome that is known here."""
        remaining_ms = self.remaining_ms()
        return remaining_ms - min(ANSWER_RESERVE_MS_MAX, remaining_ms // 5)


Serve = Callable[[Q, IncomingCall], A] | Callable[[Q, IncomingCall], Coroutine[Any, Any, A]]
ServeNotice = Callable[[Q, IncomingCall], None] | Callable[[Q, IncomingCall], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A verb or notice, and how it is served."""

    name: str
    lane: Lane
    decoder: msgspec.msgpack.Decoder[Any]
    begin: Callable[[Any, IncomingCall], Any]
    """Returns the answer, the rest of a coroutine that has to wait, or a future."""
    finish: Callable[[Any], Any] | None
    """Turns the result of a future into the answer."""
    is_bounded: bool
    """Refused while too many requests of the connection run. Otherwise `begin` bounds how many wait."""


_Running = tuple["asyncio.Future[Any] | EagerFuture[Any]", float]
"""A request in flight: its task or future, and its deadline."""


class Server:
    """Give `accept` to a transport's `listen`. Requests run as tasks of the group given here."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        introduction: Introduction,
        report: EventReporter,
        limits: WireLimits = DEFAULT_WIRE_LIMITS,
    ) -> None:
        self.tasks = tasks
        self.introduction = introduction
        self.limits = limits
        self.report: EventReporter = RateLimitedReporter(report)
        self.loop = asyncio.get_running_loop()
        self.verbs: dict[int, _Served] = {}
        self.notices: dict[int, _Served] = {}
        self._links: dict[int, RpcServerConnection] = {}
        self._links_accepted = 0
        self._unintroduced = 0
        self.on_introduced: Callable[[HostId, Lane], None] = _ignore_peer
        """Called with the host and lane of every peer that has greeted."""
        self.excluded: frozenset[HostId] = frozenset()
        """Hosts whose connections are refused."""
        self.left: frozenset[HostId] = frozenset()
        """The same for hosts that have left the cluster: they learn it from the refusal. Their operators may call."""
        self.awaited = 0
        """Futures of requests in flight. While there are none, an answer is sent at once, one loop step earlier. Among
        many requests it waits for the end of the step: an early answer would wake its caller for the next request
        before the others have theirs, and requests that arrive together cost less work."""

    def serve(self, verb: Verb[Q, A], work: Serve[Q, A]) -> None:
        self._serve_plainly(verb, work)

    def serve_eagerly(self, verb: Verb[Q, A], work: Callable[[Q, IncomingCall], Coroutine[Any, Any, A]]) -> None:
        """For verbs that mostly need not wait. `work` bounds how many requests wait, before it has any effect."""
        self._serve(verb, lambda request, call: run_eagerly(work(request, call)))

    def serve_future(
        self, verb: Verb[Q, A], begin: Callable[[Q, IncomingCall], EagerFuture[T]], finish: Callable[[T], A]
    ) -> None:
        """`begin` returns a future at once, `finish` turns its result into the answer. For verbs that are called so
        often that a task per request would cost as much as the work."""
        self._serve(verb, begin, finish=finish, is_bounded=True)

    def serve_notice(self, notice: Notice[Q], work: ServeNotice[Q]) -> None:
        self._serve_plainly(notice, work)

    def _serve_plainly(self, what: Verb[Any, Any] | Notice[Any], work: Callable[..., Any]) -> None:
        is_task = inspect.iscoroutinefunction(work)
        self._serve(what, partial(_begin_task, work) if is_task else work, is_bounded=is_task)

    def _serve(
        self,
        what: Verb[Any, Any] | Notice[Any],
        begin: Callable[[Any, IncomingCall], Any],
        *,
        finish: Callable[[Any], Any] | None = None,
        is_bounded: bool = False,
    ) -> None:
        table, request = (self.notices, what.message) if isinstance(what, Notice) else (self.verbs, what.request)
        assert what.number not in table, f"{what.name} is served already"
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(request)
        table[what.number] = _Served(
            name=what.name, lane=what.lane, decoder=decoder, begin=begin, finish=finish, is_bounded=is_bounded
        )

    def accept(self, link: Link) -> "RpcServerConnection":
        self._links_accepted += 1
        served = RpcServerConnection(self, link, self._links_accepted)
        self._links[served.serial] = served
        self._unintroduced += 1
        if len(self._links) > self.limits.served_links_max:
            served.refuse(RefusalReason.BUSY, f"{self.limits.served_links_max} connections are open already")
        elif self._unintroduced > self.limits.unintroduced_links_max:
            served.refuse(RefusalReason.BUSY, f"{self.limits.unintroduced_links_max} connections have not greeted yet")
        return served

    def close(self, cause: str) -> None:
        for served in list(self._links.values()):
            served.close(cause)

    def exclude(self, hosts: frozenset[HostId], left: frozenset[HostId] = frozenset()) -> None:
        """Refuses connections of exactly these hosts from now on, and closes those that they have."""
        if (hosts, left) != (self.excluded, self.left):
            self.excluded, self.left = hosts, left
            for served in list(self._links.values()):
                if served.peer is not None and served.peer.host in left:
                    served.close("left")
                elif served.peer is not None and served.peer.host in hosts:
                    served.close("excluded")

    @property
    def links_open(self) -> int:
        return len(self._links)

    def introduced(self) -> None:
        self._unintroduced -= 1

    def forget(self, served: "RpcServerConnection") -> None:
        del self._links[served.serial]
        if served.peer is None:
            self._unintroduced -= 1


def _ignore_peer(_host: HostId, _lane: Lane) -> None:
    pass


def _begin_task(work: Callable[[Q, IncomingCall], Coroutine[Any, Any, A]], request: Q, call: IncomingCall) -> Any:
    """The rest of a coroutine that calls `work` in its task: one that was called before would be left unawaited by a
    cancelled task."""

    async def in_task() -> A:
        await needs_task()
        return await work(request, call)

    return run_eagerly(in_task())


class RpcServerConnection:
    """One connection that a peer opened."""

    def __init__(self, server: Server, link: Link, serial: int) -> None:
        self.serial = serial
        self.link = link
        self.peer: Introduction | None = None
        self._server = server
        self._lane = Lane.CONTROL
        self._frame_bytes_max = server.limits.frame_bytes_max
        self._next_id = 1
        self._missing_ids: dict[int, None] = {}
        self._running: dict[int, _Running] = {}
        self._notices_running = 0
        self._closing = False
        self._deadlines = DeadlineTimer(server.loop, server.limits.deadline_slack_ms, self._expire)
        self._hello_timer: asyncio.TimerHandle | None = server.loop.call_later(
            server.limits.hello_ms / 1000, self._hello_missing
        )

    # ---- the life of the connection

    def link_closed(self, cause: str) -> None:
        if self.peer is None and not self._closing:
            self._report_ended(f"it ended before it greeted: {cause}")
        self._closing = True
        self._deadlines.close()
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
        # The caller has learned that the outcome is unknown and no longer waits for what still runs.
        for request_id in list(self._running):
            self._stop_running(request_id, cause)
        self._server.forget(self)

    def frame_received(self, frame: bytes) -> None:
        if self._closing:
            return
        try:
            message = decode(frame)
        except InvalidRequest as error:
            self._end(error.message)
            return
        if type(message) is RequestFrame and self.peer is not None:
            self._request(message, self.peer)
        elif type(message) is NoticeFrame and self.peer is not None:
            self._one_way(message, self.peer)
        elif type(message) is CancelFrame:
            self._stop_running(message.id, "cancelled by the caller")
        elif type(message) is HelloFrame:
            self._hello(message)
        else:
            self._end(f"a {type(message).__name__} is not expected here")

    def close(self, cause: str) -> None:
        self._closing = True
        self.link.close(cause)

    def refuse(self, reason: RefusalReason, message: str) -> None:
        self.link.send(encode(RefusalFrame(reason, message)))
        self._end(message)

    def _end(self, cause: str) -> None:
        self._closing = True
        self._report_ended(cause)
        self.link.close(cause)

    def _report_ended(self, cause: str) -> None:
        host = self.link.peer_host if self.peer is None else self.peer.host
        details = {"peer": str(self.link.peer_address), "host": None if host is None else str(host), "cause": cause}
        self._server.report("wire.link_ended", details)

    def _hello_missing(self) -> None:
        self._hello_timer = None
        self._end(f"no greeting within {self._server.limits.hello_ms} ms")

    def _hello(self, hello: HelloFrame) -> None:
        if self.peer is not None:
            return  # the network repeated it
        refusal = self._objection(hello)
        if refusal is not None:
            self.refuse(*refusal)
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
        self.peer = hello.introduction
        self._lane = hello.lane
        self._frame_bytes_max = min(hello.frame_bytes_max, self._server.limits.frame_bytes_max)
        self._server.introduced()
        version = min(hello.newest, PROTOCOL_NEWEST)
        self.link.send(encode(WelcomeFrame(version, self._server.limits.frame_bytes_max, self._server.introduction)))
        self._server.on_introduced(self.peer.host, self._lane)

    def _objection(self, hello: HelloFrame) -> tuple[RefusalReason, str] | None:
        ours, theirs = self._server.introduction, hello.introduction
        if hello.newest < PROTOCOL_OLDEST or hello.oldest > PROTOCOL_NEWEST:
            return RefusalReason.VERSION, (
                f"protocol versions {hello.oldest} to {hello.newest} are offered, "
                f"{PROTOCOL_OLDEST} to {PROTOCOL_NEWEST} are spoken here"
            )
        if theirs.cluster_name != ours.cluster_name:
            return RefusalReason.CLUSTER, (
                f"this is cluster {ours.cluster_name!r}, the peer belongs to {theirs.cluster_name!r}"
            )
        if ours.cluster is not None and theirs.cluster not in (None, ours.cluster):
            return RefusalReason.CLUSTER, f"this is cluster {ours.cluster}, the peer belongs to {theirs.cluster}"
        if self.link.peer_host is not None and self.link.peer_host != theirs.host:
            return RefusalReason.HOST, (
                f"the certificate is for host {self.link.peer_host}, the greeting says {theirs.host}"
            )
        if hello.expected_host is not None and hello.expected_host != ours.host:
            return RefusalReason.HOST, f"this is host {ours.host}, the peer looks for {hello.expected_host}"
        if theirs.host in self._server.left and theirs.process != OPERATOR_PROCESS:
            return RefusalReason.LEFT, f"host {theirs.host} has left the cluster and can never come back"
        if theirs.host in self._server.excluded:
            return RefusalReason.EXCLUDED, f"excluded: host {theirs.host} is excluded from the cluster"
        return None

    # ---- requests

    def _request(self, message: RequestFrame, peer: Introduction) -> None:
        if not self._is_first_sight(message.id):
            return
        served = self._server.verbs.get(message.verb)
        if served is None or served.lane is not self._lane:
            self._fail(message.id, _unserved(message.verb, served, self._lane))
            return
        if message.remaining_ms <= 0:
            return  # the caller no longer waits
        try:
            request = served.decoder.decode(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._fail(message.id, InvalidRequest(f"a request of {served.name} is unreadable: {error}"))
            return
        loop = self._server.loop
        call = IncomingCall(peer=peer, lane=self._lane, expires_at=loop.time() + message.remaining_ms / 1000, loop=loop)
        if served.is_bounded and len(self._running) >= self._server.limits.running_requests_max:
            self._fail(message.id, Overloaded(f"{len(self._running)} requests of this connection are in flight"))
            return
        try:
            answer = served.begin(request, call)
        except Exception as error:  # every error of a verb goes to its caller
            self._fail(message.id, self._as_ebla_error(served.name, error))
            return
        if type(answer) is Suspended:
            # Begun here, because the task may be cancelled before its first step. Then a coroutine that has not begun
            # would drop `answer`, which has, without an end to what it holds.
            running = run_eagerly(self._run(message.id, served.name, answer))
            assert type(running) is Suspended
            task = self._start(running)
            if task is not None:
                self._note_running(message.id, task, call.expires_at)
        elif served.finish is not None:
            self._note_running(message.id, answer, call.expires_at)
            self._server.awaited += 1
            answer.add_done_callback(partial(self._finish_future, message.id, served.name, served.finish))
        else:
            self._answer(message.id, served.name, answer)

    def _note_running(
        self, request_id: int, running: "asyncio.Future[Any] | EagerFuture[Any]", expires_at: float
    ) -> None:
        self._running[request_id] = (running, expires_at)
        if expires_at < self._deadlines.armed_at:
            self._deadlines.note(expires_at)

    def _finish_future(
        self, request_id: int, name: str, finish: Callable[[Any], Any], outcome: EagerFuture[Any]
    ) -> None:
        self._running.pop(request_id, None)
        self._server.awaited -= 1
        if outcome.cancelled():
            return
        error = outcome.exception()
        if self._closing:
            return
        if error is None:
            self._answer(request_id, name, finish(outcome.result()))
        else:
            assert isinstance(error, Exception), "a future never holds what ends a process"
            self._fail(request_id, self._as_ebla_error(name, error))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        try:
            return self._server.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            self._end("this process is stopping")
            return None

    async def _run(self, request_id: int, name: str, rest: Suspended[Any]) -> None:
        try:
            answer = await rest
        except Exception as error:  # every error of a verb goes to its caller
            if not self._closing:
                self._fail(request_id, self._as_ebla_error(name, error))
            return
        finally:
            self._running.pop(request_id, None)
        if not self._closing:
            self._answer(request_id, name, answer)

    def _one_way(self, message: NoticeFrame, peer: Introduction) -> None:
        served = self._server.notices.get(message.notice)
        if served is None or served.lane is not self._lane:
            self._server.report("wire.notice_refused", {"notice": message.notice, "host": str(peer.host)})
            return
        try:
            notice = served.decoder.decode(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._end(f"a notice {served.name} is unreadable: {error}")
            return
        call = IncomingCall(peer=peer, lane=self._lane, expires_at=math.inf, loop=self._server.loop)
        if served.is_bounded and self._notices_running >= self._server.limits.running_requests_max:
            self._server.report("wire.notice_dropped", {"notice": served.name, "host": str(peer.host)})
            return
        try:
            rest = served.begin(notice, call)
        except Exception as error:  # a notice has no caller, and the connection must stay open
            self._as_ebla_error(served.name, error)
            return
        if type(rest) is Suspended:
            self._start(self._run_notice(served.name, rest))

    async def _run_notice(self, name: str, rest: Suspended[Any]) -> None:
        self._notices_running += 1
        try:
            await rest
        except Exception as error:  # a notice has no caller, and the connection must stay open
            self._as_ebla_error(name, error)
        finally:
            self._notices_running -= 1

    def _is_first_sight(self, request_id: int) -> bool:
        """Ids count up by one, so an id below the next one has been seen, unless it was overtaken and is still missing.
        That memory is bounded. An id that is missing while thousands of others arrive counts as seen: that costs its
        caller a deadline, while running a request twice could cost data."""
        if request_id == self._next_id:
            self._next_id += 1
            return True
        if request_id < self._next_id:
            if request_id not in self._missing_ids:
                return False
            del self._missing_ids[request_id]
            return True
        if request_id - self._next_id > _MISSING_IDS_MAX:
            self._end(f"request {request_id} came where {self._next_id} was next")
            return False
        for overtaken in range(self._next_id, request_id):
            self._missing_ids[overtaken] = None
        while len(self._missing_ids) > _MISSING_IDS_MAX:
            del self._missing_ids[next(iter(self._missing_ids))]
        self._next_id = request_id + 1
        return True

    def _stop_running(self, request_id: int, cause: str) -> None:
        """Removes it at once: its slot is free even if its task takes a while to end."""
        running = self._running.pop(request_id, None)
        if running is not None:
            running[0].cancel(cause)

    def _expire(self, now: float) -> float:
        earliest = math.inf
        for request_id, (_, expires_at) in list(self._running.items()):
            if expires_at <= now:
                self._stop_running(request_id, "its deadline has passed")
            elif expires_at < earliest:
                earliest = expires_at
        return earliest

    # ---- answers

    def _answer(self, request_id: int, name: str, answer: Any) -> None:
        try:
            frame = encode(AnswerFrame(request_id, with_body(answer)))
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            self._fail(request_id, self._as_ebla_error(name, error))
            return
        if len(frame) > self._frame_bytes_max:
            # Not `TooLarge`, which would say that nothing was done.
            cause = f"the answer of {name} has {len(frame)} bytes, over the limit of {self._frame_bytes_max}"
            self._fail(request_id, InternalError(cause, advice="ask for less at once"))
            return
        self._send(frame)

    def _fail(self, request_id: int, error: EblaError) -> None:
        self._send(encode(failure_frame(request_id, error)))

    def _send(self, frame: bytes) -> None:
        link = self.link
        if link.queued_bytes > self._server.limits.answer_queue_bytes_max:
            self._end(f"the peer leaves {link.queued_bytes} bytes of answers unread")
            return
        if self._server.awaited:
            link.send(frame)
        else:
            link.send_now(frame)

    def _as_ebla_error(self, name: str, error: Exception) -> EblaError:
        if isinstance(error, EblaError):
            return error
        peer = None if self.peer is None else str(self.peer.host)
        self._server.report("wire.verb_broke", {"verb": name, "host": peer, "error": repr(error)})
        return InternalError(f"{name} broke: {error!r}")


def _unserved(number: int, served: _Served | None, lane: Lane) -> EblaError:
    if served is None:
        return InvalidRequest(f"verb {number} is not known here", advice="the peer may run an older version")
    return InvalidRequest(f"{served.name} belongs to the {served.lane.name} lane, not to {lane.name}")
