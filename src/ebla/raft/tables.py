"""Who does what: for each role, what each kind of event or message leads to. Total: what is ignored says so."""

from collections.abc import Callable, Mapping
from typing import Any

from ebla.raft import applying, elections, following, leading
from ebla.raft.events import (
    Applied,
    ApplyMembership,
    Campaign,
    Compact,
    Event,
    ForgetLeader,
    PeerReachable,
    PeerUnreachable,
    Propose,
    ReadIndex,
    SnapshotSent,
    SnapshotTaken,
    TellCommit,
    TransferLeadership,
    Written,
)
from ebla.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    PreVoteRequest,
    PreVoteResponse,
    Proposal,
    ReadRequest,
    ReadResponse,
    TimeoutNow,
    TransferRequest,
    VoteRequest,
    VoteResponse,
)
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate, Role
from ebla.raft.state import Refusal, State

# Each row takes exactly the type it is keyed by, which the type system cannot say of a mapping.
Row = Callable[[State, Any], Refusal | None]
Table = Mapping[type[Event], Row]
Clockwork = Callable[[State], None]


def ignore(_state: State, _event: Event) -> None:
    """Late, or meant for another role: nothing is lost by it."""


def refuse(_state: State, _event: Event) -> Refusal:
    return Refusal.NO_LEADER


def _stand(state: State, _event: Campaign) -> None:
    elections.stand(state)


def tick_towards_election(state: State) -> None:
    state.election_elapsed += 1
    if state.election_elapsed >= state.election_timeout and state.is_promotable:
        state.election_elapsed = 0
        elections.stand(state)


EVERYBODY: Table = {
    Campaign: _stand,
    VoteRequest: elections.on_vote_request,
    PreVoteRequest: elections.on_pre_vote_request,
    Written: applying.on_written,
    Applied: applying.on_applied,
    ApplyMembership: applying.on_apply_membership,
    SnapshotTaken: applying.on_snapshot_taken,
    Compact: applying.on_compact,
}

NOT_LEADING: Table = {
    **EVERYBODY,
    AppendResponse: ignore,
    HeartbeatResponse: ignore,
    Append: following.on_append,
    Heartbeat: following.on_heartbeat,
    InstallSnapshot: following.on_install_snapshot,
    PeerUnreachable: ignore,
    PeerReachable: ignore,
    SnapshotSent: ignore,
    TellCommit: ignore,
}

FOLLOWER: Table = {
    **NOT_LEADING,
    VoteResponse: ignore,
    PreVoteResponse: ignore,
    TimeoutNow: following.on_timeout_now,
    Propose: following.on_propose,
    Proposal: following.on_proposal,
    ReadIndex: following.on_read_index,
    ReadRequest: ignore,
    ReadResponse: following.on_read_response,
    TransferLeadership: following.on_transfer,
    TransferRequest: following.on_transfer_request,
    ForgetLeader: following.on_forget_leader,
}

_CAMPAIGNING: Table = {
    **NOT_LEADING,
    TimeoutNow: ignore,
    Propose: refuse,
    Proposal: refuse,
    ReadIndex: refuse,
    ReadRequest: ignore,
    ReadResponse: ignore,
    TransferLeadership: refuse,
    TransferRequest: ignore,
    ForgetLeader: ignore,
}

PRE_CANDIDATE: Table = {
    **_CAMPAIGNING,
    VoteResponse: ignore,
    PreVoteResponse: elections.on_pre_vote_response,
}

CANDIDATE: Table = {
    **_CAMPAIGNING,
    VoteResponse: elections.on_vote_response,
    # Of the time before we became a candidate.
    PreVoteResponse: ignore,
}

LEADER: Table = {
    **EVERYBODY,
    VoteResponse: ignore,
    PreVoteResponse: ignore,
    # A second leader in one term there is not (INV-RAFT-1).
    Append: ignore,
    Heartbeat: ignore,
    InstallSnapshot: ignore,
    AppendResponse: leading.on_append_response,
    HeartbeatResponse: leading.on_heartbeat_response,
    PeerUnreachable: leading.on_peer_unreachable,
    PeerReachable: leading.on_peer_reachable,
    SnapshotSent: leading.on_snapshot_sent,
    TellCommit: leading.on_tell_commit,
    TimeoutNow: ignore,
    Propose: leading.on_propose,
    Proposal: leading.on_proposal,
    ReadIndex: leading.on_read_index,
    ReadRequest: leading.on_read_request,
    ReadResponse: ignore,
    TransferLeadership: leading.on_transfer,
    TransferRequest: leading.on_transfer_request,
    ForgetLeader: ignore,
}

TABLES: Mapping[type[Role], Table] = {
    Follower: FOLLOWER,
    PreCandidate: PRE_CANDIDATE,
    Candidate: CANDIDATE,
    Leader: LEADER,
}

TICKS: Mapping[type[Role], Clockwork] = {
    Follower: tick_towards_election,
    PreCandidate: tick_towards_election,
    Candidate: tick_towards_election,
    Leader: leading.tick,
}
