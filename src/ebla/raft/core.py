"""The Raft core: `step` takes an event, `take` returns the effects.

Pure: time and randomness come in as arguments, writes and messages go out as effects, whose order `effects.py`
explains. Choices that Raft leaves open (what is sent when, and in which order) follow etcd-io/raft, whose recorded
transcripts replay against this core.
"""

import enum
from collections.abc import Mapping
from typing import Final

from ebla.ports.rng import Rng
from ebla.raft.effects import ApplyEntries, Effects, LogWrite, RaftStatus
from ebla.raft.elections import REFUSE_OLDER, enter_newer_term
from ebla.raft.events import ApplyCompleted, RaftEvent, Tick, WriteCompleted
from ebla.raft.log import ENTRY_OVERHEAD_BYTES
from ebla.raft.messages import (
    NO_PEER,
    AppendResponse,
    Entry,
    HardState,
    HeartbeatResponse,
    Membership,
    Message,
    PeerId,
    PreVoteResponse,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    VoteResponse,
)
from ebla.raft.options import RaftOptions
from ebla.raft.roles import Follower, Leader, Role
from ebla.raft.state import RaftState, RecoveredState, StepOutcome, StepRefusal
from ebla.raft.tables import TABLES, TICKS


class _Admission(enum.IntEnum):
    """What is checked before a message reaches its row. Local events are not listed: nothing is checked."""

    BY_TERM = 1
    BY_TERM_AND_MEMBERSHIP = 2
    """Answers: only those of members count."""
    FREE = 3
    """Without a term: any leader may accept it."""


_ADMISSION: Final[Mapping[type, _Admission]] = {
    **dict.fromkeys(Message.__args__, _Admission.BY_TERM),
    **dict.fromkeys(
        (AppendResponse, VoteResponse, PreVoteResponse, HeartbeatResponse, ReadIndexResponse),
        _Admission.BY_TERM_AND_MEMBERSHIP,
    ),
    **dict.fromkeys((Proposal, ReadIndexRequest), _Admission.FREE),
}


