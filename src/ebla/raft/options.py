"""A core's options and limits. Time is counted in ticks."""

import enum
from dataclasses import dataclass

from ebla.raft.messages import MAX_INDEX, PeerId
from ebla.raft.progress import FlowLimits


class ReadIndexMode(enum.Enum):
    SAFE = enum.auto()
    """Each read waits for a round of heartbeats to a quorum. Right whatever clocks do."""
    LEASE = enum.auto()
    """The leader answers at once while the last check of its quorum holds. Wrong where clocks drift without bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftOptions:
    peer: PeerId
    tick_ms: int = 100
    election_ticks: int = 10
    """The randomised timeout lies between this and twice this."""
    heartbeat_ticks: int = 1
    check_quorum: bool = True
    """A leader that hears from no quorum for an election timeout steps down; followers of a live leader do not vote."""
    pre_vote: bool = True
    read_mode: ReadIndexMode = ReadIndexMode.SAFE
    forward_proposals: bool = True
    validate_changes: bool = True
    """Refuse a membership change while another may be under way. Off only where the layer above sees to it."""
    broadcast_commits: bool = True
    """A leader tells each commit to everybody at once, as etcd's does. Off: by its next append, by a heartbeat, or when
    it is stepped with `TellCommit`; only changes of members at once. Under load that append follows at once."""
    campaign_early_when_ahead: bool = False
    """A follower without a leader that refuses somebody behind itself stands within a few ticks. Etcd's waits until its
    own time is up; but where a leader's appends do not reach everybody at once, who is behind may be the first."""
    step_down_on_removal: bool = True
    apply_unstable: bool = False
    """Committed entries may be applied in the batch that writes them, after the write. Only for shells that finish a
    batch before they take the next."""
    message_bytes_max: int = 1 << 20
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 16 << 20
    apply_bytes_max: int = 8 << 20
    uncommitted_bytes_max: int = 64 << 20
    waiting_reads_max: int = 4096

    def __post_init__(self) -> None:
        assert self.peer > 0, "0 is nobody"
        assert self.tick_ms > 0, "time must move"
        assert 0 < self.heartbeat_ticks < self.election_ticks, "several heartbeats fit into an election timeout"
        assert self.inflight_messages_max > 0, "something must be allowed to be in flight"
        assert self.apply_bytes_max > 0, "something must be allowed to be applied"
        assert 0 < self.message_bytes_max <= MAX_INDEX, "a message holds something"
        if self.read_mode is ReadIndexMode.LEASE:
            assert self.check_quorum, "a lease is a quorum that was heard from"

    @property
    def flow_limits(self) -> FlowLimits:
        return FlowLimits(self.inflight_messages_max, self.inflight_bytes_max)
