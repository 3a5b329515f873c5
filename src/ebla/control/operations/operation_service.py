"""Requests for operations, on any node: they reach the leader, which runs each of them once."""

import asyncio
import uuid
from collections.abc import Callable

from ebla.control.group0.client import revision_of
from ebla.control.operations.hand_over import hand_over
from ebla.control.operations.janitor import Janitor
from ebla.control.operations.runner import Check, OperationDeps, OperationRunner
from ebla.group0.operation_steps import dismissal
from ebla.group0.operation_table import Refusal
from ebla.group0.operations import (
    EndedOperation,
    Operation,
    OperationCode,
    OperationFailed,
    OperationKind,
    OperationResult,
    OperationUnknown,
    UnreadableRecord,
    ended_operations,
    read_record,
    read_state,
    why_malformed,
)
from ebla.model.errors import EblaError, InvalidRequest, Outcome, Unavailable
from ebla.model.identity import HostId
from ebla.topology.snapshot import TopologyState
from ebla.wire.operation_messages import OperateAnswer, OperateRequest, OperationsAnswer, OperationsRequest
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import OPERATE, OPERATIONS

CALL_MS = 5_000
"""Of one call to the leader. A call that is repeated joins the run that is in progress, so it need not be long, and a
frozen leader does not keep it."""
RETRY_MS = 100
KEPT_S = 5.0
"""For how long the leader keeps the result of a run for a caller that got `running` and asks again."""
FOLLOW_UP_MS = 2_000
REQUEST_MS = 90_000
"""A run, and the wait for its quorum."""
TOPOLOGY_CHECK_MS = 50
TOPOLOGY_CHECKS = 40
UNFINISHED_WARNING_MS = 5_000
REPAIRED_LATER = "it will be completed or undone by the janitor, see `ebla operations`"
DECIDED = (OperationCode.INVALID, OperationCode.REFUSED, OperationCode.UNDONE)
"""Only after a look at the record: one of the same operation would have been continued."""

Result = EndedOperation | OperationFailed | None


