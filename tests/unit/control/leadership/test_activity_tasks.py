"""Orders: a node serves them under the lease that they name, and an activity sends them while it may act."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.async_tests import settled

from ebla.control.leadership.activity_tasks import ActivityTasks, RunningHandle
from ebla.control.leadership.leadership_metrics import LeadershipMetrics
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec, EndReason, LeadershipView
from ebla.leadership.core import LeadershipCore, RaftFacts
from ebla.leadership.messages import (
    ActivityToken,
    LeaseAnswer,
    LeaseGrant,
    LeaseId,
    LeaseReply,
    Order,
    OrderRequest,
    SavedLease,
)
from ebla.leadership.quorum import FOLLOWER
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.errors import DeadlineExceeded, Stale, Unavailable
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.wire.frames import Introduction, Lane
from ebla.wire.server import IncomingCall
from ebla.wire.verbs import EmptyAnswer, Verb

OWN, OTHER = HostId(uuid.UUID(int=1)), HostId(uuid.UUID(int=2))
L1, L2 = LeaseId(uuid.UUID(int=11)), LeaseId(uuid.UUID(int=12))
TERM = 3


class Step(msgspec.Struct, frozen=True, array_like=True):
    number: int = 0


STEP = Verb(number=9_999, name="step", lane=Lane.DATA, request=OrderRequest[Step], answer=EmptyAnswer)
ROOT = ActivitySpec(name="work", domain="test", quorum=FOLLOWER, wait_ms=0)


class Wire:
    """A server and peers in one: keeps what is served, and the orders that leave."""

    def __init__(self) -> None:
        self.serve_step: Callable[[Any, IncomingCall], Awaitable[EmptyAnswer]] | None = None
        self.sent: list[tuple[HostId, Order]] = []
        self.connected, self.has_room = asyncio.Event(), asyncio.Event()
        self.has_room.set()
        self.left_ms = 0

    def serve(self, _verb: object, work: Callable[[Any, IncomingCall], Awaitable[EmptyAnswer]]) -> None:
        self.serve_step = work

    async def wait_connected(self, _host: HostId, _lane: Lane, _deadline_ms: int) -> None:
        await self.connected.wait()

    async def call(
        self,
        host: HostId,
        _verb: object,
        request: OrderRequest[Step],
        deadline_ms: int,
        before_send: Callable[[], None],
    ) -> EmptyAnswer:
        await self.has_room.wait()
        before_send()
        self.left_ms = deadline_ms
        self.sent.append((host, request.order))
        return EmptyAnswer()


class Shell:
    def __init__(self) -> None:
        self.core = LeadershipCore(OWN)
        self.tasks: ActivityTasks | None = None
        self.raft = RaftFacts(leads=False, term=TERM, voters=((OWN, OTHER),))
        self.clock_ms = 1_000

    def now_ms(self) -> int:
        return self.clock_ms

    def view(self) -> LeadershipView:
        return self.core.view(self.raft, self.clock_ms)

    def step(self) -> None:
        while not (effects := self.core.step(self.raft, self.clock_ms, LeaseSettings())).is_empty:
            assert self.tasks is not None
            self.tasks.carry_out(effects.activities)


class Node:
    def __init__(self) -> None:
        self.shell, self.wire = Shell(), Wire()
        self.tasks = ActivityTasks(self.shell, self.wire, LeadershipMetrics(), lambda *_: None)  # type: ignore[arg-type]  # both ends of a wire
        self.shell.tasks = self.tasks
        self.done: list[int] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.handle: RunningHandle | None = None
        self.tasks.serve_order(self.wire, STEP, self._work)  # type: ignore[arg-type]  # the server's end

    async def _work(self, request: Step, handle: RunningHandle, deadline_ms: int) -> EmptyAnswer:
        self.handle = handle
        assert deadline_ms > 0
        await self.go_on.wait()
        handle.check_effect()
        self.done.append(request.number)
        return EmptyAnswer()

    def promise(self, number: int) -> None:
        """Its lease under the id L1."""
        grant = LeaseGrant(OWN, L1, number)
        history = HistoryId(uuid.UUID(int=5))
        saved = SavedLease(grant=grant, history=history, term=TERM, period_ms=15_000, left_ms=15_000)
        self.shell.core.agent.start(saved, OTHER, self.shell.clock_ms)

    def lead(self) -> None:
        """It holds its own lease and the other's."""
        self.promise(1)
        self.shell.raft = RaftFacts(leads=True, term=TERM, voters=((OWN, OTHER),))
        renewal = self.shell.core.renewal = LeaseRenewal(L1, TERM)
        renewal.set_members((OWN, OTHER), self.shell.clock_ms)
        renewal.workers[OTHER].grant_number = 4
        for worker in renewal.workers.values():
            worker.poll(self.shell.clock_ms, LeaseSettings())
            answer = LeaseAnswer(reply=LeaseReply.OK)
            worker.answered(1, answer, rtt_ms=1, now_ms=self.shell.clock_ms, settings=LeaseSettings())

    async def obey(self, lease_id: LeaseId, number: int) -> EmptyAnswer:
        """As the server does for an order that arrives."""
        order = Order(ActivityToken(lease_id=lease_id, domain="test", path=("work",)), number)
        peer = Introduction(cluster=None, cluster_name="c", host=OTHER, process="control")
        loop = asyncio.get_running_loop()
        call = IncomingCall(peer=peer, lane=Lane.DATA, expires_at=loop.time() + 5, loop=loop)
        assert self.wire.serve_step is not None
        return await self.wire.serve_step(OrderRequest(order, Step(7)), call)


