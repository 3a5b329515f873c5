"""What is on its way in a transcript: messages between peers, and work and answers of a peer's storage threads."""

from dataclasses import dataclass

from ebla.raft.effects import ApplyEntries, LogWrite
from ebla.raft.events import ApplyCompleted, WriteCompleted
from ebla.raft.messages import Entry, HardState, Message, PeerId, SnapshotMeta

APPEND_THREAD = "AppendThread"
APPLY_THREAD = "ApplyThread"


@dataclass(frozen=True, slots=True)
class StorageAppend:
    write: LogWrite

    @property
    def hard_state(self) -> HardState | None:
        return self.write.hard_state

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.write.entries

    @property
    def snapshot(self) -> SnapshotMeta | None:
        return self.write.snapshot


@dataclass(frozen=True, slots=True)
class StorageApply:
    apply: ApplyEntries

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.apply.entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    sender: str
    to: PeerId
    content: Message | WriteCompleted | ApplyCompleted | StorageAppend | StorageApply
    receiver: str
    responses: "tuple[Parcel, ...]" = ()
    entries: tuple[Entry, ...] = ()

    @property
    def is_local(self) -> bool:
        """Inside one peer: never lost."""
        return self.sender == self.receiver or self.sender in (APPEND_THREAD, APPLY_THREAD)
