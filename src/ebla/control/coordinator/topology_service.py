"""Serves what operators see of topology operations, and their abort, on any node."""

import asyncio

import msgspec

from ebla.control.coordinator.coordinator import Coordinator
from ebla.control.coordinator.coordinator_deps import CoordinatorDeps
from ebla.control.coordinator.rejections import send_response
from ebla.control.coordinator.request_service import RequestService
from ebla.control.coordinator.wait_causes import WaitKind
from ebla.control.topology.deps import expires_at, out_of_time, remaining_ms
from ebla.group0.join_messages import JoinNodeResponse
from ebla.group0.members import MemberRole
from ebla.model.errors import EblaError, NotFound
from ebla.model.identity import Address, HostId, RequestId
from ebla.topology.commands import AbortRequest
from ebla.topology.request_queue import JOINING_KINDS, pending_requests, unsettled_requests
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.topology.states import RequestOutcome
from ebla.wire.server import IncomingCall, Server
from ebla.wire.topology_messages import (
    AbortTopologyAnswer,
    AbortTopologyRequest,
    RequestReport,
    TopologyReport,
    TopologyReportRequest,
    TopologyRequest,
    WaitCause,
)
from ebla.wire.verbs import ABORT_REQUEST, TOPOLOGY_REPORT

LEADER_MS = 800
"""How long the leader may take: the whole answer takes at most a second."""
ATTEMPT_MS = 5_000


