"""Answers of replicas to one question, until they meet the level, cannot, or the time is over.

Nothing here takes longer than the deadline that every request carries. Requests that are still under way when the
question is answered go on by themselves and hold the version they were routed by until they end: a barrier on a newer
version must wait for them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.errors import DeadlineExceeded, EblaError, InternalError, ReadFailed, ReadTimeout, Stale
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries
from ebla.request.read_plan import ReadReplicaPlan, find_spare, level_is_met
from ebla.request.router_types import RouterDeps
from ebla.request.speculative_retry import SpeculativeRetry
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest

_FAILURES_TOLD_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadExecutorDeps:
    """What all questions of a router share."""

    parts: RouterDeps
    speculation: SpeculativeRetry
    loop: asyncio.AbstractEventLoop
    repeated: CounterSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaQuery:
    version: TopologyVersion
    data: ReadRowsRequest
    digest: ReadRowsRequest | None
    """What all but the first are asked; None: data of all."""
    level: ConsistencyLevel
    datacenter_of: Callable[[Replica], str]
    expires_at: float


class ReadExecutor:
    """One question and its answers. `answered` returns once."""

    def __init__(self, asker: ReadExecutorDeps, replica_query: ReplicaQuery, plan: ReadReplicaPlan) -> None:
        self._asker = asker
        self._question = replica_query
        self._chosen = plan
        self._spares = list(plan.spares)
        self._sent_at: dict[Replica, float] = {}
        """Those under way."""
        self._overdue: dict[Replica, None] = {}
        self._failures: dict[Replica, EblaError] = {}
        self._look: asyncio.Future[None] | None = None
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self.answers: dict[Replica, ReadRowsAnswer] = {}
        self.data: ReadRowsAnswer | None = None

    async def answered(self) -> None:
        """Returns when the level is met and there is data. Raises `Stale`, `ReadTimeout` and `ReadFailed`."""
        replica_query = self._question
        for place, target in enumerate(self._chosen.contacts):
            request = replica_query.data if place == 0 or replica_query.digest is None else replica_query.digest
            if not self._is_over:
                self._ask(target, request)
        if not self._is_over:
            self._arm()
            self._look = self._asker.loop.create_future()
            try:
                await self._look
            finally:
                self._is_over = True
                if self._timer is not None:
                    self._timer.cancel()
        if self._is_met:
            return
        stale = next((error for error in self._failures.values() if isinstance(error, Stale)), None)
        raise self._error() if stale is None else stale

    @property
    def _is_met(self) -> bool:
        return self.data is not None and self._meets(self.answers)

    def _meets(self, replicas: Collection[Replica]) -> bool:
        return level_is_met(self._chosen.needed, replicas, self._question.datacenter_of)

    # ---- asking

    def _ask(self, target: Replica, request: ReadRowsRequest) -> None:
        asker = self._asker
        if target == asker.parts.own:
            try:
                answer = asker.parts.clients.read_now(target, request)
            except EblaError as error:
                self._failed(target, error)
                return
            if answer is not None:
                self._got(target, request, answer)
                return
        asker.speculation.sent()
        self._sent_at[target] = asker.loop.time()
        asker.parts.view.hold(self._question.version)
        asker.parts.tasks.create_task(self._one(target, request))

    async def _one(self, target: Replica, request: ReadRowsRequest) -> None:
        asker, replica_query = self._asker, self._question
        began_at = self._sent_at[target]
        try:
            left_ms = max(1, int((replica_query.expires_at - began_at) * 1000))
            answer = await asker.parts.clients.read(target, request, left_ms)
        except Exception as error:  # a defect below must fail this read, not the shard
            del self._sent_at[target]
            if isinstance(error, DeadlineExceeded):
                self._note_overdue(target)
            self._failed(target, error if isinstance(error, EblaError) else InternalError(f"a read failed: {error!r}"))
        else:
            del self._sent_at[target]
            asker.speculation.answered(target, (asker.loop.time() - began_at) * 1000)
            self._got(target, request, answer)
        finally:
            asker.parts.view.release(replica_query.version)

    def _got(self, target: Replica, request: ReadRowsRequest, answer: ReadRowsAnswer) -> None:
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
        self._ask_instead(target)
        if not self._can_be_met():
            self._end()

    def _can_be_met(self) -> bool:
        """By those that answered and those under way. Whoever is asked first or instead of another is asked for data,
        so where the level can be met there is data too, but for one that was asked before and failed."""
        waiting = (*self._sent_at, *self._not_asked_yet())
        return self._meets((*self.answers, *waiting)) and (self.data is not None or bool(waiting))

    def _not_asked_yet(self) -> tuple[Replica, ...]:
        """While the first ones are being asked, the others still are to be."""
        if self._look is not None:
            return ()
        known = (*self.answers, *self._failures, *self._sent_at)
        return tuple(each for each in self._chosen.contacts if each not in known)

    def _ask_instead(self, target: Replica) -> bool:
        plan = (self._chosen.needed, self._question.datacenter_of)
        spare = find_spare(self._spares, target, plan)
        if spare is None:
            return False
        self._spares.remove(spare)
        self._ask(spare, self._question.data)
        return True

    def _end(self) -> None:
        self._is_over = True
        if self._look is not None and not self._look.done():
            self._look.set_result(None)

    # ---- slow ones

    def _arm(self) -> None:
        """For the one that becomes overdue next, as long as somebody is there to be asked instead."""
        self._timer = None
        if not self._spares:
            return
        speculation = self._asker.speculation
        due = [
            sent_at + speculation.delay_ms(target) / 1000
            for target, sent_at in self._sent_at.items()
            if target not in self._overdue
        ]
        if due and min(due) < self._question.expires_at:
            self._timer = self._asker.loop.call_at(min(due), self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        now = self._asker.loop.time()
        speculation = self._asker.speculation
        for target, sent_at in tuple(self._sent_at.items()):
            if target in self._overdue or sent_at + speculation.delay_ms(target) / 1000 > now:
                continue
            self._note_overdue(target)
            if self._spares and speculation.may_retry() and self._ask_instead(target):
                self._asker.repeated.add()
        if not self._is_over:
            self._arm()

    def _note_overdue(self, target: Replica) -> None:
        if target not in self._overdue:
            self._overdue[target] = None
            self._asker.speculation.overdue(target, self._asker.parts.clock.boot_ms())

    # ---- what went wrong

    def _error(self) -> EblaError:
        return read_error(
            self._question.level,
            self._chosen.needed,
            ReadProgress(
                received=len(self.answers),
                has_data=self.data is not None,
                failures=tuple(self._failures.items()),
                only_time_lacked=self._meets((*self.answers, *self._silent())),
            ),
        )

    def _silent(self) -> tuple[Replica, ...]:
        late = (target for target, error in self._failures.items() if isinstance(error, DeadlineExceeded))
        return (*late, *self._sent_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgress:
    """How far a read came that failed."""

    received: int
    has_data: bool
    failures: tuple[tuple[Replica, EblaError], ...]
    only_time_lacked: bool
    """With the answers of those that were silent the level would be met."""


def read_error(
    level: ConsistencyLevel, needed: Sequence[RequiredReplies], standing: ReadProgress
) -> ReadTimeout | ReadFailed:
    required = sum(each.count for each in needed)
    told = "; ".join(
        f"shard {target.shard} of host {target.host}: {error.message}"
        for target, error in standing.failures[:_FAILURES_TOLD_MAX]
    )
    why = f" ({told})" if told else ""
    counted = f"{level.name} read: {standing.received} of {required} replicas answered"
    if standing.only_time_lacked:
        return ReadTimeout(
            f"{counted} in time{why}",
            advice="try again, or read at a lower level",
            required=required,
            received=standing.received,
            has_data=standing.has_data,
        )
    return ReadFailed(
        f"{counted}, and no more can{why}",
        advice=next((error.advice for _, error in standing.failures if error.advice), ""),
        required=required,
        received=standing.received,
        failed=len(standing.failures),
    )
