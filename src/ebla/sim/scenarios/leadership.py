"""Leases and activities under every fault: control processes whose clocks run at different rates, damaged lease files,
leaders that change, orders that arrive late, and activities that hang or ignore their cancellation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.leadership.activities import ActivitySpec, Order
from ebla.leadership.messages import LeaseAnswer, LeaseId, LeaseReply, LeaseRequest
from ebla.leadership.quorum import FOLLOWER, MAJORITY
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HostId
from ebla.node.control_process import ControlProcess
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.sim.checkers.leadership import LeadershipRecord
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.faults.harsh import HARSH, InjectedFault, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World

BOOT_RATE_MIN, BOOT_RATE_MAX = 0.85, 1.25
DOMAINS = ("alpha", "beta")
SETTLE_S = 150.0
"""After the last fault: a damaged lease file blocks a node for two minutes, by its own clock."""


@dataclass(frozen=True, slots=True)
class LateOrder:
    due_s: float
    host: HostId
    order: Order


@dataclass(slots=True, kw_only=True)
class LeadershipWork:
    """The work of all nodes, and the judgement of what they do."""

    world: World
    cluster: SimCluster
    record: LeadershipRecord = field(default_factory=LeadershipRecord)
    orders: list[LateOrder] = field(default_factory=list)
    effects: int = 0
    order_effects: int = 0
    started: int = 0
    calm: bool = False
    _held_by: dict[tuple[int, int], dict[LeaseId, None]] = field(default_factory=dict)
    """The lease ids of each incarnation of a control process."""

    # ---- in the control processes

    async def accompany(self, node: SimNode, process: ControlProcess) -> None:
        await process.ready.wait()
        assert process.leadership is not None, "it is opened before the node listens"
        self._watch(node, process.leadership)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._obey(node, process.leadership, tasks))
            for domain in DOMAINS:
                tasks.create_task(self._lead(domain, process.leadership))

    async def _lead(self, domain: str, leadership: LeadershipNode) -> None:
        spec = ActivitySpec(name="work", domain=domain, quorum=MAJORITY, wait_ms=3_000)
        while True:
            try:
                await leadership.activities.run(spec, lambda handle: self._act(domain, handle))
            except EblaError:
                pass
            await asyncio.sleep(0.2)

    async def _act(self, domain: str, handle: RunningHandle) -> None:
        rng = self.world.rng
        self.started += 1
        self.record.started(domain, handle.activity.term)
        hangs = not self.calm and rng.random() < 0.03
        for _ in range(rng.randrange(1, 30)):
            try:
                await asyncio.sleep(rng.exponential(0.4))
            except asyncio.CancelledError:
                if not hangs:
                    raise
                await asyncio.sleep(30.0)  # ignores its cancellation: the process must end before
                raise
            handle.check_effect()
            self.effects += 1
            self._note(self.record.acted(domain, handle.activity.term))
            self._give_order(handle)

    def _give_order(self, handle: RunningHandle) -> None:
        """Its frame may be late by more than a lease."""
        rng = self.world.rng
        host = rng.choice([node.host for node in self.cluster.nodes])
        try:
            order = handle.order(host)
        except EblaError:
            return
        late_s = rng.choice((0.0, 0.5, 20.0)) * rng.random()
        self.orders.append(LateOrder(self.world.now() + late_s, host, order))

    async def _obey(self, node: SimNode, leadership: LeadershipNode, tasks: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(0.1)
            due = [one for one in self.orders if one.host == node.host and one.due_s <= self.world.now()]
            for one in due:
                self.orders.remove(one)
                tasks.create_task(self._carry_out(node, leadership, one.order))

    async def _carry_out(self, node: SimNode, leadership: LeadershipNode, order: Order) -> None:
        async def body(handle: RunningHandle) -> None:
            for _ in range(3):
                await asyncio.sleep(self.world.rng.exponential(0.5))
                handle.check_effect()
                self.order_effects += 1
                assert handle.activity.lease is not None, "a running order has a lease"
                self._note(self.record.order_acted(node.host, handle.activity.lease))

        spec = ActivitySpec(name="order", domain=order.token.domain, quorum=FOLLOWER, wait_ms=0)
        try:
            await leadership.activities.run_order(order, spec, body)
        except EblaError:
            pass

    # ---- the judgement

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self.world.fail(problem)

    def _watch(self, node: SimNode, leadership: LeadershipNode) -> None:
        acquire, send = leadership.acquire, leadership.send_abolish

        async def watched_acquire(request: LeaseRequest, sender: HostId) -> LeaseAnswer:
            self.look()
            self.record.requested(node.host, request.grant, self.world.now())
            answer = await acquire(request, sender)
            if answer.reply is LeaseReply.OK:
                self._promised(node, leadership, request)
            return answer

        def watched_send(host: HostId, lease_id: LeaseId) -> bool:
            self.record.ended_by_holder(lease_id)
            return send(host, lease_id)

        leadership.acquire = watched_acquire  # type: ignore[method-assign]  # one node, from outside
        leadership.send_abolish = watched_send  # type: ignore[method-assign]  # one node, from outside

    def _promised(self, node: SimNode, leadership: LeadershipNode, request: LeaseRequest) -> None:
        core, now_s = leadership.core, self.world.now()
        left_s = core.agent.left_ms(leadership.now_ms()) / 1000 / node.control.machine.clock.boot_rate
        running = [one.lease for one in core.registry.activities.values() if one.lease is not None]
        self.look()
        self._note(self.record.promised(node.host, request.grant, now_s=now_s, until_s=now_s + left_s, running=running))

    def look(self) -> None:
        """At the leases that all leaders count now, by their clocks, and at the processes that died."""
        for node in self.cluster.nodes:
            control, process = node.control, node.control_process
            life = (node.number, node.control_started)
            is_alive = not control.down and node.control_started == control.start_count
            if not is_alive or process is None:
                for lease_id in self._held_by.pop(life, {}):
                    self.record.ended_by_holder(lease_id)
                continue
            renewal = None if process.leadership is None else process.leadership.core.renewal
            if renewal is None or process.leadership is None:
                continue
            for older in [one for one in self._held_by if one[0] == node.number and one != life]:
                for lease_id in self._held_by.pop(older):
                    self.record.ended_by_holder(lease_id)
            self._held_by.setdefault(life, {})[renewal.lease_id] = None
            now_ms = process.leadership.now_ms()
            for host, worker in renewal.workers.items():
                if now_ms < worker.deadline_ms:
                    self._note(
                        self.record.counted(host, worker.grant_of(node.host, renewal.lease_id), self.world.now())
                    )


async def run(world: World) -> None:
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    work = LeadershipWork(world=world, cluster=cluster)
    cluster.accompany = work.accompany
    for _ in range(world.rng.randrange(3, 6)):
        node = cluster.add_node(shards=(), has_children=False)
        node.control.machine.clock.boot_rate = world.rng.between(BOOT_RATE_MIN, BOOT_RATE_MAX)
    units = [node.control for node in cluster.nodes]
    for unit in units:
        unit.start()
    async with asyncio.TaskGroup() as tasks:
        helpers = [tasks.create_task(_look(work)), tasks.create_task(_transfer(world, cluster))]
        faults = (*HARSH, InjectedFault("lease rot", 1.0, _rot_lease))
        await harsh(world, units, world.seconds, faults=faults, pause_s=1.5)
        work.calm = True
        helpers[1].cancel()
        before = work.effects
        await world.wait_for(lambda: work.effects > before + 5 or _restart_down(units), SETTLE_S)
        world.check(work.effects > before + 5, "no activity acts after the last fault")
        helpers[0].cancel()
    world.log("scenario", f"{work.started} activities, {work.effects} effects, {work.order_effects} of orders")


def _restart_down(units: list[Unit]) -> bool:
    for unit in units:
        if unit.down:
            unit.start()
    return False


async def _look(work: LeadershipWork) -> None:
    while True:
        work.look()
        await asyncio.sleep(0.05)


async def _transfer(world: World, cluster: SimCluster) -> None:
    while True:
        await asyncio.sleep(world.rng.exponential(8.0))
        for node in cluster.nodes:
            process = node.control_process
            group0 = None if process is None or process.leadership is None else process.leadership.group0
            if group0 is not None and not node.control.down and group0.leads:
                voters = group0.running.raft.core.membership.voters
                group0.running.raft.post(TransferLeadership(PeerId(world.rng.choice(voters))))


async def _rot_lease(world: World, units: Sequence[Unit]) -> None:
    """One bit of a lease file, and a restart that reads it."""
    unit = world.rng.choice(list(units))
    where = unit.machine.disk.rot("/lease")
    if where is not None:
        world.log("faults", f"a bit of {unit.name}:{where} rots")


SCENARIO = Scenario(
    name="leadership",
    summary="one promise per node, one leader's activity per domain, no order after its lease",
    seconds=60.0,
    run=run,
)
