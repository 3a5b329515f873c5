"""What a leader knows about each peer, and how fast it may send to it."""

import enum
from collections import deque
from collections.abc import Mapping

from ebla.raft.messages import Membership, PeerId
from ebla.raft.options import RaftOptions


class ReplicationMode(enum.Enum):
    """How entries are sent to a peer."""

    PROBE = enum.auto()
    """It is not known where the logs diverge: one append at a time, until one is accepted."""
    REPLICATE = enum.auto()
    """Appends are pipelined, within the in-flight limits."""
    SNAPSHOT = enum.auto()
    """The peer needs compacted entries; nothing is sent until it has a snapshot."""


class Inflight:
    """Appends sent and not yet acknowledged, oldest first, bounded by count and bytes."""

    __slots__ = ("_bytes", "_options", "_sent", "is_full")

    def __init__(self, options: RaftOptions) -> None:
        self._options = options
        self._sent: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self.is_full = False

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, last_index: int, size: int) -> None:
        assert not self.is_full, "the window is not full"
        self._sent.append((last_index, size))
        self._bytes += size
        options = self._options
        self.is_full = len(self._sent) >= options.inflight_messages_max or (
            options.inflight_bytes_max != 0 and self._bytes >= options.inflight_bytes_max
        )

    def acknowledge(self, index: int) -> None:
        sent = self._sent
        while sent and sent[0][0] <= index:
            self._bytes -= sent.popleft()[1]
            self.is_full = 0 < self._options.inflight_bytes_max <= self._bytes

    def clear(self) -> None:
        self._sent.clear()
        self._bytes = 0
        self.is_full = False


class PeerProgress:
    """One peer. `match` is known to be durable there, `next_index` is sent next; `match < next_index`."""

    __slots__ = (
        "inflight",
        "is_learner",
        "is_paused",
        "match",
        "mode",
        "next_index",
        "pending_snapshot",
        "recently_active",
        "sent_commit",
    )

    def __init__(self, options: RaftOptions, *, next_index: int, is_learner: bool, recently_active: bool) -> None:
        self.match = 0
        self.next_index = next_index
        self.mode = ReplicationMode.PROBE
        self.is_paused = False
        self.pending_snapshot = 0
        self.recently_active = recently_active
        self.is_learner = is_learner
        self.sent_commit = 0
        self.inflight = Inflight(options)

    def _enter(self, mode: ReplicationMode) -> None:
        self.mode = mode
        self.is_paused = mode is ReplicationMode.SNAPSHOT
        self.pending_snapshot = 0
        self.inflight.clear()

    def become_probe(self) -> None:
        """After a snapshot, probe behind it: it may have arrived although its acknowledgement has not."""
        behind_snapshot = self.pending_snapshot + 1
        self._enter(ReplicationMode.PROBE)
        self.next_index = max(self.match + 1, behind_snapshot)
        self.sent_commit = min(self.sent_commit, self.next_index - 1)

    def become_replicate(self) -> None:
        self._enter(ReplicationMode.REPLICATE)
        self.next_index = self.match + 1

    def become_snapshot(self, index: int) -> None:
        self._enter(ReplicationMode.SNAPSHOT)
        self.pending_snapshot = index
        self.next_index = index + 1
        self.sent_commit = index

    def sent_entries(self, count: int, size: int) -> None:
        if self.mode is ReplicationMode.REPLICATE:
            if count:
                self.next_index += count
                self.inflight.add(self.next_index - 1, size)
            # An append that fills the window, or an empty one sent into a full window, is a probe: the next append
            # waits for an answer, or for that of the next heartbeat.
            self.is_paused = self.inflight.is_full
            return
        assert self.mode is ReplicationMode.PROBE, "a peer that waits for a snapshot gets no appends"
        if count:
            self.is_paused = True

    def acknowledged(self, index: int) -> bool:
        """True if this is new."""
        if index <= self.match:
            return False
        self.match = index
        self.next_index = max(self.next_index, index + 1)
        self.is_paused = self.mode is ReplicationMode.SNAPSHOT
        return True

    def rejected(self, index: int, match_hint: int) -> bool:
        """Steps back. False if the rejection is stale: a later answer overtook it."""
        if self.mode is ReplicationMode.REPLICATE:
            if index <= self.match:
                return False
            self.next_index = self.match + 1
        else:
            # Probes are sent one at a time, so an answer to any but the last one is stale.
            if self.next_index - 1 != index:
                return False
            self.next_index = max(min(index, match_hint + 1), self.match + 1)
            self.is_paused = self.mode is ReplicationMode.SNAPSHOT
        self.sent_commit = min(self.sent_commit, self.next_index - 1)
        return True

    def would_learn_commit(self, commit: int) -> bool:
        """Whether `commit` is news to the peer beyond the messages already sent."""
        return commit > self.sent_commit and self.sent_commit < self.next_index - 1


def reconcile_progress(
    progress: Mapping[PeerId, PeerProgress], membership: Membership, options: RaftOptions, last_index: int
) -> dict[PeerId, PeerProgress]:
    """The progress of exactly the members. Known peers keep theirs. A new peer starts at the last entry and counts as
    active, or a quorum check right after would make the leader step down."""
    result: dict[PeerId, PeerProgress] = {}
    for peer in membership.all_members():
        known = progress.get(peer)
        if known is None:
            known = PeerProgress(options, next_index=max(last_index, 1), is_learner=False, recently_active=True)
        known.is_learner = membership.is_learner(peer)
        result[peer] = known
    return result
