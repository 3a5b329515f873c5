"""What brokering for jobs needs from its node, and what bounds it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.feed.topology_view import TopologyView
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.transfers.cluster_client import ClusterClient


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    calls_max: int = DEFAULT_LIMITS.table_calls_max
    """At once, of one shard."""
    call_ms_max: int = DEFAULT_LIMITS.table_call_ms_max
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
    write_jobs_max: int = DEFAULT_LIMITS.write_jobs_max
    """Of the whole cluster, about: two that open at the same moment may both be the last."""
    table_write_jobs_max: int = DEFAULT_LIMITS.table_write_jobs_max
    write_life_ms: int = DEFAULT_LIMITS.bulk_job_life_ms
    """Of a job that does not say."""
    staging_ms: int = 30_000
    open_stragglers_ms: int = 3_000
    """How long replicas that a write can do without are waited for, before it begins."""
    stragglers_ms: int = 10_000
    """And when it ends."""
    patience_ms: int = 30_000
    """How long replicas that it cannot do without are tried while none of them answers."""
    close_session_ms: int = 30_000
    moved_ms: int = 1_000
    """How long a newer topology, of which a node has told, is waited for."""
    seal_ms: int = 3_900_000
    """Longer than a layer of staged rows may be built."""
    adopt_ms: int = 30_000
    """For so long a commit may hold a version of the topology."""
    stale_max: int = 3
    """A place that refuses so often, by the newest topology, was opened for a stack that is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeps:
    view: TopologyView
    doors: ClusterClient
    host: HostId
    datacenter: str
    authority: Callable[[], bytes]
    """The certificate of the cluster's authority, as PEM."""
    next_timestamp_us: Callable[[], int]
    """The router's: a job that begins after a write was acknowledged here is newer than it."""
    tasks: asyncio.TaskGroup
    """Of the shard. What is sent goes on in it, whatever becomes of who asked."""
    clock: Clock
    rng: Rng
    report: EventReporter
    limits: BrokerLimits = field(default_factory=BrokerLimits)
