"""One write request in flight, and the error its client gets if it is not acknowledged at its level. Pure.

A `WriteCall` holds the mutations of one request as they were sent by one version of the topology. Replies of replicas
come in through `PendingMutation.on_reply`. Two callbacks go out: `on_decided` when the request can be answered or has
to be sent again, and `on_ended` when the last replica has replied.

INV-ROWS-8: a write that was reported as not applied is never visible to any read.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, WriteFailed, WriteTimeout
from ebla.model.identity import Replica, TopologyVersion
from ebla.request.router_types import Mutation
from ebla.request.write_acks import AckCounter, AckRule
from ebla.wire.errors import failure_frame, hidden_text

_FAILURES_KEPT_MAX = 8
_FAILURES_SHOWN_MAX = 3
_MAYBE = "it may be there or appear later; repeat it with the same timestamp"


class ReplicaRefusal(enum.Enum):
    """Why a replica did not acknowledge a write, as far as it decides what to do next."""

    STALE = enum.auto()
    """Routed by an outdated version: send the write again by a newer one."""
    SILENT = enum.auto()
    """No reply in time. No reason to give up before the request's own deadline."""
    REFUSED = enum.auto()
    """This replica will not acknowledge any more: it refused, nothing was sent, or the connection ended."""


_REFUSALS = {"stale": ReplicaRefusal.STALE, "deadline_exceeded": ReplicaRefusal.SILENT}


class ReplicaWriteFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that did not acknowledge a write. `error` is a tag of `wire/errors.py`."""

    target: Replica
    error: str
    message: str
    advice: str = ""

    @property
    def refusal(self) -> ReplicaRefusal:
        return _REFUSALS.get(self.error, ReplicaRefusal.REFUSED)


def replica_write_failure(target: Replica, error: EblaError) -> ReplicaWriteFailure:
    failure = failure_frame(0, error)
    return ReplicaWriteFailure(target=target, error=failure.error, message=failure.message, advice=failure.advice)


class PendingMutation(AckCounter):
    """One mutation of a call and the replies of its replicas."""

    __slots__ = ("_call", "_is_decided", "mutation", "size")

    def __init__(self, call: "WriteCall", mutation: Mutation, rule: AckRule, size: int) -> None:
        super().__init__(rule)
        self.mutation = mutation
        self.size = size
        self._call = call
        self._is_decided = False

    def on_reply(self, position: int, failure: ReplicaWriteFailure | None) -> None:
        """Called once for each replica; None: it has acknowledged."""
        call = self._call
        if failure is None:
            if self.acknowledge(position):
                call.mutation_met(was_decided=self._is_decided)
                self._is_decided = True
        else:
            call.note_failure(failure)
            refusal = failure.refusal
            if refusal is not ReplicaRefusal.SILENT:
                is_impossible = self.refuse(position)
                if not self.is_met:
                    is_stale = refusal is ReplicaRefusal.STALE
                    call.is_stale = call.is_stale or is_stale
                    if (is_impossible or is_stale) and not self._is_decided:
                        self._is_decided = True
                        call.mutation_failed()
        call.replica_ended()


class WriteCall:
    """`on_decided` fires when every mutation is acknowledged, impossible or stale, when no replica is left to reply,
    and on `wake`. It fires once; who sets it again is called again at the next of these events, or when all
    mutations are acknowledged after all."""

    __slots__ = (
        "_failures",
        "_on_ended",
        "_replies_left",
        "_undecided",
        "expires_at",
        "is_stale",
        "mutations",
        "on_decided",
        "size",
        "unmet",
        "version",
    )

    def __init__(self, version: TopologyVersion, expires_at: float, on_ended: "Callable[[WriteCall], None]") -> None:
        self.version = version
        self.expires_at = expires_at
        self.on_decided: Callable[[WriteCall], None] | None = None
        self.mutations: list[PendingMutation] = []
        self.size = 0
        self.unmet = 0
        """Mutations that are not acknowledged at the level."""
        self.is_stale = False
        """A replica refused a mutation as stale that was not acknowledged yet."""
        self._on_ended = on_ended
        self._replies_left = 0
        self._undecided = 0
        self._failures: list[ReplicaWriteFailure] | None = None

    @property
    def is_open(self) -> bool:
        """Whether some mutation may still be acknowledged or refused."""
        return self._undecided > 0

    @property
    def will_be_decided(self) -> bool:
        """Whether `on_decided` is still to come, its deadline apart."""
        return self.unmet > 0 and self._undecided > 0 and self._replies_left > 0

    @property
    def failures(self) -> tuple[ReplicaWriteFailure, ...]:
        return tuple(self._failures or ())

    def lacking(self) -> list[PendingMutation]:
        """The mutations that are not acknowledged."""
        return [one for one in self.mutations if not one.is_met]

    def add(self, mutation: Mutation, rule: AckRule, size: int) -> PendingMutation:
        """Each position of the rule must reply once, through `on_reply`."""
        pending = PendingMutation(self, mutation, rule, size)
        self.mutations.append(pending)
        self.size += size
        self.unmet += 1
        self._undecided += 1
        self._replies_left += len(rule.counts_for)
        return pending

    def begin_adding(self) -> None:
        """Mutations are added over several turns of the loop: the call does not end before `end_adding`."""
        self._replies_left += 1

    def end_adding(self) -> None:
        self.replica_ended()

    def wake(self) -> None:
        """Lets `on_decided` look at the call now: its deadline has passed, say."""
        callback, self.on_decided = self.on_decided, None
        if callback is not None:
            callback(self)

    # ---- called by the mutations

    def mutation_met(self, *, was_decided: bool) -> None:
        self.unmet -= 1
        if not was_decided:
            self._undecided -= 1
        if not self.unmet or (not was_decided and not self._undecided):
            self.wake()

    def mutation_failed(self) -> None:
        self._undecided -= 1
        if not self._undecided:
            self.wake()

    def note_failure(self, failure: ReplicaWriteFailure) -> None:
        """Bounded: a large batch has as many failures as replica writes, and one says as much as a thousand."""
        if self._failures is None:
            self._failures = [failure]
        elif len(self._failures) < _FAILURES_KEPT_MAX and failure not in self._failures:
            self._failures.append(failure)

    def replica_ended(self) -> None:
        self._replies_left -= 1
        if not self._replies_left:
            if self._undecided:
                self.wake()
            self._on_ended(self)


# ---- errors


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteProgress:
    """How far a request is that was not acknowledged."""

    level: ConsistencyLevel
    writes: int
    """All of the request."""
    lacking: Sequence[AckCounter]
    """Of the mutations that are not acknowledged, the latest try."""
    failures: Sequence[ReplicaWriteFailure]

    @property
    def least(self) -> AckCounter:
        """The one that lacks most: what is said of it holds for all."""
        return max(self.lacking, key=lambda acks: acks.required - acks.received)


def write_timeout(progress: WriteProgress, waited_ms: int) -> WriteTimeout:
    least = progress.least
    error = WriteTimeout(
        f"{_counted(progress)} within {waited_ms} ms{_causes(progress.failures)}",
        advice=_MAYBE,
        required=least.required,
        received=least.received,
    )
    _add_details(error, progress.failures)
    return error


def write_failed(progress: WriteProgress) -> WriteFailed:
    least = progress.least
    advice = next((failure.advice for failure in progress.failures if failure.advice), "")
    error = WriteFailed(
        f"{_counted(progress)}, and no more can{_causes(progress.failures)}",
        advice=f"{_MAYBE}; {advice}" if advice else _MAYBE,
        required=least.required,
        received=least.received,
        failed=least.refused,
    )
    _add_details(error, progress.failures)
    return error


def write_retry_failed(progress: WriteProgress, cause: EblaError) -> WriteFailed:
    """The first try was refused as stale and a second one could not be started. The outcome that `cause` carries is
    true of the second try only."""
    least = progress.least
    return WriteFailed(
        f"{_counted(progress)} before the topology changed, and it could not be sent again: {cause.message}",
        advice=_MAYBE,
        required=least.required,
        received=least.received,
        failed=least.refused,
    )


def _counted(progress: WriteProgress) -> str:
    least = progress.least
    counted = f"{least.received} of {least.required} replicas acknowledged"
    if progress.writes == 1:
        return f"{progress.level.name} write: {counted}"
    lacking = f"{len(progress.lacking)} of {progress.writes} writes were not acknowledged at {progress.level.name}"
    return f"{lacking}, of one only {counted}"


def _causes(failures: Sequence[ReplicaWriteFailure]) -> str:
    if not failures:
        return ""
    shown = "; ".join(
        f"{_name_of(failure.target)}: {failure.error}, {hidden_text(failure.error) or failure.message}"
        for failure in failures[:_FAILURES_SHOWN_MAX]
    )
    more = len(failures) - _FAILURES_SHOWN_MAX
    return f" ({shown}{f'; and {more} more' if more > 0 else ''})"


def _add_details(error: WriteTimeout | WriteFailed, failures: Sequence[ReplicaWriteFailure]) -> None:
    """For the log: what the message does not say."""
    for failure in failures[:_FAILURES_SHOWN_MAX]:
        if hidden_text(failure.error) is not None:
            error.add_note(f"{_name_of(failure.target)}: {failure.message}")


def _name_of(target: Replica) -> str:
    return f"shard {target.shard} of host {target.host}"
