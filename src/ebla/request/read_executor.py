"""Sends one query to replicas and collects their answers until the level is met, cannot be met, or time is over.

Nothing here takes longer than the deadline that every request carries. Requests that are still in flight when the
query is answered run to their end. They hold the version they were routed by until then: a barrier on a newer version
must wait for them.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.errors import DeadlineExceeded, EblaError, InternalError, ReadFailed, ReadTimeout, Stale
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries
from ebla.request.read_plan import ReadReplicaPlan, find_spare, level_is_met
from ebla.request.router_types import RouterDeps
from ebla.request.speculative_retry import SpeculativeRetry
from ebla.wire.errors import client_text
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest

_FAILURES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadExecutorDeps:
    """What all queries of a router share."""

    router: RouterDeps
    speculation: SpeculativeRetry
    loop: asyncio.AbstractEventLoop
    repeated: CounterSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaQuery:
    version: TopologyVersion
    data: ReadRowsRequest
    digest: ReadRowsRequest | None
    """What all replicas but the first get; None: all get `data`."""
    level: ConsistencyLevel
    datacenter_of: Callable[[Replica], str]
    expires_at: float


class ReplicaReplies:
    """The replies of replicas to a query, until its level is met."""

    def __init__(self, query: ReplicaQuery, needed: tuple[RequiredReplies, ...]) -> None:
        self._query = query
        self._needed = needed
        self._failures: dict[Replica, EblaError] = {}

    def _meets(self, replicas: Collection[Replica]) -> bool:
        return level_is_met(self._needed, replicas, self._query.datacenter_of)

    def _unmet(self, answered: Collection[Replica], waiting: Collection[Replica], *, has_data: bool) -> EblaError:
        """Why the level is not met."""
        stale = next((error for error in self._failures.values() if isinstance(error, Stale)), None)
        if stale is not None:
            return stale
        late = [target for target, error in self._failures.items() if isinstance(error, DeadlineExceeded)]
        required = sum(each.count for each in self._needed)
        shown = list(islice(self._failures.items(), _FAILURES_SHOWN_MAX))
        causes = "; ".join(f"{_name_of(target)}: {client_text(error)}" for target, error in shown)
        why = f" ({causes})" if causes else ""
        counted = f"{self._query.level.name} read: {len(answered)} of {required} replicas answered"
        unmet: ReadTimeout | ReadFailed
        if self._meets((*answered, *late, *waiting)):
            unmet = ReadTimeout(
                f"{counted} in time{why}",
                advice="try again, or read at a lower level",
                required=required,
                received=len(answered),
                has_data=has_data,
            )
        else:
            unmet = ReadFailed(
                f"{counted}, and no more can{why}",
                advice=next((error.advice for error in self._failures.values() if error.advice), ""),
                required=required,
                received=len(answered),
                failed=len(self._failures),
            )
        for target, error in shown:
            if client_text(error) != error.message:
                unmet.add_note(f"{_name_of(target)}: {error.message}")
        return unmet


def _name_of(target: Replica) -> str:
    return f"shard {target.shard} of host {target.host}"


class ReadExecutor(ReplicaReplies):
    """One query and its answers. `wait_answers` is called once."""

    def __init__(self, deps: ReadExecutorDeps, query: ReplicaQuery, plan: ReadReplicaPlan) -> None:
        super().__init__(query, plan.needed)
        self._deps = deps
        self._router = deps.router
        self._plan = plan
        self._spares = list(plan.spares)
        self._sent_at: dict[Replica, float] = {}
        """Requests in flight."""
        self._overdue: dict[Replica, None] = {}
        self._decided: asyncio.Future[None] | None = None
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self.answers: dict[Replica, ReadRowsAnswer] = {}
        self.data: ReadRowsAnswer | None = None

    async def wait_answers(self) -> None:
        """Returns when the level is met and there is data. Raises `Stale`, `ReadTimeout` and `ReadFailed`."""
        query = self._query
        for index, target in enumerate(self._plan.contacts):
            request = query.data if index == 0 or query.digest is None else query.digest
            if not self._is_over:
                self._send(target, request)
        if not self._is_over:
            self._arm()
            self._decided = self._deps.loop.create_future()
            try:
                await self._decided
            finally:
                self._is_over = True
                if self._timer is not None:
                    self._timer.cancel()
        if not self._is_met:
            raise self._unmet(self.answers, self._sent_at, has_data=self.data is not None)

    @property
    def _is_met(self) -> bool:
        return self.data is not None and self._meets(self.answers)

    # ---- requests and answers

    def _send(self, target: Replica, request: ReadRowsRequest) -> None:
        router, loop = self._router, self._deps.loop
        left_ms = max(1, int((self._query.expires_at - loop.time()) * 1000))
        work: Coroutine[Any, Any, ReadRowsAnswer] = router.clients.read(target, request, left_ms)
        if target == router.own:
            try:
                answer = run_eagerly(work)
            except Exception as error:  # as in `_wait_answer`
                self._failed(target, _read_failure(error))
                return
            if type(answer) is not Suspended:
                self._received(target, request, answer)
                return
            work = answer
        self._deps.speculation.sent()
        self._sent_at[target] = loop.time()
        router.view.hold(self._query.version)
        router.tasks.create_task(self._wait_answer(target, request, work))

    async def _wait_answer(
        self, target: Replica, request: ReadRowsRequest, work: Coroutine[Any, Any, ReadRowsAnswer]
    ) -> None:
        began_at = self._sent_at[target]
        try:
            answer = await work
        except Exception as error:  # a defect below must fail this read, not the shard
            del self._sent_at[target]
            if isinstance(error, DeadlineExceeded):
                self._note_overdue(target)
            self._failed(target, _read_failure(error))
        else:
            del self._sent_at[target]
            self._deps.speculation.answered(target, (self._deps.loop.time() - began_at) * 1000)
            self._received(target, request, answer)
        finally:
            self._router.view.release(self._query.version)

    def _received(self, target: Replica, request: ReadRowsRequest, answer: ReadRowsAnswer) -> None:
        if self._is_over:
            return
        self.answers[target] = answer
        if self.data is None and not request.digest_only:
            self.data = answer
        if self._is_met:
            self._end()

    def _failed(self, target: Replica, error: EblaError) -> None:
        self._failures[target] = error
        if self._is_over:
            return
        if isinstance(error, Stale):
            self._end()
            return
        self._send_to_spare(target)
        if not self._can_be_met():
            self._end()

    def _can_be_met(self) -> bool:
        """By the answers and the requests in flight. The first replica and every spare are asked for data. So if the
        level can be met there is data too, unless a replica that was asked for it has failed."""
        waiting = (*self._sent_at, *self._unsent())
        return self._meets((*self.answers, *waiting)) and (self.data is not None or bool(waiting))

    def _unsent(self) -> tuple[Replica, ...]:
        """Contacts that are still to be asked, while the first requests are being sent."""
        if self._decided is not None:
            return ()
        known = (*self.answers, *self._failures, *self._sent_at)
        return tuple(each for each in self._plan.contacts if each not in known)

    def _send_to_spare(self, instead_of: Replica) -> bool:
        spare = find_spare(self._spares, instead_of, self._plan.needed, self._query.datacenter_of)
        if spare is None:
            return False
        self._spares.remove(spare)
        self._send(spare, self._query.data)
        return True

    def _end(self) -> None:
        self._is_over = True
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)

    # ---- slow replicas

    def _arm(self) -> None:
        """Sets the timer for the next replica to become overdue, as long as there is a spare to ask instead."""
        self._timer = None
        if not self._spares:
            return
        speculation = self._deps.speculation
        due = [
            sent_at + speculation.delay_ms(target) / 1000
            for target, sent_at in self._sent_at.items()
            if target not in self._overdue
        ]
        if due and min(due) < self._query.expires_at:
            self._timer = self._deps.loop.call_at(min(due), self._check_overdue)

    def _check_overdue(self) -> None:
        now = self._deps.loop.time()
        speculation = self._deps.speculation
        for target, sent_at in tuple(self._sent_at.items()):
            if target in self._overdue or sent_at + speculation.delay_ms(target) / 1000 > now:
                continue
            self._note_overdue(target)
            if self._spares and speculation.may_retry() and self._send_to_spare(target):
                self._deps.repeated.add()
        if not self._is_over:
            self._arm()

    def _note_overdue(self, target: Replica) -> None:
        if target not in self._overdue:
            self._overdue[target] = None
            self._deps.speculation.overdue(target, self._router.clock.boot_ms())


def _read_failure(error: Exception) -> EblaError:
    return error if isinstance(error, EblaError) else InternalError(f"a read failed: {error!r}")
