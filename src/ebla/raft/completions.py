"""What happens when writes complete, entries are applied and memberships change. The same in every role."""

from ebla.raft.events import ApplyCompleted, ApplyMembership, Compact, Propose, SnapshotTaken, WriteCompleted
from ebla.raft.leader import broadcast_append, on_propose, send_append, try_commit
from ebla.raft.membership import LEAVE_JOINT, apply_change, encode_change
from ebla.raft.messages import NO_PEER, EntryKind
from ebla.raft.progress import reconcile_progress
from ebla.raft.roles import Leader
from ebla.raft.state import RaftState


def on_written(state: RaftState, event: WriteCompleted) -> None:
    # A write of an older term proves nothing: its entries may have been replaced in memory, and the replacements may
    # still be on their way to the disk, even if index and term look the same again. A snapshot holds committed state,
    # which is valid in any term.
    if event.last_index and event.term == state.term:
        state.log.stable_to(event.last_index, event.last_term)
    if event.snapshot is not None:
        state.log.installed(event.snapshot)
        _applied_to(state, event.snapshot.index, size=0)


def on_applied(state: RaftState, event: ApplyCompleted) -> None:
    _applied_to(state, event.last_index, event.size)
    role = state.role
    if isinstance(role, Leader):
        role.uncommitted_bytes = max(role.uncommitted_bytes - event.payload_bytes, 0)


def _applied_to(state: RaftState, index: int, size: int) -> None:
    state.log.applied_to(max(index, state.log.applied), size)
    role = state.role
    if state.membership.auto_leave and isinstance(role, Leader) and state.log.applied >= role.pending_change_index:
        # Refused during a leadership transfer; then the next applied entry, or the next leader, tries again.
        on_propose(state, Propose((encode_change(LEAVE_JOINT),), EntryKind.MEMBERS))


def on_apply_membership(state: RaftState, event: ApplyMembership) -> None:
    if event.index <= state.membership_index:
        # A snapshot overtook the entry on its way to the state machine, and includes its effect.
        return
    state.membership, state.membership_index = apply_change(state.membership, event.change), event.index
    role = state.role
    if not isinstance(role, Leader):
        return
    role.progress = reconcile_progress(role.progress, state.membership, state.options, state.log.last_index)
    if not state.membership.is_voter(state.peer):
        if state.options.step_down_on_removal:
            state.become_follower(state.term, NO_PEER)
        return
    if try_commit(state, role):
        # The new quorum may be smaller.
        broadcast_append(state, role)
    else:
        # New peers need not wait for the next heartbeat.
        for peer in role.progress:
            if peer != state.peer:
                send_append(state, role, peer, even_empty=False)
    if role.transferee != NO_PEER and not state.membership.is_voter(role.transferee):
        role.transferee = NO_PEER


def on_snapshot_taken(state: RaftState, event: SnapshotTaken) -> None:
    state.log.snapshot_taken(event.snapshot)


def on_compact(state: RaftState, event: Compact) -> None:
    state.log.compact(event.index)
