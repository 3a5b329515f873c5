"""A core's options and limits. Time is counted in ticks."""

import enum
from dataclasses import dataclass

from ebla.raft.messages import MAX_INDEX, PeerId


class ReadIndexMode(enum.Enum):
    SAFE = enum.auto()
    """Each read waits for a round of heartbeats to a quorum. Correct whatever the clocks do."""
    LEASE = enum.auto()
    """The leader answers at once while its last quorum check holds. Wrong if clocks drift without bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftOptions:
    """The options of the first group are for tuning. Those of the second are compatibility with the oracle: etcd's
    recorded transcripts need them to replay. Ebla runs with their defaults; do not tune them."""

    peer: PeerId
    tick_ms: int = 100
    election_ticks: int = 10
    """The randomised election timeout lies between this and twice this."""
    heartbeat_ticks: int = 1
    pre_vote: bool = True
    forward_proposals: bool = True
    broadcast_commits: bool = True
    """A leader announces each commit to all peers at once, as etcd's does. Off: the commit index travels with the next
    append, with a heartbeat, or when `SendCommit` is stepped in; only membership changes are announced at once. Under
    load that append follows immediately."""
    campaign_early_when_ahead: bool = False
    """A follower without a leader that rejects a stale candidate campaigns within a few ticks. Etcd's waits for its own
    election timeout; but if a leader's appends do not reach every peer at once, a stale peer may campaign first."""
    message_bytes_max: int = 1 << 20
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 16 << 20
    """0: unlimited."""
    apply_bytes_max: int = 8 << 20
    uncommitted_bytes_max: int = 64 << 20
    waiting_reads_max: int = 4096

    # Compatibility with the oracle.
    check_quorum: bool = True
    """A leader that hears from no quorum for an election timeout steps down; followers of a live leader do not vote."""
    read_mode: ReadIndexMode = ReadIndexMode.SAFE
    validate_changes: bool = True
    """Reject a membership change while another may be in progress. Off only if the layer above takes care of it."""
    step_down_on_removal: bool = True
    apply_unstable: bool = False
    """Committed entries may be applied in the batch that writes them, after the write. Only for drivers that finish a
    batch before they take the next."""

    def __post_init__(self) -> None:
        assert self.peer > 0, "0 is no peer"
        assert self.tick_ms > 0, "time must move"
        assert 0 < self.heartbeat_ticks < self.election_ticks, "several heartbeats fit into an election timeout"
        assert self.inflight_messages_max > 0, "at least one message may be in flight"
        assert self.apply_bytes_max > 0, "at least one entry may be applied"
        assert 0 < self.message_bytes_max <= MAX_INDEX, "a message holds at least one entry"
        if self.read_mode is ReadIndexMode.LEASE:
            assert self.check_quorum, "a lease rests on a quorum check"
