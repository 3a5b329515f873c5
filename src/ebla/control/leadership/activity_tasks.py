"""Activities as tasks: starts them when the registry allows it, cancels them when it must, and passes on how they
ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, assert_never

from ebla.control.leadership.leadership_metrics import LeadershipMetrics
from ebla.leadership.activities import (
    Activity,
    ActivityEffect,
    ActivitySpec,
    CancelActivity,
    EndingActivity,
    LeadershipView,
    Order,
    QuorumSwitched,
    RefuseActivity,
    StartActivity,
    ended_error,
)
from ebla.leadership.core import LeadershipCore
from ebla.leadership.quorum import Quorum
from ebla.model.errors import EblaError, Stale
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter

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

    def permit_ms(self) -> int:
        """For how long it may act without further renewals; 0: it must not act."""
        return self._node.core.registry.permit_ms(self.activity.number, self._node.view())

    def order(self, host: HostId) -> Order:
        """For an activity verb to this host, under the lease that the leader holds of it. Raises `Stale`."""
        self.check_effect()
        renewal = self._node.core.renewal
        worker = None if renewal is None else renewal.workers.get(host)
        if worker is None or worker.deadline_ms <= self._node.now_ms():
            raise Stale(f"this node holds no lease of {host}", advice="nothing was sent; wait for the lease")
        return Order(self._node.core.registry.token_of(self.activity.number), worker.grant_number)

    async def switch_quorum(self, quorum: Quorum, wait_ms: int) -> None:
        """Returns once the new quorum has replaced the old one. Raises `ActivityRefused`."""
        await self._tasks.switch_quorum(self.activity, quorum, wait_ms)


class ActivityTasks:
    def __init__(self, shell: LeadershipShell, metrics: LeadershipMetrics, report: EventReporter) -> None:
        self.shell = shell
        self._metrics = metrics
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self.tasks: asyncio.TaskGroup | None = None
        """Set while the node runs."""

    async def run(
        self, spec: ActivitySpec, body: Callable[[RunningHandle], Awaitable[T]], parent: RunningHandle | None = None
    ) -> T:
        """Runs it under its quorum. Raises `ActivityRefused` if it did not start, `ActivityEnded` if it was ended."""
        activity = self.shell.core.registry.submit(spec, self.shell.view(), None if parent is None else parent.activity)
        return await self._run(activity, body)

    async def run_order(self, order: Order, spec: ActivitySpec, body: Callable[[RunningHandle], Awaitable[T]]) -> T:
        """Work of the leader on this node. Raises `Stale` if the node's lease is another one."""
        return await self._run(self.shell.core.registry.submit_order(order, spec, self.shell.view()), body)

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
            self._over(activity, failed=True)
            raise
        done: asyncio.Future[T] = self._loop.create_future()
        waiting.task = self.tasks.create_task(self._run_body(activity, body, done))
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
            phase = activity.phase
            if isinstance(phase, EndingActivity):
                done.set_exception(ended_error(activity, phase.reason))
            else:
                done.cancel()
        except Exception as error:
            done.set_exception(error)
        finally:
            self._over(activity, failed=failed)

    def _over(self, activity: Activity, *, failed: bool) -> None:
        self._waiting.pop(activity.number, None)
        if activity.number in self.shell.core.registry.activities:
            self.shell.core.registry.over(activity.number, self.shell.now_ms(), failed=failed)
            self._metrics.count_end(self.shell.core.registry.ended[-1].reason)
        self.shell.step()

    def carry_out(self, effects: Sequence[ActivityEffect]) -> None:
        for effect in effects:
            waiting = self._waiting.get(effect.number)
            if waiting is None:
                continue  # it has ended in the same step
            match effect:
                case StartActivity():
                    if not waiting.started.done():
                        waiting.started.set_result(None)
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
