"""How a node gets into group 0: it finds the other nodes, then creates the group or joins it.

`group0/discovery.py` decides which fresh node creates it, `group0/join_handshake.py` how all others join. Here are the
calls and the durable steps between them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ebla.aio.wakeup import Wakeup
from ebla.control.group0.join_state import JoinStage, JoinState, JoinStateFile
from ebla.group0 import discovery
from ebla.group0.discovery import Discovery, DiscoveryReply, JoinCluster, StartCluster, WaitForNodes
from ebla.group0.join_handshake import (
    JoinHandshake,
    JoinPhase,
    JoinWait,
    NotAdmitted,
    ResponseDecision,
    restart_refusal,
)
from ebla.group0.join_messages import MODE, JoinNodeQuery, JoinNodeQueryAnswer, JoinNodeRequest, JoinNodeResponse
from ebla.group0.members import Member
from ebla.model.advice import RESET_NODE_ADVICE
from ebla.model.errors import Corruption, EblaError, HostLeft, Refused, Unavailable
from ebla.model.identity import Address, ClusterId, HistoryId
from ebla.observe.metrics import Metrics
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.version import DATA_FORMAT
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import DiscoverRequest
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_DISCOVER, JOIN_NODE_QUERY, JOIN_NODE_REQUEST, A, Q, Verb

CALL_DEADLINE_MS = 1_000
REQUEST_DEADLINE_MS = 10_000
QUERY_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group0Config:
    member: Member
    """This node, as a learner."""
    node: Node
    """Its row of the topology."""
    cluster: ClusterId
    cluster_name: str
    contacts: tuple[Address, ...]
    replaced: str = ""
    """The dead node that this one replaces, as the operator named it; empty: it joins."""
    ignored: tuple[str, ...] = ()
    """Further dead nodes, which the replace ignores."""
    folder: str
    """Of this group only; the join state is a file beside it."""
    limits: NodeLimits = DEFAULT_LIMITS
    snapshot_entries_max: int = 10_000
    kept_entries: int = 1_000
    lost_leader_ms: int = 10_000
    """After this long without a leader, ask other members whether this node was removed."""
    formation_retry_ms: int = 500


CreateFirstState = Callable[[HistoryId], Awaitable[int]]
"""Makes the first state of a new group durable and returns the id of its log. Idempotent."""


class Formation:
    def __init__(self, context: PeersContext, join_state: JoinStateFile, config: Group0Config) -> None:
        self._context = context
        self._join_state = join_state
        self._config = config
        self._state: Discovery | None = None
        self._saving = asyncio.Lock()
        self._handshake: JoinHandshake | None = None
        self._handshake_changed = Wakeup()
        self._last_wait: JoinWait | None = None
        self.waits_for = ""
        """For people: what the node waits for while it is in no cluster."""
        self.metrics = Metrics()
        self._stale_responses = self.metrics.counter(
            "join_stale_responses_total", "Join responses for an attempt that is not this process's"
        ).series()

    async def join_or_create(self, create: CreateFirstState) -> tuple[Member, ...]:
        """Returns once this node belongs to group 0, or is a learner that waits for its first state. Returns the
        members known from joining; none if the node's own log has them. Raises `NotAdmitted` if it cannot join."""
        mark = self._join_state.mark
        is_accepted = mark.stage in (JoinStage.ACCEPTED, JoinStage.MEMBER)
        attempt = mark.join_id if is_accepted else self._context.rng.uuid()
        self._handshake = JoinHandshake(attempt, is_accepted=is_accepted)
        if self._config.replaced and is_accepted:
            reason = f"this node is a member, so it replaces {self._config.replaced} no more"
            self._context.report("join.replace_ignored", {"reason": reason})
        match mark.stage:
            case JoinStage.REMOVED:
                error = removed_error(self._config.member)
                raise NotAdmitted(error.message, advice=error.advice)
            case JoinStage.MEMBER:
                return ()
            case JoinStage.FOUNDING:
                return await self._create(create)
            case JoinStage.JOINING:
                return await self._join(self._handshake)
            case JoinStage.ACCEPTED:
                await self.check_not_left(mark.members)
                return mark.members
            case JoinStage.FRESH:
                return await self._discover(create)

    async def answer(self, request: DiscoverRequest) -> DiscoveryReply:
        """The answer of a node that is in no cluster. The nodes it knows are durable first (INV-FORM-1)."""
        if self._state is None:
            raise Refused("this node has not started discovery yet")
        self._state = discovery.record_request(self._state, request.address, request.known)
        await self._save_known()
        return discovery.reply_of(self._state)

    async def _discover(self, create: CreateFirstState) -> tuple[Member, ...]:
        config, mark = self._config, self._join_state.mark
        contacts = (*config.contacts, *mark.known)
        self._state = discovery.start_discovery(
            config.member.host, config.member.address, config.cluster_name, contacts
        )
        while True:
            match discovery.decide(self._state):
                case StartCluster() if self._config.replaced:
                    raise NotAdmitted(
                        f"no contact is in a cluster, so {self._config.replaced} cannot be replaced there",
                        advice="check `peers`, and that nodes of the cluster run",
                    )
                case StartCluster():
                    # The decision is durable before its effect: a node that crashed in between creates the same group
                    # again, and never joins another one.
                    await self._mark(JoinStage.FOUNDING, history=HistoryId(self._context.rng.uuid()))
                    return await self._create(create)
                case JoinCluster(contact=contact):
                    await self._mark(JoinStage.JOINING)
                    assert self._handshake is not None, "it is there from the start"
                    return await self._join(self._handshake, contact)
                case WaitForNodes(ask=ask, reason=reason):
                    await self._wait(ask, reason)

    async def _create(self, create: CreateFirstState) -> tuple[Member, ...]:
        history = self._join_state.mark.history
        self.waits_for = ""
        log_id = await create(history)
        await self._mark(JoinStage.MEMBER, log_id=log_id)
        return ()

    async def _wait(self, ask: tuple[Address, ...], reason: str) -> None:
        if reason != self.waits_for:
            self.waits_for = reason
            self._context.report("group0.waits", {"reason": reason})
        assert self._state is not None
        before = self._state
        async with asyncio.TaskGroup() as tasks:
            for address in ask:
                tasks.create_task(self._contact(address))
        if isinstance(discovery.decide(self._state), WaitForNodes) and self._state == before:
            await asyncio.sleep(self._config.formation_retry_ms / 1000)

    async def _contact(self, address: Address) -> None:
        assert self._state is not None
        request = DiscoverRequest(self._config.member.address, self._state.known)
        try:
            answer = await self._call(address, GROUP0_DISCOVER, request, CALL_DEADLINE_MS)
        except EblaError:
            self._state = discovery.forget_reply(self._state, address)
            return
        self._state = discovery.record_reply(self._state, address, answer.reply)
        await self._save_known()

    # ---- the join handshake

    async def _join(self, handshake: JoinHandshake, *first: Address) -> tuple[Member, ...]:
        """Until this node is accepted, which is durable then. Raises `NotAdmitted` if it is rejected."""
        contacts = self._candidates(*first)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._request_and_query(handshake, contacts))
            while handshake.phase in (JoinPhase.REQUESTING, JoinPhase.WAITING):
                await self._handshake_changed.wait(QUERY_MS / 1000)
            asking.cancel()
        if handshake.rejection is not None:
            self._context.report("join.rejected", {"reason": handshake.rejection.message})
            raise handshake.rejection
        accepted = handshake.acceptance
        assert accepted is not None, "it ends accepted or rejected"
        await self._mark(
            JoinStage.ACCEPTED, history=accepted.history, join_id=handshake.attempt, members=accepted.members
        )
        self.waits_for = ""
        self._context.report("join.accepted", {"history": str(accepted.history), "attempt": str(handshake.attempt)})
        return accepted.members

    async def _request_and_query(self, handshake: JoinHandshake, contacts: tuple[Address, ...]) -> None:
        config = self._config
        assert config.node is not None, "a node that joins has a row"
        assert handshake.attempt is not None, "a node that joins has drawn one"
        request = JoinNodeRequest(
            attempt=handshake.attempt,
            cluster=config.cluster,
            cluster_name=config.cluster_name,
            node=config.node,
            storage_format=DATA_FORMAT,
            replaced=config.replaced,
            ignored=config.ignored,
        )
        if config.replaced:
            details = {"num_tokens": config.node.num_tokens, "reason": f"the tokens of {config.replaced} are inherited"}
            self._context.report("join.num_tokens_ignored", details)
        while handshake.phase is JoinPhase.REQUESTING:
            step = handshake.next_request(contacts)
            await asyncio.sleep(step.after_ms / 1000)
            try:
                await self._call(step.contact, JOIN_NODE_REQUEST, request, REQUEST_DEADLINE_MS)
            except EblaError as error:
                self._show_wait(JoinWait(reason=f"{step.contact}: {error.message}"))
                handshake.request_failed(error)
            else:
                handshake.request_waits()
            self._handshake_changed.wake()
        while handshake.phase is JoinPhase.WAITING:
            await self._query_any(handshake, contacts)
            self._handshake_changed.wake()
            await asyncio.sleep(QUERY_MS / 1000)

    async def _query_any(self, handshake: JoinHandshake, contacts: tuple[Address, ...]) -> None:
        for address in contacts:
            answer = await self._query(address)
            if answer is not None:
                self._show_wait(handshake.query_answered(answer))
                return
        self._show_wait(JoinWait(reason=f"no answer from {', '.join(map(str, contacts))}"))

    async def _query(self, address: Address) -> JoinNodeQueryAnswer | None:
        """None: no answer, which says nothing. A member that knows of the host only that it has left refuses the
        connection, and nobody else tells the node: the coordinator cannot reach it any more, or has ended."""
        try:
            return await self._call(address, JOIN_NODE_QUERY, JoinNodeQuery(self._config.member.host), CALL_DEADLINE_MS)
        except HostLeft:
            return JoinNodeQueryAnswer(mode=MODE, cluster=self._config.cluster, state=NodeState.LEFT)
        except EblaError:
            return None

    async def check_not_left(self, members: Iterable[Member]) -> None:
        """Of a node that was accepted before this start. If no member answers, it starts and catches up. Raises
        `NotAdmitted` if its join has ended without it."""
        contacts = self._candidates(*(member.address for member in members if member.listens))
        async with asyncio.TaskGroup() as tasks:
            queries = [tasks.create_task(self._query(address)) for address in contacts]
        refusal = restart_refusal(answer for query in queries if (answer := query.result()) is not None)
        if refusal is not None:
            self._context.report("join.rejected", {"reason": refusal.message})
            raise refusal

    async def respond(self, response: JoinNodeResponse) -> ResponseDecision:
        """Returns once the response has been processed, or is stale."""
        handshake = self._handshake
        if handshake is None:
            raise Unavailable("this node has just started", advice="send the response again")
        decision = handshake.respond(response)
        if decision is ResponseDecision.STALE:
            self._stale_responses.add()
            details = {"attempt": str(response.attempt), "own_attempt": str(handshake.attempt)}
            self._context.report("join.stale_response", details)
            return decision
        self._handshake_changed.wake()
        while handshake.phase is JoinPhase.REQUESTING:
            await self._handshake_changed.wait(QUERY_MS / 1000)
        return ResponseDecision.PROCESSED

    def _show_wait(self, wait: JoinWait) -> None:
        if wait == self._last_wait:
            return
        self._last_wait = wait
        state = "" if wait.state is None else str(wait.state)
        queued = f"queued at position {wait.position}" if wait.position else ""
        self.waits_for = f"to join: {wait.reason or queued or state or 'the request is sent'}"
        self._context.report("join.waits", {"state": state, "position": wait.position, "reason": wait.reason})

    # ---- shared

    async def _call(self, address: Address, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        caller, _ = await connect(self._context, address, ConnectionTarget(Lane.CONTROL))
        try:
            return await caller.call(verb, request, deadline_ms)
        finally:
            caller.close("done")

    def _candidates(self, *first: Address) -> tuple[Address, ...]:
        known = dict.fromkeys((*first, *self._config.contacts, *self._join_state.mark.known))
        return tuple(address for address in known if address != self._config.member.address)

    async def _save_known(self) -> None:
        """One at a time: two requests may arrive at once, and the later save must include what both taught."""
        async with self._saving:
            assert self._state is not None
            if self._join_state.mark.stage is JoinStage.FRESH:
                await self._join_state.save(known=self._state.known)

    async def _mark(self, stage: JoinStage, **fields: object) -> None:
        async with self._saving:
            await self._join_state.save(stage=stage, **fields)


def removed_error(member: Member) -> Refused:
    return Refused(
        f"host {member.host} was removed from the cluster and can never come back",
        advice=RESET_NODE_ADVICE,
    )


def lost_folder_error(folder: str, mark: JoinState) -> Corruption:
    return Corruption(
        f"this node is a member of group 0 (start {mark.incarnation}), but its log in {folder} is gone or another",
        advice=(
            "it must not come back with an empty log under its old id: remove the host from another node "
            "(ebla group0 remove), then start it with a new, empty folder"
        ),
    )
