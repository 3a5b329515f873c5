"""Fence, features, ignored nodes, CDC generations, the upgrade."""

from dataclasses import replace

import msgspec
from tests.unit.topology.world import FEATURES, World, cluster, host

from ebla.model.identity import HostId, RequestId, TopologyVersion
from ebla.topology.apply.command import Rejection, apply_command
from ebla.topology.commands import (
    AbortRequest,
    BuildCoordinatorState,
    DropCdcGenerations,
    ExcludeHosts,
    FencePredecessor,
    IncludeHost,
    MarkCdcPublished,
    RaiseFence,
    RefreshNode,
    RemoveNodeWithoutData,
    ResetFailoverCount,
    SetBalancing,
    SetIgnoredNodes,
    StartCdcCommit,
    StartNodeRequest,
    StartUpgrade,
    WriteCdcPart,
)
from ebla.topology.next_step import BuildState, Rest, next_step
from ebla.topology.snapshot import CdcGenerationPart, Exclusion, Keyspace, Replication
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState, Strategy, TransitionState, UpgradeState


def test_the_fence_rises_and_never_falls() -> None:
    """INV-NODE-5."""
    world, _ = cluster(3)
    version, fence = world.snapshot.version, world.snapshot.fence
    assert fence < version
    world.do(RaiseFence(version))
    assert (world.snapshot.fence, world.snapshot.version) == (version, version)
    assert "never falls" in world.refused(RaiseFence(fence))
    assert "ahead" in world.refused(RaiseFence(TopologyVersion(version + 1)))


def test_a_new_coordinator_fences_what_its_predecessor_has_in_flight() -> None:
    world, _ = cluster(2)
    request = world.ask_to_join(world.node(3))
    in_flight = apply_command(world.snapshot, StartNodeRequest(request.id))
    assert not isinstance(in_flight, Rejection)
    before = world.snapshot
    world.do(FencePredecessor())
    assert world.snapshot == before, "nothing but the revision of the row changes"
    assert world.group0.commit(in_flight.transaction) is None
    world.do(StartNodeRequest(request.id))


def test_there_is_no_predecessor_before_the_topology() -> None:
    assert "not created" in World().refused(FencePredecessor())


def test_ignored_nodes_are_members() -> None:
    world, coordinator = cluster(4)
    world.do(SetIgnoredNodes((host(3), host(2), host(2))))
    assert world.snapshot.state.ignored_nodes == (host(2), host(3))
    world.do(SetIgnoredNodes(()))
    assert "no member" in world.refused(SetIgnoredNodes((host(77),)))
    world.ask(NodeRequestKind.LEAVE, 4)
    coordinator.settle()
    assert "no member" in world.refused(SetIgnoredNodes((host(4),)))


def test_who_an_open_request_ignores_stays_ignored() -> None:
    world, coordinator = cluster(4)
    world.dead |= {host(2), host(3)}
    world.ask(NodeRequestKind.REMOVE, 2, ignored_nodes=(host(3),))
    assert "excluded by a request" in world.refused(SetIgnoredNodes((host(2),)))
    coordinator.until(TransitionState.TABLET_DRAINING)
    assert "being removed" in world.refused(SetIgnoredNodes((host(3),)))
    coordinator.settle()
    assert world.snapshot.state.ignored_nodes == (host(3),), "the one that left is not ignored any more"


def exclusion(number: int, *, automatic: bool = False) -> Exclusion:
    return Exclusion(host=host(number), since_ms=1, by=host(1), is_automatic=automatic)


def excluded(world: World) -> tuple[HostId, ...]:
    return world.snapshot.excluded_hosts


def ignored(world: World) -> tuple[HostId, ...]:
    return world.snapshot.state.ignored_nodes


def test_excluded_hosts_are_ignored_until_they_are_included() -> None:
    world, _ = cluster(4)
    version = world.snapshot.version
    world.do(ExcludeHosts((exclusion(4, automatic=True), exclusion(3))))
    assert world.snapshot.version == version + 1, "the nodes must see it"
    assert excluded(world) == ignored(world) == (host(3), host(4))
    assert world.snapshot.state.failover_count == 1, "manual ones do not count"
    world.do(SetIgnoredNodes((host(2),)))
    assert ignored(world) == (host(2), host(3), host(4))
    world.do(IncludeHost(host(3)))
    assert excluded(world) == ignored(world) == (host(2), host(4))
    assert "not excluded" in world.refused(IncludeHost(host(3)))


