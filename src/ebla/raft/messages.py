"""The messages of Raft peers, and the entries and snapshots in them.

Every type is ready for the wire: an array with a number as its tag, to which fields are only ever appended. `sender`
and `to` are peer numbers; `term` is the sender's term except for pre-votes, which name the term the sender would
campaign in.
"""

import enum
from typing import Final, NewType

import msgspec

PeerId = NewType("PeerId", int)
"""A member of one Raft group. The layer above maps hosts to numbers, and never uses a number twice."""

NO_PEER: Final = PeerId(0)

MAX_INDEX: Final = 2**64 - 1
"""Beyond any log index: what a quorum of no voters has agreed to."""


class EntryKind(enum.IntEnum):
    """What an entry's bytes mean to the core. A member change carries an encoded `MembershipChange`."""

    COMMAND = 0
    MEMBER = 1
    """One peer, one step."""
    MEMBERS = 2
    """Any number of peers, joint where needed; empty bytes leave a joint membership."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One position of the log. Equal index and term mean equal content, on every peer, forever (INV-RAFT-2)."""

    index: int
    term: int
    data: bytes = b""
    kind: EntryKind = EntryKind.COMMAND


class Membership(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Voters and learners. `outgoing` is not empty only while two majorities must agree (joint).

    All are sorted. `learners_next` are voters of `outgoing` that become learners when the joint phase ends: until then
    they must keep voting, and a peer is never voter and learner at once.
    """

    voters: tuple[PeerId, ...] = ()
    outgoing: tuple[PeerId, ...] = ()
    learners: tuple[PeerId, ...] = ()
    learners_next: tuple[PeerId, ...] = ()
    auto_leave: bool = False

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    def all_voters(self) -> tuple[PeerId, ...]:
        if not self.outgoing:
            return self.voters
        return tuple(sorted({*self.voters, *self.outgoing}))

    def all_members(self) -> tuple[PeerId, ...]:
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    def is_voter(self, peer: PeerId) -> bool:
        return peer in self.voters or peer in self.outgoing

    def is_learner(self, peer: PeerId) -> bool:
        return peer in self.learners

    def is_member(self, peer: PeerId) -> bool:
        return peer in self.voters or peer in self.outgoing or peer in self.learners


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """The log prefix that a snapshot covers. The driver transfers its bytes; the core never sees them."""

    index: int = 0
    term: int = 0
    membership: Membership = Membership()


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must survive a crash besides the log. `commit` may lag: it is only a hint at restart."""

    term: int = 0
    vote: PeerId = NO_PEER
    commit: int = 0


class PeerMessage(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    sender: PeerId
    to: PeerId


class TermMessage(PeerMessage, frozen=True, kw_only=True):
    term: int


class VoteRequest(TermMessage, frozen=True, tag=1, kw_only=True):
    last_index: int
    last_term: int
    transfer: bool = False
    """The leader itself requested this election, so followers of a live leader vote too."""


class VoteResponse(TermMessage, frozen=True, tag=2, kw_only=True):
    granted: bool


class PreVoteRequest(TermMessage, frozen=True, tag=3, kw_only=True):
    last_index: int
    last_term: int


class PreVoteResponse(TermMessage, frozen=True, tag=4, kw_only=True):
    granted: bool


class Append(TermMessage, frozen=True, tag=5, kw_only=True):
    """Entries behind `(prev_index, prev_term)`; without entries it probes or carries the commit index."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


class AppendResponse(TermMessage, frozen=True, tag=6, kw_only=True):
    """`index` is durable here. If rejected: `index` is the rejected `prev_index`, and `(hint_index, hint_term)` the
    last position where the two logs may still agree."""

    index: int = 0
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(TermMessage, frozen=True, tag=7, kw_only=True):
    commit: int = 0
    read_context: bytes = b""


class HeartbeatResponse(TermMessage, frozen=True, tag=8, kw_only=True):
    read_context: bytes = b""


class InstallSnapshot(TermMessage, frozen=True, tag=9, kw_only=True):
    snapshot: SnapshotMeta


class TimeoutNow(PeerMessage, frozen=True, tag=10, kw_only=True):
    """The leader hands over: campaign at once."""

    term: int


class LeaderTransferRequest(TermMessage, frozen=True, tag=11, kw_only=True):
    """A follower forwards a request that `target` should lead."""

    target: PeerId


class Proposal(PeerMessage, frozen=True, tag=12, kw_only=True):
    """Proposed at a follower and forwarded to the leader. Without a term: any leader may accept it."""

    kind: EntryKind
    payloads: tuple[bytes, ...]


class ReadIndexRequest(PeerMessage, frozen=True, tag=13, kw_only=True):
    read_context: bytes


class ReadIndexResponse(TermMessage, frozen=True, tag=14, kw_only=True):
    index: int
    read_context: bytes


Message = (
    VoteRequest
    | VoteResponse
    | PreVoteRequest
    | PreVoteResponse
    | Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | InstallSnapshot
    | TimeoutNow
    | LeaderTransferRequest
    | Proposal
    | ReadIndexRequest
    | ReadIndexResponse
)
