"""A member that receives join requests and queries: what it commits, and what it answers."""

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

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.node import Group0Node
from ebla.control.topology.join_service import JoinService
from ebla.group0.join_messages import JoinNodeQuery, JoinNodeQueryAnswer, JoinNodeRequest, JoinNodeWait
from ebla.model.errors import DeadlineExceeded, InvalidRequest, Outcome, Refused, Unavailable
from ebla.model.identity import ClusterId, RequestId
from ebla.sim.world import World as SimWorld
from ebla.topology.commands import RejectNode, StartNodeRequest
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome
from ebla.version import DATA_FORMAT
from ebla.wire.server import Server
from ebla.wire.verbs import JOIN_NODE_QUERY, JOIN_NODE_REQUEST

CLUSTER = ClusterId(uuid.UUID(int=77))
ATTEMPT = uuid.UUID(int=1 << 90)
NEW = 4


class Rig(CommitRig):
    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.reached: list[FaultPoint] = []
        self.store = SimpleNamespace(index=1, members={})
        group0 = SimpleNamespace(
            config=SimpleNamespace(cluster=CLUSTER, cluster_name="test"),
            running=SimpleNamespace(client=self, raft=self, store=self.store),
        )
        deps = replace(self.deps("joins"), group0=cast("Group0Node", group0))
        service = JoinService(deps, lambda: self.silent, self.waits_for, self.reach)
        service.serve_on(cast("Server", SimpleNamespace(serve=self.serve)))
        self.request = JoinNodeRequest(
            attempt=ATTEMPT,
            cluster=CLUSTER,
            cluster_name="test",
            node=self.world.node(NEW),
            storage_format=DATA_FORMAT,
        )

    async def waits_for(self, request: RequestId) -> str:
        return f"what {request.int >> 90} waits for"

    def serve(self, verb: Any, handler: Callable[..., Any]) -> None:
        self.handlers[verb.name] = handler

    async def reach(self, point: FaultPoint) -> None:
        self.reached.append(point)

    async def join(self, **changes: Any) -> JoinNodeWait:
        request = msgspec.structs.replace(self.request, **changes)
        answer = await self.handlers[JOIN_NODE_REQUEST.name](request, SimpleNamespace(work_ms=lambda: 2_000))
        assert isinstance(answer, JoinNodeWait)
        return answer

    async def query(self) -> JoinNodeQueryAnswer:
        answer = await self.handlers[JOIN_NODE_QUERY.name](JoinNodeQuery(host(NEW)), None)
        assert isinstance(answer, JoinNodeQueryAnswer)
        return answer


def story(play: Callable[[Rig], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run(_: SimWorld) -> None:
        await play(Rig())

    SimWorld(1, 60.0).run(run)


pytestmark = runs_in(story)


async def test_a_request_commits_the_row_and_a_pending_join_under_the_attempt_id(rig: Rig, /) -> None:
    await rig.join()
    row = rig.snapshot.node(host(NEW))
    assert (row.state, row.request) == (NodeState.NONE, ATTEMPT)
    request = rig.snapshot.node_requests[RequestId(ATTEMPT)]
    assert (request.kind, request.outcome, request.host) == (NodeRequestKind.JOIN, RequestOutcome.PENDING, host(NEW))
    assert rig.reached == [FaultPoint.JOIN_REQUEST_RECEIVED, FaultPoint.JOIN_SUBMITTED]


async def test_the_same_attempt_again_commits_nothing(rig: Rig, /) -> None:
    await rig.join()
    await rig.join()
    assert rig.commits == 1


async def test_a_request_that_lost_a_race_is_checked_and_committed_again(rig: Rig, /) -> None:
    rig.script = [rig.overtaken, rig.overtaken]
    await rig.join()
    assert rig.commits == 3
    assert host(NEW) in rig.snapshot.nodes


async def test_a_request_that_always_loses_ends_by_its_deadline_as_unavailable(rig: Rig, /) -> None:
    rig.script = [rig.overtaken] * 1_000
    with pytest.raises(Unavailable):
        await rig.join()
    assert host(NEW) not in rig.snapshot.nodes


async def test_an_unknown_outcome_is_reported_as_such_and_the_repeat_finds_it(rig: Rig, /) -> None:
    rig.script = [rig.commit_unanswered]
    with pytest.raises(DeadlineExceeded) as error:
        await rig.join()
    assert error.value.outcome is Outcome.UNKNOWN
    await rig.join()
    assert rig.commits == 1


async def test_without_a_majority_or_a_topology_it_is_unavailable(rig: Rig, /) -> None:
    rig.quorum = False
    with pytest.raises(Unavailable):
        await rig.join()
    rig.quorum, rig.world.snapshot = True, Snapshot()
    with pytest.raises(Unavailable):
        await rig.join()
    assert rig.commits == 0


async def test_a_refusal_is_decided_by_what_a_quorum_knows(rig: Rig, /) -> None:
    before = rig.snapshot
    await rig.join()
    rig.lagging = before
    with pytest.raises(Refused) as error:
        await rig.join(attempt=uuid.UUID(int=5))
    assert "ebla reset-node" in error.value.advice
    with pytest.raises(InvalidRequest):
        await rig.join(cluster_name="other")
    assert rig.commits == 1


async def test_a_query_is_answered_without_a_quorum(rig: Rig, /) -> None:
    rig.quorum = False
    assert (await rig.query()) == JoinNodeQueryAnswer(mode="group0", cluster=CLUSTER)


async def test_a_query_shows_the_queue_the_cause_and_the_outcome(rig: Rig, /) -> None:
    rig.world.ask_to_join(rig.world.node(9))
    await rig.join()
    answer = await rig.query()
    assert answer.state is NodeState.NONE
    assert answer.request is not None
    assert (answer.request.position, answer.request.waits_for) == (2, "what 1 waits for")
    rig.world.do(StartNodeRequest(RequestId(ATTEMPT), rig.world.new_session()))
    answer = await rig.query()
    assert answer.state is NodeState.BOOTSTRAPPING
    assert answer.request is not None
    assert (answer.request.outcome, answer.request.position) == (RequestOutcome.RUNNING, 0)
    rig.world.do(RejectNode(host(NEW), "it is gone", rig.world.now_ms))
    answer = await rig.query()
    assert answer.state is NodeState.LEFT
    assert answer.request is not None
    assert (answer.request.outcome, answer.request.waits_for) == (RequestOutcome.FAILED, "")
    assert "it is gone" in answer.request.error


async def test_a_member_without_its_first_state_answers_neither(rig: Rig, /) -> None:
    rig.store.index = 0
    with pytest.raises(Unavailable):
        (await rig.query())
    with pytest.raises(Unavailable):
        await rig.join()


async def test_a_replace_is_committed_for_the_host_that_its_name_resolves_to(rig: Rig, /) -> None:
    dead = rig.world.snapshot.node(host(2))
    new = rig.world.node(NEW, rack=dead.rack, address=dead.address, num_tokens=99)
    with pytest.raises(Refused, match="is alive"):
        await rig.join(node=new, replaced=dead.address)
    rig.down = (host(2),)  # excluded, so it counts as down, and it answers
    with pytest.raises(Refused, match="is alive"):
        await rig.join(node=new, replaced=dead.address)
    rig.silent = (host(2),)
    await rig.join(node=new, replaced=dead.address)
    request = rig.snapshot.node_requests[RequestId(ATTEMPT)]
    assert (request.kind, request.replaced) == (NodeRequestKind.REPLACE, host(2))
    assert rig.snapshot.excluded_hosts == (host(2),)
    assert rig.snapshot.node(host(NEW)).num_tokens == dead.num_tokens
