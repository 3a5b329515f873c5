"""The verbs of transfers at this node: checkpoints, places in staging, the seal, what is given back, how it stands.

Whatever has an effect runs under a guard of its session, entered behind a read barrier and held to the end.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
from ebla.wire.verbs import BULK_STATUS, FIND_TARGET, OPEN_STAGING, RELEASE, SEAL, TAKE_CHECKPOINT, EmptyAnswer


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
    counts: TransferMetrics
    limits: TransferLimits
    clock: Clock
    report: EventReporter
    released: Callable[[], None]
    """There is something to be swept."""


class TransferService:
    def __init__(self, parts: TransferServiceDeps) -> None:
        self._parts = parts

    def attach(self, server: Server) -> None:
        server.serve(TAKE_CHECKPOINT, self.take_checkpoint)
        server.serve(OPEN_STAGING, self.open_staging)
        server.serve(SEAL, self.seal)
        server.serve(RELEASE, self.release)
        server.serve(BULK_STATUS, self.status)

    async def take_checkpoint(self, request: TakeCheckpointRequest, call: IncomingCall) -> TakeCheckpointAnswer:
        parts = self._parts
        try:
            async with parts.guards.hold_guard(request.session, call.work_ms()):
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
                record = await parts.checkpoints.take(wanted, self._shard_ms(call))
                return TakeCheckpointAnswer(self._source(request.session, record))
        except EblaError as error:
            parts.counts.refused(error)
            raise

    async def open_staging(self, request: OpenStagingRequest, call: IncomingCall) -> OpenStagingAnswer:
        parts = self._parts
        try:
            async with parts.guards.hold_guard(request.session, call.work_ms()):
                self._schema(request.session, request.table)
                self._shards(request.shard)
                query = FindTargetRequest(
                    session=request.session, table=request.table, range=request.range, version=request.version
                )
                found = await parts.shards.call(request.shard, FIND_TARGET, query, self._shard_ms(call))
                target = TargetFile(
                    table=request.table,
                    shard=request.shard,
                    incarnation=Incarnation(found.incarnation),
                    range=request.range,
                    kind=request.kind,
                )
                await parts.staging.open(request.session, request.transfer, target, request.size_bytes)
                return OpenStagingAnswer(self._target(request))
        except EblaError as error:
            parts.counts.refused(error)
            raise

    async def seal(self, request: SealRequest, call: IncomingCall) -> SealAnswer:
        parts = self._parts
        if len(request.files) > parts.limits.files_max:
            raise InvalidRequest(f"{len(request.files)} files are more than one attempt can bring")
        try:
            async with parts.guards.hold_guard(request.session, call.work_ms()):
                staged = parts.staging.find(request.session, request.transfer)
                schema = self._schema(request.session, staged.target.table)
                order = SealSpec(
                    attempt=request.attempt,
                    files=request.files,
                    layers=request.layers,
                    schema=schema,
                    more=request.more,
                )
                sealed = await parts.sealer.seal(staged, order)
        except EblaError as error:
            parts.counts.refused(error)
            raise
        parts.counts.seals.add()
        parts.counts.copied_files.add(staged.copied_files)
        details = {"transfer": str(request.transfer), "attempt": str(request.attempt), "bytes": sealed.size_bytes}
        parts.report("staging.sealed", details)
        return SealAnswer(sealed.size_bytes, staged.copied_files)

    async def release(self, request: ReleaseRequest, call: IncomingCall) -> EmptyAnswer:
        parts = self._parts
        try:
            async with parts.guards.hold_guard(request.session, call.work_ms()):
                parts.stream_service.end_puts(await parts.staging.release(request.session, request.transfers))
                parts.released()
                await parts.checkpoints.release(request.session, request.checkpoints)
        except SessionClosed:
            pass  # all of it goes by itself
        return EmptyAnswer()

    def status(self, request: BulkStatusRequest, _call: IncomingCall) -> BulkStatusAnswer:
        parts, counts = self._parts, self._parts.counts
        return BulkStatusAnswer(
            stagings=parts.staging.statuses(request.session),
            checkpoints=parts.checkpoints.count,
            refused_closed_session=counts.refused_closed,
            refused_tickets=counts.refused_tickets,
            received_bytes=counts.received_bytes,
            sent_bytes=counts.sent_bytes,
            streams=parts.stream_service.streams,
            reads=parts.reads.count,
        )

    # -- what is asked for -------------------------------------------------------------------------------------------

    def _schema(self, session: SessionId, table: TableId) -> TableSchema:
        listed = self._parts.guards.listed(session)
        if listed is not None and listed.table is not None and listed.table != table:
            raise Refused(f"session {session} is for table {listed.table}, not for {table}")
        schema = self._parts.view.current.schemas.get(table)
        if schema is None:
            raise NotFound(f"there is no table {table}", advice="it was dropped; the job has nothing to do")
        return schema

    def _shards(self, wanted: ShardNumber | None) -> tuple[ShardNumber, ...]:
        node = self._parts.view.current.snapshot.nodes.get(self._parts.host)
        count = 0 if node is None else node.shard_count
        if wanted is None:
            return tuple(ShardNumber(number) for number in range(count))
        if not 0 <= wanted < count:
            raise InvalidRequest(f"this node has {count} shards, and none with number {wanted}")
        return (wanted,)

    def _shard_ms(self, call: IncomingCall) -> int:
        return min(call.work_ms(), self._parts.limits.shard_ms)

    # -- what is answered --------------------------------------------------------------------------------------------

    def _source(self, session: SessionId, record: CheckpointRecord) -> TransferSource:
        parts = self._parts
        grant = Grant(
            kind=GrantKind.GET,
            session=session,
            subject=record.checkpoint,
            table=record.table,
            expires_ms=self._expires_ms(session),
        )
        return TransferSource(
            parts.host,
            record.checkpoint,
            record.table,
            record.parts,
            parts.tickets.sign(grant),
            parts.flight,
            record.machine,
            parts.checkpoints.folder_of(record.checkpoint),
        )

    def _target(self, request: OpenStagingRequest) -> TransferTarget:
        parts = self._parts
        grant = Grant(
            kind=GrantKind.PUT,
            session=request.session,
            subject=request.transfer,
            table=request.table,
            expires_ms=self._expires_ms(request.session),
        )
        return TransferTarget(
            parts.host,
            request.shard,
            request.session,
            request.transfer,
            request.kind,
            request.range,
            parts.tickets.sign(grant),
            parts.flight,
            parts.machine,
            parts.staging.find(request.session, request.transfer).folder,
        )

    def _expires_ms(self, session: SessionId) -> int:
        """No later than the session, which is what counts."""
        life_ends_ms = self._parts.clock.wall_us() // 1000 + self._parts.limits.ticket_life_ms
        listed = self._parts.guards.listed(session)
        if listed is None or listed.deadline_ms is None:
            return life_ends_ms
        return listed.deadline_ms
