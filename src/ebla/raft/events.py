"""What a core is told besides the messages of its peers.

Structs rather than dataclasses: they are made for every batch, and a frozen dataclass takes several times as long.
"""

import msgspec

from ebla.raft.membership import MembershipChange
from ebla.raft.messages import NO_PEER, EntryKind, Message, PeerId, SnapshotMeta


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed. Whole ticks since the last one are caught up with, at most one election timeout of them."""


class Campaign(msgspec.Struct, frozen=True, gc=False):
    """Stand for election now, without waiting for the timeout."""


class Propose(msgspec.Struct, frozen=True):
    """Append these payloads, in this order and together. One event for many commands."""

    payloads: tuple[bytes, ...]
    kind: EntryKind = EntryKind.COMMAND


class ReadIndex(msgspec.Struct, frozen=True, gc=False):
    """Ask for an index that is safe to read at. `context` comes back with it and must be unique to the request."""

    context: bytes


class TransferLeadership(msgspec.Struct, frozen=True, gc=False):
    target: PeerId


class ForgetLeader(msgspec.Struct, frozen=True, gc=False):
    """The layer above is sure that the leader is dead: grant votes although its time is not up."""


class PeerUnreachable(msgspec.Struct, frozen=True, gc=False):
    """An append to this peer was probably lost."""

    peer: PeerId


class PeerReachable(msgspec.Struct, frozen=True, gc=False):
    """The way to this peer is open, for the first time or again. Whoever was sent a probe into the void need not wait
    for a heartbeat to be sent another."""

    peer: PeerId


class SnapshotSent(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the transfer that an `InstallSnapshot` started."""

    peer: PeerId
    delivered: bool


class SnapshotTaken(msgspec.Struct, frozen=True):
    """The state machine wrote a snapshot, which is durable."""

    snapshot: SnapshotMeta


class Compact(msgspec.Struct, frozen=True, gc=False):
    """Forget entries up to `index`; the newest snapshot must cover them."""

    index: int


class ApplyMembership(msgspec.Struct, frozen=True):
    """The committed membership entry at `index` takes effect. To be told while that entry is applied, before what
    follows it; not at all where the layer above found the change void."""

    index: int
    change: MembershipChange


class WriteCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """A write is durable, and all before it. Comes with the write's answers and is given back unchanged."""

    to: PeerId
    term: int
    """The term the write was asked for in. Entries of an older term may have been replaced since."""
    last_index: int
    """0: no entries."""
    last_term: int
    snapshot: SnapshotMeta | None


class SendCommit(msgspec.Struct, frozen=True, gc=False):
    """Whoever was told of no commit as high as `index` shall be, if we lead."""

    index: int
    peer: PeerId = NO_PEER
    """This one alone; `NO_PEER`: everybody."""


class ApplyCompleted(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The entries of one `Apply` have taken effect. Comes with it and is given back unchanged."""

    to: PeerId
    last_index: int
    size: int
    payload_bytes: int


RaftEvent = (
    Tick
    | Campaign
    | Propose
    | ReadIndex
    | TransferLeadership
    | ForgetLeader
    | PeerUnreachable
    | PeerReachable
    | SnapshotSent
    | SnapshotTaken
    | Compact
    | ApplyMembership
    | SendCommit
    | WriteCompleted
    | ApplyCompleted
    | Message
)
