"""Connections without sockets: a scripted executor, and a transport that records what is sent."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebla.cql.executor import ClientState, PendingResponse, StartedRequest
from ebla.cql.server.connection import ServerConnection
from ebla.cql.server.connection_deps import ClientEndpoint, ConnectionDeps, CqlMetrics
from ebla.cql.server.events import EventPublisher
from ebla.cql.server.request_bounds import RequestMemory
from ebla.cql.system_tables.node_info import supported_options
from ebla.model.errors import BadSyntax
from ebla.observe.metrics import Metrics
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.wire.cql import notation
from ebla.wire.cql.frames import HEADER, HEADER_BYTES, RESPONSE, BatchKind, CqlFrame, Opcode
from ebla.wire.cql.messages import BatchItem, CqlResponse, PreparedResult, QueryParameters, Rows, Void
from ebla.wire.cql.notation import BodyReader

PEER = ClientEndpoint(host="127.0.0.1", port=40_000)
STARTUP_BODY = notation.short(1) + notation.string("CQL_VERSION") + notation.string("3.0.0")
AT_ONCE = CqlResponse(Void())


def request(opcode: int, body: bytes = b"", *, stream: int = 1, version: int = 4, flags: int = 0) -> bytes:
    return HEADER.pack(version, flags, stream, opcode, len(body)) + body


def long_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


def query(text: str, *, level: int = 1, stream: int = 1) -> bytes:
    return request(Opcode.QUERY, long_string(text) + struct.pack(">HB", level, 0), stream=stream)


def execute(statement_id: bytes = b"id", *, level: int = 1, stream: int = 1, flags: int = 0) -> bytes:
    body = notation.short_bytes(statement_id) + struct.pack(">HB", level, 0)
    return request(Opcode.EXECUTE, body, stream=stream, flags=flags)


def frames_of(data: bytes) -> list[CqlFrame]:
    """Frames as a client decodes them; the version is without the direction bit."""
    found = []
    while data:
        version, flags, stream, opcode, size = HEADER.unpack_from(data)
        assert version & RESPONSE
        end = HEADER_BYTES + size
        assert len(data) >= end
        found.append(
            CqlFrame(
                version=version & ~RESPONSE, flags=flags, stream=stream, opcode=opcode, body=data[HEADER_BYTES:end]
            )
        )
        data = data[end:]
    return found


def error_of(frame: CqlFrame) -> tuple[int, str]:
    assert frame.opcode == Opcode.ERROR
    reader = BodyReader(frame.body)
    return reader.integer(), reader.string()


class RecordingTransport:
    """`ClientTransport`."""

    def __init__(self) -> None:
        self.sent = b""
        self.queued_bytes = 0
        self._reads = True
        self.closed: str | None = None

    def send(self, frame: bytes) -> None:
        assert self.closed is None, "nothing is sent after the close"
        self.sent += frame

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def close(self, cause: str) -> None:
        self.closed = cause

    def reads(self) -> bool:
        return self._reads

    def taken(self) -> list[CqlFrame]:
        found, self.sent = frames_of(self.sent), b""
        return found


@dataclass
class ScriptedExecutor:
    """In the place of `CqlExecutor`: `begin` returns the outcome of a statement, by its text or id."""

    begin: Callable[[str | bytes], StartedRequest] = lambda _: AT_ONCE
    asked: list[str | bytes] = field(default_factory=list)
    parameters: list[QueryParameters] = field(default_factory=list)

    def begin_query(self, _session: ClientState, text: str, parameters: QueryParameters) -> StartedRequest:
        return self._begin(text, parameters)

    def begin_execute(self, _session: ClientState, statement_id: bytes, parameters: QueryParameters) -> StartedRequest:
        return self._begin(statement_id, parameters)

    def _begin(self, what: str | bytes, parameters: QueryParameters) -> StartedRequest:
        self.asked.append(what)
        self.parameters.append(parameters)
        return self.begin(what)

    def prepare(self, _client: ClientState, text: str) -> PreparedResult:
        if not text:
            raise BadSyntax("line 0:0 no viable alternative at input '<EOF>'")
        return PreparedResult(id=text.encode(), variables=(), key_positions=(), columns=())

    def begin_batch(
        self, _client: ClientState, _kind: BatchKind, items: Sequence[BatchItem], parameters: QueryParameters
    ) -> StartedRequest:
        return self._begin(items[0].query if items else b"", parameters)


class Futures:
    """An executor whose writes end when the test sets their futures."""

    def __init__(self) -> None:
        self.made: dict[str | bytes, asyncio.Future[None]] = {}

    def begin(self, what: str | bytes) -> StartedRequest:
        self.made[what] = asyncio.get_running_loop().create_future()
        return PendingResponse(self.made[what], AT_ONCE)

    def output(self) -> ScriptedExecutor:
        return ScriptedExecutor(self.begin)


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 0

    def boot_ms(self) -> int:
        return self.now_ms

    def wall_us(self) -> int:
        return self.now_ms * 1000


def serving() -> None:
    """The shard always serves."""


@dataclass(kw_only=True)
class ConnectionRig:
    """The dependencies of connections, with the changes that a test needs."""

    execution: Any = field(default_factory=ScriptedExecutor)
    login: Callable[[bytes, str], Awaitable[str]] | None = None
    limits: NodeLimits = DEFAULT_LIMITS
    bounds: Mapping[str, int] = field(default_factory=dict)
    """Changed bounds of `ConnectionDeps`."""
    require_serving: Callable[[], None] = serving
    events: EventPublisher = field(default_factory=lambda: EventPublisher(9042))
    reports: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)
    load: RequestMemory = field(init=False)

    def __post_init__(self) -> None:
        self.load = RequestMemory(self.limits.shard_requests_bytes_max)

    def parts(self, tasks: asyncio.TaskGroup) -> ConnectionDeps:
        return ConnectionDeps(
            executor=self.execution,
            authenticate=self.login,
            events=self.events,
            supported=lambda: supported_options(shard=1, shard_count=2, ignore_msb=12, shard_aware_port=19042),
            require_serving=self.require_serving,
            tasks=tasks,
            report=lambda event, details: self.reports.append((event, details)),
            new_id=lambda: "beef",
            metrics=CqlMetrics(Metrics()),
            memory=self.load,
            clock=self.clock,
            limits=self.limits,
            **self.bounds,
        )


class Wired:
    """A connection with a transport that records everything."""

    def __init__(self, parted: ConnectionRig, tasks: asyncio.TaskGroup) -> None:
        self.transport = RecordingTransport()
        self.connection = ServerConnection(parted.parts(tasks), self.transport, PEER)

    def ask(self, *frames: bytes) -> list[CqlFrame]:
        """What is answered in the same step."""
        self.connection.received(b"".join(frames))
        return self.transport.taken()

    def greet(self) -> None:
        (ready,) = self.ask(request(Opcode.STARTUP, STARTUP_BODY))
        assert ready.opcode == Opcode.READY


def with_connection(work: Callable[[Wired], Coroutine[Any, Any, None]], parted: ConnectionRig | None = None) -> None:
    """Runs `work` on a connection after the handshake."""

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            wired = Wired(parted or ConnectionRig(), tasks)
            if parted is None or parted.login is None:
                wired.greet()
            await work(wired)
            wired.connection.lost()

    asyncio.run(main())


def one_row(value: bytes) -> Rows:
    return Rows((), [[value]])
