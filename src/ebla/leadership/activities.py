"""The activity registry of a node: what may start, what must end, and what may have an effect now.

The registry decides from a `LeadershipView`, taken from the clock and the present state of Raft, renewal and agent at
each call. The shell starts and cancels the tasks.

INV-LEASE-4: once a root activity of a domain has started, no root activity of that domain under an older leader passes
its effect check. INV-LEASE-5: an order has effects only while the node's lease has the order's id and grant number.
"""

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebla.leadership.messages import ActivityToken, LeaseGrant, LeaseId, Order
from ebla.leadership.quorum import (
    FOLLOWER,
    FOREVER_MS,
    Deadlines,
    Quorum,
    VoterSets,
    describe_quorum,
    missing_hosts,
    quorum_until_ms,
)
from ebla.model.errors import EblaError, Fault, Outcome, Stale
from ebla.model.identity import HostId

ENDED_MAX = 50


class Precondition(enum.StrEnum):
    DOMAIN_CONFLICT = "domain_conflict"
    NOT_LEADER = "not_leader"
    NO_LEASE = "no_lease"
    NO_QUORUM = "no_quorum"


class EndReason(enum.StrEnum):
    QUORUM_LOST = "quorum_lost"
    LOCAL_LEASE_EXPIRED = "local_lease_expired"
    NOT_LEADER = "not_leader"
    LEADER_PROCESS_DIED = "leader_process_died"
    FINISHED = "finished"
    FAILED = "failed"
    NOT_STARTED = "not_started"


class ActivityRefused(EblaError):
    """A precondition did not hold in time; nothing was started."""

    fault = Fault.PEER
    is_transient = True

    def __init__(self, message: str, *, advice: str = "", precondition: Precondition = Precondition.NO_QUORUM) -> None:
        super().__init__(message, advice=advice)
        self.precondition = precondition


