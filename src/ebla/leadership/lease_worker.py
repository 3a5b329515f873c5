"""The leader's side of one node's lease: when to call, until when the lease counts, and what each result means.

The revoke deadline D is `grace_ms` before the earliest moment at which the node could grant its lease elsewhere. It
counts from the start of the last successful call, because the node received the request later than that. Measurements
of the node are not used: a node with a fast clock would move D past its own expiry.

INV-LEASE-2: the leader counts a lease only while the node honours it.
"""

import enum
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.leadership.messages import LeaseAnswer, LeaseAvailable, LeaseGrant, LeaseId, LeaseReply
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings

CALL_SPACING_MS = 100
FIRST_TIMEOUT_MS = 1_000
TIMEOUT_MARGIN_MS = 500
DEVIATIONS = 4
SAMPLES_MAX = 128
SAMPLES_WINDOW_MS = 600_000
TIMEOUTS_BEFORE_DEADLINE = 7
"""Room for three tries whose timeout doubles: 1 + 2 + 4."""
SHORT_PAUSE_MS = 500
NOTICES_MAX = 8


class FailedCall(enum.StrEnum):
    """Results of a call that are no answers of the node's agent."""

    TIMEOUT = "timeout"
    CONNECTION_ERROR = "connection_error"
    DISK_ERROR = "disk_error"
    """The node could not write its lease file."""
    UNKNOWN_VERB = "unknown_verb"
    """The node has an older release."""


CallResult = LeaseReply | FailedCall


class NextCall(enum.Enum):
    AT_RENEWAL = enum.auto()
    AT_ONCE = enum.auto()
    AFTER_BACKOFF = enum.auto()
    AFTER_SHORT_PAUSE = enum.auto()
    """Not doubled: the node may still be catching up."""
    WHEN_AVAILABLE = enum.auto()


@dataclass(frozen=True, slots=True)
class ResultRow:
    is_lost: bool
    """Whether the leader stops counting the lease at once, and not only at D."""
    next_call: NextCall


RESULTS: Mapping[CallResult, ResultRow] = {
    LeaseReply.OK: ResultRow(False, NextCall.AT_RENEWAL),
    FailedCall.TIMEOUT: ResultRow(False, NextCall.AT_ONCE),
    FailedCall.CONNECTION_ERROR: ResultRow(False, NextCall.AFTER_BACKOFF),
    FailedCall.DISK_ERROR: ResultRow(False, NextCall.AFTER_BACKOFF),
    FailedCall.UNKNOWN_VERB: ResultRow(False, NextCall.AFTER_BACKOFF),
    LeaseReply.NOT_IN_CLUSTER: ResultRow(False, NextCall.AFTER_SHORT_PAUSE),
    LeaseReply.ALREADY_ACQUIRED: ResultRow(True, NextCall.WHEN_AVAILABLE),
    LeaseReply.LEASE_LOST: ResultRow(True, NextCall.AFTER_BACKOFF),
    LeaseReply.STALE_TERM: ResultRow(True, NextCall.AFTER_BACKOFF),
    LeaseReply.HISTORY_MISMATCH: ResultRow(True, NextCall.AFTER_BACKOFF),
    LeaseReply.BAD_OPTION: ResultRow(True, NextCall.AFTER_BACKOFF),
}


