"""What the log of a new node says of its join, and how a node ends whose row is `left`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.topology.world import World, cluster, host

from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.own_row import JoinLog, OwnRow
from ebla.group0.join_handshake import NotAdmitted
from ebla.group0.operations import UNFINISHED_OPERATION_KEY
from ebla.model.errors import Refused
from ebla.topology.commands import RejectNode
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, TransitionState

NEW = 4


def test_each_state_of_a_join_and_its_end_are_logged_once() -> None:
    world, coordinator = cluster(3)
    log, said = JoinLog(), []

    def look() -> None:
        news = log.news(world.snapshot.nodes.get(host(NEW)), world.snapshot)
        if news is not None:
            said.append(news)

    look()
    world.ask_to_join(world.node(NEW))
    while world.snapshot.node(host(NEW)).state is not NodeState.NORMAL:
        coordinator.step()
        look()
        look()
    states = [fields["transition"] for event, fields in said if event == "join.state"]
    assert states == [
        TransitionState.JOIN_GROUP0,
        TransitionState.COMMIT_CDC_GENERATION,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
    ]
    (done,) = [fields for event, fields in said if event == "join.done"]
    assert set(done) == {"seconds", "bytes", "ranges"}
    assert said[-1][0] == "join.done"


def test_a_member_that_starts_again_has_not_joined() -> None:
    world, _ = cluster(3)
    assert JoinLog().news(world.snapshot.node(host(2)), world.snapshot) is None


class Member:
    """A running node that looks at its row."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.marks: list[str] = []
        store = SimpleNamespace(index=1, get=self._get)
        group0 = SimpleNamespace(running=SimpleNamespace(store=store), mark_left=self._mark_left)
        deps = SimpleNamespace(group0=group0, topology=world, read=self._read, rng=None, now_ms=lambda: world.now_ms)
        own = world.snapshot.nodes.get(host(number)) or world.node(number)
        self.row = OwnRow(own, cast("TopologyDeps", deps))

    def _get(self, key: str) -> Any:
        assert key == UNFINISHED_OPERATION_KEY

    async def _mark_left(self) -> None:
        self.marks.append("left")

    async def _read(self, _within_ms: int) -> Snapshot:
        return self.world.snapshot

    async def look(self) -> None:
        await self.row._check()


@pytest.mark.parametrize("kind", [NodeRequestKind.LEAVE, NodeRequestKind.REMOVE])
async def test_a_member_that_has_left_marks_its_folder_and_stops_as_one_that_may_not_continue(
    kind: NodeRequestKind,
) -> None:
    world, coordinator = cluster(3)
    member = Member(world, 3)
    await member.look()
    if kind is NodeRequestKind.REMOVE:
        world.dead.add(host(3))
    world.ask(kind, 3)
    coordinator.settle()
    with pytest.raises(Refused, match="left the cluster") as error:
        await member.look()
    assert not isinstance(error.value, NotAdmitted)
    assert "ebla reset-node" in error.value.advice
    assert member.marks == ["left"]


@pytest.mark.parametrize("replaces", [False, True])
async def test_a_node_whose_join_was_rolled_back_was_not_admitted_and_asks_again(replaces: bool) -> None:
    world, coordinator = cluster(3)
    member = Member(world, 9)
    if replaces:
        world.dead.add(host(2))
        world.ask_to_join(world.node(9, rack=world.snapshot.node(host(2)).rack), replaced=host(2))
    else:
        world.ask_to_join(world.node(9))
    coordinator.until(TransitionState.JOIN_GROUP0)
    world.do(RejectNode(host(9), "no reply", world.now_ms))
    with pytest.raises(NotAdmitted, match="no reply"):
        await member.look()
    assert member.marks == []
    assert world.snapshot.departed_hosts == (), "members answer it when it asks for the reason"
