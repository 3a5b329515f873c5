"""What the broker needs from its node, and its limits."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ebla.broker.write_layout import ReplicaStack
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DeadlineExceeded, EblaError, Unavailable
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.request.timestamps import WriteTimestamps
from ebla.transfers.cluster_client import ClusterClient
from ebla.transfers.deadline import Deadline
from ebla.transfers.fan_out import FanOutCall, FanOutResult, fan_out
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.feed_messages import ReadBarrierRequest
from ebla.wire.verbs import READ_BARRIER

T = TypeVar("T")

AT_ONCE_MAX = 16
"""Concurrent requests to nodes of one call."""


BROKER_CALLS = TransferCallLimits(adopt_ms=30_000, patience_ms=0)
"""So long as it adopts, a commit may hold a version of the topology. Without retries: the broker calls through
`fan_out`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Those that a node's options do not set."""

    calls: TransferCallLimits = BROKER_CALLS
    barrier_ms: int = 10_000
    group0_ms: int = 10_000
    open_read_ms: int = 120_000
    """A checkpoint flushes what is in memory."""
    read_stragglers_ms: int = 3_000
    """How long a read waits for nodes that it can do without."""
    open_stragglers_ms: int = 3_000
    """How long the opening of a write waits for replicas that it can do without."""
    stragglers_ms: int = 10_000
    """How long its commit waits for them."""
    patience_ms: int = 30_000
    """How long replicas that a write cannot do without are retried while none of them answers."""
    newer_version_ms: int = 1_000
    """How long a newer topology, which a node has reported, is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeps:
    view: TopologyView
    cluster: ClusterClient
    host: HostId
    datacenter: str
    authority: Callable[[], bytes]
    """The certificate of the cluster's authority, as PEM."""
    timestamps: WriteTimestamps
    """The shard's: a job that begins after a write was acknowledged here is newer than that write."""
    tasks: asyncio.TaskGroup
    """Of the shard. Requests that were sent go on in it, even if the caller is gone."""
    clock: Clock
    rng: Rng
    report: EventReporter
    node: NodeLimits = DEFAULT_LIMITS
    limits: BrokerLimits = field(default_factory=BrokerLimits)

    def transfer_client(self) -> TransferClient:
        calls = replace(self.limits.calls, close_session_ms=self.node.session_close_ms)
        return TransferClient(self.cluster, self.rng, calls, self.report)

    def is_down(self, stack: ReplicaStack) -> bool:
        return stack.replica.host in self.view.down

    async def call_stacks(
        self,
        stacks: Sequence[ReplicaStack],
        call: Callable[[ReplicaStack], Awaitable[T]],
        is_enough: Callable[[Mapping[ReplicaStack, T]], bool],
        stragglers_ms: int,
        deadline: Deadline,
    ) -> FanOutResult[ReplicaStack, T]:
        """Calls the node of each. Once the answers are enough, the others are waited for a little longer."""
        return await fan_out(
            stacks,
            FanOutCall(call, is_enough, self.is_down),
            deadline,
            at_once_max=AT_ONCE_MAX,
            stragglers_ms=stragglers_ms,
            patience_ms=self.limits.patience_ms,
        )

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
