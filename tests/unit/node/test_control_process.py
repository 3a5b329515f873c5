"""How a node that is ordered to stop ends."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ebla.model.errors import Refused
from ebla.node.control_process import ControlProcess
from ebla.wire.topology_messages import LEFT_AS_REQUESTED, StopNodeRequest


class Node:
    """The part of a control process that stops it."""

    def __init__(self) -> None:
        self.gave_up: str | None = None
        self.was_refused = self._has_left = self.is_marked = False
        self._stop = asyncio.Event()
        self._node = SimpleNamespace(report=lambda *_: None)
        self._group0 = SimpleNamespace(mark_left=self._mark_left)

    async def _mark_left(self) -> None:
        assert not self._stop.is_set(), "the mark is durable first"
        self.is_marked = True

    def _refuse(self, error: BaseException) -> None:
        ControlProcess._refuse(cast("ControlProcess", self), error)

    async def ordered(self, reason: str) -> None:
        order = StopNodeRequest(reason)
        await ControlProcess._stop_ordered(cast("ControlProcess", self), order, cast("Any", None), 1_000)


async def test_a_node_that_left_as_requested_ends_well_although_it_learns_of_its_removal_as_it_stops() -> None:
    node = Node()
    await node.ordered(LEFT_AS_REQUESTED)
    assert node._stop.is_set()
    assert node.is_marked
    node._refuse(Refused("host 3 was removed from the cluster"))
    assert node.gave_up is None


async def test_a_node_that_the_order_did_not_reach_gives_its_removal_as_the_reason() -> None:
    node = Node()
    node._refuse(Refused("host 3 was removed from the cluster"))
    node._refuse(Refused("a consequence"))
    assert (node.gave_up, node._stop.is_set()) == ("host 3 was removed from the cluster", True)


async def test_a_node_whose_join_was_rolled_back_gives_the_reason_of_the_order() -> None:
    node = Node()
    await node.ordered("aborted: by an operator")
    assert node.gave_up is not None
    assert "aborted: by an operator" in node.gave_up
