"""Clients that write and read rows through whichever shard they reach: single rows, batches, slices, pages, scans."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError, InvalidRequest, NotFound
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.model.schema import TableSchema
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows import AttemptedWrite, Cell, ReadInterval, RowsLedger
from ebla.sim.clock import EPOCH_US
from ebla.sim.clusters.nodes import SHARD_PORT, SHARDS, WIRE, SimCluster
from ebla.sim.workloads.rows_table import (
    ALL_KEYS,
    DELETION_KINDS,
    PARTITIONS,
    ROWS,
    cell_of,
    item_of,
    partition_span,
    row_span,
    timestamp_of,
)
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    RoutedWrite,
    RouteReadAnswer,
    RouteReadRequest,
    RouteWriteRequest,
    Span,
)
from ebla.wire.verbs import READ_ROWS, ROUTE_READ, ROUTE_WRITE, A, Q, Verb

DEADLINE_MS = 2_500
LATE_MS_MAX = 100
THINK_S = 0.15
PAUSE_S = 0.4
PAGE_TRIES_MAX = 12
PAGES_MAX = 400
SKEW_US = 300_000
LEVELS = (Level.QUORUM,) * 7 + (Level.ONE, Level.ALL, Level.EACH_QUORUM)


@dataclass(slots=True, kw_only=True)
class RowsLoad:
    """What clients and drivers share, outside every life."""

    cluster: SimCluster
    ledger: RowsLedger = field(default_factory=RowsLedger)
    tables: dict[str, TableSchema] = field(default_factory=dict)
    """By name, as last heard of; those that come and go are not among them."""
    passing: dict[str, TableSchema] = field(default_factory=dict)
    stopping: bool = False
    running: int = 0

    def found(self, problem: str | None) -> None:
        if problem is not None:
            self.cluster.world.fail(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """What one read is about."""

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
    def __init__(self, environment: Environment, load: RowsLoad, tasks: asyncio.TaskGroup) -> None:
        self._rng = environment.rng
        self._load = load
        self._ledger = load.ledger
        self._loop = asyncio.get_running_loop()
        cluster = load.cluster
        introduction = cluster.introduction(HostId(environment.rng.uuid()), "client")
        context = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=introduction,
            limits=WIRE,
            report=discard_event,
        )
        self._peers = {number: Peers(tasks, context) for number in SHARDS}
        for node in cluster.nodes:
            for number, peers in self._peers.items():
                peers.set_address(node.host, node.control.address(SHARD_PORT + number))
        self._home: tuple[HostId, ShardNumber] = (cluster.nodes[0].host, SHARDS[0])
        self._move()

    async def run(self) -> None:
        while not self._load.stopping:
            self._load.running += 1
            try:
                await self._act()
            except EblaError:
                self._move()
                await asyncio.sleep(self._rng.random() * PAUSE_S)
            self._load.running -= 1
            if self._rng.random() < 0.1:
                self._move()
            await asyncio.sleep(self._rng.random() * THINK_S)
        await asyncio.Event().wait()

    def _move(self) -> None:
        self._home = (self._rng.choice(self._load.cluster.nodes).host, self._rng.choice(SHARDS))

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

    async def call(self, verb: Verb[Q, A], request: Q) -> A:
        host, number = self._home
        began = self._loop.time()
        try:
            return await self._peers[number].call(host, verb, request, DEADLINE_MS)
        finally:
            took_ms = (self._loop.time() - began) * 1000
            if took_ms > DEADLINE_MS + LATE_MS_MAX:
                self._load.found(f"a {verb.name} took {took_ms:.0f} ms, its deadline was {DEADLINE_MS}")

    async def ask(self, replica: Replica, request: ReadRowsRequest) -> ReadRowsAnswer:
        """One replica, by itself."""
        return await self._peers[replica.shard].call(replica.host, READ_ROWS, request, DEADLINE_MS)

    def close(self) -> None:
        for peers in self._peers.values():
            peers.close("done")

    # -- writes ------------------------------------------------------------------------------------------------------

    async def _write(self, table: str, count: int) -> None:
        level = self._rng.choice(LEVELS)
        schema = self._load.tables[table]
        drawn: dict[int, tuple[Cell, AttemptedWrite, RoutedWrite]] = {}
        for _ in range(count):
            cell = (table, self._rng.randrange(0, PARTITIONS), self._rng.randrange(0, ROWS))
            kind = self._rng.randrange(0, 4 * DELETION_KINDS)
            tried = AttemptedWrite(timestamp_us=self._draw_us(), deletes=kind < DELETION_KINDS)
            item = item_of(schema, cell, tried, kind)
            drawn[cell[1]] = (cell, tried, RoutedWrite(schema.id, (item,)))
        for cell, tried, _ in drawn.values():
            self._ledger.tries(cell, tried)
        request = RouteWriteRequest(tuple(write for _, _, write in drawn.values()), level)
        try:
            await self.call(ROUTE_WRITE, request)
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
        """To a table that may be dropped meanwhile: whatever happens, it must end."""
        if not self._load.passing:
            return
        schema = self._load.passing[self._rng.choice(sorted(self._load.passing))]
        cell = ("", self._rng.randrange(0, PARTITIONS), 0)
        item = item_of(schema, cell, AttemptedWrite(timestamp_us=self._draw_us(), deletes=False), DELETION_KINDS)
        await self.call(ROUTE_WRITE, RouteWriteRequest((RoutedWrite(schema.id, (item,)),), Level.QUORUM))

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
        """Whether it came to its end."""
        cells = [(table, partition, row) for partition in range(PARTITIONS) for row in range(ROWS)]
        is_reversed = self._rng.random() < 0.2
        return await self._read(
            RowQuery(
                table=table, level=level, spans=(ALL_KEYS,), cells=cells, rows_max=rows_max, is_reversed=is_reversed
            )
        )

    async def _read(self, wanted: RowQuery) -> bool:
        """Page after page, each from another shard where one fails. The positions are all that is kept."""
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
                self._move()
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

    async def _page(self, wanted: RowQuery, position: bytes) -> tuple[RouteReadAnswer, dict[Cell, int]]:
        """Checked against what was acknowledged before it was asked for."""
        floors, began = self._ledger.floors(wanted.cells, wanted.level), self._loop.time()
        request = RouteReadRequest(
            table=self._load.tables[wanted.table].id,
            spans=wanted.spans,
            level=wanted.level,
            rows_max=wanted.rows_max,
            is_reversed=wanted.is_reversed,
            position=position,
        )
        answer = await self.call(ROUTE_READ, request)
        schema = self._load.cluster.schema(request.table)
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
