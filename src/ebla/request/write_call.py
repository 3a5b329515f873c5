"""The writes of one request as they were sent by one version, until the last of their copies has ended.

Nothing here waits or sends. Copies tell their ends, and the attempt says when somebody should look (`decided`) and when
all is over (`ended`), which is when the version is released: exactly once, whoever still waits.
"""

from collections.abc import Callable
from typing import Protocol

from ebla.model.identity import TopologyVersion
from ebla.request.router_types import Mutation
from ebla.request.write_acks import AckCounter, AckRule, ReplicaRefusal, ReplicaWriteFailure

_FAILURES_KEPT_MAX = 8


class WriteCallOwner(Protocol):
    def decided(self, attempt: "WriteCall") -> None:
        """There is something to do: every write is acknowledged, impossible or stale, no copy is under way any more,
        or the time is over. Comes once, and again where all are acknowledged after that."""
        ...

    def ended(self, attempt: "WriteCall") -> None:
        """No copy is under way any more. Comes once."""
        ...


class PendingMutation:
    """One mutation and the answers to its copies."""

    __slots__ = ("_attempt", "_is_decided", "acks", "mutation", "size")

    def __init__(self, attempt: "WriteCall", mutation: Mutation, rule: AckRule, size: int) -> None:
        self.mutation = mutation
        self.size = size
        self.acks = AckCounter(rule)
        self._attempt = attempt
        self._is_decided = False

    def acknowledged(self, position: int) -> None:
        attempt = self._attempt
        if self.acks.acknowledge(position):
            attempt.unmet -= 1
            if self._is_decided and not attempt.unmet:
                attempt.notify_decided()
            self._decide()
        attempt.copy_ended()

    def failed(self, position: int, failure: ReplicaWriteFailure) -> None:
        attempt = self._attempt
        attempt.note(failure)
        refusal = failure.refusal
        if refusal is ReplicaRefusal.SILENT:
            attempt.copy_ended()
            return
        is_impossible = self.acks.refuse(position)
        if not self.acks.is_met:
            if refusal is ReplicaRefusal.STALE:
                attempt.is_stale = True
            if is_impossible or refusal is ReplicaRefusal.STALE:
                self._decide()
        attempt.copy_ended()

    def _decide(self) -> None:
        if not self._is_decided:
            self._is_decided = True
            self._attempt.one_decided()


class WriteCall:
    __slots__ = (
        "_copies",
        "_failures",
        "_owner",
        "_undecided",
        "expires_at",
        "is_stale",
        "look",
        "size",
        "unmet",
        "version",
        "writes",
    )

    def __init__(self, owner: WriteCallOwner, version: TopologyVersion, expires_at: float) -> None:
        self.version = version
        self.expires_at = expires_at
        self.look: Callable[[WriteCall], None] | None = None
        """For its owner, who calls it once when it is decided."""
        self.writes: list[PendingMutation] = []
        self.size = 0
        self.unmet = 0
        self.is_stale = False
        """A copy of a write that was not acknowledged yet was refused as stale."""
        self._owner = owner
        self._copies = 0
        self._undecided = 0
        self._failures: list[ReplicaWriteFailure] | None = None

    @property
    def is_open(self) -> bool:
        """Whether some write may still be acknowledged or refused."""
        return self._undecided > 0

    @property
    def failures(self) -> tuple[ReplicaWriteFailure, ...]:
        return tuple(self._failures or ())

    def lacking(self) -> list[PendingMutation]:
        """The writes that are not acknowledged."""
        return [write for write in self.writes if not write.acks.is_met]

    def add(self, mutation: Mutation, rule: AckRule, size: int) -> PendingMutation:
        """Its copies, one per position of the rule, must each end by `acknowledged` or `failed`."""
        write = PendingMutation(self, mutation, rule, size)
        self.writes.append(write)
        self.size += size
        self.unmet += 1
        self._undecided += 1
        self._copies += len(rule.counts_for)
        return write

    def note(self, failure: ReplicaWriteFailure) -> None:
        """Bounded: a large batch that fails has as many failures as copies, and one tells as much as a thousand."""
        if self._failures is None:
            self._failures = [failure]
        elif len(self._failures) < _FAILURES_KEPT_MAX and failure not in self._failures:
            self._failures.append(failure)

    def one_decided(self) -> None:
        self._undecided -= 1
        if not self._undecided:
            self.notify_decided()

    def notify_decided(self) -> None:
        self._owner.decided(self)

    def copy_ended(self) -> None:
        self._copies -= 1
        if not self._copies:
            if self._undecided:
                self.notify_decided()
            self._owner.ended(self)
