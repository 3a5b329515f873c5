"""What a node reports about itself."""

import uuid
from dataclasses import replace

import msgspec
from tests.unit.topology.small_cluster import TABLE
from tests.unit.topology.small_cluster import cluster as small_cluster
from tests.unit.topology.world import cluster, host

from ebla.model.identity import HistoryId, HostId, Replica, ShardNumber, TopologyVersion
from ebla.node.node_status import TabletCounter, child_warnings, topology_status, with_versions
from ebla.topology.commands import ExcludeHosts, SetIgnoredNodes
from ebla.topology.snapshot import Exclusion
from ebla.topology.states import NodeState
from ebla.topology.tablet_map import tablet_map
from ebla.wire.feed_messages import ChildReport
from ebla.wire.verbs import ChildBeatRequest, ProcessState, ProcessStatus

SEVEN = TopologyVersion(7)


def status(pid: int) -> ProcessStatus:
    return ProcessStatus(name="shard-0", pid=pid, started_wall_us=0, state=ProcessState.RUNNING)


def report(pid: int, trouble: str = "") -> ChildReport:
    history = HistoryId(uuid.UUID(int=1))
    return ChildReport(
        name="shard-0",
        pid=pid,
        version=SEVEN,
        fence=SEVEN,
        oldest_running=SEVEN,
        pending_replicas_open=True,
        history=history,
        trouble=trouble,
    )


def test_a_process_is_told_with_the_version_it_has_and_whether_it_serves() -> None:
    beat = ChildBeatRequest(name="shard-0", pid=10, serving=True)
    (reported,) = with_versions([status(10)], {"shard-0": report(10, "no space")}, {"shard-0": beat})
    assert (reported.version, reported.serving, reported.trouble) == (7, True, "no space")


def test_what_a_predecessor_said_is_not_its_successors() -> None:
    beat = ChildBeatRequest(name="shard-0", pid=10, serving=True)
    (reported,) = with_versions([status(11)], {"shard-0": report(10, "no space")}, {"shard-0": beat})
    assert reported == status(11)


def test_a_shard_is_told_with_what_it_stores() -> None:
    beat = ChildBeatRequest(name="shard-0", pid=10, serving=True, load_bytes=2048)
    assert [one.load_bytes for one in with_versions([status(10), status(11)], {}, {"shard-0": beat})] == [2048, None]


def test_tablets_are_counted_by_host_and_only_maps_that_changed_are_counted_again() -> None:
    one, two = HostId(uuid.UUID(int=1)), HostId(uuid.UUID(int=2))
    both = tuple(Replica(host, ShardNumber(0)) for host in (one, two))
    before = small_cluster(tablets=tablet_map(TABLE, [both, both, both[:1], both[:1]]))
    counter = TabletCounter()
    assert counter.count(before) == {one: 4, two: 2}
    assert counter.count(before) == {one: 4, two: 2}
    after = small_cluster(tablets=before.tablets[TABLE].with_replicas(2, both))
    assert counter.count(after) == {one: 4, two: 3}
    assert counter.count(small_cluster()) == {}


def test_a_process_that_said_nothing_is_told_as_it_is() -> None:
    assert with_versions([status(10)], {}, {}) == (status(10),)


def test_children_that_warn_of_the_same_are_one_warning() -> None:
    beats = {
        name: ChildBeatRequest(name=name, pid=pid, serving=True, warning=warning)
        for name, pid, warning in [
            ("shard-0", 1, "full"),
            ("shard-1", 2, "full"),
            ("shard-2", 3, ""),
            ("bulk", 4, "slow"),
        ]
    }
    names = {"shard-0": 1, "shard-1": 2, "shard-2": 3, "bulk": 4, "pipeline": 5}
    statuses = [ProcessStatus(name=name, pid=pid, started_wall_us=0) for name, pid in names.items()]
    assert child_warnings(statuses, beats) == ("shard-0, shard-1: full", "bulk: slow")
    successors = [ProcessStatus(name=name, pid=pid + 10, started_wall_us=0) for name, pid in names.items()]
    assert child_warnings(successors, beats) == ()


def test_the_topology_is_told_with_every_node_that_has_not_left() -> None:
    world, _ = cluster(3)
    snapshot = world.snapshot
    first, *_ = snapshot.members()
    reported = topology_status(snapshot, "something", {first.host: 7})
    assert (reported.version, reported.fence, reported.waits_for) == (snapshot.version, snapshot.fence, "something")
    assert [state for _, state in reported.nodes] == [NodeState.NORMAL.value] * 3
    assert reported.transition == ""
    assert [one.tablets for one in reported.counts] == [7, 0, 0]
    assert [one.shards for one in reported.counts] == [node.shard_count for node in snapshot.members()]


def test_excluded_and_incomplete_nodes_are_reported_with_how_they_were_excluded() -> None:
    world, _ = cluster(4)
    world.do(SetIgnoredNodes((host(4),)))
    by_hand = Exclusion(host=host(2), since_ms=1, by=host(1))
    world.do(ExcludeHosts((by_hand, Exclusion(host=host(3), since_ms=1, by=host(1), is_automatic=True))))
    incomplete = msgspec.structs.replace(world.snapshot.node(host(4)), is_incomplete=True)
    snapshot = replace(world.snapshot, nodes=world.snapshot.nodes.put(host(4), incomplete))
    reported = topology_status(snapshot, "", {})
    assert dict(reported.excluded) == {host(2): "by hand", host(3): "automatically", host(4): "by a request"}
    assert reported.incomplete == (host(4),)
