"""The verbs of transfers at this node: checkpoints, staging targets, seal, release, status, and reads of tables.

Everything that has an effect runs under a guard of its session, entered after a read barrier and held to the end.

A read of a table has no effect, so it needs no session and no guard. The caller of these verbs is a node, which has
checked that its client may read the table; the ticket is the permission it passes on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ebla.bulk.checkpoint_store import CheckpointRecord, CheckpointSpec, CheckpointStore, ShardCaller
from ebla.bulk.seal import Sealer, SealSpec
from ebla.bulk.staging import Staging
from ebla.bulk.table_snapshots import TableSnapshots
from ebla.bulk.tickets import Grant, GrantKind, TicketSigner
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.bulk.transfer_streams import TransferStreams
from ebla.feed.session_guards import SessionClosed, SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.model.errors import EblaError, InvalidRequest, NotFound, Refused
from ebla.model.identity import Address, HostId, SessionId, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.model.transfers import TransferSource, TransferTarget
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferServiceDeps:
    host: HostId
    flight: Address
    machine: str
    view: TopologyView
    guards: SessionGuards
    shards: ShardCaller
    staging: Staging
    sealer: Sealer
    checkpoints: CheckpointStore
    stream_service: TransferStreams
    reads: TableSnapshots
    tickets: TicketSigner
    metrics: TransferMetrics
    limits: TransferLimits
    clock: Clock
    report: EventReporter
    released: Callable[[], None]
    """Called when there is something to sweep."""


class TransferService:
    def __init__(self, deps: TransferServiceDeps) -> None:
        self._deps = deps

    def attach(self, server: Server) -> None:
        server.serve(TAKE_CHECKPOINT, self.take_checkpoint)
        server.serve(OPEN_STAGING, self.open_staging)
        server.serve(SEAL, self.seal)
        server.serve(RELEASE, self.release)
        server.serve(BULK_STATUS, self.status)
        server.serve(OPEN_TABLE_READ, self.open_table_read)
        server.serve(CLOSE_TABLE_READ, self.close_table_read)

    async def take_checkpoint(self, request: TakeCheckpointRequest, call: IncomingCall) -> TakeCheckpointAnswer:
        deps = self._deps
        try:
            async with deps.guards.hold_guard(request.session, call.work_ms()):
                schema = self._schema(request.session, request.table)
                shards = self._shards(request.shard)
                wanted = CheckpointSpec(
                    session=request.session,
                    table=request.table,
                    range=request.range,
                    version=request.version,
                    schema=schema,
                    shards=shards,
                )
                record = await deps.checkpoints.take(wanted, self._shard_ms(call))
                return TakeCheckpointAnswer(self._source(request.session, record))
        except EblaError as error:
            deps.metrics.refused(error)
            raise

    async def open_staging(self, request: OpenStagingRequest, call: IncomingCall) -> OpenStagingAnswer:
        deps = self._deps
        try:
            async with deps.guards.hold_guard(request.session, call.work_ms()):
                self._schema(request.session, request.table)
                self._shards(request.shard)
                query = FindTargetRequest(
                    session=request.session, table=request.table, range=request.range, version=request.version
                )
                found = await deps.shards.call(request.shard, FIND_TARGET, query, self._shard_ms(call))
                target = TargetFile(
                    table=request.table,
                    shard=request.shard,
                    incarnation=Incarnation(found.incarnation),
                    range=request.range,
                    kind=request.kind,
                )
                await deps.staging.open(request.session, request.transfer, target, request.size_bytes)
                return OpenStagingAnswer(self._target(request))
        except EblaError as error:
            deps.metrics.refused(error)
            raise

    async def seal(self, request: SealRequest, call: IncomingCall) -> SealAnswer:
        deps = self._deps
        if len(request.files) > deps.limits.files_max:
            raise InvalidRequest(f"{len(request.files)} files are more than one attempt can stage")
        try:
            async with deps.guards.hold_guard(request.session, call.work_ms()):
                staged = deps.staging.find(request.session, request.transfer)
                schema = self._schema(request.session, staged.target.table)
                order = SealSpec(
                    attempt=request.attempt,
                    files=request.files,
                    layers=request.layers,
                    schema=schema,
                    more=request.more,
                )
                sealed = await deps.sealer.seal(staged, order)
        except EblaError as error:
            deps.metrics.refused(error)
            raise
        deps.metrics.seals.add()
        deps.metrics.copied_files.add(staged.copied_files)
        details = {"transfer": str(request.transfer), "attempt": str(request.attempt), "bytes": sealed.size_bytes}
        deps.report("staging.sealed", details)
        return SealAnswer(sealed.size_bytes, staged.copied_files)

    async def release(self, request: ReleaseRequest, call: IncomingCall) -> EmptyAnswer:
        deps = self._deps
        try:
            async with deps.guards.hold_guard(request.session, call.work_ms()):
                deps.stream_service.end_puts(await deps.staging.release(request.session, request.transfers))
                deps.released()
                await deps.checkpoints.release(request.session, request.checkpoints)
        except SessionClosed:
            pass  # the sweeper removes all of it
        return EmptyAnswer()

    def status(self, request: BulkStatusRequest, _call: IncomingCall) -> BulkStatusAnswer:
        deps, metrics = self._deps, self._deps.metrics
        return BulkStatusAnswer(
            stagings=deps.staging.statuses(request.session),
            checkpoints=deps.checkpoints.count,
            refused_closed_session=metrics.refused_closed,
            refused_tickets=metrics.refused_tickets,
            received_bytes=metrics.received_bytes,
            sent_bytes=metrics.sent_bytes,
            streams=deps.stream_service.streams,
            reads=deps.reads.count,
        )

    # -- reads of tables ---------------------------------------------------------------------------------------------

    async def open_table_read(self, request: OpenTableReadRequest, call: IncomingCall) -> OpenTableReadAnswer:
        """A ticket for everything this node has of the table, as of one snapshot."""
        deps = self._deps
        if request.life_ms <= 0:
            raise InvalidRequest(f"a ticket cannot live for {request.life_ms} ms")
        life_ms = min(request.life_ms, deps.limits.read_life_ms_max)
        expires_ms = deps.clock.wall_us() // 1000 + life_ms
        grant = Grant(
            kind=GrantKind.READ, session=None, subject=request.read, table=request.table, expires_ms=expires_ms
        )
        try:
            snapshot = await deps.reads.open(grant, request.version, call.work_ms())
        except EblaError as error:
            deps.metrics.refused(error)
            raise
        ticket = deps.tickets.sign(msgspec.structs.replace(grant, incarnations=snapshot.coverage.incarnations))
        source = ReadSource(host=deps.host, flight=deps.flight, ticket=ticket, machine=deps.machine)
        return OpenTableReadAnswer(source, snapshot.coverage.sizes)

    async def close_table_read(self, request: CloseTableReadRequest, _call: IncomingCall) -> EmptyAnswer:
        await self._deps.reads.close(request.read)
        return EmptyAnswer()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _schema(self, session: SessionId, table: TableId) -> TableSchema:
        listed = self._deps.guards.listed(session)
        if listed is not None and listed.table is not None and listed.table != table:
            raise Refused(f"session {session} is for table {listed.table}, not for {table}")
        schema = self._deps.view.current.schemas.get(table)
        if schema is None:
            raise NotFound(f"there is no table {table}", advice="it was dropped; the job has nothing to do")
        return schema

    def _shards(self, wanted: ShardNumber | None) -> tuple[ShardNumber, ...]:
        node = self._deps.view.current.snapshot.nodes.get(self._deps.host)
        count = 0 if node is None else node.shard_count
        if wanted is None:
            return tuple(ShardNumber(number) for number in range(count))
        if not 0 <= wanted < count:
            raise InvalidRequest(f"this node has {count} shards, and none with number {wanted}")
        return (wanted,)

    def _shard_ms(self, call: IncomingCall) -> int:
        return min(call.work_ms(), self._deps.limits.shard_ms)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _source(self, session: SessionId, record: CheckpointRecord) -> TransferSource:
        deps = self._deps
        grant = Grant(
            kind=GrantKind.GET,
            session=session,
            subject=record.checkpoint,
            table=record.table,
            expires_ms=self._expires_ms(session),
        )
        return TransferSource(
            host=deps.host,
            checkpoint=record.checkpoint,
            table=record.table,
            parts=record.parts,
            ticket=deps.tickets.sign(grant),
            flight=deps.flight,
            machine=record.machine,
            folder=deps.checkpoints.folder_of(record.checkpoint),
        )

    def _target(self, request: OpenStagingRequest) -> TransferTarget:
        deps = self._deps
        grant = Grant(
            kind=GrantKind.PUT,
            session=request.session,
            subject=request.transfer,
            table=request.table,
            expires_ms=self._expires_ms(request.session),
        )
        return TransferTarget(
            host=deps.host,
            shard=request.shard,
            session=request.session,
            transfer=request.transfer,
            kind=request.kind,
            range=request.range,
            ticket=deps.tickets.sign(grant),
            flight=deps.flight,
            machine=deps.machine,
            folder=deps.staging.find(request.session, request.transfer).folder,
        )

    def _expires_ms(self, session: SessionId) -> int:
        """With the session's deadline: the session is checked besides the ticket."""
        life_ends_ms = self._deps.clock.wall_us() // 1000 + self._deps.limits.ticket_life_ms
        listed = self._deps.guards.listed(session)
        if listed is None or listed.deadline_ms is None:
            return life_ends_ms
        return listed.deadline_ms
