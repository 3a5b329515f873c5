"""The interface between the streams of bytes and the files they read and write.

Arrow Flight, and its simulation, use nothing else of this process. Every call is made on its loop; Flight's threads
come in through `asyncio.run_coroutine_threadsafe`. Nothing that is staged has an effect by itself, so within a stream
the session is looked up in what the feed has delivered so far; only the first put of an attempt needs a read barrier.

A task on the same machine may bypass it, by the link path: it links the files in `TransferSource.folder` into a folder
of its own, `<TransferTarget.folder>/<attempt>/<layer>/<file>`. The seal checks what it did there, like everything else.
"""

from dataclasses import dataclass
from typing import Protocol

from ebla.bulk.staged_rows import StagedRows
from ebla.model.identity import AttemptId, CheckpointId, SessionId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import CheckpointPart, StagingKind
from ebla.wire.transfer_messages import FlightPut, PutAnswer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SourceStream:
    """A checkpoint that the holder of a ticket reads. One per stream; `close_source` ends it."""

    session: SessionId | None
    """None: for a read of the table."""
    checkpoint: CheckpointId | None
    """None: for staged rows."""
    folder: str
    """Absolute; the folders of the layers are below it."""
    parts: tuple[CheckpointPart, ...]
    schema: TableSchema
    """As the checkpoint has it: its rows are read with it."""
    machine: str = ""
    """The folder contains a file of this name."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedRowsSource:
    """Staged rows as they are now. The source has no checkpoint, and is closed like others."""

    source: SourceStream
    rows: StagedRows


@dataclass(slots=True, eq=False, kw_only=True)
class IncomingPut:
    """One stream's write into a file. A later `open_put` for the same attempt and name takes the file over: the sender
    has reconnected before the end of its old connection was noticed."""

    session: SessionId
    transfer: TransferId
    attempt: AttemptId
    name: str
    kind: StagingKind
    size_bytes: int
    """As announced; 0 for rows, whose size is not known before they end."""
    received_bytes: int
    """The first answer to the sender, which continues from there."""
    checksum: int = 0
    """CRC-32 of all that was received."""


class StreamService(Protocol):
    """Errors: `Refused` for a ticket that is forged, expired or for something else; `Stale` where the session is closed
    or another stream took the file over; `Overloaded` where too many streams are open; `DiskFull`, after which nothing
    of the attempt is left; `Unavailable` where a read barrier finds no quorum. None of them has an effect."""

    def open_source(self, ticket: bytes) -> SourceStream: ...

    async def open_read(self, ticket: bytes, token_range: TokenRange, run: str = "") -> SourceStream:
        """With a ticket to read a table: the checkpoint that is kept for this run of the read, or one that is taken
        now; it is kept until `close_source`. Raises `Stale` where it does not contain the whole range, `NotFound` where
        the table was dropped."""
        ...

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        """With a ticket to put: the rows that an attempt has put. Raises `Overloaded` while they are being sealed,
        `Refused` where there are none."""
        ...

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        """Before each batch: checks the session, waits for the rate limit, counts the bytes. For a read: raises where
        it was ended."""
        ...

    def close_source(self, source: SourceStream) -> None:
        """The stream ended, completely or not. Twice is no error."""
        ...

    async def open_put(self, put: FlightPut) -> IncomingPut:
        """The first put of an attempt comes after a read barrier. What the attempt has already sent of a file stays:
        `received_bytes` says where to continue, whatever `put.offset` is, unless that is beyond it (`Refused`). Rows
        with `put.offset` 0 start over: only this side knows how batches became records."""
        ...

    async def append(self, stream: IncomingPut, data: bytes | memoryview) -> None:
        """The next bytes. For rows: whole records, as `row_file.encode_rows` makes them."""
        ...

    async def finish_put(self, stream: IncomingPut) -> PutAnswer:
        """Checks that as many bytes came as were announced. The checksum covers what was received, for the sender to
        compare with the source's."""
        ...

    def close_put(self, stream: IncomingPut) -> None:
        """The stream ended, completely or not. Twice is no error."""
        ...
