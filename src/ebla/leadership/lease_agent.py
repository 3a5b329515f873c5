"""The lease agent of a node: which leader the node promises to serve, and for how long.

`RULES` decides each request; the first row that matches counts. The shell calls `decide`, writes the file if the
decision has one to write, and then calls `written`. It does one such step at a time, together with the saves: otherwise
a save of the time left could overtake the renewal that decided that nothing needs to be written.

INV-LEASE-1: a node has at most one promise at a time, across restarts.
INV-LEASE-3: the agent leaves `EXPIRING` only when nothing runs under the lease on this node.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

import msgspec

from ebla.leadership.messages import (
    LeaseAnswer,
    LeaseFileContent,
    LeaseGrant,
    LeaseId,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    SavedBlock,
    SavedLease,
)
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import PERIOD_MS_MAX, PERIOD_MS_MIN

REMEMBERED_IDS_MAX = 64
SAVE_EVERY_MS = 1_000
NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What this node knows of group 0 when a request arrives."""

    history: HistoryId | None
    members: Container[HostId]
    """Those present in the applied state; empty if there is none yet."""
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCall:
    request: LeaseRequest
    sender: HostId | None
    """The host in the certificate of the connection."""
    facts: NodeFacts
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The lease that the node has granted, as far as it outlives a restart."""

    grant: LeaseGrant
    history: HistoryId
    term: int
    period_ms: int


@dataclass(frozen=True, slots=True)
class NoLease:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveLease:
    promise: Promise
    expires_ms: int
    renewed_ms: int | None
    """None after a restart: unknown, and the time left is saved from the start."""


@dataclass(frozen=True, slots=True)
class ExpiringLease:
    promise: Promise


@dataclass(frozen=True, slots=True)
class BlockedLease:
    until_ms: int


AgentState = NoLease | ActiveLease | ExpiringLease | BlockedLease

STATE_OF: dict[type[AgentState], LeaseState] = {
    NoLease: LeaseState.NONE,
    ActiveLease: LeaseState.ACTIVE,
    ExpiringLease: LeaseState.EXPIRING,
    BlockedLease: LeaseState.BLOCKED,
}


class RememberedLease(msgspec.Struct):
    highest_granted: int = 0
    is_abolished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDecision:
    """`answer` is sent after `save` was written and `written` was called; at once if there is nothing to write."""

    answer: LeaseAnswer
    save: SavedLease | None = None
    expires_ms: int = 0
    """The expiry that the write makes possible."""
    is_grant: bool = False


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that is over on this node: the hosts that were refused meanwhile get a notice."""

    promise: Promise
    refused: tuple[HostId, ...]


DAMAGED_FILE = SavedBlock(PERIOD_MS_MAX)
"""In place of a damaged file: the lease may be promised to anyone, for the longest period there is."""

RunsUnder = Callable[[LeaseId], Sequence[str]]
"""The activities that run under a lease id on this node, for people."""