class RoundTrips:
    """The answered round trips of the last ten minutes, at most the newest 128."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, now_ms: int, rtt_ms: float) -> None:
        self._samples.append((now_ms, rtt_ms))

    def forget(self, now_ms: int) -> None:
        while self._samples and self._samples[0][0] <= now_ms - SAMPLES_WINDOW_MS:
            self._samples.popleft()

    def mean_ms(self) -> float | None:
        return sum(rtt for _, rtt in self._samples) / len(self._samples) if self._samples else None

    def timeout_ms(self) -> int:
        mean = self.mean_ms()
        if mean is None:
            return FIRST_TIMEOUT_MS
        deviation = sum(abs(rtt - mean) for _, rtt in self._samples) / len(self._samples)
        return math.ceil(mean + max(TIMEOUT_MARGIN_MS, DEVIATIONS * deviation))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCall:
    """A request in flight, with the values that were used for it."""

    serial: int
    grant_number: int
    started_ms: int
    timeout_ms: int
    period_ms: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class StartCall:
    host: HostId
    call: WorkerCall


@dataclass(frozen=True, slots=True)
class DropCall:
    """Stop waiting for the call in flight; its answer is ignored."""

    host: HostId


@dataclass(frozen=True, slots=True)
class LeaseAcquired:
    host: HostId


@dataclass(frozen=True, slots=True)
class LeaseLost:
    host: HostId
    why: str


WorkerEffect = StartCall | DropCall | LeaseAcquired | LeaseLost


class LeaseWorker:
    """Each event returns effects. After a `LeaseLost` the registry ends the activities that lost their quorum, and the
    worker stays silent until all of them have ended."""

    def __init__(self, host: HostId, grant_number: int, now_ms: int, *, waits_for_ends: bool) -> None:
        self.host = host
        self.grant_number = grant_number
        self.deadline_ms = 0
        """D: the lease counts before it. 0 while none is held."""
        self.renewed_ms: int | None = None
        """The start of the last successful call."""
        self.trouble = ""
        """For people: why the lease is not held, or the last refusal."""
        self.round_trips = RoundTrips()
        self._call: WorkerCall | None = None
        self._next_ms = now_ms
        self._last_start_ms = now_ms - CALL_SPACING_MS
        self._serial = 0
        self._timeouts = 0
        self._backoff_ms = 0
        self._refused_by: LeaseAvailable | None = None
        self._notices: deque[LeaseAvailable] = deque(maxlen=NOTICES_MAX)
        self._waits_for_ends = waits_for_ends

    def call_timeout_ms(self, settings: LeaseSettings) -> int:
        return min(settings.period_ms, self.round_trips.timeout_ms() << min(self._timeouts, 16))

    def grant_of(self, holder: HostId, lease_id: LeaseId) -> LeaseGrant:
        """The lease that it holds or requests next."""
        return LeaseGrant(holder, lease_id, self.grant_number)

    def wake_ms(self) -> int | None:
        """When `poll` has something to do by time."""
        candidates = []
        if self.deadline_ms:
            candidates.append(self.deadline_ms)
        if self._call is not None:
            candidates.append(self._call.started_ms + self._call.timeout_ms)
        elif not self._waits_for_ends:
            candidates.append(self._due_ms())
        return min(candidates, default=None)

    def activities_ended(self) -> None:
        """No activity that was cancelled still runs."""
        self._waits_for_ends = False

    def poll(self, now_ms: int, settings: LeaseSettings) -> list[WorkerEffect]:
        effects = self._lose_at_deadline(now_ms)
        call = self._call
        if call is not None and now_ms >= call.started_ms + call.timeout_ms:
            effects.append(DropCall(self.host))
            effects += self._concluded(call, FailedCall.TIMEOUT, None, now_ms, settings)
        if self._call is None and not self._waits_for_ends and now_ms >= self._due_ms():
            effects.append(StartCall(self.host, self._start_call(now_ms, settings)))
        return effects

    def answered(
        self, serial: int, answer: LeaseAnswer, *, rtt_ms: float, now_ms: int, settings: LeaseSettings
    ) -> list[WorkerEffect]:
        effects = self._lose_at_deadline(now_ms)
        call = self._call
        if call is None or call.serial != serial:
            return effects
        self.round_trips.add(now_ms, rtt_ms)
        return effects + self._concluded(call, answer.reply, answer, now_ms, settings)

    def failed(
        self, serial: int, result: FailedCall, detail: str, *, now_ms: int, settings: LeaseSettings
    ) -> list[WorkerEffect]:
        effects = self._lose_at_deadline(now_ms)
        call = self._call
        if call is None or call.serial != serial:
            return effects
        effects += self._concluded(call, result, None, now_ms, settings)
        self.trouble = detail
        return effects

    def available(self, notice: LeaseAvailable, now_ms: int) -> None:
        """The notice may overtake the refusal that it answers, so it is kept."""
        self._notices.append(notice)
        if notice == self._refused_by:
            self._refused_by = None
            self._next_ms = min(self._next_ms, now_ms)

    def host_came_up(self, now_ms: int) -> list[WorkerEffect]:
        """It came up, or restarted: the length of its silence no longer counts. A call that is in
        flight for long went to the host as it was; its timeout may be as long as the period."""
        self._backoff_ms = 0
        self._next_ms = min(self._next_ms, now_ms)
        if self._call is None or now_ms < self._call.started_ms + CALL_SPACING_MS:
            return []
        self._call = None
        return [DropCall(self.host)]

    # ---- internal

    def _due_ms(self) -> int:
        return max(self._next_ms, self._last_start_ms + CALL_SPACING_MS)

    def _start_call(self, now_ms: int, settings: LeaseSettings) -> WorkerCall:
        assert self._call is None, "one call is in flight"
        self.round_trips.forget(now_ms)
        self._serial += 1
        self._last_start_ms = now_ms
        self._refused_by = None
        self._call = WorkerCall(
            serial=self._serial,
            grant_number=self.grant_number,
            started_ms=now_ms,
            timeout_ms=self.call_timeout_ms(settings),
            period_ms=settings.period_ms,
            grace_ms=settings.grace_ms,
        )
        return self._call

    def _lose_at_deadline(self, now_ms: int) -> list[WorkerEffect]:
        """At D the lease is lost whatever call is in flight: its answer could only extend a lease that is not counted
        any more."""
        if not self.deadline_ms or now_ms < self.deadline_ms:
            return []
        effects: list[WorkerEffect] = [] if self._call is None else [DropCall(self.host)]
        self._call = None
        self._next_ms = now_ms
        return effects + self._lose(self.trouble or "no renewal arrived in time")

    def _lose(self, why: str) -> list[WorkerEffect]:
        self.trouble = why
        if not self.deadline_ms:
            return []
        self.deadline_ms = 0
        self.grant_number += 1
        self._waits_for_ends = True
        return [LeaseLost(self.host, why)]

    def _concluded(
        self, call: WorkerCall, result: CallResult, answer: LeaseAnswer | None, now_ms: int, settings: LeaseSettings
    ) -> list[WorkerEffect]:
        self._call = None
        row = RESULTS[result]
        effects: list[WorkerEffect] = []
        if result is LeaseReply.OK:
            effects = self._acquired(call, now_ms)
        elif row.is_lost:
            effects = self._lose(_words(result, answer))
            if not effects and result is LeaseReply.LEASE_LOST:
                self.grant_number += 1
        else:
            self.trouble = _words(result, answer)
        self._timeouts = self._timeouts + 1 if result is FailedCall.TIMEOUT else 0
        self._next_ms = self._next_call_ms(row.next_call, answer, now_ms, settings)
        return effects

    def _acquired(self, call: WorkerCall, now_ms: int) -> list[WorkerEffect]:
        """An answer that took longer than the lease counts acquires nothing; the next call renews it."""
        was_held = self.deadline_ms > 0
        deadline_ms = max(self.deadline_ms, call.started_ms + call.period_ms - call.grace_ms)
        self.trouble = ""
        self._backoff_ms = 0
        if now_ms >= deadline_ms:
            return []
        self.deadline_ms = deadline_ms
        self.renewed_ms = call.started_ms
        return [] if was_held else [LeaseAcquired(self.host)]

    def _next_call_ms(
        self, next_call: NextCall, answer: LeaseAnswer | None, now_ms: int, settings: LeaseSettings
    ) -> int:
        match next_call:
            case NextCall.AT_RENEWAL:
                return self._renewal_ms(settings) if self.deadline_ms else now_ms
            case NextCall.AT_ONCE:
                return now_ms
            case NextCall.AFTER_SHORT_PAUSE:
                return now_ms + SHORT_PAUSE_MS
            case NextCall.AFTER_BACKOFF:
                doubled_ms = max(settings.retry_backoff_ms, 2 * self._backoff_ms)
                self._backoff_ms = min(settings.period_ms, doubled_ms)
                return now_ms + self._backoff_ms
            case NextCall.WHEN_AVAILABLE:
                assert answer is not None, "a refusal is an answer"
                return self._retry_refused_ms(answer, now_ms)

    def _renewal_ms(self, settings: LeaseSettings) -> int:
        assert self.renewed_ms is not None, "a lease that is held was acquired"
        halfway_ms = self.renewed_ms + (self.deadline_ms - self.renewed_ms) // 2
        return min(halfway_ms, self.deadline_ms - TIMEOUTS_BEFORE_DEADLINE * self.call_timeout_ms(settings))

    def _retry_refused_ms(self, answer: LeaseAnswer, now_ms: int) -> int:
        current = answer.current
        self._refused_by = None if current is None else LeaseAvailable(current.lease_id, current.number)
        if self._refused_by in self._notices:
            return now_ms
        return now_ms + max(SHORT_PAUSE_MS, answer.left_ms)


def _words(result: CallResult, answer: LeaseAnswer | None) -> str:
    if answer is None:
        return str(result)
    if answer.current is not None:
        running = f", waits for {', '.join(answer.running)}" if answer.running else ""
        return f"{result}: {answer.state} under {answer.current} of {answer.current.holder}{running}"
    return f"{result}: {answer.detail or answer.state}"
