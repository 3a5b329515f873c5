"""Who must acknowledge a version, and that nothing but an acknowledgement or an exclusion passes a barrier."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from ebla.control.coordinator.node_actions import awaited_hosts
from ebla.control.topology.barrier_client import BarrierClient
from ebla.model.errors import DeadlineExceeded, Unreachable
from ebla.model.identity import HostId, TopologyVersion
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Node, Snapshot, TopologyState
from ebla.topology.states import NodeState, TransitionState
from ebla.wire.feed_messages import NodeBarrierAnswer, NodeBarrierRequest

OWN, OTHER, THIRD, NEW = (HostId(uuid.UUID(int=number)) for number in range(1, 5))
VERSION = TopologyVersion(7)


def snapshot(states: Mapping[HostId, NodeState], **state: Any) -> Snapshot:
    nodes = {
        host: Node(
            host=host,
            datacenter="dc1",
            rack="r1",
            shard_count=1,
            ignore_msb=0,
            release_version="1",
            address=f"10.0.0.{host.int}",
            num_tokens=1,
            state=one,
        )
        for host, one in states.items()
    }
    return Snapshot(state=TopologyState(**state), nodes=FrozenMap(nodes))


def test_every_node_in_the_ring_or_about_to_be_is_awaited() -> None:
    states = {OWN: NodeState.NORMAL, OTHER: NodeState.LEFT, THIRD: NodeState.NONE, NEW: NodeState.BOOTSTRAPPING}
    assert awaited_hosts(snapshot(states, transition=TransitionState.WRITE_BOTH_READ_OLD)) == (OWN, NEW)


def test_an_excluded_node_is_not_awaited() -> None:
    states = {OWN: NodeState.NORMAL, OTHER: NodeState.NORMAL}
    assert awaited_hosts(snapshot(states, ignored_nodes=(OTHER,))) == (OWN,)


def test_the_node_that_goes_is_awaited_until_it_owns_no_token() -> None:
    states = {OWN: NodeState.NORMAL, NEW: NodeState.BOOTSTRAPPING}
    assert NEW in awaited_hosts(snapshot(states, transition=TransitionState.WRITE_BOTH_READ_NEW))
    assert awaited_hosts(snapshot(states, transition=TransitionState.LEFT_TOKEN_RING)) == (OWN,)


class Nodes:
    """The other nodes: what each lacks; None: it does not answer."""

    def __init__(self, **lacking: str | None) -> None:
        self.lacking = lacking
        self.calls: list[HostId] = []

    async def call(self, host: HostId, _verb: object, request: NodeBarrierRequest, _deadline_ms: int) -> object:
        assert request == NodeBarrierRequest(VERSION, drain=True)
        self.calls.append(host)
        lacks = self.lacking[f"host{host.int}"]
        if lacks is None:
            raise Unreachable("no answer")
        if lacks:
            raise DeadlineExceeded(lacks)
        return NodeBarrierAnswer(VERSION)


async def passes_here(_request: NodeBarrierRequest, _deadline_ms: int) -> None:
    pass


async def test_time_alone_never_passes_it() -> None:
    nodes = Nodes(host2="shard-1 runs requests of version 6", host3=None)
    barrier = BarrierClient(OWN, passes_here, nodes, lambda: (THIRD,))  # type: ignore[arg-type]  # it calls nothing else
    missing: list[Mapping[HostId, str]] = []
    waiting = asyncio.create_task(barrier.wait_all(VERSION, lambda: (OWN, OTHER, THIRD), missing.append))
    await asyncio.sleep(3600)
    assert not waiting.done()
    assert missing[-1] == {OTHER: "shard-1 runs requests of version 6", THIRD: "no answer"}
    nodes.lacking["host2"] = nodes.lacking["host3"] = ""
    await waiting


async def test_an_exclusion_passes_it_and_an_acknowledged_node_is_not_asked_again() -> None:
    nodes = Nodes(host2="", host3=None)
    barrier = BarrierClient(OWN, passes_here, nodes, lambda: (THIRD,))  # type: ignore[arg-type]  # it calls nothing else
    awaited = [OWN, OTHER, THIRD]
    waiting = asyncio.create_task(barrier.wait_all(VERSION, lambda: tuple(awaited), lambda _missing: None))
    await asyncio.sleep(10)
    awaited.remove(THIRD)
    await waiting
    assert nodes.calls.count(OTHER) == 1
