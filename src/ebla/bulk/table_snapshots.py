"""Snapshots for reads of tables: for each read a checkpoint of everything this node has of the table, kept while it is
used and some time after. The holder of a ticket reads from it, or from a new one where it is gone.

The checkpoint of a read is taken after a read barrier that began after the request came. Every write that was
acknowledged by then was routed by a version that this process has afterwards, and the shards have it before they link
their files. So if this node has a complete copy at that version, the copy contains the write, if the write was routed
to this node at all. The same holds whenever it is taken again: hours later, after any number of migrations, it is as
good as the first.

It needs no session, holds nothing on the shards, and no barrier waits for it. Snapshots are known in memory only: after
a restart this process has none, and takes new ones on request.
"""

import asyncio
from dataclasses import dataclass, field

from ebla.bulk.checkpoint_store import CheckpointRecord, CheckpointSpec, CheckpointStore
from ebla.bulk.read_coverage import RangeNotOwned, SnapshotCoverage, coverage_of, owned_ranges
from ebla.bulk.tickets import Grant, TicketRefused
from ebla.bulk.transfer_context import TransferContext
from ebla.feed.topology_view import View
from ebla.model.errors import Overloaded, Refused, Stale
from ebla.model.identity import TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.wire.table_calls import ReadId

SNAPSHOT_TRIES_MAX = 3
"""A try fails when a replica leaves while its files are linked."""
ANY_VERSION = TopologyVersion(0)