class TopologyService:
    def __init__(self, deps: CoordinatorDeps, coordinator: Coordinator, tasks: asyncio.TaskGroup) -> None:
        self._deps = deps
        self._coordinator = coordinator
        self._own = deps.topology.group0.config.member.host
        self._tasks = tasks
        self._requests = RequestService(deps.topology, self._own, deps.silent)
        self._led_ms: int | None = None
        """When a leader last answered here, by the boot clock."""

    def serve_on(self, server: Server) -> None:
        server.serve(TOPOLOGY_REPORT, self._serve_report)
        server.serve(ABORT_REQUEST, self._serve_abort)
        self._requests.serve_on(server)

    # ---- reports

    async def _serve_report(self, request: TopologyReportRequest, _call: IncomingCall) -> TopologyReport:
        return await self.report(forward=request.forward)

    async def report(self, *, forward: bool = True) -> TopologyReport:
        """Of this node's state, with the causes of the leader if it answers in time."""
        group0 = self._deps.topology.group0
        leader = group0.running.leader_host() if group0.is_running else None
        if leader == self._own or not forward:
            return self._own_report(leader)
        if leader is not None:
            try:
                found = await self._deps.peers.call(leader, TOPOLOGY_REPORT, TopologyReportRequest(False), LEADER_MS)
            except EblaError:
                pass
            else:
                self._led_ms = self._deps.topology.clock.boot_ms()
                return msgspec.structs.replace(found, host=self._own)
        return self._local_report(leader)

    async def cause_of(self, request: RequestId) -> str:
        """For a node that waits to join."""
        report = await self.report()
        found = next((one for one in report.open if one.request.id == request), None)
        cause = report.waits_for if found is None else found.waits_for or report.waits_for
        return "" if cause is None else cause.text

    def _own_report(self, leader: HostId | None) -> TopologyReport:
        """Of the leader."""
        coordinator, boot_ms = self._coordinator, self._deps.topology.clock.boot_ms()
        current = coordinator.current
        report = self._base(leader)
        return msgspec.structs.replace(
            report,
            transition_ms=None if current is None else boot_ms - current.transition_since[1],
            waits_for=coordinator.causes.of(None),
            open=tuple(self._with_cause(one) for one in report.open),
        )

    def _with_cause(self, report: RequestReport) -> RequestReport:
        request, current = report.request.id, self._coordinator.current
        return msgspec.structs.replace(
            report,
            waits_for=self._coordinator.causes.of(request),
            progress=None if current is None else current.progress_of(request),
        )

    def _local_report(self, leader: HostId | None) -> TopologyReport:
        boot_ms = self._deps.topology.clock.boot_ms()
        return msgspec.structs.replace(
            self._base(leader),
            local_age_ms=boot_ms if self._led_ms is None else boot_ms - self._led_ms,
            waits_for=WaitCause(f"{WaitKind.NO_MAJORITY}: {self._missing(leader)}", 0),
        )

    def _missing(self, leader: HostId | None) -> str:
        group0 = self._deps.topology.group0
        if not group0.is_running:
            return group0.waits_for or "this node is in no cluster yet"
        down = self._deps.topology.down()
        members = group0.running.store.members.values()
        missing = [str(one.address.host) for one in members if one.role is MemberRole.VOTER and one.host in down]
        if missing:
            return f"missing {', '.join(missing)}"
        if leader is None:
            return "no leader is known"
        row = self._deps.committed.snapshot.nodes.get(leader)
        return f"the leader, {leader if row is None else row.address}, does not answer"

    def _base(self, leader: HostId | None) -> TopologyReport:
        snapshot, group0 = self._deps.committed.snapshot, self._deps.topology.group0
        term = group0.running.raft.core.term if group0.is_running else 0
        requests: tuple[TopologyRequest, ...] = (*snapshot.node_requests.values(), *snapshot.global_requests.values())
        opened = open_requests(snapshot)
        ended = sorted((one for one in requests if one not in opened), key=lambda one: -(one.end_ms or 0))
        return TopologyReport(
            host=self._own,
            coordinator=leader,
            term=term,
            version=snapshot.version,
            fence=snapshot.fence,
            transition=snapshot.transition,
            nodes=tuple(snapshot.members()),
            open=tuple(RequestReport(request=one) for one in opened),
            ended=tuple(ended),
        )

    # ---- abort

    async def _serve_abort(self, request: AbortTopologyRequest, call: IncomingCall) -> AbortTopologyAnswer:
        reason = request.reason or "by an operator"
        return AbortTopologyAnswer(await self.abort(request.request, reason, call.work_ms()))

    async def abort(self, request: RequestId, reason: str, within_ms: int) -> TopologyRequest:
        """Stores it; the coordinator rolls a running request back. One that has ended stays as it is."""
        expires, topology = expires_at(within_ms), self._deps.topology
        while remaining_ms(expires) > 0:
            snapshot = await topology.read(remaining_ms(expires))
            known = find_request(snapshot, request)
            if known is None:
                raise NotFound(f"there is no request {request}", advice="see `ebla topology`")
            if not known.is_open or known.error:
                return known
            command = AbortRequest(request, reason, topology.now_ms())
            attempt_ms = min(ATTEMPT_MS, remaining_ms(expires))
            done = await topology.commit(snapshot, (command,), attempt_ms)
            if done is not None:
                after = find_request(done, request)
                assert after is not None, "an abort drops no request"
                self._send_rejection(snapshot, known, after)
                return after
            await topology.pause()
        raise out_of_time()

    def _send_rejection(self, before: Snapshot, request: TopologyRequest, after: TopologyRequest) -> None:
        """A join that had not started has ended; its node is no member."""
        if after.is_open or not isinstance(request, NodeRequest) or request.kind not in JOINING_KINDS:
            return
        if request.host not in before.nodes:
            return
        address = Address(before.node(request.host).address, self._deps.control_port)
        response = JoinNodeResponse(attempt=request.id, rejection=after.error)
        self._tasks.create_task(send_response(self._deps.context, address, response))


def find_request(snapshot: Snapshot, request: RequestId) -> TopologyRequest | None:
    return snapshot.node_requests.get(request) or snapshot.global_requests.get(request)


def open_requests(snapshot: Snapshot) -> tuple[TopologyRequest, ...]:
    """Those whose last barrier has not passed, the running one, then the queue in its order, then the global requests,
    which wait for the others."""
    running = (one for one in snapshot.node_requests.values() if one.outcome is RequestOutcome.RUNNING)
    queued = (snapshot.global_requests[one] for one in snapshot.state.global_requests)
    return (*unsettled_requests(snapshot), *running, *pending_requests(snapshot), *queued)
