"""Clients that write and read rows through the router of any shard: single rows, batches, slices, pages, scans."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest, NotFound
from ebla.model.identity import Replica
from ebla.model.schema import TableSchema
from ebla.node.shard_process import ShardServiceContext
from ebla.ports.environment import Environment
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.sim.checkers.rows import AttemptedWrite, Cell, ReadInterval, RowsLedger
from ebla.sim.clients import ClientLoad
from ebla.sim.clock import EPOCH_US
from ebla.sim.clusters.nodes import LIMITS, SimCluster, SimShard
from ebla.sim.remote_calls import CallPath
from ebla.sim.rng import SimRng
from ebla.sim.workloads.rows_table import (
    ALL_KEYS,
    PARTITIONS,
    ROWS,
    VALUE,
    cell_of,
    item_of,
    partition_span,
    row_span,
    timestamp_of,
)
from ebla.storage.codec.key_codec import decode_token
from ebla.wire.row_messages import Item, ReadRowsAnswer, ReadRowsRequest, Span

T = TypeVar("T")

DEADLINE_MS = 2_500
LATENCY_S = 0.002
THINK_S = 0.15
PAUSE_S = 0.4
PAGE_TRIES_MAX = 12
PAGES_MAX = 400
SKEW_US = 300_000
LEVELS = (Level.QUORUM,) * 7 + (Level.ONE, Level.ALL, Level.EACH_QUORUM)


@dataclass(slots=True, kw_only=True)
class RowsLoad(ClientLoad):
    """Also for topology drivers."""

    cluster: SimCluster
    ledger: RowsLedger = field(default_factory=RowsLedger)
    tables: dict[str, TableSchema] = field(default_factory=dict)
    """By name, in the newest known version. Without the temporary tables."""
    passing: dict[str, TableSchema] = field(default_factory=dict)

    def found(self, problem: str | None) -> None:
        if problem is not None:
            self.cluster.world.fail(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """The parameters of one read."""

    table: str
    level: Level
    spans: tuple[Span, ...]
    cells: Sequence[Cell]
    rows_max: int
    is_reversed: bool = False

    def __str__(self) -> str:
        back = ", reversed" if self.is_reversed else ""
        return f"a read of {len(self.cells)} cells of {self.table} at {self.level.name} by {self.rows_max}{back}"


class RowsClient:
    def __init__(self, environment: Environment, load: RowsLoad, name: str) -> None:
        """`name` is that of its unit, or of `environment` on the network."""
        self._rng = SimRng(f"rows client {environment.rng.uuid()}")
        self._load = load
        self._ledger = load.ledger
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._home = self._rng.choice(load.cluster.shards())

    async def run(self) -> None:
        await self._load.keep_calling(self._try, self._rng, THINK_S)

    async def _try(self) -> None:
        if self._rng.random() < 0.1:
            self.move()
        try:
            await self._act()
        except EblaError:
            self.move()
            await asyncio.sleep(self._rng.random() * PAUSE_S)

    def move(self) -> None:
        self._home = self._rng.choice(self._load.cluster.shards())

    async def _act(self) -> None:
        table = self._rng.choice(sorted(self._load.tables))
        kind = self._rng.randrange(0, 100)
        if kind < 50:
            await self._write(table, 1)
        elif kind < 60:
            await self._write(table, self._rng.randrange(2, 5))
        elif kind < 80:
            await self._read_rows(table)
        elif kind < 92:
            await self._read_slice(table)
        elif kind < 96:
            await self.scan(table, Level.QUORUM, self._rng.randrange(3, 25))
        else:
            await self._write_passing()

    async def _call(self, shard: SimShard, work: Callable[[ShardServiceContext], Awaitable[T]]) -> T:
        """Runs `work` in the shard's current incarnation, as the CQL server of a real shard would."""
        path = CallPath(
            world=self._load.cluster.world, rng=self._rng, here=self._name, there=shard.unit, latency_s=LATENCY_S
        )
        context = shard.context

        async def served() -> T:
            assert context is not None
            context.require_serving()
            return await work(context)

        try:
            async with asyncio.timeout(DEADLINE_MS / 1000):
                return await path.call(shard.calls, served, DEADLINE_MS / 1000)
        except TimeoutError:
            raise DeadlineExceeded("the client has given up") from None

    async def _route_write(self, mutations: Sequence[Mutation], level: Level) -> None:
        await self._call(self._home, lambda context: context.router.write(mutations, level, LIMITS.write_timeout_ms))

    async def read_replica(self, replica: Replica, request: ReadRowsRequest) -> ReadRowsAnswer:
        """Reads from this replica only."""
        shard = self._load.cluster.shard(replica)
        return await self._call(shard, lambda context: context.replica.read(request, DEADLINE_MS))

    # -- writes ------------------------------------------------------------------------------------------------------

    async def _write(self, table: str, count: int) -> None:
        level = self._rng.choice(LEVELS)
        schema = self._load.tables[table]
        drawn: dict[int, tuple[Cell, AttemptedWrite, Mutation]] = {}
        for _ in range(count):
            cell = (table, self._rng.randrange(0, PARTITIONS), self._rng.randrange(0, ROWS))
            kind = self._rng.randrange(0, 4 * VALUE)
            tried = AttemptedWrite(timestamp_us=self._draw_us(), deletes=kind < VALUE)
            item = item_of(schema, cell, tried.timestamp_us, kind)
            drawn[cell[1]] = (cell, tried, _mutation(schema, item))
        for cell, tried, _ in drawn.values():
            self._ledger.tries(cell, tried)
        try:
            await self._route_write([mutation for _, _, mutation in drawn.values()], level)
        except EblaError as error:
            for cell, tried, _ in drawn.values():
                self._load.found(self._ledger.failed(cell, tried, error))
            raise
        for cell, tried, _ in drawn.values():
            self._ledger.was_acknowledged(cell, tried, level)

    def _draw_us(self) -> int:
        skew_us = self._rng.randrange(-SKEW_US, SKEW_US)
        return self._ledger.unique_us(EPOCH_US + int(self._loop.time() * 1e6) + skew_us)

    async def _write_passing(self) -> None:
        """Writes to a table that may be dropped meanwhile: the call must end in any case."""
        if not self._load.passing:
            return
        schema = self._load.passing[self._rng.choice(sorted(self._load.passing))]
        cell = ("", self._rng.randrange(0, PARTITIONS), 0)
        await self._route_write([_mutation(schema, item_of(schema, cell, self._draw_us()))], Level.QUORUM)

    # -- reads -------------------------------------------------------------------------------------------------------

    async def _read_rows(self, table: str) -> None:
        schema, level = self._load.tables[table], self._rng.choice(LEVELS)
        partitions = sorted({self._rng.randrange(0, PARTITIONS) for _ in range(self._rng.choice((1, 1, 1, 3)))})
        cells = [(table, partition, self._rng.randrange(0, ROWS)) for partition in partitions]
        spans = tuple(sorted(row_span(schema, cell) for cell in cells))
        await self._read(RowQuery(table=table, level=level, spans=spans, cells=cells, rows_max=len(cells)))

    async def _read_slice(self, table: str) -> None:
        partition = self._rng.randrange(0, PARTITIONS)
        cells = [(table, partition, row) for row in range(ROWS)]
        rows_max, is_reversed = self._rng.randrange(1, 4), self._rng.random() < 0.3
        level = self._rng.choice(LEVELS)
        await self._read(
            RowQuery(
                table=table,
                level=level,
                spans=(partition_span(partition),),
                cells=cells,
                rows_max=rows_max,
                is_reversed=is_reversed,
            )
        )

    async def scan(self, table: str, level: Level, rows_max: int) -> bool:
        """Returns whether the scan completed."""
        cells = [(table, partition, row) for partition in range(PARTITIONS) for row in range(ROWS)]
        is_reversed = self._rng.random() < 0.2
        return await self._read(
            RowQuery(
                table=table, level=level, spans=(ALL_KEYS,), cells=cells, rows_max=rows_max, is_reversed=is_reversed
            )
        )

    async def _read(self, wanted: RowQuery) -> bool:
        """Reads page by page, from another shard after a failure. Only the position is kept between pages."""
        began, position, tries = self._loop.time(), b"", 0
        floors = self._ledger.floors(wanted.cells, wanted.level)
        shown: dict[Cell, int] = {}
        last_key: bytes | None = None
        for _ in range(PAGES_MAX):
            try:
                answer, page = await self._page(wanted, position)
            except NotFound as error:
                self._load.found(f"table {wanted.table} is not found: {error}")
                return False
            except InvalidRequest as error:
                self._load.found(f"a position was refused: {error}")
                return False
            except EblaError:
                tries += 1
                self._ledger.failed_reads += 1
                if tries >= PAGE_TRIES_MAX:
                    return False
                self.move()
                await asyncio.sleep(self._rng.random() * PAUSE_S)
                continue
            for key, _ in answer.items:
                if last_key is not None and (key >= last_key if wanted.is_reversed else key <= last_key):
                    self._load.found(f"INV-ROWS-9: key {key.hex()} comes after {last_key.hex()} in {wanted}")
                last_key = key
            shown |= page
            position = answer.position
            if not position:
                break
        else:
            self._load.found(f"INV-ROWS-9: {wanted} does not end")
        self._ledger.reads += 1
        self._load.found(
            self._ledger.check_missing(floors, shown, ReadInterval(wanted.level, began, self._loop.time()))
        )
        return True

    async def _page(self, wanted: RowQuery, position: bytes) -> tuple[ReadPage, dict[Cell, int]]:
        """Checked against the writes that were acknowledged before this page was requested."""
        floors, began = self._ledger.floors(wanted.cells, wanted.level), self._loop.time()
        table = self._load.tables[wanted.table].id

        async def read(context: ShardServiceContext) -> ReadPage:
            query = ReadQuery(
                table=table,
                spans=wanted.spans,
                rows_max=wanted.rows_max,
                now_s=context.environment.clock.wall_us() // 1_000_000,
                is_reversed=wanted.is_reversed,
                position=position,
            )
            return await context.router.read(query, wanted.level, LIMITS.read_timeout_ms)

        answer = await self._call(self._home, read)
        schema = self._load.cluster.schema(table)
        shown: dict[Cell, int] = {}
        for key, value in answer.items:
            try:
                shown[cell_of(schema, wanted.table, key)] = timestamp_of(schema, (key, value))
            except ValueError as error:
                self._load.found(f"INV-ROWS-7: {wanted.table} {key.hex()}: {error}")
        if len(answer.items) > wanted.rows_max:
            self._load.found(f"a page of {wanted} has {len(answer.items)} rows")
        self._load.found(self._ledger.check_shown(floors, shown, ReadInterval(wanted.level, began, self._loop.time())))
        return answer, shown


def _mutation(schema: TableSchema, item: Item) -> Mutation:
    return Mutation(schema.id, decode_token(item[0]), (item,))