class RaftCore:
    def __init__(self, options: RaftOptions, past: RecoveredState, rng: Rng, now_ms: int) -> None:
        self.state = RaftState(options, past, rng)
        self._now_ms = now_ms
        self._ticked_ms = now_ms
        self._taken_hard_state = self.state.hard_state
        self._taken_status = RaftStatus(Follower, NO_PEER)

    # State, readable at any time.

    @property
    def peer(self) -> PeerId:
        return self.state.peer

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def leader(self) -> PeerId:
        return self.state.role.leader

    @property
    def membership(self) -> Membership:
        return self.state.membership

    @property
    def last_index(self) -> int:
        return self.state.log.last_index

    @property
    def commit_index(self) -> int:
        return self.state.log.committed

    @property
    def first_index(self) -> int:
        return self.state.log.first_index

    def has_sent_commit(self, index: int) -> bool:
        """Whether every peer has been sent that `index` is committed, or this peer does not lead."""
        role = self.state.role
        return not isinstance(role, Leader) or role.has_sent_commit(index)

    @property
    def has_effects(self) -> bool:
        """Called after every event, so it compares fields instead of building the effects."""
        state = self.state
        log, role = state.log, state.role
        hard_state, status = self._taken_hard_state, self._taken_status
        return bool(
            state.messages
            or state.after_write
            or state.reads
            or log.writing < log.last_index
            or log.committed != hard_state.commit
            or (log.applying < log.committed and log.has_committed(unstable_too=state.options.apply_unstable))
            or (log.incoming_snapshot is not None and not log.snapshot_is_writing)
            or role.leader != status.leader
            or type(role) is not status.role
            or state.term != hard_state.term
            or state.vote != hard_state.vote
        )

    # Events.

    def step(self, event: RaftEvent, now_ms: int) -> StepOutcome:
        """Processes one event. `now_ms` comes from a monotonic clock; time passes for the core by `Tick` only."""
        assert now_ms >= self._now_ms, "the clock is monotonic"
        self._now_ms = now_ms
        kind = type(event)
        state = self.state
        admission = _ADMISSION.get(kind)
        if admission is not None:
            assert event.to == state.peer, "the message is for another peer"  # type: ignore[union-attr]  # is a Message
            if admission is not _Admission.FREE:
                if admission is _Admission.BY_TERM_AND_MEMBERSHIP and not self._is_known_peer(event.sender):  # type: ignore[union-attr]  # is an answer
                    return StepRefusal.UNKNOWN_PEER
                term = event.term  # type: ignore[union-attr]  # only free messages lack it
                if term != state.term and not self._admit(event, term):  # type: ignore[arg-type]  # is a Message
                    return None
        elif kind is Tick:
            self._tick()
            return None
        return TABLES[type(state.role)][kind](state, event)

    def _is_known_peer(self, peer: PeerId) -> bool:
        membership = self.state.membership
        return peer in membership.voters or peer == self.state.peer or membership.is_member(peer)

    def _admit(self, message: Message, term: int) -> bool:
        if term > self.state.term:
            return enter_newer_term(self.state, message, term)
        refuse = REFUSE_OLDER.get(type(message))
        if refuse is not None:
            refuse(self.state, message)
        return False

    def _tick(self) -> None:
        """After a long pause the core catches up with at most one election timeout: enough for a leader to notice that
        its quorum is gone, and too little for a follower to campaign before it has read the messages that arrived."""
        options = self.state.options
        ticks = (self._now_ms - self._ticked_ms) // options.tick_ms
        self._ticked_ms += ticks * options.tick_ms
        for _ in range(min(ticks, options.election_ticks)):
            TICKS[type(self.state.role)](self.state)

    # Effects.

    def take(self) -> Effects:
        """All effects since the last batch; possibly none."""
        state = self.state
        log = state.log
        messages, state.messages = state.messages, []
        reads, state.reads = state.reads, []
        write = self._take_write()
        entries: tuple[Entry, ...] = ()
        if log.applying < log.committed:
            entries = log.take_committed(unstable_too=state.options.apply_unstable)
        return Effects(
            status=self._take_status(),
            messages=tuple(messages),
            write=write,
            apply=self._apply(entries) if entries else None,
            reads=tuple(reads),
        )

    def _take_status(self) -> RaftStatus | None:
        role, given = self.state.role, self._taken_status
        if role.leader == given.leader and type(role) is given.role:
            return None
        self._taken_status = RaftStatus(type(role), role.leader)
        return self._taken_status

    def _take_write(self) -> LogWrite | None:
        state = self.state
        log = state.log
        given = self._taken_hard_state
        hard_state: HardState | None = None
        if log.committed != given.commit or state.term != given.term or state.vote != given.vote:
            hard_state = self._taken_hard_state = state.hard_state
        answers, state.after_write = state.after_write, []
        snapshot = log.take_snapshot_to_write() if log.incoming_snapshot is not None else None
        entries = log.take_unwritten() if log.writing < log.last_index else ()
        if not answers and not entries and hard_state is None and snapshot is None:
            return None
        if log.stable < log.last_index or snapshot is not None:
            answers.append(self._written(snapshot))
        # A commit index alone may be lost: the leader sends it again.
        must_sync = bool(entries) or given.term != state.term or given.vote != state.vote
        return LogWrite(
            hard_state=hard_state, entries=entries, snapshot=snapshot, must_sync=must_sync, answers=tuple(answers)
        )

    def _written(self, snapshot: SnapshotMeta | None) -> WriteCompleted:
        state, log = self.state, self.state.log
        index, term = (log.last_index, log.last_term) if log.stable < log.last_index else (0, 0)
        return WriteCompleted(to=state.peer, term=state.term, last_index=index, last_term=term, snapshot=snapshot)

    def _apply(self, entries: tuple[Entry, ...]) -> ApplyEntries:
        size = self.state.log.size_of(entries)
        payload_bytes = size - len(entries) * ENTRY_OVERHEAD_BYTES
        return ApplyEntries(
            entries,
            ApplyCompleted(to=self.state.peer, last_index=entries[-1].index, size=size, payload_bytes=payload_bytes),
        )
