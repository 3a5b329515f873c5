"""Where the pipeline runs."""

import msgspec
import pytest
from tests.unit.topology.world import cluster, host

from ebla.node.control_process import should_run_pipeline
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.wire.verbs import ProcessStatus

SERVES, STARTS = (
    ProcessStatus(name="shard-1", pid=5, started_wall_us=0, serving=True),
    ProcessStatus(name="shard-0", pid=4, started_wall_us=0),
)
BULK = ProcessStatus(name="bulk", pid=6, started_wall_us=0, serving=True)


def node(state: NodeState = NodeState.NORMAL) -> Node:
    world, _ = cluster(1)
    return msgspec.structs.replace(world.snapshot.nodes[host(1)], state=state)


@pytest.mark.parametrize(
    ("own", "processes", "leads", "runs", "wanted"),
    [
        (node(), (STARTS, SERVES), True, False, True),
        (node(NodeState.REBUILDING), (SERVES,), True, False, True),
        (node(), (STARTS, BULK), True, False, False),
        (node(), (STARTS, BULK), True, True, True),
        (node(), (SERVES,), False, True, False),
        (node(NodeState.BOOTSTRAPPING), (SERVES,), True, False, False),
        (node(NodeState.LEFT), (SERVES,), True, True, False),
        (None, (SERVES,), True, False, False),
    ],
)
def test_it_runs_beside_the_leader_once_that_serves(
    own: Node | None, processes: tuple[ProcessStatus, ...], leads: bool, runs: bool, wanted: bool
) -> None:
    assert should_run_pipeline(own, processes, leads=leads, runs=runs) is wanted
