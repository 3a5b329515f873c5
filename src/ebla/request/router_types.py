"""Types of the router: mutations and queries, its limits, and the interfaces it depends on."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ebla.feed.topology_view import TopologyView
from ebla.model.identity import Replica, TableId
from ebla.observe.metrics import Metrics
from ebla.options import DEFAULT_LIMITS
from ebla.ports.clock import Clock
from ebla.request.speculative_retry import DELAY_MAX_MS
from ebla.wire.row_messages import (
    Item,
    ReadRowsAnswer,
    ReadRowsRequest,
    Span,
    WriteRowsAnswer,
    WriteRowsRequest,
)


class Mutation(msgspec.Struct, frozen=True, gc=False):
    """Items of one partition, with their timestamps: sending it twice has the effect of once."""

    table: TableId
    token: int
    items: tuple[Item, ...]


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    table: TableId
    spans: tuple[Span, ...]
    rows_max: int
    now_s: int
    is_reversed: bool = False
    partition_rows_max: int = 0
    position: bytes = b""
    """Where the previous page ended; empty: start at the beginning."""


class ReadPage(msgspec.Struct, frozen=True):
    items: tuple[Item, ...]
    position: bytes
    """Where the next page starts; empty: there is none."""


class LocalReplica(Protocol):
    """The replica side of the router's own shard, called without a wire in between. It raises what it would over the
    wire. What need not wait ends in the first step of the coroutine (`aio/eager.py`)."""

    async def write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer: ...

    def read(self, request: ReadRowsRequest, deadline_ms: int) -> Coroutine[Any, Any, ReadRowsAnswer]: ...


class ReplicaClients(Protocol):
    """Clients of every replica. Each call ends by its deadline, and each error says what became of the operation."""

    @property
    def refused(self) -> frozenset[Replica]:
        """Replicas to which the last attempt to connect failed. Replaced by a new object at each change."""
        ...

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer: ...

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer: ...

    def read_own(self, request: ReadRowsRequest, deadline_ms: int) -> Coroutine[Any, Any, ReadRowsAnswer]:
        """From the own shard, without a bound on how long it waits: for callers that give it up if it has to wait."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    writes_in_flight_max: int = 32_768
    """A write counts until its last replica has replied, which may be after its client was answered."""
    write_bytes_in_flight_max: int = DEFAULT_LIMITS.shard_requests_bytes_max
    target_writes_max: int = 4_096
    """Writes for one replica shard that wait or are sent and not answered. Beyond this, new writes wait or skip the
    replica."""
    target_bytes_max: int = 16 << 20
    waiting_writes_max: int = 4_096
    """Requests that wait for room at a replica."""
    lag_wait_ms: int = 200
    """How long a write waits for room at a replica that answers slowly and that it could skip."""
    stalled_ms: int = 500
    """A replica that has not answered for this long is not waited for, if the level can be met without it."""
    frame_writes_max: int = 256
    frame_bytes_max: int = 1 << 20
    frames_in_flight_max: int = 4
    """For one target. With this many in flight, writes gather and leave together after the next answer."""
    write_bytes_max: int = 8 << 20
    """Of one mutation, which must fit a frame."""
    request_writes_max: int = 10_000
    """In one request."""
    refresh_ms: int = 5_000
    """How long a request that was refused as stale waits for a newer version of the topology."""
    write_timeout_ms_max: int = DEFAULT_LIMITS.write_timeout_ms
    read_timeout_ms_max: int = DEFAULT_LIMITS.scan_timeout_ms
    """A request waits no longer than this, whatever its client asks for: it holds a version of the topology meanwhile,
    and a barrier waits for it."""
    reads_in_flight_max: int = 4_096
    page_bytes_max: int = 1 << 20
    """A page ends with the row that makes it this large."""
    parallel_ranges_max: int = 64
    """Parts of a read that are queried in parallel."""
    retry_delay_max_ms: float = DELAY_MAX_MS
    """The longest wait for a replica before another one is asked too."""

    def __post_init__(self) -> None:
        assert 0 < self.frame_writes_max <= self.target_writes_max <= self.writes_in_flight_max
        assert 0 < self.frame_bytes_max <= self.target_bytes_max <= self.write_bytes_in_flight_max
        assert self.frames_in_flight_max > 0
        assert self.parallel_ranges_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDeps:
    view: TopologyView
    own: Replica
    """The shard this router runs in."""
    datacenter: str
    clients: ReplicaClients
    clock: Clock
    limits: RouterLimits
    metrics: Metrics
    tasks: asyncio.TaskGroup
    """Requests that outlive their read or write run here. Nothing in it may raise."""
