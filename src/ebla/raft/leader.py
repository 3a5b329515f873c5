"""The leader: accepts proposals, replicates them, serves reads and transfers leadership."""

from ebla.raft.effects import ConfirmedRead
from ebla.raft.events import (
    PeerReachable,
    PeerUnreachable,
    Propose,
    ReadIndex,
    SendCommit,
    SnapshotSent,
    TransferLeadership,
)
from ebla.raft.membership import decode_change
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    LeaderTransferRequest,
    PeerId,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
)
from ebla.raft.options import ReadIndexMode
from ebla.raft.progress import PeerProgress, ReplicationMode
from ebla.raft.quorum import VoteResult, joint_index, joint_vote
from ebla.raft.roles import Leader, PendingRead
from ebla.raft.state import RaftState, StepRefusal


def _leader(state: RaftState) -> Leader:
    role = state.role
    assert isinstance(role, Leader)
    return role


# Proposals.


def on_propose(state: RaftState, proposed: Propose | Proposal) -> StepRefusal | None:
    leader, kind, payloads = _leader(state), proposed.kind, proposed.payloads
    assert payloads, "a proposal has a payload"
    if state.peer not in leader.progress:
        return StepRefusal.NOT_A_MEMBER
    if leader.transferee != NO_PEER:
        # An entry appended now would only delay the next leader, which must hold the whole log.
        return StepRefusal.TRANSFERRING
    first, term = state.log.last_index + 1, state.term
    if kind is EntryKind.COMMAND:
        entries = [Entry(index=index, term=term, data=data) for index, data in enumerate(payloads, first)]
        pending = leader.pending_change_index
    else:
        entries, pending = _change_entries(state, leader, kind, payloads)
    size = sum(map(len, payloads))
    # The first one always fits, and empty payloads are never refused: an empty entry ends a joint phase.
    if leader.uncommitted_bytes and size and leader.uncommitted_bytes + size > state.options.uncommitted_bytes_max:
        return StepRefusal.TOO_MUCH_UNCOMMITTED
    leader.pending_change_index = pending
    leader.uncommitted_bytes += size
    append_as_leader(state, leader, entries)
    return None


def append_as_leader(state: RaftState, leader: Leader, entries: list[Entry]) -> None:
    state.log.append(entries)
    # The leader acknowledges its own entries like any peer, once they are durable (INV-RAFT-7).
    state.respond_when_durable(
        AppendResponse(sender=state.peer, to=state.peer, term=state.term, index=entries[-1].index)
    )
    broadcast_append(state, leader)


def _change_entries(
    state: RaftState, leader: Leader, kind: EntryKind, payloads: tuple[bytes, ...]
) -> tuple[list[Entry], int]:
    """A change that is not allowed now becomes an empty entry: the proposal keeps its position and has no effect."""
    pending, entries = leader.pending_change_index, []
    for index, data in enumerate(payloads, state.log.last_index + 1):
        if state.options.validate_changes and not _may_change_now(state, data, pending):
            entries.append(Entry(index=index, term=state.term))
        else:
            pending = index
            entries.append(Entry(index=index, term=state.term, data=data, kind=kind))
    return entries, pending


def _may_change_now(state: RaftState, data: bytes, pending_change_index: int) -> bool:
    """INV-RAFT-5: one change at a time. Two in progress could be decided by majorities that do not overlap."""
    if pending_change_index > state.log.applied:
        return False
    wants_to_leave = not decode_change(data).changes
    return wants_to_leave is state.membership.is_joint


# Sending.


def send_append(state: RaftState, leader: Leader, peer: PeerId, *, even_empty: bool = True) -> bool:
    """Sends what the peer needs next, unless it is paused. True if something was sent."""
    progress = leader.progress[peer]
    if progress.is_paused:
        return False
    log = state.log
    prev_index = progress.next_index - 1
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        return _send_snapshot(state, peer, progress)
    # A full window gets an empty append: everything in flight may have been lost, and any answer empties the window.
    # Without it replication to this peer would stall.
    entries: tuple[Entry, ...] = ()
    if progress.mode is not ReplicationMode.REPLICATE or not progress.inflight.is_full:
        entries = log.slice(progress.next_index, log.last_index, state.options.message_bytes_max)
    if not entries and not even_empty:
        return False
    state.messages.append(
        Append(
            sender=state.peer,
            to=peer,
            term=state.term,
            prev_index=prev_index,
            prev_term=prev_term,
            commit=log.committed,
            entries=entries,
        )
    )
    progress.sent_entries(len(entries), log.size_of(entries) if entries else 0)
    progress.sent_commit = log.committed
    return True


def _send_snapshot(state: RaftState, peer: PeerId, progress: PeerProgress) -> bool:
    """Only to a recently active peer: a snapshot is too expensive to send to a dead one."""
    snapshot = state.log.snapshot
    if not progress.recently_active or snapshot.index < state.log.base_index:
        return False
    progress.become_snapshot(snapshot.index)
    state.messages.append(InstallSnapshot(sender=state.peer, to=peer, term=state.term, snapshot=snapshot))
    return True


