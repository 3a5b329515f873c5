"""The verbs by which a table is read in bulk: a ticket for all that this node has of it, at one point.

Reading has no effect, so there is no session and no guard. Whoever asks over these verbs is a node, which has seen to
it that its client may read the table; the ticket is the right that it hands on.
"""

from dataclasses import dataclass

import msgspec

from ebla.bulk.table_snapshots import TableSnapshots
from ebla.bulk.tickets import Grant, GrantKind, TicketSigner
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import Address, HostId
from ebla.ports.clock import Clock
from ebla.wire.server import IncomingCall, Server
from ebla.wire.table_calls import CloseTableReadRequest, OpenTableReadAnswer, OpenTableReadRequest, ReadSource
from ebla.wire.verbs import CLOSE_TABLE_READ, OPEN_TABLE_READ, EmptyAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadServiceDeps:
    host: HostId
    flight: Address
    machine: str
    reads: TableSnapshots
    tickets: TicketSigner
    counts: TransferMetrics
    limits: TransferLimits
    clock: Clock


class TableReadService:
    def __init__(self, parts: TableReadServiceDeps) -> None:
        self._parts = parts

    def attach(self, server: Server) -> None:
        server.serve(OPEN_TABLE_READ, self.open)
        server.serve(CLOSE_TABLE_READ, self.close)

    async def open(self, request: OpenTableReadRequest, call: IncomingCall) -> OpenTableReadAnswer:
        parts = self._parts
        if request.life_ms <= 0:
            raise InvalidRequest(f"a ticket cannot live for {request.life_ms} ms")
        life_ms = min(request.life_ms, parts.limits.read_life_ms_max)
        expires_ms = parts.clock.wall_us() // 1000 + life_ms
        grant = Grant(
            kind=GrantKind.READ, session=None, subject=request.read, table=request.table, expires_ms=expires_ms
        )
        try:
            point = await parts.reads.opened(grant, request.version, call.work_ms())
        except EblaError as error:
            parts.counts.refused(error)
            raise
        ticket = parts.tickets.sign(msgspec.structs.replace(grant, lives=point.coverage.lives))
        source = ReadSource(host=parts.host, flight=parts.flight, ticket=ticket, machine=parts.machine)
        return OpenTableReadAnswer(source, point.coverage.sizes)

    async def close(self, request: CloseTableReadRequest, _call: IncomingCall) -> EmptyAnswer:
        await self._parts.reads.close(request.read)
        return EmptyAnswer()
