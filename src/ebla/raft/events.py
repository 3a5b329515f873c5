"""The events of a core besides the messages of its peers.

Structs rather than dataclasses: they are created for every batch, and a frozen dataclass takes several times as long.
"""

import msgspec

from ebla.raft.membership import MembershipChange
from ebla.raft.messages import NO_PEER, EntryKind, Message, PeerId, SnapshotMeta


class LocalEvent(msgspec.Struct, frozen=True):
    """Anything but a message of a peer."""


class Tick(LocalEvent, frozen=True, gc=False):
    """Time has passed. The core catches up with whole ticks since the last event, at most one election timeout."""


class Campaign(LocalEvent, frozen=True, gc=False):
    """Campaign now, without waiting for the election timeout."""


class Propose(LocalEvent, frozen=True):
    """Append these payloads together, in this order. One event for many commands."""

    payloads: tuple[bytes, ...]
    kind: EntryKind = EntryKind.COMMAND


class ReadIndex(LocalEvent, frozen=True, gc=False):
    """Request an index that is safe to read at. `context` is returned with it and must be unique to the request."""

    context: bytes


class TransferLeadership(LocalEvent, frozen=True, gc=False):
    target: PeerId


class ForgetLeader(LocalEvent, frozen=True, gc=False):
    """The layer above is sure that the leader is dead: grant votes before the election timeout is over."""


class PeerUnreachable(LocalEvent, frozen=True, gc=False):
    """An append to this peer was probably lost."""

    peer: PeerId


class PeerReachable(LocalEvent, frozen=True, gc=False):
    """A connection to this peer is open, for the first time or again. If a probe was lost, the next one need not wait
    for a heartbeat."""

    peer: PeerId


class SnapshotSent(LocalEvent, frozen=True, gc=False):
    """The outcome of the transfer that an `InstallSnapshot` started."""

    peer: PeerId
    delivered: bool


class SnapshotTaken(LocalEvent, frozen=True):
    """The state machine wrote a snapshot, and it is durable."""

    snapshot: SnapshotMeta


class Compact(LocalEvent, frozen=True, gc=False):
    """Drop entries up to `index`; the newest snapshot must cover them."""

    index: int


class ApplyMembership(LocalEvent, frozen=True):
    """The committed membership entry at `index` takes effect. Stepped in while that entry is applied, before the
    entries behind it; not at all if the layer above found the change void."""

    index: int
    change: MembershipChange


class WriteCompleted(LocalEvent, frozen=True, kw_only=True):
    """A write and all before it are durable. Comes with the write's answers and is stepped back in unchanged."""

    to: PeerId
    term: int
    """The term in which the write was requested. Entries of an older term may have been replaced since."""
    last_index: int
    """0: no entries."""
    last_term: int
    snapshot: SnapshotMeta | None


class SendCommit(LocalEvent, frozen=True, gc=False):
    """Send the commit index to the peers that were not sent one as high as `index`, if this peer leads."""

    index: int
    peer: PeerId = NO_PEER
    """Only this peer; `NO_PEER`: all peers."""


class ApplyCompleted(LocalEvent, frozen=True, gc=False, kw_only=True):
    """The entries of one `ApplyEntries` have taken effect. Comes with it and is stepped back in unchanged."""

    to: PeerId
    last_index: int
    size: int
    payload_bytes: int


RaftEvent = LocalEvent | Message
