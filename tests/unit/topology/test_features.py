from tests.unit.topology.world import FEATURES, World, cluster, host

from ebla.model.identity import TopologyVersion
from ebla.topology.commands import EnableFeatures, RefreshNode
from ebla.topology.features import features_to_enable, missing_to_join, missing_to_start, supported_by_all
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import TransitionState


def refresh(number: int, *features: str) -> RefreshNode:
    return RefreshNode(
        host=host(number),
        release_version="2.0",
        address="127.0.0.9",
        shard_count=2,
        ignore_msb=12,
        supported_features=features,
    )


def test_a_feature_is_enabled_once_every_node_has_it() -> None:
    world, coordinator = cluster(2)
    world.do(refresh(1, *FEATURES, "gamma"))
    assert features_to_enable(world.snapshot) == ()
    assert "gamma" in world.refused(EnableFeatures(("gamma",), world.snapshot.version))
    world.do(refresh(2, *FEATURES, "gamma"))
    assert features_to_enable(world.snapshot) == ("gamma",)
    coordinator.settle()
    assert world.snapshot.state.enabled_features == ("alpha", "beta", "gamma")


def test_a_feature_is_enabled_when_idle_after_a_barrier() -> None:
    """Another node may restart with an older release until it has seen the version in which all support it."""
    world, coordinator = cluster(2)
    for number in (1, 2):
        world.do(refresh(number, *FEATURES, "gamma"))
    earlier = TopologyVersion(world.snapshot.version - 1)
    assert "no barrier yet" in world.refused(EnableFeatures(("gamma",), earlier))
    world.ask_to_join(world.node(3, supported_features=(*FEATURES, "gamma")))
    coordinator.until(TransitionState.JOIN_GROUP0)
    assert "join" in world.refused(EnableFeatures(("gamma",), world.snapshot.version))
    coordinator.settle()
    assert world.snapshot.state.enabled_features == ("alpha", "beta", "gamma")
    assert world.snapshot.fence == world.snapshot.version - 1


def test_a_node_is_not_started_without_what_all_support() -> None:
    world, _ = cluster(2)
    for number in (1, 2):
        world.do(refresh(number, *FEATURES, "gamma"))
    assert missing_to_start(world.snapshot, FEATURES) == ("gamma",), "it may be enabled at any moment"
    assert "gamma" in world.refused(refresh(2, *FEATURES))


def test_a_joining_node_needs_only_what_is_enabled() -> None:
    world, _ = cluster(2)
    for number in (1, 2):
        world.do(refresh(number, *FEATURES, "gamma"))
    assert missing_to_join(world.snapshot.state, FEATURES) == ()
    assert missing_to_join(world.snapshot.state, ("beta",)) == ("alpha",)


def test_a_node_that_only_asked_to_join_does_not_count() -> None:
    world, _ = cluster(1)
    world.ask_to_join(World().node(2, supported_features=()))
    assert supported_by_all(world.snapshot) == FEATURES


def test_nobody_supports_nothing() -> None:
    assert supported_by_all(Snapshot()) == ()
