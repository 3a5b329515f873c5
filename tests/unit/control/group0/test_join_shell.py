"""The join handshake of a real node with a scripted member, over simulated wires."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.async_tests import runs_in

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.formation import Group0Config
from ebla.control.group0.join_state import JoinStage
from ebla.control.group0.node import Group0Node
from ebla.control.group0.service import Group0Service
from ebla.group0.discovery import ClusterMember
from ebla.group0.join_handshake import NotAdmitted
from ebla.group0.join_messages import (
    JoinNodeQuery,
    JoinNodeQueryAnswer,
    JoinNodeRequest,
    JoinNodeResponse,
    JoinNodeResponseAnswer,
    JoinNodeWait,
    JoinRequestStatus,
)
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import EndedOperation, Operation
from ebla.model.errors import EblaError, InvalidRequest, Unavailable, leaf_errors
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.clients import peers_context
from ebla.sim.world import World
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import DiscoverAnswer, DiscoverRequest
from ebla.wire.peers import Peers, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import GROUP0_DISCOVER, JOIN_NODE_QUERY, JOIN_NODE_REQUEST, JOIN_NODE_RESPONSE

PORT = 7000
CLUSTER = ClusterId(uuid.UUID(int=0xEB1A))
MEMBER, NODE = HostId(uuid.UUID(int=1)), HostId(uuid.UUID(int=2))
HISTORY = HistoryId(uuid.UUID(int=7))


@dataclass(slots=True)
class Rig:
    world: World
    coordinator: Environment
    requests: list[JoinNodeRequest] = field(default_factory=list)
    queries: int = 0
    refusal: EblaError | None = None
    reply_after_s: float = 0.0
    state: NodeState | None = NodeState.NONE
    error: str = ""
    node: Group0Node | None = None
    ended_by: BaseException | None = None
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    reached: list[FaultPoint] = field(default_factory=list)
    replaced: str = ""
    member: Server | None = None

    # ---- the member

    async def serve_member(self, environment: Environment) -> None:
        introduction = Introduction(host=MEMBER, cluster=CLUSTER, cluster_name="sim")
        async with asyncio.TaskGroup() as tasks:
            self.member = server = Server(tasks, introduction, discard_event)
            server.serve(GROUP0_DISCOVER, self.discover)
            server.serve(JOIN_NODE_REQUEST, self.join)
            server.serve(JOIN_NODE_QUERY, self.query)
            await environment.transport.listen(self.address("member"), server.accept)
            await asyncio.Event().wait()

    def discover(self, _request: DiscoverRequest, _call: IncomingCall) -> DiscoverAnswer:
        return DiscoverAnswer(ClusterMember(MEMBER, CLUSTER, "sim"))

    async def join(self, request: JoinNodeRequest, _call: IncomingCall) -> JoinNodeWait:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        await asyncio.sleep(self.reply_after_s)
        return JoinNodeWait()

    def query(self, _query: JoinNodeQuery, _call: IncomingCall) -> JoinNodeQueryAnswer:
        self.queries += 1
        outcome = RequestOutcome.FAILED if self.error else RequestOutcome.PENDING
        status = None
        if self.requests:
            status = JoinRequestStatus(attempt=self.attempt, outcome=outcome, position=2, error=self.error)
        return JoinNodeQueryAnswer(mode="group0", cluster=CLUSTER, state=self.state, request=status)

    # ---- the new node

    async def run_node(self, environment: Environment) -> None:
        introduction = Introduction(host=NODE, cluster=CLUSTER, cluster_name="sim")
        context = peers_context(environment, introduction, lambda event, details: self.report(event, dict(details)))
        address = self.address("node")
        config = Group0Config(
            member=Member(host=NODE, role=MemberRole.LEARNER, address=address),
            node=Node(
                host=NODE,
                datacenter="dc1",
                rack="rack1",
                shard_count=1,
                ignore_msb=0,
                release_version="",
                address=address.host,
                num_tokens=1,
            ),
            cluster=CLUSTER,
            cluster_name="sim",
            contacts=(self.address("member"),),
            replaced=self.replaced,
            ignored=("127.0.0.8",) if self.replaced else (),
            folder="/data/group0",
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                peers = Peers(tasks, context)
                self.node = Group0Node(environment, config, context, peers, self.reach)
                server = Server(tasks, introduction, discard_event)
                Group0Service(self.node, peers, environment.rng).serve_peers(server)
                await environment.transport.listen(address, server.accept)
                await self.node.run(lambda _host: True, NoOperations())
        except* EblaError as errors:
            self.ended_by = next(leaf_errors(errors))

    def report(self, event: str, details: dict[str, object]) -> None:
        self.events.append((event, details))

    async def reach(self, point: FaultPoint) -> None:
        self.reached.append(point)

    # ---- the test

    def address(self, name: str) -> Address:
        return self.world.units[name].address(PORT)

    @property
    def attempt(self) -> uuid.UUID:
        return self.requests[-1].attempt

    @property
    def stage(self) -> JoinStage:
        assert self.node is not None
        return self.node.join_state.mark.stage

    @property
    def runs_raft(self) -> bool:
        return self.node is not None and self.node.is_running

    def stale_responses(self) -> float:
        assert self.node is not None
        return self.node.formation.metrics.counters["join_stale_responses_total"].series().value

    async def respond(self, attempt: uuid.UUID, rejection: str = "") -> JoinNodeResponseAnswer:
        member = Member(host=MEMBER, role=MemberRole.VOTER, address=self.address("member"))
        response = JoinNodeResponse(attempt=attempt, rejection=rejection)
        if not rejection:
            response = JoinNodeResponse(attempt=attempt, history=HISTORY, members=(member,))
        introduction = Introduction(host=MEMBER, cluster=CLUSTER, cluster_name="sim")
        context = peers_context(self.coordinator, introduction)
        caller, _ = await connect(context, self.address("node"), ConnectionTarget(Lane.CONTROL))
        try:
            return await caller.call(JOIN_NODE_RESPONSE, response, 5_000)
        finally:
            caller.close("done")

    def restart_node(self) -> None:
        self.world.units["node"].crash()
        self.requests.clear()
        self.node, self.queries = None, 0
        self.world.units["node"].start()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        assert await self.world.wait_for(condition, 20.0)

    async def wait_request(self) -> None:
        """Until the member has answered `wait`: the node then queries."""
        await self.wait_for(lambda: self.queries > 0)


class NoOperations:
    async def request(self, operation: Operation) -> EndedOperation | None:
        raise Unavailable(f"no leader for {operation.kind}")

    async def run_here(self, operation: Operation) -> EndedOperation | None:
        raise Unavailable(f"no leader for {operation.kind}")


def joining(play: Callable[[Rig], Awaitable[None]]) -> None:
    async def run(world: World) -> None:
        rig = Rig(world, world.scenario_environment("coordinator"))
        world.unit("member", rig.serve_member)
        world.unit("node", rig.run_node)
        world.units["member"].start()
        await play(rig)

    World(1, 120.0).run(run)


pytestmark = runs_in(joining)


async def test_no_raft_server_runs_before_the_acceptance_is_durable(rig: Rig, /) -> None:
    """INV-NODE-21."""
    rig.world.units["node"].start()
    await rig.wait_request()
    await asyncio.sleep(10)
    assert (rig.runs_raft, rig.stage) == (False, JoinStage.JOINING)
    assert await rig.respond(rig.attempt) == JoinNodeResponseAnswer()
    assert (rig.runs_raft, rig.stage) == (True, JoinStage.ACCEPTED)
    assert rig.node is not None
    mark = rig.node.join_state.mark
    assert (mark.history, mark.join_id, [member.host for member in mark.members]) == (HISTORY, rig.attempt, [MEMBER])
    assert rig.reached == [FaultPoint.JOIN_RESPONSE_RECEIVED, FaultPoint.JOIN_GROUP0_STARTED]


async def test_a_repeated_acceptance_gets_the_same_reply_and_another_attempt_a_stale_one(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    assert await rig.respond(uuid.UUID(int=9)) == JoinNodeResponseAnswer(stale_attempt=True)
    assert not rig.runs_raft
    for _ in range(2):
        assert await rig.respond(rig.attempt) == JoinNodeResponseAnswer()
    assert await rig.respond(uuid.UUID(int=9)) == JoinNodeResponseAnswer(stale_attempt=True)
    assert rig.stale_responses() == 2


async def test_an_early_response_is_held_until_the_request_is_answered(rig: Rig, /) -> None:
    rig.reply_after_s = 3.0
    rig.world.units["node"].start()
    await rig.wait_for(lambda: bool(rig.requests))
    began = rig.world.now()
    assert await rig.respond(rig.attempt) == JoinNodeResponseAnswer()
    assert rig.world.now() - began > 2.5
    assert rig.runs_raft


async def test_a_rejection_that_does_not_reach_the_node_is_learned_by_its_query(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    rig.state, rig.error = NodeState.LEFT, "rejected: it lacks features"
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)
    assert "it lacks features" in rig.ended_by.message
    assert "ebla reset-node" in rig.ended_by.advice
    assert "join.rejected" in [event for event, _ in rig.events]


async def test_a_node_whose_join_has_ended_learns_it_from_members_that_refuse_it(rig: Rig, /) -> None:
    """They serve nobody whose row is left, and so no query."""
    rig.world.units["node"].start()
    await rig.wait_request()
    assert rig.member is not None
    rig.member.exclude(frozenset(), frozenset({NODE}))
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)
    assert "its host has left the cluster" in rig.ended_by.message


async def test_a_node_that_has_left_repeats_no_request(rig: Rig, /) -> None:
    rig.refusal = Unavailable("no leader")
    rig.world.units["node"].start()
    await rig.wait_for(lambda: bool(rig.requests))
    assert rig.member is not None
    rig.member.exclude(frozenset(), frozenset({NODE}))
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)


async def test_a_rejection_is_answered_before_the_node_ends(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    assert await rig.respond(rig.attempt, "no room") == JoinNodeResponseAnswer()
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)


async def test_a_refused_request_ends_the_node_with_the_advice_of_the_member(rig: Rig, /) -> None:
    rig.refusal = InvalidRequest("the address belongs to host 1", advice="choose another address")
    rig.world.units["node"].start()
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)
    assert rig.ended_by.advice == "choose another address"
    assert len(rig.requests) == 1


async def test_an_unavailable_cluster_is_asked_again_under_the_same_attempt(rig: Rig, /) -> None:
    rig.refusal = Unavailable("no majority")
    rig.world.units["node"].start()
    await rig.wait_for(lambda: len(rig.requests) == 4)
    assert len({request.attempt for request in rig.requests}) == 1
    assert rig.node is not None
    assert "no majority" in rig.node.waits_for
    rig.refusal = None
    await rig.wait_request()


async def test_a_waiting_node_shows_its_state_and_position_once_per_change(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_for(lambda: rig.queries >= 4)
    waits = [details for event, details in rig.events if event == "join.waits"]
    assert waits == [{"state": "none", "position": 2, "reason": ""}]
    assert rig.node is not None
    assert rig.node.waits_for == "to join: queued at position 2"


async def test_a_node_that_starts_again_before_its_acceptance_draws_another_attempt(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    first = rig.attempt
    rig.restart_node()
    await rig.wait_request()
    assert rig.attempt != first
    assert await rig.respond(first) == JoinNodeResponseAnswer(stale_attempt=True)


async def test_an_accepted_node_that_starts_again_sends_no_request(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    attempt = rig.attempt
    await rig.respond(attempt)
    rig.restart_node()
    await rig.wait_for(lambda: rig.runs_raft)
    assert (len(rig.requests), rig.queries) == (0, 1)
    assert await rig.respond(attempt) == JoinNodeResponseAnswer()


async def test_an_accepted_node_starts_alone_if_no_member_answers(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    await rig.respond(rig.attempt)
    rig.world.units["member"].crash()
    rig.restart_node()
    await rig.wait_for(lambda: rig.runs_raft)


async def test_an_accepted_node_whose_row_has_left_does_not_start_raft(rig: Rig, /) -> None:
    rig.world.units["node"].start()
    await rig.wait_request()
    await rig.respond(rig.attempt)
    rig.state = NodeState.LEFT
    rig.restart_node()
    await rig.wait_for(lambda: rig.ended_by is not None)
    assert isinstance(rig.ended_by, NotAdmitted)
    assert not rig.runs_raft


async def test_a_replacing_node_says_whom_it_replaces_until_it_is_a_member(rig: Rig, /) -> None:
    rig.replaced = "127.0.0.9"
    rig.world.units["node"].start()
    await rig.wait_request()
    request = rig.requests[-1]
    assert (request.replaced, request.ignored) == ("127.0.0.9", ("127.0.0.8",))
    assert [event for event, _ in rig.events if event.endswith("_ignored")] == ["join.num_tokens_ignored"]
    await rig.respond(rig.attempt)
    rig.events.clear()
    rig.restart_node()
    await rig.wait_for(lambda: rig.runs_raft)
    assert [event for event, _ in rig.events if event.endswith("_ignored")] == ["join.replace_ignored"]
    assert rig.requests == []
