"""A node's own access to group 0: transactions, locks, membership changes and reads, each with a deadline.

A command is offered to the leader, repeatedly under the same call id, until it appears in this node's own log or the
deadline passes. The store applies a call once, so offering it again is safe. Only a call that gives up does not know
its outcome.
"""

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from ebla.aio.deadline_timer import DeadlineTimer
from ebla.aio.eager_future import EagerFuture
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.group0.transport import Group0Transport
from ebla.control.raft.driver import RaftDriver
from ebla.group0.commands import (
    AcquireLock,
    CallId,
    ChangeMembers,
    CommandAnswer,
    CommandBody,
    ConditionFailed,
    Done,
    Forgotten,
    Group0Command,
    LockRevoked,
    Rejected,
    encode_command,
)
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.store import Group0Store
from ebla.model.errors import (
    DeadlineExceeded,
    EblaError,
    InvalidRequest,
    Outcome,
    Refused,
    Stale,
    TooLarge,
    Unavailable,
)
from ebla.model.identity import HostId
from ebla.model.transaction import PutKey, Revision, Transaction
from ebla.ports.rng import Rng
from ebla.raft.membership import MemberChange, MemberChangeKind, MembershipChange, encode_change
from ebla.raft.messages import NO_PEER, EntryKind, PeerId
from ebla.wire.group0_messages import ProposeRequest
from ebla.wire.peers import Peers
from ebla.wire.verbs import GROUP0_PROPOSE

KEY_CHARACTERS_MAX = 512
VALUE_BYTES_MAX = 512 * 1024
COMMAND_BYTES_MAX = 1024 * 1024
REOFFER_MS = 500
"""How long to wait for a command to be applied before it is offered again; the leader may have changed by then."""
ACCEPT_MS = 200
"""How long another node may take to accept a command. A frozen leader must not block it."""
RETRY_MS = 50
"""The same if the command could not be offered."""
REREAD_MS = 500
CHECK_SLACK_MS = 5

_CHANGE_OF_ROLE = {
    MemberRole.VOTER: MemberChangeKind.ADD_VOTER,
    MemberRole.LEARNER: MemberChangeKind.ADD_LEARNER,
    MemberRole.REMOVED: MemberChangeKind.REMOVE,
}


BeforeOffer = Callable[[], None] | None
"""Called each time a command is offered to a leader, in the same turn of the loop. If it raises, the command is not
offered again. A command of an activity that lost its right would otherwise reach the next leader."""


class Forgot(EblaError):
    """The call was repeated so late that its answer is no longer cached."""

    outcome = Outcome.UNKNOWN


