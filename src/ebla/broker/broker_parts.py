"""What brokering for jobs needs from its node, and what bounds it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.model.identity import HostId
from ebla.pipeline.doors import Doors
from ebla.ports.chance import Chance
from ebla.ports.clock import Clock
from ebla.wire.report import Report
from ebla.wire.topology_view import TopologyView


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    calls_max: int = 16
    """At once, of one shard."""
    call_ms_max: int = 7_200_000
    """However long whoever asks would wait."""
    barrier_ms: int = 10_000
    group0_ms: int = 10_000
    open_read_ms: int = 120_000
    """A checkpoint flushes what is in memory."""
    read_stragglers_ms: int = 3_000
    """How long nodes that a read can do without are waited for."""
    read_again_max: int = 5
    """How often a read is planned anew because the topology moved."""
    at_once_max: int = 16
    """Questions of one call under way at the same time."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    view: TopologyView
    doors: Doors
    host: HostId
    datacenter: str
    authority: Callable[[], bytes]
    """The certificate of the cluster's authority, as PEM."""
    next_timestamp_us: Callable[[], int]
    """The router's: a job that begins after a write was acknowledged here is newer than it."""
    tasks: asyncio.TaskGroup
    """Of the shard. What is sent goes on in it, whatever becomes of who asked."""
    clock: Clock
    chance: Chance
    report: Report
    limits: BrokerLimits = field(default_factory=BrokerLimits)
