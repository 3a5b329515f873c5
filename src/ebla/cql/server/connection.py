"""One connection of a client: what it sends is taken apart and carried out, what comes of it is sent back.

It knows no socket: bytes come in by `received`, frames leave through an `ClientTransport`. Requests run side by side
and are
answered in the order in which they end. Nothing a client sends is kept without a bound: a connection with too much
under way, or whose answers are not taken, is not read from until that is better, and one that never takes its answers
is closed.
"""

import asyncio
import struct
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from ebla.cql.authentication import ANONYMOUS, ClientAuthentication
from ebla.cql.server.clients import ClientEndpoint, ConnectedClient, ConnectionStage
from ebla.cql.server.events import EventPublisher
from ebla.cql.server.supported import TABLET_ROUTING
from ebla.model.consistency import ConsistencyLevel
from ebla.model.error_groups import leaf_errors
from ebla.model.errors import BadProtocol, EblaError, InternalError, Overloaded
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.wire.cql import notation, requests, responses
from ebla.wire.cql.compression import COMPRESSED_BYTES_MIN, Compression, find_compression
from ebla.wire.cql.frames import (
    EVENT_STREAM,
    HEADER,
    RESPONSE,
    VERSION,
    BatchKind,
    CqlFrame,
    FrameFlag,
    FrameSplitter,
    MalformedFrame,
    Opcode,
)
from ebla.wire.cql.messages import (
    BatchItem,
    ClientState,
    CqlResponse,
    PendingResponse,
    PreparedResult,
    QueryParameters,
    Rows,
    Void,
)
from ebla.wire.cql.notation import BodyReader
from ebla.wire.cql.responses import EventKind, WriteType

_VOID_FRAME = struct.Struct(">BBhBii")
_VOID_RESULT = 1
_COMPRESSED, _PAYLOAD, _WARNING = int(FrameFlag.COMPRESSED), int(FrameFlag.CUSTOM_PAYLOAD), int(FrameFlag.WARNING)
_EXECUTE, _RESULT = int(Opcode.EXECUTE), int(Opcode.RESULT)
_FIRST_WITH_WARNINGS = 4
_DEFAULT_LEVEL = ConsistencyLevel.ONE
_BATCH_TYPES = {BatchKind.LOGGED: WriteType.BATCH, BatchKind.UNLOGGED: WriteType.UNLOGGED_BATCH}


StartedRequest = CqlResponse | PendingResponse | Coroutine[Any, Any, CqlResponse]
"""What becomes of a request in its first step: answered, on its way, or to be carried out as a task."""


class StatementExecutor(Protocol):
    """Who carries statements out."""

    def begin_query(self, session: ClientState, text: str, parameters: QueryParameters) -> StartedRequest: ...

    def begin_execute(
        self, session: ClientState, statement_id: bytes, parameters: QueryParameters
    ) -> StartedRequest: ...

    async def prepare(self, session: ClientState, text: str) -> PreparedResult: ...

    async def batch(
        self, session: ClientState, kind: BatchKind, items: Sequence[BatchItem], parameters: QueryParameters
    ) -> CqlResponse: ...


class ClientTransport(Protocol):
    """The socket under a connection."""

    @property
    def queued_bytes(self) -> int:
        """Sent and not yet taken by the system."""
        ...

    def send(self, frame: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, cause: str) -> None:
        """After what was sent, within a bound. `lost` follows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    request_bytes_max: int = 16 << 20
    first_request_bytes_max: int = 64 << 10
    """Before a client has said who it is, nobody makes us hold more than this."""
    requests_max: int = 1_024
    """Under way on one connection; with so many it is not read from."""
    requests_bytes_max: int = 32 << 20
    """Of their bodies."""
    all_requests_bytes_max: int = 256 << 20
    """Of all connections; beyond it a request is answered as overloaded."""
    unsent_bytes_max: int = 64 << 20
    """A connection whose answers pile up beyond this is closed."""


class BytesInFlight:
    """Bytes of requests under way on all connections of a shard."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class CqlMetrics:
    """What people see of the requests of clients."""

    def __init__(self, metrics: Metrics) -> None:
        asked = metrics.counter("cql_requests_total", "Requests of CQL clients by opcode.", labels=("opcode",))
        self.requests = {int(opcode): asked.series(opcode.name.lower()) for opcode in Opcode}
        self.unknown = asked.series("unknown")
        self.errors = metrics.counter("cql_errors_total", "Errors sent to CQL clients.", labels=("error",))
        self.connections = metrics.gauge("cql_connections", "Open connections of CQL clients.").series()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDeps:
    """What the connections of a shard have in common."""

    execution: StatementExecutor
    login: ClientAuthentication
    events: EventPublisher
    supported: Callable[[], Mapping[str, Sequence[str]]]
    require_serving: Callable[[], None]
    """Raises where the shard may not serve now."""
    tasks: asyncio.TaskGroup
    """Requests run in it; none of them raises."""
    report: EventReporter
    new_id: Callable[[], str]
    """Names a defect, in the log and to the client."""
    counts: CqlMetrics
    load: BytesInFlight
    limits: ConnectionLimits


