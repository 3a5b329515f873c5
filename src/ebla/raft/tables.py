"""The state machine as tables: for each role, what each kind of event or message does. Total: ignored ones are listed
too."""

from collections.abc import Callable, Mapping
from typing import Any

from ebla.raft import completions, elections, follower, leader
from ebla.raft.events import (
    ApplyCompleted,
    ApplyMembership,
    Campaign,
    Compact,
    ForgetLeader,
    PeerReachable,
    PeerUnreachable,
    Propose,
    RaftEvent,
    ReadIndex,
    SendCommit,
    SnapshotSent,
    SnapshotTaken,
    TransferLeadership,
    WriteCompleted,
)
from ebla.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    LeaderTransferRequest,
    PreVoteRequest,
    PreVoteResponse,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate, Role
from ebla.raft.state import RaftState, StepRefusal

# Each row takes exactly the type it is keyed by, which the type system cannot say of a mapping.
EventAction = Callable[[RaftState, Any], StepRefusal | None]
RoleTable = Mapping[type[RaftEvent], EventAction]
TickAction = Callable[[RaftState], None]


def ignore(_state: RaftState, _event: RaftEvent) -> None:
    """Late, or meant for another role: ignoring it loses nothing."""


def refuse(_state: RaftState, _event: RaftEvent) -> StepRefusal:
    return StepRefusal.NO_LEADER


def _campaign(state: RaftState, _event: Campaign) -> None:
    elections.start_election(state)


def tick_towards_election(state: RaftState) -> None:
    state.election_elapsed += 1
    if state.election_elapsed >= state.election_timeout and state.is_promotable:
        state.election_elapsed = 0
        elections.start_election(state)


ANY_ROLE: RoleTable = {
    Campaign: _campaign,
    VoteRequest: elections.on_vote_request,
    PreVoteRequest: elections.on_pre_vote_request,
    WriteCompleted: completions.on_written,
    ApplyCompleted: completions.on_applied,
    ApplyMembership: completions.on_apply_membership,
    SnapshotTaken: completions.on_snapshot_taken,
    Compact: completions.on_compact,
}

NOT_LEADER: RoleTable = {
    **ANY_ROLE,
    AppendResponse: ignore,
    HeartbeatResponse: ignore,
    Append: follower.on_append,
    Heartbeat: follower.on_heartbeat,
    InstallSnapshot: follower.on_install_snapshot,
    PeerUnreachable: ignore,
    PeerReachable: ignore,
    SnapshotSent: ignore,
    SendCommit: ignore,
}

FOLLOWER: RoleTable = {
    **NOT_LEADER,
    VoteResponse: ignore,
    PreVoteResponse: ignore,
    TimeoutNow: follower.on_timeout_now,
    Propose: follower.on_propose,
    Proposal: follower.on_proposal,
    ReadIndex: follower.on_read_index,
    ReadIndexRequest: ignore,
    ReadIndexResponse: follower.on_read_response,
    TransferLeadership: follower.on_transfer,
    LeaderTransferRequest: follower.on_transfer_request,
    ForgetLeader: follower.on_forget_leader,
}

_CAMPAIGNING: RoleTable = {
    **NOT_LEADER,
    TimeoutNow: ignore,
    Propose: refuse,
    Proposal: refuse,
    ReadIndex: refuse,
    ReadIndexRequest: ignore,
    ReadIndexResponse: ignore,
    TransferLeadership: refuse,
    LeaderTransferRequest: ignore,
    ForgetLeader: ignore,
}

PRE_CANDIDATE: RoleTable = {
    **_CAMPAIGNING,
    VoteResponse: ignore,
    PreVoteResponse: elections.on_pre_vote_response,
}

CANDIDATE: RoleTable = {
    **_CAMPAIGNING,
    VoteResponse: elections.on_vote_response,
    # Late: from before this peer became a candidate.
    PreVoteResponse: ignore,
}

LEADER: RoleTable = {
    **ANY_ROLE,
    VoteResponse: ignore,
    PreVoteResponse: ignore,
    # There is no second leader in one term (INV-RAFT-1).
    Append: ignore,
    Heartbeat: ignore,
    InstallSnapshot: ignore,
    AppendResponse: leader.on_append_response,
    HeartbeatResponse: leader.on_heartbeat_response,
    PeerUnreachable: leader.on_peer_unreachable,
    PeerReachable: leader.on_peer_reachable,
    SnapshotSent: leader.on_snapshot_sent,
    SendCommit: leader.on_tell_commit,
    TimeoutNow: ignore,
    Propose: leader.on_propose,
    Proposal: leader.on_proposal,
    ReadIndex: leader.on_read_index,
    ReadIndexRequest: leader.on_read_request,
    ReadIndexResponse: ignore,
    TransferLeadership: leader.on_transfer,
    LeaderTransferRequest: leader.on_transfer_request,
    ForgetLeader: ignore,
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
