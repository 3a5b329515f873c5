"""What a node reports about itself."""

import uuid

from tests.unit.topology.world import cluster

from ebla.control.control_process import topology_status, with_versions
from ebla.model.identity import HistoryId, TopologyVersion
from ebla.topology.states import NodeState
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
    beat = ChildBeatRequest("shard-0", 10, serving=True)
    (reported,) = with_versions([status(10)], {"shard-0": report(10, "no space")}, {"shard-0": beat})
    assert (reported.version, reported.serving, reported.trouble) == (7, True, "no space")


def test_what_a_predecessor_said_is_not_its_successors() -> None:
    beat = ChildBeatRequest("shard-0", 10, serving=True)
    (reported,) = with_versions([status(11)], {"shard-0": report(10, "no space")}, {"shard-0": beat})
    assert reported == status(11)


def test_a_process_that_said_nothing_is_told_as_it_is() -> None:
    assert with_versions([status(10)], {}, {}) == (status(10),)


def test_the_topology_is_told_with_every_node_that_has_not_left() -> None:
    world, _ = cluster(3)
    snapshot = world.snapshot
    reported = topology_status(snapshot, "something")
    assert (reported.version, reported.fence, reported.waits_for) == (snapshot.version, snapshot.fence, "something")
    assert [state for _, state in reported.nodes] == [NodeState.NORMAL.value] * 3
    assert reported.transition == ""
