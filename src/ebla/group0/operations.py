"""Operations: changes of group 0's members together with keys, each repairable at any point. Pure.

A membership entry and a transaction are two entries of the log. The record `operation/unfinished` joins them: it is
written in the transaction of the key changes and deleted after the membership entry. All entries of a run name its
lock, so the run that acquires the next lock finds either no record, or one that no other run can complete, and
repairs it first. `operation_table.py` has what each kind changes, `operation_steps.py` decides each step, and
`control/operations/runner.py` carries the steps out.

INV-ATOM-1: when an operation has ended, keys and members agree and the record is gone. INV-ATOM-2: no step under a
revoked lock has an effect. INV-ATOM-3: at most one operation is unfinished. INV-ATOM-4: without a record, no host is a
member without a row (except the founder before it creates the topology), or owns tokens without being a member.
INV-NODE-21: a node runs no Raft server before its addition has ended; it is accepted only then. INV-NODE-22: without a
record, no host whose row is `left` is a member.
"""

import enum
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ebla.group0.members import Member, MemberRole, member_key
from ebla.group0.store import Group0Store
from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import HostId, TopologyVersion
from ebla.model.opinions import Opinion
from ebla.model.stored_value import StoredValue, decode_stored
from ebla.model.transaction import Revision
from ebla.topology.snapshot import Node, Snapshot

UNFINISHED_OPERATION_KEY = "operation/unfinished"
ENDED_OPERATION_PREFIX = "operation/ended/"
UNFINISHED_FAILOVER_KEY = "failover/unfinished"


class OperationKind(enum.StrEnum):
    ADD_LEARNER = "add_learner"
    CHANGE_ROLES = "change_roles"
    REMOVE = "remove"
    EXCLUDE = "exclude"
    INCLUDE = "include"
    REFRESH = "refresh"


class Operation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A change of members and keys, as its caller wants it."""

    id: uuid.UUID
    kind: OperationKind
    hosts: tuple[HostId, ...]
    member: Member | None = None
    """`add_learner` and `refresh`: the entry of the host."""
    node: Node | None = None
    """Not used. Releases whose `add_learner` wrote the row of the new node sent it here; it keeps the place of the
    fields after it."""
    roles: tuple[MemberRole, ...] = ()
    """`change_roles` and `include`: of the hosts, in their order."""
    reason: str = ""
    """For people."""
    is_automatic: bool = False
    """`exclude`: by automatic failover, which counts it."""
    is_forced: bool = False
    """`exclude`: although the voters do not report the hosts down, or a table loses its last live replica."""
    opinions: tuple[Opinion, ...] = ()
    """`exclude`: of the voters about the hosts, as the check found them."""
    leader: HostId | None = None
    """`exclude`: the node that checked it."""
    fence: TopologyVersion = TopologyVersion(0)
    """`remove`, as the last step of a node operation: the version whose barrier succeeded. 0: none."""


def why_malformed(operation: Operation) -> str:
    """What is wrong with a request that no node of this release sends; empty: nothing."""
    kind, hosts = operation.kind, operation.hosts
    one_host = kind in (OperationKind.ADD_LEARNER, OperationKind.REMOVE, OperationKind.INCLUDE, OperationKind.REFRESH)
    if not hosts or len(set(hosts)) != len(hosts) or (one_host and len(hosts) != 1):
        return f"{kind} names {len(hosts)} hosts: {', '.join(map(str, hosts))}"
    if kind is OperationKind.CHANGE_ROLES and len(operation.roles) != len(hosts):
        return f"{kind} names {len(operation.roles)} roles for {len(hosts)} hosts"
    if kind in (OperationKind.ADD_LEARNER, OperationKind.REFRESH) and (
        operation.member is None or operation.member.host != hosts[0]
    ):
        return f"{kind} lacks the member entry of {hosts[0]}"
    return ""


class UnfinishedOperation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Exists from the transaction of an operation's key changes until its membership change is done. Both and the
    deletion name the lock: a node that repairs the operation acquires another one first, and then the former owner can
    change nothing more."""

    kind: OperationKind
    members: tuple[Member, ...]
    """As the membership change makes them, one for each host of the operation."""
    lock: bytes
    id: uuid.UUID = uuid.UUID(int=0)
    host: HostId | None = None
    """The node that runs it."""
    start_ms: int = 0
    """By the wall clock of that node."""
    repairs: uuid.UUID | None = None
    """The add that this removal undoes."""
    reason: str = ""
    readdressed: tuple[Member, ...] = ()
    """Another member whose address the same membership entry releases, or gives back: that of the node that the host
    replaces."""

    @property
    def hosts(self) -> tuple[HostId, ...]:
        return tuple(member.host for member in self.members)

    @property
    def entry(self) -> tuple[Member, ...]:
        """The membership entry."""
        return (*self.members, *self.readdressed)


