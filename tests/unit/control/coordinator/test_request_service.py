"""Any node puts a request into the queue, once by its id; what is wrong with it is said at once."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.control.commit_rig import CommitRig
from tests.unit.topology.world import host

from ebla.control.coordinator.request_service import RequestService
from ebla.model.errors import DeadlineExceeded, InvalidRequest, Outcome, Refused, Unavailable
from ebla.model.identity import HostId, RequestId
from ebla.sim.world import World as SimWorld
from ebla.topology.snapshot import GlobalRequest, NodeRequest
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, RequestOutcome
from ebla.wire.server import Server
from ebla.wire.topology_messages import SubmitTopologyAnswer, SubmitTopologyRequest, TopologyRequest
from ebla.wire.verbs import SUBMIT_REQUEST

WITHIN_MS = 20_000


def ident(number: int) -> RequestId:
    return RequestId(uuid.UUID(int=number << 96))


def leave(number: int, request: int = 1) -> NodeRequest:
    return NodeRequest(
        id=ident(request), kind=NodeRequestKind.LEAVE, host=host(number), initiator=host(number), start_ms=5
    )


def repair(request: int) -> GlobalRequest:
    kind = GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS
    return GlobalRequest(id=ident(request), kind=kind, initiator=host(9), start_ms=5)


class Rig(CommitRig):
    def __init__(self) -> None:
        super().__init__()
        self.not_answering: tuple[HostId, ...] = ()
        self.handlers: dict[str, Callable[..., Any]] = {}
        service = RequestService(self.deps("requests"), host(1), lambda: self.not_answering)
        service.serve_on(cast("Server", SimpleNamespace(serve=self.serve)))

    def serve(self, verb: Any, handler: Callable[..., Any]) -> None:
        self.handlers[verb.name] = handler

    async def call(self, request: TopologyRequest, *, check_only: bool = False) -> SubmitTopologyAnswer:  # type: ignore[override]  # that of a peer
        message = SubmitTopologyRequest(request=request, check_only=check_only)
        answer = await self.handlers[SUBMIT_REQUEST.name](message, SimpleNamespace(work_ms=lambda: WITHIN_MS))
        assert isinstance(answer, SubmitTopologyAnswer)
        return answer

    async def submit(self, request: TopologyRequest) -> TopologyRequest:
        stored = (await self.call(request)).request
        assert stored is not None
        return stored


def story(play: Callable[[Rig], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run(_: SimWorld) -> None:
        await play(Rig())

    SimWorld(1, 60.0).run(run)


pytestmark = runs_in(story)


async def test_a_request_is_stored_with_this_nodes_time_and_the_same_id_again_returns_it(rig: Rig, /) -> None:
    stored = await rig.submit(leave(3))
    assert stored == rig.snapshot.node_requests[ident(1)]
    assert (stored.outcome, stored.initiator) == (RequestOutcome.PENDING, host(1))
    assert stored.start_ms != 5
    assert await rig.submit(leave(3)) == stored
    assert rig.commits == 1


async def test_a_repeat_returns_the_record_also_after_its_end(rig: Rig, /) -> None:
    await rig.submit(leave(3))
    ended = msgspec.structs.replace(rig.snapshot.node_requests[ident(1)], outcome=RequestOutcome.DONE)
    rows = rig.snapshot.node_requests.put(ident(1), ended)
    rig.world.snapshot = replace(rig.snapshot, node_requests=rows)
    assert (await rig.submit(leave(3))).outcome is RequestOutcome.DONE


async def test_a_lost_race_is_tried_again(rig: Rig, /) -> None:
    rig.script = [rig.overtaken, rig.overtaken]
    await rig.submit(leave(3))
    assert rig.commits == 3


async def test_a_commit_without_an_answer_is_looked_for_and_not_repeated(rig: Rig, /) -> None:
    rig.script = [rig.commit_unanswered]
    assert (await rig.submit(leave(3))).id == ident(1)
    assert rig.commits == 1


async def test_without_a_majority_it_is_unavailable_and_with_an_unknown_outcome_it_names_the_request(
    rig: Rig, /
) -> None:
    rig.quorum = False
    with pytest.raises(Unavailable):
        await rig.submit(leave(3))
    rig.quorum, rig.script = True, [rig.lose] * 1_000
    with pytest.raises(DeadlineExceeded, match=str(ident(1))) as error:
        await rig.submit(leave(3))
    assert error.value.outcome is Outcome.UNKNOWN
    assert ident(1) not in rig.snapshot.node_requests


async def test_a_second_check_of_the_streams_returns_the_open_one(rig: Rig, /) -> None:
    first = await rig.submit(repair(1))
    assert (await rig.submit(repair(2))).id == first.id
    assert (await rig.submit(repair(1))).id == first.id
    assert list(rig.snapshot.state.global_requests) == [ident(1)]


async def test_a_check_stores_nothing_and_refuses_what_a_submission_would(rig: Rig, /) -> None:
    assert (await rig.call(leave(3), check_only=True)).request is None
    assert (await rig.call(repair(1), check_only=True)).concerns == ()
    await rig.submit(leave(3))
    with pytest.raises(Refused):
        await rig.call(leave(3, 2), check_only=True)
    assert rig.commits == 1


async def test_bad_input_is_refused_before_a_commit(rig: Rig, /) -> None:
    remove = msgspec.structs.replace(leave(3), kind=NodeRequestKind.REMOVE)
    with pytest.raises(Refused):
        await rig.submit(remove)  # it answers
    with pytest.raises(InvalidRequest):
        await rig.submit(leave(9))
    rebuild = msgspec.structs.replace(leave(3), kind=NodeRequestKind.REBUILD, rebuild_source="dc9")
    with pytest.raises(InvalidRequest):
        await rig.submit(rebuild)
    assert rig.commits == 0
    rig.not_answering = (host(3),)
    assert (await rig.submit(remove)).outcome is RequestOutcome.PENDING


async def test_an_excluded_node_that_answers_is_alive(rig: Rig, /) -> None:
    """`down` lists it, because it serves nothing; it must be stopped before it is removed."""
    rig.down = (host(3),)
    with pytest.raises(Refused):
        await rig.submit(msgspec.structs.replace(leave(3), kind=NodeRequestKind.REMOVE))
