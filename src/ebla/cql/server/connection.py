"""One connection of a client: it reads requests from frames, runs them, and sends the responses.

It knows no socket: bytes come in by `received`, frames leave through a `ClientTransport`. Requests run concurrently and
are answered in the order in which they end. Everything a client sends is bounded. A connection with too many requests
in flight, or whose client does not read its responses, is not read from until that changes. If a client never reads its
responses, the connection is closed.
"""

import asyncio
import enum
import struct
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from ebla.cql.authentication import ANONYMOUS, PASSWORD_AUTHENTICATOR
from ebla.cql.executor import ClientState, PendingResponse, StartedRequest
from ebla.cql.server.connection_deps import ClientEndpoint, ClientTransport, ConnectionDeps
from ebla.cql.server.request_bounds import LARGE_FRAME_BYTES, MeteredWork, TurnBudget
from ebla.cql.system_tables.node_info import TABLET_ROUTING
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import BadProtocol, ConnectionLost, EblaError, InternalError, Overloaded, leaf_errors
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
    CqlResponse,
    Rows,
    Void,
)
from ebla.wire.cql.notation import BodyReader
from ebla.wire.cql.responses import EventKind, WriteType
from ebla.wire.errors import ERROR_TAGS, error_tag, hidden_text

_VOID_FRAME = struct.Struct(">BBhBii")
_VOID_RESULT = 1
_COMPRESSED, _PAYLOAD, _WARNING = int(FrameFlag.COMPRESSED), int(FrameFlag.CUSTOM_PAYLOAD), int(FrameFlag.WARNING)
_EXECUTE, _RESULT = int(Opcode.EXECUTE), int(Opcode.RESULT)
_FIRST_WITH_WARNINGS = 4
_DEFAULT_LEVEL = ConsistencyLevel.ONE
_BATCH_TYPES = {BatchKind.LOGGED: WriteType.BATCH, BatchKind.UNLOGGED: WriteType.UNLOGGED_BATCH}


class ConnectionStage(enum.StrEnum):
    """The state of a connection, in the words of Cassandra."""

    ESTABLISHED = "ESTABLISHED"
    AUTHENTICATING = "AUTHENTICATING"
    READY = "READY"
    CLOSING = "CLOSING"


