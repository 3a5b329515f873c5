"""The state machine as tables: for each role, what each kind of event or message does. Total: ignored ones are listed
too."""

from collections.abc import Callable, Mapping
from typing import Any

from ebla.raft import completions, elections, events, follower, leader, messages
from ebla.raft.events import RaftEvent
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate, Role
from ebla.raft.state import RaftState, StepOutcome, StepRefusal

# Each row takes exactly the type it is keyed by, which the type system cannot say of a mapping.
EventAction = Callable[[RaftState, Any], StepOutcome]
RoleTable = Mapping[type[RaftEvent], EventAction]
TickAction = Callable[[RaftState], None]


def ignore(_state: RaftState, _event: RaftEvent) -> None:
    """Late, or meant for another role: ignoring it loses nothing."""


def refuse(_state: RaftState, _event: RaftEvent) -> StepRefusal:
    return StepRefusal.NO_LEADER


def tick_towards_election(state: RaftState) -> None:
    state.election_elapsed += 1
    if state.election_elapsed >= state.election_timeout and state.is_promotable:
        state.election_elapsed = 0
        elections.start_election(state)


ANY_ROLE: RoleTable = {
    events.Campaign: lambda state, _event: elections.start_election(state),
    messages.VoteRequest: elections.on_vote_request,
    messages.PreVoteRequest: elections.on_pre_vote_request,
    events.WriteCompleted: completions.on_written,
    events.ApplyCompleted: completions.on_applied,
    events.ApplyMembership: completions.on_apply_membership,
    events.SnapshotTaken: completions.on_snapshot_taken,
    events.Compact: completions.on_compact,
}

NOT_LEADER: RoleTable = {
    **ANY_ROLE,
    messages.AppendResponse: ignore,
    messages.HeartbeatResponse: ignore,
    messages.Append: follower.on_append,
    messages.Heartbeat: follower.on_heartbeat,
    messages.InstallSnapshot: follower.on_install_snapshot,
    events.PeerUnreachable: ignore,
    events.PeerReachable: ignore,
    events.SnapshotSent: ignore,
    events.SendCommit: ignore,
}

FOLLOWER: RoleTable = {
    **NOT_LEADER,
    messages.VoteResponse: ignore,
    messages.PreVoteResponse: ignore,
    messages.TimeoutNow: follower.on_timeout_now,
    events.Propose: follower.on_propose,
    messages.Proposal: follower.on_propose,
    events.ReadIndex: follower.on_read_index,
    messages.ReadIndexRequest: ignore,
    messages.ReadIndexResponse: follower.on_read_response,
    events.TransferLeadership: follower.on_transfer,
    messages.LeaderTransferRequest: follower.on_transfer,
    events.ForgetLeader: follower.on_forget_leader,
}

_CAMPAIGNING: RoleTable = {
    **NOT_LEADER,
    messages.TimeoutNow: ignore,
    events.Propose: refuse,
    messages.Proposal: refuse,
    events.ReadIndex: refuse,
    messages.ReadIndexRequest: ignore,
    messages.ReadIndexResponse: ignore,
    events.TransferLeadership: refuse,
    messages.LeaderTransferRequest: ignore,
    events.ForgetLeader: ignore,
}

PRE_CANDIDATE: RoleTable = {
    **_CAMPAIGNING,
    messages.VoteResponse: ignore,
    messages.PreVoteResponse: elections.on_pre_vote_response,
}

CANDIDATE: RoleTable = {
    **_CAMPAIGNING,
    messages.VoteResponse: elections.on_vote_response,
    # Late: from before this peer became a candidate.
    messages.PreVoteResponse: ignore,
}

LEADER: RoleTable = {
    **ANY_ROLE,
    messages.VoteResponse: ignore,
    messages.PreVoteResponse: ignore,
    # There is no second leader in one term (INV-RAFT-1).
    messages.Append: ignore,
    messages.Heartbeat: ignore,
    messages.InstallSnapshot: ignore,
    messages.AppendResponse: leader.on_append_response,
    messages.HeartbeatResponse: leader.on_heartbeat_response,
    events.PeerUnreachable: leader.on_peer_unreachable,
    events.PeerReachable: leader.on_peer_reachable,
    events.SnapshotSent: leader.on_snapshot_sent,
    events.SendCommit: leader.on_send_commit,
    messages.TimeoutNow: ignore,
    events.Propose: leader.on_propose,
    messages.Proposal: leader.on_propose,
    events.ReadIndex: leader.on_read_index,
    messages.ReadIndexRequest: leader.on_read_request,
    messages.ReadIndexResponse: ignore,
    events.TransferLeadership: leader.on_transfer,
    messages.LeaderTransferRequest: leader.on_transfer,
    events.ForgetLeader: ignore,
}

TABLES: Mapping[type[Role], RoleTable] = {
    Follower: FOLLOWER,
    PreCandidate: PRE_CANDIDATE,
    Candidate: CANDIDATE,
    Leader: LEADER,
}

TICKS: Mapping[type[Role], TickAction] = {
    Follower: tick_towards_election,
    PreCandidate: tick_towards_election,
    Candidate: tick_towards_election,
    Leader: leader.tick,
}
