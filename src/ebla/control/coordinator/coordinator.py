"""The topology coordinator: while this node leads, it drives the topology step by step, as one activity.

`topology/next_step.py` decides, `node_actions.py` acts. A step is: decide from the snapshot, act, commit the outcome on
the condition that nothing that was read has changed. All progress is in group 0 and every action can be repeated, so a
new leader continues where the last one stopped. Nothing of group 0 is locked during a barrier or a stream.

While an action runs, the decision is made again at every change of the topology or of liveness. If it is another one
(the request was aborted, its node is lost or excluded), the action is cancelled.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from ebla.control.coordinator.coordinator_deps import COMMIT_MS, CommitConflict, CoordinatorDeps, CoordinatorRun
from ebla.control.coordinator.global_actions import GlobalActions
from ebla.control.coordinator.node_actions import NodeActions, SilentHosts
from ebla.control.coordinator.wait_causes import WaitCauses, WaitKind
from ebla.control.group0.member_features import common_features
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.group0.members import member_key
from ebla.group0.operations import OperationFailed, read_record
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec
from ebla.leadership.quorum import MAJORITY, missing_hosts
from ebla.model.errors import EblaError, Outcome, Stale, Unavailable, leaf_errors
from ebla.model.identity import HostId, RequestId
from ebla.topology.commands import Command, DropCdcGenerations, EnableFeatures, FencePredecessor, RaiseFence, RejectNode
from ebla.topology.next_step import (
    DriveGlobal,
    DriveNode,
    DropAbandoned,
    MoveTablets,
    RollBack,
    Step,
    TurnOnFeatures,
    next_step,
    side_steps,
)
from ebla.topology.request_queue import (
    JOINING_KINDS,
    BlockedQueue,
    LivenessView,
    Reason,
    RejectRequest,
    RequestGrace,
    StartRequest,
    Verdict,
    cancellation,
    pending_requests,
    unsettled_requests,
)
from ebla.topology.snapshot import NodeRequest, Snapshot, TopologyState
from ebla.topology.states import GlobalRequestKind, NodeState
from ebla.wire.topology_messages import StreamProgress

IDLE_S = 5.0
"""The longest sleep with nothing to do: clocks and settings change without waking it."""
TICK_S = 1.0
RETRY_S = 1.0
RESTART_S_MAX = 60.0
CHECK_MS = 250
CAUSES: Mapping[Reason, WaitKind] = MappingProxyType(
    {
        Reason.NODES_DOWN: WaitKind.NODES_DOWN,
        Reason.TARGET_ALIVE: WaitKind.TARGET_ALIVE,
        Reason.TARGET_DOWN: WaitKind.TARGET_DOWN,
        Reason.EXCLUDED_GAINS: WaitKind.EXCLUDED_GAINS,
    }
)
"""Others are explained by their own text."""


class Coordinator:
    """`run` until cancelled."""

    def __init__(self, deps: CoordinatorDeps) -> None:
        self._deps = deps
        self.causes = WaitCauses(deps.topology.clock.boot_ms, deps.topology.report)
        self.current: CoordinatorLoop | None = None
        """While this node coordinates."""

    async def run(self) -> None:
        await self._deps.topology.group0.confirmed.wait()
        failures = 0
        while True:
            if not self._deps.topology.group0.leads:
                self.causes.keep_only(())
                self.causes.clear(None)
                failures = 0
            else:
                failures = await self._lead(failures)
            await asyncio.sleep(CHECK_MS / 1000)

    async def _lead(self, failures: int) -> int:
        """One run of the activity. Returns how many have failed in a row by errors that nobody foresaw."""
        period_ms = self._deps.leadership.settings().period_ms
        spec = ActivitySpec(name="topology", domain="coordinator", quorum=MAJORITY, wait_ms=period_ms)
        self._explain_leases()
        try:
            await self._deps.leadership.activities.run(spec, self._coordinate)
        except (ActivityRefused, ActivityEnded):
            pass  # the next run says what it waits for; why one has ended is reported there
        except EblaError as error:
            self.causes.set(None, WaitKind.NO_MAJORITY, f": {error.message}")
        except Exception as error:  # whatever it is, the coordinator must run again
            failures += 1
            pause_s = min(RESTART_S_MAX, 2.0 ** (failures - 1))
            self._deps.topology.report(
                "coordinator.failed",
                {"cause": repr(error), "version": self._deps.committed.snapshot.version, "again_in_s": pause_s},
            )
            for left_s in range(int(pause_s), 0, -1):
                self.causes.set(None, WaitKind.FAILED, f": {error!r}", countdown=f"; next attempt in {left_s} s")
                await asyncio.sleep(1.0)
        return failures

    def _explain_leases(self) -> None:
        """Before the run: the last leader's leases may have to end first."""
        view, nodes = self._deps.leadership.view(), self._deps.committed.snapshot.nodes
        deadlines = {} if view.held is None else view.held.deadlines
        missing = missing_hosts(MAJORITY, view.voters, deadlines, view.now_ms)
        names = [nodes[host].address if host in nodes else str(host) for host in missing]
        if names:
            self.causes.set(None, WaitKind.LEASE, f" {', '.join(names)}")

    async def _coordinate(self, handle: RunningHandle) -> None:
        self.causes.clear(None)
        try:
            async with asyncio.TaskGroup() as tasks:
                run = CoordinatorRun(deps=self._deps, handle=handle, causes=self.causes, tasks=tasks)
                self.current = CoordinatorLoop(run)
                tasks.create_task(self._deps.sessions.enforce(handle.check_effect))
                tasks.create_task(self.current.settle())
                await self.current.run()
        except ExceptionGroup as group:
            # One of the tasks lost the right to act before the registry cancelled them all.
            raise next((one for one in leaf_errors(group) if isinstance(one, ActivityEnded)), group) from None
        finally:
            self.current = None