class RequestContext(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an answer must know of its request."""

    version: int
    stream: int
    level: ConsistencyLevel = _DEFAULT_LEVEL
    write_type: WriteType = WriteType.SIMPLE
    bytes: int = 0
    skip_metadata: bool = False


class ServerConnection:
    def __init__(self, parts: ConnectionDeps, outlet: ClientTransport, peer: ClientEndpoint) -> None:
        self.peer = peer
        self.session = ClientState(peer=str(peer))
        self._parts = parts
        self._outlet = outlet
        self._execution = parts.execution
        self._limits = parts.limits
        self._splitter = FrameSplitter(min(parts.limits.first_request_bytes_max, parts.limits.request_bytes_max))
        self._stage = ConnectionStage.ESTABLISHED
        self._version = VERSION
        self._compression: Compression | None = None
        self._running: dict[asyncio.Future[Any], int] = {}
        self._running_bytes = 0
        self._requests = 0
        self._is_held = False
        self._is_choked = False
        self._logs_in = False
        self._ends_because: str | None = None
        self._serve = {
            int(Opcode.STARTUP): self._startup,
            int(Opcode.OPTIONS): self._options,
            int(Opcode.AUTH_RESPONSE): self._auth_response,
            int(Opcode.REGISTER): self._register,
            int(Opcode.QUERY): self._query,
            int(Opcode.PREPARE): self._prepare,
            int(Opcode.BATCH): self._batch,
        }

    # ---- what the socket tells

    @property
    def is_ready(self) -> bool:
        """Whether it has said who it is."""
        return self._stage is ConnectionStage.READY

    @property
    def unread_bytes(self) -> int:
        """Of a request whose rest has not come, or of those that have to wait."""
        return self._splitter.waiting_bytes

    def received(self, data: bytes) -> None:
        if self._stage is ConnectionStage.CLOSING:
            return
        self._splitter.feed(data)
        if not self._is_held:
            self._take_frames()

    def writing_paused(self) -> None:
        """Answers are not taken as fast as they are given: no more requests until they are."""
        self._is_choked = True
        self._hold()

    def drained(self) -> None:
        self._is_choked = False
        self._go_on()

    def lost(self) -> None:
        self._stage = ConnectionStage.CLOSING
        self._parts.events.forget(self)
        running, self._running = self._running, {}
        self._parts.load.bytes -= self._running_bytes
        self._running_bytes = 0
        # Nobody is left to hear of them; what a write has sent goes on without its client.
        for one in running:
            one.cancel("the client is gone")

    def end(self, cause: str) -> None:
        """Takes nothing more, lets what is under way end, and closes."""
        if self._stage is ConnectionStage.CLOSING:
            return
        self._ends_because = cause
        self._hold()
        if not self._running:
            self._close(cause)

    def tell(self, body: bytes) -> None:
        """`events.Subscriber`."""
        self._send(self._version, EVENT_STREAM, Opcode.EVENT, body)

    def described(self) -> ConnectedClient:
        """`clients.Described`."""
        session = self.session
        return ConnectedClient(
            peer=self.peer,
            stage=self._stage,
            protocol_version=self._version,
            user=session.user,
            driver_name=session.options.get("DRIVER_NAME", ""),
            driver_version=session.options.get("DRIVER_VERSION", ""),
            keyspace=session.keyspace or "",
            requests=self._requests,
            running=len(self._running),
        )

    # ---- how much is taken

    def _hold(self) -> None:
        if not self._is_held:
            self._is_held = True
            self._outlet.pause_reading()

    def _go_on(self) -> None:
        limits = self._limits
        if (
            self._is_held
            and not self._is_choked
            and not self._logs_in
            and self._stage is not ConnectionStage.CLOSING
            and self._ends_because is None
            and len(self._running) < limits.requests_max
            and self._running_bytes < limits.requests_bytes_max
        ):
            self._is_held = False
            self._outlet.resume_reading()
            self._take_frames()

    def _note_running(self, work: "asyncio.Future[Any]", asked: RequestContext) -> None:
        size = asked.bytes
        self._running[work] = size
        self._running_bytes += size
        self._parts.load.bytes += size
        limits = self._limits
        if len(self._running) >= limits.requests_max or self._running_bytes >= limits.requests_bytes_max:
            self._hold()

    def _note_ended(self, work: "asyncio.Future[Any]") -> None:
        size = self._running.pop(work, None)
        if size is None:
            return  # the connection was lost before
        self._running_bytes -= size
        self._parts.load.bytes -= size
        if self._is_held:
            if self._ends_because is not None and not self._running:
                self._close(self._ends_because)
            else:
                self._go_on()

    # ---- frames

    def _take_frames(self) -> None:
        take = self._splitter.take
        try:
            while not self._is_held:
                frame = take()
                if frame is None:
                    return
                self._take(frame)
        except MalformedFrame as error:
            self._fail(RequestContext(version=self._version, stream=error.stream), error)
            self._close(error.message)

    def _take(self, frame: CqlFrame) -> None:
        opcode = frame.opcode
        self._version = frame.version
        self._requests += 1
        (self._parts.counts.requests.get(opcode) or self._parts.counts.unknown).value += 1
        try:
            body, offset = (frame.body, 0) if not frame.flags else self._unwrapped(frame)
            if self._parts.load.bytes > self._limits.all_requests_bytes_max:
                raise Overloaded(f"{self._parts.load.bytes} bytes of requests are under way on this shard")
            if opcode == _EXECUTE:
                self._execute(frame, body, offset)
                return
            serve = self._serve.get(opcode)
            if serve is None:
                raise BadProtocol(f"Opcode {opcode} has no place in a request")
            serve(frame, BodyReader(body, offset))
        except Exception as error:  # whatever a message does to us, its sender hears of it and the shard goes on
            self._fail(RequestContext(version=frame.version, stream=frame.stream), error)

    def _unwrapped(self, frame: CqlFrame) -> tuple[bytes, int]:
        """The body as it was before it was compressed, and where the message begins in it."""
        body = frame.body
        if frame.flags & _COMPRESSED:
            if self._compression is None:
                raise BadProtocol("A compressed message came, and STARTUP named no compression")
            body = self._compression.decompress(body, self._limits.request_bytes_max)
        if not frame.flags & _PAYLOAD:
            return body, 0
        reader = BodyReader(body)
        reader.bytes_map()  # extensions that are not known here
        return body, reader.offset

    # ---- greeting

    def _options(self, frame: CqlFrame, _reader: BodyReader) -> None:
        body = responses.supported(self._parts.supported())
        self._send(frame.version, frame.stream, Opcode.SUPPORTED, body)

    def _startup(self, frame: CqlFrame, reader: BodyReader) -> None:
        if self._stage is not ConnectionStage.ESTABLISHED:
            raise BadProtocol("Unexpected message STARTUP: this connection has had one")
        options = requests.read_startup(reader).options
        if not options.get("CQL_VERSION", "").startswith("3."):
            raise BadProtocol("STARTUP must name CQL_VERSION, and it must be 3")
        if options.get("COMPRESSION"):
            self._compression = find_compression(options["COMPRESSION"])
        self.session.options = options
        self.session.tablet_routing = TABLET_ROUTING in options
        authenticator = self._parts.login.authenticator
        if authenticator is None:
            self._become_ready(ANONYMOUS)
            self._send(frame.version, frame.stream, Opcode.READY, b"")
        else:
            self._stage = ConnectionStage.AUTHENTICATING
            self._send(frame.version, frame.stream, Opcode.AUTHENTICATE, notation.string(authenticator))

    def _become_ready(self, user: str) -> None:
        self.session.user = user
        self._stage = ConnectionStage.READY
        self._splitter.body_bytes_max = self._limits.request_bytes_max

    def _auth_response(self, frame: CqlFrame, reader: BodyReader) -> None:
        if self._stage is not ConnectionStage.AUTHENTICATING:
            raise BadProtocol("Unexpected message AUTH_RESPONSE: nobody asked for it")
        token = requests.read_auth_response(reader)
        # What follows may count on the login: it waits until that is decided.
        self._logs_in = True
        self._hold()
        self._start(RequestContext(version=frame.version, stream=frame.stream), self._log_in(frame, token))

    async def _log_in(self, frame: CqlFrame, token: bytes) -> None:
        try:
            user = await self._parts.login.authenticate(token)
        except EblaError as error:
            self._fail(RequestContext(version=frame.version, stream=frame.stream), error)
            self._close(error.message)
            return
        finally:
            self._logs_in = False
        if self._stage is not ConnectionStage.AUTHENTICATING:
            return  # gone in the turn in which it was let in
        self._become_ready(user)
        self._send(frame.version, frame.stream, Opcode.AUTH_SUCCESS, notation.NULL_LENGTH)

    def _register(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        names = requests.read_register(reader).events
        try:
            kinds = [EventKind(name) for name in names]
        except ValueError:
            raise BadProtocol(f"One of {', '.join(names)} is no type of event that is known here") from None
        self._parts.events.subscribe(self, kinds)
        self._send(frame.version, frame.stream, Opcode.READY, b"")

    def _require_ready(self) -> None:
        if self._stage is ConnectionStage.READY:
            return
        if self._stage is ConnectionStage.AUTHENTICATING:
            raise BadProtocol("Unexpected message: the client must first say who it is (AUTH_RESPONSE)")
        raise BadProtocol("Unexpected message: a connection begins with OPTIONS or STARTUP")

    # ---- statements

    def _execute(self, frame: CqlFrame, body: bytes, offset: int) -> None:
        if self._stage is not ConnectionStage.READY:
            self._require_ready()
        statement_id, parameters = requests.read_execute(body, offset)
        asked = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=parameters.level,
            write_type=WriteType.SIMPLE,
            bytes=len(body),
            skip_metadata=parameters.skip_metadata,
        )
        try:
            self._parts.require_serving()
            started = self._execution.begin_execute(self.session, statement_id, parameters)
        except Exception as error:  # as in `_take`, with the level
            self._fail(asked, error)
            return
        self._follow(asked, started)

    def _query(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        query = requests.read_query(reader)
        parameters = query.parameters
        asked = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=parameters.level,
            bytes=len(reader.body),
            skip_metadata=parameters.skip_metadata,
        )
        try:
            self._parts.require_serving()
            started = self._execution.begin_query(self.session, query.text, parameters)
        except Exception as error:  # as in `_take`, with the level
            self._fail(asked, error)
            return
        self._follow(asked, started)

    def _prepare(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        self._parts.require_serving()
        text = requests.read_prepare(reader).text
        asked = RequestContext(version=frame.version, stream=frame.stream, bytes=len(reader.body))
        self._start(asked, self._execution.prepare(self.session, text))

    def _batch(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        self._parts.require_serving()
        batch = requests.read_batch(reader)
        write_type = _BATCH_TYPES.get(batch.kind, WriteType.SIMPLE)
        asked = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=batch.parameters.level,
            write_type=write_type,
            bytes=len(reader.body),
        )
        self._start(asked, self._execution.batch(self.session, batch.kind, batch.items, batch.parameters))

    def _follow(self, asked: RequestContext, started: StartedRequest) -> None:
        if isinstance(started, PendingResponse):
            done = started.done
            self._note_running(done, asked)
            done.add_done_callback(partial(self._done, asked, started.answer))
        elif isinstance(started, CqlResponse):
            self._answer(asked, started)
        else:
            self._start(asked, started)

    def _done(self, asked: RequestContext, answer: CqlResponse, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            if self._stage is not ConnectionStage.CLOSING:
                self._fail(asked, InternalError("the shard is stopping"))
        else:
            error = done.exception()
            if self._stage is ConnectionStage.CLOSING:
                return
            if error is None:
                self._answer(asked, answer)
            else:
                self._fail(asked, error)
        self._note_ended(done)

    def _start(self, asked: RequestContext, work: Coroutine[Any, Any, CqlResponse | PreparedResult | None]) -> None:
        running = self._carry_out(asked, work)
        try:
            task = self._parts.tasks.create_task(running)
        except RuntimeError:  # the group takes no more tasks
            running.close()
            work.close()
            self._close("the shard is stopping")
            return
        self._note_running(task, asked)
        task.add_done_callback(self._note_ended)

    async def _carry_out(
        self, asked: RequestContext, work: Coroutine[Any, Any, CqlResponse | PreparedResult | None]
    ) -> None:
        try:
            found = await work
            if isinstance(found, CqlResponse):
                self._answer(asked, found)
            elif found is not None:
                body = responses.prepared(found, asked.version)
                self._send(asked.version, asked.stream, Opcode.RESULT, body)
        except Exception as error:  # its client hears of it; a task here must not raise
            self._fail(asked, error)

    # ---- answers

    def _answer(self, asked: RequestContext, answer: CqlResponse) -> None:
        result = answer.result
        if type(result) is Void and not answer.warnings and not answer.payload:
            self._put(_VOID_FRAME.pack(asked.version | RESPONSE, 0, asked.stream, _RESULT, 4, _VOID_RESULT))
            return
        try:
            if type(result) is Rows:
                body = responses.rows(result, skip_metadata=asked.skip_metadata)
            else:
                body = responses.result(result)
            flags = 0
            if (answer.payload or answer.warnings) and asked.version >= _FIRST_WITH_WARNINGS:
                if answer.payload:
                    flags |= _PAYLOAD
                    body = notation.bytes_map(answer.payload) + body
                if answer.warnings:
                    flags |= _WARNING
                    body = notation.string_list(answer.warnings) + body
        except Exception as error:  # a result that cannot be told is a defect of ours
            self._fail(asked, error)
            return
        self._send(asked.version, asked.stream, _RESULT, body, flags)

    def _fail(self, asked: RequestContext, error: BaseException) -> None:
        ours = self._as_ours(error)
        self._parts.counts.errors.series(type(ours).__name__).add()
        body = responses.error(ours, asked.level, asked.write_type)
        self._send(asked.version, asked.stream, Opcode.ERROR, body)

    def _as_ours(self, error: BaseException) -> EblaError:
        foreseen = next((each for each in leaf_errors(error) if isinstance(each, EblaError)), None)
        if foreseen is not None:
            return foreseen
        number = self._parts.new_id()
        trace = "".join(traceback.format_exception(error, limit=-20))
        self._parts.report("cql.request_broke", {"id": number, "peer": str(self.peer), "trace": trace})
        return InternalError(f"internal error {number}", advice="the log of this node tells more under this number")

    def _send(self, version: int, stream: int, opcode: int, body: bytes, flags: int = 0) -> None:
        if self._compression is not None and len(body) >= COMPRESSED_BYTES_MIN:
            body = self._compression.compress(body)
            flags |= _COMPRESSED
        self._put(HEADER.pack(version | RESPONSE, flags, stream, opcode, len(body)) + body)

    def _put(self, frame: bytes) -> None:
        if self._stage is ConnectionStage.CLOSING:
            return
        if self._is_choked and (unsent := self._outlet.queued_bytes) > self._limits.unsent_bytes_max:
            self._parts.report("cql.client_too_slow", {"peer": str(self.peer), "unsent_bytes": unsent})
            self._close(f"{unsent} bytes of answers are not taken")
            return
        self._outlet.send(frame)

    def _close(self, cause: str) -> None:
        if self._stage is not ConnectionStage.CLOSING:
            self._stage = ConnectionStage.CLOSING
            self._is_held = True
            self._outlet.close(cause)
