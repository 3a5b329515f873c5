"""How a node gets into group 0: it finds the other nodes, then creates the group or joins it.

`group0/discovery.py` decides which node creates it. Here are the calls and the durable steps between them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from ebla.control.group0.join_state import JoinStage, JoinState, JoinStateFile
from ebla.group0 import discovery
from ebla.group0.discovery import Discovery, DiscoveryReply, FoundCluster, JoinCluster, WaitForNodes
from ebla.group0.members import Member
from ebla.model.errors import Corruption, EblaError, InvalidRequest, Refused
from ebla.model.identity import Address, ClusterId, HistoryId
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import DiscoverRequest, JoinAnswer, JoinRequest
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_DISCOVER, GROUP0_JOIN, A, Q, Verb

CALL_DEADLINE_MS = 1_000
JOIN_DEADLINE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group0Config:
    member: Member
    """This node, as a learner."""
    cluster: ClusterId
    cluster_name: str
    contacts: tuple[Address, ...]
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
        self.waits_for = ""
        """For people: what the node waits for while it is in no cluster."""

    async def join_or_create(self, create: CreateFirstState) -> tuple[Member, ...]:
        """Returns once this node belongs to group 0, or is a learner that waits for its first state. Returns the
        members known from joining; none if the node's own log has them."""
        mark = self._join_state.mark
        match mark.stage:
            case JoinStage.REMOVED:
                raise removed_error(self._config.member)
            case JoinStage.MEMBER:
                return ()
            case JoinStage.FOUNDING:
                return await self._create(create)
            case JoinStage.JOINING:
                return (await self._join_any()).members
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
                case FoundCluster():
                    # The decision is durable before its effect: a node that crashed in between creates the same group
                    # again, and never joins another one.
                    await self._mark(JoinStage.FOUNDING, history=HistoryId(self._context.rng.uuid()))
                    return await self._create(create)
                case JoinCluster():
                    await self._mark(JoinStage.JOINING, join_id=self._context.rng.uuid())
                    return (await self._join_any()).members
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

    async def _join_any(self) -> JoinAnswer:
        """Contacts the known nodes one after another, until a member adds this node. Idempotent."""
        while True:
            for address in self._candidates():
                try:
                    request = JoinRequest(self._as_new_member())
                    answer = await self._call(address, GROUP0_JOIN, request, JOIN_DEADLINE_MS)
                except InvalidRequest:
                    raise  # another member, or a later attempt, would answer the same
                except EblaError as error:
                    self.waits_for = f"{address}: {error.message}"
                    continue
                await self._mark(JoinStage.JOINING, history=answer.history)
                self.waits_for = ""
                return answer
            await asyncio.sleep(self._config.formation_retry_ms / 1000)

    async def _call(self, address: Address, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        caller, _ = await connect(self._context, address, ConnectionTarget(Lane.CONTROL))
        try:
            return await caller.call(verb, request, deadline_ms)
        finally:
            caller.close("done")

    def _as_new_member(self) -> Member:
        return msgspec.structs.replace(self._config.member, join_id=self._join_state.mark.join_id)

    def _candidates(self) -> tuple[Address, ...]:
        known = dict.fromkeys((*self._config.contacts, *self._join_state.mark.known))
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
        advice="to use this machine again, start a node with a new, empty folder",
    )


def lost_folder_error(folder: str, mark: JoinState) -> Corruption:
    return Corruption(
        f"this node is a member of group 0 (start {mark.incarnation}), but its log in {folder} is gone or another",
        advice=(
            "it must not come back with an empty log under its old id: remove the host from another node "
            "(ebla group0 remove), then start it with a new, empty folder"
        ),
    )
