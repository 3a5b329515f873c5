"""What the broker needs from its node, and its limits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DeadlineExceeded, EblaError, Unavailable
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.transfers.cluster_client import ClusterClient
from ebla.transfers.deadline import Deadline
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.feed_messages import ReadBarrierRequest
from ebla.wire.verbs import READ_BARRIER


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    calls_max: int = DEFAULT_LIMITS.table_calls_max
    """Concurrent calls of one shard."""
    call_ms_max: int = DEFAULT_LIMITS.table_call_ms_max
    """The longest deadline that a call is granted."""
    barrier_ms: int = 10_000
    group0_ms: int = 10_000
    open_read_ms: int = 120_000
    """A checkpoint flushes what is in memory."""
    read_stragglers_ms: int = 3_000
    """How long a read waits for nodes that it can do without."""
    read_plans_max: int = 5
    """How often a read is planned again because the topology changed."""
    at_once_max: int = 16
    """Concurrent requests to nodes of one call."""
    write_jobs_max: int = DEFAULT_LIMITS.write_jobs_max
    """Of the whole cluster, about: two that open at the same moment may both be the last."""
    table_write_jobs_max: int = DEFAULT_LIMITS.table_write_jobs_max
    write_life_ms: int = DEFAULT_LIMITS.bulk_job_life_ms
    """Of a job that names no other."""
    open_stragglers_ms: int = 3_000
    """How long the opening of a write waits for replicas that it can do without."""
    stragglers_ms: int = 10_000
    """How long its commit waits for them."""
    patience_ms: int = 30_000
    """How long replicas that a write cannot do without are retried while none of them answers."""
    newer_version_ms: int = 1_000
    """How long a newer topology, which a node has reported, is waited for."""
    staging_ms: int = 30_000
    close_session_ms: int = 30_000
    seal_ms: int = 3_900_000
    """Longer than building a layer of staged rows may take."""
    adopt_ms: int = 30_000
    """So long a commit may hold a version of the topology."""
    stale_max: int = 3
    """After so many refusals under the newest topology, staging was opened for an earlier incarnation of the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeps:
    view: TopologyView
    cluster: ClusterClient
    host: HostId
    datacenter: str
    authority: Callable[[], bytes]
    """The certificate of the cluster's authority, as PEM."""
    next_timestamp_us: Callable[[], int]
    """The router's: a job that begins after a write was acknowledged here is newer than that write."""
    tasks: asyncio.TaskGroup
    """Of the shard. Requests that were sent go on in it, even if the caller is gone."""
    clock: Clock
    rng: Rng
    report: EventReporter
    limits: BrokerLimits = field(default_factory=BrokerLimits)

    def transfer_client(self) -> TransferClient:
        """Without retries of its own: the broker calls through `fan_out`."""
        limits = self.limits
        calls = TransferCallLimits(
            staging_ms=limits.staging_ms,
            seal_ms=limits.seal_ms,
            adopt_ms=limits.adopt_ms,
            close_session_ms=limits.close_session_ms,
            patience_ms=0,
        )
        return TransferClient(self.cluster, self.rng, calls, self.report)

    async def fresh_view(self, deadline: Deadline) -> View:
        """The topology with everything that was committed before this call. A write that was acknowledged before was
        routed by this version or an older one."""
        within_ms = deadline.at_most_ms(self.limits.barrier_ms)
        try:
            answer = await self.cluster.control(READ_BARRIER, ReadBarrierRequest(), within_ms)
        except (Unavailable, DeadlineExceeded) as error:
            raise _no_quorum(self.view, error) from error
        if not await self.view.wait_revision(answer.revision, deadline.at_most_ms(self.limits.barrier_ms) / 1000):
            raise Unavailable(
                f"the topology has not reached this shard up to revision {answer.revision.index} in time",
                advice="try another node, or try again in a moment",
            )
        return self.view.current


def _no_quorum(view: TopologyView, error: EblaError) -> Unavailable:
    """A read barrier fails, as a rule, because more than half of the nodes are down. The user of the job does not know
    about barriers. Nothing has happened: a barrier only reads."""
    nodes = view.current.snapshot.nodes
    down = sorted(f"{nodes[host].address} ({host})" for host in view.down if host in nodes)
    known = f"considered down here: {', '.join(down)}" if down else "none is considered down here yet"
    return Unavailable(
        f"the cluster could not agree on its present state, for which more than half of its nodes are needed; {known} "
        f"({error.message})",
        advice="`ebla status` shows which nodes are down and why: bring them back, then run the job again",
    )
