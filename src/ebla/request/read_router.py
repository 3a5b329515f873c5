"""Reads on their way through a router.

A page is read in rounds. A round takes the view that holds, cuts what is left of the spans into pieces, asks the
replicas of the next few pieces side by side, and adds what they agree on in order. A round that a replica refuses as
stale is asked again by a newer view; what the page already has stays, since it was agreed on when it was asked, and the
rest is found by key, wherever it is by then.

Of each piece one replica is asked for data and the others that the level needs for digests. Where these differ all of
them are asked for data, which is merged, and what they lack is written to them before the page is answered.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import msgspec

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.errors import EblaError, InternalError, NotFound, Overloaded, ReadTimeout, Stale
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries
from ebla.request.paging import PageBuilder, check_query
from ebla.request.read_executor import ReadExecutor, ReadExecutorDeps, ReplicaQuery
from ebla.request.read_plan import (
    SINGLE_REPLICA_LEVELS,
    ReadPlanner,
    ReadReplicaPlan,
    ReplicaSpans,
    RouterLocation,
    gc_before_s,
    is_one_token,
    replace_slow,
    replica_spans,
)
from ebla.request.read_repair import MissingItems, ReadRepair, plan_repairs
from ebla.request.reconcile import (
    ReconcileOptions,
    ReplicaAnswer,
    digests_match,
    missing_heads,
    page_of_matching,
    reconcile_answers,
)
from ebla.request.router_types import ReadPage, ReadQuery, RouterDeps
from ebla.request.short_reads import (
    LiveRowContext,
    SettledPage,
    common_end,
    head_spans,
    is_beyond,
    spans_after,
    split_partition,
)
from ebla.request.speculative_retry import SpeculativeRetry, SpeculativeRetryLimits
from ebla.request.write_plan import table_replicas
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.live_rows import has_static, is_live_row
from ebla.storage.codec.row_codec import is_head, schema_version
from ebla.wire.errors import failure_frame
from ebla.wire.row_messages import Item, ReadRowsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    page_bytes_max: int = 1 << 20
    """A page ends with the row that makes it this large."""
    parallel_ranges_max: int = 64
    """Asked side by side."""
    window_growth_factor: int = 4
    """How many times more pieces the next round asks, where this one did not fill the page."""
    stale_pause_ms: int = 10
    stale_pause_max_ms: int = 500
    """Between tries, where no newer version is there yet; twice as long each time."""
    speculation: SpeculativeRetryLimits = field(default_factory=SpeculativeRetryLimits)

    def __post_init__(self) -> None:
        assert self.parallel_ranges_max > 0
        assert self.window_growth_factor > 1


class ReadMetrics:
    """What people see of a router's reads."""

    def __init__(self, parts: RouterDeps) -> None:
        metrics = parts.metrics
        self._ended = metrics.counter("router_reads_total", "Read requests by how they ended.", labels=("end",))
        self._answered = self._ended.series("answered")
        self.retries: CounterSeries = metrics.counter(
            "router_read_retries_total", "Rounds of reads asked again by a newer topology."
        ).series()
        self.mismatches: CounterSeries = metrics.counter(
            "router_read_mismatches_total", "Pieces of reads of which replicas had different digests."
        ).series()
        self.repairs: CounterSeries = metrics.counter(
            "router_read_repairs_total", "Replicas that were sent what they lacked."
        ).series()
        self.repeated: CounterSeries = metrics.counter(
            "router_reads_repeated_total", "Requests sent to another replica because one was slow."
        ).series()
        self.seconds = metrics.histogram("router_read_seconds", "From request to answer.").series()

    def answered(self, seconds: float) -> None:
        self._answered.value += 1
        self.seconds.observe(seconds)

    def failed(self, error: EblaError) -> None:
        self._ended.series(failure_frame(0, error).error).add()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRound:
    """What the pieces of one round share."""

    query: ReadQuery
    level: ConsistencyLevel
    expires_at: float
    view: View
    planner: ReadPlanner
    row_context: LiveRowContext
    gc_before_s: int
    rows_max: int


