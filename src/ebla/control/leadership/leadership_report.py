"""What a node tells of its leases and activities, from its own state alone."""

import math

from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.leadership.loop_turns import LoopTurns
from ebla.leadership.activities import Activity, EndedActivity, EndingActivity, LeadershipView, WaitingActivity
from ebla.leadership.lease_agent import STATE_OF, ActiveLease, ExpiringLease
from ebla.leadership.lease_worker import LeaseWorker
from ebla.leadership.quorum import describe_quorum, host_sets, leases_needed
from ebla.model.lease_settings import LeaseSettings
from ebla.wire.leadership_messages import ActivityReport, EndedActivityReport, HeldLeaseReport, LeadershipReport


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
        trouble=f"an older release: {worker.trouble}" if worker.is_older_release else worker.trouble,
    )


def _activity(one: Activity, view: LeadershipView) -> ActivityReport:
    match one.phase:
        case WaitingActivity():
            state, waits_for = "waiting", "" if one.failure is None else one.failure.message
        case EndingActivity(reason=reason):
            state, waits_for = "ending", str(reason)
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
    )


def _ended(one: EndedActivity, now_ms: int) -> EndedActivityReport:
    return EndedActivityReport(
        name=one.name,
        domain=one.domain,
        reason=one.reason,
        ran_ms=one.ended_ms - one.started_ms,
        ended_ms_ago=now_ms - one.ended_ms,
    )
