"""`data_plane.DataPlane`: tickets, sessions, limits and counts around checkpoints and puts."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ebla.bulk.checkpoint_store import CheckpointStore
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.staging import Staging
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.bulk.table_snapshots import TableSnapshot, TableSnapshots
from ebla.bulk.tickets import Grant, GrantKind, TicketSigner, for_run
from ebla.bulk.transfer_limits import RateLimiter, StreamLimit, TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.feed.session_guards import SessionGuards
from ebla.model.errors import EblaError, NotFound, Refused
from ebla.model.identity import AttemptId, CheckpointId, SessionId, TableId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.clock import Clock
from ebla.wire.transfer_messages import FlightPut, PutAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStreamsDeps:
    tickets: TicketSigner
    guards: SessionGuards
    staging: Staging
    puts: OpenPuts
    checkpoints: CheckpointStore
    reads: TableSnapshots
    counts: TransferMetrics
    limits: TransferLimits
    clock: Clock
    schema_of: Callable[[TableId], TableSchema | None]
    """Of tables as they are now."""


class TransferStreams:
    def __init__(self, parts: TransferStreamsDeps) -> None:
        self._parts = parts
        self._gets = StreamLimit("out of", parts.limits.gets_max)
        self._puts = StreamLimit("into", parts.limits.puts_max)
        self._read_streams = StreamLimit("of reads out of", parts.limits.read_streams_max)
        self._rate = RateLimiter(parts.limits, parts.clock)
        self._sources: dict[SourceStream, None] = {}
        self._reading: dict[SourceStream, TableSnapshot] = {}
        self._places: dict[IncomingPut, None] = {}
        self._begun: dict[tuple[TransferId, AttemptId], SessionId] = {}
        """Attempts for which a read barrier has found the session open."""

    @property
    def streams(self) -> int:
        return self._gets.open + self._puts.open + self._read_streams.open

    # -- out ---------------------------------------------------------------------------------------------------------

    def open_source(self, ticket: bytes) -> SourceStream:
        with self._counted():
            grant = self._granted(ticket, GrantKind.GET)
            self._check_listed(grant.of_session)
            checkpoint = CheckpointId(grant.subject)
            record = self._parts.checkpoints.find(checkpoint)
            if record is None:
                raise Refused(f"checkpoint {checkpoint} is not here any more", advice="start the job again")
            self._gets.enter()
        folder = self._parts.checkpoints.folder_of(checkpoint)
        source = SourceStream(
            session=record.session,
            checkpoint=checkpoint,
            table=record.table,
            folder=folder,
            parts=record.parts,
            schema=record.schema,
        )
        self._sources[source] = None
        self._note_streams()
        return source

    async def open_read(self, ticket: bytes, asked: TokenRange, run: str = "") -> SourceStream:
        parts = self._parts
        with self._counted():
            grant = for_run(self._granted(ticket, GrantKind.READ), run)
            self._read_streams.enter()
            try:
                point = await parts.reads.enter(grant, asked, parts.limits.shard_ms)
            except BaseException:
                self._read_streams.leave()
                raise
        record = point.record
        folder = parts.checkpoints.folder_of(record.checkpoint)
        counting = point.coverage.parts
        source = SourceStream(
            session=None,
            checkpoint=record.checkpoint,
            table=record.table,
            folder=folder,
            parts=counting,
            schema=point.schema,
            machine=record.machine,
        )
        self._reading[source] = point
        self._note_streams()
        return source

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        parts = self._parts
        with self._counted():
            grant = self._granted(ticket, GrantKind.PUT)
            session = grant.of_session
            self._check_listed(session)
            staged = parts.staging.find(session, TransferId(grant.subject))
            rows = parts.puts.rows_of(staged, attempt)
            schema = parts.schema_of(staged.target.table)
            if schema is None:
                raise NotFound(f"there is no table {staged.target.table}", advice="it was dropped")
            self._gets.enter()
        source = SourceStream(
            session=session, checkpoint=None, table=staged.target.table, folder=staged.folder, parts=(), schema=schema
        )
        self._sources[source] = None
        self._note_streams()
        return StagedRowsSource(source, rows)

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        with self._counted():
            self._check_source(source)
            await self._rate.admit(size_bytes)
            # Again: the wait may have been long.
            self._check_source(source)
        self._parts.counts.sent(size_bytes)

    def close_source(self, source: SourceStream) -> None:
        if source in self._sources:
            del self._sources[source]
            self._gets.leave()
            self._note_streams()
        elif source in self._reading:
            self._parts.reads.leave(self._reading.pop(source))
            self._read_streams.leave()
            self._note_streams()

    # -- in ----------------------------------------------------------------------------------------------------------

    async def open_put(self, put: FlightPut) -> IncomingPut:
        with self._counted():
            grant = self._granted(put.ticket, GrantKind.PUT)
            self._puts.enter()
            try:
                place = await self._opened(grant.of_session, TransferId(grant.subject), put)
            except BaseException:
                self._puts.leave()
                raise
        self._places[place] = None
        self._note_streams()
        return place

    async def _opened(self, session: SessionId, transfer: TransferId, put: FlightPut) -> IncomingPut:
        """The first file of an attempt behind a read barrier. To go on with the next one is no more than the next batch
        is, and a tablet of a few megabytes has as many files as a large one."""
        guards, staging, puts = self._parts.guards, self._parts.staging, self._parts.puts
        if self._begun.get((transfer, put.attempt)) == session:
            with guards.hold_guard_without_barrier(session):
                return await puts.open(staging.find(session, transfer), put)
        async with guards.hold_guard(session, self._parts.limits.barrier_ms):
            place = await puts.open(staging.find(session, transfer), put)
        self._begun[(transfer, put.attempt)] = session
        return place

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        with self._counted():
            await self._rate.admit(len(data))
            # INV-XFER-1: a barrier that saw the end of the session waits for what runs inside.
            with self._parts.guards.hold_guard_without_barrier(place.session):
                await self._parts.puts.append(place, data)
        self._parts.counts.received(len(data))

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        with self._counted(), self._parts.guards.hold_guard_without_barrier(place.session):
            return self._parts.puts.finish(place)

    def close_put(self, place: IncomingPut) -> None:
        self._parts.puts.close(place)
        if place in self._places:
            del self._places[place]
            self._puts.leave()
            self._note_streams()

    def end_puts(self, transfers: Iterable[TransferId]) -> None:
        """Of places that are given back: their files would keep the space."""
        ended = dict.fromkeys(transfers)
        for transfer in ended:
            self._parts.puts.close_transfer(transfer)
        self._begun = {known: session for known, session in self._begun.items() if known[0] not in ended}

    def end_session(self, session: SessionId) -> None:
        """Its streams take no place any more. At their other ends may be tasks that are frozen for any time: those who
        serve them here wait for the next piece, and so many of them would keep out everybody."""
        self._begun = {known: one for known, one in self._begun.items() if one != session}
        for place in [one for one in self._places if one.session == session]:
            self.close_put(place)
        for source in [one for one in self._sources if one.session == session]:
            self.close_source(source)

    def end_reads(self) -> None:
        """Those that are over under their streams, likewise."""
        for source in [source for source, point in self._reading.items() if point.is_over]:
            self.close_source(source)

    # -- both --------------------------------------------------------------------------------------------------------

    def _granted(self, ticket: bytes, kind: GrantKind) -> Grant:
        return self._parts.tickets.read(ticket, kind, self._parts.clock.wall_us() // 1000)

    def _check_source(self, source: SourceStream) -> None:
        if source.session is not None:
            self._check_listed(source.session)
            return
        point = self._reading.get(source)
        if point is None:
            raise Refused(
                f"the read by checkpoint {source.checkpoint} was ended here",
                advice="its table was dropped, or its ticket has expired",
            )
        self._parts.reads.check(point)

    def _check_listed(self, session: SessionId) -> None:
        """For what is read, which has no effect here."""
        with self._parts.guards.hold_guard_without_barrier(session):
            pass

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except EblaError as error:
            self._parts.counts.refused(error)
            raise

    def _note_streams(self) -> None:
        self._parts.counts.streams.set(self.streams)
