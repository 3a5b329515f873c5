"""Messages of group 0's verbs."""

import msgspec

from ebla.group0.commands import CommandAnswer
from ebla.group0.discovery import DiscoveryReply
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.transaction import Revision, Transaction
from ebla.raft.messages import EntryKind, InstallSnapshot, Message


class RaftMessages(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Messages of one turn for one peer. Messages of another history are ignored: the side that a quorum failover
    abandoned can never write back."""

    history: HistoryId
    messages: tuple[Message, ...]
    host: HostId
    """The sender, and where answers reach it: a node that was down for long may not know its leader yet."""
    address: Address


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One chunk of the snapshot that `message` announces. The peer processes the message with the last chunk."""

    history: HistoryId
    message: InstallSnapshot
    number: int
    data: bytes
    last: bool
    sending: int = 0
    """Grows with each attempt of the sender, whose chunks may differ each time."""


class SnapshotChunkAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`taken`: this chunk need not be sent again. `stored`: nothing need be sent again, the peer has a state at least
    as late as the snapshot's. Where neither is true the sender asks again, for as long as `progress` grows: a slow
    disk is no reason to begin from the start, and one that takes nothing for long is."""

    taken: bool = True
    stored: bool = False
    progress: int = 0


class ProposeRequest(msgspec.Struct, frozen=True, array_like=True):
    """A command for the leader. The answer says only that it was accepted; its outcome is in the log."""

    kind: EntryKind
    payload: bytes


class DiscoverRequest(msgspec.Struct, frozen=True, array_like=True):
    """A new node asks: are you in a cluster, and which nodes do you know?"""

    address: Address
    known: tuple[Address, ...]


class DiscoverAnswer(msgspec.Struct, frozen=True, array_like=True):
    reply: DiscoveryReply


class MembershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """Is this host still a member? Sent by a node that has not heard from a leader for long."""

    host: HostId


class MembershipAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`role` is None for a host that is unknown up to `revision`."""

    role: MemberRole | None
    revision: Revision


class Group0ReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Keys, and everything below the prefixes. `quorum`: linearizable; otherwise what this node has applied."""

    keys: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    quorum: bool = True
    at: Revision | None = None
    """For a further page: the state at this revision, from row `start` on."""
    start: int = 0


class KeyValue(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes
    revision: Revision


class Group0ReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The state at `revision`; keys that do not exist are left out.

    `more`: it did not fit, and its further rows are asked for with `at` and `start`. If the revision differs from `at`,
    the node no longer holds that state and this is the first page of a new one."""

    revision: Revision
    found: tuple[KeyValue, ...]
    more: bool = False


class ExecuteRequest(msgspec.Struct, frozen=True, array_like=True):
    transaction: Transaction


class ExecuteAnswer(msgspec.Struct, frozen=True, array_like=True):
    answer: CommandAnswer


class WatchRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Changes below a prefix after a revision; waits up to `wait_ms` for one. Without a revision: everything."""

    prefix: str
    after: Revision | None = None
    wait_ms: int = 10_000
    start: int = 0
    """For a further page of a reset: the content at `after`, from this row on."""


class WatchedChange(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes | None
    index: int


class WatchAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The changes up to `revision`, whole transactions, as many as fit: the rest is there at once when asked for.

    `reset`: the feed does not reach back to what was asked for, and `changes` is the content of the prefix, with `more`
    only a part of it: the further rows are asked for with `after` and `start`. Where the revision is another than was
    asked for then, this is the first page of a new reset."""

    revision: Revision
    reset: bool
    changes: tuple[WatchedChange, ...]
    more: bool = False


class LockRequest(msgspec.Struct, frozen=True, array_like=True):
    """Acquire the lock, revoking the one before."""


class LockAnswer(msgspec.Struct, frozen=True, array_like=True):
    lock: bytes
    revision: Revision


class MembersRequest(msgspec.Struct, frozen=True, array_like=True):
    """The members of group 0, as this node knows them."""


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """`lag` is by how many entries the leader knows it to be behind; None if this node does not lead."""

    member: Member
    lag: int | None = None


class Group0Report(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Group 0 as this node sees it, from its own state alone."""

    history: HistoryId
    role: str
    term: int
    leader: HostId | None
    commit: int
    applied: int
    first: int
    last: int
    members: tuple[MemberReport, ...] = ()


class TransferLeadershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """Makes this voter the leader."""

    host: HostId