class OperationResult(enum.StrEnum):
    DONE = "done"
    UNDONE = "undone"
    QUARANTINED = "quarantined"
    """It can never be completed. Its keys are changed and its members are not; an operator has to look at it."""


class EndedOperation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Stored under `operation/ended/<id>`."""

    id: uuid.UUID
    kind: OperationKind
    members: tuple[Member, ...]
    result: OperationResult
    reason: str = ""
    start_ms: int = 0
    end_ms: int = 0
    host: HostId | None = None
    """The node that ended it."""

    @property
    def hosts(self) -> tuple[HostId, ...]:
        return tuple(member.host for member in self.members)


class OperationCode(enum.StrEnum):
    """Why a run did not succeed; docs/leadership.md says what to do."""

    INVALID = "invalid"
    """The same request fails again."""
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    CANNOT_ACQUIRE_LOCK = "cannot_acquire_lock"
    UNFINISHED_FAILOVER = "unfinished_failover"
    CONFLICT = "conflict"
    LOCK_CONFLICT = "lock_conflict"
    TIMEOUT = "timeout"
    FAILED = "failed"
    NOT_LEADER = "not_leader"
    RUNNING = "running"
    """From the leader to a node that asked: ask again."""
    NO_QUORUM = "no_quorum"
    QUORUM_LOST = "quorum_lost"
    UNDONE = "undone"
    QUARANTINED = "quarantined"


class OperationFailed(EblaError):
    """The run did not succeed, and the operation was not applied."""

    def __init__(
        self,
        message: str,
        *,
        advice: str = "",
        code: OperationCode = OperationCode.FAILED,
        operation: uuid.UUID | None = None,
    ) -> None:
        super().__init__(message, advice=advice)
        self.code = code
        self.operation = operation


class OperationUnknown(OperationFailed):
    """The run did not get to its end; its record may be there."""

    outcome = Outcome.UNKNOWN


# ---- what is read


@dataclass(frozen=True, slots=True)
class StoredRecord:
    stored: StoredValue[UnfinishedOperation]
    revision: Revision

    @property
    def value(self) -> UnfinishedOperation:
        return self.stored.value


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationState:
    """What a run reads after its read barrier, all of one moment."""

    members: Mapping[str, Member]
    revisions: Mapping[str, Revision]
    """Of the members' keys."""
    snapshot: Snapshot
    record: StoredRecord | None
    ended: tuple[EndedOperation, ...]
    """The oldest first."""
    has_unfinished_failover: bool

    def member(self, host: HostId) -> Member | None:
        return self.members.get(member_key(host))

    def voters(self) -> tuple[HostId, ...]:
        return tuple(sorted(one.host for one in self.members.values() if one.role is MemberRole.VOTER))


def read_state(store: Group0Store, snapshot: Snapshot) -> OperationState:
    return OperationState(
        members=dict(store.members),
        revisions={key: store.entries[key].revision for key in store.members},
        snapshot=snapshot,
        record=read_record(store),
        ended=ended_operations(store),
        has_unfinished_failover=store.get(UNFINISHED_FAILOVER_KEY) is not None,
    )


class UnreadableRecord(OperationFailed):
    """A later release wrote the record. Only a leader of that release can complete it."""


def read_record(store: Group0Store) -> StoredRecord | None:
    """Raises `UnreadableRecord`: every node reads it, and none may end because of it."""
    entry = store.get(UNFINISHED_OPERATION_KEY)
    if entry is None:
        return None
    try:
        return StoredRecord(decode_stored(UnfinishedOperation, entry.value), entry.revision)
    except msgspec.DecodeError as error:
        raise UnreadableRecord(
            f"this release cannot read {UNFINISHED_OPERATION_KEY}: {error}",
            advice="a node of the release that wrote it has to lead: ebla group0 transfer-leader HOST",
            code=OperationCode.REFUSED,
        ) from error


def ended_operations(store: Group0Store) -> tuple[EndedOperation, ...]:
    """By the index of their end, the oldest first: the wall clocks of nodes differ. Without those that this release
    cannot read."""
    entries = sorted(
        (store.entries[key] for key in store.keys(ENDED_OPERATION_PREFIX)), key=lambda entry: entry.revision.index
    )
    ended = []
    for entry in entries:
        with suppress(msgspec.DecodeError):
            ended.append(decode_stored(EndedOperation, entry.value).value)
    return tuple(ended)


def ended_operation_key(operation: uuid.UUID) -> str:
    return f"{ENDED_OPERATION_PREFIX}{operation}"
