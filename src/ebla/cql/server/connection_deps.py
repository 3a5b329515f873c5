"""What the connections of a shard share, and the two ends of each."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.cql.executor import CqlExecutor
from ebla.cql.server.events import EventPublisher
from ebla.cql.server.request_bounds import RequestMemory
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.options import NodeLimits
from ebla.ports.clock import Clock
from ebla.wire.cql.frames import Opcode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEndpoint:
    """The remote end of a connection, and its TLS parameters."""

    host: str
    port: int
    tls_protocol: str = ""
    """Empty without TLS."""
    tls_cipher: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClientTransport(Protocol):
    """The socket under a connection."""

    @property
    def queued_bytes(self) -> int:
        """Bytes sent and not yet accepted by the operating system."""
        ...

    def send(self, frame: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, cause: str) -> None:
        """Closes once everything sent has left, within a time limit. `lost` is called then."""
        ...


class CqlMetrics:
    def __init__(self, metrics: Metrics) -> None:
        requests = metrics.counter("cql_requests_total", "Requests of CQL clients by opcode.", labels=("opcode",))
        self.requests = {int(opcode): requests.series(opcode.name.lower()) for opcode in Opcode}
        self.unknown = requests.series("unknown")
        self.errors = metrics.counter("cql_errors_total", "Errors sent to CQL clients.", labels=("error",))
        self.connections = metrics.gauge("cql_connections", "Open connections of CQL clients.").series()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDeps:
    """What the connections of a shard share."""

    executor: CqlExecutor
    authenticate: Callable[[bytes, str], Awaitable[str]] | None
    """Returns the name of the user for a SASL token and the address of its client, see `PasswordAuthentication`. None:
    everyone may log in."""
    events: EventPublisher
    supported: Callable[[], Mapping[str, Sequence[str]]]
    require_serving: Callable[[], None]
    """Raises if the shard may not serve now."""
    tasks: asyncio.TaskGroup
    """Requests run in this group; none of their tasks raises."""
    report: EventReporter
    new_id: Callable[[], str]
    """Makes the id by which a defect is logged and reported to the client."""
    metrics: CqlMetrics
    memory: RequestMemory
    """With more body bytes in flight on all connections than it has, a request gets an OVERLOADED error."""
    clock: Clock
    limits: NodeLimits
    """`cql_requests_max`: at this number of requests in flight, a connection is not read from."""
    first_request_bytes_max: int = 64 << 10
    """Before a client has logged in, it can make us buffer no more than this."""
    requests_bytes_max: int = 32 << 20
    """Body bytes in flight on one connection."""
    unsent_bytes_max: int = 64 << 20
    """A connection with more unsent response bytes is closed."""
