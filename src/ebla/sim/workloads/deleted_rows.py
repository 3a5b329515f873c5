"""Rows that are written, deleted and never seen again, in tables whose tombstones are purged at once.

A purge cannot hide a write that arrives after it, and replicas that missed a deletion keep the row. So a row is deleted
long after it was written, when no copy of the write is on its way any more, and at ALL. From then on no read may return
it: not from a replica that got the row by a stream after it had purged the tombstone.
"""

import asyncio
from dataclasses import dataclass, field

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.schema import TableSchema
from ebla.node.shard_process import ShardServiceContext
from ebla.ports.environment import Environment
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.sim.checkers.rows import Cell
from ebla.sim.clusters.nodes import LIMITS
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
from ebla.sim.workloads.rows_table import VALUE, item_of, row_span
from ebla.storage.codec.key_codec import decode_token

CELLS_AT_ONCE = 10
SETTLE_S = 12.0
"""Longer than any echo, any frame that is clogged, and any call."""
READS_PER_ROUND = 12
ROW_DELETION = 1
PAUSE_S = 0.3


@dataclass(slots=True, kw_only=True)
class DeletedRows:
    tables: dict[str, TableSchema] = field(default_factory=dict)
    """By keyspace."""
    deleted: list[Cell] = field(default_factory=list)
    """Acknowledged by all replicas."""
    drawn: int = 0
    reads: int = 0


class DeletingClient(RowsClient):
    def __init__(self, environment: Environment, load: RowsLoad, name: str, rows: DeletedRows) -> None:
        super().__init__(environment, load, name)
        self._rows = rows

    async def run(self) -> None:
        await self._load.keep_calling(self._one_round, self._rng, PAUSE_S)

    async def _one_round(self) -> None:
        keyspace = self._rng.choice(sorted(self._rows.tables))
        cells = [self._draw(keyspace) for _ in range(CELLS_AT_ONCE)]
        written = [cell for cell in cells if await self._put(cell, VALUE, Level.QUORUM, 3)]
        until = self._loop.time() + SETTLE_S
        while self._loop.time() < until and not self._load.stopping:
            await self.read_deleted(1)
            await asyncio.sleep(self._rng.random() * PAUSE_S * 3)
        if self._load.stopping:
            return
        for cell in written:
            if await self._put(cell, ROW_DELETION, Level.ALL, 6):
                self._rows.deleted.append(cell)
        await self.read_deleted(READS_PER_ROUND)

    def _draw(self, keyspace: str) -> Cell:
        self._rows.drawn += 1
        return keyspace, self._rows.drawn, 0

    async def _put(self, cell: Cell, kind: int, level: Level, tries: int) -> bool:
        schema = self._rows.tables[cell[0]]
        for _ in range(tries):
            item = item_of(schema, cell, self._draw_us(), kind)
            try:
                await self._route_write([Mutation(schema.id, decode_token(item[0]), (item,))], level)
            except EblaError:
                self.move()
                await asyncio.sleep(self._rng.random() * PAUSE_S * 4)
            else:
                return True
        return False

    async def read_deleted(self, count: int) -> None:
        for _ in range(min(count, len(self._rows.deleted))):
            try:
                await self.check_gone(self._rng.choice(self._rows.deleted), Level.QUORUM)
            except EblaError:
                self.move()

    async def check_gone(self, cell: Cell, level: Level) -> None:
        schema = self._rows.tables[cell[0]]

        async def read(context: ShardServiceContext) -> ReadPage:
            now_s = context.environment.clock.wall_us() // 1_000_000
            query = ReadQuery(table=schema.id, spans=(row_span(schema, cell),), rows_max=1, now_s=now_s)
            return await context.router.read(query, level, LIMITS.read_timeout_ms)

        page = await self._call(self._home, read)
        self._rows.reads += 1
        if page.items:
            self._load.found(f"INV-LAYER-GC: {cell} was deleted on all replicas, and a read at {level.name} returns it")
