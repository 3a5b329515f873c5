"""What a node tells of its leases and activities, and what it collects from the other members for an operator."""

import asyncio
import math

from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.leadership.loop_turns import LoopTurns
from ebla.group0.members import Member
from ebla.leadership.activities import Activity, EndedActivity, EndingActivity, LeadershipView, WaitingActivity
from ebla.leadership.lease_agent import STATE_OF, ActiveLease, ExpiringLease
from ebla.leadership.lease_worker import LeaseWorker
from ebla.leadership.quorum import describe_quorum, host_sets, leases_needed
from ebla.model.errors import EblaError
from ebla.model.lease_settings import LeaseSettings
from ebla.wire.leadership_messages import (
    ActivityReport,
    ClusterLeadershipAnswer,
    ClusterLeadershipRequest,
    EndedActivityReport,
    HeldLeaseReport,
    LeadershipReport,
    LeadershipRequest,
    SilentNode,
)
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CLUSTER_LEADERSHIP, LEADERSHIP

COLLECT_MS = 1_000


class LeadershipService:
    def __init__(self, node: LeadershipNode, peers: Peers, address: str, turns: LoopTurns) -> None:
        self._node = node
        self._peers = peers
        self._address = address
        self._turns = turns

    def serve_on(self, server: Server) -> None:
        server.serve(LEADERSHIP, lambda _request, _call: self.report())

    def serve_own(self, server: Server) -> None:
        self.serve_on(server)
        server.serve(CLUSTER_LEADERSHIP, self._collect)

    def report(self) -> LeadershipReport:
        """From its own state alone."""
        return leadership_report(self._node, self._address, self._turns)

    async def _collect(self, _request: ClusterLeadershipRequest, _call: IncomingCall) -> ClusterLeadershipAnswer:
        """Works without a majority: a member that does not answer in time is listed as silent."""
        others = [one for one in self._node.present_members() if one.host != self._node.core.own]
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._ask(member)) for member in others]
        answers = [task.result() for task in asked]
        reports = [one for one in answers if isinstance(one, LeadershipReport)]
        silent = [one for one in answers if isinstance(one, SilentNode)]
        return ClusterLeadershipAnswer((self.report(), *reports), tuple(silent))

    async def _ask(self, member: Member) -> LeadershipReport | SilentNode:
        try:
            return await self._peers.call(member.host, LEADERSHIP, LeadershipRequest(), COLLECT_MS)
        except EblaError as error:
            return SilentNode(member.host, str(member.address), error.message)


def leadership_report(node: LeadershipNode, address: str, turns: LoopTurns) -> LeadershipReport:
    core, view, now_ms = node.core, node.view(), node.now_ms()
    agent, renewal, settings = core.agent, core.renewal, node.settings()
    promise = agent.state.promise if isinstance(agent.state, ActiveLease | ExpiringLease) else None
    workers = () if renewal is None else tuple(renewal.workers.values())
    return LeadershipReport(
        host=core.own,
        address=address,
        state=STATE_OF[type(agent.state)],
        lease=None if promise is None else promise.grant,
        left_ms=agent.left_ms(now_ms),
        on_disk_ms=agent.file_left_ms,
        leads=view.held is not None,
        term=0 if view.held is None else view.held.term,
        held=tuple(_held(worker, now_ms, settings) for worker in workers),
        voters=view.voters,
        lease_id="" if renewal is None else str(renewal.lease_id),
        activities=tuple(_activity(one, view) for one in core.registry.activities.values()),
        ended=tuple(_ended(one, now_ms) for one in core.registry.ended),
        slow_turns=turns.slow,
        longest_turn_ms=turns.longest_ms,
    )


def _held(worker: LeaseWorker, now_ms: int, settings: LeaseSettings) -> HeldLeaseReport:
    mean_ms = worker.round_trips.mean_ms()
    return HeldLeaseReport(
        host=worker.host,
        is_held=now_ms < worker.deadline_ms,
        rtt_us=None if mean_ms is None else math.ceil(mean_ms * 1000),
        timeout_ms=worker.call_timeout_ms(settings),
        renewed_ms_ago=None if worker.renewed_ms is None else now_ms - worker.renewed_ms,
        trouble=worker.trouble,
    )


def _activity(one: Activity, view: LeadershipView) -> ActivityReport:
    ending_ms = 0
    match one.phase:
        case WaitingActivity():
            state, waits_for = "waiting", "" if one.failure is None else one.failure.message
        case EndingActivity(reason=reason, cancelled_ms=cancelled_ms):
            state, waits_for, ending_ms = "ending", str(reason), view.now_ms - cancelled_ms
        case _:
            state, waits_for = "running", ""
    sets = [(part, hosts) for part in one.quorum for hosts in host_sets(part, view.voters)]
    deadlines = {} if view.held is None else view.held.deadlines
    named = {host for _, hosts in sets for host in hosts}
    return ActivityReport(
        name=one.name,
        domain=one.domain,
        quorum=describe_quorum(one.quorum) + (" (unsafe)" if one.unsafe else ""),
        state=state,
        age_ms=view.now_ms - one.submitted_ms,
        waits_for=waits_for,
        leases_held=sum(deadlines.get(host, 0) > view.now_ms for host in named),
        leases_needed=max((leases_needed(part, hosts) for part, hosts in sets), default=0),
        ending_ms=ending_ms,
    )


def _ended(one: EndedActivity, now_ms: int) -> EndedActivityReport:
    return EndedActivityReport(
        name=one.name,
        domain=one.domain,
        reason=one.reason,
        ran_ms=one.ended_ms - one.started_ms,
        ended_ms_ago=now_ms - one.ended_ms,
    )
