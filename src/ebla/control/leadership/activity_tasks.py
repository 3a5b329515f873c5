"""Activities as tasks: starts them when the registry allows it, cancels them when it must, and passes on how they
ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, assert_never

from ebla.aio.wakeup import Wakeup
from ebla.control.leadership.leadership_metrics import LeadershipMetrics
from ebla.leadership.activities import (
    Activity,
    ActivityEffect,
    ActivitySpec,
    CancelActivity,
    EndingActivity,
    LeadershipView,
    QuorumSwitched,
    RefuseActivity,
    StartActivity,
    ended_error,
)
from ebla.leadership.core import LeadershipCore
from ebla.leadership.lease_worker import LeaseWorker
from ebla.leadership.messages import Order, OrderRequest
from ebla.leadership.quorum import FOLLOWER, Quorum
from ebla.model.errors import DeadlineExceeded, EblaError, Stale, Unavailable
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import A, Q, Verb

LEASE_WAIT_MS = 2_000
T = TypeVar("T")


class LeadershipShell(Protocol):
    """What activities need of the node they run on."""

    core: LeadershipCore

    def view(self) -> LeadershipView: ...

    def now_ms(self) -> int: ...

    def step(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    started: "asyncio.Future[None]"
    switched: "asyncio.Future[None] | None" = None
    task: "asyncio.Task[None] | None" = None


class RunningHandle:
    """What the body of an activity gets: its right to act."""

    def __init__(self, tasks: "ActivityTasks", activity: Activity) -> None:
        self._tasks = tasks
        self._node = tasks.shell
        self.activity = activity

    def check_effect(self) -> None:
        """Immediately before each effect, in the same turn of the loop. Raises `ActivityEnded`."""
        self._node.core.registry.check_effect(self.activity.number, self._node.view())
        if self._tasks.traces_effects:
            self._tasks.report_of("activity.effect", self.activity)

    def permit_ms(self) -> int:
        """For how long it may act without further renewals; 0: it must not act."""
        return self._node.core.registry.permit_ms(self.activity.number, self._node.view())

    def order(self, host: HostId) -> Order:
        """For an activity verb to this host, under the lease that the leader holds of it. Raises `Stale`."""
        self.check_effect()
        worker = self._worker_of(host)
        if worker is None or not self.holds_lease(host):
            why = "no lease yet" if worker is None or not worker.trouble else worker.trouble
            raise Stale(f"the leader holds no lease of {host}: {why}", advice="nothing was sent; wait for the lease")
        return Order(self._node.core.registry.token_of(self.activity.number), worker.grant_number)

    def holds_lease(self, host: HostId) -> bool:
        worker = self._worker_of(host)
        return worker is not None and self._node.now_ms() < worker.deadline_ms

    def _worker_of(self, host: HostId) -> LeaseWorker | None:
        renewal = self._node.core.renewal
        return None if renewal is None else renewal.workers.get(host)

    async def call(self, host: HostId, verb: Verb[OrderRequest[Q], A], request: Q, deadline_ms: int) -> A:
        """An order to any host, this one included. Raises what the verb raises, and `Stale` if no lease is held."""
        return await self._tasks.send_order(self, host, verb, request, deadline_ms)

    async def switch_quorum(self, quorum: Quorum, wait_ms: int) -> None:
        """Returns once the new quorum has replaced the old one. Raises `ActivityRefused`."""
        await self._tasks.switch_quorum(self.activity, quorum, wait_ms)


ServeOrder = Callable[[Q, RunningHandle, int], Awaitable[A]]
"""The work of an activity verb, with the request, its right to act, and the time for it in ms."""


class ActivityTasks:
    def __init__(self, shell: LeadershipShell, peers: Peers, metrics: LeadershipMetrics, report: EventReporter) -> None:
        self.shell = shell
        self._peers = peers
        self._metrics = metrics
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self.tasks: asyncio.TaskGroup | None = None
        """Set while the node runs."""
        self._stepped = Wakeup()
        self._served: dict[int, ServeOrder[Any, Any]] = {}
        """By the verb's number: what this node does when it orders itself."""
        self.traces_effects = False
        """Reports each check that was passed, for tests."""
        self.reach_cancelled: Callable[[], Awaitable[None]] | None = None
        """A fault point: waited for by each activity that is cancelled."""

    # ---- orders

    def serve_order(self, server: Server, verb: Verb[OrderRequest[Q], A], work: "ServeOrder[Q, A]") -> None:
        """Runs each order of this verb as an activity that ends with the lease that the order names."""

        async def serve(request: OrderRequest[Q], call: IncomingCall) -> A:
            return await self._obey(verb.name, work, request, call.work_ms())

        server.serve(verb, serve)
        self._served[verb.number] = work

    async def send_order(
        self, handle: RunningHandle, host: HostId, verb: Verb[OrderRequest[Q], A], request: Q, deadline_ms: int
    ) -> A:

        def check() -> None:
            handle.order(host)

        if host != self.shell.core.own:
            expires_at = self._loop.time() + deadline_ms / 1000
            await self._wait_lease(handle, host, min(deadline_ms, LEASE_WAIT_MS))
            await self._peers.wait_connected(host, verb.lane, self._left_ms(expires_at))
            ordered, left_ms = OrderRequest(handle.order(host), request), self._left_ms(expires_at)
            # It may wait for room among the calls in flight, and must leave in the turn in which it is checked.
            return await self._peers.call(host, verb, ordered, left_ms, check)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                work: ServeOrder[Q, A] = self._served[verb.number]
                return await self._obey(verb.name, work, OrderRequest(handle.order(host), request), deadline_ms)
        except TimeoutError:
            raise DeadlineExceeded(f"{verb.name} did not end on this node within {deadline_ms} ms") from None

    def _left_ms(self, expires_at: float) -> int:
        return round((expires_at - self._loop.time()) * 1000)

    async def _wait_lease(self, handle: RunningHandle, host: HostId, wait_ms: int) -> None:
        """An activity may start with the first majority of leases, and the others follow within a few round trips."""
        expires_at = self._loop.time() + wait_ms / 1000
        while not handle.holds_lease(host) and await self._stepped.wait(expires_at - self._loop.time()):
            pass

    async def _obey(self, name: str, work: "ServeOrder[Q, A]", ordered: OrderRequest[Q], deadline_ms: int) -> A:
        order = ordered.order
        spec = ActivitySpec(name=name, domain=order.token.domain, quorum=FOLLOWER, wait_ms=0)
        return await self.run_order(order, spec, lambda handle: work(ordered.request, handle, deadline_ms))

    # ---- activities

    async def run(
        self, spec: ActivitySpec, body: Callable[[RunningHandle], Awaitable[T]], parent: RunningHandle | None = None
    ) -> T:
        """Runs it under its quorum. Raises `ActivityRefused` if it did not start, `ActivityEnded` if it was ended."""
        self._require_running()
        activity = self.shell.core.registry.submit(spec, self.shell.view(), None if parent is None else parent.activity)
        return await self._run(activity, body)

    async def run_order(self, order: Order, spec: ActivitySpec, body: Callable[[RunningHandle], Awaitable[T]]) -> T:
        """Work of the leader on this node. Raises `Stale` if the node's lease is another one."""
        self._require_running()
        return await self._run(self.shell.core.registry.submit_order(order, spec, self.shell.view()), body)

    def _require_running(self) -> None:
        if self.tasks is None:
            raise Unavailable("this node starts or stops", advice="nothing was started; try again")

    async def switch_quorum(self, activity: Activity, quorum: Quorum, wait_ms: int) -> None:
        waiting = self._waiting[activity.number]
        waiting.switched = self._loop.create_future()
        self.shell.core.registry.switch_quorum(activity.number, quorum, self.shell.view(), wait_ms)
        self.shell.step()
        await waiting.switched

    async def _run(self, activity: Activity, body: Callable[[RunningHandle], Awaitable[T]]) -> T:
        assert self.tasks is not None, "activities run while the node runs"
        waiting = self._waiting[activity.number] = _Waiting(self._loop.create_future())
        self.shell.step()
        try:
            await waiting.started
        except BaseException:
            if waiting.started.done() and not waiting.started.cancelled():
                waiting.started.exception()  # seen: it was refused in the turn in which the caller was cancelled
            self._over(activity, failed=True)
            raise
        done: asyncio.Future[T] = self._loop.create_future()
        if isinstance(activity.phase, EndingActivity):  # cancelled in the turn in which it started
            self._end_unstarted(activity, done)
            return await done
        waiting.task = self.tasks.create_task(self._run_body(activity, body, done))
        waiting.task.add_done_callback(lambda _: self._end_unstarted(activity, done))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            waiting.task.cancel()
            await asyncio.wait([done])
            if not done.cancelled():
                done.exception()  # seen: the caller is cancelled and wants no result
            raise

    async def _run_body(
        self, activity: Activity, body: Callable[[RunningHandle], Awaitable[T]], done: "asyncio.Future[T]"
    ) -> None:
        """A cancellation is no error here: the registry or the caller wanted it, and gets the outcome from `done`."""
        failed = True
        try:
            result = await body(RunningHandle(self, activity))
            failed = False
            done.set_result(result)
        except asyncio.CancelledError:
            if self.reach_cancelled is not None:
                await self.reach_cancelled()
            self._settle_cancelled(activity, done)
        except Exception as error:
            done.set_exception(error)
        finally:
            self._over(activity, failed=failed)

    def _end_unstarted(self, activity: Activity, done: "asyncio.Future[T]") -> None:
        """Unless its body has run: a task that is cancelled before its first step runs nothing of it."""
        if done.done():
            return
        self._settle_cancelled(activity, done)
        self._over(activity, failed=True)

    def _settle_cancelled(self, activity: Activity, done: "asyncio.Future[T]") -> None:
        phase = activity.phase
        if isinstance(phase, EndingActivity):
            done.set_exception(ended_error(activity, phase.reason, phase.problem))
        else:
            done.cancel()

    def _over(self, activity: Activity, *, failed: bool) -> None:
        self._waiting.pop(activity.number, None)
        if activity.number in self.shell.core.registry.activities:
            self.shell.core.registry.over(activity.number, self.shell.now_ms(), failed=failed)
            self._metrics.count_end(self.shell.core.registry.ended[-1].reason)
        self.shell.step()

    def report_of(self, event: str, activity: Activity) -> None:
        fields = {"activity": activity.name, "domain": activity.domain, "term": activity.term}
        self._report(event, {**fields, "lease": str(activity.lease)})

    def carry_out(self, effects: Sequence[ActivityEffect]) -> None:
        """At every step, also without effects."""
        self._stepped.wake()
        for effect in effects:
            waiting = self._waiting.get(effect.number)
            if waiting is None:
                continue  # it has ended in the same step
            match effect:
                case StartActivity():
                    if not waiting.started.done():
                        waiting.started.set_result(None)
                        self.report_of("activity.started", self.shell.core.registry.activities[effect.number])
                case RefuseActivity(_, error):
                    if not waiting.started.done():
                        waiting.started.set_exception(error)
                case CancelActivity(_, reason):
                    activity = self.shell.core.registry.activities[effect.number]
                    self._report("activity.ended", {"activity": activity.name, "reason": str(reason)})
                    if waiting.task is not None:
                        waiting.task.cancel()
                case QuorumSwitched(_, error):
                    if waiting.switched is not None and not waiting.switched.done():
                        _resolve(waiting.switched, error)
                case _:
                    assert_never(effect)


def _resolve(future: "asyncio.Future[None]", error: EblaError | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
