"""A follower's side: taking what the leader sends, passing on what only the leader can do."""

from ebla.raft.effects import ReadState
from ebla.raft.elections import stand
from ebla.raft.events import ForgetLeader, Propose, ReadIndex, TransferLeadership
from ebla.raft.messages import (
    NOBODY,
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Proposal,
    ReadRequest,
    ReadResponse,
    SnapshotMeta,
    TimeoutNow,
    TransferRequest,
)
from ebla.raft.options import ReadMode
from ebla.raft.roles import Follower
from ebla.raft.state import Refusal, State

FromLeader = Append | Heartbeat | InstallSnapshot


def _hear_leader(state: State, message: FromLeader) -> None:
    state.election_elapsed = 0
    role = state.role
    if isinstance(role, Follower):
        role.leader = message.sender
    else:
        # A candidate hears from the leader of its own term: the election is over.
        state.become_follower(state.term, message.sender)


def on_append(state: State, append: Append) -> None:
    _hear_leader(state, append)
    log = state.log
    if append.prev_index < log.committed:
        # Old, or reordered. What is committed here is the same at the leader, so acknowledge that.
        _acknowledge(state, append, log.committed)
        return
    last = log.try_append(append.prev_index, append.prev_term, append.entries)
    if last is not None:
        # Behind `last` our log may differ from the leader's, so its commit index says nothing about it.
        log.commit_to(min(append.commit, last))
        _acknowledge(state, append, last)
        return
    hint_index, hint_term = log.agreement_hint(min(append.prev_index, log.last_index), append.prev_term)
    state.answer_when_written(
        AppendResponse(
            state.peer,
            append.sender,
            state.term,
            append.prev_index,
            rejected=True,
            hint_index=hint_index,
            hint_term=hint_term,
        )
    )


def _acknowledge(state: State, message: FromLeader, index: int) -> None:
    state.answer_when_written(AppendResponse(state.peer, message.sender, state.term, index))


def on_heartbeat(state: State, heartbeat: Heartbeat) -> None:
    _hear_leader(state, heartbeat)
    state.log.commit_to(heartbeat.commit)
    state.messages.append(HeartbeatResponse(state.peer, heartbeat.sender, state.term, heartbeat.read_context))


def on_install_snapshot(state: State, message: InstallSnapshot) -> None:
    _hear_leader(state, message)
    installed = _install(state, message.snapshot)
    _acknowledge(state, message, state.log.last_index if installed else state.log.committed)


def _install(state: State, snapshot: SnapshotMeta) -> bool:
    """Whether our state gives way to the snapshot. It need not know of us: we may have been added behind it."""
    log = state.log
    if snapshot.index <= log.committed:
        return False
    if log.matches(snapshot.index, snapshot.term):
        # We hold the log up to there and lack only the news that it is committed.
        log.commit_to(snapshot.index)
        return False
    log.install(snapshot)
    state.membership, state.membership_index = snapshot.membership, snapshot.index
    return True


def on_timeout_now(state: State, _message: TimeoutNow) -> None:
    stand(state, asked_by_leader=True)


def on_propose(state: State, event: Propose) -> Refusal | None:
    return _pass_on(state, event)


def on_proposal(state: State, message: Proposal) -> Refusal | None:
    return _pass_on(state, message)


def _pass_on(state: State, proposed: Propose | Proposal) -> Refusal | None:
    leader = state.role.leader
    if leader == NOBODY:
        return Refusal.NO_LEADER
    if not state.options.forward_proposals:
        return Refusal.FORWARDING_OFF
    state.messages.append(Proposal(state.peer, leader, proposed.kind, proposed.payloads))
    return None


def on_read_index(state: State, event: ReadIndex) -> Refusal | None:
    leader = state.role.leader
    if leader == NOBODY:
        return Refusal.NO_LEADER
    state.messages.append(ReadRequest(state.peer, leader, event.context))
    return None


def on_read_response(state: State, response: ReadResponse) -> None:
    state.reads.append(ReadState(response.index, response.read_context))


def on_transfer(state: State, event: TransferLeadership) -> Refusal | None:
    return _pass_transfer_on(state, event)


def on_transfer_request(state: State, message: TransferRequest) -> Refusal | None:
    return _pass_transfer_on(state, message)


def _pass_transfer_on(state: State, wish: TransferLeadership | TransferRequest) -> Refusal | None:
    leader = state.role.leader
    if leader == NOBODY:
        return Refusal.NO_LEADER
    state.messages.append(TransferRequest(state.peer, leader, state.term, wish.target))
    return None


def on_forget_leader(state: State, _event: ForgetLeader) -> None:
    """Not under leases: a leader that answers reads at once relies on nobody voting before its time is up."""
    role = state.role
    assert isinstance(role, Follower)
    if state.options.read_mode is not ReadMode.LEASE:
        role.leader = NOBODY
