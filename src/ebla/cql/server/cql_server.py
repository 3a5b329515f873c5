"""The sockets of CQL clients: accepts, reads, writes and closes them.

Everything sent in one loop step leaves as one write. All sockets share one read buffer, since the loop fills and
empties it in one step. A client that does not read its responses is not read from, and is disconnected after a while.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ebla.cql.server.clients import ClientEndpoint, ClientRegistry
from ebla.cql.server.connection import ConnectionDeps, ServerConnection
from ebla.observe.event_reporter import EventReporter, RateLimitedReporter
from ebla.options import DEFAULT_LIMITS

_ACCEPT_PAUSE_S = 0.05
_LARGE_REQUEST_BYTES = 4 << 10
"""If this much of a request has arrived and the rest has not, larger reads are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlServerLimits:
    connections_max: int = DEFAULT_LIMITS.cql_connections_max
    greeting_ms: int = 30_000
    """Time for a client to complete the handshake. Afterwards it may stay idle forever."""
    handshake_ms: int = 5_000
    write_high_bytes: int = 1 << 20
    write_low_bytes: int = 256 << 10
    write_stall_ms: int = 30_000
    """A client that reads no byte for this long, with more than the high mark unsent, is disconnected."""
    close_linger_ms: int = 1_000
    """Time for queued bytes to leave after a close."""
    read_buffer_bytes: int = 256 << 10
    """For one read inside a large request."""
    read_turn_bytes: int = 8 << 10
    """For any other read. Small, so that the first requests of a burst are answered while the others are read."""
    unacknowledged_ms: int = 30_000


ForwardSocket = Callable[[socket.socket], bool]
"""Hands an accepted socket to the shard it belongs to; False: no shard took it, so it is served here."""


class CqlServer:
    """Serves connections of its listeners. Its tasks run in the task group of `deps`."""

    def __init__(
        self, deps: ConnectionDeps, limits: CqlServerLimits, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """`tls` is called for each connection, so that a renewed certificate is used from the next one on."""
        self.deps = deps
        self.limits = limits
        self.clients = ClientRegistry()
        self.loop = asyncio.get_running_loop()
        self.read_buffer = memoryview(bytearray(limits.read_buffer_bytes))
        self.read_turn = self.read_buffer[: limits.read_turn_bytes]
        self.report: EventReporter = RateLimitedReporter(deps.report)
        self._tls = tls
        self._sockets: dict[CqlSocket, None] = {}
        self._opening = 0
        self._accepting: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._is_closed = False

    def listen(self, listener: socket.socket, forward: ForwardSocket | None = None) -> None:
        """`listener` is bound, listening and non-blocking. It is closed with the server."""
        assert not listener.getblocking()
        self._accepting.append((self.deps.tasks.create_task(self._accept(listener, forward)), listener))

    def take(self, accepted: socket.socket) -> None:
        """Serves a connection, accepted here or by another process."""
        if self._is_closed or len(self._sockets) + self._opening >= self.limits.connections_max:
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

    # ---- for its sockets

    def opened(self, one: "CqlSocket") -> None:
        self._sockets[one] = None
        self.deps.metrics.connections.value = len(self._sockets)

    def closed(self, one: "CqlSocket") -> None:
        self._sockets.pop(one, None)
        self.deps.metrics.connections.value = len(self._sockets)

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
                ssl_handshake_timeout=None if context is None else self.limits.handshake_ms / 1000,
                ssl_shutdown_timeout=None if context is None else self.limits.close_linger_ms / 1000,
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
        self._connection: ServerConnection | None = None
        self._number = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._write_high_bytes = server.limits.write_high_bytes
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
            self._linger_timer = self._loop.call_later(self._server.limits.close_linger_ms / 1000, transport.abort)
            transport.close()

    def end(self, cause: str) -> None:
        if self._connection is not None:
            self._connection.end(cause)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- `asyncio.BufferedProtocol`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another class
        self._transport.set_write_buffer_limits(server.limits.write_high_bytes, server.limits.write_low_bytes)
        _tune(transport.get_extra_info("socket"), server.limits.unacknowledged_ms)
        connection = ServerConnection(server.deps, self, _peer_of(transport))
        self._connection = connection
        self._number = server.clients.add(connection)
        server.opened(self)
        self._handshake_timer = self._loop.call_later(server.limits.greeting_ms / 1000, self._check_handshake)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._server.read_buffer if self._wants_more else self._server.read_turn

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
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
        if self._connection is not None:
            self._connection.lost()
            self._server.clients.forget(self._number)
        self._server.closed(self)
        self._connection = self._transport = None

    def pause_writing(self) -> None:
        transport = self._transport
        assert transport is not None
        if self._connection is not None:
            self._connection.writing_paused()
        if self._stall_timer is None:
            self._stalled_at_bytes = transport.get_write_buffer_size()
            self._watch_stall()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._connection is not None:
            self._connection.writing_resumed()

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
        self._stall_timer = self._loop.call_later(self._server.limits.write_stall_ms / 1000, self._check_stall)

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
        if self._connection is not None and not self._connection.is_ready:
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


def _tune(sock: socket.socket | None, unacknowledged_ms: int) -> None:
    """Disables Nagle's algorithm, and detects vanished clients, also on idle connections."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, unacknowledged_ms // 2000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, unacknowledged_ms // 4000))


def _clear_tracebacks(error: BaseException | None) -> None:
    """A failed handshake keeps its buffers in a reference cycle of frames until the garbage collector runs."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
