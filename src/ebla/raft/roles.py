"""What a peer is, with what only that role needs to know. The rest of a role vanishes with it."""

from dataclasses import dataclass, field

from ebla.raft.messages import NO_PEER, PeerId
from ebla.raft.progress import PeerProgress
from ebla.raft.read_queue import ReadQueue


@dataclass(slots=True)
class Follower:
    leader: PeerId = NO_PEER


@dataclass(slots=True)
class PreCandidate:
    """Asks whether an election could be won, before disturbing anybody with a new term."""

    votes: dict[PeerId, bool] = field(default_factory=dict)

    @property
    def leader(self) -> PeerId:
        return NO_PEER


@dataclass(slots=True)
class Candidate:
    votes: dict[PeerId, bool] = field(default_factory=dict)

    @property
    def leader(self) -> PeerId:
        return NO_PEER


@dataclass(slots=True, kw_only=True)
class Leader:
    leader: PeerId
    progress: dict[PeerId, PeerProgress]
    pending_change_index: int
    """No membership change is accepted until this index is applied: at most one is under way (INV-RAFT-5)."""
    reads: ReadQueue = field(default_factory=ReadQueue)
    transferee: PeerId = NO_PEER
    uncommitted_bytes: int = 0

    def has_sent_commit(self, index: int) -> bool:
        """Whether the messages for every other peer say, so far, that this index is committed."""
        return all(each.sent_commit >= index for peer, each in self.progress.items() if peer != self.leader)


Role = Follower | PreCandidate | Candidate | Leader
