"""Everything one peer knows, and the transitions between roles. The modules per role make the decisions."""

import enum

import msgspec

from ebla.ports.rng import Rng
from ebla.raft.effects import ConfirmedRead
from ebla.raft.events import WriteCompleted
from ebla.raft.log import Log
from ebla.raft.messages import (
    NO_PEER,
    AppendResponse,
    Entry,
    HardState,
    Membership,
    Message,
    PeerId,
    PreVoteResponse,
    SnapshotMeta,
    VoteResponse,
)
from ebla.raft.options import RaftOptions
from ebla.raft.progress import PeerProgress
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate, Role


class StepRefusal(enum.Enum):
    """Why an event had no effect. Nothing was appended, and nothing will be."""

    NO_LEADER = "no leader is known"
    FORWARDING_OFF = "this peer does not lead and does not forward"
    TRANSFERRING = "leadership is being handed over"
    NOT_A_MEMBER = "this peer leads, but is no longer a member"
    TOO_MUCH_UNCOMMITTED = "the bound on uncommitted bytes is reached"
    TOO_MANY_READS = "the bound on waiting reads is reached"
    UNKNOWN_PEER = "an answer from a peer that is not a member"


class ContradictionKind(enum.Enum):
    """Formatted with the fields of the contradiction."""

    COMMIT_BEYOND_LOG = (
        "{leader} says that this node has acknowledged entries up to {index}, and its log ends at {own_index}"
    )
    COMMITTED_ENTRY_REPLACED = (
        "{leader} sends another entry {index}, and this node's log is committed up to {own_index}"
    )


class Contradiction(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the leader that cannot be right if this peer still has all that it acknowledged: its log was lost in
    part, is an older copy, or belongs to another group. The message had no effect, and this peer must stop."""

    kind: ContradictionKind
    leader: PeerId
    index: int
    """Of the message."""
    own_index: int

    def __str__(self) -> str:
        return self.text(f"peer {self.leader}")

    def text(self, leader: str) -> str:
        """For people, who know the leader by this name."""
        return self.kind.value.format(leader=leader, index=self.index, own_index=self.own_index)


StepOutcome = StepRefusal | Contradiction | None


class RecoveredState(msgspec.Struct, frozen=True):
    """What the disk held at the start. `entries` may begin before the snapshot's index."""

    hard_state: HardState = HardState()
    snapshot: SnapshotMeta = SnapshotMeta()
    entries: tuple[Entry, ...] = ()


class RaftState:
    __slots__ = (
        "after_write",
        "election_elapsed",
        "election_timeout",
        "heartbeat_elapsed",
        "log",
        "membership",
        "membership_index",
        "messages",
        "options",
        "peer",
        "reads",
        "rng",
        "role",
        "term",
        "vote",
    )

    def __init__(self, options: RaftOptions, past: RecoveredState, rng: Rng) -> None:
        self.options = options
        self.peer = options.peer
        self.rng = rng
        self.log = Log(past.snapshot, past.entries, apply_bytes_max=options.apply_bytes_max)
        # A crash between the hard state and the entries of one write leaves a commit index ahead of the log. It is
        # learned again.
        self.log.commit_to(min(past.hard_state.commit, self.log.last_index))
        self.membership: Membership = past.snapshot.membership
        self.membership_index = past.snapshot.index
        """`membership` reflects the log up to this index."""
        self.term = past.hard_state.term
        self.vote = past.hard_state.vote
        if self.term and self.log.last_term > self.term:
            # A crash between the snapshot and the hard state of one write: no vote of ours in that term was ever sent.
            self.term, self.vote = self.log.last_term, NO_PEER
        self.messages: list[Message] = []
        self.after_write: list[Message | WriteCompleted] = []
        """Held back until what they promise is durable (rule 2 of `effects.py`)."""
        self.reads: list[ConfirmedRead] = []
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = 0
        self.role: Role = Follower()
        self._start_over(self.term)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    @property
    def is_promotable(self) -> bool:
        """A voter that is not just replacing its state by a snapshot."""
        return self.membership.is_voter(self.peer) and self.log.incoming_snapshot is None

    def respond_when_durable(self, answer: AppendResponse | VoteResponse | PreVoteResponse) -> None:
        """INV-RAFT-6: an answer that a restart could contradict leaves only after the state behind it is durable."""
        self.after_write.append(answer)

    # Roles.

    def _start_over(self, term: int) -> None:
        assert term >= self.term, "terms never decrease"
        if term != self.term:
            self.term = term
            self.vote = NO_PEER
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        # Drawn again each time, or two peers that tie once would tie forever.
        election = self.options.election_ticks
        self.election_timeout = election + self.rng.randrange(0, election)

    def become_follower(self, term: int, leader: PeerId) -> None:
        self._start_over(term)
        self.role = Follower(leader)

    def become_pre_candidate(self) -> None:
        """Neither term nor vote changes: a pre-vote promises nothing."""
        assert not isinstance(self.role, Leader), "a leader does not campaign"
        self.role = PreCandidate()

    def become_candidate(self) -> None:
        assert not isinstance(self.role, Leader), "a leader does not campaign"
        self._start_over(self.term + 1)
        self.vote = self.peer
        self.role = Candidate()

    def become_leader(self) -> None:
        assert isinstance(self.role, Candidate), "only a candidate becomes leader"
        assert self.membership.is_voter(self.peer), "only a voter becomes leader"
        self._start_over(self.term)
        last = self.log.last_index
        progress = {
            peer: PeerProgress(
                self.options,
                next_index=last + 1,
                is_learner=self.membership.is_learner(peer),
                recently_active=peer == self.peer,
            )
            for peer in self.membership.all_members()
        }
        own = progress[self.peer]
        own.match = last
        own.become_replicate()
        # An earlier leader's membership change may be in the log unapplied: accept none until the log is applied.
        self.role = Leader(leader=self.peer, progress=progress, pending_change_index=last)