class RequestContext(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is needed to send the response to a request."""

    version: int
    stream: int
    level: ConsistencyLevel = _DEFAULT_LEVEL
    write_type: WriteType = WriteType.SIMPLE
    bytes: int = 0
    skip_metadata: bool = False


class ServerConnection:
    def __init__(self, deps: ConnectionDeps, transport: ClientTransport, peer: ClientEndpoint) -> None:
        self.peer = peer
        self.client = ClientState(peer=str(peer))
        self._deps = deps
        self._transport = transport
        self._executor = deps.executor
        self._memory = deps.memory
        self._requests_max = deps.limits.cql_requests_max
        self._requests_bytes_max = deps.requests_bytes_max
        self._splitter = FrameSplitter(min(deps.first_request_bytes_max, deps.limits.cql_request_bytes_max))
        self._stage = ConnectionStage.ESTABLISHED
        self._version = VERSION
        self._compression: Compression | None = None
        self._running: dict[asyncio.Future[Any], int] = {}
        self._running_bytes = 0
        self._budget = TurnBudget(deps.clock, self._resume)
        self._frame_bytes_reserved = 0
        self._waits_for_memory = False
        self._late_frame: tuple[int, int] | None = None
        """Of `is_frame_late`: the number of an unfinished frame, and when it was first seen."""
        self._is_paused = False
        self._is_writing_paused = False
        self._is_authenticating = False
        self._end_cause: str | None = None
        self._serve = {
            int(Opcode.STARTUP): self._startup,
            int(Opcode.OPTIONS): self._options,
            int(Opcode.AUTH_RESPONSE): self._auth_response,
            int(Opcode.REGISTER): self._register,
            int(Opcode.QUERY): self._query,
            int(Opcode.PREPARE): self._prepare,
            int(Opcode.BATCH): self._batch,
        }

    # ---- events of the socket

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is complete."""
        return self._stage is ConnectionStage.READY

    @property
    def unread_bytes(self) -> int:
        """Received bytes that are not handled yet: a partial request, or requests that must wait."""
        return self._splitter.waiting_bytes

    def received(self, data: bytes) -> None:
        if self._stage is ConnectionStage.CLOSING:
            return
        self._splitter.feed(data)
        if not self._is_paused:
            self._handle_frames()

    def is_frame_late(self) -> bool:
        """Whether the client takes longer than `cql_frame_ms` for a frame that it has begun. To be called every now and
        then. While the connection is not read from, the time does not count."""
        if self._is_paused or not self._splitter.waiting_bytes:
            self._late_frame = None
            return False
        now_ms = self._deps.clock.boot_ms()
        if self._late_frame is None or self._late_frame[0] != self._splitter.frames:
            self._late_frame = (self._splitter.frames, now_ms)
        return now_ms - self._late_frame[1] >= self._deps.limits.cql_frame_ms

    def writing_paused(self) -> None:
        """The client reads responses too slowly: handle no more requests until it catches up."""
        self._is_writing_paused = True
        self._pause()

    def writing_resumed(self) -> None:
        self._is_writing_paused = False
        self._resume()

    def lost(self) -> None:
        self._stage = ConnectionStage.CLOSING
        self._deps.events.forget(self)
        self._splitter.clear()  # at once: a connection is in reference cycles, and garbage collection may be late
        running, self._running = self._running, {}
        self._memory.forget(self._memory_reserved)
        self._memory.release(self._running_bytes + self._frame_bytes_reserved)
        self._running_bytes = self._frame_bytes_reserved = 0
        # No client is left to answer. Writes already sent to replicas go on.
        for one in running:
            one.cancel("the client is gone")

    def end(self, cause: str) -> None:
        """Accepts no more requests, lets those in flight end, and closes."""
        if self._stage is ConnectionStage.CLOSING:
            return
        self._end_cause = cause
        self._pause()
        if not self._running:
            self._close(cause)

    def push_event(self, body: bytes) -> None:
        """`EventSubscriber`."""
        self._send(self._version, EVENT_STREAM, Opcode.EVENT, body)

    def system_row(self) -> dict[str, object]:
        """Of `system.clients`, without the shard."""
        client, peer = self.client, self.peer
        return {
            "address": peer.host,
            "port": peer.port,
            "client_type": "cql",
            "connection_stage": str(self._stage),
            "driver_name": client.options.get("DRIVER_NAME"),
            "driver_version": client.options.get("DRIVER_VERSION"),
            "keyspace_name": client.keyspace,
            "protocol_version": self._version,
            "ssl_enabled": bool(peer.tls_protocol),
            "ssl_protocol": peer.tls_protocol or None,
            "ssl_cipher_suite": peer.tls_cipher or None,
            "username": client.user or None,
        }

    # ---- bounds

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if (
            self._is_paused
            and not self._is_writing_paused
            and not self._is_authenticating
            and not self._waits_for_memory
            and not self._budget.is_spent
            and self._stage is not ConnectionStage.CLOSING
            and self._end_cause is None
            and len(self._running) < self._requests_max
            and self._running_bytes < self._requests_bytes_max
        ):
            self._is_paused = False
            self._transport.resume_reading()
            self._handle_frames()

    def _add_running(self, work: "asyncio.Future[Any]", context: RequestContext) -> None:
        size = context.bytes
        self._running[work] = size
        self._running_bytes += size
        self._memory.bytes += size
        if len(self._running) >= self._requests_max or self._running_bytes >= self._requests_bytes_max:
            self._pause()

    def _remove_running(self, work: "asyncio.Future[Any]") -> None:
        size = self._running.pop(work, None)
        if size is None:
            return  # the connection was lost meanwhile
        self._running_bytes -= size
        self._memory.release(size)
        if self._is_paused:
            if self._end_cause is not None and not self._running:
                self._close(self._end_cause)
            else:
                self._resume()

    # ---- frames

    def _handle_frames(self) -> None:
        splitter, budget = self._splitter, self._budget
        now_ms = budget.now_ms()
        try:
            while not self._is_paused and splitter.waiting_bytes:
                frame = splitter.take()
                if frame is None:
                    self._reserve_memory(splitter.next_body_bytes)
                    return
                if self._frame_bytes_reserved:
                    self._memory.release(self._frame_bytes_reserved)
                    self._frame_bytes_reserved = 0
                self._handle(frame)
                now_ms = budget.spend(now_ms)
                if budget.is_spent:
                    self._pause()
        except MalformedFrame as error:
            self._send_error(RequestContext(version=self._version, stream=error.stream), error)
            self._close(error.message)

    def _reserve_memory(self, size: int) -> None:
        """For a large frame of which a part has arrived. The rest is not read before there is room for all of it."""
        if size <= LARGE_FRAME_BYTES or self._frame_bytes_reserved:
            return
        if self._memory.reserve(size, self._memory_reserved):
            self._frame_bytes_reserved = size
        else:
            self._waits_for_memory = True
            self._pause()

    def _memory_reserved(self) -> None:
        self._frame_bytes_reserved = self._splitter.next_body_bytes
        self._waits_for_memory = False
        self._resume()

    def _handle(self, frame: CqlFrame) -> None:
        opcode = frame.opcode
        self._version = frame.version
        (self._deps.metrics.requests.get(opcode) or self._deps.metrics.unknown).value += 1
        try:
            body, offset = (frame.body, 0) if not frame.flags else self._unwrap(frame)
            memory = self._memory
            if memory.bytes > memory.bytes_max:
                raise Overloaded(f"{memory.bytes} bytes of requests are in flight on this shard")
            if opcode == _EXECUTE:
                self._execute(frame, body, offset)
                return
            serve = self._serve.get(opcode)
            if serve is None:
                raise BadProtocol(f"Opcode {opcode} is not one of a request")
            serve(frame, BodyReader(body, offset, self._deps.limits.cql_statement_bytes_max))
        except Exception as error:  # no message may stop the shard; the sender gets the error
            self._send_error(RequestContext(version=frame.version, stream=frame.stream), error)

    def _unwrap(self, frame: CqlFrame) -> tuple[bytes, int]:
        """The uncompressed body, and the offset of the message in it."""
        body = frame.body
        if frame.flags & _COMPRESSED:
            if self._compression is None:
                raise BadProtocol("The message is compressed, but STARTUP named no compression")
            body = self._compression.decompress(body, self._deps.limits.cql_request_bytes_max)
        if not frame.flags & _PAYLOAD:
            return body, 0
        reader = BodyReader(body)
        reader.bytes_map()  # a custom payload, which is ignored
        return body, reader.offset

    # ---- handshake

    def _options(self, frame: CqlFrame, _reader: BodyReader) -> None:
        body = responses.supported(self._deps.supported())
        self._send(frame.version, frame.stream, Opcode.SUPPORTED, body)

    def _startup(self, frame: CqlFrame, reader: BodyReader) -> None:
        if self._stage is not ConnectionStage.ESTABLISHED:
            raise BadProtocol("Unexpected message STARTUP: this connection has already started")
        options = reader.string_map()
        if not options.get("CQL_VERSION", "").startswith("3."):
            raise BadProtocol("STARTUP must name CQL_VERSION, and it must be 3")
        if options.get("COMPRESSION"):
            self._compression = find_compression(options["COMPRESSION"])
        self.client.options = options
        self.client.tablet_routing = TABLET_ROUTING in options
        if self._deps.authenticate is None:
            self._become_ready(ANONYMOUS)
            self._send(frame.version, frame.stream, Opcode.READY, b"")
        else:
            self._stage = ConnectionStage.AUTHENTICATING
            self._send(frame.version, frame.stream, Opcode.AUTHENTICATE, notation.string(PASSWORD_AUTHENTICATOR))

    def _become_ready(self, user: str) -> None:
        self.client.user = user
        self._stage = ConnectionStage.READY
        self._splitter.body_bytes_max = self._deps.limits.cql_request_bytes_max

    def _auth_response(self, frame: CqlFrame, reader: BodyReader) -> None:
        if self._stage is not ConnectionStage.AUTHENTICATING:
            raise BadProtocol("Unexpected message AUTH_RESPONSE: no authentication is in progress")
        token = reader.data() or b""
        # Later requests may depend on the login, so they wait until it is decided.
        self._is_authenticating = True
        self._pause()
        self._start_task(RequestContext(version=frame.version, stream=frame.stream), self._authenticate(frame, token))

    async def _authenticate(self, frame: CqlFrame, token: bytes) -> None:
        assert self._deps.authenticate is not None, "the connection became ready at its STARTUP"
        try:
            user = await self._deps.authenticate(token, self.peer.host)
        except EblaError as error:
            self._send_error(RequestContext(version=frame.version, stream=frame.stream), error)
            self._close(error.message)
            return
        finally:
            self._is_authenticating = False
        if self._stage is not ConnectionStage.AUTHENTICATING:
            return  # the connection was lost in the same loop step
        self._become_ready(user)
        self._send(frame.version, frame.stream, Opcode.AUTH_SUCCESS, notation.NULL_LENGTH)

    def _register(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        names = reader.string_list()
        try:
            kinds = [EventKind(name) for name in names]
        except ValueError:
            raise BadProtocol(f"Unknown event type among {', '.join(names)}") from None
        self._deps.events.subscribe(self, kinds)
        self._send(frame.version, frame.stream, Opcode.READY, b"")

    def _require_ready(self) -> None:
        if self._stage is ConnectionStage.READY:
            return
        if self._stage is ConnectionStage.AUTHENTICATING:
            raise BadProtocol("Unexpected message: the client must log in first (AUTH_RESPONSE)")
        raise BadProtocol("Unexpected message: a connection starts with OPTIONS or STARTUP")

    # ---- statements

    def _execute(self, frame: CqlFrame, body: bytes, offset: int) -> None:
        if self._stage is not ConnectionStage.READY:
            self._require_ready()
        statement_id, parameters = requests.read_execute(body, offset)
        context = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=parameters.level,
            write_type=WriteType.SIMPLE,
            bytes=len(body),
            skip_metadata=parameters.skip_metadata,
        )
        self._start(context, self._executor.begin_execute, statement_id, parameters)

    def _query(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        query = requests.read_query(reader)
        parameters = query.parameters
        context = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=parameters.level,
            bytes=len(reader.body),
            skip_metadata=parameters.skip_metadata,
        )
        self._start(context, self._executor.begin_query, query.text, parameters)

    def _prepare(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        self._deps.require_serving()
        text = reader.long_string()
        body = responses.prepared(self._executor.prepare(self.client, text), frame.version)
        self._send(frame.version, frame.stream, Opcode.RESULT, body)

    def _batch(self, frame: CqlFrame, reader: BodyReader) -> None:
        self._require_ready()
        batch = requests.read_batch(reader)
        write_type = _BATCH_TYPES.get(batch.kind, WriteType.SIMPLE)
        context = RequestContext(
            version=frame.version,
            stream=frame.stream,
            level=batch.parameters.level,
            write_type=write_type,
            bytes=len(reader.body),
        )
        self._start(context, self._executor.begin_batch, batch.kind, batch.items, batch.parameters)

    def _start(self, context: RequestContext, begin: Callable[..., StartedRequest], *request: Any) -> None:
        try:
            self._deps.require_serving()
            started = begin(self.client, *request)
        except Exception as error:  # as in `_handle`, with the level
            self._send_error(context, error)
            return
        if isinstance(started, PendingResponse):
            done = started.done
            self._add_running(done, context)
            done.add_done_callback(partial(self._write_done, context, started.response))
        elif isinstance(started, CqlResponse):
            self._respond(context, started)
        else:
            self._start_task(context, started)

    def _write_done(self, context: RequestContext, response: CqlResponse, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            if self._stage is not ConnectionStage.CLOSING:
                self._send_error(
                    context,
                    ConnectionLost(
                        "this shard is stopping, and the write is not acknowledged yet",
                        advice="it may be there or appear later; repeat it with the same timestamp on another node",
                    ),
                )
        else:
            error = done.exception()
            if self._stage is ConnectionStage.CLOSING:
                return
            if error is None:
                self._respond(context, response)
            else:
                self._send_error(context, error)
        self._remove_running(done)

    def _start_task(self, context: RequestContext, work: Coroutine[Any, Any, CqlResponse | None]) -> None:
        running = self._run_task(context, MeteredWork(work, self._budget))
        try:
            task = self._deps.tasks.create_task(running)
        except RuntimeError:  # the task group is shutting down
            running.close()
            work.close()
            self._close("the shard is stopping")
            return
        self._add_running(task, context)
        task.add_done_callback(self._remove_running)

    async def _run_task(self, context: RequestContext, work: Coroutine[Any, Any, CqlResponse | None]) -> None:
        try:
            response = await work
            if response is not None:
                self._respond(context, response)
        except Exception as error:  # the client gets the error; a task of this group must not raise
            self._send_error(context, error)

    # ---- responses

    def _respond(self, context: RequestContext, response: CqlResponse) -> None:
        result = response.result
        if type(result) is Void and not response.warnings and not response.payload:
            self._send_frame(_VOID_FRAME.pack(context.version | RESPONSE, 0, context.stream, _RESULT, 4, _VOID_RESULT))
            return
        try:
            if type(result) is Rows:
                body = responses.rows(result, skip_metadata=context.skip_metadata)
            else:
                body = responses.result(result)
            flags = 0
            if (response.payload or response.warnings) and context.version >= _FIRST_WITH_WARNINGS:
                if response.payload:
                    flags |= _PAYLOAD
                    body = notation.bytes_map(response.payload) + body
                if response.warnings:
                    flags |= _WARNING
                    body = notation.string_list(response.warnings) + body
        except Exception as error:  # a result that cannot be encoded is a defect of ours
            self._send_error(context, error)
            return
        self._send(context.version, context.stream, _RESULT, body, flags)

    def _send_error(self, context: RequestContext, error: BaseException) -> None:
        known = self._to_ebla_error(error)
        self._deps.metrics.errors.series(type(known).__name__).add()
        body = responses.error(known, context.level, context.write_type)
        self._send(context.version, context.stream, Opcode.ERROR, body)

    def _to_ebla_error(self, error: BaseException) -> EblaError:
        """The error as the client may read it. The log has the rest, under an id that both have."""
        known = next((each for each in leaf_errors(error) if isinstance(each, EblaError)), None)
        if known is not None:
            return self._without_internals(known)
        number = self._deps.new_id()
        trace = "".join(traceback.format_exception(error, limit=-20))
        self._deps.report("cql.internal_error", {"id": number, "peer": str(self.peer), "trace": trace})
        return InternalError(
            f"internal error {number}", advice="the log of this node has the details under this number"
        )

    def _without_internals(self, error: EblaError) -> EblaError:
        tag = error_tag(error)
        details, hidden = getattr(error, "__notes__", []), hidden_text(tag)
        if hidden is None and not details:
            return error
        number = self._deps.new_id()
        self._deps.report(
            "cql.request_failed", {"id": number, "peer": str(self.peer), "cause": "; ".join([str(error), *details])}
        )
        advice = "the log of this node has the details under this number"
        if hidden is not None:
            return ERROR_TAGS[tag](f"{hidden}, error {number}", advice=advice)
        error.message = f"{error.message}, error {number}"
        return error

    def _send(self, version: int, stream: int, opcode: int, body: bytes, flags: int = 0) -> None:
        if self._compression is not None and len(body) >= COMPRESSED_BYTES_MIN:
            body = self._compression.compress(body)
            flags |= _COMPRESSED
        self._send_frame(HEADER.pack(version | RESPONSE, flags, stream, opcode, len(body)) + body)

    def _send_frame(self, frame: bytes) -> None:
        if self._stage is ConnectionStage.CLOSING:
            return
        if self._is_writing_paused and (unsent := self._transport.queued_bytes) > self._deps.unsent_bytes_max:
            self._deps.report("cql.client_too_slow", {"peer": str(self.peer), "unsent_bytes": unsent})
            self._close(f"{unsent} response bytes are unread")
            return
        self._transport.send(frame)

    def _close(self, cause: str) -> None:
        if self._stage is not ConnectionStage.CLOSING:
            self._stage = ConnectionStage.CLOSING
            self._is_paused = True
            self._transport.close(cause)
