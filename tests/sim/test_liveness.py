"""The liveness scenario at a few seeds, and targeted worlds for stopped, killed, cut and slow peers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.control.liveness.failure_detector import PeerLiveness, PeerState
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.sim.clusters.nodes import LIMITS, SimNode
from ebla.sim.scenario import run_scenario
from ebla.sim.scenarios.liveness import SCENARIO, SETTLE_S, build_cluster
from ebla.sim.world import World

SILENCE_S = LIMITS.peer_silence_ms / 1000
HEARTBEAT_S = LIMITS.peer_heartbeat_ms / 1000
SLACK_S = 0.2


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_opinions_are_right_under_faults(seed: int) -> None:
    outcome = run_scenario(SCENARIO, seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_scenario(SCENARIO, 5, 20.0).trace == run_scenario(SCENARIO, 5, 20.0).trace


def in_a_settled_world(story: Callable[[World, list[SimNode]], Awaitable[None]]) -> None:
    """Four nodes that all consider each other up; then the story."""

    async def run(world: World) -> None:
        nodes = build_cluster(world).nodes
        for node in nodes:
            for unit in node.units():
                unit.start()
        await asyncio.sleep(SETTLE_S)
        assert all(opinion.state is PeerState.UP for node in nodes for opinion in opinions(node))
        await story(world, nodes)

    World(seed=11, seconds=60.0).run(run)


pytestmark = runs_in(in_a_settled_world)


def opinions(node: SimNode) -> tuple[PeerLiveness, ...]:
    assert node.control_process is not None
    return node.control_process.peers()


def of(node: SimNode, peer: SimNode) -> PeerLiveness:
    (found,) = [opinion for opinion in opinions(node) if opinion.peer.host == peer.control.host]
    return found


@pytest.mark.parametrize("fault", ["pause", "kill", "crash"])
async def test_a_silent_peer_is_up_until_the_bound_and_down_after_it(
    world: World, nodes: list[SimNode], /, fault: str
) -> None:
    getattr(nodes[1].control, fault)()
    await asyncio.sleep(SILENCE_S - HEARTBEAT_S - SLACK_S)
    assert of(nodes[0], nodes[1]).state is PeerState.UP, "too early: one late answer would mean down"
    await asyncio.sleep(HEARTBEAT_S + 2 * SLACK_S)
    assert of(nodes[0], nodes[1]).state is PeerState.DOWN
    assert of(nodes[0], nodes[2]).state is PeerState.UP


async def test_a_cut_in_one_direction_is_down_for_both_sides(world: World, nodes: list[SimNode], /) -> None:
    world.network.cut(nodes[0].control.name, nodes[1].control.name)
    await asyncio.sleep(SILENCE_S + SLACK_S)
    assert of(nodes[0], nodes[1]).state is PeerState.DOWN
    assert of(nodes[1], nodes[0]).state is PeerState.DOWN
    world.network.heal()
    await asyncio.sleep(SETTLE_S)
    assert of(nodes[0], nodes[1]).state is PeerState.UP
    assert of(nodes[1], nodes[0]).state is PeerState.UP


async def test_a_slow_peer_stays_up_and_its_distance_is_measured(world: World, nodes: list[SimNode], /) -> None:
    one, other = nodes[0].control.name, nodes[1].control.name
    world.network.path(one, other).extra_latency_ms = 800.0
    world.network.path(other, one).extra_latency_ms = 200.0
    for _ in range(60):
        await asyncio.sleep(0.5)
        assert of(nodes[0], nodes[1]).state is PeerState.UP
    measured = of(nodes[0], nodes[1])
    assert measured.round_trip_us is not None
    assert 950_000 < measured.round_trip_us < 1_100_000
    near = of(nodes[0], nodes[2]).round_trip_us
    assert near is not None
    assert near < 50_000


async def test_a_node_that_was_stopped_itself_trusts_no_old_answer(world: World, nodes: list[SimNode], /) -> None:
    """Its sockets hold answers of a peer that died meanwhile: they count from the time of the request, not from now."""
    one, other = nodes[0].control.name, nodes[1].control.name
    world.network.path(other, one).extra_latency_ms = 800.0
    await asyncio.sleep(SILENCE_S)
    nodes[0].control.pause()
    await asyncio.sleep(1.0)
    nodes[1].control.crash()
    await asyncio.sleep(SILENCE_S - 1.5)
    nodes[0].control.resume()
    await asyncio.sleep(0.5 + SLACK_S)
    assert of(nodes[0], nodes[1]).state is PeerState.DOWN


async def test_a_connection_that_the_peer_has_forgotten_is_replaced(world: World, nodes: list[SimNode], /) -> None:
    """It loses everything and never ends, as when a firewall loses its state. It is replaced once the peer is down,
    seconds before the wire itself would give it up."""
    one, other = nodes[0].control.name, nodes[1].control.name
    ends = [link for link in world.network._links.values() if (link.here.name, link.other.here.name) == (other, one)]
    assert ends
    for end in ends:
        end.open = False
    before = of(nodes[0], nodes[1])
    await asyncio.sleep(SILENCE_S + 3 * HEARTBEAT_S)
    after = of(nodes[0], nodes[1])
    assert after.state is PeerState.UP
    assert after.since_ms > before.since_ms, "it was down for a while"


async def test_a_restart_between_two_beats_shows_in_the_opinion(world: World, nodes: list[SimNode], /) -> None:
    before = of(nodes[0], nodes[1])
    nodes[1].control.kill()
    nodes[1].control.start()
    await asyncio.sleep(SETTLE_S)
    after = of(nodes[0], nodes[1])
    assert after.state is PeerState.UP
    assert after.host == before.host
    assert after.incarnation != before.incarnation
    assert after.since_ms > before.since_ms


async def test_a_node_whose_disk_fails_says_why_and_is_still_there_to_be_asked(
    world: World, nodes: list[SimNode], /
) -> None:
    """So the node stops cleanly, and its reason is in `ebla status`, not in a traceback."""
    nodes[1].control.kill()
    nodes[1].control.machine.disk.fill()
    nodes[1].control.start()
    await asyncio.sleep(SETTLE_S)
    process = nodes[1].control_process
    assert process is not None
    assert process.gave_up is not None
    assert "no room" in process.gave_up
    assert of(nodes[0], nodes[1]).state is PeerState.UP


async def test_a_shard_stops_serving_without_its_control_and_goes_on_when_it_is_back(
    world: World, nodes: list[SimNode], /
) -> None:
    shard = nodes[0].shards[0].process
    assert shard is not None
    assert shard.serves()
    nodes[0].control.pause()
    await asyncio.sleep(5.0 + SLACK_S)
    assert not shard.serves()
    nodes[0].control.resume()
    await asyncio.sleep(2.5)
    assert shard.serves()


async def test_the_right_to_serve_counts_from_the_question(world: World, nodes: list[SimNode], /) -> None:
    """INV-SERVE-1: the shard is paused while an answer is on the way, and its control dies, at any moment."""
    node = nodes[0]
    world.network.path(node.shards[0].unit.name, node.control.name).extra_latency_ms = 150.0
    world.network.path(node.control.name, node.shards[0].unit.name).extra_latency_ms = 150.0
    for moment in range(14):
        await asyncio.sleep(SETTLE_S + moment * 0.1)
        node.shards[0].unit.pause()
        node.control.kill()
        await asyncio.sleep(0.5)
        node.shards[0].unit.resume()
        await asyncio.sleep(5.0 - 0.5 + 0.05)
        process = node.shards[0].process
        assert process is not None
        assert not process.serves()
        # The feed, which is silent as well, would hide a heartbeat that counts from its answer.
        silent_ms = process._right.silent_ms(process.environment.clock.boot_ms())
        assert silent_ms is not None
        assert silent_ms >= 5_000
        node.control.start()


async def test_a_node_whose_clock_is_far_ahead_of_the_others_assigns_no_timestamps(
    world: World, nodes: list[SimNode], /
) -> None:
    def skewed(node: SimNode) -> list[bool]:
        clocks = monitor(node).clocks()
        return [clocks[other.host].is_skewed for other in nodes if other is not node]

    def assigns(node: SimNode) -> bool:
        process = node.shards[0].process
        assert process is not None
        return not process._timestamps.is_clock_wrong

    ahead_us = LIMITS.timestamp_ahead_max_ms * 1000 + 10_000_000
    assert [skewed(node) for node in nodes] == [[False] * 3] * 4
    nodes[0].control.machine.clock.jump(ahead_us)
    await asyncio.sleep(8 * HEARTBEAT_S)
    assert abs(monitor(nodes[0]).clock_ahead_ms() - ahead_us // 1000) < 2_000
    assert [monitor(node).clock_ahead_ms() < 2_000 for node in nodes] == [False, True, True, True]
    assert [skewed(node) for node in nodes] == [[True] * 3, *[[True, False, False]] * 3]
    assert [assigns(node) for node in nodes] == [False, True, True, True]
    nodes[0].control.machine.clock.jump(-ahead_us)
    await asyncio.sleep(8 * HEARTBEAT_S)
    assert [skewed(node) for node in nodes] == [[False] * 3] * 4
    assert all(assigns(node) for node in nodes)


def monitor(node: SimNode) -> HeartbeatMonitor:
    assert node.control_process is not None
    assert node.control_process._liveness is not None
    return node.control_process._liveness
