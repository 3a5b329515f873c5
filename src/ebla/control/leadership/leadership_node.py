"""Leases and activities of one node: carries out what `leadership/core.py` decides.

Every event ends in `_step`, which repeats the core's step until it has no more effects. Requests for this node's lease
and saves of its file hold one lock from the decision to the answer: otherwise a save of the time left could be written
after a renewal that found the file good enough.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, assert_never

from ebla.aio.fifo_lock import FifoLock
from ebla.control.group0.node import Group0Node
from ebla.control.leadership.activity_tasks import ActivityTasks
from ebla.control.leadership.leadership_metrics import LeadershipMetrics
from ebla.control.leadership.lease_file import LeaseFile
from ebla.group0.members import Member
from ebla.leadership.activities import (
    LeadershipView,
)
from ebla.leadership.core import LeadershipCore, RaftFacts
from ebla.leadership.lease_agent import BlockedLease, EndedLease, LeaseCall, NodeFacts
from ebla.leadership.lease_worker import (
    DropCall,
    FailedCall,
    LeaseAcquired,
    LeaseLost,
    StartCall,
    WorkerCall,
    WorkerEffect,
)
from ebla.leadership.messages import (
    AbolishLease,
    LeaseAnswer,
    LeaseAvailable,
    LeaseFileContent,
    LeaseGrant,
    LeaseId,
    LeaseReply,
    LeaseRequest,
)
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.errors import DeadlineExceeded, DiskFull, EblaError, InvalidRequest, leaf_errors
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.raft.messages import PeerId
from ebla.version import Feature
from ebla.wire.frames import Lane
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import ABOLISH_LEASE, ACQUIRE_LEASE, LEASE_AVAILABLE

IDLE_S = 1.0
"""The longest wait between two steps: the boot clock and the loop's clock may differ."""
RENEWAL_RESTART_S = 0.1
STOP_SAVE_S = 0.5
STOP_CHECK_S = 0.01
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipDeps:
    environment: Environment
    group0: Group0Node
    peers: Peers
    own: HostId
    file: LeaseFile
    settings: Callable[[], LeaseSettings]
    report: EventReporter
    end_process: Callable[[str], object]
    """Ends this process with its children, and starts control again. Called at most once."""


