"""The work of simulated control processes under leases: activities of every kind of behaviour, orders that arrive late,
and the judgement of what they do."""

import asyncio
from dataclasses import dataclass, field

from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.leadership.activities import ActivitySpec
from ebla.leadership.messages import LeaseAnswer, LeaseId, LeaseReply, LeaseRequest, Order
from ebla.leadership.quorum import FOLLOWER, MAJORITY
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.node.control_process import ControlProcess
from ebla.sim.checkers.leadership import LeadershipRecord
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.world import Unit, UnitState, World

DOMAINS = ("alpha", "beta")
IGNORES, HANGS, BLOCKS = 0.15, 0.05, 0.02
"""How often an activity ignores its cancellation, hangs until it is cancelled, or keeps the event loop busy."""
IGNORES_OFTEN = 0.5
"""Where the ends of activities are checked."""
BLOCKED_S = 8.0
PERIOD_S = LeaseSettings().period_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockBounds:
    """What the clocks of a run allow to check."""

    rates: tuple[float, float]
    keeps_effects: bool = True
    """An old leader has no effect after its successor has started: INV-LEASE-2 and INV-LEASE-4."""
    keeps_ends: bool = False
    """Its activities have ended by then, too. No process may be frozen in such a run."""


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
    clocks: ClockBounds
    record: LeadershipRecord = field(default_factory=LeadershipRecord)
    orders: list[LateOrder] = field(default_factory=list)
    effects: int = 0
    order_effects: int = 0
    started: int = 0
    calm: bool = False
    blocked: int = 0
    voter_sets: dict[tuple[tuple[HostId, ...], ...], None] = field(default_factory=dict)
    """All that a leader had."""
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
                tasks.create_task(self._lead(domain, node, process.leadership))

    async def _lead(self, domain: str, node: SimNode, leadership: LeadershipNode) -> None:
        spec = ActivitySpec(name="work", domain=domain, quorum=MAJORITY, wait_ms=3_000)
        while True:
            try:
                await leadership.activities.run(spec, lambda handle: self._act(domain, node, handle))
            except EblaError:
                pass
            await asyncio.sleep(0.2)

    async def _act(self, domain: str, node: SimNode, handle: RunningHandle) -> None:
        rng = self.world.rng
        self.started += 1
        self._check_others_ended(domain, handle.activity.term)
        self.record.started(domain, handle.activity.term)
        ignores_often = IGNORES_OFTEN if self.clocks.keeps_ends else IGNORES
        ignores, hangs = (not self.calm and rng.happens(probability) for probability in (ignores_often, HANGS))
        for _ in range(1 if hangs else rng.randrange(1, 30)):
            try:
                await asyncio.sleep(60.0 if hangs else rng.exponential(0.3))
            except asyncio.CancelledError:
                if not ignores:
                    raise
                await asyncio.sleep(30.0)  # the process must end before
                raise
            if not self.calm and not self.clocks.keeps_ends and rng.happens(BLOCKS):
                self._block(node.control)
                await asyncio.sleep(0)
            handle.check_effect()
            self.effects += 1
            if self.clocks.keeps_effects:
                self._note(self.record.acted(domain, handle.activity.term))
            self._give_order(handle)

    def _block(self, unit: Unit) -> None:
        """No turn of the process's loop completes, and its clock goes on. The watchdog starts it again after a period;
        otherwise this activity goes on before any timer has fired."""
        world, life = self.world, unit.start_count
        lasts_s = world.rng.exponential(BLOCKED_S)

        def end() -> None:
            if unit.start_count != life or unit.state is not UnitState.PAUSED:
                return
            if lasts_s < PERIOD_S:
                unit.resume()
            else:
                world.log(unit.name, "its watchdog starts it again")
                unit.kill()
                unit.start()

        self.blocked += 1
        world.log(unit.name, f"an activity blocks the loop for {lasts_s:.1f} s")
        unit.pause()
        world.loop.call_later(min(lasts_s, PERIOD_S), end, context=world.kernel)

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
            self.observe()
            self.record.requested(node.host, request.grant, _seconds(node))
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
        core, now_s = leadership.core, _seconds(node)
        left_s = core.agent.left_ms(leadership.now_ms()) / 1000 / node.control.machine.clock.boot_rate
        running = [one.lease for one in core.registry.activities.values() if one.lease is not None]
        self.observe()
        self._note(self.record.promised(node.host, request.grant, now_s=now_s, until_s=now_s + left_s, running=running))

    def _check_others_ended(self, domain: str, term: int) -> None:
        for node in self.cluster.nodes:
            process = node.live_control
            if not self.clocks.keeps_ends or process is None or process.leadership is None:
                continue
            for one in process.leadership.core.registry.activities.values():
                if one.is_root and one.has_started and one.domain == domain and one.term < term:
                    self.world.fail(f"{node.control.name} still runs {one.name} of term {one.term} as {term} starts")

    def observe(self) -> None:
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
            self.voter_sets[process.leadership.view().voters] = None
            if self.clocks.keeps_effects:
                self._check_counted(node, process.leadership, renewal)

    def _check_counted(self, node: SimNode, leadership: LeadershipNode, renewal: LeaseRenewal) -> None:
        now_ms, nodes = leadership.now_ms(), {each.host: each for each in self.cluster.nodes}
        for host, worker in renewal.workers.items():
            if now_ms < worker.deadline_ms:
                grant = worker.grant_of(node.host, renewal.lease_id)
                self._note(self.record.counted(host, grant, _seconds(nodes[host])))


def _seconds(node: SimNode) -> float:
    """In which the promises of a node are counted: if its machine stands still, they last longer."""
    return node.control.machine.clock.machine_s()
