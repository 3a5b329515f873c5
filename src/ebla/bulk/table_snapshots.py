"""Reads of tables: for each a checkpoint of all that this node has of the table, kept while it is used and some time
after. Whoever holds a ticket of the read is answered by it, or by a new one where it is gone.

A checkpoint for a read is taken behind a read barrier, begun after the question came. Every write that was acknowledged
by then was routed by a version that this process has afterwards, and so have the shards before they link their files:
what this node has a whole copy of at that version holds the write, if the write counted on this node at all. The same
goes for every one that is taken again: hours later, after any number of moves, it is as good as the first.

No session is open for it, nothing on the shards is held, and no barrier waits. In memory alone: a process that starts
anew keeps none, and takes what it is asked for.
"""

import asyncio
from dataclasses import dataclass, field

from ebla.bulk.checkpoint_store import CheckpointRecord, CheckpointSpec, CheckpointStore
from ebla.bulk.read_coverage import RangeNotOwned, SnapshotCoverage, coverage_of, owned_ranges
from ebla.bulk.tickets import Grant, TicketRefused
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import NotFound, Overloaded, Refused, Stale
from ebla.model.identity import HostId, ShardNumber, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.ports.clock import Clock
from ebla.wire.table_calls import ReadId

SNAPSHOT_TRIES_MAX = 3
"""Each time a replica left while its files were linked."""
ANY_VERSION = TopologyVersion(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshotsDeps:
    host: HostId
    view: TopologyView
    guards: SessionGuards
    checkpoints: CheckpointStore
    counts: TransferMetrics
    limits: TransferLimits
    clock: Clock


@dataclass(slots=True, eq=False, kw_only=True)
class TableSnapshot:
    """A table as this node had it at one moment."""

    read: ReadId
    record: CheckpointRecord
    schema: TableSchema
    coverage: SnapshotCoverage
    places: object
    """Of the table's replicas when it was taken, as `_places` tells them."""
    uses: int = 0
    is_over: bool = False
    """Nobody is answered by it any more, not even who is in the middle of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Kept:
    read: ReadId
    table: TableId
    expires_ms: int
    """Wall time: of the last ticket of it."""
    used_ms: int
    """By the clock since boot."""
    point: TableSnapshot | None = None
    askers: int = 0
    """Who wait for a point, or take one."""
    is_closed: bool = False
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_unused(self) -> bool:
        return not self.askers and (self.point is None or not self.point.uses)


class TableSnapshots:
    def __init__(self, parts: TableSnapshotsDeps) -> None:
        self._parts = parts
        self._reads: dict[ReadId, _Kept] = {}
        self._leaving: list[TableSnapshot] = []
        """Their files go when the last stream of each has ended."""

    @property
    def count(self) -> int:
        return len(self._reads)

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def opened(self, grant: Grant, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        """The same one while it is kept. Only where replicas of the table have moved since, as who asks by this version
        knows, it is left for a new one: their plan is made of other replicas than it was taken of."""
        return await self._point(grant, version, deadline_ms)

    async def enter(self, grant: Grant, asked: TokenRange, deadline_ms: int) -> TableSnapshot:
        """Used until `leave`. Raises `RangeNotOwned` for a range that it does not hold wholly."""
        point = await self._point(grant, ANY_VERSION, deadline_ms)
        if not point.coverage.has(asked, grant.lives):
            raise RangeNotOwned(
                f"this node has no whole copy of tokens {asked.start} to {asked.end} as of version "
                f"{point.record.version} of the topology, that it had when the read was planned",
                advice="read it from another replica, or plan the read again",
            )
        point.uses += 1
        return point

    def check(self, point: TableSnapshot) -> None:
        """Before each batch. Raises where the read has been ended under its streams."""
        self._schema(self._parts.view.current, point.record.table)
        if point.is_over:
            raise TicketRefused("the ticket expired while it was read by", advice="start the job again")

    def leave(self, point: TableSnapshot) -> None:
        assert point.uses > 0
        point.uses -= 1
        kept = self._reads.get(point.read)
        if kept is not None:
            kept.used_ms = self._parts.clock.boot_ms()

    async def close(self, read: ReadId) -> None:
        """At once, or with the end of its last stream. A ticket of it that is still valid begins anew."""
        kept = self._reads.get(read)
        if kept is not None:
            kept.is_closed = True
            try:
                await self.drop_idle()
            except OSError:
                pass  # some task may be making files in it; the next sweep tries again

    # -- what nobody needs -------------------------------------------------------------------------------------------

    def expire_snapshots(self) -> None:
        """Reads of dropped tables, and those whose tickets have all expired: a task that is frozen in the middle of a
        stream would keep its files for ever."""
        if not self._parts.view.is_known:
            return
        tables, now_ms = self._parts.view.current.schemas, self._parts.clock.wall_us() // 1000
        for kept in list(self._reads.values()):
            if not kept.askers and (kept.table not in tables or now_ms >= kept.expires_ms):
                if kept.point is not None:
                    kept.point.is_over = True
                self._let_go(kept)

    async def drop_idle(self) -> None:
        """Raises `OSError` where a folder cannot be removed; it is a stranger to the next sweep then."""
        now_ms = self._parts.clock.boot_ms()
        for kept in list(self._reads.values()):
            idle = kept.is_closed or now_ms - kept.used_ms >= self._parts.limits.reads_idle_ms
            if idle and kept.is_unused:
                self._let_go(kept)
        # One by one, so that those behind one that cannot be removed are still known.
        while (point := next((one for one in self._leaving if not one.uses), None)) is not None:
            self._leaving.remove(point)
            await self._parts.checkpoints.release(None, (point.record.checkpoint,))

    def _let_go(self, kept: _Kept) -> None:
        assert not kept.askers
        del self._reads[kept.read]
        if kept.point is not None:
            self._leaving.append(kept.point)
        self._note_kept()

    def _make_room(self) -> None:
        if len(self._reads) < self._parts.limits.reads_max:
            return
        unused = [kept for kept in self._reads.values() if kept.is_unused]
        if not unused:
            raise Overloaded(
                f"{len(self._reads)} reads of tables are under way on this node, which is all it takes",
                advice="try again when one has ended",
            )
        self._let_go(min(unused, key=lambda kept: kept.used_ms))

    # -- taking ------------------------------------------------------------------------------------------------------

    async def _point(self, grant: Grant, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        """Nothing awaits between its being found or taken and the return: whoever uses it counts it in the same
        step."""
        self._schema(self._parts.view.current, grant.table)
        kept = self._found(grant)
        kept.askers += 1
        try:
            async with kept.taking:
                if kept.point is None or not await self._is_enough(kept.point, version, deadline_ms):
                    taken = await self._take(kept, version, deadline_ms)
                    if kept.point is not None:
                        self._leaving.append(kept.point)
                    kept.point = taken
                point = kept.point
        finally:
            kept.askers -= 1
            kept.used_ms = self._parts.clock.boot_ms()
            if kept.point is None and not kept.askers:
                self._let_go(kept)
        return point

    def _found(self, grant: Grant) -> _Kept:
        read = ReadId(grant.subject)
        kept = self._reads.get(read)
        if kept is None:
            self._make_room()
            kept = self._reads[read] = _Kept(
                read=read, table=grant.table, expires_ms=grant.expires_ms, used_ms=self._parts.clock.boot_ms()
            )
            self._note_kept()
        elif kept.table != grant.table:
            raise Refused(f"read {read} is of table {kept.table}, not of {grant.table}", advice="draw another id")
        kept.expires_ms = max(kept.expires_ms, grant.expires_ms)
        return kept

    async def _is_enough(self, point: TableSnapshot, version: TopologyVersion, deadline_ms: int) -> bool:
        if version <= point.record.version:
            return True
        view = await self._view_at(version, deadline_ms)
        return _places(view, point.record.table) is point.places

    async def _take(self, kept: _Kept, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        for _ in range(SNAPSHOT_TRIES_MAX - 1):
            try:
                return await self._take_once(kept, version, deadline_ms)
            except Stale:
                pass  # a replica left under it, and the topology is another now
        return await self._take_once(kept, version, deadline_ms)

    async def _take_once(self, kept: _Kept, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        parts, table = self._parts, kept.table
        await parts.guards.catch_up(min(deadline_ms, parts.limits.barrier_ms))
        before = parts.view.current
        node = before.snapshot.nodes.get(parts.host)
        shards = tuple(ShardNumber(number) for number in range(0 if node is None else node.shard_count))
        asked = max(version, before.version)
        wanted = CheckpointSpec(
            session=None,
            table=table,
            range=WHOLE_RING,
            version=asked,
            schema=self._schema(before, table),
            shards=shards,
        )
        record = await parts.checkpoints.take(wanted, min(deadline_ms, parts.limits.shard_ms))
        try:
            # A shard may have been ahead of this process. By what it had then its rows are read, and judged.
            after = await self._view_at(record.version, deadline_ms)
            schema = self._schema(after, table)
        except BaseException:
            await parts.checkpoints.release(None, (record.checkpoint,))
            raise
        owned = owned_ranges(before, table, parts.host), owned_ranges(after, table, parts.host)
        parts.counts.read_checkpoints.add()
        return TableSnapshot(
            read=kept.read,
            record=record,
            schema=schema,
            coverage=coverage_of(record.parts, *owned),
            places=_places(after, table),
        )

    async def _view_at(self, version: TopologyVersion, deadline_ms: int) -> View:
        wait_ms = min(deadline_ms, self._parts.limits.barrier_ms)
        if not await self._parts.view.wait_version(version, wait_ms / 1000):
            raise Stale(f"version {version} of the topology has not come here within {wait_ms} ms", advice="try again")
        return self._parts.view.current

    def _schema(self, view: View, table: TableId) -> TableSchema:
        schema = view.schemas.get(table)
        if schema is None:
            raise NotFound(f"there is no table {table}", advice="it was dropped; the job has nothing to read")
        return schema

    def _note_kept(self) -> None:
        self._parts.counts.reads.set(self.count)


def _places(view: View, table: TableId) -> object:
    """The same object in two views that give the table's replicas the same places."""
    return view.snapshot.tablets.get(table, view.snapshot.nodes)
