"""The Flight door of the bulk process: Arrow Flight over TLS, with the node's own certificate and none of the client's.

Whoever holds a ticket may read one checkpoint or fill one attempt; nothing else is offered, and nothing here touches a
layer that is in use. Errors travel as their class, outcome, message and advice beside the status of the call, so that
our own client raises what was raised here.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.flight as flight

from ebla.bulk.flight_streams import FlightLimits, FlightStreams, ScanPool, decode_get, decode_put
from ebla.bulk.loop_bridge import LoopBridge
from ebla.bulk.stream_service import StreamService
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

REOPEN_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class FlightCertificate:
    """What the door shows: the node's certificate and its key."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "FlightIdentity(…)"


@dataclass(slots=True, kw_only=True)
class _Room:
    """How many calls are under way, of how many."""

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


def _as_it_is() -> None:
    """For threads that are like all others."""


class FlightServer:
    """`listen` opens the door; from then on threads of gRPC serve it. On the loop.

    `begin_thread` is called first by the thread that opens the door, from which those of gRPC inherit their priority.
    """

    def __init__(
        self,
        stream_service: StreamService,
        scans: ScanPool,
        limits: FlightLimits,
        report: EventReporter,
        begin_thread: Callable[[], None] = _as_it_is,
    ) -> None:
        self._begin_thread = begin_thread
        self._limits = limits
        self._report = report
        self._room = _Room(calls_max=limits.streams_max)
        self._streams: Callable[[], FlightStreams] = lambda: FlightStreams(
            stream_service, scans, LoopBridge(asyncio.get_running_loop(), limits.loop_wait_s), limits
        )
        self._served: FlightStreams | None = None
        self._door: _Door | None = None
        self._address: Address | None = None
        self._closing: list[threading.Thread] = []
        self._replacing: threading.Thread | None = None
        self._is_closing = threading.Event()

    @property
    def streams(self) -> int:
        return self._room.calls

    def listen(self, address: Address, identity: FlightCertificate) -> Address:
        """Raises `InvalidRequest` where the address is taken. A port 0 is chosen here."""
        _check_free(address)
        keep_freed_buffers()
        self._served = self._streams()
        with ThreadPoolExecutor(1, "flight-open", self._begin_thread) as opening:
            self._door = opening.submit(self._opened, address, identity).result()
        self._address = Address(address.host, self._door.port)
        return self._address

    def reload(self, identity: FlightCertificate) -> None:
        """The door closes and another one with the new certificate opens at its place, within a moment in which
        clients are turned away and come again. Streams that are under way go on behind the closed door."""
        if self._door is not None and self._address is not None:
            old, self._door = self._door, None
            self._close_behind(old)
            self._replacing = threading.Thread(
                target=self._replace, args=(identity,), name="flight-reload", daemon=True
            )
            self._replacing.start()

    async def close(self) -> None:
        """New calls are refused, and those under way have a moment to end."""
        self._room.is_closed = True
        self._is_closing.set()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._limits.close_s
        if self._replacing is not None:
            await asyncio.to_thread(self._replacing.join, self._limits.close_s)
        if self._door is not None:
            self._close_behind(self._door)
            self._door = None
        for thread in self._closing:
            await asyncio.to_thread(thread.join, max(0.0, ends_at - loop.time()))

    def _replace(self, identity: FlightCertificate) -> None:
        """As soon as the port is free. Without a door nobody could come any more, so it does not give up."""
        assert self._address is not None
        self._begin_thread()
        while not self._is_closing.is_set():
            try:
                _check_free(self._address)
                self._door = self._opened(self._address, identity)
                return
            except EblaError as error:
                last = error.message
            if self._is_closing.wait(REOPEN_PAUSE_S):
                return
            self._report("flight.not_open_yet", {"cause": last})

    def _opened(self, address: Address, identity: FlightCertificate) -> "_Door":
        assert self._served is not None
        try:
            return _Door(flight_uri(address), identity, self._served, self._room, self._report)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"cannot listen on {address}: {error}") from None

    def _close_behind(self, door: "_Door") -> None:
        # It waits for streams, which a peer may hold open: so it must not keep the process from ending.
        thread = threading.Thread(target=door.shutdown, name="flight-door", daemon=True)
        thread.start()
        self._closing = [one for one in self._closing if one.is_alive()] + [thread]


class _Door(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self,
        location: str,
        identity: FlightCertificate,
        streams: FlightStreams,
        room: _Room,
        report: EventReporter,
    ) -> None:
        super().__init__(location, tls_certificates=[(identity.certificate_pem, identity.key_pem)])
        self._streams = streams
        self._room = room
        self._report = report

    def do_get(self, _context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        answer = self._answer(ticket.ticket)
        schema = next(answer)
        return flight.GeneratorStream(schema, answer)

    def _answer(self, ticket: bytes) -> Iterator[Any]:
        """A generator that has begun lets go of what it has when it is dropped: at the end, or when the client is."""
        with self._told(), self._entered():
            yield from self._streams.answer(decode_get(ticket))

    def do_put(
        self, _context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: flight.FlightMetadataWriter
    ) -> None:
        with self._told(), self._entered():
            self._streams.take(decode_put(descriptor.command or b""), reader, writer)

    def list_flights(self, _context: Any, _criteria: bytes) -> NoReturn:
        raise _not_offered("list_flights")

    def get_flight_info(self, _context: Any, _descriptor: flight.FlightDescriptor) -> NoReturn:
        raise _not_offered("get_flight_info")

    def get_schema(self, _context: Any, _descriptor: flight.FlightDescriptor) -> NoReturn:
        raise _not_offered("get_schema")

    def do_exchange(self, _context: Any, _descriptor: flight.FlightDescriptor, _reader: Any, _writer: Any) -> NoReturn:
        raise _not_offered("do_exchange")

    def list_actions(self, _context: Any) -> NoReturn:
        raise _not_offered("list_actions")

    def do_action(self, _context: Any, _action: flight.Action) -> NoReturn:
        raise _not_offered("do_action")

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._room.enter()
        try:
            yield
        finally:
            self._room.leave()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors as the peer can read them."""
        try:
            yield
        except EblaError as error:
            raise flight_error(error) from None
        except flight.FlightError:
            raise
        except Exception as error:
            # It would otherwise cross to the peer as a trace, with paths and lines of ours.
            self._report("flight.broke", {"cause": repr(error)})
            raise flight_error(InternalError(f"the stream broke: {type(error).__name__}")) from None


def flight_error(error: EblaError) -> flight.FlightError:
    """For other clients the status says a little; for ours all stands beside it."""
    kind = flight.FlightServerError
    match error:
        case Refused():
            kind = flight.FlightUnauthorizedError
        case Overloaded() | Unavailable():
            kind = flight.FlightUnavailableError
        case DeadlineExceeded():
            kind = flight.FlightTimedOutError
    return kind(str(error), encode_failure(error))


def _not_offered(what: str) -> flight.FlightError:
    return flight_error(
        Refused(f"{what} is not offered here", advice="what there is to read and write, tickets of the cluster say")
    )


def _check_free(address: Address) -> None:
    """gRPC would say no more than that it did not start."""
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
