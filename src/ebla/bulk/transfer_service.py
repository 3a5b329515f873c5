"""The verbs of transfers at this node: checkpoints, staging targets, seal, release, status, and reads of tables.

Everything that has an effect runs under a guard of its session, entered after a read barrier and held to the end.

A read of a table has no effect, so it needs no session and no guard. The caller of these verbs is a node, which has
checked that its client may read the table; the ticket is the permission it passes on.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ebla.bulk.checkpoint_store import CheckpointRecord, CheckpointSpec, CheckpointStore
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.seal import Sealer, SealSpec
from ebla.bulk.staging import Staging
from ebla.bulk.stream_service import StreamService
from ebla.bulk.sweeper import Sweeper
from ebla.bulk.table_snapshots import TableSnapshots
from ebla.bulk.tickets import Grant, GrantKind
from ebla.bulk.transfer_context import TransferContext
from ebla.bulk.transfer_streams import TransferStreams
from ebla.feed.session_guards import SessionClosed
from ebla.model.errors import InvalidRequest, Refused
from ebla.model.identity import Address, SessionId, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.model.transfers import TransferSource, TransferTarget
from ebla.storage.codec.staging_format import TargetFile
from ebla.storage.manifest import Incarnation
from ebla.wire.server import IncomingCall, Server
from ebla.wire.table_calls import CloseTableReadRequest, OpenTableReadAnswer, OpenTableReadRequest, ReadSource
from ebla.wire.transfer_messages import (
    BulkStatusAnswer,
    BulkStatusRequest,
    FindTargetRequest,
    OpenStagingAnswer,
    OpenStagingRequest,
    ReleaseRequest,
    SealAnswer,
    SealRequest,
    TakeCheckpointAnswer,
    TakeCheckpointRequest,
)
from ebla.wire.verbs import (
    BULK_STATUS,
    CLOSE_TABLE_READ,
    FIND_TARGET,
    OPEN_STAGING,
    OPEN_TABLE_READ,
    RELEASE,
    SEAL,
    TAKE_CHECKPOINT,
    EmptyAnswer,
)

StreamServer = Callable[[StreamService], Coroutine[Any, Any, None]]
"""Serves the streams until cancelled: Flight, or its simulation."""


class TransferService:
    """The transfers of this process. `recover` comes first; then `attach` and `run`."""

    def __init__(self, context: TransferContext, flight: Address) -> None:
        """`flight`: where tasks reach the streams."""
        self._context = context
        self._flight = flight
        self.staging = Staging(context)
        puts = OpenPuts(context, self.staging)
        self._sealer = Sealer(context, puts)
        self.checkpoints = CheckpointStore(context)
        self._reads = TableSnapshots(context, self.checkpoints)
        self.streams = TransferStreams(context, self.staging, puts, self.checkpoints, self._reads)
        self._sweeper = Sweeper(context, self.staging, self.streams, self.checkpoints, self._reads)

    async def recover(self) -> None:
        await self.staging.recover()
        await self.checkpoints.recover()

    async def run(self, servers: Iterable[StreamServer]) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for serve in servers:
                tasks.create_task(serve(self.streams))
            await self._sweeper.run()

    def sessions_changed(self) -> None:
        self._sweeper.notice()

    def attach(self, server: Server) -> None:
        server.serve(TAKE_CHECKPOINT, self.take_checkpoint)
        server.serve(OPEN_STAGING, self.open_staging)
        server.serve(SEAL, self.seal)
        server.serve(RELEASE, self.release)
        server.serve(BULK_STATUS, self.status)
        server.serve(OPEN_TABLE_READ, self.open_table_read)
        server.serve(CLOSE_TABLE_READ, self.close_table_read)

    # -- verbs -------------------------------------------------------------------------------------------------------

    async def take_checkpoint(self, request: TakeCheckpointRequest, call: IncomingCall) -> TakeCheckpointAnswer:
        async with self._guarded(request.session, call):
            spec = CheckpointSpec(
                session=request.session,
                table=request.table,
                range=request.range,
                version=request.version,
                schema=self._schema(request.session, request.table),
                shards=self._shards(request.shard),
            )
            record = await self.checkpoints.take(spec, self._shard_ms(call))
            return TakeCheckpointAnswer(self._source(request.session, record))

    async def open_staging(self, request: OpenStagingRequest, call: IncomingCall) -> OpenStagingAnswer:
        async with self._guarded(request.session, call):
            self._schema(request.session, request.table)
            self._shards(request.shard)
            query = FindTargetRequest(
                session=request.session,
                table=request.table,
                range=request.range,
                version=request.version,
                transfer=request.transfer if request.is_repeatable else None,
            )
            found = await self._context.shards.call(request.shard, FIND_TARGET, query, self._shard_ms(call))
            # Rows that were merged leave no trace in the stack. After a restart of this process they are moved again,
            # which changes nothing: they are few, and merge with themselves.
            is_released = request.is_repeatable and self.staging.is_released(request.session, request.transfer)
            if found.is_adopted or is_released:
                return OpenStagingAnswer(self._target(request, ""), is_done=True)
            target = TargetFile(
                table=request.table,
                shard=request.shard,
                incarnation=Incarnation(found.incarnation),
                range=request.range,
                kind=request.kind,
            )
            staged = await self.staging.open(request.session, request.transfer, target, request.size_bytes)
            return OpenStagingAnswer(self._target(request, staged.folder), is_sealed=staged.sealed_is_durable)

    async def seal(self, request: SealRequest, call: IncomingCall) -> SealAnswer:
        context = self._context
        if len(request.files) > context.limits.files_max:
            raise InvalidRequest(f"{len(request.files)} files are more than one attempt can stage")
        async with self._guarded(request.session, call):
            staged = self.staging.find(request.session, request.transfer)
            spec = SealSpec(
                attempt=request.attempt,
                files=request.files,
                layers=request.layers,
                schema=self._schema(request.session, staged.target.table),
                more=request.more,
            )
            sealed = await self._sealer.seal(staged, spec)
        context.metrics.seals.add()
        context.metrics.copied_files.add(staged.copied_files)
        details = {"transfer": str(request.transfer), "attempt": str(request.attempt), "bytes": sealed.size_bytes}
        context.report("staging.sealed", details)
        return SealAnswer(sealed.size_bytes, staged.copied_files)

    async def release(self, request: ReleaseRequest, call: IncomingCall) -> EmptyAnswer:
        try:
            async with self._context.guards.hold_guard(request.session, call.work_ms()):
                self.streams.end_puts(await self.staging.release(request.session, request.transfers))
                self._sweeper.notice()
                await self.checkpoints.release(request.session, request.checkpoints)
        except SessionClosed:
            pass  # the sweeper removes all of it
        return EmptyAnswer()

    def status(self, request: BulkStatusRequest, _call: IncomingCall) -> BulkStatusAnswer:
        metrics = self._context.metrics
        return BulkStatusAnswer(
            stagings=self.staging.statuses(request.session),
            checkpoints=self.checkpoints.count,
            refused_closed_session=int(metrics.closed_sessions.value),
            refused_tickets=int(metrics.refused_tickets.value),
            received_bytes=int(metrics.received_bytes.value),
            sent_bytes=int(metrics.sent_bytes.value),
            streams=self.streams.count,
            reads=self._reads.count,
        )

    @asynccontextmanager
    async def _guarded(self, session: SessionId, call: IncomingCall) -> AsyncIterator[None]:
        """Under a guard of the session. Refusals are counted."""
        with self._context.metrics.counting_refusals():
            async with self._context.guards.hold_guard(session, call.work_ms()):
                yield

    # -- reads of tables ---------------------------------------------------------------------------------------------

    async def open_table_read(self, request: OpenTableReadRequest, call: IncomingCall) -> OpenTableReadAnswer:
        """A ticket for everything this node has of the table, as of one snapshot."""
        context = self._context
        if request.life_ms <= 0:
            raise InvalidRequest(f"a ticket cannot live for {request.life_ms} ms")
        expires_ms = context.wall_ms() + min(request.life_ms, context.limits.read_life_ms_max)
        grant = Grant(
            kind=GrantKind.READ, session=None, subject=request.read, table=request.table, expires_ms=expires_ms
        )
        with context.metrics.counting_refusals():
            snapshot = await self._reads.open(grant, request.version, call.work_ms())
        ticket = context.tickets.sign(msgspec.structs.replace(grant, incarnations=snapshot.coverage.incarnations))
        source = ReadSource(host=context.host, flight=self._flight, ticket=ticket, machine=context.machine)
        return OpenTableReadAnswer(source, snapshot.coverage.sizes)

    async def close_table_read(self, request: CloseTableReadRequest, _call: IncomingCall) -> EmptyAnswer:
        await self._reads.close(request.read)
        return EmptyAnswer()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _schema(self, session: SessionId, table: TableId) -> TableSchema:
        listed = self._context.guards.listed(session)
        if listed is not None and listed.table is not None and listed.table != table:
            raise Refused(f"session {session} is for table {listed.table}, not for {table}")
        return self._context.schema_of(table)

    def _shards(self, wanted: ShardNumber | None) -> tuple[ShardNumber, ...]:
        numbers = self._context.shard_numbers()
        if wanted is None:
            return numbers
        if wanted not in numbers:
            raise InvalidRequest(f"this node has {len(numbers)} shards, and none with number {wanted}")
        return (wanted,)

    def _shard_ms(self, call: IncomingCall) -> int:
        return min(call.work_ms(), self._context.limits.shard_ms)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _source(self, session: SessionId, record: CheckpointRecord) -> TransferSource:
        return TransferSource(
            host=self._context.host,
            checkpoint=record.checkpoint,
            table=record.table,
            parts=record.parts,
            ticket=self._ticket(GrantKind.GET, session, record.checkpoint, record.table),
            flight=self._flight,
            machine=record.machine,
            folder=self.checkpoints.folder_of(record.checkpoint),
        )

    def _target(self, request: OpenStagingRequest, folder: str) -> TransferTarget:
        return TransferTarget(
            host=self._context.host,
            shard=request.shard,
            session=request.session,
            transfer=request.transfer,
            kind=request.kind,
            range=request.range,
            ticket=self._ticket(GrantKind.PUT, request.session, request.transfer, request.table),
            flight=self._flight,
            machine=self._context.machine,
            folder=folder,
        )

    def _ticket(self, kind: GrantKind, session: SessionId, subject: uuid.UUID, table: TableId) -> bytes:
        """Expires with the session's deadline: the session is checked besides the ticket."""
        listed = self._context.guards.listed(session)
        expires_ms = None if listed is None else listed.deadline_ms
        if expires_ms is None:
            expires_ms = self._context.wall_ms() + self._context.limits.ticket_life_ms
        grant = Grant(kind=kind, session=session, subject=subject, table=table, expires_ms=expires_ms)
        return self._context.tickets.sign(grant)