class ReadRouter:
    def __init__(self, parts: RouterDeps, limits: ReadLimits | None = None) -> None:
        self._parts = parts
        self._limits = limits or ReadLimits()
        self._view = parts.view
        self._loop = asyncio.get_running_loop()
        self._counts = ReadMetrics(parts)
        self._speculation = SpeculativeRetry(self._limits.speculation)
        self._asker = ReadExecutorDeps(
            parts=parts, speculation=self._speculation, loop=self._loop, repeated=self._counts.repeated
        )
        self._place = RouterLocation(parts.own, parts.datacenter)
        self._planner: ReadPlanner | None = None
        self._in_flight = 0

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        """A page with as many rows as asked for, unless it is the last, or large, or the time is over before it is
        full: only an empty position says that nothing follows. Raises `TooFewReplicas`, `ReadTimeout`, `ReadFailed`,
        `Overloaded`, `InvalidRequest`, `NotFound`."""
        began_at = self._loop.time()
        try:
            page = self.read_now(query, level)
            if page is None:
                page = await self._read_counted(query, level, began_at + timeout_ms / 1000)
        except EblaError as error:
            self._counts.failed(error)
            raise
        self._counts.answered(self._loop.time() - began_at)
        return page

    @property
    def in_flight(self) -> int:
        return self._in_flight

    # ---- at once

    def try_read(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None:
        """As `read_now`, and counted as a read where it answers."""
        began_at = self._loop.time()
        try:
            page = self.read_now(query, level)
        except EblaError as error:
            self._counts.failed(error)
            raise
        if page is not None:
            self._counts.answered(self._loop.time() - began_at)
        return page

    def read_now(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None:
        """What this shard alone can answer without waiting; None: `read` has to."""
        if level not in SINGLE_REPLICA_LEVELS or query.position or not query.spans or not is_one_token(query.spans):
            return None
        view = self._view.current
        schema = view.schemas.get(query.table)
        own = self._parts.own
        if schema is None or own not in view.sets.of(query.table).reading(decode_token(query.spans[0][0])):
            return None
        check_query(query)
        request = ReadRowsRequest(
            version=view.version,
            table=query.table,
            spans=query.spans,
            rows_max=query.rows_max,
            now_s=query.now_s,
            gc_before_s=0,
            is_reversed=query.is_reversed,
            digest_only=False,
            partition_rows_max=query.partition_rows_max,
        )
        try:
            answer = self._parts.clients.read_now(own, request)
        except Stale:
            return None
        if answer is None or not answer.is_whole or query.partition_rows_max:
            return None
        for _, value in answer.items:
            if schema_version(value) > schema.version:
                return None
        now_s = query.now_s
        shown = tuple(
            [
                item
                for item in answer.items
                if (has_static(item[1], schema, now_s) if is_head(item[1]) else is_live_row(item[1], schema, now_s))
            ]
        )
        return ReadPage(shown, b"")

    # ---- in rounds

    async def _read_counted(self, query: ReadQuery, level: ConsistencyLevel, expires_at: float) -> ReadPage:
        if self._in_flight >= self._parts.limits.reads_in_flight_max:
            raise Overloaded(f"{self._in_flight} reads are under way", advice="send fewer at once")
        self._in_flight += 1
        try:
            return await self._read(query, level, expires_at)
        finally:
            self._in_flight -= 1

    async def _read(self, query: ReadQuery, level: ConsistencyLevel, expires_at: float) -> ReadPage:
        check_query(query)
        builder = PageBuilder(query, self._limits.page_bytes_max)
        begun = builder.rest
        window = 1 if len(query.spans) == 1 else min(len(query.spans), self._limits.parallel_ranges_max)
        stale_tries = 0
        while builder.rest and not builder.is_full:
            version, before = self._view.current.version, builder.rest
            try:
                if self._loop.time() >= expires_at:
                    raise ReadTimeout(f"{level.name} read: the time was over before it could be answered")
                is_taken = await self._round(self._new_round(query, level, expires_at, builder), builder, window)
            except Stale as stale:
                stale_tries += 1
                await self._wait_newer(version, stale_tries, expires_at)
                if self._loop.time() >= expires_at and builder.rest == begun:
                    raise ReadTimeout(f"{level.name} read: {stale.message}", advice="try again") from stale
            except ReadTimeout:
                if builder.rest == begun:
                    raise
                break
            else:
                stale_tries = 0
                if builder.rest == before:
                    raise InternalError(f"{level.name} read: a page ended before it began")
                window = (
                    min(window * self._limits.window_growth_factor, self._limits.parallel_ranges_max) if is_taken else 1
                )
        return builder.page()

    def _new_round(
        self, query: ReadQuery, level: ConsistencyLevel, expires_at: float, builder: PageBuilder
    ) -> ReadRound:
        view = self._view.current
        table_replicas(view, query.table)
        schema = view.schemas.get(query.table)
        if schema is None:
            raise NotFound(f"table {query.table} has no definition")
        row_context = LiveRowContext(schema, query.now_s)
        return ReadRound(
            query=query,
            level=level,
            expires_at=expires_at,
            view=view,
            planner=self._planner_of(view),
            row_context=row_context,
            gc_before_s=gc_before_s(view, query.table, query.now_s),
            rows_max=builder.rows_left,
        )

    def _planner_of(self, view: View) -> ReadPlanner:
        down, refused = self._view.down, self._parts.clients.refused
        planner = self._planner
        if planner is None or not planner.is_for(view, down, refused):
            planner = self._planner = ReadPlanner(view, self._place, down, refused)
        return planner

    async def _wait_newer(self, version: TopologyVersion, tries: int, expires_at: float) -> None:
        """For a newer version of the topology; or for a moment, since a replica may also be behind, or not have its
        tablet yet."""
        self._counts.retries.add()
        pause_ms = min(self._limits.stale_pause_max_ms, self._limits.stale_pause_ms * 2 ** min(tries, 16))
        left_s = max(0.0, expires_at - self._loop.time())
        await self._view.wait_version(TopologyVersion(version + 1), min(left_s, pause_ms / 1000))

    # ---- one round

    async def _round(self, current: ReadRound, builder: PageBuilder, window: int) -> bool:
        """Whether the pieces were all taken, to their ends. The version is held from the first request to the last
        write of a repair: between them no barrier may pass."""
        version = current.view.version
        self._view.hold(version)
        try:
            pieces = list(islice(_pieces(current, builder), window))
            if len(pieces) > 1:
                return await self._side_by_side(current, pieces, builder)
            found = await self._piece(current, pieces[0])
            return builder.take(found, pieces[0].spans, current.row_context)
        finally:
            self._view.release(version)

    async def _side_by_side(self, current: ReadRound, pieces: Sequence[ReplicaSpans], builder: PageBuilder) -> bool:
        """Taken in order, whichever is answered first. What fails behind the end of the page does not matter."""
        error: EblaError | None = None
        is_taken = True
        async with asyncio.TaskGroup() as asking:
            tasks = [asking.create_task(self._piece_or_error(current, piece)) for piece in pieces]
            for piece, task in zip(pieces, tasks):
                found = await task
                if isinstance(found, EblaError):
                    error = found
                    break
                if not builder.take(found, piece.spans, current.row_context):
                    is_taken = False
                    break
            for task in tasks:
                task.cancel()
        if error is not None:
            raise error
        return is_taken

    async def _piece_or_error(self, current: ReadRound, piece: ReplicaSpans) -> SettledPage | EblaError:
        try:
            return await self._piece(current, piece)
        except EblaError as error:
            return error

    # ---- one piece

    async def _piece(self, current: ReadRound, piece: ReplicaSpans) -> SettledPage:
        query, planner = current.query, current.planner
        chosen = planner.chosen(query.table, piece.replicas, current.level)
        now_ms = self._parts.clock.boot_ms()
        chosen = replace_slow(chosen, lambda each: self._speculation.is_avoided(each, now_ms), planner.datacenter_of)
        data = ReadRowsRequest(
            version=current.view.version,
            table=query.table,
            spans=piece.spans,
            rows_max=current.rows_max,
            now_s=query.now_s,
            gc_before_s=current.gc_before_s,
            is_reversed=query.is_reversed,
            digest_only=False,
            partition_rows_max=piece.partition_rows_max,
        )
        digest = msgspec.structs.replace(data, digest_only=True) if len(chosen.contacts) > 1 else None
        replica_query = ReplicaQuery(
            version=current.view.version,
            data=data,
            digest=digest,
            level=current.level,
            datacenter_of=planner.datacenter_of,
            expires_at=current.expires_at,
        )
        gather = ReadExecutor(self._asker, replica_query, chosen)
        await gather.answered()
        assert gather.data is not None
        check_schema_versions(gather.data.items, current.row_context)
        answers = tuple(gather.answers.values())
        terms = ReconcileOptions(
            row_context=current.row_context,
            gc_before_s=current.gc_before_s,
            is_reversed=query.is_reversed,
            partition_rows_max=piece.partition_rows_max,
        )
        if digests_match(answers):
            return page_of_matching(gather.data, answers, terms)
        self._counts.mismatches.add()
        contacts = tuple(gather.answers)
        spares = tuple(each for each in (*chosen.contacts, *chosen.spares) if each not in contacts)
        return await self._reconcile(current, replica_query, ReadReplicaPlan(contacts, spares, chosen.needed), terms)

    async def _reconcile(
        self, current: ReadRound, replica_query: ReplicaQuery, chosen: ReadReplicaPlan, terms: ReconcileOptions
    ) -> SettledPage:
        """Data of all that gave different digests, merged and mended."""
        replica_query = replace(replica_query, digest=None)
        gather = ReadExecutor(self._asker, replica_query, chosen)
        await gather.answered()
        prefixes = missing_heads(gather.answers.values(), replica_query.data.spans, is_reversed=terms.is_reversed)
        heads = await self._heads(replica_query, tuple(gather.answers), prefixes)
        answers = [ReplicaAnswer(each, page, tuple(heads.get(each, ()))) for each, page in gather.answers.items()]
        for answer in answers:
            check_schema_versions((*answer.page.items, *answer.heads), terms.row_context)
        found = reconcile_answers(answers, terms)
        if found.repairs:
            await self._repair(current.planner, replica_query, found.repairs, tuple(gather.answers))
        return found.page

    async def _heads(
        self, replica_query: ReplicaQuery, replicas: tuple[Replica, ...], prefixes: Sequence[bytes]
    ) -> dict[Replica, list[Item]]:
        """Each replica's heads of these partitions."""
        heads: dict[Replica, list[Item]] = {each: [] for each in replicas}
        spans = head_spans(prefixes)
        while spans:
            data = msgspec.structs.replace(replica_query.data, spans=spans, is_reversed=False, partition_rows_max=0)
            everyone = ReadReplicaPlan(replicas, (), (RequiredReplies(None, len(replicas)),))
            gather = ReadExecutor(self._asker, replace(replica_query, data=data), everyone)
            await gather.answered()
            end = common_end(gather.answers.values(), is_reversed=False)
            for each, page in gather.answers.items():
                heads[each] += [item for item in page.items if not is_beyond(item[0], end, is_reversed=False)]
            spans = () if end is None else spans_after(spans, end, is_reversed=False)
        return heads

    async def _repair(
        self, planner: ReadPlanner, replica_query: ReplicaQuery, lacking: MissingItems, answered: tuple[Replica, ...]
    ) -> None:
        repairs = [
            ReadRepair(self._parts, replica_query, plan)
            for plan in plan_repairs(planner, replica_query, lacking, answered)
        ]
        for repair in repairs:
            repair.start()
            self._counts.repairs.add(repair.target_count)
        for repair in repairs:
            await repair.wait_met()


def check_schema_versions(items: Iterable[Item], row_context: LiveRowContext) -> None:
    """Raises `Stale` where a row was written by a version of the table that this router has yet to hear of."""
    known = row_context.schema.version
    for _, value in items:
        if schema_version(value) > known:
            raise Stale(f"table {row_context.schema.full_name} is known here in version {known} only")


def _pieces(current: ReadRound, builder: PageBuilder) -> Iterator[ReplicaSpans]:
    """Of what is left. A partition that has given some of its rows is a piece of its own: it may give fewer."""
    query = current.query
    replicas = current.view.sets.of(query.table)
    rows_max, is_reversed = query.partition_rows_max, query.is_reversed
    begun = builder.entered_partition
    if begun is None:
        return replica_spans(replicas, builder.rest, rows_max, is_reversed=is_reversed)
    prefix, left = begun
    inside, behind = split_partition(builder.rest, prefix, is_reversed=is_reversed)
    return chain(
        replica_spans(replicas, inside, left, is_reversed=is_reversed),
        replica_spans(replicas, behind, rows_max, is_reversed=is_reversed),
    )
