"""What the leader and the nodes tell each other about leases, and what a node keeps of its lease on disk."""

import enum
import uuid
from typing import Generic, NewType, TypeVar

import msgspec

from ebla.model.identity import HistoryId, HostId

LeaseId = NewType("LeaseId", uuid.UUID)
"""Drawn at random each time the leader's renewal starts."""


class LeaseGrant(msgspec.Struct, frozen=True, array_like=True):
    """One lease of one node. `number` counts the leader's acquisitions of that node's lease under one lease id."""

    holder: HostId
    lease_id: LeaseId
    number: int

    def __str__(self) -> str:
        return f"{str(self.lease_id)[:8]}#{self.number}"


class ActivityToken(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The right under which a root activity and its children act, on any node."""

    lease_id: LeaseId
    domain: str
    path: tuple[str, ...]


class Order(msgspec.Struct, frozen=True, array_like=True):
    """Work that the leader asks of a node: the token, and the lease of that node under which it was sent."""

    token: ActivityToken
    grant_number: int


Q = TypeVar("Q", bound=msgspec.Struct)


class OrderRequest(msgspec.Struct, Generic[Q], frozen=True, array_like=True):
    """What an activity verb carries."""

    order: Order
    request: Q


class LeaseState(enum.StrEnum):
    NONE = "none"
    ACTIVE = "active"
    EXPIRING = "expiring"
    """Over, but activities under it still run on the node."""
    BLOCKED = "blocked"
    """The node's lease file is damaged: it promised its lease to a leader, and does not know which."""


class LeaseReply(enum.StrEnum):
    OK = "ok"
    BAD_OPTION = "bad_option"
    HISTORY_MISMATCH = "history_mismatch"
    NOT_IN_CLUSTER = "not_in_cluster"
    STALE_TERM = "stale_term"
    LEASE_LOST = "lease_lost"
    ALREADY_ACQUIRED = "already_acquired"


class LeaseRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    grant: LeaseGrant
    period_ms: int
    history: HistoryId
    term: int


class LeaseAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    reply: LeaseReply
    detail: str = ""
    """For people: what is wrong, with the value."""
    term: int = 0
    """With `stale_term`: the newest one that the node has seen."""
    current: LeaseGrant | None = None
    """With `already_acquired`: the lease that blocks this one. None if its holder is unknown."""
    state: LeaseState = LeaseState.NONE
    left_ms: int = 0
    running: tuple[str, ...] = ()
    """Activities that still run under the blocking lease."""


class LeaseAvailable(msgspec.Struct, frozen=True, array_like=True):
    """From a node to a host that it refused: this lease has ended."""

    lease_id: LeaseId
    number: int


class AbolishLease(msgspec.Struct, frozen=True, array_like=True):
    """From a leader that stepped down: it will not use this lease id again."""

    lease_id: LeaseId


class SavedLease(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=True):
    """The lease file. It holds the time left and never a clock reading: the boot clock restarts with the machine."""

    grant: LeaseGrant
    history: HistoryId
    term: int
    period_ms: int
    left_ms: int


class SavedBlock(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The lease file after a damaged one: a restart must not shorten the time in which the lease is not granted."""

    left_ms: int


LeaseFileContent = SavedLease | SavedBlock
