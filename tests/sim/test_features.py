"""A rolling upgrade: a feature is used once every member has it, and from then on by members only that have it."""

from dataclasses import dataclass

import pytest

from ebla.control.group0.member_features import why_not_in_use
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.group0.members import Member, member_key
from ebla.group0.start_record import start_key
from ebla.group0.store import Group0Store, KeyEntry
from ebla.leadership.activities import ActivityRefused, ActivitySpec, Precondition
from ebla.leadership.quorum import AllOf
from ebla.model.identity import ClusterId
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.world import World
from ebla.version import Feature

PURGE, LEASES = Feature.SETTINGS_PURGE, Feature.LEADER_LEASES


@dataclass
class Upgrade:
    world: World
    cluster: SimCluster

    def store(self, node: SimNode) -> Group0Store | None:
        control = node.control_process
        return None if node.control.down or control is None else control.topology.store

    def entry(self, of: SimNode, at: SimNode) -> Member | None:
        store = self.store(at)
        return None if store is None else store.members.get(member_key(of.host))

    def start_of(self, of: SimNode, at: SimNode) -> KeyEntry | None:
        store = self.store(at)
        return None if store is None else store.get(start_key(of.host))

    async def restart(self, node: SimNode, *hidden: Feature) -> None:
        node.control.crash()
        node.hidden_features = hidden
        node.control.start()

    async def wait_features(self, node: SimNode, *features: str) -> None:
        """Until every node sees it advertise them."""

        def advertised() -> bool:
            entries = [self.entry(node, at) for at in self.cluster.nodes if not at.control.down]
            return all(entry is not None and {*features} <= {*entry.features} for entry in entries)

        assert await self.world.wait_for(advertised, 60)

    async def wait_refused(self, node: SimNode) -> None:
        assert await self.world.wait_for(lambda: node.control.down, 60)
        assert node.control_process is not None
        assert PURGE in (node.control_process.gave_up or "")


async def roll(world: World) -> None:
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    upgrade = Upgrade(world, cluster)
    first, second, third = (cluster.add_node(has_children=False) for _ in range(3))
    for node in cluster.nodes:
        node.hidden_features = (PURGE,)
        node.control.start()
    await cluster.wait_all_normal()
    for node in (first, second):
        await upgrade.restart(node)
        await upgrade.wait_features(node, LEASES, PURGE)
    store = upgrade.store(first)
    assert store is not None
    assert str(third.host) in why_not_in_use(store, PURGE)
    await upgrade.restart(third)
    await upgrade.wait_features(third, LEASES, PURGE)

    def in_use() -> bool:
        store = upgrade.store(first)
        return store is not None and not why_not_in_use(store, PURGE)

    assert await world.wait_for(in_use, 60)
    confirmed = upgrade.start_of(third, first)
    await upgrade.restart(third, PURGE)
    await upgrade.wait_refused(third)
    assert upgrade.start_of(third, first) == confirmed, "it is refused before its start is confirmed"
    await upgrade.restart(third)
    await upgrade.wait_features(third, LEASES, PURGE)
    late = cluster.add_node(has_children=False)
    late.hidden_features = (PURGE,)
    late.control.start()
    await upgrade.wait_refused(late)
    assert upgrade.entry(late, first) is None, "a node that cannot read what members commit does not become one"


def test_a_feature_is_used_once_every_member_has_it_and_no_member_runs_without_it() -> None:
    World(seed=1, seconds=60).run(roll)


async def wait_for_leases(world: World) -> None:
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    upgrade = Upgrade(world, cluster)
    for _ in range(3):
        node = cluster.add_node(has_children=False)
        node.hidden_features = (LEASES,)
        node.control.start()
    for node in cluster.nodes:
        await upgrade.wait_features(node, PURGE)

    def leading() -> LeadershipNode | None:
        processes = [node.control_process for node in cluster.nodes if node.control_process is not None]
        found = [process.leadership for process in processes if process.leadership is not None]
        return next((one for one in found if one.view().held is not None), None)

    async def nothing(_handle: RunningHandle) -> None:
        pass

    assert await world.wait_for(lambda: leading() is not None, 60)
    leader = leading()
    assert leader is not None
    hosts = tuple(node.host for node in cluster.nodes)
    spec = ActivitySpec(name="all", domain="test", quorum=(AllOf(hosts),), wait_ms=2_000)
    with pytest.raises(ActivityRefused) as raised:
        await leader.activities.run(spec, nothing)
    assert raised.value.precondition is Precondition.NO_QUORUM
    for host in hosts:
        named = f"{host} (older release sim without leases)" in raised.value.message
        assert named is (host != leader.core.own), "its own lease it gets without the wire"


def test_activities_wait_for_leases_and_name_the_nodes_of_an_older_release() -> None:
    World(seed=1, seconds=60).run(wait_for_leases)
