"""Any node reports and aborts requests of every kind."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.async_tests import runs_in
from tests.unit.control.commit_rig import CommitRig
from tests.unit.topology.world import host

from ebla.control.coordinator.coordinator import Coordinator
from ebla.control.coordinator.coordinator_deps import CoordinatorDeps
from ebla.control.coordinator.topology_service import TopologyService
from ebla.control.group0.node import Group0Node
from ebla.model.errors import NotFound
from ebla.model.identity import RequestId
from ebla.sim.world import World as SimWorld
from ebla.topology.commands import FinishGlobalRequest
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState, RequestOutcome

REPAIR = GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS
WITHIN_MS = 5_000


class Rig(CommitRig):
    """Host 1 leads; nothing runs."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: list[Any] = []
        running = SimpleNamespace(
            client=self, raft=SimpleNamespace(core=SimpleNamespace(term=7)), leader_host=lambda: host(1)
        )
        member = SimpleNamespace(member=SimpleNamespace(host=host(1)))
        group0 = cast("Group0Node", SimpleNamespace(running=running, is_running=True, config=member))
        deps = SimpleNamespace(
            topology=replace(self.deps("service"), group0=group0),
            committed=self,
            control_port=7000,
            context=None,
            silent=lambda: (),
        )
        causes = SimpleNamespace(of=lambda _subject: None)
        self.service = TopologyService(
            cast("CoordinatorDeps", deps),
            cast("Coordinator", SimpleNamespace(current=None, causes=causes)),
            cast("Any", SimpleNamespace(create_task=self._response)),
        )

    def _response(self, task: Any) -> None:
        task.close()
        self.responses.append(task)

    async def abort(self, request: RequestId) -> RequestOutcome:
        return (await self.service.abort(request, "enough", WITHIN_MS)).outcome


def story(play: Callable[[Rig], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run(_: SimWorld) -> None:
        await play(Rig())

    SimWorld(1, 60.0).run(run)


pytestmark = runs_in(story)


async def test_global_requests_are_listed_after_those_of_nodes_and_with_those_that_ended(rig: Rig, /) -> None:
    first = rig.world.ask_global(REPAIR)
    rig.world.do(FinishGlobalRequest(first.id, "", rig.world.now_ms + 1_000_000))
    second, leave = rig.world.ask_global(REPAIR), rig.world.ask(NodeRequestKind.LEAVE, 3)
    report = await rig.service.report()
    assert [one.request.id for one in report.open] == [leave.id, second.id]
    assert report.ended[0].id == first.id, "the newest"
    assert report.ended[0].outcome is RequestOutcome.DONE


async def test_pending_requests_of_every_kind_are_aborted_without_a_word_to_members(rig: Rig, /) -> None:
    repair, leave = rig.world.ask_global(REPAIR), rig.world.ask(NodeRequestKind.LEAVE, 3)
    for request in (repair.id, leave.id):
        assert await rig.abort(request) is RequestOutcome.FAILED
    assert not rig.snapshot.state.global_requests
    assert rig.snapshot.node(host(3)).state is NodeState.NORMAL
    assert rig.responses == [], "only a node that is no member waits for a response"
    joining = rig.world.ask_to_join(rig.world.node(4))
    assert await rig.abort(joining.id) is RequestOutcome.FAILED
    assert len(rig.responses) == 1


async def test_what_has_ended_stays_as_it_is_and_what_is_unknown_is_an_error(rig: Rig, /) -> None:
    repair = rig.world.ask_global(REPAIR)
    rig.world.do(FinishGlobalRequest(repair.id, "", rig.world.now_ms))
    assert await rig.abort(repair.id) is RequestOutcome.DONE
    assert rig.commits == 0
    with pytest.raises(NotFound):
        await rig.abort(RequestId(host(9)))
