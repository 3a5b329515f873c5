"""Leases and activities under every fault: control processes whose clocks run at different rates, damaged lease files,
leaders and voters that change, orders that arrive late, and activities that hang, ignore their cancellation or block
the event loop."""

import asyncio
from collections.abc import Sequence
from functools import partial

from ebla.control.group0.node import Group0Node
from ebla.model.identity import ClusterId
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.sim.checkers.group0 import find_disagreement
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.faults import links, processes
from ebla.sim.faults.harsh import DEVICE_FAULTS, HARSH, LINK_FAULTS, InjectedFault, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.leadership_work import ClockBounds, LeadershipWork
from ebla.sim.world import Unit, World

WITHIN_BOUND = ClockBounds(rates=(0.85, 1.25))
NEARLY_EQUAL = ClockBounds(rates=(1.0, 1.07), keeps_ends=True)
START_DOWN = InjectedFault("start the down", 8.0, processes.restart_down)
SETTLE_S = 30.0
BLOCKED_S = 120.0
"""A damaged lease file blocks its node for so long, by its own clock."""
LOOK_S = 0.05
LOOKS_PER_COMPARISON = 20
CUT_S_MAX = 25.0
"""Longer than a lease."""


async def run(world: World) -> None:
    """With nearly equal clocks processes live long enough to show what they still run when their leases are over."""
    if world.rng.happens(0.4):
        await run_under(world, NEARLY_EQUAL, (*LINK_FAULTS, *DEVICE_FAULTS, START_DOWN))
    else:
        await run_under(world, WITHIN_BOUND, HARSH)


async def run_under(world: World, clocks: ClockBounds, faults: Sequence[InjectedFault]) -> None:
    world.boot_rates = clocks.rates
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    work = LeadershipWork(world=world, cluster=cluster, clocks=clocks)
    cluster.accompany = work.accompany
    for _ in range(world.rng.randrange(3, 8)):
        cluster.add_node(has_children=False)
    units = [node.control for node in cluster.nodes]
    for unit in units:
        unit.start()
    own_faults = (
        InjectedFault("lease rot", 1.0, _rot_lease),
        InjectedFault("swap a voter", 3.0, partial(_swap_voter, cluster=cluster)),
    )
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(_observe(work))
        transferring = tasks.create_task(_transfer_now_and_then(world, cluster))
        await harsh(world, units, world.seconds, faults=(*faults, *own_faults), pause_s=1.5)
        work.calm = True
        transferring.cancel()
        before, settle_s = work.effects, SETTLE_S + BLOCKED_S / clocks.rates[0]
        await world.wait_for(lambda: work.effects > before + 5 or _restart_down(units), settle_s)
        world.check(work.effects > before + 5, "no activity acts after the last fault")
        looking.cancel()
    world.log(
        "scenario",
        f"{len(units)} nodes, {work.started} activities, {work.effects} effects, {work.order_effects} of orders, "
        f"{work.blocked} blocked loops, {len(work.voter_sets)} sets of voters",
    )


def _restart_down(units: list[Unit]) -> bool:
    for unit in units:
        if unit.down:
            unit.start()
    return False


async def _observe(work: LeadershipWork) -> None:
    while True:
        for _ in range(LOOKS_PER_COMPARISON):
            work.observe()
            await asyncio.sleep(LOOK_S)
        groups = {node.control.name: _group0(node) for node in work.cluster.nodes}
        problem = find_disagreement({name: one.running.store for name, one in groups.items() if one is not None})
        if problem is not None:
            work.world.fail(problem)


async def _transfer_now_and_then(world: World, cluster: SimCluster) -> None:
    while True:
        await asyncio.sleep(world.rng.exponential(8.0))
        _transfer(world, cluster)


def _transfer(world: World, cluster: SimCluster) -> None:
    for node in cluster.nodes:
        group0 = _group0(node)
        if group0 is not None and group0.leads:
            voters = group0.running.raft.core.membership.voters
            group0.running.raft.post(TransferLeadership(PeerId(world.rng.choice(voters))))


def _group0(node: SimNode) -> Group0Node | None:
    """None unless it runs."""
    process = node.live_control
    group0 = None if process is None or process.leadership is None else process.leadership.group0
    return group0 if group0 is not None and group0.is_running else None


async def _swap_voter(world: World, units: Sequence[Unit], *, cluster: SimCluster) -> None:
    """A node is unreachable for so long that another one votes in its place, while the leader changes. Often it is the
    leader itself: its leases run out while its activities believe that they may act."""
    leaders = [node.control for node in cluster.nodes if (group0 := _group0(node)) is not None and group0.leads]
    unit = world.rng.choice(leaders if leaders and world.rng.happens(0.5) else units)
    others = [other.name for other in units if other is not unit]
    pairs = [(unit.name, other) for other in others] + [(other, unit.name) for other in others]
    lasts_s = world.rng.between(3.0, CUT_S_MAX)
    async with asyncio.TaskGroup() as tasks:
        cutting = tasks.create_task(links.cut(world, pairs, lasts_s))
        while not cutting.done():
            await asyncio.sleep(world.rng.exponential(2.0))
            _transfer(world, cluster)


async def _rot_lease(world: World, units: Sequence[Unit]) -> None:
    """One bit of a lease file, and a restart that reads it."""
    unit = world.rng.choice(units)
    where = unit.machine.disk.rot("/lease")
    if where is None:
        return
    world.log("faults", f"a bit of {unit.name}:{where} rots")
    unit.kill()
    await asyncio.sleep(world.rng.exponential(0.5))
    if unit.down:
        unit.start()


SCENARIO = Scenario(
    name="leadership",
    summary="one promise per node, one leader's activity per domain, no order after its lease",
    seconds=60.0,
    run=run,
)
