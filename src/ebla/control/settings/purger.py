"""Runs purge rounds, on the leader, as the activity `round` of the domain `purge`. `docs/settings.md` has the protocol
with its reasons.

A round that fails anywhere needs no undo: its tentative timestamp stays in group 0, and the next round finishes it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from ebla.aio.wakeup import Wakeup
from ebla.control.fault_points import FaultInjected, FaultPoint
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.settings.cluster import SettingsCluster, StoredPurgeState
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.purge_agent import first_part
from ebla.control.settings.settings_metrics import SettingsMetrics
from ebla.group0.commands import CommandAnswer, ConditionFailed, Done
from ebla.group0.keys import PURGE_KEY
from ebla.group0.members import Member
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec, EndReason, Precondition
from ebla.leadership.quorum import MAJORITY
from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import HostId
from ebla.model.transaction import MembersUnchanged, Revision
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.settings_store.entry import Entry, decode_entries, encode_entries
from ebla.settings_store.purge import (
    CLOCK_AHEAD_MAX_MS,
    CollectedTombstones,
    PurgeResult,
    RoundStart,
    choose_timestamp,
    qualifying_time,
)
from ebla.settings_store.registry import SettingsPurge
from ebla.wire.settings_messages import (
    HostProblem,
    PreparePurgeRequest,
    PurgeReport,
    PushTombstonesRequest,
    SettingsPurgeAnswer,
    SettingsPurgeRequest,
)
from ebla.wire.verbs import PREPARE_PURGE, PUSH_TOMBSTONES

COMMIT_MS = 5_000
PREPARE_MS = 20_000
PUSH_MS = 10_000
ROUND_MS = 120_000
"""Of a round by the timer: more than its steps can take."""
CHECK_S = 1.0
FOLLOWED_MAX = 16
"""Manual rounds whose steps can still be asked for."""


class RoundEnded(Exception):
    """How a round ended other than by purging."""

    def __init__(self, result: PurgeResult, detail: str = "", problems: Sequence[HostProblem] = ()) -> None:
        super().__init__(result)
        self.result = result
        self.detail = detail
        self.problems = tuple(problems)


@dataclass(slots=True, eq=False, kw_only=True)
class PurgeRound:
    """A round in progress, as its followers see it."""

    steps: list[str] = field(default_factory=list)
    report: PurgeReport | None = None
    changed: Wakeup = field(default_factory=Wakeup)
    purged_us: int = 0
    tombstones: int = 0
    is_proposed: bool = False
    """Step 5 may have happened."""

    def add_step(self, step: str) -> None:
        self.steps.append(step)
        self.changed.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgerDeps:
    durable: DurableSettings
    cluster: SettingsCluster
    leadership: LeadershipNode
    clock: Clock
    metrics: SettingsMetrics
    report: EventReporter
    setting: Callable[[], SettingsPurge]
    why_not_allowed: Callable[[], str]
    """Why the cluster must not purge yet; empty: it may."""
    reach: Callable[[FaultPoint], Awaitable[None]]
    """Called at each fault point."""


class Purger:
    def __init__(self, deps: PurgerDeps) -> None:
        self._deps = deps
        self._durable = deps.durable
        self._cluster = deps.cluster
        self._loop = asyncio.get_running_loop()
        self._followed: dict[UUID, PurgeRound] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._ended_at = -math.inf
        self.last: PurgeReport | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                await asyncio.sleep(CHECK_S)
                setting = self._deps.setting()
                is_due = self._loop.time() - self._ended_at >= setting.interval_ms / 1000
                if not self._cluster.leads or not is_due:
                    continue
                if self._has_work(setting):
                    await self._run_round(PurgeRound(), setting.age_ms, ROUND_MS, is_finishing=not setting.enabled)
                else:
                    self._ended_at = self._loop.time()

    def _has_work(self, setting: SettingsPurge) -> bool:
        """As far as this node knows, so that no activity is started for nothing."""
        start = self._round_start(self._cluster.purge_state(), setting.age_ms, is_finishing=not setting.enabled)
        return choose_timestamp(start) is not PurgeResult.NOTHING_TO_PURGE

    # ---- by command

    async def serve(self, request: SettingsPurgeRequest) -> SettingsPurgeAnswer:
        """Starts the round with this id, or follows it."""
        round_ = self._followed.get(request.round)
        if round_ is None:
            round_ = self._start(request)
        if len(round_.steps) <= request.seen and round_.report is None:
            await round_.changed.wait(request.wait_ms / 1000)
        return SettingsPurgeAnswer(tuple(round_.steps[request.seen :]), round_.report)

    def _start(self, request: SettingsPurgeRequest) -> PurgeRound:
        round_ = PurgeRound()
        if request.seen or self._tasks is None:
            # Another node led when the round began. What became of it there is not known here.
            round_.is_proposed = request.seen > 0
            round_.report = self._report_of(round_, RoundEnded(PurgeResult.NOT_LEADER, "the leader of group 0 changed"))
            return round_
        self._followed[request.round] = round_
        while len(self._followed) > FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]
        age_ms = self._deps.setting().age_ms if request.older_than_ms is None else request.older_than_ms
        self._tasks.create_task(self._run_command(round_, age_ms, request.timeout_ms))
        return round_

    async def _run_command(self, round_: PurgeRound, age_ms: int, timeout_ms: int) -> None:
        """An unfinished round is finished first: its time is not the one that the caller asked for."""
        expires_at = self._loop.time() + timeout_ms / 1000
        if self._cluster.group0.is_running and self._cluster.purge_state().is_unfinished:
            finishing = PurgeRound(steps=round_.steps, changed=round_.changed)
            finishing.add_step("an unfinished round is finished first")
            await self._run_round(finishing, age_ms, timeout_ms, is_finishing=True)
            if finishing.report is None or finishing.report.result != PurgeResult.PURGED:
                round_.report = finishing.report
                round_.changed.wake()
                return
        remaining_ms = max(0, int((expires_at - self._loop.time()) * 1000))
        await self._run_round(round_, age_ms, remaining_ms, is_finishing=False)

    # ---- a round

    async def _run_round(self, round_: PurgeRound, age_ms: int, timeout_ms: int, *, is_finishing: bool) -> None:
        """Half of the time is for waiting until it may start: then a command learns why it may not."""

        async def body(handle: RunningHandle) -> RoundEnded | None:
            try:
                await self._round(round_, age_ms, handle, is_finishing=is_finishing)
            except RoundEnded as end:
                return end
            return None

        leadership = self._deps.leadership
        wait_ms = min(leadership.settings().period_ms, timeout_ms // 2)
        spec = ActivitySpec(name="round", domain="purge", quorum=MAJORITY, wait_ms=wait_ms)
        ended: RoundEnded | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                ended = await leadership.activities.run(spec, body)
        except ActivityRefused as refusal:
            ended = RoundEnded(_REFUSALS[refusal.precondition], refusal.message)
        except ActivityEnded as end:
            is_stepped_down = end.reason is EndReason.NOT_LEADER
            ended = RoundEnded(PurgeResult.NOT_LEADER if is_stepped_down else PurgeResult.QUORUM_LOST, end.message)
        except TimeoutError:
            ended = RoundEnded(PurgeResult.TIMED_OUT, f"the round did not end within {timeout_ms} ms")
        except FaultInjected as fault:
            ended = RoundEnded(PurgeResult.FAULT_INJECTED, fault.message)
        except EblaError as error:
            ended = RoundEnded(PurgeResult.NO_QUORUM, error.message)
        round_.report = self._report_of(round_, ended)
        self._ended_at = self._loop.time()
        self._deps.metrics.count_round(PurgeResult(round_.report.result))
        if round_.report.result != PurgeResult.NOTHING_TO_PURGE:
            self.last = round_.report
            self._deps.report("settings.purge", _details(round_.report))
        round_.changed.wake()

    def _report_of(self, round_: PurgeRound, ended: RoundEnded | None) -> PurgeReport:
        is_unknown = round_.is_proposed and ended is not None and ended.result in _UNKNOWN_AFTER_PROPOSAL
        outcome = "" if ended is None else (Outcome.UNKNOWN if is_unknown else Outcome.NOT_APPLIED).value
        return PurgeReport(
            result=PurgeResult.PURGED if ended is None else ended.result,
            purged_us=round_.purged_us,
            tombstones=round_.tombstones,
            problems=() if ended is None else ended.problems,
            detail="" if ended is None else ended.detail,
            outcome=outcome,
            purger=self._cluster.host,
            ended_wall_us=self._deps.clock.wall_us(),
        )

    async def _round(self, round_: PurgeRound, age_ms: int, handle: RunningHandle, *, is_finishing: bool) -> None:
        """First the quorum, then what a quorum of group 0 knows, then the decisions."""
        await self._cluster.read_barrier(COMMIT_MS)
        refusal = self._deps.why_not_allowed()
        if refusal:
            raise RoundEnded(PurgeResult.FEATURE_MISSING, refusal)
        stored = self._cluster.purge_state()
        purged_us = round_.purged_us = self._choose(stored, age_ms, is_finishing=is_finishing)
        attempt = await self._commit_tentative(stored, purged_us, handle)
        round_.add_step(f"tentative: changes from now on are dated after {purged_us}")
        await self._deps.reach(FaultPoint.PURGE_TENTATIVE)
        present = self._cluster.store.present_members()
        request = PreparePurgeRequest(purged_us=purged_us, members_revision=present.revision, attempt=attempt)
        tombstones = await self._prepare(present.members, request, handle)
        round_.tombstones = len(tombstones)
        round_.add_step(f"prepared: {len(present.members)} nodes have {_tombstones(len(tombstones))}")
        await self._deps.reach(FaultPoint.PURGE_PREPARED)
        await self._push(present.members, request, tombstones, handle)
        round_.add_step(f"pushed: {len(present.members)} nodes have all of them")
        await self._deps.reach(FaultPoint.PURGE_PUSHED)
        round_.is_proposed = True
        await self._commit_effective(purged_us, attempt, present.revision, handle)
        round_.add_step(f"effective: purged up to {purged_us}")
        await self._deps.reach(FaultPoint.PURGE_EFFECTIVE)

    # ---- step 1

    def _offsets_ms(self) -> dict[HostId, int]:
        others = [member.host for member in self._cluster.others()]
        return {host: ms for host, ms in self._cluster.clock_offsets_ms().items() if host in others}

    def _round_start(self, stored: StoredPurgeState, age_ms: int, *, is_finishing: bool) -> RoundStart:
        store = self._durable.store
        return RoundStart(
            tentative_us=stored.state.tentative_wall_us,
            effective_us=stored.state.effective_wall_us,
            wall_us=self._deps.clock.wall_us(),
            age_us=age_ms * 1000,
            clock_offsets_ms=tuple(self._offsets_ms().values()),
            other_members=len(self._cluster.others()),
            oldest_tombstone_us=qualifying_time(store.entries[key] for key in store.tombstones),
            is_finishing=is_finishing,
        )

    def _choose(self, stored: StoredPurgeState, age_ms: int, *, is_finishing: bool) -> int:
        start = self._round_start(stored, age_ms, is_finishing=is_finishing)
        chosen = choose_timestamp(start)
        if isinstance(chosen, int):
            return chosen
        if chosen is PurgeResult.CLOCK_AHEAD:
            behind = {host: ms for host, ms in self._offsets_ms().items() if ms < -CLOCK_AHEAD_MAX_MS}
            problems = [
                self._cluster.problem(host, f"its clock is {-ms // 1000} s behind") for host, ms in behind.items()
            ]
            raise RoundEnded(chosen, "the clock of this node is ahead of most others", problems)
        if chosen is PurgeResult.CLOCK_BEHIND:
            behind_s = (start.effective_us - start.wall_us) // 1_000_000
            raise RoundEnded(chosen, f"the clock of this node is {behind_s} s behind the last purge")
        raise RoundEnded(chosen)

    # ---- step 2

    async def _commit_tentative(self, stored: StoredPurgeState, purged_us: int, handle: RunningHandle) -> Revision:
        """Also of a round that is finished: the attempt before can then no longer become effective."""
        state = msgspec.structs.replace(stored.state, tentative_wall_us=purged_us, purger=self._cluster.host)
        handle.check_effect()
        answer = await self._cluster.transact(stored.changed_to(state), COMMIT_MS, handle.check_effect)
        if not isinstance(answer, Done):
            raise RoundEnded(PurgeResult.CONFLICT, "another node changed the state of the purge meanwhile")
        return answer.revision

    # ---- step 3

    async def _prepare(
        self, members: Sequence[Member], request: PreparePurgeRequest, handle: RunningHandle
    ) -> list[tuple[str, Entry]]:
        collected = CollectedTombstones()

        async def prepare(host: HostId) -> None:
            start = 0
            while True:
                page_request = msgspec.structs.replace(request, start=start)
                page = await handle.call(host, PREPARE_PURGE, page_request, PREPARE_MS)
                tombstones = decode_entries(page.tombstones)
                collected.add(tombstones)
                start += len(tombstones)
                if not page.more:
                    return

        await self._at_each(members, prepare, PREPARE_MS, PurgeResult.PREPARE_FAILED)
        handle.check_effect()
        return collected.sorted_entries()

    # ---- step 4

    async def _push(
        self,
        members: Sequence[Member],
        request: PreparePurgeRequest,
        tombstones: Sequence[tuple[str, Entry]],
        handle: RunningHandle,
    ) -> None:
        parts = [
            PushTombstonesRequest(
                purged_us=request.purged_us,
                attempt=request.attempt,
                tombstones=encode_entries(part),
                is_last=is_last,
            )
            for part, is_last in _parts(tombstones)
        ]

        async def push(host: HostId) -> None:
            for part in parts:  # the next one once the former is durable there
                await handle.call(host, PUSH_TOMBSTONES, part, PUSH_MS)

        await self._at_each(members, push, PUSH_MS, PurgeResult.PUSH_FAILED)

    async def _at_each(
        self,
        members: Sequence[Member],
        work: Callable[[HostId], Awaitable[None]],
        limit_ms: int,
        failure: PurgeResult,
    ) -> None:
        """At every member: one that is missing may hold the only copy of a tombstone, or a value that one
        supersedes."""
        problems: dict[HostId, HostProblem] = {}

        up = (self._cluster.host, *self._cluster.up_hosts())

        async def attempt(host: HostId) -> None:
            if host not in up:  # a stopped node keeps its connections: a call would wait for the whole limit
                problems[host] = self._cluster.problem(host, "down")
                return
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await work(host)
            except TimeoutError:
                problems[host] = self._cluster.problem(host, f"did not answer within {limit_ms // 1000} s")
            except EblaError as error:
                problems[host] = self._cluster.problem(host, error.message)

        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(attempt(member.host))
        if problems:
            raise RoundEnded(failure, problems=[problems[host] for host in sorted(problems)])

    # ---- step 5

    async def _commit_effective(
        self, purged_us: int, attempt: Revision, members_revision: Revision, handle: RunningHandle
    ) -> None:
        stored = self._cluster.purge_state()
        if stored.revision != attempt:
            raise RoundEnded(PurgeResult.SUPERSEDED, "another node has started a round or a reset meanwhile")
        state = msgspec.structs.replace(stored.state, effective_wall_us=purged_us)
        transaction = stored.changed_to(state, MembersUnchanged(members_revision))
        handle.check_effect()
        answer: CommandAnswer = await self._cluster.transact(transaction, COMMIT_MS, handle.check_effect)
        if isinstance(answer, Done):
            return
        if isinstance(answer, ConditionFailed) and answer.key != PURGE_KEY:
            raise RoundEnded(PurgeResult.MEMBERS_CHANGED, "a node joined or left meanwhile")
        raise RoundEnded(PurgeResult.SUPERSEDED, "another node has started a round or a reset meanwhile")


_REFUSALS: Mapping[Precondition, PurgeResult] = {
    Precondition.DOMAIN_CONFLICT: PurgeResult.CONFLICT,
    Precondition.NOT_LEADER: PurgeResult.NOT_LEADER,
    Precondition.NO_LEASE: PurgeResult.NO_QUORUM,
    Precondition.NO_QUORUM: PurgeResult.NO_QUORUM,
}

_UNKNOWN_AFTER_PROPOSAL = (
    PurgeResult.NO_QUORUM,
    PurgeResult.QUORUM_LOST,
    PurgeResult.NOT_LEADER,
    PurgeResult.TIMED_OUT,
    PurgeResult.FAULT_INJECTED,
)


def _parts(tombstones: Sequence[tuple[str, Entry]]) -> Iterator[tuple[list[tuple[str, Entry]], bool]]:
    """Parts that fit a message, and whether it is the last; one empty part if there are no tombstones."""
    start = 0
    while True:
        part = first_part(tombstones[start:])
        start += len(part)
        yield part, start >= len(tombstones)
        if start >= len(tombstones):
            return


def _tombstones(count: int) -> str:
    return "1 tombstone" if count == 1 else f"{count} tombstones"


def _details(report: PurgeReport) -> dict[str, object]:
    return {
        "result": str(report.result),
        "purged_us": report.purged_us,
        "tombstones": report.tombstones,
        "hosts": [f"{one.address} ({one.cause})" for one in report.problems],
        "detail": report.detail,
    }