class ActivityEnded(EblaError):
    """A running activity lost its right to act; what it had started may have happened."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER

    def __init__(self, message: str, *, advice: str = "", reason: EndReason = EndReason.QUORUM_LOST) -> None:
        super().__init__(message, advice=advice)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLeases:
    """What this node's renewal holds while the node leads."""

    term: int
    lease_id: LeaseId
    deadlines: Deadlines
    troubles: Mapping[HostId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipView:
    now_ms: int
    own: HostId
    lease: LeaseGrant | None
    """What this node's agent promises now."""
    lease_until_ms: int
    held: HeldLeases | None
    """None unless this node leads now."""
    voters: VoterSets


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpec:
    name: str
    domain: str
    quorum: Quorum
    wait_ms: int
    unsafe: bool = False
    """Skips the wait and the quorum, not the other checks. Children inherit it."""
    reap_ms: int = 0
    """Of an activity that acts by a process of its own, and kills that if it does not stop in time: how much longer the
    end of that process may take."""


@dataclass(frozen=True, slots=True)
class WaitingActivity:
    until_ms: int


@dataclass(frozen=True, slots=True)
class RunningActivity:
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingActivity:
    """Cancelled, and not over yet: it counts as running."""

    since_ms: int
    reason: EndReason
    cancelled_ms: int
    problem: str = ""
    """What the quorum lacks, if that is the reason."""


ActivityPhase = WaitingActivity | RunningActivity | EndingActivity


@dataclass(slots=True)
class QuorumSwitch:
    quorum: Quorum
    until_ms: int


@dataclass(slots=True, kw_only=True, eq=False)
class Activity:
    number: int
    path: tuple[str, ...]
    domain: str
    quorum: Quorum
    unsafe: bool
    reap_ms: int
    parent: "Activity | None"
    order: Order | None
    submitted_ms: int
    phase: ActivityPhase
    lease: LeaseGrant | None = None
    """This node's lease under which it runs."""
    term: int = 0
    failure: ActivityRefused | None = None
    """What a waiting one waits for."""
    switch: QuorumSwitch | None = None

    @property
    def is_root(self) -> bool:
        return self.parent is None and self.order is None

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def has_started(self) -> bool:
        return not isinstance(self.phase, WaitingActivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedActivity:
    name: str
    domain: str
    reason: EndReason
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class StartActivity:
    number: int


@dataclass(frozen=True, slots=True)
class RefuseActivity:
    number: int
    error: ActivityRefused


@dataclass(frozen=True, slots=True)
class CancelActivity:
    number: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class QuorumSwitched:
    number: int
    error: ActivityRefused | None


ActivityEffect = StartActivity | RefuseActivity | CancelActivity | QuorumSwitched


class ActivityRegistry:
    def __init__(self) -> None:
        self.activities: dict[int, Activity] = {}
        self.ended: deque[EndedActivity] = deque(maxlen=ENDED_MAX)
        self._numbers = 0

    # ---- entering

    def submit(self, spec: ActivitySpec, view: LeadershipView, parent: Activity | None = None) -> Activity:
        """A root activity, or a child of one that runs on this node. `check` starts it."""
        path = (*parent.path, spec.name) if parent is not None else (spec.name,)
        assert parent is None or parent.domain == spec.domain, "a child shares the domain of its parent"
        return self._add(spec, path, view, parent=parent, unsafe=spec.unsafe or (parent is not None and parent.unsafe))

    def submit_order(self, order: Order, spec: ActivitySpec, view: LeadershipView) -> Activity:
        """Work of the leader on this node. Raises `Stale` at once if the node's lease is another one: an order that was
        sent before a lease ended must not run after the same leader acquired it again."""
        assert spec.quorum == FOLLOWER, "an order needs the lease of its node only"
        expected = f"{str(order.token.lease_id)[:8]}#{order.grant_number}"
        if not _fits(view.lease, order):
            raise Stale(
                f"{spec.name}: the order names lease {expected}, and this node's lease is {view.lease or 'none'}",
                advice="nothing was done; the leader acquires the lease again and repeats the order",
            )
        return self._add(spec, (*order.token.path, spec.name), view, order=order)

    def _add(
        self,
        spec: ActivitySpec,
        path: tuple[str, ...],
        view: LeadershipView,
        *,
        parent: Activity | None = None,
        order: Order | None = None,
        unsafe: bool = False,
    ) -> Activity:
        self._numbers += 1
        activity = Activity(
            number=self._numbers,
            path=path,
            domain=spec.domain,
            quorum=spec.quorum,
            unsafe=unsafe,
            reap_ms=spec.reap_ms,
            parent=parent,
            order=order,
            submitted_ms=view.now_ms,
            phase=WaitingActivity(view.now_ms + (0 if unsafe else spec.wait_ms)),
        )
        self.activities[activity.number] = activity
        return activity

    def switch_quorum(self, number: int, quorum: Quorum, view: LeadershipView, wait_ms: int) -> None:
        """From inside a running activity: `check` reports when the new quorum has replaced the old one."""
        activity = self.activities[number]
        assert isinstance(activity.phase, RunningActivity), "only a running activity switches its quorum"
        activity.switch = QuorumSwitch(quorum, view.now_ms + wait_ms)

    # ---- re-checking

    def check(self, view: LeadershipView) -> list[ActivityEffect]:
        """To be called at every event: ends what lost its right, then starts what may start."""
        effects: list[ActivityEffect] = []
        for activity in list(self.activities.values()):
            if isinstance(activity.phase, RunningActivity):
                reason = self._end_reason(activity, view)
                if reason is not None:
                    problem = _lost_problem(activity, reason, view)
                    effects += self._cancel_with_children(activity, reason, view.now_ms, problem)
        for activity in list(self.activities.values()):
            match activity.phase:
                case WaitingActivity(until_ms):
                    effects += self._try_start(activity, view, until_ms)
                case RunningActivity() if activity.switch is not None:
                    effects += self._try_switch(activity, activity.switch, view)
                case _:
                    pass
        return effects

    def renewal_died(self, now_ms: int) -> list[ActivityEffect]:
        """Lease renewal failed unexpectedly and starts again under a new lease id."""
        roots = [one for one in self.activities.values() if one.is_root and isinstance(one.phase, RunningActivity)]
        return [
            effect
            for root in roots
            for effect in self._cancel_with_children(root, EndReason.LEADER_PROCESS_DIED, now_ms)
        ]

    def over(self, number: int, now_ms: int, *, failed: bool) -> None:
        """The activity has stopped, for any reason. A refused one has already ended."""
        activity = self.activities.pop(number)
        match activity.phase:
            case EndingActivity(since_ms=started_ms, reason=reason):
                pass
            case RunningActivity(started_ms):
                reason = EndReason.FAILED if failed else EndReason.FINISHED
            case WaitingActivity():
                started_ms, reason = activity.submitted_ms, EndReason.NOT_STARTED
        self.ended.append(
            EndedActivity(
                name=activity.name, domain=activity.domain, reason=reason, started_ms=started_ms, ended_ms=now_ms
            )
        )

    # ---- effects

    def check_effect(self, number: int, view: LeadershipView) -> None:
        """Immediately before each effect, in the same turn of the loop. Raises `ActivityEnded`."""
        activity = self.activities.get(number)
        if activity is None:  # it is over, and something that it had submitted runs late
            raise ActivityEnded("the activity is over", reason=EndReason.FINISHED)
        if isinstance(activity.phase, EndingActivity):
            raise ended_error(activity, activity.phase.reason, activity.phase.problem)
        reason = self._end_reason(activity, view)
        if reason is not None:
            raise ended_error(activity, reason, _lost_problem(activity, reason, view))

    def permit_ms(self, number: int, view: LeadershipView) -> int:
        """For how long the activity may act without further renewals; 0 if it may not act now."""
        activity = self.activities.get(number)
        if activity is None or not isinstance(activity.phase, RunningActivity):
            return 0
        if self._end_reason(activity, view) is not None:
            return 0
        until_ms = min(view.lease_until_ms, FOREVER_MS)
        for one in _line(activity):
            if one.is_root and view.held is not None:
                until_ms = min(until_ms, view.held.deadlines.get(view.own, 0))
            if not one.unsafe:
                until_ms = min(until_ms, _quorum_until_ms(one.quorum, view))
        return max(0, until_ms - view.now_ms)

    # ---- what others ask

    def token_of(self, number: int) -> ActivityToken:
        activity = self.activities[number]
        assert activity.lease is not None, "a running activity has a lease"
        return ActivityToken(lease_id=activity.lease.lease_id, domain=activity.domain, path=activity.path)

    def runs_under(self, lease_id: LeaseId) -> tuple[str, ...]:
        leased = (one for one in self.activities.values() if one.lease is not None)
        return tuple(one.name for one in leased if one.lease is not None and one.lease.lease_id == lease_id)

    @property
    def has_ending(self) -> bool:
        return any(isinstance(one.phase, EndingActivity) for one in self.activities.values())

    def overdue(self, now_ms: int, activity_stop_ms: int) -> tuple[Activity, ...]:
        """Cancelled, and not over in time: their process must end."""
        return tuple(
            one
            for one in self.activities.values()
            if isinstance(one.phase, EndingActivity)
            and now_ms >= one.phase.cancelled_ms + activity_stop_ms + one.reap_ms
        )

    def wake_ms(self, activity_stop_ms: int) -> int | None:
        """When `check` or `overdue` has something to do by time."""
        wakes = []
        for one in self.activities.values():
            match one.phase:
                case WaitingActivity(until_ms):
                    wakes.append(until_ms)
                case EndingActivity(cancelled_ms=cancelled_ms):
                    wakes.append(cancelled_ms + activity_stop_ms + one.reap_ms)
                case RunningActivity():
                    wakes += [] if one.switch is None else [one.switch.until_ms]
        return min(wakes, default=None)

    # ---- internal

    def _end_reason(self, activity: Activity, view: LeadershipView) -> EndReason | None:
        """Of the activity itself, or of the one it is a child of."""
        for one in _line(activity):
            if one.number not in self.activities:
                return EndReason.FINISHED
            for reason, is_over in ENDS:
                if is_over(one, view):
                    return reason
        return None

    def _cancel_with_children(
        self, activity: Activity, reason: EndReason, now_ms: int, problem: str = ""
    ) -> list[ActivityEffect]:
        effects: list[ActivityEffect] = []
        for one in list(self.activities.values()):
            if activity in _line(one) and isinstance(one.phase, RunningActivity):
                one.phase = EndingActivity(
                    since_ms=one.phase.since_ms, reason=reason, cancelled_ms=now_ms, problem=problem
                )
                one.switch = None
                effects.append(CancelActivity(one.number, reason))
        return effects

    def _try_start(self, activity: Activity, view: LeadershipView, until_ms: int) -> list[ActivityEffect]:
        activity.failure = self._first_failure(activity, view)
        if activity.failure is None:
            assert view.lease is not None, "the preconditions include the lease"
            activity.lease = view.lease
            activity.term = 0 if view.held is None else view.held.term
            activity.phase = RunningActivity(view.now_ms)
            return [StartActivity(activity.number)]
        if view.now_ms >= until_ms:
            self.over(activity.number, view.now_ms, failed=True)
            return [RefuseActivity(activity.number, activity.failure)]
        return []

    def _first_failure(self, activity: Activity, view: LeadershipView) -> ActivityRefused | None:
        for precondition, problem_of in PRECONDITIONS:
            problem = problem_of(self, activity, view)
            if problem:
                return refused_error(activity, precondition, problem)
        return None

    def _try_switch(self, activity: Activity, switch: QuorumSwitch, view: LeadershipView) -> list[ActivityEffect]:
        if activity.unsafe or view.now_ms < _quorum_until_ms(switch.quorum, view):
            activity.quorum, activity.switch = switch.quorum, None
            return [QuorumSwitched(activity.number, None)]
        if view.now_ms < switch.until_ms:
            return []
        activity.switch = None
        error = refused_error(activity, Precondition.NO_QUORUM, _quorum_problem(switch.quorum, view))
        return [QuorumSwitched(activity.number, error)]


def _line(activity: Activity) -> list[Activity]:
    """The activity and those it is a child of, the root first."""
    parents = [] if activity.parent is None else _line(activity.parent)
    return [*parents, activity]


def _fits(lease: LeaseGrant | None, order: Order) -> bool:
    return lease is not None and (lease.lease_id, lease.number) == (order.token.lease_id, order.grant_number)


def _quorum_until_ms(quorum: Quorum, view: LeadershipView) -> int:
    return quorum_until_ms(quorum, view.voters, {} if view.held is None else view.held.deadlines)


def _quorum_problem(quorum: Quorum, view: LeadershipView) -> str:
    deadlines: Deadlines = {} if view.held is None else view.held.deadlines
    troubles: Mapping[HostId, str] = {} if view.held is None else view.held.troubles
    missing = missing_hosts(quorum, view.voters, deadlines, view.now_ms)
    named = ", ".join(f"{host} ({troubles.get(host) or 'no lease yet'})" for host in missing)
    held = sum(until_ms > view.now_ms for until_ms in deadlines.values())
    return f"requires {describe_quorum(quorum)}, holds {held} leases, lacks {named or 'voters'}"


def _lost_problem(activity: Activity, reason: EndReason, view: LeadershipView) -> str:
    """What the first quorum that does not hold lacks."""
    if reason is not EndReason.QUORUM_LOST:
        return ""
    lost = next(one for one in _line(activity) if _has_lost_quorum(one, view))
    return _quorum_problem(lost.quorum, view)


# ---- the tables

ADVICE: Mapping[Precondition, str] = {
    Precondition.DOMAIN_CONFLICT: "wait for the activity that runs, see `ebla activities`",
    Precondition.NOT_LEADER: "ask the leader, see `ebla leases`",
    Precondition.NO_LEASE: "wait until this node has granted its lease, see `ebla leases`",
    Precondition.NO_QUORUM: "bring the missing nodes back, or wait until their leases run out, see `ebla leases`",
}


def _domain_conflict(registry: ActivityRegistry, activity: Activity, _view: LeadershipView) -> str:
    if not activity.is_root:
        return ""
    others = (one for one in registry.activities.values() if one.is_root and one.domain == activity.domain)
    return ", ".join(f"{one.name} runs in domain {one.domain}" for one in others if one.has_started)


def _not_leader(_registry: ActivityRegistry, activity: Activity, view: LeadershipView) -> str:
    return "this node does not lead" if activity.is_root and view.held is None else ""


def _no_lease(registry: ActivityRegistry, activity: Activity, view: LeadershipView) -> str:
    actual = f"this node's lease is {view.lease or 'none'}"
    if activity.is_root:
        held = view.held
        assert held is not None, "leadership is checked before"
        is_own = view.lease is not None and (view.lease.holder, view.lease.lease_id) == (view.own, held.lease_id)
        is_held = held.deadlines.get(view.own, 0) > view.now_ms
        return "" if is_own and is_held else f"requires this node's own lease {str(held.lease_id)[:8]}, {actual}"
    if activity.order is not None:
        return "" if _fits(view.lease, activity.order) else f"requires the lease that the order names, {actual}"
    assert activity.parent is not None, "an activity is a root, a child or an order"
    if activity.parent.number not in registry.activities or not isinstance(activity.parent.phase, RunningActivity):
        return f"{activity.parent.name} does not run any more"
    expected = activity.parent.lease
    return "" if view.lease == expected else f"requires lease {expected}, {actual}"


def _no_quorum(_registry: ActivityRegistry, activity: Activity, view: LeadershipView) -> str:
    if activity.unsafe or view.now_ms < _quorum_until_ms(activity.quorum, view):
        return ""
    return _quorum_problem(activity.quorum, view)


PRECONDITIONS: tuple[tuple[Precondition, Callable[[ActivityRegistry, Activity, LeadershipView], str]], ...] = (
    (Precondition.DOMAIN_CONFLICT, _domain_conflict),
    (Precondition.NOT_LEADER, _not_leader),
    (Precondition.NO_LEASE, _no_lease),
    (Precondition.NO_QUORUM, _no_quorum),
)
"""In this order; the first that does not hold is reported, with what is required and what is there."""


def _has_stepped_down(activity: Activity, view: LeadershipView) -> bool:
    return activity.is_root and (view.held is None or view.held.term != activity.term)


def _has_lost_local_lease(activity: Activity, view: LeadershipView) -> bool:
    if activity.lease is None or activity.lease != view.lease:
        return True
    held = view.held
    return activity.is_root and held is not None and held.deadlines.get(view.own, 0) <= view.now_ms


def _has_lost_quorum(activity: Activity, view: LeadershipView) -> bool:
    return not activity.unsafe and view.now_ms >= _quorum_until_ms(activity.quorum, view)


ENDS: tuple[tuple[EndReason, Callable[[Activity, LeadershipView], bool]], ...] = (
    (EndReason.NOT_LEADER, _has_stepped_down),
    (EndReason.LOCAL_LEASE_EXPIRED, _has_lost_local_lease),
    (EndReason.QUORUM_LOST, _has_lost_quorum),
)
"""What ends a running activity and its children. `leader_process_died` has its own event."""


def refused_error(activity: Activity, precondition: Precondition, problem: str) -> ActivityRefused:
    text = f"{activity.name}: {precondition}: {problem}"
    return ActivityRefused(text, advice=ADVICE[precondition], precondition=precondition)


def ended_error(activity: Activity, reason: EndReason, problem: str = "") -> ActivityEnded:
    return ActivityEnded(
        f"{activity.name} was ended: {reason}{f': {problem}' if problem else ''}",
        advice="what it had started may have happened; the next leader continues from what is there",
        reason=reason,
    )
