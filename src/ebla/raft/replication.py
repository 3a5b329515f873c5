"""A leader's sending: appends, snapshots and heartbeats, each to one peer, and to all."""

from ebla.raft.messages import Append, Entry, Heartbeat, InstallSnapshot, PeerId
from ebla.raft.progress import PeerProgress, ReplicationMode
from ebla.raft.quorum import joint_index
from ebla.raft.roles import Leader
from ebla.raft.state import RaftState


def send_append(state: RaftState, leader: Leader, peer: PeerId, *, even_empty: bool = True) -> bool:
    """What the peer needs next, if it may be sent anything now. True where something was sent."""
    progress = leader.progress[peer]
    if progress.is_paused:
        return False
    log = state.log
    prev_index = progress.next_index - 1
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        return _send_snapshot(state, peer, progress)
    # Into a full window goes an empty append: everything in flight may have been lost, and an answer, whichever,
    # empties the window. Without it replication to this peer would stand still.
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
    """Only to a peer that has been heard of lately: a snapshot is too dear to be sent into the void."""
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
    """The commit index is cut to what the peer is known to hold: behind that its log may differ from ours."""
    for peer, progress in leader.progress.items():
        if peer != state.peer:
            commit = min(progress.match, state.log.committed)
            state.messages.append(
                Heartbeat(sender=state.peer, to=peer, term=state.term, commit=commit, read_context=read_context)
            )
            progress.sent_commit = commit


def try_commit(state: RaftState, leader: Leader) -> bool:
    """INV-RAFT-3: only an entry of the leader's own term is committed by counting.

    An older one may be on a majority and still be replaced: S1 leads term 2 and reaches S2; S5 leads term 3 alone; S1
    leads term 4, brings the entry of term 2 to S3, a majority; S5 leads term 5, elected by S2, S3, S4, whose last terms
    are older than 3, and overwrites it (Raft paper, figure 8). An entry of term 4 on a majority bars S5.
    """
    acknowledged = {peer: progress.match for peer, progress in leader.progress.items()}
    index = joint_index(state.membership, acknowledged)
    if index <= state.log.committed or state.log.term_at(index) != state.term:
        return False
    state.log.commit_to(index)
    return True