def test_several_hosts_are_all_excluded_or_none_and_count_once() -> None:
    world, _ = cluster(3)
    world.do(ExcludeHosts((exclusion(3, automatic=True),)))
    assert "excluded already" in world.refused(ExcludeHosts((exclusion(2), exclusion(3, automatic=True))))
    assert "no member" in world.refused(ExcludeHosts((exclusion(2), exclusion(77))))
    assert "twice" in world.refused(ExcludeHosts((exclusion(2), exclusion(2))))
    assert "no host" in world.refused(ExcludeHosts(()))
    assert (world.snapshot.excluded_hosts, world.snapshot.state.failover_count) == ((host(3),), 1)
    world.do(ResetFailoverCount())
    assert world.snapshot.state.failover_count == 0
    assert world.snapshot.excluded_hosts == (host(3),)


def test_a_failed_request_does_not_include_an_excluded_host() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    world.do(ExcludeHosts((exclusion(3),)))
    request = world.ask(NodeRequestKind.REMOVE, 3)
    assert "excluded by a request" in world.refused(IncludeHost(host(3)))
    world.do(AbortRequest(request.id, "never mind", world.now_ms))
    assert world.snapshot.state.ignored_nodes == (host(3),)
    world.do(IncludeHost(host(3)))
    assert not world.snapshot.state.ignored_nodes


def test_a_host_that_leaves_loses_its_exclusion() -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(3))
    world.do(ExcludeHosts((exclusion(3),)))
    world.ask(NodeRequestKind.REMOVE, 3)
    coordinator.settle()
    assert world.snapshot.node(host(3)).state is NodeState.LEFT
    assert not world.snapshot.state.exclusions


def test_an_excluded_host_of_a_cluster_without_tables_can_be_removed() -> None:
    world, _ = cluster(3)
    world.do(ExcludeHosts((exclusion(3),)))
    world.do(RemoveNodeWithoutData(host(3), world.now_ms))
    assert not world.snapshot.state.exclusions
    assert not ignored(world)


def refresh(number: int, shards: int = 2) -> RefreshNode:
    return RefreshNode(
        host=host(number),
        release_version="2.0",
        address="127.9.9.9",
        shard_count=shards,
        ignore_msb=10,
        supported_features=FEATURES,
    )


def test_a_node_comes_back_changed() -> None:
    world, coordinator = cluster(3)
    world.do(refresh(2, 5))
    node = world.snapshot.node(host(2))
    assert (node.release_version, node.address, node.shard_count, node.ignore_msb) == ("2.0", "127.9.9.9", 5, 10)
    assert "not a member" in world.refused(refresh(77))
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.settle()
    assert "cannot come back" in world.refused(refresh(2))


def test_shards_with_tablets_do_not_go() -> None:
    world, _ = cluster(2)
    world.create_table(4, 1)
    assert "drain it first" in world.refused(refresh(2, 1))
    empty, _ = cluster(2)
    empty.do(refresh(2, 1))


def test_balancing_is_switched() -> None:
    world, _ = cluster(1)
    world.do(SetBalancing(False))
    assert not world.snapshot.state.balancing_enabled


def test_generations_are_published_oldest_first() -> None:
    world, coordinator = cluster(2)
    by_age = sorted(world.snapshot.cdc_generations.values(), key=lambda each: each.timestamp_ms or 0)
    assert "comes first" in world.refused(MarkCdcPublished(by_age[1].id))
    world.do(MarkCdcPublished(by_age[0].id))
    world.do(MarkCdcPublished(by_age[1].id))
    data = world.write_generation()
    assert "not committed" in world.refused(MarkCdcPublished(data))
    assert "no CDC generation" in world.refused(MarkCdcPublished(world.new_id()))
    coordinator.settle()


