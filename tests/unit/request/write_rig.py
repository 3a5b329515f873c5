"""A router's writes among replicas that answer as a test says, in simulated time."""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.unit.topology.small_cluster import TABLE, cluster, node, one_tablet, replica

from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.model.identity import HistoryId, Replica, TopologyVersion
from ebla.model.transaction import Revision
from ebla.observe.metrics import Metrics
from ebla.request.router_types import Mutation, RouterDeps, RouterLimits
from ebla.request.write_router import WriteRouter
from ebla.sim.loop import simulated_loop
from ebla.sim.rng import SimRng
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    WriteFailure,
    WriteRowsAnswer,
    WriteRowsRequest,
)

T = TypeVar("T")

A, B, C, D = (replica(number) for number in (1, 2, 3, 4))
QUORUM = ConsistencyLevel.QUORUM
NODES = [node(number) for number in (1, 2, 3, 4)]
ACKNOWLEDGED = WriteRowsAnswer()


def in_simulated_time(work: Coroutine[Any, Any, T]) -> T:
    result: T = simulated_loop(SimRng("writes")).run_until_complete(work)
    return result


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_000

    def boot_ms(self) -> int:
        return self.now_us // 1000

    def wall_us(self) -> int:
        return self.now_us


Behaviour = Callable[[WriteRowsRequest], WriteRowsAnswer | EblaError]


def acknowledge(_request: WriteRowsRequest) -> WriteRowsAnswer | EblaError:
    return ACKNOWLEDGED


def refuse_all(error: str, outcome: str = "not_applied") -> Behaviour:
    def answer(request: WriteRowsRequest) -> WriteRowsAnswer:
        count = len(request.writes)
        return WriteRowsAnswer(
            tuple(
                WriteFailure(index=index, error=error, outcome=outcome, message=f"{error} here")
                for index in range(count)
            )
        )

    return answer


@dataclass(kw_only=True)
class StubClients:
    """Each target answers as its behaviour says, at once, or once it is let go where it is held."""

    refused: frozenset[Replica] = frozenset()
    sent: dict[Replica, list[WriteRowsRequest]] = field(default_factory=lambda: defaultdict(list))
    behaviours: dict[Replica, Behaviour] = field(default_factory=dict)
    held: dict[Replica, asyncio.Event] = field(default_factory=dict)

    def hold(self, target: Replica) -> asyncio.Event:
        self.held[target] = asyncio.Event()
        return self.held[target]

    def writes_to(self, target: Replica) -> int:
        return sum(len(request.writes) for request in self.sent[target])

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        assert deadline_ms > 0
        self.sent[target].append(request)
        if target in self.held:
            await self.held[target].wait()
        answer = self.behaviours.get(target, acknowledge)(request)
        if isinstance(answer, EblaError):
            raise answer
        return answer

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        raise AssertionError("nothing is read here")

    async def read_own(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        raise AssertionError("nothing is read here")


class CountedView(TopologyView):
    """Counts holds and releases besides what the view does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.released = 0

    def hold(self, version: TopologyVersion) -> None:
        self.held += 1
        super().hold(version)

    def release(self, version: TopologyVersion) -> None:
        self.released += 1
        super().release(version)


def at_version(snapshot: Snapshot, version: int) -> Snapshot:
    state = snapshot.state
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    return replace(snapshot, state=type(state)(**{**fields, "version": TopologyVersion(version)}))


AT_REST = cluster(*NODES, tablets=one_tablet(A, B, C))
MOVING = cluster(
    *NODES,
    tablets=one_tablet(
        A,
        B,
        C,
        transition=TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(D, B, C)),
    ),
)
MOVED = cluster(*NODES, tablets=one_tablet(D, B, C))


@dataclass(kw_only=True)
class WriteRig:
    writes: WriteRouter
    view: CountedView
    clients: StubClients
    metrics: Metrics
    tasks: asyncio.TaskGroup

    def install(self, snapshot: Snapshot, version: int) -> None:
        revision = Revision(HistoryId(uuid.UUID(int=1)), version)
        self.view.install(view_of(at_version(snapshot, version), revision))

    def counted(self, name: str) -> float:
        return self.metrics.counters[name].series().value

    def begin(self, *mutations: Mutation, level: ConsistencyLevel = QUORUM, ms: int = 1000) -> "asyncio.Future[None]":
        return self.writes.write(mutations or (mutation(),), level, ms)

    def assert_all_released(self) -> None:
        assert self.view.held == self.view.released
        assert self.writes.in_flight == 0


@asynccontextmanager
async def running(snapshot: Snapshot = AT_REST, limits: RouterLimits | None = None) -> AsyncIterator[WriteRig]:
    view, clients, metrics = CountedView(), StubClients(), Metrics()
    async with asyncio.TaskGroup() as tasks:
        parts = RouterDeps(
            view=view,
            own=A,
            datacenter="dc1",
            clients=clients,
            clock=Clock(),
            limits=limits or RouterLimits(),
            metrics=metrics,
            tasks=tasks,
        )
        rig = WriteRig(writes=WriteRouter(parts), view=view, clients=clients, metrics=metrics, tasks=tasks)
        rig.install(snapshot, 5)
        yield rig


def mutation(token: int = 5, size: int = 10) -> Mutation:
    return Mutation(TABLE, token, ((b"k" * 11, b"v" * size),))


def mutations(count: int) -> Sequence[Mutation]:
    return [mutation(token) for token in range(count)]
