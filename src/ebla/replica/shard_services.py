"""What a shard process takes from outside, and what it gives to those who serve clients in it.

A *front* (the router's verbs, a CQL server) is put together by the composition root and lives in the shard's process:
it sees the same view of the topology, reaches the shard's own replicas without a wire, and hangs its verbs on the
same servers. `replica` itself knows no front.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.feed.topology_view import TopologyView, View
from ebla.model.identity import Replica
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.replica.replica_server import ReplicaServer
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.layers.layer import LayerEngine
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.server import Server


class ShardService(Protocol):
    def attach(self, server: Server) -> None:
        """Serves its verbs on this server too. Called once for each of the shard's servers, before they listen."""
        ...

    def on_view_installed(self, view: View) -> None:
        """A view was installed; the first one before anything is served."""
        ...

    def close(self) -> None:
        """The shard stops: take nothing more. What runs ends with the task group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServiceContext:
    environment: Environment
    tasks: asyncio.TaskGroup
    """Of the shard: what runs in it ends with the shard, and must not raise."""
    view: TopologyView
    own: Replica
    replica: ReplicaServer
    serves: Callable[[], bool]
    """Whether the shard may serve at this moment; to be asked at each request of a client."""
    introduction: Introduction
    wire: WireLimits
    report: EventReporter
    metrics: Metrics


ShardServiceFactory = Callable[[ShardServiceContext], Sequence[ShardService]]


def no_services(_context: ShardServiceContext) -> Sequence[ShardService]:
    return ()


class Compactor(Protocol):
    """Where folds are carried out. Raises `EblaError` where one came to nothing; the layers are as they were."""

    async def compact(self, job: CompactionJob) -> CompactionResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDeps:
    """Real ones in production, twins in the simulator."""

    engine: LayerEngine
    metrics: Metrics
    services: ShardServiceFactory = no_services
    compactor: Compactor | None = None
    """None: the node's bulk process, if the setup names its address."""