class CoordinatorLoop:
    """One run of the activity, bound to its term and lease."""

    def __init__(self, run: CoordinatorRun) -> None:
        self._run = run
        self._deps = run.deps
        self._grace = RequestGrace()
        self._silent = SilentHosts()
        self._nodes = NodeActions(run, self._silent)
        self._globals = GlobalActions(run, self._nodes)
        self.transition_since: tuple[int, int] = (0, run.deps.topology.clock.boot_ms())
        """The version that entered the transition state, and when this coordinator saw it."""

    async def run(self) -> None:
        is_fenced = False
        while True:
            try:
                if not is_fenced:
                    is_fenced = await self._fence_predecessor()
                elif not await self._iterate():
                    await self._deps.committed.changed.wait(IDLE_S if self._is_idle() else TICK_S)
                self._run.causes.clear(None)
            except CommitConflict:
                await self._read_again()
            except ActivityEnded:
                raise
            except EblaError as error:
                self._foreseen(error)
                await asyncio.sleep(RETRY_S)

    async def _fence_predecessor(self) -> bool:
        """Rewrites the state row. Every step is conditional on that row, so nothing that a predecessor still has in
        flight can commit after this. False: the topology is not there yet."""
        await self._read_again()
        if self._deps.committed.snapshot.state == TopologyState():
            await self._deps.committed.changed.wait(TICK_S)  # this node is about to create it
            return False
        await self._run.commit((FencePredecessor(),))
        return True

    async def _read_again(self) -> None:
        """After a failed condition or an unknown outcome: behind a read barrier, what was committed is known."""
        while True:
            try:
                await self._deps.topology.read(COMMIT_MS)
            except EblaError as error:
                self._run.causes.set(None, WaitKind.NO_MAJORITY, f": {error.message}")
                self._run.handle.check_effect()
                await asyncio.sleep(RETRY_S)
            else:
                self._run.causes.clear(None)
                return

    def _foreseen(self, error: EblaError) -> None:
        running = self._deps.committed.snapshot.node_in_transition()
        subject = None if running is None else running.request
        if isinstance(error, Unavailable):
            self._run.causes.set(subject, WaitKind.NO_MAJORITY, f": {error.message}")
        elif isinstance(error, OperationFailed | Stale):
            self._run.causes.set(subject, WaitKind.UNFINISHED, f": {error.message}")
        else:
            self._run.causes.set(subject, WaitKind.FAILED, f": {error.message}", countdown="; next attempt in 1 s")

    def _is_idle(self) -> bool:
        snapshot = self._deps.committed.snapshot
        return snapshot.node_in_transition() is None and not pending_requests(snapshot)

    async def settle(self) -> None:
        """Until cancelled. Beside the loop: the next operation need not wait for it."""
        while True:
            snapshot = self._deps.committed.snapshot
            unsettled = unsettled_requests(snapshot)
            if not unsettled:
                await self._deps.committed.changed.wait(IDLE_S)
                continue
            await self._nodes.wait_version(snapshot.version, unsettled[-1].id)
            if unsettled_requests(self._deps.committed.snapshot):
                try:
                    await self._run.commit((RaiseFence(snapshot.version),))
                except ActivityEnded:
                    raise
                except EblaError:
                    await asyncio.sleep(RETRY_S)

    # ---- one iteration

    async def _iterate(self) -> bool:
        """Whether something was done, so that the next step can follow at once."""
        snapshot = self._deps.committed.snapshot
        if self.transition_since[0] != snapshot.state.transition_since:
            self.transition_since = (snapshot.state.transition_since, self._deps.topology.clock.boot_ms())
        left = self._left_member(snapshot)
        if left is not None:
            await self._run.remove(left, "it has left the topology")
            return True
        step = self._decide(snapshot)
        self._explain_queue(snapshot, step)
        action = self._action_of(step, snapshot)
        if action is None:
            return await self._side_step(snapshot)
        await self._act(step, action)
        running = snapshot.node_in_transition()
        if running is not None:
            self._run.causes.clear(running.request)
        return True

    def _left_member(self, snapshot: Snapshot) -> HostId | None:
        """INV-NODE-22: a host whose row is `left` does not stay in group 0."""
        store = self._deps.topology.group0.running.store
        if read_record(store) is not None:
            return None  # an operation is under way, perhaps this one
        for node in snapshot.nodes_in(NodeState.LEFT):
            member = store.members.get(member_key(node.host))
            if member is not None and member.present:
                return node.host
        return None

    def _decide(self, snapshot: Snapshot) -> Step:
        topology, settings = self._deps.topology, self._deps.settings()
        boot_ms = topology.clock.boot_ms()
        silent = self._deps.silent()
        self._silent.observe(silent, boot_ms)
        alive = frozenset(host for host in snapshot.nodes if host not in silent)
        lost = self._silent.lost(settings.peer_timeout_ms, boot_ms)
        step = next_step(snapshot, LivenessView(alive, topology.now_ms(), lost), plan_is_empty=True)
        self._grace.observe(step if isinstance(step, StartRequest | RejectRequest | BlockedQueue) else None, boot_ms)
        return step

    def _action_of(self, step: Step, snapshot: Snapshot) -> Coroutine[Any, Any, None] | None:
        """None: there is nothing to do now."""
        match step:
            case StartRequest(request=request):
                return self._nodes.start(request)
            case DriveNode():
                return self._nodes.drive(step)
            case RollBack():
                return self._nodes.roll_back(step)
            case DriveGlobal(request=wanted) if wanted.kind is GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
                return self._globals.drive(wanted)
            case RejectRequest(request=request, why=why):
                return self._end((request,), (RejectNode(request.host, why, self._deps.topology.now_ms()),))
            case BlockedQueue():
                boot_ms, now_ms = self._deps.topology.clock.boot_ms(), self._deps.topology.now_ms()
                overdue = self._grace.overdue(self._deps.settings().request_grace_ms, boot_ms)
                cancelled = tuple(cancellation(snapshot, verdict, now_ms) for verdict in overdue)
                return self._end(tuple(verdict.request for verdict in overdue), cancelled) if cancelled else None
            case TurnOnFeatures(features=features):
                ready = common_features(self._deps.topology.group0.running.store)
                enabled = tuple(feature for feature in features if feature in ready)
                return self._enable(enabled) if enabled else None
            case _:
                return None

    async def _act(self, step: Step, action: Coroutine[Any, Any, None]) -> None:
        """Until it is done, or the decision is another one: then it is cancelled."""
        task = self._run.tasks.create_task(_outcome(action))
        wanted = _identity(step)
        try:
            while not task.done() and _identity(now := self._decide(self._deps.committed.snapshot)) == wanted:
                self._explain_queue(self._deps.committed.snapshot, now)  # others may be requested meanwhile
                change = self._run.tasks.create_task(self._deps.committed.changed.wait(TICK_S))
                try:
                    await asyncio.wait([task, change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
        except (Exception, asyncio.CancelledError):
            await _end(task)
            raise
        was_done = task.done()
        await _end(task)
        if not was_done:
            await self._read_again()  # it may have been cancelled in the middle of a commit
            return
        error = task.result()
        if error is not None:
            raise error

    # ---- short actions

    async def _end(self, requests: tuple[NodeRequest, ...], commands: tuple[Command, ...]) -> None:
        """Ends requests that never started. The rows of new nodes are `left` first; then the nodes get a rejection."""
        before = self._deps.committed.snapshot
        after = await self._run.commit(commands, before)
        for request in requests:
            if request.kind in JOINING_KINDS:
                self._nodes.send_rejection(before.node(request.host), after.node_requests[request.id].error)

    async def _enable(self, features: tuple[str, ...]) -> None:
        """After a barrier on all members: a node that restarted without the feature is seen by then."""
        version = await self._nodes.barrier(None)
        await self._run.commit((EnableFeatures(features, version),))

    async def _side_step(self, snapshot: Snapshot) -> bool:
        """Whether data of CDC generations was dropped that nobody will commit. `enforce` closes overdue sessions."""
        liveness = LivenessView(frozenset(), self._deps.topology.now_ms())
        for step in side_steps(snapshot, liveness):
            if isinstance(step, DropAbandoned):
                await self._run.commit((DropCdcGenerations(step.generations),))
                return True
        return False

    # ---- for people

    def progress_of(self, request: RequestId) -> StreamProgress | None:
        return self._run.progress.get(request)

    def _explain_queue(self, snapshot: Snapshot, step: Step) -> None:
        causes, pending = self._run.causes, pending_requests(snapshot)
        running = snapshot.node_in_transition()
        behind = running.request if running is not None else None
        named = (*unsettled_requests(snapshot), *pending)
        known = (behind, *snapshot.state.global_requests, *(request.id for request in named))
        causes.keep_only(one for one in known if one is not None)
        if isinstance(step, BlockedQueue):
            for verdict in step.verdicts:
                self._explain_blocked(verdict)
            return
        if isinstance(step, DriveGlobal):
            for request in pending:
                causes.set(request.id, WaitKind.GLOBAL, f" {str(step.request.id)[:8]} runs")
            return
        if isinstance(step, MoveTablets) and behind is not None:
            causes.set(behind, WaitKind.UNSUPPORTED, f": {step.why}")
        if isinstance(step, StartRequest):
            behind = step.request.id
        for position, request in enumerate((one for one in pending if one.id != behind), 1):
            after = f" behind {str(behind)[:8]}" if behind is not None else ""
            causes.set(request.id, WaitKind.QUEUED, f": position {position}{after}")

    def _explain_blocked(self, verdict: Verdict) -> None:
        grace_ms, boot_ms = self._deps.settings().request_grace_ms, self._deps.topology.clock.boot_ms()
        left_ms = self._grace.left_ms(verdict.request.id, grace_ms, boot_ms)
        countdown = "" if left_ms is None else f"; cancelled in {-(-left_ms // 1000)} s"
        objection, snapshot = verdict.objections[0], self._deps.committed.snapshot
        kind = CAUSES.get(objection.reason, WaitKind.OBJECTION)
        text = objection.text(snapshot)
        if kind is not WaitKind.OBJECTION:
            text = text.removeprefix(f"{objection.reason}: ")
        self._run.causes.set(verdict.request.id, kind, f": {text}", countdown=countdown)


def _identity(step: Step) -> tuple[object, ...]:
    """What makes it the same step: its reasons and lists may differ."""
    match step:
        case DriveNode(host=host, row=row) | RollBack(host=host, row=row):
            return type(step).__name__, host, row.here
        case StartRequest(request=request) | RejectRequest(request=request):
            return type(step).__name__, request.id
        case DriveGlobal(request=wanted):
            return type(step).__name__, wanted.id, wanted.outcome
        case TurnOnFeatures(features=features):
            return type(step).__name__, features
        case _:
            return (type(step).__name__,)


async def _outcome(action: Coroutine[Any, Any, None]) -> EblaError | None:
    """A foreseen error is the step's outcome; it must not end the task group. Any other one does."""
    try:
        await action
    except CommitConflict as conflict:
        return conflict
    except EblaError as error:
        return CommitConflict(error.message) if error.outcome is Outcome.UNKNOWN else error
    return None


async def _end(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait([task])
