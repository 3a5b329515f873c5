"""What `ebla up` waits for."""

from typing import cast

import msgspec
import pytest

from ebla.cli.cluster import up
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.client.cluster_view import ClusterView, Group0View, NodeStatus, NodeView, RingView
from ebla.model.errors import Unavailable
from ebla.topology.states import NodeState

NAMES = ("node1", "node2", "node3")


class Running:
    """A local node whose process runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def running_pid(self) -> int:
        return 1


def node(name: str, state: NodeState = NodeState.NORMAL, excluded: str = "") -> NodeView:
    return NodeView(
        name=name,
        host=None,
        address=f"127.0.0.{name[-1]}:7000",
        state=NodeStatus.UP,
        uptime_ms=1,
        round_trip_us=1,
        held_up_by=2,
        asked_others=2,
        processes=(),
        trouble="",
        group0=Group0View(role="voter", votes=True, leads=True, term=1, commit=1, applied=1, lag=None),
        ring=RingView(version=1, fence=0, state=str(state), normal=2, members=3, transition="", waits_for=""),
        topology_state=str(state),
        excluded=excluded,
    )


class Start:
    """A start of three nodes at its deadline. Excluded and joining nodes accept no CQL clients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, third: NodeView) -> None:
        self.printed: list[str] = []
        nodes = (node("node1"), node("node2"), third)
        normal = sum(one.topology_state == NodeState.NORMAL for one in nodes)
        self.nodes = tuple(
            msgspec.structs.replace(one, ring=msgspec.structs.replace(cast("RingView", one.ring), normal=normal))
            for one in nodes
        )
        monkeypatch.setattr(up, "START_S", 0.0)
        monkeypatch.setattr(up, "fetch_cluster_view", self.fetch)
        monkeypatch.setattr(up, "_accepts_cql_clients", self.accepts)

    async def fetch(self, _nodes: object) -> ClusterView:
        return ClusterView(cluster="c", cluster_name="c", nodes=self.nodes)

    async def accepts(self, local: LocalNode) -> bool:
        (found,) = (one for one in self.nodes if one.name == local.name)
        return not found.excluded and found.topology_state == NodeState.NORMAL

    async def wait(self) -> LocalNode | None:
        locals_ = [cast("LocalNode", Running(name)) for name in NAMES]
        return await up._wait_all_up(up.StartedCluster(locals_), self.printed.append)


async def test_an_excluded_node_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch, node("node3", excluded="by hand"))
    assert await start.wait() is None
    assert start.printed == []


async def test_a_join_that_takes_longer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch, node("node3", NodeState.BOOTSTRAPPING))
    assert await start.wait() is None
    assert start.printed == ["node3 still joins, and goes on: see `ebla topology`"]


async def test_a_member_that_is_not_up_in_time_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch, msgspec.structs.replace(node("node3"), state=NodeStatus.DOWN))
    with pytest.raises(Unavailable, match="not all nodes were up"):
        await start.wait()
