"""What group 0's verbs carry."""

import msgspec

from ebla.group0.commands import CommandAnswer
from ebla.group0.discovery import DiscoveryReply
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.transaction import Revision, Transaction
from ebla.raft.messages import EntryKind, InstallSnapshot, Message


class RaftMessages(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Messages of one turn for one peer. Those of another history are not read: the side that was given up by a quorum
    failover can never write back."""

    history: HistoryId
    messages: tuple[Message, ...]
    host: HostId
    """Who sends, and where answers reach it: a node that was away for long may not know of its leader yet."""
    address: Address


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One piece of the snapshot that `message` announces; the peer hears the message itself with the last one."""

    history: HistoryId
    message: InstallSnapshot
    number: int
    data: bytes
    last: bool
    sending: int = 0
    """Grows with each try of the sender, whose pieces may be cut differently each time."""


class SnapshotChunkAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`taken`: this chunk need not be sent again. `stored`: nothing need be sent again, the peer has a state at least
    as late as the snapshot's. Where neither is true the sender asks again, for as long as `progress` grows: a slow
    disk is no reason to begin from the start, and one that takes nothing for long is."""

    taken: bool = True
    stored: bool = False
    progress: int = 0


class ProposeRequest(msgspec.Struct, frozen=True, array_like=True):
    """A command for the leader. The answer says only that it was taken up: what became of it stands in the log."""

    kind: EntryKind
    payload: bytes


class DiscoverRequest(msgspec.Struct, frozen=True, array_like=True):
    """A fresh node asks: are you in a cluster, and whom do you know?"""

    address: Address
    known: tuple[Address, ...]


class DiscoverAnswer(msgspec.Struct, frozen=True, array_like=True):
    reply: DiscoveryReply


class JoinRequest(msgspec.Struct, frozen=True, array_like=True):
    member: Member


class JoinAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Taken in as a learner. The members are where the first messages may come from."""

    history: HistoryId
    members: tuple[Member, ...]


class MembershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """Is this host still a member? Asked by one that has not heard of a leader for long."""

    host: HostId


class MembershipAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`role` is None for a host this node has never heard of, as far as `revision`."""

    role: MemberRole | None
    revision: Revision


class Group0ReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Keys, and everything below the prefixes. `quorum`: linearizable; otherwise what this node has applied."""

    keys: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    quorum: bool = True
    at: Revision | None = None
    """A page that follows: of the state at this revision, from row `start` on."""
    start: int = 0


class FoundKeyValue(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes
    revision: Revision


class Group0ReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The state at `revision`; keys that do not exist are left out.

    `more`: it did not fit, and its further rows are asked for with `at` and `start`. Where the revision is another than
    was asked for, the node holds that state no longer and this is the first page of a new one."""

    revision: Revision
    found: tuple[FoundKeyValue, ...]
    more: bool = False


class ExecuteRequest(msgspec.Struct, frozen=True, array_like=True):
    transaction: Transaction


class ExecuteAnswer(msgspec.Struct, frozen=True, array_like=True):
    answer: CommandAnswer


class WatchRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Changes below a prefix after a revision; waits for one up to `wait_ms`. Without a revision: all that is there."""

    prefix: str
    after: Revision | None = None
    wait_ms: int = 10_000
    start: int = 0
    """A page of a reset that follows: of the content at `after`, from this row on."""


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
    """Who belongs to group 0, as this node knows."""


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """`lag` is how many entries the leader knows it to be behind; None where this node does not lead."""

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


class ChangeMemberRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Give a host another role. A lock, where one is named, must still be the newest when the change is applied."""

    host: HostId
    role: MemberRole
    address: Address | None = None
    lock: bytes | None = None


class TransferLeadershipRequest(msgspec.Struct, frozen=True, array_like=True):
    """Let this voter lead."""

    host: HostId