class Group0Client:
    def __init__(
        self,
        incarnation: int,
        machine: Group0StateMachine,
        raft: RaftDriver[Group0Store],
        peers: Peers,
        transport: Group0Transport,
    ) -> None:
        """`incarnation`: of this node, so that calls of an earlier one are never mistaken for new ones."""
        self._incarnation = incarnation
        self.is_confirmed = False
        """Whether group 0 knows this start of the node. Until then the client commits nothing else: answers are
        remembered by host and incarnation, and a process on a copy of the folder would get the original's answers."""
        self._machine = machine
        self._raft = raft
        self._peers = peers
        self._transport = transport
        self._serials = itertools.count(1)
        self._open: dict[int, _OpenCall] = {}
        """Open calls by serial, oldest first: every serial before the first has been answered."""
        self._loop = asyncio.get_running_loop()
        self._checks = DeadlineTimer(self._loop, CHECK_SLACK_MS, self._check)
        self._forwarding: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled. A change of leader may have lost what was offered, so everything is offered again."""
        async with asyncio.TaskGroup() as tasks:
            self._forwarding = tasks
            try:
                while True:
                    await self._raft.wait_status_changed()
                    self._check(math.inf)
            finally:
                self._forwarding = None

    # ---- changes

    def transact(
        self, transaction: Transaction, deadline_ms: int, before_offer: BeforeOffer = None
    ) -> EagerFuture[CommandAnswer]:
        """The store's answer. Raises `TooLarge`, `Unavailable` (not applied) or `DeadlineExceeded` (unknown)."""
        self._require_confirmed()
        self._check_sizes(transaction)
        return self._execute(transaction, EntryKind.COMMAND, deadline_ms, before_offer)

    async def confirm_start(self, transaction: Transaction, deadline_ms: int) -> None:
        """Commits the record of this start, if its condition holds. Returns nothing: only the record itself shows
        whether it was committed."""
        await self._execute(transaction, EntryKind.COMMAND, deadline_ms)

    async def acquire_lock(
        self, rng: Rng, deadline_ms: int, before_offer: BeforeOffer = None
    ) -> tuple[bytes, Revision]:
        self._require_confirmed()
        lock = rng.bytes(16)
        answer = await self._execute(AcquireLock(lock), EntryKind.COMMAND, deadline_ms, before_offer)
        return lock, revision_of(answer)

    async def change_members(
        self, members: tuple[Member, ...], lock: bytes, deadline_ms: int, before_offer: BeforeOffer = None
    ) -> CommandAnswer:
        """Only for runs of operations, which change the keys as well."""
        self._require_confirmed()
        return await self._execute(ChangeMembers(members, lock), EntryKind.MEMBERS, deadline_ms, before_offer)

    def _require_confirmed(self) -> None:
        if not self.is_confirmed:
            raise Unavailable("group 0 has not confirmed this start of the node yet", advice="try again in a moment")

    # ---- reads

    async def read_barrier(self, deadline_ms: int) -> Revision:
        """Returns once this node has applied every write that was answered on any node before the call."""
        reason = "no leader is known"
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while True:
                    try:
                        async with asyncio.timeout(REREAD_MS / 1000):
                            index = await self._raft.read_index()
                    except Unavailable as error:
                        reason = error.message
                        await asyncio.sleep(REREAD_MS / 10_000)
                        continue
                    except TimeoutError:
                        continue
                    await self._machine.wait_applied(index)
                    return self._machine.store.revision
        except TimeoutError:
            raise Unavailable(f"no quorum of group 0 answered within {deadline_ms} ms ({reason})") from None

    # ---- for other nodes, on the leader

    def accept_proposal(self, request: ProposeRequest, by: HostId) -> None:
        """Proposes another node's command if this node leads; raises `Refused` otherwise."""
        if not self._raft.is_leader:
            raise Refused("this node does not lead group 0")
        self._raft.propose(request.payload, request.kind, PeerId(peer_number(by)))

    # ---- how a command gets into the log

    def _execute(
        self, body: CommandBody, kind: EntryKind, deadline_ms: int, before_offer: BeforeOffer = None
    ) -> EagerFuture[CommandAnswer]:
        """Not a coroutine: on the leader, where most calls are made, there is nothing to wait for but the answer, and a
        task per call would cost as much as everything else here. Cancelling the future withdraws the call, as far as
        possible."""
        serial = next(self._serials)
        call = CallId(
            client=self._transport.own.host,
            incarnation=self._incarnation,
            serial=serial,
            answered_through=next(iter(self._open), serial) - 1,
        )
        payload = self._payload(Group0Command(call, body))
        outcome: EagerFuture[CommandAnswer] = EagerFuture()
        open_call = _OpenCall(
            open=self._open,
            call=call,
            command=(payload, kind),
            outcome=outcome,
            deadline_ms=deadline_ms,
            before_offer=before_offer,
        )
        open_call.expires_at = self._loop.time() + deadline_ms / 1000
        self._open[serial] = open_call
        self._machine.on_answer(call, open_call.answered)
        self._offer(open_call)
        return outcome

    def _offer(self, open_call: "_OpenCall") -> None:
        """Offers the command to the leader, and schedules the next check."""
        if not self._may_offer(open_call):
            return
        state = self._raft.core.state
        leader = state.role.leader
        if leader == state.peer:
            open_call.sent = True
            self._raft.propose(*open_call.command)
            self._check_after(open_call, REOFFER_MS)
            return
        host = None if leader == NO_PEER else self._transport.host_of(leader)
        if host is None or self._forwarding is None:
            open_call.reason = "no leader of group 0 is known"
            self._check_after(open_call, RETRY_MS)
            return
        open_call.check_at = math.inf
        self._forwarding.create_task(self._forward(open_call, host))

    def _may_offer(self, open_call: "_OpenCall") -> bool:
        """If not, a command that was never sent fails at once. One that was sent may still be applied: its caller gets
        the answer if there is one by the deadline."""
        if open_call.before_offer is None:
            return True
        try:
            open_call.before_offer()
        except EblaError as error:
            if open_call.sent:
                self._check_after(open_call, open_call.deadline_ms)
            else:
                self._give_up(open_call, error)
            return False
        return True

    async def _forward(self, open_call: "_OpenCall", leader: HostId) -> None:
        payload, kind = open_call.command
        remaining_ms = math.ceil((open_call.expires_at - self._loop.time()) * 1000)
        request = ProposeRequest(kind, payload)
        try:
            await self._peers.call(
                leader, GROUP0_PROPOSE, request, min(ACCEPT_MS, remaining_ms), open_call.before_offer
            )
        except EblaError as error:
            open_call.sent |= error.outcome is not Outcome.NOT_APPLIED
            open_call.reason = error.message
            self._check_after(open_call, RETRY_MS)
        else:
            open_call.sent = True
            self._check_after(open_call, REOFFER_MS)

    def _check_after(self, open_call: "_OpenCall", pause_ms: int) -> None:
        open_call.check_at = min(open_call.expires_at, self._loop.time() + pause_ms / 1000)
        if open_call.check_at < self._checks.armed_at:
            self._checks.note(open_call.check_at)

    def _check(self, now: float) -> float:
        """Offers calls without an answer again, or gives them up. Not those that are just being forwarded."""
        earliest = math.inf
        for open_call in list(self._open.values()):
            if open_call.check_at <= now and open_call.check_at < math.inf:
                self._check_one(open_call)
            elif open_call.check_at < earliest:
                earliest = open_call.check_at
        return earliest

    def _check_one(self, open_call: "_OpenCall") -> None:
        if not open_call.outcome.done() and self._loop.time() < open_call.expires_at:
            self._offer(open_call)
            return
        self._give_up(open_call, open_call.timeout_error())

    def _give_up(self, open_call: "_OpenCall", error: EblaError) -> None:
        del self._open[open_call.call.serial]
        self._machine.forget(open_call.call)
        if not open_call.outcome.done():
            open_call.outcome.set_exception(error)

    def _payload(self, command: Group0Command) -> bytes:
        data = encode_command(command)
        if len(data) > COMMAND_BYTES_MAX:
            raise TooLarge(
                f"the command has {len(data)} bytes; group 0 takes at most {COMMAND_BYTES_MAX}",
                advice="split it into several transactions",
            )
        if isinstance(command.body, ChangeMembers):
            return encode_change(_raft_change(command.body, data))
        return data

    def _check_sizes(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if not 0 < len(change.key) <= KEY_CHARACTERS_MAX:
                raise InvalidRequest(f"a key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(change.key)}")
            if isinstance(change, PutKey) and len(change.value) > VALUE_BYTES_MAX:
                raise TooLarge(
                    f"the value of {change.key} has {len(change.value)} bytes; group 0 takes at most {VALUE_BYTES_MAX}",
                    advice="store large data in a table and keep only a reference here",
                )


@dataclass(slots=True, kw_only=True)
class _OpenCall:
    """An open call, and what is known about it for the error if the deadline passes."""

    open: "dict[int, _OpenCall]"
    call: CallId
    command: tuple[bytes, EntryKind]
    outcome: EagerFuture[CommandAnswer]
    deadline_ms: int
    before_offer: BeforeOffer = None
    expires_at: float = math.inf
    check_at: float = math.inf
    """When to offer it again, if there is no answer by then."""
    sent: bool = False
    reason: str = ""

    def answered(self, answer: CommandAnswer) -> None:
        del self.open[self.call.serial]
        if not self.outcome.done():
            self.outcome.set_result(answer)

    def timeout_error(self) -> EblaError:
        because = f" ({self.reason})" if self.reason else ""
        if self.sent:
            return DeadlineExceeded(
                f"group 0 did not answer within {self.deadline_ms} ms{because}",
                advice="the change may have happened or may still happen: read before trying again",
            )
        return Unavailable(
            f"group 0 did not accept the command within {self.deadline_ms} ms{because}", advice="try again later"
        )


def _raft_change(body: ChangeMembers, context: bytes) -> MembershipChange:
    changes = tuple(
        MemberChange(_CHANGE_OF_ROLE[member.role], PeerId(peer_number(member.host))) for member in body.members
    )
    return MembershipChange(changes, context=context)


def revision_of(answer: CommandAnswer) -> Revision:
    """The revision of a change that was applied; raises an error that says why if it was not."""
    if isinstance(answer, Done):
        return answer.revision
    raise error_of(answer)


def error_of(answer: ConditionFailed | LockRevoked | Rejected | Forgotten) -> EblaError:
    match answer:
        case ConditionFailed(key=key, actual=actual):
            is_now = "does not exist" if actual is None else f"is at index {actual.index}"
            return Refused(f"a condition does not hold: {key} {is_now}", advice="read it again and decide again")
        case LockRevoked():
            return Stale("the lock was revoked by a later one", advice="acquire it again and start over")
        case Rejected(reason=reason):
            return InvalidRequest(reason)
        case Forgotten(reason=reason):
            return Forgot(reason, advice="read before trying again")
        case _ as never:
            assert_never(never)
