"""Asking group 0: transactions, locks, membership changes and reads, on any node, each with a deadline.

A command is offered to the leader, again and again under the same call id, until it shows up in this node's own log or
the deadline passes. The store applies a call once, so offering it again is safe; giving up is the only way to not know.
"""

import asyncio
import itertools
import math
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

LOOK_SLACK_MS = 5

_CHANGE_OF_ROLE = {
    MemberRole.VOTER: MemberChangeKind.ADD_VOTER,
    MemberRole.LEARNER: MemberChangeKind.ADD_LEARNER,
    MemberRole.REMOVED: MemberChangeKind.REMOVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group0ClientLimits:
    key_characters_max: int = 512
    value_bytes_max: int = 512 * 1024
    command_bytes_max: int = 1024 * 1024
    offer_again_ms: int = 500
    """How long to wait for a command to be applied before it is offered again; the leader may be another by then."""
    take_up_ms: int = 200
    """How long another node may take to answer that it has taken up a command. A frozen leader must not hold it up."""
    look_again_ms: int = 50
    """The same where it could not be offered."""
    read_again_ms: int = 500


class Forgot(EblaError):
    """The call was repeated so late that its answer is no longer kept."""

    outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class ClientIncarnation:
    """Who asks: a host, and which of its lives, so that calls of an earlier life are never mistaken for new ones."""

    host: HostId
    incarnation: int


class Group0Client:
    def __init__(
        self,
        caller: ClientIncarnation,
        machine: Group0StateMachine,
        raft: RaftDriver[Group0Store],
        way: tuple[Peers, Group0Transport],
    ) -> None:
        self._caller = caller
        self._machine = machine
        self._raft = raft
        self._peers, self._wire = way
        self._limits = Group0ClientLimits()
        self._serials = itertools.count(1)
        self._open: dict[int, _Waiting] = {}
        """Calls under way by serial, oldest first: every one before the first has been answered."""
        self._loop = asyncio.get_running_loop()
        self._looks = DeadlineTimer(self._loop, LOOK_SLACK_MS, self._look)
        self._forwarding: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled: a change of leader may have taken what was offered with it, so all is offered anew."""
        async with asyncio.TaskGroup() as tasks:
            self._forwarding = tasks
            try:
                while True:
                    await self._raft.wait_status_changed()
                    self._look(math.inf)
            finally:
                self._forwarding = None

    # ---- changes

    def transact(self, transaction: Transaction, deadline_ms: int) -> EagerFuture[CommandAnswer]:
        """The answer of the store. Raises `TooLarge`, `Unavailable` (not applied) or `DeadlineExceeded` (unknown)."""
        self._check_sizes(transaction)
        return self._execute(transaction, EntryKind.COMMAND, deadline_ms)

    async def acquire_lock(self, rng: Rng, deadline_ms: int) -> tuple[bytes, Revision]:
        lock = rng.bytes(16)
        answer = await self._execute(AcquireLock(lock), EntryKind.COMMAND, deadline_ms)
        return lock, revision_of(answer)

    async def change_members(self, members: tuple[Member, ...], lock: bytes | None, deadline_ms: int) -> CommandAnswer:
        return await self._execute(ChangeMembers(members, lock), EntryKind.MEMBERS, deadline_ms)

    # ---- reads

    async def read_barrier(self, deadline_ms: int) -> Revision:
        """Returns once this node has applied every write that was answered, anywhere, before the call."""
        reason = "no leader is known"
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while True:
                    try:
                        async with asyncio.timeout(self._limits.read_again_ms / 1000):
                            index = await self._raft.read_index()
                    except Unavailable as error:
                        reason = error.message
                        await asyncio.sleep(self._limits.read_again_ms / 10_000)
                        continue
                    except TimeoutError:
                        continue
                    await self._machine.wait_applied(index)
                    return self._machine.store.revision
        except TimeoutError:
            raise Unavailable(f"no quorum of group 0 answered within {deadline_ms} ms ({reason})") from None

    # ---- what other nodes ask of a leader

    def accept_proposal(self, request: ProposeRequest, by: HostId) -> None:
        """Puts another node's command before the leader, if that is us; raises `Refused` otherwise."""
        if not self._raft.is_leader:
            raise Refused("this node does not lead group 0")
        self._raft.propose(request.payload, request.kind, PeerId(peer_number(by)))

    # ---- how a command gets into the log

    def _execute(self, body: CommandBody, kind: EntryKind, deadline_ms: int) -> EagerFuture[CommandAnswer]:
        """Not a coroutine: where this node leads, which is where most calls are made, there is nothing to wait for but
        the answer, and a task for each call would cost as much as all else here. Cancelling the reply withdraws the
        call, as far as it can be."""
        serial = next(self._serials)
        call = CallId(
            client=self._caller.host,
            incarnation=self._caller.incarnation,
            serial=serial,
            answered_through=next(iter(self._open), serial) - 1,
        )
        payload = self._payload(Group0Command(call, body))
        outcome: EagerFuture[CommandAnswer] = EagerFuture()
        waiting = _Waiting(
            open=self._open, call=call, command=(payload, kind), outcome=outcome, deadline_ms=deadline_ms
        )
        waiting.expires_at = self._loop.time() + deadline_ms / 1000
        self._open[serial] = waiting
        self._machine.on_answer(call, waiting.told)
        self._offer(waiting)
        return outcome

    def _offer(self, waiting: "_Waiting") -> None:
        """Puts the command before the leader, and sees to it that it is looked at again."""
        state = self._raft.core.state
        leader = state.role.leader
        if leader == state.peer:
            waiting.sent = True
            self._raft.propose(*waiting.command)
            self._look_after(waiting, self._limits.offer_again_ms)
            return
        host = None if leader == NO_PEER else self._wire.host_of(leader)
        if host is None or self._forwarding is None:
            waiting.reason = "no leader of group 0 is known"
            self._look_after(waiting, self._limits.look_again_ms)
            return
        waiting.look_at = math.inf
        self._forwarding.create_task(self._forward(waiting, host))

    async def _forward(self, waiting: "_Waiting", leader: HostId) -> None:
        payload, kind = waiting.command
        remaining_ms = math.ceil((waiting.expires_at - self._loop.time()) * 1000)
        request = ProposeRequest(kind, payload)
        try:
            await self._peers.call(leader, GROUP0_PROPOSE, request, min(self._limits.take_up_ms, remaining_ms))
        except EblaError as error:
            waiting.sent |= error.outcome is not Outcome.NOT_APPLIED
            waiting.reason = error.message
            self._look_after(waiting, self._limits.look_again_ms)
        else:
            waiting.sent = True
            self._look_after(waiting, self._limits.offer_again_ms)

    def _look_after(self, waiting: "_Waiting", pause_ms: int) -> None:
        waiting.look_at = min(waiting.expires_at, self._loop.time() + pause_ms / 1000)
        if waiting.look_at < self._looks.armed_at:
            self._looks.note(waiting.look_at)

    def _look(self, now: float) -> float:
        """Offers again, or gives up, what has had no answer for its pause. Not what is just being forwarded."""
        earliest = math.inf
        for waiting in list(self._open.values()):
            if waiting.look_at <= now and waiting.look_at < math.inf:
                self._look_at(waiting)
            elif waiting.look_at < earliest:
                earliest = waiting.look_at
        return earliest

    def _look_at(self, waiting: "_Waiting") -> None:
        if not waiting.outcome.done() and self._loop.time() < waiting.expires_at:
            self._offer(waiting)
            return
        del self._open[waiting.call.serial]
        self._machine.forget(waiting.call)
        if not waiting.outcome.done():
            waiting.outcome.set_exception(waiting.gave_up())

    def _payload(self, command: Group0Command) -> bytes:
        data = encode_command(command)
        if len(data) > self._limits.command_bytes_max:
            raise TooLarge(
                f"the command has {len(data)} bytes; group 0 takes at most {self._limits.command_bytes_max}",
                advice="split it into several transactions",
            )
        if isinstance(command.body, ChangeMembers):
            return encode_change(_raft_change(command.body, data))
        return data

    def _check_sizes(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if not 0 < len(change.key) <= self._limits.key_characters_max:
                raise InvalidRequest(
                    f"a key has 1 to {self._limits.key_characters_max} characters, not {len(change.key)}"
                )
            if isinstance(change, PutKey) and len(change.value) > self._limits.value_bytes_max:
                raise TooLarge(
                    f"the value of {change.key} has {len(change.value)} bytes; "
                    f"group 0 takes at most {self._limits.value_bytes_max}",
                    advice="store large data in a table and keep only a reference here",
                )


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A call under way, and what is known of its chances, for the error if time runs out."""

    open: "dict[int, _Waiting]"
    call: CallId
    command: tuple[bytes, EntryKind]
    outcome: EagerFuture[CommandAnswer]
    deadline_ms: int
    expires_at: float = math.inf
    look_at: float = math.inf
    """When it is looked at if there is no answer by then."""
    sent: bool = False
    reason: str = ""

    def told(self, answer: CommandAnswer) -> None:
        del self.open[self.call.serial]
        if not self.outcome.done():
            self.outcome.set_result(answer)

    def gave_up(self) -> EblaError:
        because = f" ({self.reason})" if self.reason else ""
        if self.sent:
            return DeadlineExceeded(
                f"group 0 did not answer within {self.deadline_ms} ms{because}",
                advice="the change may have happened or may yet: read before trying again",
            )
        return Unavailable(f"group 0 took nothing up within {self.deadline_ms} ms{because}", advice="try again later")


def _raft_change(body: ChangeMembers, context: bytes) -> MembershipChange:
    changes = tuple(
        MemberChange(_CHANGE_OF_ROLE[member.role], PeerId(peer_number(member.host))) for member in body.members
    )
    return MembershipChange(changes, context=context)


def revision_of(answer: CommandAnswer) -> Revision:
    """The revision of a change that happened; raises the error that fits where it did not."""
    if isinstance(answer, Done):
        return answer.revision
    raise error_of(answer)


def error_of(answer: ConditionFailed | LockRevoked | Rejected | Forgotten) -> EblaError:
    match answer:
        case ConditionFailed(key=key, actual=actual):
            is_now = "does not exist" if actual is None else f"is at index {actual.index}"
            return Refused(f"a condition does not hold: {key} {is_now}", advice="read it again and decide anew")
        case LockRevoked():
            return Stale("the lock was revoked by a later one", advice="acquire it anew and start over")
        case Rejected(reason=reason):
            return InvalidRequest(reason)
        case Forgotten(reason=reason):
            return Forgot(reason, advice="read before trying again")
        case _ as never:
            assert_never(never)
