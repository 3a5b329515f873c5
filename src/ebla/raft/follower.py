"""The follower: accepts what the leader sends, and forwards what only the leader can do."""

from ebla.raft.effects import ConfirmedRead
from ebla.raft.elections import start_election
from ebla.raft.events import ForgetLeader, Propose, ReadIndex, TransferLeadership
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    LeaderTransferRequest,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
)
from ebla.raft.options import ReadIndexMode
from ebla.raft.roles import Follower
from ebla.raft.state import Contradiction, ContradictionKind, RaftState, StepRefusal

FromLeader = Append | Heartbeat | InstallSnapshot


def _follow_leader(state: RaftState, message: FromLeader) -> None:
    state.election_elapsed = 0
    role = state.role
    if isinstance(role, Follower):
        role.leader = message.sender
    else:
        # A candidate that receives a message from the leader of its own term has lost the election.
        state.become_follower(state.term, message.sender)


def on_append(state: RaftState, append: Append) -> Contradiction | None:
    _follow_leader(state, append)
    log = state.log
    if append.prev_index < log.committed:
        conflict = log.first_conflict(append.prev_index, append.prev_term, append.entries)
        if conflict is not None:
            return _replaces_committed(state, append, conflict)
        # Late or reordered. Committed entries are the same on the leader, so acknowledge those.
        _acknowledge(state, append, log.committed)
        return None
    last = log.try_append(append.prev_index, append.prev_term, append.entries)
    if last is not None:
        # Behind `last` our log may differ from the leader's, so its commit index does not apply there.
        log.commit_to(min(append.commit, last))
        _acknowledge(state, append, last)
        return None
    if append.prev_index == log.committed:
        return _replaces_committed(state, append, append.prev_index)
    hint_index, hint_term = log.agreement_hint(min(append.prev_index, log.last_index), append.prev_term)
    state.respond_when_durable(
        AppendResponse(
            sender=state.peer,
            to=append.sender,
            term=state.term,
            index=append.prev_index,
            rejected=True,
            hint_index=hint_index,
            hint_term=hint_term,
        )
    )
    return None


def _replaces_committed(state: RaftState, append: Append, index: int) -> Contradiction:
    return Contradiction(
        kind=ContradictionKind.COMMITTED_ENTRY_REPLACED,
        leader=append.sender,
        index=index,
        own_index=state.log.committed,
    )


def _acknowledge(state: RaftState, message: FromLeader, index: int) -> None:
    state.respond_when_durable(AppendResponse(sender=state.peer, to=message.sender, term=state.term, index=index))


def on_heartbeat(state: RaftState, heartbeat: Heartbeat) -> Contradiction | None:
    """A heartbeat's commit index is at most what this peer has acknowledged to this leader."""
    _follow_leader(state, heartbeat)
    if heartbeat.commit > state.log.last_index:
        return Contradiction(
            kind=ContradictionKind.COMMIT_BEYOND_LOG,
            leader=heartbeat.sender,
            index=heartbeat.commit,
            own_index=state.log.last_index,
        )
    state.log.commit_to(heartbeat.commit)
    state.messages.append(
        HeartbeatResponse(sender=state.peer, to=heartbeat.sender, term=state.term, read_context=heartbeat.read_context)
    )
    return None


def on_install_snapshot(state: RaftState, message: InstallSnapshot) -> None:
    _follow_leader(state, message)
    installed = _install(state, message.snapshot)
    _acknowledge(state, message, state.log.last_index if installed else state.log.committed)


def _install(state: RaftState, snapshot: SnapshotMeta) -> bool:
    """Whether the snapshot replaces our state. It need not list this peer, which may have been added after it."""
    log = state.log
    if snapshot.index <= log.committed:
        return False
    if log.matches(snapshot.index, snapshot.term):
        # We hold the log up to there and only did not know that it is committed.
        log.commit_to(snapshot.index)
        return False
    log.install(snapshot)
    state.membership, state.membership_index = snapshot.membership, snapshot.index
    return True


def on_timeout_now(state: RaftState, _message: TimeoutNow) -> None:
    start_election(state, is_transfer=True)


def on_propose(state: RaftState, proposed: Propose | Proposal) -> StepRefusal | None:
    leader = state.role.leader
    if leader == NO_PEER:
        return StepRefusal.NO_LEADER
    if not state.options.forward_proposals:
        return StepRefusal.FORWARDING_OFF
    state.messages.append(Proposal(sender=state.peer, to=leader, kind=proposed.kind, payloads=proposed.payloads))
    return None


def on_read_index(state: RaftState, event: ReadIndex) -> StepRefusal | None:
    leader = state.role.leader
    if leader == NO_PEER:
        return StepRefusal.NO_LEADER
    state.messages.append(ReadIndexRequest(sender=state.peer, to=leader, read_context=event.context))
    return None


def on_read_response(state: RaftState, response: ReadIndexResponse) -> None:
    state.reads.append(ConfirmedRead(response.index, response.read_context))


def on_transfer(state: RaftState, request: TransferLeadership | LeaderTransferRequest) -> StepRefusal | None:
    leader = state.role.leader
    if leader == NO_PEER:
        return StepRefusal.NO_LEADER
    state.messages.append(LeaderTransferRequest(sender=state.peer, to=leader, term=state.term, target=request.target))
    return None


def on_forget_leader(state: RaftState, _event: ForgetLeader) -> None:
    """Not with leases: a leader that answers reads at once relies on no peer voting before the election timeout."""
    role = state.role
    assert isinstance(role, Follower)
    if state.options.read_mode is not ReadIndexMode.LEASE:
        role.leader = NO_PEER