def broadcast_append(state: RaftState, leader: Leader) -> None:
    for peer in leader.progress:
        if peer != state.peer:
            send_append(state, leader, peer)


def broadcast_heartbeat(state: RaftState, leader: Leader, read_context: bytes) -> None:
    """The commit index is capped at what the peer is known to hold: behind that its log may differ from ours."""
    for peer, progress in leader.progress.items():
        if peer != state.peer:
            commit = min(progress.match, state.log.committed)
            state.messages.append(
                Heartbeat(sender=state.peer, to=peer, term=state.term, commit=commit, read_context=read_context)
            )
            progress.sent_commit = commit


def try_commit(state: RaftState, leader: Leader) -> bool:
    """INV-RAFT-3: only an entry of the leader's own term is committed by counting.

    An older entry may be on a majority and still be replaced (Raft paper, figure 8):

    1. S1 leads term 2 and replicates an entry to S2. S5 leads term 3 alone.
    2. S1 leads term 4 and replicates the entry of term 2 to S3: a majority.
    3. S5 leads term 5, elected by S2, S3 and S4, whose last terms are older than 3, and overwrites it.

    An entry of term 4 on a majority would prevent S5's election.
    """
    acknowledged = {peer: progress.match for peer, progress in leader.progress.items()}
    index = joint_index(state.membership, acknowledged)
    if index <= state.log.committed or state.log.term_at(index) != state.term:
        return False
    state.log.commit_to(index)
    return True


# Answers.


def on_append_response(state: RaftState, answer: AppendResponse) -> None:
    leader = _leader(state)
    progress = leader.progress.get(answer.sender)
    if progress is None:
        return
    progress.recently_active = True
    if answer.rejected:
        _step_back(state, leader, progress, answer)
    elif progress.acknowledged(answer.index) or (
        progress.match == answer.index and progress.mode is ReplicationMode.PROBE
    ):
        _step_forward(state, leader, progress, answer)


def _step_back(state: RaftState, leader: Leader, progress: PeerProgress, answer: AppendResponse) -> None:
    """Both sides skip whole terms: the peer sent the last position where its log may agree with ours, and we find the
    last position where ours may agree with that."""
    probe = answer.hint_index
    if answer.hint_term > 0:
        probe, _ = state.log.agreement_hint(answer.hint_index, answer.hint_term)
    if progress.rejected(answer.index, probe):
        if progress.mode is ReplicationMode.REPLICATE:
            progress.become_probe()
        send_append(state, leader, answer.sender)


def _step_forward(state: RaftState, leader: Leader, progress: PeerProgress, answer: AppendResponse) -> None:
    if progress.mode is ReplicationMode.REPLICATE:
        progress.inflight.acknowledge(answer.index)
    elif progress.mode is ReplicationMode.PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= state.log.first_index:
        # The rest can come from the log. `become_probe` first: it takes the pending snapshot into account.
        progress.become_probe()
        progress.become_replicate()
    is_own = answer.sender == state.peer
    committed = state.log.committed
    # Nothing at or below the commit index can move it.
    if answer.index > committed and try_commit(state, leader):
        _release_early_reads(state, leader)
        # A membership change is announced at once, even if other commits are announced later: once it is applied here,
        # a removed peer is sent nothing more and would never see the entry that removed it; and if this leader removed
        # itself, no peer would.
        if state.options.broadcast_commits or committed < leader.pending_change_index <= state.log.committed:
            broadcast_append(state, leader)
    elif state.options.broadcast_commits and not is_own and progress.would_learn_commit(state.log.committed):
        send_append(state, leader, answer.sender)
    if is_own:
        return
    # The answer may have opened the window for more than one message.
    while progress.next_index <= state.log.last_index and send_append(state, leader, answer.sender, even_empty=False):
        pass
    if answer.sender == leader.transferee and progress.match == state.log.last_index:
        state.messages.append(TimeoutNow(sender=state.peer, to=answer.sender, term=state.term))


def on_send_commit(state: RaftState, event: SendCommit) -> None:
    leader = _leader(state)
    for peer, progress in leader.progress.items():
        is_meant = peer != state.peer and event.peer in (peer, NO_PEER)
        if is_meant and progress.sent_commit < event.index and progress.would_learn_commit(state.log.committed):
            send_append(state, leader, peer)


def on_heartbeat_response(state: RaftState, answer: HeartbeatResponse) -> None:
    leader = _leader(state)
    progress = leader.progress.get(answer.sender)
    if progress is None:
        return
    progress.recently_active = True
    progress.is_paused = progress.mode is ReplicationMode.SNAPSHOT
    # The peer is alive but may have lost appends; or it has everything, and an empty append ends the probing.
    if progress.match < state.log.last_index or progress.mode is ReplicationMode.PROBE:
        send_append(state, leader, answer.sender)
    if answer.read_context:
        _confirmed_by(state, leader, answer.sender, answer.read_context)


