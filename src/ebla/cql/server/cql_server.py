"""The sockets of CQL clients: accepts, reads, writes and closes them.

Everything sent in one loop step leaves as one write. All sockets share one read buffer, since the loop fills and
empties it in one step. A client that does not read its responses is not read from, and is disconnected after a while.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import cast

from ebla.cql.server.connection import ServerConnection
from ebla.cql.server.connection_deps import ClientEndpoint, ConnectionDeps
from ebla.observe.event_reporter import EventReporter, RateLimitedReporter

_ACCEPT_PAUSE_S = 0.05
_LARGE_REQUEST_BYTES = 4 << 10
"""If this much of a request has arrived and the rest has not, larger reads are used."""
_READ_BUFFER_BYTES = 256 << 10
"""For one read inside a large request."""
_READ_TURN_BYTES = 8 << 10
"""For any other read. Small, so that the first requests of a burst are answered while the others are read."""
_TLS_HANDSHAKE_S = 5.0
_CLOSE_LINGER_S = 1.0
"""Time for queued bytes to leave after a close."""
_UNACKNOWLEDGED_MS = 30_000
GREETING_MS = 30_000
"""Time for a client to complete the handshake. Afterwards it may stay idle forever."""
FRAME_CHECKS = 10
"""How often unfinished frames are checked within the time that they have."""
WRITE_HIGH_BYTES = 1 << 20
"""With more unsent bytes, a client is not read from until a quarter is left."""
WRITE_STALL_MS = 30_000
"""A client that reads no byte for this long, with more than the high mark unsent, is disconnected."""

ForwardSocket = Callable[[socket.socket], bool]
"""Hands an accepted socket to the shard it belongs to; False: no shard took it, so it is served here."""


class CqlServer:
    """Serves connections of its listeners. Its tasks run in the task group of `deps`."""

    def __init__(
        self,
        deps: ConnectionDeps,
        tls: Callable[[], ssl.SSLContext] | None = None,
        *,
        greeting_ms: int = GREETING_MS,
        write_high_bytes: int = WRITE_HIGH_BYTES,
        write_stall_ms: int = WRITE_STALL_MS,
    ) -> None:
        """`tls` is called for each connection, so that a renewed certificate is used from the next one on."""
        self.deps = deps
        self.greeting_s = greeting_ms / 1000
        self.write_high_bytes = write_high_bytes
        self.write_stall_s = write_stall_ms / 1000
        self.loop = asyncio.get_running_loop()
        self.read_buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        self.read_turn = self.read_buffer[:_READ_TURN_BYTES]
        self.report: EventReporter = RateLimitedReporter(deps.report)
        self._tls = tls
        self._sockets: dict[CqlSocket, None] = {}
        self._opening = 0
        self._accepting: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._is_closed = False
        self._frame_check_s = deps.limits.cql_frame_ms / 1000 / FRAME_CHECKS
        self._frame_timer = self.loop.call_later(self._frame_check_s, self._check_frames)

    def listen(self, listener: socket.socket, forward: ForwardSocket | None = None) -> None:
        """`listener` is bound, listening and non-blocking. It is closed with the server."""
        assert not listener.getblocking()
        self._accepting.append((self.deps.tasks.create_task(self._accept(listener, forward)), listener))

    def take(self, accepted: socket.socket) -> None:
        """Serves a connection, accepted here or by another process."""
        if self._is_closed or len(self._sockets) + self._opening >= self.deps.limits.cql_connections_max:
            self.report("cql.connection_refused", {"connections": len(self._sockets)})
            accepted.close()
            return
        opening = self._open(accepted)
        try:
            self.deps.tasks.create_task(opening)
        except RuntimeError:  # the task group is shutting down
            opening.close()
            accepted.close()

    def close(self, cause: str) -> None:
        """Accepts no more connections or requests; requests in flight may end."""
        self._is_closed = True
        self._frame_timer.cancel()
        self.suspend(cause)

    def suspend(self, cause: str) -> None:
        """Closes listeners and connections, as `close` does; `listen` may follow."""
        for task, listener in self._accepting:
            task.cancel(cause)
            listener.close()
        self._accepting.clear()
        for one in list(self._sockets):
            one.end(cause)

    def abort(self) -> None:
        """Drops all open connections."""
        for one in list(self._sockets):
            one.abort()

    @property
    def is_idle(self) -> bool:
        return not self._sockets and self._opening == 0

    def client_rows(self) -> list[Mapping[str, object]]:
        """Of `system.clients`, in the order of connection, without the shard."""
        return [one.connection.system_row() for one in self._sockets if one.connection is not None]

    # ---- for its sockets

    def opened(self, one: "CqlSocket") -> None:
        self._sockets[one] = None
        self.deps.metrics.connections.value = len(self._sockets)

    def closed(self, one: "CqlSocket") -> None:
        self._sockets.pop(one, None)
        self.deps.metrics.connections.value = len(self._sockets)

    def _check_frames(self) -> None:
        """One timer for all connections: bursts of requests are cut anywhere, and a timer for each cut would cost more
        than the requests."""
        for one in list(self._sockets):
            if one.connection is not None and one.connection.is_frame_late():
                received = one.connection.unread_bytes
                self.report("cql.frame_late", {"peer": str(one.connection.peer), "received_bytes": received})
                one.abort()
        self._frame_timer = self.loop.call_later(self._frame_check_s, self._check_frames)

    # ---- accepting

    async def _accept(self, listener: socket.socket, forward: ForwardSocket | None) -> None:
        while True:
            try:
                accepted, _ = await self.loop.sock_accept(listener)
            except OSError as error:
                # Out of file descriptors, or a client that left before it was accepted. The next one may succeed.
                self.report("cql.accept_failed", {"cause": str(error)})
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if forward is not None and forward(accepted):
                accepted.close()  # the other process has its own descriptor
            else:
                self.take(accepted)

    async def _open(self, accepted: socket.socket) -> None:
        self._opening += 1
        context = None if self._tls is None else self._tls()
        try:
            await self.loop.connect_accepted_socket(
                lambda: CqlSocket(self),
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _TLS_HANDSHAKE_S,
                ssl_shutdown_timeout=None if context is None else _CLOSE_LINGER_S,
            )
        except OSError as error:  # TLS errors are among them
            self.report("cql.tls_handshake_failed", {"cause": str(error) or type(error).__name__})
            _clear_tracebacks(error)
            accepted.close()
        finally:
            self._opening -= 1


class CqlSocket(asyncio.BufferedProtocol):
    """One socket: the `ClientTransport` of a connection."""

    def __init__(self, server: CqlServer) -> None:
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport | None = None
        self.connection: ServerConnection | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._write_high_bytes = server.write_high_bytes
        self._flush_due = False
        self._wants_more = False
        self._closing = False
        self._stalled_at_bytes = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None

    # ---- `ClientTransport`

    @property
    def queued_bytes(self) -> int:
        transport = self._transport
        return self._out_bytes + (0 if transport is None else transport.get_write_buffer_size())

    def send(self, frame: bytes) -> None:
        if self._closing:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes >= self._write_high_bytes:
            self._flush()  # at once: otherwise a slow client is noticed only after a whole read of requests is answered
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self, _cause: str) -> None:
        if self._closing:
            return
        self._flush()
        self._closing = True
        transport = self._transport
        if transport is not None:
            self._linger_timer = self._loop.call_later(_CLOSE_LINGER_S, transport.abort)
            transport.close()

    def end(self, cause: str) -> None:
        if self.connection is not None:
            self.connection.end(cause)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- `asyncio.BufferedProtocol`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another class
        self._transport.set_write_buffer_limits(server.write_high_bytes, server.write_high_bytes // 4)
        _tune(transport.get_extra_info("socket"))
        self.connection = ServerConnection(server.deps, self, _peer_of(transport))
        server.opened(self)
        self._handshake_timer = self._loop.call_later(server.greeting_s, self._check_handshake)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._server.read_buffer if self._wants_more else self._server.read_turn

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        if self._closing or connection is None:
            return
        flush_here = not self._flush_due
        self._flush_due = True  # immediate responses leave together, at the end of this step
        try:
            connection.received(bytes(self._server.read_buffer[:nbytes]))
            self._wants_more = connection.unread_bytes >= _LARGE_REQUEST_BYTES
        finally:
            if flush_here:
                self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        self._closing = True
        for timer in (self._stall_timer, self._linger_timer, self._handshake_timer):
            if timer is not None:
                timer.cancel()
        self._out.clear()
        self._out_bytes = 0
        if self.connection is not None:
            self.connection.lost()
        self._server.closed(self)
        self.connection = self._transport = None

    def pause_writing(self) -> None:
        transport = self._transport
        assert transport is not None
        if self.connection is not None:
            self.connection.writing_paused()
        if self._stall_timer is None:
            self._stalled_at_bytes = transport.get_write_buffer_size()
            self._watch_stall()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self.connection is not None:
            self.connection.writing_resumed()

    # ---- writing

    def _flush(self) -> None:
        self._flush_due = False
        if not self._out or self._transport is None or self._closing:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self._transport.write(data)

    def _watch_stall(self) -> None:
        self._stall_timer = self._loop.call_later(self._server.write_stall_s, self._check_stall)

    def _check_stall(self) -> None:
        transport = self._transport
        assert transport is not None
        left = transport.get_write_buffer_size()
        if left >= self._stalled_at_bytes:
            self._server.report("cql.client_stalled", {"unsent_bytes": left})
            transport.abort()
        else:
            self._stalled_at_bytes = left
            self._watch_stall()

    def _check_handshake(self) -> None:
        self._handshake_timer = None
        if self.connection is not None and not self.connection.is_ready:
            self.close("no handshake in time")


def _peer_of(transport: asyncio.BaseTransport) -> ClientEndpoint:
    name = transport.get_extra_info("peername") or ("", 0)
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return ClientEndpoint(host=name[0], port=name[1])
    cipher = tls.cipher()
    return ClientEndpoint(
        host=name[0], port=name[1], tls_protocol=tls.version() or "", tls_cipher=cipher[0] if cipher else ""
    )


def _tune(sock: socket.socket | None) -> None:
    """Disables Nagle's algorithm, and detects vanished clients, also on idle connections."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _UNACKNOWLEDGED_MS // 2000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _UNACKNOWLEDGED_MS // 4000)


def _clear_tracebacks(error: BaseException | None) -> None:
    """A failed handshake keeps its buffers in a reference cycle of frames until the garbage collector runs."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
