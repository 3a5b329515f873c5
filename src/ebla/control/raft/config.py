"""What a Raft peer is built from: its configuration, its state machine and its transport."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ebla.control.raft.snapshot_receiver import SnapshotSink
from ebla.journal.segmented_log import SEGMENT_BYTES
from ebla.observe.event_reporter import EventReporter
from ebla.raft.membership import MembershipChange
from ebla.raft.messages import Entry, InstallSnapshot, Message, PeerId
from ebla.raft.options import RaftOptions

Content = TypeVar("Content")


class StateMachine(Protocol[Content]):
    """Called on the loop, in log order. Never fails: it reports what it cannot do in its answer."""

    def apply(self, entry: Entry) -> None: ...

    def apply_membership(self, entry: Entry, change: MembershipChange) -> bool:
        """Whether the change takes effect; the same on every peer."""
        ...

    def freeze(self) -> Iterator[bytes]:
        """The state as it is now, in chunks that may be read later."""
        ...

    def receiver(self) -> SnapshotSink[Content]: ...

    def install(self, content: Content) -> None: ...


class RaftTransport(Protocol):
    def name_of(self, peer: PeerId) -> str:
        """For messages to people."""
        ...

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        """False: dropped."""
        ...

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        """Returns once the peer has all of it; raises `EblaError` otherwise. Bounded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    folder: str
    options: RaftOptions
    report: EventReporter
    snapshot_entries_max: int = 10_000
    snapshot_bytes_max: int = 64 * 1024 * 1024
    """A snapshot is taken once the log behind the last one has this many entries or bytes."""
    kept_entries: int = 1_000
    """Kept in memory behind a snapshot, so that a peer that lags a little needs no snapshot."""
    disk_full_retry_ms: int = 500
    read_wait_max_ms: int = 10_000
    before_first_snapshot: Callable[[int], Awaitable[None]] | None = None
    """Awaited with the log's id, after the first snapshot is durable here and before the core learns of it. From then
    on this peer may acknowledge and vote, so the caller makes that fact durable here."""
    log_segment_bytes: int = SEGMENT_BYTES
