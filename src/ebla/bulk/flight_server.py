"""The Flight server of the bulk process: Arrow Flight over TLS, with the node's certificate and none of the client's.

The holder of a ticket may read one checkpoint or fill one attempt. Nothing else is offered, and nothing here touches a
layer that is in use. Errors travel as class, outcome, message and advice beside the gRPC status, so that our own client
raises the same error.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from ebla.bulk.flight_streams import PIECE_BYTES, FlightStreams
from ebla.bulk.loop_bridge import LoopBridge
from ebla.bulk.stream_service import StreamService
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.model.errors import (
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    Overloaded,
    Refused,
    Unavailable,
)
from ebla.model.identity import Address
from ebla.observe.event_reporter import EventReporter
from ebla.storage.layers.malloc import keep_freed_buffers
from ebla.wire.flight_format import encode_failure, flight_uri
from ebla.wire.transfer_messages import FlightGet, FlightPut

T = TypeVar("T", FlightGet, FlightPut)

REOPEN_PAUSE_S = 0.02
STREAMS_MAX = 128
"""Calls at a time, before anything of them is decoded; the stream service has limits of its own."""
LOOP_WAIT_S = 60.0
"""For an answer of this process's own loop: longer than a batch may wait for the rate limit."""
CLOSE_S = 1.5
"""For open streams when the process ends; their readers come again."""


