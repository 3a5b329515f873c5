"""The stacks of a shard as the topology changes: created before a view is installed, found by every request, dropped
when no request routed to them is left.

Views come in order. `prepare` creates what the next view needs. `on_view_installed` switches to it in one step. Stacks
that the view no longer assigns to this shard are *doomed*, and dropped once no request of an older version runs
(INV-ROWS-11).

After a start, the first view may be older than what the shard had seen before, if its control process is still catching
up. So unknown stacks on disk are neither served nor dropped, and no tombstone is collected, until a read barrier has
shown that a view is recent (`confirm`). A replica dropped by mistake, or a tombstone purged in the middle of a move,
could not be restored.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DiskFull, Stale
from ebla.model.identity import Replica, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.token import TOKEN_MIN, TokenRange
from ebla.observe.event_reporter import EventReporter
from ebla.replica.stack_plan import (
    HeldByReplication,
    Hop,
    ShardStackPlan,
    StackKey,
    TableStackPlan,
    check_no_resize,
    held_by_replication,
    plan_shard,
    stack_keys,
)
from ebla.storage.codec.key_codec import tablet_index
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.manifest import HeldRanges
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import ReachGain, reach_nothing
from ebla.storage.store import GC_HOLD_AT_START, ShardStore
from ebla.topology.routing.replica_sets import HeldRangesOfHost
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import SessionKind

IN_TRANSITION = "in transition"
BULK_SESSION = "a bulk session of its table is open"
GAINS_AT_ONCE_MAX = 4
"""Stacks that are sealed at once when the node gains ranges."""
DROP_CHECK_S = 0.1
"""How often doomed stacks are checked, while there are any."""


class TableStacks:
    """One table on this shard at one version. Find the stack of a key by `tablet_index(key, shift)`."""

    __slots__ = ("hops", "plan", "shift", "stacks")

    def __init__(self, plan: TableStackPlan, stacks: Mapping[int, Stack]) -> None:
        self.plan = plan
        self.shift = plan.shift
        self.stacks = stacks
        self.hops: Mapping[int, Hop] = plan.hops


StackLayout = Mapping[TableId, TableStacks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    view: View
    plan: ShardStackPlan
    layout: StackLayout
    held: HeldByReplication

    def vnode_stacks(self) -> Iterator[tuple[Stack, HeldRangesOfHost]]:
        """Each with what the node holds of its table."""
        snapshot = self.view.snapshot
        for table_id, table in self.layout.items():
            if not snapshot.on_tablets(table_id):
                for stack in table.stacks.values():
                    yield stack, self.held[snapshot.replication_of(table_id)]


@dataclass(frozen=True, slots=True)
class _Doomed:
    since: TopologyVersion
    """The first installed version without it."""
    place: StackKey
    stack: Stack


class ReplicaStacks:
    """`run` must be running in the shard's task group."""

    def __init__(
        self,
        store: ShardStore,
        view: TopologyView,
        own: Replica,
        report: EventReporter,
        reach: ReachGain = reach_nothing,
    ) -> None:
        self._store = store
        self._view = view
        self._own = own
        self._report = report
        self._reach = reach
        self._known: dict[StackKey, Stack] = {
            (stack.entry.table, stack.entry.range): stack for stack in store.stacks.values()
        }
        self._prepared: _Prepared | None = None
        self._installed: _Prepared | None = None
        self._doomed: list[_Doomed] = []
        self._dropped_tables: list[tuple[TopologyVersion, TableId]] = []
        self._dropped_replicas: Counter[TableId] = Counter()
        """Of tables that were dropped: one event at the end, however many tablets a table had."""
        self._confirmed = False
        self._settling = asyncio.Lock()
        self._work = asyncio.Event()
        self.layout: StackLayout = {}
        """What requests are served from."""

    # -- requests ----------------------------------------------------------------------------------------------------

    def find(self, table: TableId, key: bytes) -> Stack | None:
        """The stack that has this key; None: it is not here. Valid until the next await."""
        found = self.layout.get(table)
        return None if found is None else found.stacks.get(tablet_index(key, found.shift))

    def covering(self, table: TableId, token_range: TokenRange) -> Stack | None:
        """The stack of a current or pending replica that has all of these tokens. Valid until the next await."""
        found = self.layout.get(table)
        stack = None if found is None else found.stacks.get((token_range.end - TOKEN_MIN) >> found.shift)
        return stack if stack is not None and stack.entry.range.covers(token_range) else None

    def overlapping(self, table: TableId, token_range: TokenRange) -> list[Stack]:
        found = self.layout.get(table)
        stacks = () if found is None else found.stacks.values()
        return [stack for stack in stacks if stack.entry.range.overlaps(token_range)]

    def is_collecting_held(self, stack: Stack) -> bool:
        """Whether the topology forbids collecting tombstones there."""
        return IN_TRANSITION in stack.gc_holds or BULK_SESSION in stack.gc_holds

    @property
    def count(self) -> int:
        return len(self._known)

    @property
    def running_operation(self) -> str:
        """What the topology is doing, by the installed view; empty: it is idle."""
        return "" if self._installed is None else self._installed.view.snapshot.running_operation

    @property
    def doomed_count(self) -> int:
        return len(self._doomed)

    @property
    def pending_replicas_open(self) -> bool:
        """Every replica that is pending here in the installed version accepts writes."""
        return all(
            number in table.stacks and not table.stacks[number].damage
            for table in self.layout.values()
            for number in table.plan.pending
        )

    def served(self) -> Iterator[Stack]:
        for table in self.layout.values():
            yield from table.stacks.values()

    # -- versions ----------------------------------------------------------------------------------------------------

    async def prepare(self, view: View) -> None:
        """Everything the view needs exists on return; nothing is served from it yet. Raises `Refused` if the shard
        cannot follow, `DiskFull` if there is no space: then it may be called again."""
        before = self._installed
        known = () if before is None else (before.view.snapshot, before.plan)
        # A table whose columns are not known cannot have rows yet.
        planned = plan_shard(view.snapshot, self._own, *known)
        plan = {table: one for table, one in planned.items() if table in view.schemas}
        held = held_by_replication(
            view.sets, self._own.host, None if before is None else (before.view.snapshot, before.held)
        )
        await self._learn_schemas(view, before)
        wanted = stack_keys(plan)
        await self._drop_returning(wanted)
        missing = [place for place in wanted if place not in self._known]
        if missing:
            check_no_resize(missing, self._known)
            for place, stack in zip(missing, await self._store.create_all(missing)):
                self._known[place] = stack
        layout = {table: self._table_stacks(table, one) for table, one in plan.items()}
        prepared = _Prepared(view=view, plan=plan, layout=layout, held=held)
        await self._hold_ranges(prepared)
        await self._hold_gc(prepared)
        self._prepared = prepared

    def on_view_installed(self, view: View) -> None:
        """To be called in the step that installs the view: the prepared one, or the one before at a later revision."""
        prepared, before = self._prepared, self._installed
        if before is not None and before.view.snapshot is view.snapshot:
            self._installed = replace(before, view=view)
            return
        assert prepared is not None, "a view is prepared before it is installed"
        assert prepared.view is view, "views are installed in the order in which they were prepared"
        self._prepared, self._installed = None, prepared
        self.layout = prepared.layout
        if before is not None:
            self._doom(before, prepared)
            self._dropped_tables += [
                (view.version, table) for table in before.view.snapshot.tables if table not in view.snapshot.tables
            ]
        if self._confirmed:
            self._doom_unowned()
        self._release_gc()
        self._work.set()

    async def confirm(self) -> None:
        """The installed view is known to be recent: stacks that it does not assign to this shard may be dropped."""
        assert self._installed is not None
        self._confirmed = True
        version, tables = self._installed.view.version, self._installed.view.snapshot.tables
        self._doom_unowned()
        dropped = [table for _, table in self._dropped_tables]
        self._dropped_tables += [
            (version, one.id) for one in self._store.tables if one.id not in tables and one.id not in dropped
        ]
        self._release_gc()
        self._work.set()
        await self.settle()

    @property
    def has_unowned(self) -> bool:
        """Whether there are stacks on disk that the installed view does not assign to this shard."""
        return bool(self._unowned())

    def _unowned(self) -> list[StackKey]:
        assert self._installed is not None
        wanted = set(stack_keys(self._installed.plan))
        return [place for place in self._known if place not in wanted]

    def _doom_unowned(self) -> None:
        """Includes stacks created for a view that was given up before it was installed."""
        assert self._installed is not None
        wanted_count = sum(len(one.ranges) for one in self._installed.plan.values())
        if len(self._known) == wanted_count + len(self._doomed):
            return
        doomed = {one.place for one in self._doomed}
        version = self._installed.view.version
        for place in self._unowned():
            if place not in doomed:
                self._doomed.append(_Doomed(version, place, self._known[place]))

    async def settle(self) -> None:
        """Drops what may be dropped by now."""
        async with self._settling:
            current = self._view.current
            oldest = self._view.versions.oldest(current.version)
            for one in [doomed for doomed in self._doomed if doomed.since <= oldest]:
                await self._drop(one)
            for since, table in [dropped for dropped in self._dropped_tables if dropped[0] <= oldest]:
                if table not in current.snapshot.tables:
                    await self._store.drop_table(table)
                    replicas = self._dropped_replicas.pop(table, 0) + sum(place[0] == table for place in self._known)
                    if replicas:
                        self._report("table.dropped", {"table": str(table), "replicas": replicas})
                    self._known = {place: stack for place, stack in self._known.items() if place[0] != table}
                self._dropped_tables.remove((since, table))

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._doomed or self._dropped_tables:
                try:
                    await self.settle()
                except DiskFull as failure:
                    self._report("replica.not_dropped", {"cause": failure.message})
                if self._doomed or self._dropped_tables:
                    await asyncio.sleep(DROP_CHECK_S)

    # -- parts of a change -------------------------------------------------------------------------------------------

    async def _learn_schemas(self, view: View, before: _Prepared | None) -> None:
        for table, schema in view.schemas.items():
            if before is None or before.view.schemas.get(table) is not schema:
                await self._learn_schema(schema)

    async def _learn_schema(self, schema: TableSchema) -> None:
        try:
            await self._store.set_schema(schema)
        except Stale:
            pass  # an older version than before the restart: rows of the newer one may be on disk

    async def _drop_returning(self, wanted: list[StackKey]) -> None:
        """A replica that left and comes back starts empty. Its old stack may hold rows whose tombstones all others have
        purged."""
        if self._doomed:
            returning = set(wanted)
            async with self._settling:
                for one in [doomed for doomed in self._doomed if doomed.place in returning]:
                    await self._drop(one)

    def _table_stacks(self, table: TableId, plan: TableStackPlan) -> TableStacks:
        before = self.layout.get(table)
        if before is not None and before.plan is plan:
            return before
        stacks = {number: self._known[(table, token_range)] for number, token_range in plan.ranges.items()}
        return TableStacks(plan, stacks)

    def _doom(self, before: _Prepared, now: _Prepared) -> None:
        for table, stacks in before.layout.items():
            kept = now.layout.get(table)
            if kept is stacks:
                continue
            still = {} if kept is None else kept.plan.ranges
            for number, token_range in stacks.plan.ranges.items():
                if number not in still:
                    self._doomed.append(_Doomed(now.view.version, (table, token_range), stacks.stacks[number]))

    async def _drop(self, doomed: _Doomed) -> None:
        await self._store.drop(doomed.stack)
        self._doomed.remove(doomed)
        if self._known.get(doomed.place) is doomed.stack:
            del self._known[doomed.place]
        table, token_range = doomed.place
        if table not in self._view.current.snapshot.tables:
            self._dropped_replicas[table] += 1
            return
        self._report("replica.dropped", {"table": str(table), "after": token_range.start, "last": token_range.end})

    async def _hold_ranges(self, prepared: _Prepared) -> None:
        """INV-NODE-20: what the node gains by this view starts empty.

        The view may come after several that this shard skips, a loss among them. A gain is noticed nevertheless:

        - by a node operation, ranges are pending before the node has them, and the barrier of that state waits for this
          shard. Whatever is pending by an operation not heard of yet is gained, even if the stored ranges have it;
        - by ALTER KEYSPACE, ranges are natural at once. A barrier before its commit waits until this shard has stored
          what was lost before.

        Barriers wait for a node that is merely down. They do not wait for one that is excluded, and nothing is given to
        such a node."""
        view, node = prepared.view, prepared.view.snapshot.node_in_transition()
        operation = "" if node is None or node.request is None else str(node.request)
        changed = [
            partial(self._hold_ranges_of, stack, held, of_host.pending)
            for stack, of_host in prepared.vnode_stacks()
            if (held := HeldRanges(of_host.ranges, view.revision, operation if of_host.pending else "")).is_news_to(
                stack.entry.held
            )
        ]
        if changed:
            await gather_bounded(changed, GAINS_AT_ONCE_MAX)

    async def _hold_ranges_of(self, stack: Stack, held: HeldRanges, pending: Sequence[TokenRange]) -> None:
        try:
            await self._store.hold_ranges(stack, held, pending, self._reach)
        except LayerDamaged as failure:
            # The next attempt finds it quarantined.
            self._store.note_damage(stack, failure)
            raise

    async def _hold_gc(self, prepared: _Prepared) -> None:
        """Loops until all are held at once: `confirm` of the view before may release some in the middle of this."""
        wanted = list(_holds_of(prepared))
        while missing := [(stack, reason) for stack, reason in wanted if reason not in stack.gc_holds]:
            for stack, reason in missing:
                await self._store.hold_gc(stack, reason)

    def _release_gc(self) -> None:
        """Releases what neither the installed nor the prepared view needs held (INV-LAYER-GC)."""
        if not self._confirmed:
            return
        self._keep_held()
        wanted = {
            (stack.incarnation, reason)
            for one in (self._installed, self._prepared)
            if one is not None
            for stack, reason in _holds_of(one)
        }
        for stack in self.served():
            if stack.gc_holds:
                for reason in (IN_TRANSITION, BULK_SESSION):
                    if (stack.incarnation, reason) not in wanted:
                        self._store.release_gc(stack, reason)
                self._store.release_gc(stack, GC_HOLD_AT_START)

    def _keep_held(self) -> None:
        """Compactions drop what is outside of the ranges that the node holds, while no node operation runs: until one
        has ended, requests of the version before may still read there. Only by the installed view: it has let in every
        row that is in the layers of a compaction, which reads this in the step in which it chooses them."""
        installed = self._installed
        assert installed is not None
        is_idle = not installed.view.snapshot.running_operation
        for stack, held in installed.vnode_stacks():
            stack.kept = held.ranges if is_idle else None


def _holds_of(prepared: _Prepared) -> Iterator[tuple[Stack, str]]:
    """Stacks in which no tombstone may be collected, each with the reason. A bulk session may have staged data for any
    stack of its table. Only the bulk processes know for which, and a shard that restarts must not collect before it has
    asked them."""
    staged = _tables_of_bulk_sessions(prepared.view.snapshot)
    for table_id, table in prepared.layout.items():
        for number in table.plan.moving:
            yield table.stacks[number], IN_TRANSITION
        if table_id in staged:
            for stack in table.stacks.values():
                yield stack, BULK_SESSION


def _tables_of_bulk_sessions(snapshot: Snapshot) -> set[TableId]:
    sessions = snapshot.sessions.values()
    return {one.table for one in sessions if one.kind is SessionKind.BULK_JOB and one.table is not None}
