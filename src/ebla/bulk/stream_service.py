"""What stands between the streams of bytes and the files they come from and go to.

Arrow Flight in reality, and its twin in simulation, use nothing else of this process. Every call is made on its loop;
threads of Flight come in through `asyncio.run_coroutine_threadsafe`. Nothing that is staged has an effect by itself,
so within a stream the session is looked up in what the feed has brought so far; only opening the first put of an
attempt asks for a read barrier.

A task on the same machine may go past it, by the short cut: it links what is in `Source.folder` into a folder of its
own, `<Target.folder>/<attempt>/<layer>/<file>`. What it does there is judged at the seal, like all the rest.
"""

from dataclasses import dataclass
from typing import Protocol

from ebla.bulk.staged_rows import StagedRows
from ebla.model.identity import AttemptId, CheckpointId, SessionId, TableId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import CheckpointPart, StagingKind
from ebla.wire.transfer_messages import FlightPut, PutAnswer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SourceStream:
    """A checkpoint that the holder of a ticket reads. One for each stream; `close_source` ends it."""

    session: SessionId | None
    """None: of a read of the table, which has none."""
    checkpoint: CheckpointId | None
    """None: of staged rows."""
    table: TableId
    folder: str
    """Absolute; the folders of the layers are below it."""
    parts: tuple[CheckpointPart, ...]
    schema: TableSchema
    """Of the table as the checkpoint has it: its rows are read by this."""
    machine: str = ""
    """A file of this name stands in the folder."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedRowsSource:
    """What was staged of rows, as it stands now. The source is one without a checkpoint, to be closed like others."""

    source: SourceStream
    rows: StagedRows


@dataclass(slots=True, eq=False)
class IncomingPut:
    """Where one stream writes. A later `open_put` for the same attempt and name takes the place away from it: the
    sender has come back before the end of its old connection was noticed."""

    session: SessionId
    transfer: TransferId
    attempt: AttemptId
    name: str
    kind: StagingKind
    range: TokenRange
    size_bytes: int
    """As announced; 0 for rows: not known before they end."""
    received_bytes: int
    """Where to go on: the sender is told this first, and sends from there."""
    checksum: int = 0
    """CRC-32 of all that was received."""


class StreamService(Protocol):
    """Errors: `Refused` for a ticket that is forged, expired or for something else; `Stale` where the session is
    closed or the place was taken over; `Overloaded` where too many streams are open; `DiskFull`, after which nothing
    of the attempt is left; `Unavailable` where a read barrier finds no quorum. None of them has changed anything that
    counts."""

    def open_source(self, ticket: bytes) -> SourceStream: ...

    async def open_read(self, ticket: bytes, asked: TokenRange, run: str = "") -> SourceStream:
        """By a ticket to read a table: the checkpoint that is kept for this run of the read, or one that is taken now;
        it is kept until `close_source`. Raises `Stale` where it does not hold all of the range that is asked for,
        `NotFound` where the table was dropped."""
        ...

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        """By a ticket to put, rows that an attempt has put. Raises `Overloaded` while they are being sealed, `Refused`
        where there are none."""
        ...

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        """Before each batch of so many bytes is sent: looks the session up, keeps to the rate, counts. Of a read:
        raises where it was ended."""
        ...

    def close_source(self, source: SourceStream) -> None:
        """The stream ended, whole or not. Twice is no error."""
        ...

    async def open_put(self, put: FlightPut) -> IncomingPut:
        """The first of an attempt behind a read barrier. What the attempt has brought of a file before stays:
        `received_bytes` says where to go on, whatever `put.offset` is, unless that is beyond it (`Refused`). Rows whose
        `put.offset` is 0 begin anew: how batches became records only this side knows."""
        ...

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        """The bytes that follow. Of rows: whole records, as `row_file.encode_rows` makes them."""
        ...

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        """It is whole: as many bytes as were announced. The checksum is of what was received, for the sender to
        compare with the source's."""
        ...

    def close_put(self, place: IncomingPut) -> None:
        """The stream ended, whole or not. Twice is no error."""
        ...
