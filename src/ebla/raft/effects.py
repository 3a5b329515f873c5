"""The effects that the core asks for, one batch per `take`, carried out under these rules.

1. `messages` may leave at once.
2. `write` goes to the log; writes keep the order in which they were taken. Its `answers` wait until that write *and all
   before it* are durable (`must_sync`: a sync is needed). Then those addressed to this peer are stepped back in, in
   order, and the others are sent. If a vote or an acknowledgement left earlier, a crash could take it back.
3. `apply` goes to the state machine, in the order taken, and `ApplyCompleted` is stepped back in afterwards. A
   membership entry is stepped in as `ApplyMembership` when it is applied. With the option `apply_unstable`, an `apply`
   may hold entries of the same batch's `write`, and must wait for it.
4. A snapshot in `write` replaces the log and the state machine up to its index. It becomes durable on its own, before
   the hard state of the same write and before the answers; `must_sync` is about the log only.
5. `reads` may be served once the state machine has applied up to their index.
"""

import msgspec

from ebla.raft.events import ApplyCompleted, WriteCompleted
from ebla.raft.messages import Entry, HardState, Message, PeerId, SnapshotMeta
from ebla.raft.roles import Role


class RaftStatus(msgspec.Struct, frozen=True):
    """This peer's role, and the leader as far as it knows."""

    role: type[Role]
    leader: PeerId


class ConfirmedRead(msgspec.Struct, frozen=True, gc=False):
    index: int
    context: bytes


class LogWrite(msgspec.Struct, frozen=True, kw_only=True):
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    """They replace everything in the log from the first one's index on."""
    snapshot: SnapshotMeta | None
    must_sync: bool
    answers: tuple[Message | WriteCompleted, ...]

    @property
    def needs_disk(self) -> bool:
        """Without this, the write holds a commit index at most: a hint, which the next record carries. Not worth a
        sync."""
        return self.must_sync or bool(self.entries) or self.snapshot is not None


class ApplyEntries(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    answer: ApplyCompleted


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    status: RaftStatus | None
    """Set if it changed since the last batch."""
    messages: tuple[Message, ...]
    write: LogWrite | None
    apply: ApplyEntries | None
    reads: tuple[ConfirmedRead, ...]
