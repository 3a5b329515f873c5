"""Runs operations on the leader: lock, read and repair, keys with the record, membership, deletion.

`group0/operations.py` decides each step from what was read. Here are the calls, their bounds, and what is known of the
outcome when one of them fails.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.client import error_of
from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.operations.operation_metrics import OperationMetrics
from ebla.group0.commands import ConditionFailed, Done, Forgotten, LockRevoked, Rejected
from ebla.group0.members import Member
from ebla.group0.operation_steps import (
    AlreadyEnded,
    CommitRecord,
    Decision,
    OperationEnd,
    RunIdentity,
    completion,
    decide,
    pending_members,
    rejected,
    voters_after,
)
from ebla.group0.operation_table import Refusal
from ebla.group0.operations import (
    EndedOperation,
    Operation,
    OperationCode,
    OperationFailed,
    OperationResult,
    OperationState,
    OperationUnknown,
    UnfinishedOperation,
    read_state,
)
from ebla.group0.store import Group0Store
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec, EndReason, Precondition
from ebla.leadership.quorum import MAJORITY, MajorityOf, Quorum
from ebla.model.errors import EblaError, InvalidRequest, Outcome, Refused, Unavailable
from ebla.model.identity import HostId
from ebla.model.transaction import Transaction
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.topology.snapshot import Snapshot

STEP_MS = 15_000
RUN_MS = 60_000
"""Of all steps together, without waiting for the quorum of leases."""
ATTEMPTS_MAX = 3
ATTEMPT_PAUSE_MS = 200
CONFLICTS_MAX = 10
REPAIRS_MAX = 3
"""In one attempt. Under its lock nobody else leaves anything to repair."""
TIMEOUT_SLACK_S = 0.1
QUORUM_WAIT_MS = 5_000
"""How much longer than a lease period an operation waits for its quorum: a dead leader's leases have run out then."""


class OperationHandle(Protocol):
    """The right to act, as an activity has it."""

    def check_effect(self) -> None: ...

    async def switch_quorum(self, quorum: Quorum, wait_ms: int) -> None: ...


Check = Callable[[Operation, OperationHandle, Snapshot, Mapping[str, Member]], Awaitable[Operation | None]]
"""Runs after each read barrier, before the operation is decided. May raise `EblaError`, or return the operation with
what it found out. The commit is conditional on what it saw."""

RunActivity = Callable[
    [str, Callable[[OperationHandle], Awaitable[EndedOperation | None]]], Awaitable[EndedOperation | None]
]
"""Runs the body as an activity of this name in the domain `membership`, under a majority of the voters."""


class MembershipActivity:
    """Runs operations as activities of the leader, one at a time."""

    def __init__(self, leadership: LeadershipNode) -> None:
        self._leadership = leadership

    def wait_ms(self) -> int:
        return self._leadership.settings().period_ms + QUORUM_WAIT_MS

    async def run(
        self, name: str, body: Callable[[OperationHandle], Awaitable[EndedOperation | None]]
    ) -> EndedOperation | None:
        if self._leadership.activities.tasks is None:
            raise Unavailable("this node is about to stop")
        spec = ActivitySpec(name=name, domain="membership", quorum=MAJORITY, wait_ms=self.wait_ms())
        return await self._leadership.activities.run(spec, body)


