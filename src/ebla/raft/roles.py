"""The roles of a peer, each with the state that only it needs and that vanishes with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ebla.raft.messages import NO_PEER, PeerId
from ebla.raft.progress import PeerProgress


@dataclass(slots=True)
class Follower:
    leader: PeerId = NO_PEER


@dataclass(slots=True)
class PreCandidate:
    """Finds out whether it could win an election, before it disturbs the others with a new term."""

    leader: ClassVar[PeerId] = NO_PEER
    votes: dict[PeerId, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Candidate:
    leader: ClassVar[PeerId] = NO_PEER
    votes: dict[PeerId, bool] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class PendingRead:
    sender: PeerId
    context: bytes
    index: int = 0
    acknowledged_by: dict[PeerId, bool] = field(default_factory=dict)


class ReadQueue:
    """Reads that wait for proof that the leader still leads, in order of arrival: an answer to a later heartbeat proves
    leadership for all earlier reads too."""

    __slots__ = ("_confirming", "early")

    def __init__(self) -> None:
        self.early: list[PendingRead] = []
        """Arrived before the leader committed an entry of its own term: its commit index may lag."""
        self._confirming: dict[bytes, PendingRead] = {}

    def __len__(self) -> int:
        return len(self.early) + len(self._confirming)

    def add(self, read: PendingRead) -> None:
        self._confirming.setdefault(read.context, read)

    def acknowledge(self, peer: PeerId, context: bytes) -> Mapping[PeerId, bool]:
        read = self._confirming.get(context)
        if read is None:
            return {}
        read.acknowledged_by[peer] = True
        return read.acknowledged_by

    def release(self, context: bytes) -> list[PendingRead]:
        """The read with this context and all before it."""
        released = []
        for known in list(self._confirming):
            released.append(self._confirming.pop(known))
            if known == context:
                break
        return released

    def last_context(self) -> bytes:
        return next(reversed(self._confirming), b"")


@dataclass(slots=True, kw_only=True)
class Leader:
    leader: PeerId
    progress: dict[PeerId, PeerProgress]
    pending_change_index: int
    """No membership change is accepted until this index is applied: at most one is in progress (INV-RAFT-5)."""
    reads: ReadQueue = field(default_factory=ReadQueue)
    transferee: PeerId = NO_PEER
    uncommitted_bytes: int = 0

    def has_sent_commit(self, index: int) -> bool:
        """Whether every other peer has been sent that this index is committed."""
        return all(each.sent_commit >= index for peer, each in self.progress.items() if peer != self.leader)


Role = Follower | PreCandidate | Candidate | Leader