class Operations:
    """`run` until cancelled."""

    def __init__(self, deps: OperationDeps, peers: Peers, janitor_delay_ms: Callable[[], int]) -> None:
        self._deps = deps
        self._peers = peers
        self._own = deps.group0.config.member.host
        self.runner = OperationRunner(deps)
        self.janitor = Janitor(deps, self.runner, janitor_delay_ms)
        self.checks: dict[OperationKind, Check] = {}
        """By kind, what the leader checks before it commits an operation."""
        self._runs: dict[uuid.UUID, asyncio.Task[Result]] = {}
        self._asked_again: set[uuid.UUID] = set()
        """Operations whose callers got `running`."""
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        await self._deps.group0.confirmed.wait()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self.janitor.run()
            finally:
                self._tasks = None

    def serve_on(self, server: Server) -> None:
        server.serve(OPERATE, self._operate)
        server.serve(OPERATIONS, self._report)

    # ---- requests

    async def request(self, operation: Operation, within_ms: int = REQUEST_MS) -> EndedOperation | None:
        """Runs it at the leader, and at the next one if that changes: a repeated operation continues. Raises
        `OperationFailed`, which is `OperationUnknown` if its record may be there."""
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + within_ms / 1000
        may_be_committed, cause = False, "no leader is known"
        runs_at: HostId | None = None
        while (left_ms := int((expires_at - loop.time()) * 1000)) > 0:
            leader = self._deps.group0.running.leader_host()
            may_be_committed |= runs_at not in (None, leader)
            try:
                return await self._ask_leader(operation, left_ms)
            except OperationFailed as error:
                if error.code is OperationCode.RUNNING:
                    runs_at = leader
                elif error.code is not OperationCode.NOT_LEADER:
                    raise _as_known(error, may_be_committed=may_be_committed) from None
                may_be_committed |= error.outcome is Outcome.UNKNOWN
                cause = error.message
            except EblaError as error:
                may_be_committed |= error.outcome is Outcome.UNKNOWN
                cause = error.message
            await asyncio.sleep(min(RETRY_MS, left_ms) / 1000)
        text = f"the leader did not answer within {within_ms} ms ({cause})"
        if not may_be_committed and runs_at is None:
            raise OperationFailed(text, advice="try again", code=OperationCode.UNAVAILABLE, operation=operation.id)
        raise OperationUnknown(text, advice=REPAIRED_LATER, code=OperationCode.TIMEOUT, operation=operation.id)

    async def _ask_leader(self, operation: Operation, left_ms: int) -> EndedOperation | None:
        leader = self._deps.group0.running.leader_host()
        if leader is None:
            raise Unavailable("no leader of group 0 is known")
        if leader != self._own:
            answer = await self._peers.call(leader, OPERATE, OperateRequest(operation), min(CALL_MS, left_ms))
            ended = _result_of(answer)
            await self._follow_up(left_ms)
            return ended
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await self.run_here(operation)
        except TimeoutError:
            raise OperationUnknown(
                "it still runs", code=OperationCode.NOT_LEADER, operation=operation.id
            ) from None  # the caller's time is over

    async def _follow_up(self, left_ms: int) -> None:
        """What was done is visible on the node that was asked. If that takes too long, it is done all the same."""
        try:
            await self._deps.group0.running.client.read_barrier(min(FOLLOW_UP_MS, left_ms))
        except EblaError:
            pass

    async def run_here(self, operation: Operation) -> EndedOperation | None:
        """If this node leads. A caller that goes away does not end the run: it would leave a record behind."""
        if self._tasks is None or not self._deps.group0.leads:
            raise OperationFailed("this node does not lead", code=OperationCode.NOT_LEADER, operation=operation.id)
        task = self._runs.get(operation.id)
        if task is None:
            task = self._runs[operation.id] = self._tasks.create_task(self._run(operation))
            task.add_done_callback(lambda _: self._forget(operation.id))
        result = await asyncio.shield(task)
        if isinstance(result, OperationFailed):
            raise result
        return result

    def _forget(self, operation: uuid.UUID) -> None:
        """A caller that got `running` asks again, and gets the result of this run, not another run."""
        if operation in self._asked_again:
            self._asked_again.remove(operation)
            asyncio.get_running_loop().call_later(KEPT_S, self._runs.pop, operation, None)
        else:
            self._runs.pop(operation, None)

    async def _run(self, operation: Operation) -> Result:
        if reason := why_malformed(operation):
            return OperationFailed(reason, code=OperationCode.INVALID, operation=operation.id)
        try:
            if operation.kind is OperationKind.ADD_LEARNER:
                await self._wait_for_topology()
            await hand_over(self._deps, operation)
            return await self.runner.run(operation, self.checks.get(operation.kind))
        except OperationFailed as error:
            return error
        except EblaError as error:
            return OperationFailed(
                error.message, advice=error.advice, code=OperationCode.UNAVAILABLE, operation=operation.id
            )

    async def _wait_for_topology(self) -> None:
        """All nodes of a new cluster start at once, and the first one is about to create it."""
        for _ in range(TOPOLOGY_CHECKS):
            if self._deps.topology.snapshot.state != TopologyState():
                return
            await asyncio.sleep(TOPOLOGY_CHECK_MS / 1000)

    # ---- verbs

    async def _operate(self, request: OperateRequest, call: IncomingCall) -> OperateAnswer:
        operation = request.operation
        try:
            if request.forward:
                ended = await self.request(operation, call.work_ms())
            else:
                ended = await self._run_for_peer(operation, call.work_ms())
        except OperationFailed as error:
            return _failed_answer(error, operation.id)
        return OperateAnswer(operation=operation.id, ended=ended)

    async def _run_for_peer(self, operation: Operation, within_ms: int) -> EndedOperation | None:
        """A call that timed out would not know whether anything was committed, so it is answered before."""
        try:
            async with asyncio.timeout(within_ms / 1000):
                return await self.run_here(operation)
        except TimeoutError:
            if operation.id in self._runs:
                self._asked_again.add(operation.id)
            raise OperationFailed("it still runs", code=OperationCode.RUNNING, operation=operation.id) from None

    async def _report(self, request: OperationsRequest, call: IncomingCall) -> OperationsAnswer:
        running = self._deps.group0.running
        leader = running.leader_host()
        if request.forward and leader is not None and leader != self._own:
            forwarded = OperationsRequest(repair=request.repair, dismiss=request.dismiss, forward=False)
            return await self._peers.call(leader, OPERATIONS, forwarded, call.work_ms())
        if (request.repair or request.dismiss is not None) and not self._deps.group0.leads:
            raise Unavailable("no leader of group 0 is known" if leader is None else f"host {leader} leads now")
        if request.dismiss is not None:
            await self._dismiss(request.dismiss, call.work_ms())
        repaired = await self._repair() if request.repair else None
        store = running.store
        found, current = read_record(store), self.runner.current
        return OperationsAnswer(
            host=self._own,
            is_leader=self._deps.group0.leads,
            now_ms=self._deps.clock.wall_us() // 1000,
            unfinished=None if found is None else found.value,
            step="" if current is None else current.step,
            janitor_in_ms=self.janitor.due_in_ms(),
            ended=ended_operations(store),
            repaired=repaired,
        )

    async def _repair(self) -> OperateAnswer:
        found = read_record(self._deps.group0.running.store)
        operation = None if found is None else found.value.id
        try:
            await self.janitor.repair_now()
        except OperationFailed as error:
            return _failed_answer(error, operation)
        return OperateAnswer(operation=operation)

    async def _dismiss(self, operation: uuid.UUID, within_ms: int) -> None:
        running = self._deps.group0.running
        await running.client.read_barrier(within_ms)
        decision = dismissal(read_state(running.store, self._deps.topology.snapshot), operation)
        if isinstance(decision, Refusal):
            raise InvalidRequest(decision.reason, advice="see `ebla operations`")
        revision_of(await running.client.transact(decision, within_ms))

    # ---- for `ebla status`

    def warnings(self) -> tuple[str, ...]:
        if not self._deps.group0.is_running:
            return ()
        store = self._deps.group0.running.store
        try:
            found = read_record(store)
        except UnreadableRecord as error:
            return (error.message,)
        now_ms = self._deps.clock.wall_us() // 1000
        warnings = [
            f"operation {one.id} ({one.kind}) is quarantined: {one.reason}; see `ebla operations`"
            for one in ended_operations(store)
            if one.result is OperationResult.QUARANTINED
        ]
        if found is not None and now_ms - found.value.start_ms >= UNFINISHED_WARNING_MS:
            warnings.append(f"operation {found.value.id} ({found.value.kind}) is unfinished; see `ebla operations`")
        return tuple(warnings)


def _as_known(error: OperationFailed, *, may_be_committed: bool) -> OperationFailed:
    """An earlier leader may have committed the record. Then a later one did not apply it only if it looked."""
    if not may_be_committed or error.code in DECIDED or error.outcome is Outcome.UNKNOWN:
        return error
    return OperationUnknown(error.message, advice=REPAIRED_LATER, code=error.code, operation=error.operation)


def _failed_answer(error: OperationFailed, operation: uuid.UUID | None) -> OperateAnswer:
    return OperateAnswer(
        operation=operation, code=error.code, outcome=error.outcome, message=error.message, advice=error.advice
    )


def _result_of(answer: OperateAnswer) -> EndedOperation | None:
    if answer.code is None:
        return answer.ended
    kind = OperationFailed if answer.outcome is Outcome.NOT_APPLIED else OperationUnknown
    raise kind(answer.message, advice=answer.advice, code=answer.code, operation=answer.operation)