@dataclass(frozen=True, slots=True)
class FlightCertificate:
    """The node's certificate and its key."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "FlightCertificate(…)"


@dataclass(slots=True, kw_only=True)
class _CallLimit:
    """Limits the running calls."""

    calls_max: int
    calls: int = 0
    is_closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        with self.lock:
            if self.is_closed:
                raise Unavailable("the bulk process is ending", advice="try again in a moment")
            if self.calls >= self.calls_max:
                raise Overloaded(f"{self.calls} streams are open already", advice="try again later")
            self.calls += 1

    def leave(self) -> None:
        with self.lock:
            self.calls -= 1


def _keep_priority() -> None:
    """The threads keep their priority."""


class FlightServer:
    """After `listen` gRPC's threads serve it. Its methods run on the loop.

    `begin_thread` is called in the thread that starts gRPC, whose threads inherit the priority from it.
    """

    def __init__(
        self,
        stream_service: StreamService,
        scans: BulkWorkers,
        report: EventReporter,
        begin_thread: Callable[[], None] = _keep_priority,
        *,
        piece_bytes: int = PIECE_BYTES,
        streams_max: int = STREAMS_MAX,
        loop_wait_s: float = LOOP_WAIT_S,
    ) -> None:
        self._begin_thread = begin_thread
        self._report = report
        self._limit = _CallLimit(calls_max=streams_max)
        self._streams: Callable[[], FlightStreams] = lambda: FlightStreams(
            stream_service, scans, LoopBridge(asyncio.get_running_loop(), loop_wait_s), piece_bytes
        )
        self._served: FlightStreams | None = None
        self._grpc_server: _GrpcServer | None = None
        self._address: Address | None = None
        self._closing: list[threading.Thread] = []
        self._replacing: threading.Thread | None = None
        self._is_closing = threading.Event()

    @property
    def streams(self) -> int:
        return self._limit.calls

    def listen(self, address: Address, identity: FlightCertificate) -> Address:
        """Raises `InvalidRequest` where the address is taken. Port 0: a free port is chosen."""
        _check_free(address)
        keep_freed_buffers()
        self._served = self._streams()
        with ThreadPoolExecutor(1, "flight-open", self._begin_thread) as thread:
            self._grpc_server = thread.submit(self._start, address, identity).result()
        self._address = Address(address.host, self._grpc_server.port)
        return self._address

    def reload(self, identity: FlightCertificate) -> None:
        """Replaces the gRPC server by one with the new certificate on the same port. For a moment clients are refused
        and retry. Open streams continue on the old server."""
        if self._grpc_server is not None and self._address is not None:
            old, self._grpc_server = self._grpc_server, None
            self._shut_down(old)
            self._replacing = threading.Thread(
                target=self._restart, args=(identity,), name="flight-reload", daemon=True
            )
            self._replacing.start()

    async def close(self) -> None:
        """New calls are refused, and open ones have a moment to end."""
        self._limit.is_closed = True
        self._is_closing.set()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + CLOSE_S
        if self._replacing is not None:
            await asyncio.to_thread(self._replacing.join, CLOSE_S)
        if self._grpc_server is not None:
            self._shut_down(self._grpc_server)
            self._grpc_server = None
        for thread in self._closing:
            await asyncio.to_thread(thread.join, max(0.0, ends_at - loop.time()))

    def _restart(self, identity: FlightCertificate) -> None:
        """As soon as the port is free. It never gives up: without a server no client could connect any more."""
        assert self._address is not None
        self._begin_thread()
        while not self._is_closing.is_set():
            try:
                _check_free(self._address)
                self._grpc_server = self._start(self._address, identity)
                return
            except EblaError as error:
                last = error.message
            if self._is_closing.wait(REOPEN_PAUSE_S):
                return
            self._report("flight.not_open_yet", {"cause": last})

    def _start(self, address: Address, identity: FlightCertificate) -> "_GrpcServer":
        assert self._served is not None
        try:
            return _GrpcServer(flight_uri(address), identity, self._served, self._limit, self._report)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"cannot listen on {address}: {error}") from None

    def _shut_down(self, server: "_GrpcServer") -> None:
        # A daemon thread: it waits for streams, which a peer may hold open, and must not keep the process alive.
        thread = threading.Thread(target=server.shutdown, name="flight-server", daemon=True)
        thread.start()
        self._closing = [one for one in self._closing if one.is_alive()] + [thread]


def _refuse(call: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        advice = "tickets of the cluster say what can be read and written"
        raise flight_error(Refused(f"{call} is not offered here", advice=advice))

    return refuse


class _GrpcServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self,
        location: str,
        identity: FlightCertificate,
        streams: FlightStreams,
        limit: _CallLimit,
        report: EventReporter,
    ) -> None:
        super().__init__(location, tls_certificates=[(identity.certificate_pem, identity.key_pem)])
        self._streams = streams
        self._limit = limit
        self._report = report

    def do_get(self, _context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        answer = self._answer(ticket.ticket)
        schema = next(answer)
        return flight.GeneratorStream(schema, answer)

    def _answer(self, ticket: bytes) -> Iterator[Any]:
        """A generator that was started frees what it holds when it is dropped: at its end, or with the client."""
        with self._flight_errors(), self._counted_call():
            yield from self._streams.answer(_decode(FlightGet, "query", ticket))

    def do_put(
        self, _context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: flight.FlightMetadataWriter
    ) -> None:
        with self._flight_errors(), self._counted_call():
            self._streams.take(_decode(FlightPut, "put", descriptor.command or b""), reader, writer)

    list_flights = _refuse("list_flights")
    get_flight_info = _refuse("get_flight_info")
    get_schema = _refuse("get_schema")
    do_exchange = _refuse("do_exchange")
    list_actions = _refuse("list_actions")
    do_action = _refuse("do_action")

    @contextmanager
    def _counted_call(self) -> Iterator[None]:
        self._limit.enter()
        try:
            yield
        finally:
            self._limit.leave()

    @contextmanager
    def _flight_errors(self) -> Iterator[None]:
        """Turns errors into what the peer can decode."""
        try:
            yield
        except EblaError as error:
            raise flight_error(error) from None
        except flight.FlightError:
            raise
        except Exception as error:
            # The peer would otherwise get our traceback, with paths and lines.
            self._report("flight.broke", {"cause": repr(error)})
            raise flight_error(InternalError(f"the stream broke: {type(error).__name__}")) from None


def flight_error(error: EblaError) -> flight.FlightError:
    """The status is for other clients; ours decodes the details beside it."""
    kind = flight.FlightServerError
    match error:
        case Refused():
            kind = flight.FlightUnauthorizedError
        case Overloaded() | Unavailable():
            kind = flight.FlightUnavailableError
        case DeadlineExceeded():
            kind = flight.FlightTimedOutError
    return kind(str(error), encode_failure(error))


def _decode(kind: type[T], noun: str, data: bytes) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is not a {noun} of a transfer: {error}") from None


def _check_free(address: Address) -> None:
    """gRPC itself reports no reason."""
    if not address.port:
        return
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            raise InvalidRequest(f"cannot listen on {address}: {error.strerror}") from None
