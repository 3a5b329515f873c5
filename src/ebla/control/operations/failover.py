"""Failover: the opinions of the voters, the checks of `exclude` and `include` on the leader, and automatic failover.

The order is: take the quorum, synchronise, then check. A run has its quorum of leases and has done a read barrier when
it calls the checks here, and its commit is conditional on what they saw. Checked before, a former leader could exclude
a host by opinions that it had collected before it was cut off.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ebla.control.group0.node import Group0Node
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.liveness.failure_detector import PeerLiveness, opinions_of
from ebla.control.operations.operation_service import Operations
from ebla.control.operations.runner import OperationHandle
from ebla.control.topology.deps import TopologyDeps, expires_at, out_of_time, remaining_ms
from ebla.group0.auto_failover import ANSWER_AGE_MS_MAX, EVALUATE_MS, AutoFailover, Evaluation
from ebla.group0.failover import (
    FORCIBLE,
    Check,
    CheckKind,
    FailoverFacts,
    Opinions,
    RecoveryFacts,
    check_exclusion,
    check_inclusion,
    losses_of_exclusion,
    unmet_checks,
    voters_of,
)
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.operations import Operation, OperationCode, OperationFailed, OperationKind
from ebla.group0.voters import VoterCandidate, choose_voters, is_unsettled
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import HostId
from ebla.model.opinions import Opinion, OpinionState
from ebla.raft.messages import PeerId
from ebla.raft.roles import Leader
from ebla.settings_store.registry import AutoFailoverSettings
from ebla.topology.commands import ResetFailoverCount
from ebla.topology.snapshot import Exclusion, Snapshot
from ebla.wire.failover_messages import (
    CheckReport,
    DownReport,
    ExclusionReport,
    FailoverCheckAnswer,
    FailoverCheckRequest,
    FailoverStatusAnswer,
    FailoverStatusRequest,
    OpinionsAnswer,
    OpinionsRequest,
)
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import FAILOVER_CHECK, FAILOVER_STATUS, NODE_BARRIER, OPINIONS

ANSWERS_MS = 300
"""From the questions of an evaluation to the evaluation."""
RECOVERY_BARRIER_MS = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverDeps:
    topology: TopologyDeps
    operations: Operations
    leadership: LeadershipNode
    peers: Peers
    own: HostId
    liveness: Callable[[], tuple[PeerLiveness, ...]]
    silence_ms: int
    settings: Callable[[], AutoFailoverSettings]
    take_longest_pause_ms: Callable[[], int]
    """Of the event loop, since the last call."""


@dataclass(frozen=True, slots=True)
class _Answer:
    asked_ms: int
    opinions: tuple[Opinion, ...]


class Failover:
    """`run` until cancelled."""

    def __init__(self, deps: FailoverDeps) -> None:
        self._deps = deps
        self.auto = AutoFailover()
        self._answers: dict[HostId, _Answer] = {}
        self._acting: asyncio.Task[None] | None = None
        self._operation: Operation | None = None
        self._problem = ""
        """Why the last attempt to exclude what is due did not succeed."""
        deps.operations.checks[OperationKind.EXCLUDE] = self._check_exclude
        deps.operations.checks[OperationKind.INCLUDE] = self._check_include

    def serve_on(self, server: Server) -> None:
        server.serve(OPINIONS, self._answer_opinions)
        server.serve(FAILOVER_CHECK, self._check_requested)
        server.serve(FAILOVER_STATUS, self._status_requested)

    @property
    def _group0(self) -> Group0Node:
        return self._deps.topology.group0

    # ---- opinions

    def own_opinions(self) -> tuple[Opinion, ...]:
        deps = self._deps
        members = self._group0.running.store.members.values() if self._group0.is_running else ()
        return opinions_of(members, deps.liveness(), deps.own, self._now_ms(), deps.silence_ms)

    def _answer_opinions(self, _request: OpinionsRequest, _call: IncomingCall) -> OpinionsAnswer:
        return OpinionsAnswer(self.own_opinions())

    async def _ask(self, voter: HostId, answers: dict[HostId, _Answer]) -> None:
        asked_ms = self._now_ms()
        if voter == self._deps.own:
            answers[voter] = _Answer(asked_ms, self.own_opinions())
            return
        try:
            answer = await self._deps.peers.call(voter, OPINIONS, OpinionsRequest(), ANSWER_AGE_MS_MAX)
        except EblaError:
            return  # it has no opinion that counts
        known = answers.get(voter)
        if known is None or asked_ms > known.asked_ms:
            answers[voter] = _Answer(asked_ms, answer.opinions)

    def _counting(self, answers: Mapping[HostId, _Answer], asked_since_ms: int) -> Iterable[Opinion]:
        """A voter speaks for itself only."""
        for voter, answer in answers.items():
            if answer.asked_ms >= asked_since_ms:
                yield from (one for one in answer.opinions if one.voter == voter)

    async def _gather(self, snapshot: Snapshot, members: Mapping[str, Member]) -> FailoverFacts:
        """Fresh opinions of every voter that answers in time. Not those of the evaluations, which a node that does not
        lead forgets each second."""
        asked_ms, answers = self._now_ms(), dict[HostId, _Answer]()
        async with asyncio.TaskGroup() as tasks:
            for voter in voters_of(members.values()):
                tasks.create_task(self._ask(voter, answers))
        return self._facts(snapshot, tuple(members.values()), answers, asked_ms)

    def _facts(
        self,
        snapshot: Snapshot,
        members: tuple[Member, ...],
        answers: Mapping[HostId, _Answer],
        asked_since_ms: int,
    ) -> FailoverFacts:
        leader = self._group0.running.leader_host()
        return FailoverFacts(
            snapshot=snapshot,
            members=members,
            leader=self._deps.own if leader is None else leader,
            opinions=Opinions(voters_of(members), self._counting(answers, asked_since_ms)),
        )

    # ---- checks of operations, on the leader under its quorum

    async def _check_exclude(
        self, operation: Operation, _handle: OperationHandle, snapshot: Snapshot, members: Mapping[str, Member]
    ) -> Operation:
        facts = await self._gather(snapshot, members)
        hosts = tuple(host for host in operation.hosts if snapshot.exclusion_of(host) is None)
        self._require(unmet_checks(check_exclusion(facts, hosts), force=operation.is_forced), operation)
        if operation.is_automatic:
            self._require_due(operation, snapshot)
        return msgspec.structs.replace(
            operation,
            opinions=tuple(one for host in hosts for one in facts.opinions.about(host)),
            leader=self._deps.own,
        )

    def _require_due(self, operation: Operation, snapshot: Snapshot) -> None:
        """The quorum may have come long after the group was due, and another leader's judgement does not count."""
        settings = self._deps.settings()
        left = settings.max_count - snapshot.state.failover_count
        if not settings.enabled or self.auto.due != operation.hosts or len(operation.hosts) > left:
            raise OperationFailed(
                "automatic failover: these hosts are not due any more",
                code=OperationCode.REFUSED,
                operation=operation.id,
            )

    async def _check_include(
        self, operation: Operation, _handle: OperationHandle, snapshot: Snapshot, members: Mapping[str, Member]
    ) -> Operation:
        (host,) = operation.hosts
        facts = self._facts(snapshot, tuple(members.values()), {}, 0)
        self._require(unmet_checks(check_inclusion(facts, host, self._recovery_facts(host)), force=False), operation)
        await self._require_barrier(facts, host, operation)
        up = [one.host for one in self.own_opinions() if one.state is OpinionState.UP]
        excluded = [other for other in snapshot.excluded_hosts if other != host]
        transition = snapshot.transition
        unsettled = [node.host for node in snapshot.members() if is_unsettled(node.state, transition)]
        candidates = [
            VoterCandidate(
                member=one, alive=one.host in up, excluded=one.host in excluded, unsettled=one.host in unsettled
            )
            for one in members.values()
        ]
        role = MemberRole.VOTER if host in choose_voters(candidates) else MemberRole.LEARNER
        return msgspec.structs.replace(operation, roles=(role,))

    async def _require_barrier(self, facts: FailoverFacts, host: HostId, operation: Operation) -> None:
        """No barrier waited for the host while it was excluded. A shard that could not install a version since then
        would serve by its old one as soon as the host is included."""
        request = NodeBarrierRequest(facts.snapshot.version)
        try:
            await self._deps.peers.call(host, NODE_BARRIER, request, RECOVERY_BARRIER_MS)
        except EblaError as error:
            text = f"{facts.name(host)} has not caught up with the topology: {error.message}"
            self._require((Check(CheckKind.RECOVERY, False, text),), operation)

    def _recovery_facts(self, host: HostId) -> RecoveryFacts:
        core = self._group0.running.raft.core
        progress = core.role.progress.get(PeerId(peer_number(host))) if isinstance(core.role, Leader) else None
        held = self._deps.leadership.view().held
        return RecoveryFacts(
            is_up=any(one.host == host and one.state is OpinionState.UP for one in self.own_opinions()),
            behind_entries=None if progress is None or not progress.match else core.last_index - progress.match,
            is_leased=held is not None and held.deadlines.get(host, 0) > self._now_ms(),
        )

    def _require(self, unmet: tuple[Check, ...], operation: Operation) -> None:
        if unmet:
            can_force = operation.kind is OperationKind.EXCLUDE and all(check.kind in FORCIBLE for check in unmet)
            raise OperationFailed(
                "; ".join(check.text for check in unmet),
                advice="--force excludes the nodes anyway" if can_force else "nothing was changed",
                code=OperationCode.REFUSED,
                operation=operation.id,
            )

    # ---- automatic failover

    async def run(self) -> None:
        await self._group0.confirmed.wait()
        async with asyncio.TaskGroup() as tasks:
            while True:
                excluded = self._deps.topology.topology.snapshot.excluded_hosts
                self._deps.operations.runner.metrics.excluded.set(len(excluded))
                self._ask_voters(tasks)
                await asyncio.sleep(ANSWERS_MS / 1000)
                if self._group0.leads:
                    self._evaluate()
                    self._act(tasks)
                else:
                    self.auto.stop()
                    self._answers.clear()
                await asyncio.sleep((EVALUATE_MS - ANSWERS_MS) / 1000)

    def _evaluate(self) -> None:
        running, now_ms = self._group0.running, self._now_ms()
        self._answers[self._deps.own] = _Answer(now_ms, self.own_opinions())
        members = tuple(running.store.members.values())
        snapshot = self._deps.topology.topology.snapshot
        facts = self._facts(snapshot, members, self._answers, now_ms - ANSWER_AGE_MS_MAX)
        self.auto.evaluate(
            Evaluation(
                now_ms=now_ms,
                term=running.raft.core.term,
                settings=self._deps.settings(),
                facts=facts,
                pause_ms=self._deps.take_longest_pause_ms(),
            )
        )

    def _ask_voters(self, tasks: asyncio.TaskGroup) -> None:
        """What arrives later than the evaluation counts in the next one: a dead voter must not delay it."""
        if self._group0.leads and self._deps.settings().enabled:
            for voter in voters_of(self._group0.running.store.members.values()):
                if voter != self._deps.own:
                    tasks.create_task(self._ask(voter, self._answers))

    def _act(self, tasks: asyncio.TaskGroup) -> None:
        due = self.auto.due
        if not due:
            self._operation, self._problem = None, ""
        if not due or (self._acting is not None and not self._acting.done()):
            return
        if self._operation is None or self._operation.hosts != due:
            self._operation = Operation(
                id=self._deps.topology.rng.uuid(),
                kind=OperationKind.EXCLUDE,
                hosts=due,
                reason="automatic failover",
                is_automatic=True,
            )
        self._acting = tasks.create_task(self._exclude(self._operation))

    async def _exclude(self, operation: Operation) -> None:
        """Without a quorum it is refused after a while, and the next evaluation tries again."""
        try:
            await self._deps.operations.run_here(operation)
        except EblaError as error:
            self._problem = error.message
        else:
            self._operation, self._problem = None, ""
            hosts = ", ".join(map(str, operation.hosts))
            self._deps.topology.report("failover.excluded", {"hosts": hosts, "operation": str(operation.id)})

    # ---- operators

    async def _check_requested(self, request: FailoverCheckRequest, call: IncomingCall) -> FailoverCheckAnswer:
        snapshot = await self._deps.topology.read(call.work_ms())
        facts = await self._gather(snapshot, self._group0.running.store.members)
        checks = check_exclusion(facts, request.hosts)
        return FailoverCheckAnswer(
            tuple(CheckReport(is_met=one.is_met, text=one.text, can_force=one.kind in FORCIBLE) for one in checks),
            tuple(str(one) for one in losses_of_exclusion(facts, request.hosts)),
        )

    async def _status_requested(self, request: FailoverStatusRequest, call: IncomingCall) -> FailoverStatusAnswer:
        if not self._group0.is_running:
            raise Unavailable("this node is in no cluster yet", advice="try again in a moment")
        leader = self._group0.running.leader_host()
        if request.forward and leader is not None and leader != self._deps.own:
            forwarded = FailoverStatusRequest(reset=request.reset, forward=False)
            return await self._deps.peers.call(leader, FAILOVER_STATUS, forwarded, call.work_ms())
        if request.reset:
            await self._reset(call.work_ms())
        return self.status()

    async def _reset(self, within_ms: int) -> None:
        deps, expires = self._deps.topology, expires_at(within_ms)
        while (left_ms := remaining_ms(expires)) > 0:
            snapshot = await deps.read(left_ms)
            if await deps.commit(snapshot, (ResetFailoverCount(),), remaining_ms(expires)) is not None:
                return
            await deps.pause()
        raise out_of_time()

    def status(self) -> FailoverStatusAnswer:
        settings, snapshot = self._deps.settings(), self._deps.topology.topology.snapshot
        facts = self._facts(snapshot, tuple(self._group0.running.store.members.values()), {}, 0)
        down = tuple(
            DownReport(
                host=one.host,
                address=facts.name(one.host),
                why=str(one.why),
                text=self._problem if one.host in self.auto.due and self._problem else one.text,
                remaining_ms=one.remaining_ms,
            )
            for one in self.auto.down
        )
        return FailoverStatusAnswer(
            is_leader=self._group0.leads,
            is_enabled=settings.enabled,
            after_ms=settings.after_ms,
            max_count=settings.max_count,
            count=snapshot.state.failover_count,
            now_ms=self._deps.topology.now_ms(),
            excluded=tuple(_exclusion_report(one, facts) for one in snapshot.state.exclusions),
            down=down,
        )

    def _now_ms(self) -> int:
        return self._deps.topology.clock.boot_ms()


def _exclusion_report(one: Exclusion, facts: FailoverFacts) -> ExclusionReport:
    opinions = tuple(f"{facts.name(each.voter)}: {each.state} for {each.for_ms // 1000} s" for each in one.opinions)
    return ExclusionReport(
        host=one.host,
        address=facts.name(one.host),
        since_ms=one.since_ms,
        by=facts.name(one.by),
        is_automatic=one.is_automatic,
        is_forced=one.is_forced,
        opinions=opinions,
    )
