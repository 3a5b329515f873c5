"""Routes reads to their replicas.

A page is read in rounds. A round takes the current view of the topology, splits what is left of the spans by replica
set, queries the replicas of the next few parts in parallel, and adds what they agree on, in order. If a replica
refuses a round as stale, the round is sent again by a newer view. What the page already has stays, because replicas
agreed on it when they were asked. The rest is found by key, wherever it is by then.

For each part one replica is asked for data and the others that the level needs for digests. If digests differ, all of
them are asked for data. The data is merged, and what a replica lacks is written to it before the page is answered.

A read that the router's own shard can answer alone runs in the first step of the coroutine (`aio/eager.py`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import msgspec

from ebla.aio.eager import Suspended, needs_task, run_eagerly
from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.error_codes import as_read_error
from ebla.model.errors import EblaError, InternalError, NotFound, Overloaded, ReadTimeout, Stale
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries, Metrics
from ebla.request.paging import PageBuilder, check_query
from ebla.request.read_executor import ReadExecutor, ReadExecutorDeps, ReplicaQuery
from ebla.request.read_plan import (
    SINGLE_REPLICA_LEVELS,
    ReadPlanner,
    ReadReplicaPlan,
    ReplicaSpans,
    gc_before_s,
    is_one_token,
    replace_slow,
    replica_spans,
)
from ebla.request.read_repair import MissingItems, ReadRepair, plan_repairs
from ebla.request.reconcile import (
    ReplicaAnswer,
    digests_match,
    missing_heads,
    page_of_matching,
    reconcile_answers,
)
from ebla.request.router_types import ReadPage, ReadQuery, RouterDeps
from ebla.request.short_reads import (
    LiveRowContext,
    ReconcileOptions,
    SettledPage,
    common_end,
    head_spans,
    is_beyond,
    spans_after,
    split_partition,
)
from ebla.request.speculative_retry import SpeculativeRetry
from ebla.request.write_plan import table_replicas
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.live_rows import has_static, is_live_row
from ebla.storage.codec.row_codec import is_head, schema_version
from ebla.wire.errors import failure_frame
from ebla.wire.row_messages import Item, ReadRowsRequest

WINDOW_GROWTH_FACTOR = 4
"""How many times more parts the next round queries, if this one did not fill the page."""
STALE_PAUSE_MS = 10
STALE_PAUSE_MAX_MS = 500
"""Between tries, if no newer version is there yet; doubled each time."""


class ReadMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._ended = metrics.counter("router_reads_total", "Read requests by how they ended.", labels=("end",))
        self._answered = self._ended.series("answered")
        self.retries: CounterSeries = metrics.counter(
            "router_read_retries_total", "Read rounds sent again by a newer topology."
        ).series()
        self.mismatches: CounterSeries = metrics.counter(
            "router_read_mismatches_total", "Parts of reads whose replicas had different digests."
        ).series()
        self.repairs: CounterSeries = metrics.counter(
            "router_read_repairs_total", "Replicas that were sent what they lacked."
        ).series()
        self.repeated: CounterSeries = metrics.counter(
            "router_speculative_retries_total", "Requests sent to another replica because one was slow."
        ).series()
        self.seconds = metrics.histogram("router_read_seconds", "From request to answer.").series()

    def answered(self, seconds: float) -> None:
        self._answered.value += 1
        self.seconds.observe(seconds)

    def failed(self, error: EblaError) -> None:
        self._ended.series(failure_frame(0, error).error).add()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRound:
    """What the parts of one round share."""

    query: ReadQuery
    level: ConsistencyLevel
    expires_at: float
    view: View
    planner: ReadPlanner
    row_context: LiveRowContext
    gc_before_s: int
    rows_max: int


class ReadRouter:
    def __init__(self, deps: RouterDeps) -> None:
        self._deps = deps
        self._limits = deps.limits
        self._view = deps.view
        self._loop = asyncio.get_running_loop()
        self._metrics = ReadMetrics(deps.metrics)
        self._speculation = SpeculativeRetry(deps.limits.retry_delay_max_ms)
        self._executor_deps = ReadExecutorDeps(
            router=deps, speculation=self._speculation, loop=self._loop, repeated=self._metrics.repeated
        )
        self._planner: ReadPlanner | None = None
        self._in_flight = 0

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        """A page with as many rows as asked for, unless it is the last one, or large, or time is over before it is
        full: only an empty position says that nothing follows. `timeout_ms` is capped by the node's limit. Raises
        `TooFewReplicas`, `ReadTimeout`, `ReadFailed`, `Overloaded`, `InvalidRequest`, `NotFound`."""
        timeout_ms = min(timeout_ms, self._limits.read_timeout_ms_max)
        began_at = self._loop.time()
        try:
            page = self._read_own_shard(query, level, timeout_ms)
            if page is None:
                page = await self._read_counted(query, level, began_at + timeout_ms / 1000)
        except EblaError as error:
            self._metrics.failed(error)
            raise as_read_error(error) from error
        self._metrics.answered(self._loop.time() - began_at)
        return page

    @property
    def in_flight(self) -> int:
        return self._in_flight

    # ---- the own shard alone

    def _read_own_shard(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage | None:
        """The page, if this shard can give it alone and without waiting. A shortcut without rounds and plans, for the
        most frequent reads."""
        if level not in SINGLE_REPLICA_LEVELS or query.position or not query.spans or not is_one_token(query.spans):
            return None
        view = self._view.current
        schema = view.schemas.get(query.table)
        own = self._deps.own
        if schema is None or own not in view.sets.of(query.table).reading(decode_token(query.spans[0][0])):
            return None
        check_query(query)
        request = ReadRowsRequest(
            version=view.version,
            table=query.table,
            spans=query.spans,
            rows_max=query.rows_max,
            now_s=query.now_s,
            is_reversed=query.is_reversed,
            partition_rows_max=query.partition_rows_max,
            with_digest=False,
        )
        try:
            answer = run_eagerly(self._deps.clients.read_own(request, timeout_ms))
        except Exception:  # any error: the rounds ask this replica again, and others if it fails
            return None
        if type(answer) is Suspended:
            answer.close()
            return None
        if not answer.is_whole or query.partition_rows_max:
            return None
        live: list[Item] = []
        for item in answer.items:
            value = item[1]
            if schema_version(value) > schema.version:
                return None
            is_live = has_static if is_head(value) else is_live_row
            if is_live(value, schema, query.now_s):
                live.append(item)
        return ReadPage(tuple(live), b"")

    # ---- in rounds

    async def _read_counted(self, query: ReadQuery, level: ConsistencyLevel, expires_at: float) -> ReadPage:
        if self._in_flight >= self._limits.reads_in_flight_max:
            raise Overloaded(f"{self._in_flight} reads are in flight", advice="send fewer at once")
        self._in_flight += 1
        try:
            return await self._read(query, level, expires_at)
        finally:
            self._in_flight -= 1

    async def _read(self, query: ReadQuery, level: ConsistencyLevel, expires_at: float) -> ReadPage:
        check_query(query)
        builder = PageBuilder(query, self._limits.page_bytes_max)
        at_start = builder.rest
        window = 1 if len(query.spans) == 1 else min(len(query.spans), self._limits.parallel_ranges_max)
        stale_tries = 0
        while builder.rest and not builder.is_full:
            version, before = self._view.current.version, builder.rest
            try:
                if self._loop.time() >= expires_at:
                    raise ReadTimeout(f"{level.name} read: the time was over before it could be answered")
                is_complete = await self._round(self._new_round(query, level, expires_at, builder), builder, window)
            except Stale as stale:
                stale_tries += 1
                await self._wait_newer(version, stale_tries, expires_at)
                if self._loop.time() >= expires_at and builder.rest == at_start:
                    raise ReadTimeout(f"{level.name} read: {stale.message}", advice="try again") from stale
            except ReadTimeout:
                if builder.rest == at_start:
                    raise
                break
            else:
                stale_tries = 0
                if builder.rest == before:
                    raise InternalError(f"{level.name} read: a page ended before it began")
                wider = min(window * WINDOW_GROWTH_FACTOR, self._limits.parallel_ranges_max)
                window = wider if is_complete else 1
        return builder.page()

    def _new_round(
        self, query: ReadQuery, level: ConsistencyLevel, expires_at: float, builder: PageBuilder
    ) -> ReadRound:
        view = self._view.current
        table_replicas(view, query.table)
        schema = view.schemas.get(query.table)
        if schema is None:
            raise NotFound(f"table {query.table} has no definition")
        return ReadRound(
            query=query,
            level=level,
            expires_at=expires_at,
            view=view,
            planner=self._planner_of(view),
            row_context=LiveRowContext(schema, query.now_s),
            gc_before_s=gc_before_s(view, query.table, query.now_s),
            rows_max=builder.rows_left,
        )

    def _planner_of(self, view: View) -> ReadPlanner:
        down, refused = self._view.down, self._deps.clients.refused
        planner = self._planner
        if planner is None or not planner.is_for(view, down, refused):
            planner = self._planner = ReadPlanner(view, self._deps.own, self._deps.datacenter, down, refused)
        return planner

    async def _wait_newer(self, version: TopologyVersion, tries: int, expires_at: float) -> None:
        """Waits for a newer version of the topology, or for a pause: the replica may be the one that is behind, or may
        not have its tablet yet."""
        self._metrics.retries.add()
        pause_ms = min(STALE_PAUSE_MAX_MS, STALE_PAUSE_MS * 2 ** min(tries, 16))
        left_s = max(0.0, expires_at - self._loop.time())
        await self._view.wait_version(TopologyVersion(version + 1), min(left_s, pause_ms / 1000))

    # ---- one round

    async def _round(self, current: ReadRound, builder: PageBuilder, window: int) -> bool:
        """Whether all parts were added, to their ends. The version is held from the first request to the last write of
        a repair: no barrier may pass in between."""
        version = current.view.version
        self._view.hold(version)
        try:
            parts = list(islice(_next_parts(current, builder), window))
            if len(parts) > 1:
                return await self._read_in_parallel(current, parts, builder)
            page = await self._read_part(current, parts[0])
            return builder.take(page, parts[0].spans, current.row_context)
        finally:
            self._view.release(version)

    async def _read_in_parallel(self, current: ReadRound, parts: Sequence[ReplicaSpans], builder: PageBuilder) -> bool:
        """Parts are added in order, whichever is answered first. An error behind the end of the page does not
        matter."""
        error: EblaError | None = None
        is_complete = True
        await needs_task()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._part_or_error(current, part)) for part in parts]
            for part, task in zip(parts, tasks):
                page = await task
                if isinstance(page, EblaError):
                    error = page
                    break
                if not builder.take(page, part.spans, current.row_context):
                    is_complete = False
                    break
            for task in tasks:
                task.cancel()
        if error is not None:
            raise error
        return is_complete

    async def _part_or_error(self, current: ReadRound, part: ReplicaSpans) -> SettledPage | EblaError:
        try:
            return await self._read_part(current, part)
        except EblaError as error:
            return error

    # ---- one part

    async def _read_part(self, current: ReadRound, part: ReplicaSpans) -> SettledPage:
        query, planner = current.query, current.planner
        plan = planner.plan(query.table, part.replicas, current.level)
        now_ms = self._deps.clock.boot_ms()
        plan = replace_slow(plan, lambda each: self._speculation.is_avoided(each, now_ms), planner.datacenter_of)
        data = ReadRowsRequest(
            version=current.view.version,
            table=query.table,
            spans=part.spans,
            rows_max=current.rows_max,
            now_s=query.now_s,
            gc_before_s=current.gc_before_s,
            is_reversed=query.is_reversed,
            partition_rows_max=part.partition_rows_max,
        )
        replica_query = ReplicaQuery(
            version=current.view.version,
            data=data,
            digest=msgspec.structs.replace(data, digest_only=True) if len(plan.contacts) > 1 else None,
            level=current.level,
            datacenter_of=planner.datacenter_of,
            expires_at=current.expires_at,
        )
        executor = ReadExecutor(self._executor_deps, replica_query, plan)
        await executor.wait_answers()
        assert executor.data is not None
        check_schema_versions(executor.data.items, current.row_context)
        answers = tuple(executor.answers.values())
        options = ReconcileOptions(
            row_context=current.row_context,
            gc_before_s=current.gc_before_s,
            is_reversed=query.is_reversed,
            partition_rows_max=part.partition_rows_max,
        )
        if digests_match(answers):
            return page_of_matching(executor.data, answers, options)
        self._metrics.mismatches.add()
        contacts = tuple(executor.answers)
        spares = tuple(each for each in (*plan.contacts, *plan.spares) if each not in contacts)
        return await self._reconcile(current, replica_query, ReadReplicaPlan(contacts, spares, plan.needed), options)

    async def _reconcile(
        self, current: ReadRound, replica_query: ReplicaQuery, plan: ReadReplicaPlan, options: ReconcileOptions
    ) -> SettledPage:
        """Reads data from all replicas that gave different digests, merges and repairs it."""
        replica_query = replace(replica_query, digest=None)
        executor = ReadExecutor(self._executor_deps, replica_query, plan)
        await executor.wait_answers()
        prefixes = missing_heads(executor.answers.values(), replica_query.data.spans, is_reversed=options.is_reversed)
        heads = await self._read_heads(replica_query, tuple(executor.answers), prefixes)
        answers = [ReplicaAnswer(each, page, tuple(heads.get(each, ()))) for each, page in executor.answers.items()]
        for answer in answers:
            check_schema_versions((*answer.page.items, *answer.heads), options.row_context)
        result = reconcile_answers(answers, options)
        if result.repairs:
            await self._repair(current.planner, replica_query, result.repairs, tuple(executor.answers))
        return result.page

    async def _read_heads(
        self, replica_query: ReplicaQuery, replicas: tuple[Replica, ...], prefixes: Sequence[bytes]
    ) -> dict[Replica, list[Item]]:
        """Each replica's heads of these partitions."""
        heads: dict[Replica, list[Item]] = {each: [] for each in replicas}
        spans = head_spans(prefixes)
        while spans:
            data = msgspec.structs.replace(replica_query.data, spans=spans, is_reversed=False, partition_rows_max=0)
            all_replicas = ReadReplicaPlan(replicas, (), (RequiredReplies(None, len(replicas)),))
            executor = ReadExecutor(self._executor_deps, replace(replica_query, data=data), all_replicas)
            await executor.wait_answers()
            end = common_end(executor.answers.values(), is_reversed=False)
            for each, page in executor.answers.items():
                heads[each] += [item for item in page.items if not is_beyond(item[0], end, is_reversed=False)]
            spans = () if end is None else spans_after(spans, end, is_reversed=False)
        return heads

    async def _repair(
        self, planner: ReadPlanner, replica_query: ReplicaQuery, missing: MissingItems, answered: tuple[Replica, ...]
    ) -> None:
        repairs = [
            ReadRepair(self._deps, replica_query, plan)
            for plan in plan_repairs(planner, replica_query, missing, answered)
        ]
        for repair in repairs:
            repair.start()
            self._metrics.repairs.add(repair.target_count)
        for repair in repairs:
            await repair.wait_met()


def check_schema_versions(items: Iterable[Item], row_context: LiveRowContext) -> None:
    """Raises `Stale` if a row was written under a version of the table that this router does not know yet."""
    known = row_context.schema.version
    for _, value in items:
        if schema_version(value) > known:
            raise Stale(f"table {row_context.schema.full_name} is known here in version {known} only")


def _next_parts(current: ReadRound, builder: PageBuilder) -> Iterator[ReplicaSpans]:
    """What is left, by replica set. A partition of which some rows were read is a part of its own: it may give
    fewer."""
    query = current.query
    replicas = current.view.sets.of(query.table)
    rows_max, is_reversed = query.partition_rows_max, query.is_reversed
    entered = builder.entered_partition
    if entered is None:
        return replica_spans(replicas, builder.rest, rows_max, is_reversed=is_reversed)
    prefix, left = entered
    inside, behind = split_partition(builder.rest, prefix, is_reversed=is_reversed)
    return chain(
        replica_spans(replicas, inside, left, is_reversed=is_reversed),
        replica_spans(replicas, behind, rows_max, is_reversed=is_reversed),
    )