@dataclass(slots=True, eq=False, kw_only=True)
class TableSnapshot:
    """A table as this node had it at one time."""

    read: ReadId
    record: CheckpointRecord
    schema: TableSchema
    coverage: SnapshotCoverage
    places: object
    """The places of the table's replicas when it was taken (`_replica_places`)."""
    uses: int = 0
    is_over: bool = False
    """Nothing is read from it any more, not even by streams that are open."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Entry:
    read: ReadId
    table: TableId
    expires_ms: int
    """Wall time: when its last ticket expires."""
    used_ms: int
    """Boot clock."""
    snapshot: TableSnapshot | None = None
    waiters: int = 0
    """Calls that wait for a snapshot, or take one."""
    is_closed: bool = False
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_unused(self) -> bool:
        return not self.waiters and (self.snapshot is None or not self.snapshot.uses)


class TableSnapshots:
    def __init__(self, context: TransferContext, checkpoints: CheckpointStore) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._reads: dict[ReadId, _Entry] = {}
        self._leaving: list[TableSnapshot] = []
        """Their files are removed when the last stream of each has ended."""

    @property
    def count(self) -> int:
        return len(self._reads)

    # -- use ---------------------------------------------------------------------------------------------------------

    async def enter(self, grant: Grant, asked: TokenRange, deadline_ms: int) -> TableSnapshot:
        """In use until `leave`. Raises `RangeNotOwned` for a range that it does not contain completely."""
        snapshot = await self.open(grant, ANY_VERSION, deadline_ms)
        if not snapshot.coverage.has(asked, grant.incarnations):
            raise RangeNotOwned(
                f"this node has no complete copy of tokens {asked.start} to {asked.end} as of version "
                f"{snapshot.record.version} of the topology, that it had when the read was planned",
                advice="read it from another replica, or plan the read again",
            )
        snapshot.uses += 1
        return snapshot

    def check(self, snapshot: TableSnapshot) -> None:
        """Before each batch. Raises where the read was ended while its streams are open."""
        self._context.schema_of(snapshot.record.table)
        if snapshot.is_over:
            raise TicketRefused("the ticket expired during the read", advice="start the job again")

    def leave(self, snapshot: TableSnapshot) -> None:
        assert snapshot.uses > 0
        snapshot.uses -= 1
        entry = self._reads.get(snapshot.read)
        if entry is not None:
            entry.used_ms = self._context.clock.boot_ms()

    async def close(self, read: ReadId) -> None:
        """At once, or with the end of its last stream. With a ticket that is still valid, a new read starts."""
        entry = self._reads.get(read)
        if entry is not None:
            entry.is_closed = True
            try:
                await self.drop_idle()
            except OSError:
                pass  # a task may be creating files in it; the next sweep tries again

    # -- expiry ------------------------------------------------------------------------------------------------------

    def expire_snapshots(self) -> None:
        """Ends reads of dropped tables, and those whose tickets have all expired: a task that is frozen in the middle
        of a stream would keep the files forever."""
        if not self._context.view.is_known:
            return
        tables, now_ms = self._context.view.current.schemas, self._context.wall_ms()
        for entry in list(self._reads.values()):
            if not entry.waiters and (entry.table not in tables or now_ms >= entry.expires_ms):
                if entry.snapshot is not None:
                    entry.snapshot.is_over = True
                self._drop_entry(entry)

    async def drop_idle(self) -> None:
        """Raises `OSError` where a folder cannot be removed; the next sweep treats it as an orphan."""
        now_ms = self._context.clock.boot_ms()
        for entry in list(self._reads.values()):
            idle = entry.is_closed or now_ms - entry.used_ms >= self._context.limits.reads_idle_ms
            if idle and entry.is_unused:
                self._drop_entry(entry)
        # One by one, so that an error does not lose track of the others.
        while (snapshot := next((one for one in self._leaving if not one.uses), None)) is not None:
            self._leaving.remove(snapshot)
            await self._checkpoints.release(None, (snapshot.record.checkpoint,))

    def _drop_entry(self, entry: _Entry) -> None:
        assert not entry.waiters
        del self._reads[entry.read]
        if entry.snapshot is not None:
            self._leaving.append(entry.snapshot)
        self._update_metrics()

    def _make_room(self) -> None:
        if len(self._reads) < self._context.limits.reads_max:
            return
        unused = [entry for entry in self._reads.values() if entry.is_unused]
        if not unused:
            raise Overloaded(
                f"{len(self._reads)} reads of tables are open on this node, which is the limit",
                advice="try again when one has ended",
            )
        self._drop_entry(min(unused, key=lambda entry: entry.used_ms))

    # -- taking ------------------------------------------------------------------------------------------------------

    async def open(self, grant: Grant, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        """The same one while it is kept. If replicas of the table have moved since, as a caller with this version
        knows, a new one is taken: the caller's plan uses other replicas than the old one has. Nothing awaits between
        finding or taking it and the return, so the caller can count its use without a gap."""
        self._context.schema_of(grant.table)
        entry = self._entry(grant)
        entry.waiters += 1
        try:
            async with entry.taking:
                if entry.snapshot is None or not await self._is_enough(entry.snapshot, version, deadline_ms):
                    taken = await self._take(entry, version, deadline_ms)
                    if entry.snapshot is not None:
                        self._leaving.append(entry.snapshot)
                    entry.snapshot = taken
                snapshot = entry.snapshot
        finally:
            entry.waiters -= 1
            entry.used_ms = self._context.clock.boot_ms()
            if entry.snapshot is None and not entry.waiters:
                self._drop_entry(entry)
        return snapshot

    def _entry(self, grant: Grant) -> _Entry:
        read = ReadId(grant.subject)
        entry = self._reads.get(read)
        if entry is None:
            self._make_room()
            entry = self._reads[read] = _Entry(
                read=read, table=grant.table, expires_ms=grant.expires_ms, used_ms=self._context.clock.boot_ms()
            )
            self._update_metrics()
        elif entry.table != grant.table:
            raise Refused(f"read {read} is of table {entry.table}, not of {grant.table}", advice="draw another id")
        entry.expires_ms = max(entry.expires_ms, grant.expires_ms)
        return entry

    async def _is_enough(self, snapshot: TableSnapshot, version: TopologyVersion, deadline_ms: int) -> bool:
        if version <= snapshot.record.version:
            return True
        view = await self._view_at(version, deadline_ms)
        return _replica_places(view, snapshot.record.table) is snapshot.places

    async def _take(self, entry: _Entry, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        for _ in range(SNAPSHOT_TRIES_MAX - 1):
            try:
                return await self._take_once(entry, version, deadline_ms)
            except Stale:
                pass  # a replica left meanwhile, and the topology has changed
        return await self._take_once(entry, version, deadline_ms)

    async def _take_once(self, entry: _Entry, version: TopologyVersion, deadline_ms: int) -> TableSnapshot:
        context, table = self._context, entry.table
        await context.guards.catch_up(min(deadline_ms, context.limits.barrier_ms))
        before = context.view.current
        asked = max(version, before.version)
        spec = CheckpointSpec(
            session=None,
            table=table,
            range=WHOLE_RING,
            version=asked,
            schema=context.schema_of(table, before),
            shards=context.shard_numbers(),
        )
        record = await self._checkpoints.take(spec, min(deadline_ms, context.limits.shard_ms))
        try:
            # A shard may have been ahead of this process. Its rows are read and judged by the version it had.
            after = await self._view_at(record.version, deadline_ms)
            schema = context.schema_of(table, after)
        except BaseException:
            await self._checkpoints.release(None, (record.checkpoint,))
            raise
        owned = owned_ranges(before, table, context.host), owned_ranges(after, table, context.host)
        context.metrics.read_checkpoints.add()
        return TableSnapshot(
            read=entry.read,
            record=record,
            schema=schema,
            coverage=coverage_of(record.parts, *owned),
            places=_replica_places(after, table),
        )

    async def _view_at(self, version: TopologyVersion, deadline_ms: int) -> View:
        wait_ms = min(deadline_ms, self._context.limits.barrier_ms)
        if not await self._context.view.wait_version(version, wait_ms / 1000):
            raise Stale(f"version {version} of the topology has not arrived within {wait_ms} ms", advice="try again")
        return self._context.view.current

    def _update_metrics(self) -> None:
        self._context.metrics.reads.set(self.count)


def _replica_places(view: View, table: TableId) -> object:
    """The same object in two views where the table's replicas have the same places."""
    return view.snapshot.tablets.get(table, view.snapshot.nodes)
