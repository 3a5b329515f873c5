"""Links over TCP with mutual TLS, and over Unix sockets that only the owner may open.

A frame on the stream is its length (four bytes, big-endian) and its bytes. All frames sent in one loop iteration leave
as one write; what a read brings is split into frames at once. One read buffer serves all links, because the loop fills
and empties it in one step, so an idle connection costs little memory.

A link that was accepted stops reading while its own answers are not taken. A link that connected never does: if both
sides stopped reading because both have unsent bytes, neither would ever continue.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, cast

from ebla.model.errors import InvalidRequest, Unreachable
from ebla.model.identity import Address, HostId
from ebla.observe.event_reporter import EventReporter, RateLimitedReporter
from ebla.ports.transport import Link, LinkEvents, OpenLink
from ebla.runtime.sockets import is_same_user, listen_local, listen_tcp, reason_of, tune_tcp

_HEADER = struct.Struct(">I")
_ACCEPT_PAUSE_S = 0.05
_OpenOrRefuse = Callable[[Link], LinkEvents | None]


class TlsContexts(Protocol):
    """Called for every new connection, so that a renewed certificate is used from the next one on."""

    def server_context(self, *, certificate_optional: bool) -> ssl.SSLContext: ...

    def client_context(self) -> ssl.SSLContext: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    frame_bytes_max: int = 16 * 1024 * 1024
    first_frame_bytes_max: int = 64 * 1024
    """An introduction is small: before it no peer makes us hold more than this. A peer without a certificate never
    may."""
    read_buffer_bytes: int = 256 * 1024
    """For one read in the middle of a large frame."""
    read_turn_bytes: int = 8 * 1024
    """For any other read. Small, so that answers to the first requests of a burst leave while the next are read (with
    one large read both sides wait for each other in turn), and so that a flood gets no more than this per iteration."""
    write_high_bytes: int = 1024 * 1024
    write_low_bytes: int = 256 * 1024
    write_stall_ms: int = 20_000
    """A peer that takes no byte for this long, while more than the high mark is queued, is disconnected."""
    close_linger_ms: int = 1000
    """For queued bytes to be sent after a close."""
    handshake_ms: int = 5000
    handshakes_max: int = 256
    handshakes_per_host_max: int = 128
    """Of one address, so that a peer that opens connections and sends nothing leaves room for others."""
    backlog: int = 512
    unacknowledged_ms: int = 20_000
    """TCP gives up on a peer that acknowledges nothing for this long."""


DEFAULT_TRANSPORT_LIMITS = TransportLimits()


class _Shared:
    """What all links of one transport have in common."""

    def __init__(self, limits: TransportLimits, report: EventReporter) -> None:
        self.limits = limits
        self.report = report
        self.loop = asyncio.get_running_loop()
        self.read_buffer = memoryview(bytearray(limits.read_buffer_bytes))
        self.read_turn = self.read_buffer[: limits.read_turn_bytes]
        self._links: dict[TcpLink, None] = {}
        self._none_open = asyncio.Event()

    def opened(self, link: "TcpLink") -> None:
        self._links[link] = None

    def closed(self, link: "TcpLink") -> None:
        self._links.pop(link, None)
        if not self._links:
            self._none_open.set()

    async def close_all(self, cause: str) -> None:
        for link in list(self._links):
            link.close(cause)
        while self._links:
            self._none_open.clear()
            await self._none_open.wait()


class TcpLink(asyncio.BufferedProtocol):
    """One connection: `ports.transport.Link`."""

    def __init__(self, shared: _Shared, on_open: _OpenOrRefuse, address: Address, *, accepted: bool = False) -> None:
        self._shared = shared
        self._on_open = on_open
        self._address = address
        self._loop = shared.loop
        self._transport: asyncio.Transport | None = None
        self._events: LinkEvents | None = None
        self._peer_host: HostId | None = None
        self._encrypted = False
        self._is_stranger = False
        self._accepted = accepted
        self._partial = bytearray()
        self._frame_bytes_max = shared.limits.frame_bytes_max
        if accepted:
            self._frame_bytes_max = min(self._frame_bytes_max, shared.limits.first_frame_bytes_max)
        self._frames_received = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_due = False
        self._closing = False
        self._cause: str | None = None
        self._write_paused = False
        self._stalled_at_bytes = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._drain_waiters: list[asyncio.Future[None]] = []

    # ---- the port

    @property
    def peer_address(self) -> Address:
        return self._address

    @property
    def peer_host(self) -> HostId | None:
        return self._peer_host

    @property
    def queued_bytes(self) -> int:
        transport = self._transport
        return self._out_bytes if transport is None else self._out_bytes + transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        if self._closing:
            return
        size = len(frame)
        self._out.append(_HEADER.pack(size))
        self._out.append(frame)
        self._out_bytes += size + 4
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def send_now(self, frame: bytes) -> None:
        if self._flush_due or self._closing:
            self.send(frame)
            return
        self._out.append(_HEADER.pack(len(frame)))
        self._out.append(frame)
        self._out_bytes += len(frame) + 4
        self._flush()

    async def wait_drained(self) -> None:
        """Waits only where the high mark was passed and the low one is not reached again."""
        self._flush()
        while self._write_paused and not self._closing:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def close(self, cause: str) -> None:
        if self._closing:
            return
        self._flush()
        self._closing = True
        self._cause = self._cause or cause
        self._wake_drained()
        transport = self._transport
        if transport is None:
            return
        if self._write_paused:
            transport.abort()  # the peer does not read: waiting for it to take the rest is useless
        else:
            self._linger_timer = self._loop.call_later(self._shared.limits.close_linger_ms / 1000, transport.abort)
            transport.close()

    # ---- callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own are not of that class
        self._shared.opened(self)
        limits = self._shared.limits
        self._transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        tune_tcp(transport.get_extra_info("socket"), limits.unacknowledged_ms)
        tls = transport.get_extra_info("ssl_object")
        self._encrypted = tls is not None
        if tls is not None:
            # Here, so that a command that calls only local sockets does not load a library for certificates.
            from ebla.runtime.tls import host_in_peer_certificate

            self._peer_host = host_in_peer_certificate(tls.getpeercert())
            self._is_stranger = self._accepted and self._peer_host is None
        self._events = self._on_open(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._shared.read_buffer if self._partial else self._shared.read_turn

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        fresh = self._shared.read_buffer[:nbytes]
        flush_here = not self._flush_due
        self._flush_due = True  # frames sent while these are handled leave together, at the end of this step
        try:
            if self._partial:
                self._partial += fresh
                if not self._is_frame_complete():
                    return
                whole, self._partial = self._partial, bytearray()
                self._take_frames(memoryview(whole))
            else:
                self._take_frames(bytes(fresh))
        finally:
            if flush_here:
                self._flush_due = False
                if self._out:
                    self._flush()

    def _is_frame_complete(self) -> bool:
        """Avoids copying a large frame with every chunk of it that arrives."""
        if len(self._partial) < 4:
            return False
        (length,) = _HEADER.unpack_from(self._partial)
        return bool(length > self._frame_bytes_max or len(self._partial) >= 4 + length)

    def _take_frames(self, data: bytes | memoryview) -> None:
        events = self._events
        offset, end = 0, len(data)
        unpack_from = _HEADER.unpack_from
        while end - offset >= 4:
            (length,) = unpack_from(data, offset)
            if length > self._frame_bytes_max or length == 0:
                self._violated(f"a frame of {length} bytes was announced, {self._frame_bytes_max} is the limit")
                return
            start = offset + 4
            offset_next = start + length
            if offset_next > end:
                break
            if self._frames_received == 0 and not self._is_stranger:
                self._frame_bytes_max = self._shared.limits.frame_bytes_max
            self._frames_received += 1
            if events is not None:
                events.frame_received(bytes(data[start:offset_next]))
            if self._closing:
                return
            offset = offset_next
        if offset < end:
            self._partial += data[offset:]

    def _violated(self, cause: str) -> None:
        details = {"peer": str(self._address), "host": self._peer_host and str(self._peer_host), "cause": cause}
        self._shared.report("transport.link_violated", details)
        self.close(cause)

    def eof_received(self) -> bool:
        return False

    def abandon(self) -> None:
        """The caller that opens it was cancelled or failed. The loop closes such a connection without calling
        `connection_lost`, and `close_all` would wait for it for ever."""
        if self._transport is not None:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called once, or again after `abandon`."""
        self._closing = True
        self._shared.closed(self)
        for timer in (self._stall_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._wake_drained()
        self._partial = bytearray()
        self._out.clear()
        self._out_bytes = 0
        if self._events is not None:
            self._events.link_closed(self._cause or self._end_cause(exc))
        self._events = self._transport = None

    def _end_cause(self, exc: Exception | None) -> str:
        cause = "the peer ended the connection" if exc is None else f"the connection broke: {reason_of(exc)}"
        if self._encrypted and self._frames_received == 0 and not self._accepted:
            # With TLS 1.3 the connecting side has finished the handshake before the other has checked its certificate.
            cause += " before it answered; it may have refused our certificate (its log says why)"
        return cause

    def pause_writing(self) -> None:
        self._write_paused = True
        transport = self._transport
        assert transport is not None
        if self._accepted and not transport.is_closing():
            transport.pause_reading()
        if self._stall_timer is None:
            self._stalled_at_bytes = transport.get_write_buffer_size()
            self._watch_stall()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._accepted and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._wake_drained()

    # ---- writing

    def _flush(self) -> None:
        self._flush_due = False
        if not self._out or self._transport is None or self._closing:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self._transport.write(data)

    def _watch_stall(self) -> None:
        self._stall_timer = self._loop.call_later(self._shared.limits.write_stall_ms / 1000, self._check_stall)

    def _check_stall(self) -> None:
        transport = self._transport
        assert transport is not None
        left = transport.get_write_buffer_size()
        if left >= self._stalled_at_bytes:
            self._violated(f"the peer took no byte for {self._shared.limits.write_stall_ms} ms, {left} bytes wait")
        else:
            self._stalled_at_bytes = left
            self._watch_stall()

    def _wake_drained(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class TcpListening:
    """`ports.transport.Listening`."""

    def __init__(self, listener: socket.socket, address: Address) -> None:
        self.socket = listener
        self._address = address
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel("no longer listening")
            await asyncio.wait([self.task])
        self.socket.close()
        if self._address.is_local_socket:
            try:
                os.unlink(self._address.host)
            except FileNotFoundError:
                pass


class TcpTransport:
    """`ports.transport.Transport`. Without TLS contexts only Unix sockets are allowed, unless `plain` says otherwise
    (for measurements). Use it as a context: what it accepts lives in its task group."""

    def __init__(
        self,
        tls: TlsContexts | None,
        report: EventReporter,
        limits: TransportLimits = DEFAULT_TRANSPORT_LIMITS,
        *,
        plain: bool = False,
    ) -> None:
        self._tls = tls
        self._limits = limits
        self._report: EventReporter = RateLimitedReporter(report)
        self._plain = plain
        self._shared = _Shared(limits, self._report)
        self._loop = self._shared.loop
        self._tasks = asyncio.TaskGroup()
        self._listening: list[TcpListening] = []
        self._opening: dict[asyncio.Task[None], str] = {}

    async def __aenter__(self) -> "TcpTransport":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Nothing stays open afterwards. The task group gets no error of the body, so that the error is raised
        unwrapped; the tasks handle their own."""
        for listening in self._listening:
            await listening.close()
        for task in list(self._opening):
            task.cancel("the transport is closing")
        await self._tasks.__aexit__(None, None, None)
        await self._shared.close_all("the process is stopping")

    # ---- connecting

    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        def with_host(opened: Link) -> LinkEvents | None:
            if opened.peer_host is None and needs_host:
                opened.close("its certificate names no host")
                return None
            return on_open(opened)

        needs_host = False
        link = TcpLink(self._shared, with_host, address)
        try:
            if address.is_local_socket:
                await self._loop.create_unix_connection(lambda: link, address.host)
            else:
                context = None if self._plain else self._contexts(address).client_context()
                needs_host = context is not None and context.verify_mode is ssl.CERT_REQUIRED
                handshake_s, shutdown_s = self._tls_bounds_s(context)
                await self._loop.create_connection(
                    lambda: link,
                    address.host,
                    address.port,
                    ssl=context,
                    ssl_handshake_timeout=handshake_s,
                    ssl_shutdown_timeout=shutdown_s,
                )
        except (OSError, UnicodeError) as error:  # TLS errors are OSErrors, impossible host names are UnicodeErrors
            if isinstance(error, ssl.SSLError):
                self._report("transport.tls_failed", {"peer": str(address), "cause": reason_of(error)})
            _forget_frames(error)
            link.abandon()
            raise Unreachable(f"{address}: {reason_of(error)}") from None
        except asyncio.CancelledError:
            link.abandon()
            raise
        if needs_host and link.peer_host is None:
            raise Unreachable(f"{address}: its certificate names no host")
        return link

    def _contexts(self, address: Address) -> TlsContexts:
        if self._tls is None:
            raise InvalidRequest(f"{address}: connections between nodes need certificates, and there are none")
        return self._tls

    def _tls_bounds_s(self, context: ssl.SSLContext | None) -> tuple[float | None, float | None]:
        """For the handshake and the shutdown; both must be None without TLS."""
        if context is None:
            return None, None
        return self._limits.handshake_ms / 1000, self._limits.close_linger_ms / 1000

    # ---- listening

    async def listen(self, address: Address, on_open: OpenLink, on_join: OpenLink | None = None) -> TcpListening:
        """`on_join` gets peers without a certificate, which `on_open` never sees. None: they are refused."""
        if address.is_local_socket:
            listening = TcpListening(listen_local(address, self._limits.backlog), address)
            accept = self._accept_local(listening, on_open)
        else:
            if not self._plain:
                self._contexts(address)
            listener = listen_tcp(address, self._limits.backlog)
            listening = TcpListening(listener, Address(address.host, listener.getsockname()[1]))
            accept = self._accept_tcp(listening, on_open, on_join)
        listening.task = self._tasks.create_task(accept)
        self._listening.append(listening)
        return listening

    async def _accept_local(self, listening: TcpListening, on_open: OpenLink) -> None:
        while True:
            accepted = await self._accept_one(listening)
            if not is_same_user(accepted):
                self._refuse(accepted, listening.address, "it is a process of another user")
                continue
            link = TcpLink(self._shared, on_open, listening.address, accepted=True)
            self._open(accepted, link, None)

    async def _accept_tcp(self, listening: TcpListening, on_open: OpenLink, on_join: OpenLink | None) -> None:
        def with_certificate(link: Link) -> LinkEvents | None:
            if link.peer_host is not None or self._plain:
                return on_open(link)
            if on_join is not None:
                return on_join(link)
            link.close("its certificate names no host")
            return None

        while True:
            accepted = await self._accept_one(listening)
            try:
                peer = accepted.getpeername()
            except OSError:  # gone already
                accepted.close()
                continue
            address = Address(peer[0], peer[1])
            crowd = self._crowd_reason(address.host)
            if crowd is not None:
                self._refuse(accepted, address, f"{crowd} are being opened already")
                continue
            link = TcpLink(self._shared, with_certificate, address, accepted=True)
            context = None
            if not self._plain:
                context = self._contexts(address).server_context(certificate_optional=on_join is not None)
            self._open(accepted, link, context)

    async def _accept_one(self, listening: TcpListening) -> socket.socket:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening.socket)
            except OSError as error:
                # Out of file descriptors, or the peer is gone already: the next accept may succeed.
                self._report("transport.accept_failed", {"peer": str(listening.address), "cause": reason_of(error)})
                await asyncio.sleep(_ACCEPT_PAUSE_S)
            else:
                return accepted

    def _refuse(self, accepted: socket.socket, address: Address, cause: str) -> None:
        self._report("transport.connection_refused", {"peer": str(address), "cause": cause})
        accepted.close()

    def _open(self, accepted: socket.socket, link: TcpLink, context: ssl.SSLContext | None) -> None:
        task = self._tasks.create_task(self._open_accepted(accepted, link, context))
        self._opening[task] = link.peer_address.host
        task.add_done_callback(self._opening.pop)

    def _crowd_reason(self, host: str) -> str | None:
        """Why there is no room for one more from that address; None where there is room."""
        if len(self._opening) >= self._limits.handshakes_max:
            return f"{len(self._opening)} connections"
        of_host = sum(opening == host for opening in self._opening.values())
        return f"{of_host} connections of this address" if of_host >= self._limits.handshakes_per_host_max else None

    async def _open_accepted(self, accepted: socket.socket, link: TcpLink, context: ssl.SSLContext | None) -> None:
        try:
            handshake_s, shutdown_s = self._tls_bounds_s(context)
            await self._loop.connect_accepted_socket(
                lambda: link,
                accepted,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=shutdown_s,
            )
        except OSError as error:  # TLS errors are OSErrors
            self._report("transport.tls_failed", {"peer": str(link.peer_address), "cause": reason_of(error)})
            _forget_frames(error)
            accepted.close()
            link.abandon()
        except asyncio.CancelledError:
            link.abandon()
            raise


def _forget_frames(error: BaseException | None) -> None:
    """The traceback of a failed handshake holds the error itself and a quarter of a megabyte of buffers. That reference
    cycle lives until the collector visits old objects, and a flood of bad handshakes is much faster."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