class LeadershipNode:
    """`load`, then `run` until cancelled."""

    def __init__(self, deps: LeadershipDeps) -> None:
        self._deps = deps
        self._clock = deps.environment.clock
        self._loop = asyncio.get_running_loop()
        self.core = LeadershipCore(deps.own)
        self.metrics = LeadershipMetrics()
        self.activities = ActivityTasks(self, deps.peers, self.metrics, deps.report)
        self._calls: dict[HostId, asyncio.Task[None]] = {}
        self._writing = FifoLock()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stepping = False
        self._has_event = False
        self._stepped_down: list[LeaseId] = []
        """Lease ids to abolish once nothing runs under them."""
        self._members: tuple[HostId, ...] = ()
        self._has_ended_process = False
        self._is_stopping = False
        self._last_save_error = ""

    # ---- life

    async def load(self) -> None:
        """Before the node listens, and after every process of a predecessor is gone."""
        saved = await self._deps.file.load()
        self.core.agent.start(saved, self._deps.own, self.now_ms())

    def serve_on(self, server: Server) -> None:
        server.serve(ACQUIRE_LEASE, self._acquire_requested)
        server.serve_notice(ABOLISH_LEASE, self._abolish_received)
        server.serve_notice(LEASE_AVAILABLE, self._available_received)

    async def run(self) -> None:
        """An unexpected error ends the process: nobody knows what it has promised or started."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = self.activities.tasks = tasks
                tasks.create_task(self._follow_raft())
                tasks.create_task(self._save_regularly())
                tasks.create_task(self._abolish_own())
                try:
                    while True:
                        self.step()
                        await asyncio.sleep(self._pause_s())
                finally:
                    # What ends with the group starts nothing any more.
                    self._tasks = self.activities.tasks = None
        except* Exception as errors:
            self._end_process(f"leases failed: {next(leaf_errors(errors))!r}")

    async def save_for_stop(self) -> None:
        """At a clean stop and before control executes itself again: activities end, the leases of this leader are
        abolished, and the file gets the time really left."""
        self._is_stopping = True
        self.step()
        try:
            async with asyncio.timeout(STOP_SAVE_S):
                while self._stepped_down and self._tasks is not None:
                    await asyncio.sleep(STOP_CHECK_S)
                    self.step()
                await self._save()
        except (DiskFull, TimeoutError) as error:
            self._deps.report("lease.not_saved", {"cause": str(error)})

    # ---- clock and view

    def now_ms(self) -> int:
        return self._clock.boot_ms()

    @property
    def group0(self) -> Group0Node:
        return self._deps.group0

    def warning(self) -> str:
        """For `ebla status`; empty if there is nothing to tell."""
        left_ms = self.core.agent.left_ms(self.now_ms())
        if not isinstance(self.core.agent.state, BlockedLease):
            return ""
        return f"the lease file was damaged, and nobody gets this node's lease for {left_ms // 1000} s; check the disk"

    def settings(self) -> LeaseSettings:
        return self._deps.settings()

    def raft_facts(self) -> RaftFacts:
        group0 = self._deps.group0
        if not group0.is_running:
            return RaftFacts(leads=False, term=0, voters=())
        running = group0.running
        core, hosts = running.raft.core, running.transport
        sets = (core.membership.voters, core.membership.outgoing)
        voters = tuple(tuple(hosts.host_of(peer) or _stranger(peer) for peer in peers) for peers in sets if peers)
        return RaftFacts(leads=group0.leads, term=core.term, voters=voters)

    def view(self) -> LeadershipView:
        return self.core.view(self.raft_facts(), self.now_ms())

    def _pause_s(self) -> float:
        wake_ms = self.core.wake_ms(self._deps.settings())
        return IDLE_S if wake_ms is None else min(IDLE_S, max(0.001, (wake_ms - self.now_ms()) / 1000))

    # ---- the step

    def step(self) -> None:
        """After every event. An effect that is carried out may be an event itself: then the step is repeated."""
        if self._tasks is None:
            return
        self._has_event = True
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            with self._ending_process():
                while self._has_event:
                    self._has_event = False
                    self._step_once()
        finally:
            self._is_stepping = False

    def _step_once(self) -> None:
        self._follow_leadership()
        while True:
            now_ms, settings = self.now_ms(), self._deps.settings()
            effects = self.core.step(self.raft_facts(), now_ms, settings)
            self._replace_failed_renewal()
            self._carry_out(effects.workers)
            self.activities.carry_out(effects.activities)
            self._tell_ended(effects.ended)
            if effects.is_empty:
                break
        self._end_overdue(settings)
        self._send_abolishes()

    def _follow_leadership(self) -> None:
        raft, core = self.raft_facts(), self.core
        if core.renewal is not None and (self._is_stopping or not raft.leads or core.renewal.term != raft.term):
            self._step_down()
        if core.renewal is None and raft.leads and not self._is_stopping:
            lease_id = LeaseId(self._deps.environment.rng.uuid())
            core.renewal = LeaseRenewal(lease_id, raft.term)
            self._members = ()
            self._deps.report("lease.renewal_started", {"lease": str(lease_id), "term": raft.term})
        if core.renewal is not None:
            members = self._present_hosts()
            if members != self._members:
                self._members = members
                self._carry_out(core.renewal.set_members(members, self.now_ms()))

    def present_members(self) -> tuple[Member, ...]:
        """As applied here; none before this node is in a cluster."""
        group0 = self._deps.group0
        members = group0.running.store.members.values() if group0.is_running else ()
        return tuple(sorted((member for member in members if member.present), key=lambda member: member.host))

    def _present_hosts(self) -> tuple[HostId, ...]:
        return tuple(member.host for member in self.present_members())

    def _step_down(self) -> None:
        """Stops all calls at once. The abolish leaves when the activities have ended."""
        renewal, self.core.renewal = self.core.renewal, None
        if renewal is None:
            return
        for host in list(self._calls):
            self._drop_call(host)
        self._stepped_down.append(renewal.lease_id)
        self._deps.report("lease.renewal_stopped", {"lease": str(renewal.lease_id), "term": renewal.term})

    def _replace_failed_renewal(self) -> None:
        failed, self.core.failed_renewal = self.core.failed_renewal, None
        if failed is not None:
            self.core.renewal = failed
            self._step_down()
            # The next step starts it under a new lease id. Not at once: it may fail again and again.
            self._loop.call_later(RENEWAL_RESTART_S, self.step)

    def _send_abolishes(self) -> None:
        over = [one for one in self._stepped_down if not self.core.registry.runs_under(one)]
        for lease_id in over:
            self._stepped_down.remove(lease_id)
            for host in self._members:
                self.send_abolish(host, lease_id)

    def send_abolish(self, host: HostId, lease_id: LeaseId) -> bool:
        if host == self._deps.own:
            self._abolish(lease_id)
            return True
        try:
            return self._deps.peers.send(host, ABOLISH_LEASE, AbolishLease(lease_id))
        except EblaError:
            return False  # no address is known: the lease expires

    def _end_overdue(self, settings: LeaseSettings) -> None:
        overdue = self.core.registry.overdue(self.now_ms(), settings.activity_stop_ms)
        if overdue:
            names = ", ".join(one.name for one in overdue)
            self._end_process(f"{names} did not stop within {settings.activity_stop_ms} ms")

    def _end_process(self, reason: str) -> None:
        if not self._has_ended_process:
            self._has_ended_process = True
            self._deps.report("control.must_restart", {"reason": reason})
            self._deps.end_process(reason)

    @contextmanager
    def _ending_process(self) -> Iterator[None]:
        """If something unexpected fails here, nobody knows what this node has promised: the error must not become that
        of a verb alone."""
        try:
            yield
        except EblaError:
            raise
        except Exception as error:
            self._end_process(f"leases failed: {error!r}")
            raise

    async def _follow_raft(self) -> None:
        await self._deps.group0.opened.wait()
        while True:
            self.step()
            if not self._deps.group0.is_running:
                return
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._deps.group0.running.raft.wait_status_changed()
            except TimeoutError:
                pass

    # ---- the calls of renewal

    def _carry_out(self, effects: Sequence[WorkerEffect]) -> None:
        assert self._tasks is not None, "a step is made while it runs"
        for effect in effects:
            match effect:
                case StartCall(host, call):
                    assert self.core.renewal is not None, "renewal makes calls"
                    self._calls[host] = self._tasks.create_task(self._call(host, call, self.core.renewal))
                case DropCall(host):
                    self._drop_call(host)
                case LeaseAcquired(host):
                    self._deps.report("lease.acquired", {"of": str(host)})
                case LeaseLost(host, why):
                    self.metrics.losses.add()
                    self._deps.report("lease.lost", {"of": str(host), "cause": why})
                case _:
                    assert_never(effect)

    def _drop_call(self, host: HostId) -> None:
        call = self._calls.pop(host, None)
        if call is not None:
            call.cancel()

    async def _call(self, host: HostId, call: WorkerCall, renewal: LeaseRenewal) -> None:
        """The timeout covers connecting and sending. The worker ignores an answer that it does not wait for."""
        worker, began = renewal.workers[host], self._loop.time()
        settings = self._deps.settings()
        effects: list[WorkerEffect] = []
        try:
            request = LeaseRequest(
                grant=LeaseGrant(self._deps.own, renewal.lease_id, call.grant_number),
                period_ms=call.period_ms,
                history=self._deps.group0.running.store.revision.history,
                term=renewal.term,
            )
            if host == self._deps.own:
                answer = await self.acquire(request, host)
            else:
                answer = await self._deps.peers.call(host, ACQUIRE_LEASE, request, call.timeout_ms)
        except EblaError as error:
            result = _failed_call(error)
            why = self._older_release(host) or error.message
            effects = worker.failed(call.serial, result, why, now_ms=self.now_ms(), settings=settings)
        except Exception as error:
            self._deps.report("lease.worker_failed", {"of": str(host), "cause": repr(error)})
            if self.core.renewal is renewal and host in renewal.workers:
                effects = renewal.worker_failed(host, repr(error), self.now_ms())
        else:
            rtt_ms = (self._loop.time() - began) * 1000
            effects = worker.answered(call.serial, answer, rtt_ms=rtt_ms, now_ms=self.now_ms(), settings=settings)
        if self._calls.get(host) is asyncio.current_task():
            del self._calls[host]
        if self.core.renewal is renewal:
            self._carry_out(effects)
            self.step()

    def _older_release(self, host: HostId) -> str:
        """For people, in a rolling upgrade: a node without leases refuses even the lane, so that the error of a call
        says nothing. Empty if it has them."""
        lacking = (one for one in self.present_members() if Feature.LEADER_LEASES not in one.features)
        return next((f"older release {one.release} without leases" for one in lacking if one.host == host), "")

    def host_came_up(self, host: HostId) -> None:
        """The failure detector sees it come up or restart."""
        renewal = self.core.renewal
        if self._tasks is not None and renewal is not None and host in renewal.workers:
            self._carry_out(renewal.workers[host].host_came_up(self.now_ms()))
            self.step()

    # ---- the agent

    async def _acquire_requested(self, request: LeaseRequest, call: IncomingCall) -> LeaseAnswer:
        return await self.acquire(request, call.peer.host)

    async def acquire(self, request: LeaseRequest, sender: HostId) -> LeaseAnswer:
        """Raises `DiskFull` if a grant or a renewal cannot be written."""
        with self._ending_process():
            return await self._acquire(request, sender)

    async def _acquire(self, request: LeaseRequest, sender: HostId) -> LeaseAnswer:
        async with self._writing:
            call = LeaseCall(request=request, sender=sender, facts=self._facts(), now_ms=self.now_ms())
            decision = self.core.agent.decide(call)
            answer = decision.answer
            if decision.save is not None:
                self.step()  # what ran under an older lease ends, and the registry knows the new one
                try:
                    await self._write(decision.save)
                except BaseException:
                    self.core.agent.write_failed(decision)
                    self.step()
                    raise
                answer = self.core.agent.complete(decision, self.now_ms())
        self.metrics.count(answer.reply, is_grant=decision.is_grant)
        if answer.reply is LeaseReply.OK and decision.is_grant:
            self._deps.report("lease.granted", {"lease": str(request.grant), "holder": str(sender)})
        if answer.reply is LeaseReply.ALREADY_ACQUIRED and sender != self._deps.own:
            self._keep_route(sender)
        self.step()
        return answer

    def _keep_route(self, host: HostId) -> None:
        """So that the notice reaches it when the lease has ended."""
        try:
            self._deps.peers.keep(host, Lane.LEASE)
        except EblaError:
            pass  # no address is known: it asks again after the time left

    def _facts(self) -> NodeFacts:
        group0 = self._deps.group0
        if not group0.is_running:
            return NodeFacts(history=None, members=(), term=0)
        running = group0.running
        return NodeFacts(
            history=running.store.revision.history, members=self._present_hosts(), term=running.raft.core.term
        )

    async def _write(self, content: LeaseFileContent) -> None:
        self.core.agent.writing(content, self.now_ms())
        await self._deps.file.save(content)
        self.core.agent.written(content)

    async def _save(self) -> None:
        async with self._writing:
            content = self.core.agent.content(self.now_ms())
            if content is not None:
                await self._write(content)

    async def _save_regularly(self) -> None:
        while True:
            due_ms = self.core.agent.save_due_ms()
            pause_ms = 1000 if due_ms is None else due_ms - self.now_ms()
            if due_ms is None or pause_ms > 0:
                await asyncio.sleep(min(1.0, max(0.001, pause_ms / 1000)))
            else:
                await self._try_save()

    async def _try_save(self) -> None:
        try:
            await self._save()
            self._last_save_error = ""
        except DiskFull as error:
            if error.message != self._last_save_error:  # once, not at every try
                self._last_save_error = error.message
                self._deps.report("lease.not_saved", {"cause": error.message})

    def _abolish_received(self, notice: AbolishLease, _call: IncomingCall) -> None:
        self._abolish(notice.lease_id)

    def _abolish(self, lease_id: LeaseId) -> None:
        with self._ending_process():
            self.core.agent.abolish(lease_id, self.now_ms())
            self.step()

    def _available_received(self, notice: LeaseAvailable, call: IncomingCall) -> None:
        renewal = self.core.renewal
        if renewal is not None and call.peer.host in renewal.workers:
            with self._ending_process():
                renewal.workers[call.peer.host].available(notice, self.now_ms())
                self.step()

    def _tell_ended(self, ended: Sequence[EndedLease]) -> None:
        assert self._tasks is not None, "a step is made while it runs"
        for one in ended:
            grant = one.promise.grant
            self._deps.report("lease.ended", {"lease": str(grant), "holder": str(grant.holder)})
            self._tasks.create_task(self._try_save())
            for host in one.refused:
                self._tell_available(host, LeaseAvailable(grant.lease_id, grant.number))

    def _tell_available(self, host: HostId, notice: LeaseAvailable) -> None:
        if host == self._deps.own:
            renewal = self.core.renewal
            if renewal is not None and host in renewal.workers:
                renewal.workers[host].available(notice, self.now_ms())
            return
        try:
            self._deps.peers.send(host, LEASE_AVAILABLE, notice)
        except EblaError:
            pass  # it asks again after the time left

    async def _abolish_own(self) -> None:
        """The lease that this very host held before its restart: each member that is reached within the first period
        gets an abolish notice."""
        lease_id = self.core.agent.dropped
        if lease_id is None:
            return
        await self._deps.group0.opened.wait()
        until_ms = self.now_ms() + self._deps.settings().period_ms
        notified: dict[HostId, None] = {self._deps.own: None}
        while self.now_ms() < until_ms and self._deps.group0.is_running:
            for host in self._present_hosts():
                if host not in notified:
                    self._keep_route(host)
                    if self.send_abolish(host, lease_id):
                        notified[host] = None
            await asyncio.sleep(0.1)


def _stranger(peer: PeerId) -> HostId:
    """A voter whose entry this node has not applied yet. It counts in the set, and no lease of it is held."""
    return HostId(uuid.UUID(int=peer))


def _failed_call(error: EblaError) -> FailedCall:
    match error:
        case DeadlineExceeded():
            return FailedCall.TIMEOUT
        case DiskFull():
            return FailedCall.DISK_ERROR
        case InvalidRequest():
            return FailedCall.UNKNOWN_VERB
        case _:
            return FailedCall.CONNECTION_ERROR