class OperationTopology(Protocol):
    @property
    def store(self) -> Group0Store | None: ...

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def trouble(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDeps:
    group0: Group0Node
    topology: OperationTopology
    run_activity: RunActivity
    quorum_wait_ms: Callable[[], int]
    rng: Rng
    clock: Clock
    report: EventReporter
    reach: Callable[[FaultPoint], Awaitable[None]]


class OperationRunner:
    """One run at a time: the domain of its activity makes the others wait."""

    def __init__(self, deps: OperationDeps) -> None:
        self._deps = deps
        self.metrics = OperationMetrics()
        self.current: OperationRun | None = None
        """What runs on this node now."""

    async def run(self, operation: Operation, check: Check | None = None) -> EndedOperation | None:
        """Returns once it is done; how it ended, unless there was nothing to do. Raises `OperationFailed`, which is
        `OperationUnknown` if its record may be there."""
        run = OperationRun(self._deps, self.metrics, operation, check)
        return await self._run(str(operation.kind), run)

    async def repair(self) -> None:
        """Carries out the repair of the unfinished operation, if there is one."""
        await self._run("janitor", OperationRun(self._deps, self.metrics, None, None))

    async def _run(self, name: str, run: "OperationRun") -> EndedOperation | None:
        async def body(handle: OperationHandle) -> EndedOperation | None:
            self.current = run
            try:
                return await run.attempts(handle)
            finally:
                self.current = None

        try:
            ended = await self._deps.run_activity(name, body)
        except EblaError as error:
            failure = run.failure_of(error)
            self.metrics.count(name, failure.code)
            self._deps.report(
                "operation.failed",
                {"operation": str(failure.operation), "kind": name, "code": str(failure.code), "cause": str(failure)},
            )
            if failure is error:
                raise
            raise failure from error
        self.metrics.count(name, OperationResult.DONE)
        return ended


class _LockLost(Exception):
    """Another lock was acquired. What this attempt has read may be outdated."""


class OperationRun:
    def __init__(
        self, deps: OperationDeps, metrics: OperationMetrics, operation: Operation | None, check: Check | None
    ) -> None:
        self._deps = deps
        self._metrics = metrics
        self._operation = operation
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._spent_s = 0.0
        self._may_be_committed = False
        """Whether a record of this operation, or of the janitor's repair, may have been committed."""
        self._secured: tuple[HostId, ...] = ()
        """The new voters, a majority of which this run needs the leases of."""
        self.step = "waits for the quorum"
        """For people."""

    @property
    def id(self) -> uuid.UUID | None:
        return None if self._operation is None else self._operation.id

    async def attempts(self, handle: OperationHandle) -> EndedOperation | None:
        """Any lock mismatch ends an attempt, and the next one reads everything again: what this one has read is from
        before the other lock, under which anything may have been changed."""
        for number in range(ATTEMPTS_MAX):
            if number:
                await asyncio.sleep(ATTEMPT_PAUSE_MS / 1000)
            try:
                return await self._attempt(handle)
            except _LockLost:
                self._metrics.lock_mismatches.add()
        raise self._failure(
            OperationCode.LOCK_CONFLICT, f"another lock was acquired in each of {ATTEMPTS_MAX} attempts"
        )

    async def _attempt(self, handle: OperationHandle) -> EndedOperation | None:
        lock = await self._acquire_lock(handle)
        await self._deps.reach(FaultPoint.ATOMIC_LOCKED)
        conflicts = repairs = 0
        while conflicts <= CONFLICTS_MAX and repairs <= REPAIRS_MAX:
            decision, state = await self._decide(handle, lock)
            match decision:
                case AlreadyEnded(ended):
                    return self._result(ended)
                case Refusal(code=code, reason=reason, advice=advice):
                    raise self._failure(code, reason, advice)
                case OperationEnd():
                    repairs += 1
                    if await self._commit(handle, decision.transaction, "quarantine", is_own=False):
                        self._report_ended(decision)
                case CommitRecord(record=record, transaction=transaction, is_own=is_own):
                    if await self._secure_quorum(handle, state, record):
                        conflicts += 1  # that took time: what was read and checked before may be outdated
                        continue
                    if not await self._commit(handle, transaction, "keys", is_own=is_own or self._operation is None):
                        conflicts += 1
                        continue
                    await self._deps.reach(FaultPoint.ATOMIC_KEYS)
                    ended = await self._complete(handle, record)
                    if is_own:
                        return self._result(ended)
                    repairs += 1
                    self._metrics.repairs.add()
        raise self._failure(OperationCode.CONFLICT, f"keys changed meanwhile, {CONFLICTS_MAX} times", "try again")

    # ---- step 1 and 2

    async def _acquire_lock(self, handle: OperationHandle) -> bytes:
        try:
            async with self._bounded("lock") as within_ms:
                handle.check_effect()
                lock, _ = await self._running.client.acquire_lock(self._deps.rng, within_ms, handle.check_effect)
                return lock
        except (ActivityEnded, OperationFailed):
            raise
        except EblaError as error:
            # Whether the lock was acquired does not matter: nothing was changed under it.
            raise self._failure(OperationCode.CANNOT_ACQUIRE_LOCK, error.message, error.advice) from error

    async def _decide(self, handle: OperationHandle, lock: bytes) -> tuple[Decision, OperationState]:
        async with self._bounded("read") as within_ms:
            await self._running.client.read_barrier(within_ms)
            state = self._read()
            run = self._identity(lock)
            decision = decide(self._operation, state, run)
            is_first = isinstance(decision, CommitRecord) and decision.is_own and state.record is None
            operation = self._operation
            if is_first and self._check is not None and operation is not None:
                self._operation = await self._check(operation, handle, state.snapshot, state.members) or operation
                decision = decide(self._operation, state, run)
            # An earlier run of the same operation left the record: this one may fail, and it is completed all the same.
            self._may_be_committed |= isinstance(decision, CommitRecord) and decision.is_own and not is_first
            return decision, state

    def _read(self) -> OperationState:
        topology, store = self._deps.topology, self._running.store
        if topology.trouble:
            raise self._failure(OperationCode.UNAVAILABLE, topology.trouble)
        if topology.store is not store:
            raise self._failure(OperationCode.UNAVAILABLE, "this node does not know the topology yet", "try again")
        return read_state(store, topology.snapshot)

    def _identity(self, lock: bytes) -> RunIdentity:
        return RunIdentity(
            lock=lock,
            host=self._deps.group0.config.member.host,
            now_ms=self._deps.clock.wall_us() // 1000,
            repair_id=self._deps.rng.uuid(),
        )

    async def _secure_quorum(self, handle: OperationHandle, state: OperationState, record: UnfinishedOperation) -> bool:
        """Whether it had to wait. A voter set of which no majority is alive would be the end of the group."""
        voters = voters_after(state.members, record.members)
        if voters in (state.voters(), self._secured):
            return False
        self.step = "waits for the leases of the new voters"
        await handle.switch_quorum((MajorityOf(), MajorityOf(voters)), self._deps.quorum_wait_ms())
        self._secured = voters
        return True

    # ---- steps 3, 4 and 5

    async def _commit(self, handle: OperationHandle, transaction: Transaction, step: str, *, is_own: bool) -> bool:
        """Whether it was applied; if not, a condition does not hold."""
        before = self._may_be_committed
        async with self._bounded(step) as within_ms:
            handle.check_effect()
            self._may_be_committed |= is_own
            try:
                answer = await self._running.client.transact(transaction, within_ms, handle.check_effect)
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    self._may_be_committed = before
                raise
        if isinstance(answer, Done):
            return True
        if not isinstance(answer, Forgotten):
            self._may_be_committed = before
        if isinstance(answer, ConditionFailed):
            return False
        raise self._refusal(answer)

    async def _complete(self, handle: OperationHandle, record: UnfinishedOperation) -> EndedOperation:
        """The membership entry and the deletion. This node has applied its own commit, so it needs no barrier."""
        pending = pending_members(record.entry, self._running.store.members)
        if pending:
            async with self._bounded("members") as within_ms:
                handle.check_effect()
                answer = await self._running.client.change_members(pending, record.lock, within_ms, handle.check_effect)
            if isinstance(answer, Rejected):
                return await self._give_up(handle, record, answer.reason)
            if not isinstance(answer, Done):
                raise self._refusal(answer)
        await self._deps.reach(FaultPoint.ATOMIC_MEMBERS)
        ending = completion(self._own_state(record), self._identity(record.lock))
        if not await self._commit(handle, ending.transaction, "delete", is_own=False):
            raise _LockLost
        self._report_ended(ending)
        await self._deps.reach(FaultPoint.ATOMIC_DELETED)
        return ending.ended[-1]

    async def _give_up(self, handle: OperationHandle, record: UnfinishedOperation, reason: str) -> EndedOperation:
        """The membership entry is rejected, and would be every time."""
        decision = rejected(self._own_state(record), self._identity(record.lock), reason)
        if not await self._commit(handle, decision.transaction, "give up", is_own=False):
            raise _LockLost
        if isinstance(decision, CommitRecord):
            return await self._complete(handle, decision.record)
        self._report_ended(decision)
        return decision.ended[-1]

    def _own_state(self, record: UnfinishedOperation) -> OperationState:
        """What this node has applied, which includes its own commits."""
        state = self._read()
        if state.record is None or state.record.value != record:
            raise _LockLost
        return state

    # ---- outcomes

    def _result(self, ended: EndedOperation | None) -> EndedOperation | None:
        if ended is None or ended.result is OperationResult.DONE:
            return ended
        what = f"operation {ended.id} ({ended.kind}) was {ended.result}: {ended.reason}"
        if ended.result is OperationResult.UNDONE:
            raise OperationFailed(
                what,
                advice="start the node with a new, empty folder",
                code=OperationCode.UNDONE,
                operation=ended.id,
            )
        raise OperationUnknown(
            what,
            advice="its keys are changed and its members are not, see `ebla operations`",
            code=OperationCode.QUARANTINED,
            operation=ended.id,
        )

    def _failure(self, code: OperationCode, message: str, advice: str = "") -> OperationFailed:
        if not self._may_be_committed:
            return OperationFailed(message, advice=advice, code=code, operation=self.id)
        what = "the repair" if self.id is None else f"operation {self.id}"
        return OperationUnknown(
            f"{message}; {what} has not ended",
            advice="it will be completed or undone by the janitor, see `ebla operations`",
            code=code,
            operation=self.id,
        )

    def failure_of(self, error: EblaError) -> OperationFailed:
        if isinstance(error, OperationFailed):
            return error
        match error:
            case ActivityRefused(precondition=precondition):
                code = _CODE_OF_PRECONDITION[precondition]
            case ActivityEnded(reason=EndReason.NOT_LEADER):
                code = OperationCode.NOT_LEADER
            case ActivityEnded():
                code = OperationCode.QUORUM_LOST
            case Refused():
                code = OperationCode.REFUSED
            case InvalidRequest():
                code = OperationCode.INVALID
            case _:
                code = OperationCode.TIMEOUT if error.is_transient else OperationCode.FAILED
        return self._failure(code, f"{self.step}: {error.message}", error.advice)

    def _refusal(self, answer: ConditionFailed | LockRevoked | Rejected | Forgotten) -> Exception:
        return _LockLost() if isinstance(answer, LockRevoked) else error_of(answer)

    def _report_ended(self, ending: OperationEnd) -> None:
        for one in ending.ended:
            self._deps.report(
                "operation.ended",
                {
                    "operation": str(one.id),
                    "kind": str(one.kind),
                    "hosts": ", ".join(map(str, one.hosts)),
                    "result": str(one.result),
                    "reason": one.reason,
                },
            )

    # ---- bounds

    @property
    def _running(self) -> RunningGroup0:
        return self._deps.group0.running

    @asynccontextmanager
    async def _bounded(self, step: str) -> AsyncIterator[int]:
        self.step = step
        began_s = self._loop.time()
        left_s = min(STEP_MS / 1000, RUN_MS / 1000 - self._spent_s)
        try:
            async with asyncio.timeout(left_s + TIMEOUT_SLACK_S):  # a call's own deadline knows what became of it
                yield max(1, int(left_s * 1000))
        except TimeoutError:
            raise self._failure(OperationCode.TIMEOUT, f"{step} took more than {left_s:.0f} s") from None
        finally:
            self._spent_s += self._loop.time() - began_s


_CODE_OF_PRECONDITION = {
    Precondition.DOMAIN_CONFLICT: OperationCode.CONFLICT,
    Precondition.NOT_LEADER: OperationCode.NOT_LEADER,
    Precondition.NO_LEASE: OperationCode.NO_QUORUM,
    Precondition.NO_QUORUM: OperationCode.NO_QUORUM,
}