class LeaseAgent:
    def __init__(self, runs_under: RunsUnder) -> None:
        self.state: AgentState = NoLease()
        self.dropped: LeaseId | None = None
        """A lease that this node held on itself when it stopped: the other members get a notice to end it too."""
        self._runs_under = runs_under
        self._remembered: dict[LeaseId, RememberedLease] = {}
        self.newest_term = 0
        self._refused: dict[HostId, None] = {}
        self.file_left_ms = 0
        """What the file certainly holds for the present lease; a write in progress counts with the lesser value."""
        self._saved_ms = 0
        self._last: Promise | None = None
        self._ended: list[EndedLease] = []

    # ---- start

    def start(self, saved: LeaseFileContent | None, own: HostId, now_ms: int) -> None:
        """From the file of the last run. A lease that this very host held died with its renewal."""
        if saved is None:
            return
        if isinstance(saved, SavedBlock):
            self.state = BlockedLease(now_ms + saved.left_ms)
            self._saved_ms = now_ms
            return
        grant = saved.grant
        self.newest_term = saved.term
        self._remember(grant.lease_id).highest_granted = grant.number
        if grant.holder == own:
            self.dropped = grant.lease_id
            self._remember(grant.lease_id).is_abolished = True
        elif saved.left_ms > 0:
            promise = Promise(grant=grant, history=saved.history, term=saved.term, period_ms=saved.period_ms)
            self.state = ActiveLease(promise=promise, expires_ms=now_ms + saved.left_ms, renewed_ms=None)
            self.file_left_ms = saved.left_ms
            self._saved_ms = now_ms

    # ---- requests

    def decide(self, call: LeaseCall) -> LeaseDecision:
        self.tick(call.now_ms)
        rule = rule_for(self, call)
        if rule.number > LAST_UNCHANGING_RULE:
            self.newest_term = max(self.newest_term, call.request.term)
        decision = rule.action(self, call)
        if decision.answer.reply is LeaseReply.ALREADY_ACQUIRED:
            self._refused[call.request.grant.holder] = None
        return decision

    def writing(self, save: LeaseFileContent, now_ms: int) -> None:
        """Before each write. If it fails, the file may have either of the two contents."""
        self.file_left_ms = min(self.file_left_ms, save.left_ms)
        self._saved_ms = now_ms

    def written(self, save: LeaseFileContent) -> None:
        if isinstance(save, SavedLease) and self._is_present(save.grant):
            self.file_left_ms = save.left_ms

    def complete(self, decision: LeaseDecision, now_ms: int) -> LeaseAnswer:
        """After the write of a decision that has one. The lease may have ended meanwhile."""
        assert decision.save is not None, "a decision without a write is complete"
        self.tick(now_ms)
        grant = decision.save.grant
        if decision.is_grant:
            self._remember(grant.lease_id).highest_granted = grant.number
        state = self.state
        if not isinstance(state, ActiveLease) or state.promise.grant != grant:
            return LeaseAnswer(reply=LeaseReply.LEASE_LOST, detail=f"{grant} ended while it was written")
        if not decision.is_grant:
            self._renewed(state, decision.expires_ms, now_ms)
        return decision.answer

    def write_failed(self, decision: LeaseDecision) -> None:
        """A lease whose grant could not be written is not granted. A renewal leaves the old expiry."""
        assert decision.save is not None, "a decision without a write cannot fail"
        state = self.state
        if decision.is_grant and isinstance(state, ActiveLease) and state.promise.grant == decision.save.grant:
            self._expire()

    # ---- the end of a lease

    def abolish(self, lease_id: LeaseId, now_ms: int) -> None:
        """The host is not compared. The id is remembered in any case: a late request under it would block the next
        leader."""
        self._remember(lease_id).is_abolished = True
        if isinstance(self.state, ActiveLease) and self.state.promise.grant.lease_id == lease_id:
            self._expire()
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Also to be called when an activity has ended."""
        state = self.state
        if isinstance(state, BlockedLease) and now_ms >= state.until_ms:
            self.state = NoLease()
        if isinstance(state, ActiveLease) and now_ms >= state.expires_ms:
            self._expire()
        if isinstance(self.state, ExpiringLease) and not self._runs_under(self.state.promise.grant.lease_id):
            self._end(self.state)

    def take_ended(self) -> tuple[EndedLease, ...]:
        """The leases that ended since the last call. The file gets time left 0, and refused applicants get a notice."""
        ended, self._ended = tuple(self._ended), []
        return ended

    # ---- the file

    def save_due_ms(self) -> int | None:
        """When the time left should be saved next; None if it should not."""
        state = self.state
        if isinstance(state, BlockedLease):
            return self._saved_ms + SAVE_EVERY_MS
        if not isinstance(state, ActiveLease):
            return None
        quiet_ms = 0 if state.renewed_ms is None else state.renewed_ms + state.promise.period_ms // 2
        return max(quiet_ms, self._saved_ms + SAVE_EVERY_MS)

    def content(self, now_ms: int) -> LeaseFileContent | None:
        """What the file should hold now; after the end of a lease that lease with time left 0. None if there was
        none."""
        match self.state:
            case ActiveLease(promise=promise) | ExpiringLease(promise):
                return saved_lease(promise, self.left_ms(now_ms))
            case BlockedLease():
                return SavedBlock(self.left_ms(now_ms))
            case NoLease():
                return None if self._last is None else saved_lease(self._last, 0)

    # ---- what others see

    def current(self, now_ms: int) -> LeaseGrant | None:
        """The lease that orders must name now. Read from the clock: the timer may be late."""
        state = self.state
        if isinstance(state, ActiveLease) and now_ms < state.expires_ms:
            return state.promise.grant
        return None

    def left_ms(self, now_ms: int) -> int:
        match self.state:
            case ActiveLease(expires_ms=expires_ms):
                return max(0, expires_ms - now_ms)
            case BlockedLease(until_ms):
                return max(0, until_ms - now_ms)
            case _:
                return 0

    def expires_ms(self) -> int | None:
        """When `tick` has something to do by time."""
        match self.state:
            case ActiveLease(expires_ms=until_ms) | BlockedLease(until_ms):
                return until_ms
            case _:
                return None

    # ---- used by the rules

    def is_spent(self, grant: LeaseGrant) -> bool:
        """Whether the lease that the request names is over here for good."""
        known = self._remembered.get(grant.lease_id)
        if known is None:
            return False
        is_active = isinstance(self.state, ActiveLease) and self.state.promise.grant == grant
        is_over = grant.number == known.highest_granted and not is_active
        return known.is_abolished or grant.number < known.highest_granted or is_over

    def grant(self, call: LeaseCall) -> LeaseDecision:
        request = call.request
        promise = Promise(grant=request.grant, history=request.history, term=request.term, period_ms=request.period_ms)
        expires_ms = call.now_ms + request.period_ms
        self.state = ActiveLease(promise=promise, expires_ms=expires_ms, renewed_ms=call.now_ms)
        self.file_left_ms = 0
        self._remember(request.grant.lease_id)
        return LeaseDecision(
            answer=LeaseAnswer(reply=LeaseReply.OK),
            save=saved_lease(promise, request.period_ms),
            expires_ms=expires_ms,
            is_grant=True,
        )

    def renew(self, call: LeaseCall) -> LeaseDecision:
        """The expiry never moves back. While the file holds at least the new time left, nothing is written."""
        state, request = self.state, call.request
        assert isinstance(state, ActiveLease), "only an active lease is renewed"
        expires_ms = max(state.expires_ms, call.now_ms + request.period_ms)
        left_ms = expires_ms - call.now_ms
        promise = replace(state.promise, term=request.term, period_ms=request.period_ms)
        self.state = replace(state, promise=promise)
        answer = LeaseAnswer(reply=LeaseReply.OK)
        self._remember(request.grant.lease_id)
        if self.file_left_ms >= left_ms:
            self._renewed(self.state, expires_ms, call.now_ms)
            return LeaseDecision(answer=answer)
        return LeaseDecision(answer=answer, save=saved_lease(promise, left_ms), expires_ms=expires_ms)

    def supersede(self, call: LeaseCall) -> LeaseDecision:
        """The holder acquires again after it lost this lease: what runs under it must end first."""
        self._expire()
        self.tick(call.now_ms)
        return self.grant(call) if isinstance(self.state, NoLease) else self.refuse(call)

    def refuse(self, call: LeaseCall) -> LeaseDecision:
        promise = self.state.promise if isinstance(self.state, ActiveLease | ExpiringLease) else None
        current = None if promise is None else promise.grant
        running = () if current is None else tuple(self._runs_under(current.lease_id))
        answer = LeaseAnswer(
            reply=LeaseReply.ALREADY_ACQUIRED,
            current=current,
            state=STATE_OF[type(self.state)],
            left_ms=self.left_ms(call.now_ms),
            running=running if isinstance(self.state, ExpiringLease) else (),
        )
        return LeaseDecision(answer=answer)

    # ---- internal

    def _is_present(self, grant: LeaseGrant) -> bool:
        return isinstance(self.state, ActiveLease | ExpiringLease) and self.state.promise.grant == grant

    def _renewed(self, state: ActiveLease, expires_ms: int, now_ms: int) -> None:
        assert expires_ms >= state.expires_ms, "a renewal never shortens a lease"
        self.state = replace(state, expires_ms=expires_ms, renewed_ms=now_ms)

    def _expire(self) -> None:
        assert isinstance(self.state, ActiveLease), "only an active lease expires"
        self.state = ExpiringLease(self.state.promise)

    def _end(self, state: ExpiringLease) -> None:
        self._ended.append(EndedLease(state.promise, tuple(self._refused)))
        self._refused = {}
        self._last = state.promise
        self.state = NoLease()

    def _remember(self, lease_id: LeaseId) -> RememberedLease:
        """Makes it the most recent one. The id of the present lease is never forgotten."""
        known = self._remembered.pop(lease_id, None) or RememberedLease()
        self._remembered[lease_id] = known
        if len(self._remembered) > REMEMBERED_IDS_MAX:
            state = self.state
            present = state.promise.grant.lease_id if isinstance(state, ActiveLease | ExpiringLease) else None
            oldest = next(each for each in self._remembered if each != present)
            del self._remembered[oldest]
        return known


def saved_lease(promise: Promise, left_ms: int) -> SavedLease:
    return SavedLease(
        grant=promise.grant,
        history=promise.history,
        term=promise.term,
        period_ms=promise.period_ms,
        left_ms=left_ms,
    )


# ---- the decision table


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRule:
    number: int
    matches: Callable[[LeaseAgent, LeaseCall], bool]
    action: Callable[[LeaseAgent, LeaseCall], LeaseDecision]


LAST_UNCHANGING_RULE = 5


def _malformed(request: LeaseRequest) -> str:
    """The field and its value; empty if all are well formed."""
    if not 1 <= request.grant.number <= NUMBER_MAX:
        return f"grant number is {request.grant.number}, and it counts from 1"
    if not PERIOD_MS_MIN <= request.period_ms <= PERIOD_MS_MAX:
        return f"period_ms is {request.period_ms}, and it must be from {PERIOD_MS_MIN} to {PERIOD_MS_MAX}"
    if not 0 <= request.term <= NUMBER_MAX:
        return f"term is {request.term}"
    return ""


def _is_foreign_history(_agent: LeaseAgent, call: LeaseCall) -> bool:
    return call.facts.history is not None and call.facts.history != call.request.history


def _is_stranger(_agent: LeaseAgent, call: LeaseCall) -> bool:
    holder = call.request.grant.holder
    return holder not in call.facts.members or holder != call.sender


def _newest_term(agent: LeaseAgent, call: LeaseCall) -> int:
    return max(agent.newest_term, call.facts.term)


def _active_grant(agent: LeaseAgent) -> LeaseGrant | None:
    return agent.state.promise.grant if isinstance(agent.state, ActiveLease) else None


def _is_same_grant(agent: LeaseAgent, call: LeaseCall) -> bool:
    return _active_grant(agent) == call.request.grant


def _is_same_id(agent: LeaseAgent, call: LeaseCall) -> bool:
    active, requested = _active_grant(agent), call.request.grant
    return active is not None and (active.holder, active.lease_id) == (requested.holder, requested.lease_id)


def _refusal(
    reply: LeaseReply, detail: Callable[[LeaseAgent, LeaseCall], str]
) -> Callable[[LeaseAgent, LeaseCall], LeaseDecision]:
    def action(agent: LeaseAgent, call: LeaseCall) -> LeaseDecision:
        term = _newest_term(agent, call) if reply is LeaseReply.STALE_TERM else 0
        return LeaseDecision(answer=LeaseAnswer(reply=reply, detail=detail(agent, call), term=term))

    return action


RULES: tuple[LeaseRule, ...] = (
    LeaseRule(
        number=1,
        matches=lambda _, call: bool(_malformed(call.request)),
        action=_refusal(LeaseReply.BAD_OPTION, lambda _, call: _malformed(call.request)),
    ),
    LeaseRule(
        number=2,
        matches=_is_foreign_history,
        action=_refusal(
            LeaseReply.HISTORY_MISMATCH,
            lambda _, call: f"the node has history {call.facts.history}, the request {call.request.history}",
        ),
    ),
    LeaseRule(
        number=3,
        matches=_is_stranger,
        action=_refusal(
            LeaseReply.NOT_IN_CLUSTER,
            lambda _, call: f"{call.request.grant.holder} is no member here, or its certificate is {call.sender}'s",
        ),
    ),
    LeaseRule(
        number=4,
        matches=lambda agent, call: call.request.term < _newest_term(agent, call),
        action=_refusal(
            LeaseReply.STALE_TERM,
            lambda agent, call: f"term {call.request.term} is older than {_newest_term(agent, call)}",
        ),
    ),
    LeaseRule(
        number=5,
        matches=lambda agent, call: agent.is_spent(call.request.grant),
        action=_refusal(LeaseReply.LEASE_LOST, lambda _, call: f"{call.request.grant} has ended here"),
    ),
    LeaseRule(number=6, matches=lambda agent, _: isinstance(agent.state, NoLease), action=LeaseAgent.grant),
    LeaseRule(number=7, matches=_is_same_grant, action=LeaseAgent.renew),
    LeaseRule(number=8, matches=_is_same_id, action=LeaseAgent.supersede),
    LeaseRule(number=9, matches=lambda agent, _: isinstance(agent.state, ActiveLease), action=LeaseAgent.refuse),
    LeaseRule(number=10, matches=lambda agent, _: isinstance(agent.state, ExpiringLease), action=LeaseAgent.refuse),
    LeaseRule(number=11, matches=lambda agent, _: isinstance(agent.state, BlockedLease), action=LeaseAgent.refuse),
)
"""The first row that matches decides. Rows 1 to 5 change nothing."""


def rule_for(agent: LeaseAgent, call: LeaseCall) -> LeaseRule:
    return next(rule for rule in RULES if rule.matches(agent, call))