def on_snapshot_sent(state: RaftState, event: SnapshotSent) -> None:
    progress = _leader(state).progress.get(event.peer)
    if progress is None or progress.mode is not ReplicationMode.SNAPSHOT:
        return
    if not event.delivered:
        progress.pending_snapshot = 0
    progress.become_probe()
    # Delivered: its acknowledgement says how to continue. Not delivered: retry after a heartbeat, not at once.
    progress.is_paused = True


def on_peer_unreachable(state: RaftState, event: PeerUnreachable) -> None:
    progress = _leader(state).progress.get(event.peer)
    if progress is not None and progress.mode is ReplicationMode.REPLICATE:
        progress.become_probe()


def on_peer_reachable(state: RaftState, event: PeerReachable) -> None:
    leader = _leader(state)
    progress = leader.progress.get(event.peer)
    if progress is not None and event.peer != state.peer and progress.mode is ReplicationMode.PROBE:
        progress.is_paused = False
        send_append(state, leader, event.peer)


# Reads.


def on_read_index(state: RaftState, event: ReadIndex) -> StepRefusal | None:
    return _take_read(state, state.peer, event.context)


def on_read_request(state: RaftState, message: ReadIndexRequest) -> StepRefusal | None:
    return _take_read(state, message.sender, message.read_context)


def _take_read(state: RaftState, sender: PeerId, context: bytes) -> StepRefusal | None:
    leader = _leader(state)
    if len(leader.reads) >= state.options.waiting_reads_max:
        return StepRefusal.TOO_MANY_READS
    read = PendingRead(sender=sender, context=context)
    if state.log.term_at(state.log.committed) != state.term:
        # An earlier leader, or this peer before a restart, may have committed more than we know. Our first entry will
        # show it.
        leader.reads.early.append(read)
    else:
        _confirm_read(state, leader, read)
    return None


def _confirm_read(state: RaftState, leader: Leader, read: PendingRead) -> None:
    if state.options.read_mode is ReadIndexMode.LEASE:
        _answer_read(state, read.sender, state.log.committed, read.context)
        return
    read.index = state.log.committed
    leader.reads.add(read)
    broadcast_heartbeat(state, leader, read.context)
    _confirmed_by(state, leader, state.peer, read.context)


def _confirmed_by(state: RaftState, leader: Leader, peer: PeerId, context: bytes) -> None:
    """The round of heartbeats began after the read arrived: peers that answer it had not elected another leader."""
    if joint_vote(state.membership, leader.reads.acknowledge(peer, context)) is VoteResult.WON:
        for read in leader.reads.release(context):
            _answer_read(state, read.sender, read.index, read.context)


def _release_early_reads(state: RaftState, leader: Leader) -> None:
    early, leader.reads.early = leader.reads.early, []
    for read in early:
        _confirm_read(state, leader, read)


def _answer_read(state: RaftState, sender: PeerId, index: int, context: bytes) -> None:
    if sender == state.peer:
        state.reads.append(ConfirmedRead(index, context))
    else:
        state.messages.append(
            ReadIndexResponse(sender=state.peer, to=sender, term=state.term, index=index, read_context=context)
        )


# Leadership transfer.


def on_transfer(state: RaftState, request: TransferLeadership | LeaderTransferRequest) -> None:
    leader, target = _leader(state), request.target
    progress = leader.progress.get(target)
    if progress is None or progress.is_learner or leader.transferee == target:
        return
    leader.transferee = NO_PEER
    if target == state.peer:
        return
    # The transfer must finish within one election timeout, or we accept proposals again.
    state.election_elapsed = 0
    leader.transferee = target
    if progress.match == state.log.last_index:
        state.messages.append(TimeoutNow(sender=state.peer, to=target, term=state.term))
    else:
        send_append(state, leader, target)


# Time.


def check_quorum(state: RaftState) -> None:
    """A leader without answers from a quorum steps down: it cannot commit, and another may have been elected."""
    leader = _leader(state)
    active = {peer: progress.recently_active for peer, progress in leader.progress.items() if not progress.is_learner}
    for peer, progress in leader.progress.items():
        if peer != state.peer:
            progress.recently_active = False
    if joint_vote(state.membership, active) is not VoteResult.WON:
        state.become_follower(state.term, NO_PEER)


def tick(state: RaftState) -> None:
    leader = _leader(state)
    state.heartbeat_elapsed += 1
    state.election_elapsed += 1
    if state.election_elapsed >= state.options.election_ticks:
        state.election_elapsed = 0
        if state.options.check_quorum:
            check_quorum(state)
            if state.role is not leader:
                return
        leader.transferee = NO_PEER
    if state.heartbeat_elapsed >= state.options.heartbeat_ticks:
        state.heartbeat_elapsed = 0
        broadcast_heartbeat(state, leader, leader.reads.last_context())
