"""What a shard process takes from outside, and what it gives to those who serve clients in it.

A *front* (the router's verbs, a CQL server) is put together by the composition root and lives in the shard's process:
it sees the same view of the topology, reaches the shard's own replicas without a wire, and hangs its verbs on the
same servers. `replica` itself knows no front.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.model.identity import Replica
from ebla.observe.metrics import Metrics
from ebla.ports.surroundings import Surroundings
from ebla.replica.replica_server import ReplicaServer
from ebla.storage.fold_plan import FoldJob, FoldResult
from ebla.storage.layer import LayerEngine
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report
from ebla.wire.server import Server
from ebla.wire.topology_view import TopologyView, View


class Front(Protocol):
    def attach(self, server: Server) -> None:
        """Serves its verbs on this server too. Called once for each of the shard's servers, before they listen."""
        ...

    def installed(self, view: View) -> None:
        """A view was installed; the first one before anything is served."""
        ...

    def close(self) -> None:
        """The shard stops: take nothing more. What runs ends with the task group."""
        ...


@dataclass(frozen=True, slots=True)
class FrontContext:
    surroundings: Surroundings
    tasks: asyncio.TaskGroup
    """Of the shard: what runs in it ends with the shard, and must not raise."""
    view: TopologyView
    own: Replica
    replica: ReplicaServer
    serves: Callable[[], bool]
    """Whether the shard may serve at this moment; to be asked at each request of a client."""
    introduction: Introduction
    wire: WireLimits
    report: Report
    metrics: Metrics


FrontFactory = Callable[[FrontContext], Sequence[Front]]


def no_fronts(_context: FrontContext) -> Sequence[Front]:
    return ()


class FoldPlace(Protocol):
    """Where folds are carried out. Raises `EblaError` where one came to nothing; the layers are as they were."""

    async def fold(self, job: FoldJob) -> FoldResult: ...


@dataclass(frozen=True, slots=True)
class ShardParts:
    """Real ones in production, twins in the simulator."""

    engine: LayerEngine
    metrics: Metrics
    fronts: FrontFactory = no_fronts
    folds: FoldPlace | None = None
    """None: the node's bulk process, if the setup names its address."""
