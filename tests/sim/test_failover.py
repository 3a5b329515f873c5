"""Failover in simulated clusters: under outages of every shape at a few seeds, and single stories."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.async_tests import runs_in

from ebla.group0.auto_failover import WhyNot
from ebla.group0.failover import voters_of
from ebla.group0.operations import Operation, OperationCode, OperationFailed, OperationKind
from ebla.model.identity import ClusterId, HostId, ShardNumber
from ebla.node.control_process import ControlProcess
from ebla.node.shard_process import ShardProcess
from ebla.settings_store.registry import AUTO_FAILOVER, AutoFailoverSettings
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World
from ebla.wire.failover_messages import FailoverStatusRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import FAILOVER_STATUS, SETTINGS_WRITE

AFTER_MS = 5_000
SILENCE_S = 3.0
LEASE_S = 15.0
ONE_SHARD = (ShardNumber(0),)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_majority_decides_who_is_excluded_and_no_row_is_lost(seed: int) -> None:
    """INV-FAIL-1 to INV-FAIL-3."""
    outcome = run_scenario(find_scenario("failover"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


class Story:
    """Three control processes whose leader holds all leases."""

    def __init__(self, world: World, *, has_shards: bool = False) -> None:
        self.world = world
        self.cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        self.nodes = [self.cluster.add_node(shards=ONE_SHARD, has_children=has_shards) for _ in range(3)]

    async def start(self) -> None:
        for unit in self.cluster.units():
            unit.start()
        await self.cluster.wait_all_normal()
        await self.until(lambda: len(self.voters()) == 3 and self.leases() == 3, 60.0)

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        self.world.check(await self.world.wait_for(condition, seconds), f"not within {seconds} s: {condition}")

    def process(self, node: SimNode) -> ControlProcess:
        assert node.live_control is not None
        return node.live_control

    @property
    def leader(self) -> SimNode:
        live = [node for node in self.nodes if node.live_control is not None and node.control.running]
        leaders = [node for node in live if (one := self.process(node).leadership) is not None and one.group0.leads]
        return max(leaders, key=lambda node: self.term(node))

    def term(self, node: SimNode) -> int:
        leadership = self.process(node).leadership
        return 0 if leadership is None else leadership.group0.running.raft.core.term

    @property
    def followers(self) -> list[SimNode]:
        return [node for node in self.nodes if node is not self.leader]

    def voters(self) -> tuple[HostId, ...]:
        leadership = self.process(self.leader).leadership
        assert leadership is not None
        return voters_of(leadership.group0.running.store.members.values())

    def leases(self) -> int:
        leadership = self.process(self.leader).leadership
        assert leadership is not None
        held = leadership.view().held
        return 0 if held is None else sum(until > leadership.now_ms() for until in held.deadlines.values())

    def excluded(self, node: SimNode) -> tuple[HostId, ...]:
        return () if node.snapshot is None else node.snapshot.excluded_hosts

    def sees_down(self, node: SimNode, host: HostId) -> bool:
        failover = self.process(node).failover
        assert failover is not None
        return any(one.host == host and one.state == "down" for one in failover.own_opinions())

    async def operate(self, asked: SimNode, kind: OperationKind, *nodes: SimNode, is_forced: bool = False) -> None:
        operations = self.process(asked).operations
        assert operations is not None
        hosts = tuple(node.host for node in nodes)
        await operations.request(
            Operation(id=self.world.rng.uuid(), kind=kind, hosts=hosts, is_forced=is_forced), 60_000
        )

    async def enable(self) -> None:
        """Automatic failover."""
        settings = AutoFailoverSettings(enabled=True, after_ms=AFTER_MS)
        change = SettingChange(AUTO_FAILOVER.name, msgspec.json.encode(settings).decode())
        connection = self.cluster.connection(self.world.scenario_environment("operator"), "operator")
        await connection.call(SETTINGS_WRITE, SettingsWriteRequest(changes=(change,)), 5_000)
        for _ in range(2):  # with the next entry each node stores that the change of the voters is committed
            await connection.call(FAILOVER_STATUS, FailoverStatusRequest(reset=True), 5_000)
            await asyncio.sleep(1.0)
        connection.leave()

        def is_everywhere() -> bool:
            found = [self.process(node).settings for node in self.nodes]
            return all(one is not None and one.value(AUTO_FAILOVER) == settings for one in found)

        await self.until(is_everywhere, 20.0)


def in_a_settled_cluster(tell: Callable[[Story], Awaitable[None]]) -> None:
    async def run(world: World) -> None:
        story = Story(world)
        await story.start()
        await tell(story)

    World(seed=5, seconds=240.0).run(run)


in_settled_cluster = runs_in(in_a_settled_cluster)


def test_an_excluded_node_serves_nothing() -> None:
    """INV-FAIL-3. The others treat it as down, and refuse its connections until it is recovered."""

    async def run(world: World) -> None:
        story = Story(world, has_shards=True)
        await story.start()

        def shard(node: SimNode) -> ShardProcess:
            process = node.shards[0].process
            assert process is not None
            return process

        excluded, other = story.followers
        await story.until(lambda: all(shard(node).serves() for node in story.nodes), 30.0)
        await story.operate(story.leader, OperationKind.EXCLUDE, excluded, is_forced=True)
        await story.until(lambda: not shard(excluded).serves(), story.cluster.limits.feed_silence_ms / 1000)
        await story.until(lambda: excluded.host in shard(other).view.down, 5.0)
        server = shard(other).for_peers
        assert server is not None
        assert server.excluded == {excluded.host}
        assert shard(other).serves()
        await asyncio.sleep(20.0)
        assert not shard(excluded).serves()
        await story.operate(story.leader, OperationKind.INCLUDE, excluded)
        await story.until(lambda: shard(excluded).serves(), 10.0)
        await story.until(lambda: excluded.host not in shard(other).view.down and not server.excluded, 5.0)

    World(seed=5, seconds=240.0).run(run)


@in_settled_cluster
async def test_a_dead_node_is_excluded_by_command_and_recovered(story: Story, /) -> None:
    dead, other = story.followers
    dead.control.crash()
    with pytest.raises(OperationFailed) as raised:
        await story.operate(other, OperationKind.EXCLUDE, dead)
    assert raised.value.code is OperationCode.REFUSED, "it is not silent for long enough"
    await story.until(lambda: story.sees_down(other, dead.host) and story.sees_down(story.leader, dead.host), 10.0)
    await story.operate(other, OperationKind.EXCLUDE, dead)
    assert story.excluded(story.leader) == (dead.host,)
    assert len(story.voters()) == 2, "its seat stays empty"
    with pytest.raises(OperationFailed, match="is down"):
        await story.operate(story.leader, OperationKind.INCLUDE, dead)
    dead.control.start()
    await story.until(lambda: story.excluded(dead) == (dead.host,), 30.0)
    await asyncio.sleep(10.0)
    assert dead.host not in story.voters()
    assert dead.host in story.process(dead).exclusions.hosts(), "a restart does not include it"
    await story.until(lambda: story.leases() == 3, 30.0)
    await story.operate(story.leader, OperationKind.INCLUDE, dead)
    assert len(story.voters()) == 3
    await story.until(lambda: story.process(dead).exclusions.hosts() == (), 10.0)


@in_settled_cluster
async def test_the_leader_and_a_live_node_are_refused(story: Story, /) -> None:
    for node, forced in ((story.leader, True), (story.followers[0], False)):
        with pytest.raises(OperationFailed) as raised:
            await story.operate(story.leader, OperationKind.EXCLUDE, node, is_forced=forced)
        assert raised.value.code is OperationCode.REFUSED
    assert story.excluded(story.leader) == ()
    await story.operate(story.leader, OperationKind.EXCLUDE, story.followers[0], is_forced=True)


@in_settled_cluster
async def test_a_node_that_cannot_reach_the_leader_hears_of_its_exclusion_from_another(story: Story, /) -> None:
    """INV-FAIL-3."""
    cut, other = story.followers
    for pair in ((cut, story.leader), (story.leader, cut)):
        story.world.network.cut(pair[0].control.name, pair[1].control.name)
    await story.operate(story.leader, OperationKind.EXCLUDE, cut, is_forced=True)
    await story.until(lambda: cut.host in story.process(cut).exclusions.hosts(), 5.0)
    assert story.excluded(cut) == (), "its group 0 does not know it"
    assert "another member" in story.process(cut).exclusions.why_own()
    assert story.process(other).exclusions.hosts() == (cut.host,)
    story.world.heal()


@in_settled_cluster
async def test_a_killed_leader_is_excluded_once_a_majority_has_granted_its_lease(story: Story, /) -> None:
    """Nodes restart with the lease of the dead leader saved, so the next one waits for it to run out, not longer."""
    await story.enable()
    dead = story.leader
    others = story.followers
    dead.control.crash()
    for node in others:
        node.control.crash()
        node.control.start()
    began = story.world.now()

    def why() -> list[WhyNot]:
        live = [node for node in others if node.live_control is not None]
        found = [self.failover for self in map(story.process, live) if self.failover is not None]
        return [one.why for failover in found for one in failover.auto.down if one.host == dead.host]

    await story.until(lambda: WhyNot.NO_QUORUM in why(), 20.0)
    assert story.leases() < 2, "it is due and waits for leases"
    await story.until(lambda: story.leases() >= 2, LEASE_S + 2.0)
    granted = story.world.now()
    await story.until(lambda: story.excluded(story.leader) == (dead.host,), 3.0)
    assert granted - began > SILENCE_S + AFTER_MS / 1000


@in_settled_cluster
async def test_a_node_that_was_just_added_delays_no_failover(story: Story, /) -> None:
    """It is a learner: neither its lease nor its opinion counts."""
    await story.enable()
    fresh = story.cluster.add_node(shards=ONE_SHARD, has_children=False)
    fresh.control.start()
    leadership = story.process(story.leader).leadership
    assert leadership is not None
    store = leadership.group0.running.store
    await story.until(lambda: len(store.present_members().members) == 4, 20.0)
    fresh.control.pause()
    dead = story.followers[0]
    dead.control.crash()
    # The leader asks the dead node for its opinion, too, for two seconds.
    await story.until(lambda: story.excluded(story.leader) == (dead.host,), SILENCE_S + AFTER_MS / 1000 + 4.0)
    story.world.heal()


@in_settled_cluster
async def test_the_time_starts_again_with_a_new_leader(story: Story, /) -> None:
    await story.enable()
    dead, other = story.followers
    dead.control.crash()
    await asyncio.sleep(SILENCE_S + AFTER_MS / 1000 - 1.5)
    assert story.excluded(story.leader) == ()
    former = story.leader
    former.control.pause()
    await story.until(lambda: story.process(other).leadership is not None, 1.0)
    await asyncio.sleep(2.0)
    former.control.resume()
    began = story.world.now()
    await story.until(lambda: story.excluded(story.leader) == (dead.host,), 60.0)
    assert story.world.now() - began > AFTER_MS / 1000 - 1.0, "neither a new leader nor one that stood still is early"