@asynccontextmanager
async def running_node() -> AsyncIterator[Node]:
    node = Node()
    async with asyncio.TaskGroup() as tasks:
        node.tasks.tasks = tasks
        yield node


async def test_an_order_runs_under_the_lease_that_it_names() -> None:
    async with running_node() as node:
        node.promise(2)
        await node.obey(L1, 2)
        assert node.done == [7]
        ended = node.shell.core.registry.ended[-1]
        assert (ended.name, ended.domain, ended.reason) == ("work/step", "test", EndReason.FINISHED)


@pytest.mark.parametrize(("lease_id", "number"), [(L2, 2), (L1, 1), (L1, 3)])
async def test_an_order_under_another_lease_is_stale(lease_id: LeaseId, number: int) -> None:
    async with running_node() as node:
        node.promise(2)
        with pytest.raises(Stale):
            await node.obey(lease_id, number)
        assert node.done == []


async def test_an_order_ends_with_its_lease() -> None:
    async with running_node() as node:
        node.promise(2)
        node.go_on.clear()
        obeying = asyncio.ensure_future(node.obey(L1, 2))
        await settled()
        node.shell.core.agent.abolish(L1, node.shell.clock_ms)
        node.shell.step()
        with pytest.raises(ActivityEnded) as raised:
            await obeying
        assert raised.value.reason is EndReason.LOCAL_LEASE_EXPIRED
        assert node.done == []
        assert node.handle is not None
        with pytest.raises(ActivityEnded):  # a change that it had submitted, and that comes to its turn only now
            node.handle.check_effect()


async def test_a_node_that_starts_or_stops_takes_no_order() -> None:
    node = Node()
    node.promise(2)
    with pytest.raises(Unavailable):
        await node.obey(L1, 2)
    assert node.shell.core.registry.activities == {}


async def test_an_activity_orders_its_own_node_without_the_wire() -> None:
    async with running_node() as node:
        node.lead()
        await node.tasks.run(ROOT, lambda handle: handle.call(OWN, STEP, Step(8), 5_000))
        assert node.done == [8]
        assert node.wire.sent == []


async def test_an_own_order_has_a_deadline() -> None:
    async with running_node() as node:
        node.lead()
        node.go_on.clear()
        with pytest.raises(DeadlineExceeded):
            await node.tasks.run(ROOT, lambda handle: handle.call(OWN, STEP, Step(8), 5_000))
        assert node.shell.core.registry.activities == {}


async def test_an_order_names_the_lease_of_its_host() -> None:
    async with running_node() as node:
        node.lead()
        node.wire.connected.set()
        await node.tasks.run(ROOT, lambda handle: handle.call(OTHER, STEP, Step(8), 5_000))
        token = ActivityToken(lease_id=L1, domain="test", path=("work",))
        assert node.wire.sent == [(OTHER, Order(token, 4))]


@pytest.mark.parametrize("waits_for", ["connected", "has_room"])
async def test_an_order_that_waited_is_checked_again(waits_for: str) -> None:
    """The process may have been frozen meanwhile: no timer has fired, and the leases are over by the clock."""
    async with running_node() as node:
        node.lead()
        node.wire.connected.set()
        waited: asyncio.Event = getattr(node.wire, waits_for)
        waited.clear()
        ordering = asyncio.ensure_future(node.tasks.run(ROOT, lambda handle: handle.call(OTHER, STEP, Step(8), 60_000)))
        await settled()
        node.shell.clock_ms += 10_000
        waited.set()
        with pytest.raises(ActivityEnded):
            await ordering
        assert node.wire.sent == []


async def test_the_wait_for_the_connection_counts_for_the_deadline() -> None:
    async with running_node() as node:
        node.lead()
        asyncio.get_running_loop().call_later(2, node.wire.connected.set)
        await node.tasks.run(ROOT, lambda handle: handle.call(OTHER, STEP, Step(8), 5_000))
        assert node.wire.left_ms == 3_000


async def test_without_the_lease_of_a_host_nothing_is_sent() -> None:
    async with running_node() as node:
        node.lead()
        node.wire.connected.set()
        renewal = node.shell.core.renewal
        assert renewal is not None
        renewal.workers[OTHER].deadline_ms = 0
        renewal.workers[OTHER].trouble = "older release 0.1"
        with pytest.raises(Stale, match=r"older release 0\.1"):
            await node.tasks.run(ROOT, lambda handle: handle.call(OTHER, STEP, Step(8), 5_000))
        assert node.wire.sent == []


@pytest.mark.parametrize("starts_first", [True, False])
async def test_a_child_does_not_outlive_its_parent(starts_first: bool) -> None:
    async with running_node() as node:
        node.lead()
        node.go_on.clear()
        children: list[asyncio.Future[EmptyAnswer]] = []

        async def work(parent: RunningHandle) -> None:
            async def begin() -> EmptyAnswer:
                return await node.tasks.run(ROOT, lambda handle: node._work(Step(8), handle, 1), parent)

            children.append(asyncio.ensure_future(begin()))
            if starts_first:
                await settled()

        await node.tasks.run(ROOT, work)
        with pytest.raises(ActivityEnded if starts_first else ActivityRefused):
            await children[0]
        assert node.done == []
        assert node.shell.core.registry.activities == {}
