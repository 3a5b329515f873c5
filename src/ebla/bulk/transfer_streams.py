"""`StreamService`: checks tickets, sessions and limits around checkpoints and puts, and counts."""

from collections.abc import Iterable

from ebla.bulk.checkpoint_store import CheckpointStore
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.staged_rows import find_staged_rows
from ebla.bulk.staging import Staging
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.bulk.table_snapshots import TableSnapshot, TableSnapshots
from ebla.bulk.tickets import Grant, GrantKind, for_run
from ebla.bulk.transfer_context import TransferContext
from ebla.bulk.transfer_limits import RateLimiter, StreamLimit
from ebla.model.errors import Refused
from ebla.model.identity import AttemptId, CheckpointId, SessionId, TransferId
from ebla.model.token import TokenRange
from ebla.wire.transfer_messages import FlightPut, PutAnswer


class TransferStreams:
    def __init__(
        self,
        context: TransferContext,
        staging: Staging,
        puts: OpenPuts,
        checkpoints: CheckpointStore,
        reads: TableSnapshots,
    ) -> None:
        self._context = context
        self._staging = staging
        self._open_puts = puts
        self._checkpoints = checkpoints
        self._reads = reads
        self._gets = StreamLimit("out of", context.limits.gets_max)
        self._puts = StreamLimit("into", context.limits.puts_max)
        self._read_streams = StreamLimit("of reads out of", context.limits.read_streams_max)
        self._rate = RateLimiter(context.limits, context.clock)
        self._sources: dict[SourceStream, None] = {}
        self._reading: dict[SourceStream, TableSnapshot] = {}
        self._incoming: dict[IncomingPut, None] = {}
        self._barrier_passed: dict[tuple[TransferId, AttemptId], SessionId] = {}
        """Attempts for which a read barrier has found the session open."""

    @property
    def count(self) -> int:
        return self._gets.open + self._puts.open + self._read_streams.open

    # -- reads -------------------------------------------------------------------------------------------------------

    def open_source(self, ticket: bytes) -> SourceStream:
        with self._context.metrics.counting_refusals():
            grant = self._verify(ticket, GrantKind.GET)
            self._check_listed(grant.of_session)
            checkpoint = CheckpointId(grant.subject)
            record = self._checkpoints.find(checkpoint)
            if record is None:
                raise Refused(f"checkpoint {checkpoint} no longer exists", advice="start the job again")
            self._gets.enter()
        source = SourceStream(
            session=record.session,
            checkpoint=checkpoint,
            folder=self._checkpoints.folder_of(checkpoint),
            parts=record.parts,
            schema=record.schema,
        )
        self._sources[source] = None
        self._update_metrics()
        return source

    async def open_read(self, ticket: bytes, token_range: TokenRange, run: str = "") -> SourceStream:
        with self._context.metrics.counting_refusals():
            grant = for_run(self._verify(ticket, GrantKind.READ), run)
            self._read_streams.enter()
            try:
                snapshot = await self._reads.enter(grant, token_range, self._context.limits.shard_ms)
            except BaseException:
                self._read_streams.leave()
                raise
        record = snapshot.record
        source = SourceStream(
            session=None,
            checkpoint=record.checkpoint,
            folder=self._checkpoints.folder_of(record.checkpoint),
            parts=snapshot.coverage.parts,
            schema=snapshot.schema,
            machine=record.machine,
        )
        self._reading[source] = snapshot
        self._update_metrics()
        return source

    def open_staged(self, ticket: bytes, attempt: AttemptId) -> StagedRowsSource:
        with self._context.metrics.counting_refusals():
            grant = self._verify(ticket, GrantKind.PUT)
            session = grant.of_session
            self._check_listed(session)
            staged = self._staging.find(session, TransferId(grant.subject))
            rows = find_staged_rows(self._context.disk, staged, attempt)
            schema = self._context.schema_of(staged.target.table)
            self._gets.enter()
        source = SourceStream(session=session, checkpoint=None, folder=staged.folder, parts=(), schema=schema)
        self._sources[source] = None
        self._update_metrics()
        return StagedRowsSource(source, rows)

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        with self._context.metrics.counting_refusals():
            self._check_source(source)
            await self._rate.admit(size_bytes)
            # Check again: the wait may have been long.
            self._check_source(source)
        self._context.metrics.sent_bytes.add(size_bytes)

    def close_source(self, source: SourceStream) -> None:
        if source in self._sources:
            del self._sources[source]
            self._gets.leave()
            self._update_metrics()
        elif source in self._reading:
            self._reads.leave(self._reading.pop(source))
            self._read_streams.leave()
            self._update_metrics()

    # -- puts --------------------------------------------------------------------------------------------------------

    async def open_put(self, put: FlightPut) -> IncomingPut:
        with self._context.metrics.counting_refusals():
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
        guards, staging, puts = self._context.guards, self._staging, self._open_puts
        if self._barrier_passed.get((transfer, put.attempt)) == session:
            with guards.hold_guard_without_barrier(session):
                return await puts.open(staging.find(session, transfer), put)
        async with guards.hold_guard(session, self._context.limits.barrier_ms):
            stream = await puts.open(staging.find(session, transfer), put)
        self._barrier_passed[(transfer, put.attempt)] = session
        return stream

    async def append(self, stream: IncomingPut, data: bytes | memoryview) -> None:
        with self._context.metrics.counting_refusals():
            await self._rate.admit(len(data))
            # INV-XFER-1: a barrier after the end of the session waits for what runs inside.
            with self._context.guards.hold_guard_without_barrier(stream.session):
                await self._open_puts.append(stream, data)
        self._context.metrics.received_bytes.add(len(data))

    async def finish_put(self, stream: IncomingPut) -> PutAnswer:
        with self._context.metrics.counting_refusals(), self._context.guards.hold_guard_without_barrier(stream.session):
            return self._open_puts.finish(stream)

    def close_put(self, stream: IncomingPut) -> None:
        self._open_puts.close(stream)
        if stream in self._incoming:
            del self._incoming[stream]
            self._puts.leave()
            self._update_metrics()

    def end_puts(self, transfers: Iterable[TransferId]) -> None:
        """Of released targets: open files would keep the space."""
        ended = dict.fromkeys(transfers)
        for transfer in ended:
            self._open_puts.close_transfer(transfer)
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
        return self._context.tickets.read(ticket, kind, self._context.wall_ms())

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
        self._reads.check(snapshot)

    def _check_listed(self, session: SessionId) -> None:
        """For reads, which have no effect here."""
        with self._context.guards.hold_guard_without_barrier(session):
            pass

    def _update_metrics(self) -> None:
        self._context.metrics.streams.set(self.count)
