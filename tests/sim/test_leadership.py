"""Leases and activities in simulated control processes: under faults at a few seeds, and single stories."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from tests.async_tests import runs_in

from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec, EndReason, Precondition
from ebla.leadership.messages import LeaseReply, LeaseRequest
from ebla.leadership.quorum import FOLLOWER, MAJORITY
from ebla.model.errors import DiskFull, Stale
from ebla.model.identity import ClusterId, HostId
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.disk import DiskFault
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World
from ebla.wire.leadership_messages import ClusterLeadershipRequest
from ebla.wire.metrics_messages import collect_metrics
from ebla.wire.server import IncomingCall

SPEC = ActivitySpec(name="work", domain="test", quorum=MAJORITY, wait_ms=3_000)


@pytest.mark.parametrize("seed", range(1, 6))
def test_leases_keep_their_promises_under_faults(seed: int) -> None:
    """INV-LEASE-1 to INV-LEASE-5, with clocks that run at different rates."""
    outcome = run_scenario(find_scenario("leadership"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


@pytest.mark.parametrize("seed", range(1, 4))
def test_promises_and_data_are_kept_whatever_the_clocks_do(seed: int) -> None:
    """INV-LEASE-1, INV-LEASE-3 and INV-LEASE-5, rows and sessions: seeds of each."""
    outcome = run_scenario(find_scenario("leadership_clocks"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def in_a_settled_cluster(story: Callable[[World, list[SimNode]], Awaitable[None]]) -> None:
    """Three control processes, whose leader holds all leases; then the story."""

    async def run(world: World) -> None:
        cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        nodes = [cluster.add_node(has_children=False) for _ in range(3)]
        for node in nodes:
            node.control.start()
        await world.wait_for(lambda: any(holds_all(node) for node in nodes), 60.0)
        await story(world, nodes)

    World(seed=11, seconds=60.0).run(run)


pytestmark = runs_in(in_a_settled_cluster)


def of(node: SimNode) -> LeadershipNode:
    assert node.control_process is not None
    assert node.control_process.leadership is not None
    return node.control_process.leadership


def holds_all(node: SimNode) -> bool:
    if node.control_process is None or node.control_process.leadership is None:
        return False
    view = of(node).view()
    until = [] if view.held is None else list(view.held.deadlines.values())
    return len(until) == 3 and len(view.voters[0]) == 3 and min(until) > view.now_ms


def leader_of(nodes: list[SimNode]) -> SimNode:
    return next(node for node in nodes if of(node).view().held is not None)


async def forever(_handle: RunningHandle) -> None:
    await asyncio.Event().wait()


async def test_an_activity_runs_under_a_majority_and_gives_orders(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)

    async def obey(handle: RunningHandle) -> str:
        handle.check_effect()
        return "done"

    async def body(handle: RunningHandle) -> str:
        assert handle.permit_ms() > 0
        order = handle.order(follower.host)
        return await of(follower).activities.run_order(order, spec, obey)

    spec = ActivitySpec(name="step", domain="test", quorum=FOLLOWER, wait_ms=0)
    assert await of(leader).activities.run(SPEC, body) == "done"
    assert of(leader).core.registry.ended[-1].reason is EndReason.FINISHED


async def test_on_another_node_nothing_starts(world: World, nodes: list[SimNode], /) -> None:
    follower = next(node for node in nodes if node is not leader_of(nodes))
    with pytest.raises(ActivityRefused) as raised:
        await of(follower).activities.run(SPEC, forever)
    assert raised.value.precondition is Precondition.NOT_LEADER


async def test_an_activity_ends_when_its_quorum_is_gone(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    others = [node for node in nodes if node is not leader]
    async with asyncio.TaskGroup() as tasks:
        stopping = tasks.create_task(pause_all(others, 30.0))
        with pytest.raises(ActivityEnded) as raised:
            await of(leader).activities.run(SPEC, forever)
        await stopping
    assert raised.value.reason in (EndReason.QUORUM_LOST, EndReason.NOT_LEADER)


async def pause_all(nodes: list[SimNode], seconds: float) -> None:
    await asyncio.sleep(0.1)
    for node in nodes:
        node.control.pause()
    await asyncio.sleep(seconds)
    for node in nodes:
        node.control.resume()


def promised_to(node: SimNode) -> HostId | None:
    lease = of(node).core.agent.current(of(node).now_ms())
    return None if lease is None else lease.holder


async def test_a_leader_that_stops_frees_all_leases_at_once(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    others = [node for node in nodes if node is not leader]
    assert leader.control_process is not None
    leader.control_process._stop.set()
    assert await world.wait_for(lambda: leader.host not in map(promised_to, others), 0.5)


async def test_the_leases_of_a_killed_leader_run_out(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    others = [node for node in nodes if node is not leader]
    leader.control.kill()
    await asyncio.sleep(9.0)
    assert [promised_to(node) for node in others] == [leader.host, leader.host]
    assert await world.wait_for(lambda: leader.host not in map(promised_to, others), 6.5)


async def test_any_node_collects_the_reports_without_a_majority(world: World, nodes: list[SimNode], /) -> None:
    follower = next(node for node in nodes if node is not leader_of(nodes))
    others = [node for node in nodes if node is not follower]
    for node in others:
        node.control.pause()
    assert follower.control_process is not None
    assert follower.control_process._leases is not None
    began = world.now()
    answer = await follower.control_process._leases._collect(ClusterLeadershipRequest(), cast("IncomingCall", None))
    assert world.now() - began < 1.1
    assert [report.host for report in answer.reports] == [follower.host]
    assert {silent.host for silent in answer.silent} == {node.host for node in others}
    for node in others:
        node.control.resume()


async def test_control_counts_what_becomes_of_leases_and_activities(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    others = [node for node in nodes if node is not leader]

    def count(node: SimNode, name: str, *labels: str) -> float:
        families = collect_metrics(of(node).metrics.metrics).metrics
        found = (series for family in families if family.name == name for series in family.series)
        return sum(series.value for series in found if series.labels == labels)

    assert {count(node, "lease_grants_total") for node in nodes} == {1}
    renewal = of(leader).core.renewal
    assert renewal is not None
    of(others[0])._abolish(renewal.lease_id)
    await asyncio.sleep(11.0)
    assert min(count(node, "lease_renewals_total") for node in nodes if node is not others[0]) >= 2
    assert count(others[0], "lease_refusals_total", "lease_lost") >= 1
    assert count(leader, "lease_losses_total") == 1
    await pause_all(others, 6.0)
    assert count(leader, "activities_ended_total", EndReason.NOT_LEADER) >= 1
    assert count(leader, "control_restarts_total") == 0


async def test_an_order_of_an_older_grant_is_stale(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)

    async def body(handle: RunningHandle) -> None:
        order = handle.order(follower.host)
        of(follower).core.agent.abolish(order.token.lease_id, of(follower).now_ms())
        with pytest.raises(Stale):
            await of(follower).activities.run_order(order, spec, forever)

    spec = ActivitySpec(name="step", domain="test", quorum=FOLLOWER, wait_ms=0)
    await of(leader).activities.run(SPEC, body)


async def test_a_grant_that_cannot_be_written_is_not_granted(world: World, nodes: list[SimNode], /) -> None:
    leader = leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)
    renewal = of(leader).core.renewal
    assert renewal is not None
    history = of(leader).group0.running.store.revision.history
    worker = renewal.workers[follower.host]
    worker.grant_number += 1
    request = LeaseRequest(
        grant=worker.grant_of(leader.host, renewal.lease_id), period_ms=15_000, history=history, term=renewal.term
    )
    with follower.control.machine.disk.inject(DiskFault(fail_sync=1.0)), pytest.raises(DiskFull):
        await of(follower).acquire(request, leader.host)
    assert of(follower).core.agent.current(of(follower).now_ms()) is None
    assert (await of(follower).acquire(request, leader.host)).reply is LeaseReply.OK


async def test_the_file_is_durable_before_the_answer(world: World, nodes: list[SimNode], /) -> None:
    """After `ok` and a power loss the node still honours the lease."""
    leader = leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)
    renewal = of(leader).core.renewal
    assert renewal is not None
    worker = renewal.workers[follower.host]
    worker.grant_number += 1
    request = LeaseRequest(
        grant=worker.grant_of(leader.host, renewal.lease_id),
        period_ms=15_000,
        history=of(leader).group0.running.store.revision.history,
        term=renewal.term,
    )
    leader.control.pause()
    assert (await of(follower).acquire(request, leader.host)).reply is LeaseReply.OK
    follower.control.crash()
    follower.control.start()
    await world.wait_for(lambda: follower.control_started == follower.control.start_count, 10.0)
    await asyncio.sleep(1.0)
    assert of(follower).core.agent.current(of(follower).now_ms()) == request.grant
    leader.control.resume()