def test_generations_in_use_are_not_dropped() -> None:
    world, _ = cluster(2)
    old, new = sorted(world.snapshot.cdc_generations.values(), key=lambda each: each.timestamp_ms or 0)
    assert "not published" in world.refused(DropCdcGenerations((old.id,)))
    world.do(MarkCdcPublished(old.id))
    world.do(MarkCdcPublished(new.id))
    assert "newest" in world.refused(DropCdcGenerations((new.id,)))
    assert "no CDC generation" in world.refused(DropCdcGenerations((world.new_id(),)))
    world.do(DropCdcGenerations((old.id,)))
    assert list(world.snapshot.cdc_generations) == [new.id]
    assert all(generation == new.id for generation, _ in world.snapshot.cdc_parts)


def test_a_generation_about_to_be_committed_stays() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    generation = world.snapshot.state.new_cdc_generation
    assert generation is not None
    assert "about to be committed" in world.refused(DropCdcGenerations((generation,)))


def test_a_committed_generation_does_not_change() -> None:
    world, _ = cluster(1)
    (head,) = world.snapshot.cdc_generations.values()
    part = CdcGenerationPart(())
    assert "does not change" in world.refused(
        WriteCdcPart(generation=head.id, part_count=head.part_count, number=0, part=part)
    )


def test_a_commit_of_a_generation_starts_at_rest_with_complete_data() -> None:
    world, coordinator = cluster(2)
    generation = world.write_generation()
    unknown = RequestId(world.new_id())
    assert "not the next" in world.refused(StartCdcCommit(unknown, generation))
    request = world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    half = world.new_id()
    world.do(WriteCdcPart(generation=half, part_count=2, number=0, part=CdcGenerationPart(())))
    assert "lacks 1 of 2" in world.refused(StartCdcCommit(request.id, half))
    world.ask_to_join(world.node(3))
    coordinator.step()
    assert "topology is in" in world.refused(StartCdcCommit(request.id, generation))
    coordinator.settle()
    world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    head = world.snapshot.state.global_requests[0]
    assert "node is in transition" in world.refused(StartCdcCommit(head, generation))


def legacy() -> World:
    """A cluster whose topology is still in the settings."""
    world = World()
    world.do(StartUpgrade())
    return world


def test_the_upgrade_waits_for_the_operator() -> None:
    world = World()
    assert isinstance(next_step(world.snapshot, world.liveness), Rest)
    world.do(StartUpgrade())
    assert isinstance(next_step(world.snapshot, world.liveness), BuildState)
    assert "build_coordinator_state" in world.refused(StartUpgrade())


def test_the_upgrade_takes_over_what_the_settings_said() -> None:
    world = legacy()
    nodes = (
        world.node(1, state=NodeState.NORMAL, tokens=(1, 2)),
        world.node(2, state=NodeState.NORMAL, tokens=(3,)),
        world.node(3, state=NodeState.LEFT),
    )
    keyspace = Keyspace(name="ks", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 2),)), on_tablets=False)
    generation = world.write_generation()
    command = BuildCoordinatorState(
        nodes=nodes, keyspaces=(keyspace,), tables=(), generation=generation, timestamp_ms=world.now_ms
    )
    tablets = msgspec.structs.replace(command, keyspaces=(msgspec.structs.replace(keyspace, on_tablets=True),))
    assert "is on tablets" in world.refused(tablets)
    clash = msgspec.structs.replace(command, nodes=(*nodes, world.node(4, state=NodeState.NORMAL, tokens=(3,))))
    assert "two nodes own one token" in world.refused(clash)
    moving = msgspec.structs.replace(command, nodes=(world.node(4, state=NodeState.BOOTSTRAPPING),))
    assert "on the move" in world.refused(moving)
    left = world.node(2, state=NodeState.LEFT)
    remembered = replace(world.snapshot, nodes=world.snapshot.nodes.put(left.host, left))
    back = apply_command(remembered, command)
    assert isinstance(back, Rejection)
    assert "cannot come back" in back.reason
    world.do(command)
    assert world.snapshot.state.upgrade is UpgradeState.DONE
    assert [node.host for node in world.snapshot.members()] == [host(1), host(2)]
    assert world.snapshot.keyspaces == {"ks": keyspace}
    assert "is done" in world.refused(command)
