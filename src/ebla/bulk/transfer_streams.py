"""`StreamService`: checks tickets, sessions and limits around checkpoints and puts, and counts."""

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
    metrics: TransferMetrics
    limits: TransferLimits
    clock: Clock
    schema_of: Callable[[TableId], TableSchema | None]
    """Current schemas."""


class TransferStreams:
    def __init__(self, deps: TransferStreamsDeps) -> None:
        self._deps = deps
        self._gets = StreamLimit("out of", deps.limits.gets_max)
        self._puts = StreamLimit("into", deps.limits.puts_max)
        self._read_streams = StreamLimit("of reads out of", deps.limits.read_streams_max)
        self._rate = RateLimiter(deps.limits, deps.clock)
        self._sources: dict[SourceStream, None] = {}
        self._reading: dict[SourceStream, TableSnapshot] = {}
        self._incoming: dict[IncomingPut, None] = {}
        self._barrier_passed: dict[tuple[TransferId, AttemptId], SessionId] = {}
        """Attempts for which a read barrier has found the session open."""

    @property
    def streams(self) -> int:
        return self._gets.open + self._puts.open + self._read_streams.open

    # -- reads -------------------------------------------------------------------------------------------------------

    def open_source(self, ticket: bytes) -> SourceStream:
        with self._counting_refusals():
            grant = self._verify(ticket, GrantKind.GET)
            self._check_listed(grant.of_session)
            checkpoint = CheckpointId(grant.subject)
            record = self._deps.checkpoints.find(checkpoint)
            if record is None:
                raise Refused(f"checkpoint {checkpoint} no longer exists", advice="start the job again")
            self._gets.enter()
        folder = self._deps.checkpoints.folder_of(checkpoint)
        source = SourceStream(
            session=record.session,
            checkpoint=checkpoint,
            table=record.table,
            folder=folder,
            parts=record.parts,
            schema=record.schema,
        )
        self._sources[source] = None
        self._update_metrics()
        return source

    async def open_read(self, ticket: bytes, token_range: TokenRange, run: str = "") -> SourceStream:
        deps = self._deps
        with self._counting_refusals():
            grant = for_run(self._verify(ticket, GrantKind.READ), run)
            self._read_streams.enter()
            try:
                snapshot = await deps.reads.enter(grant, token_range, deps.limits.shard_ms)
            except BaseException:
                self._read_streams.leave()
                raise
        record = snapshot.record
        folder = deps.checkpoints.folder_of(record.checkpoint)
        counting = snapshot.coverage.parts
        source = SourceStream(
            session=None,
            checkpoint=record.checkpoint,
            table=record.table,
            folder=folder,
            parts=counting,
            schema=snapshot.schema,
            machine=record.machine,
        )
        self._reading[source] = snapshot
        self._update_metrics()
        return source

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        deps = self._deps
        with self._counting_refusals():
            grant = self._verify(ticket, GrantKind.PUT)
            session = grant.of_session
            self._check_listed(session)
            staged = deps.staging.find(session, TransferId(grant.subject))
            rows = deps.puts.rows_of(staged, attempt)
            schema = deps.schema_of(staged.target.table)
            if schema is None:
                raise NotFound(f"there is no table {staged.target.table}", advice="it was dropped")
            self._gets.enter()
        source = SourceStream(
            session=session, checkpoint=None, table=staged.target.table, folder=staged.folder, parts=(), schema=schema
        )
        self._sources[source] = None
        self._update_metrics()
        return StagedRowsSource(source, rows)

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        with self._counting_refusals():
            self._check_source(source)
            await self._rate.admit(size_bytes)
            # Check again: the wait may have been long.
            self._check_source(source)
        self._deps.metrics.sent(size_bytes)

    def close_source(self, source: SourceStream) -> None:
        if source in self._sources:
            del self._sources[source]
            self._gets.leave()
            self._update_metrics()
        elif source in self._reading:
            self._deps.reads.leave(self._reading.pop(source))
            self._read_streams.leave()
            self._update_metrics()

    # -- puts --------------------------------------------------------------------------------------------------------

    async def open_put(self, put: FlightPut) -> IncomingPut:
        with self._counting_refusals():
            grant = self._verify(put.ticket, GrantKind.PUT)
            self._puts.enter()
            try:
                stream = await self._open_put(grant.of_session, TransferId(grant.subject), put)
            except BaseException:
                self._puts.leave()
                raise
        self._incoming[stream] = None
        self._update_metrics()
        return stream

    async def _open_put(self, session: SessionId, transfer: TransferId, put: FlightPut) -> IncomingPut:
        """Only the first file of an attempt needs a read barrier. The next file is like the next batch of the same
        stream, and a tablet of a few megabytes has as many files as a large one."""
        guards, staging, puts = self._deps.guards, self._deps.staging, self._deps.puts
        if self._barrier_passed.get((transfer, put.attempt)) == session:
            with guards.hold_guard_without_barrier(session):
                return await puts.open(staging.find(session, transfer), put)
        async with guards.hold_guard(session, self._deps.limits.barrier_ms):
            stream = await puts.open(staging.find(session, transfer), put)
        self._barrier_passed[(transfer, put.attempt)] = session
        return stream

    async def append(self, stream: IncomingPut, data: bytes | memoryview) -> None:
        with self._counting_refusals():
            await self._rate.admit(len(data))
            # INV-XFER-1: a barrier after the end of the session waits for what runs inside.
            with self._deps.guards.hold_guard_without_barrier(stream.session):
                await self._deps.puts.append(stream, data)
        self._deps.metrics.received(len(data))

    async def finish_put(self, stream: IncomingPut) -> PutAnswer:
        with self._counting_refusals(), self._deps.guards.hold_guard_without_barrier(stream.session):
            return self._deps.puts.finish(stream)

    def close_put(self, stream: IncomingPut) -> None:
        self._deps.puts.close(stream)
        if stream in self._incoming:
            del self._incoming[stream]
            self._puts.leave()
            self._update_metrics()

    def end_puts(self, transfers: Iterable[TransferId]) -> None:
        """Of released targets: open files would keep the space."""
        ended = dict.fromkeys(transfers)
        for transfer in ended:
            self._deps.puts.close_transfer(transfer)
        self._barrier_passed = {key: session for key, session in self._barrier_passed.items() if key[0] not in ended}

    def end_session(self, session: SessionId) -> None:
        """Frees the slots of its streams. Their peers may be tasks that are frozen for any time; the threads that serve
        them wait for the next batch, and enough of them would keep out all others."""
        self._barrier_passed = {key: one for key, one in self._barrier_passed.items() if one != session}
        for stream in [one for one in self._incoming if one.session == session]:
            self.close_put(stream)
        for source in [one for one in self._sources if one.session == session]:
            self.close_source(source)

    def end_reads(self) -> None:
        """The same for reads that were ended while their streams are open."""
        for source in [source for source, snapshot in self._reading.items() if snapshot.is_over]:
            self.close_source(source)

    # -- both --------------------------------------------------------------------------------------------------------

    def _verify(self, ticket: bytes, kind: GrantKind) -> Grant:
        return self._deps.tickets.read(ticket, kind, self._deps.clock.wall_us() // 1000)

    def _check_source(self, source: SourceStream) -> None:
        if source.session is not None:
            self._check_listed(source.session)
            return
        snapshot = self._reading.get(source)
        if snapshot is None:
            raise Refused(
                f"the read by checkpoint {source.checkpoint} was ended here",
                advice="its table was dropped, or its ticket has expired",
            )
        self._deps.reads.check(snapshot)

    def _check_listed(self, session: SessionId) -> None:
        """For reads, which have no effect here."""
        with self._deps.guards.hold_guard_without_barrier(session):
            pass

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except EblaError as error:
            self._deps.metrics.refused(error)
            raise

    def _update_metrics(self) -> None:
        self._deps.metrics.streams.set(self.streams)
