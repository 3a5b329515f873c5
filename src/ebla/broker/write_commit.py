"""The commit of a write job: what counts is sealed at each replica, and adopted as a write at the job's level.

1. Replicas that came since the job began have no place yet: one is opened for them, and whoever asks brings them what
   the others have before anything else is done.
2. Each place makes one layer of its runs (SEAL). This may take long, and holds no version.
3. Each tablet's replicas adopt at one version (ADOPT). A replica that knows a newer one refuses: then the tablet goes
   again, whole, by that. Adopting twice changes nothing.
4. Replicas that cannot be reached, beyond those that the level needs, are tried for a while and then left to repair.
5. The record says DONE, and the session is closed.

Whatever ends it in between, the same request goes on from there: each of these steps may be repeated.
"""

import asyncio
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.broker.adopt_calls import AdoptCalls, AdoptResults, RouteGroup, group_routes, total_layers_and_rows
from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.fresh_view import fresh_view
from ebla.broker.write_job_states import WriteRun, is_done, record_adopting, record_done, require_current_run
from ebla.broker.write_layout import (
    ReplicaStack,
    StagedRuns,
    TableWriteSpec,
    WriteLayout,
    WriteRoute,
    collect_staged,
    first_unmet_route,
    has_all_rows,
    routes_with_rows,
    too_few_replicas,
    write_layout,
)
from ebla.broker.write_opening import StagingOpener, WriteSessions
from ebla.broker.write_record_store import WriteRecordStore
from ebla.feed.topology_view import View
from ebla.model.errors import (
    Corruption,
    EblaError,
    Outcome,
    Overloaded,
    Refused,
    Stale,
    Unavailable,
    WriteFailed,
    WriteTimeout,
)
from ebla.model.identity import HostId, TopologyVersion
from ebla.model.records.write_jobs import WriteJobRecord, check_job_name, write_job_id
from ebla.model.token import TokenRange
from ebla.model.transfers import TransferTarget
from ebla.transfers.deadline import Deadline
from ebla.transfers.fan_out import FanOutCall, FanOutLimits, fan_out
from ebla.transfers.transfer_client import TransferScope
from ebla.wire.table_calls import CommitWriteAnswer, CommitWriteRequest, MissingCopy
from ebla.wire.transfer_messages import AdoptAnswer, SealAnswer, SealRequest
from ebla.wire.verbs import SEAL

HasRows = Callable[[ReplicaStack], bool]

PAUSE_S = 0.3
"""Before a tablet whose replicas did not all answer is tried again."""


class RowVisibility(enum.Enum):
    """Whether rows of the job may be seen: some call of some run has asked for an adoption."""

    UNKNOWN = "whether rows of the job are seen is not known"
    NONE = "no row of the job is seen"
    SOME = "rows of the job may be seen already"


@dataclass(slots=True, kw_only=True)
class CommitProgress:
    """How far one call has come."""

    sealed: dict[ReplicaStack, SealAnswer] = field(default_factory=dict)
    adopted: dict[ReplicaStack, AdoptAnswer] = field(default_factory=dict)
    failures: dict[ReplicaStack, EblaError] = field(default_factory=dict)
    refused: dict[ReplicaStack, None] = field(default_factory=dict)
    """As stale, since the topology was last looked at."""
    strikes: dict[ReplicaStack, int] = field(default_factory=dict)
    """How often a place refused as stale though there was nothing newer."""
    met: dict[TokenRange, WriteRoute] = field(default_factory=dict)
    """What is acknowledged at the level, as it was routed then. It stays so, as any write does."""
    seen: RowVisibility = RowVisibility.UNKNOWN

    def note(self, found: AdoptResults) -> None:
        for place, answer in found.found.items():
            before = self.adopted.get(place, AdoptAnswer(0, 0))
            self.adopted[place] = AdoptAnswer(before.layers + answer.layers, max(before.rows, answer.rows))
            self.failures.pop(place, None)
        for place, error in found.failures.items():
            self.failures[place] = error
            if isinstance(error, Stale):
                self.refused[place] = None

    def looked(self, *, is_newer: bool) -> None:
        """A place that refuses by the newest topology there is was opened for a stack that is not there any more."""
        for place in self.refused:
            self.strikes[place] = 0 if is_newer else self.strikes.get(place, 0) + 1
        self.refused.clear()

    def is_met(self, route: WriteRoute) -> bool:
        return route.range in self.met or any(one.covers(route.range) for one in self.met)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCommitDeps:
    """Of committing."""

    broker: BrokerDeps
    store: WriteRecordStore
    sessions: WriteSessions
    places: StagingOpener
    adoptions: AdoptCalls


class WriteCommits:
    def __init__(self, parts: WriteCommitDeps) -> None:
        self._parts = parts

    async def commit(self, request: CommitWriteRequest, deadline: Deadline) -> CommitWriteAnswer:
        check_job_name(request.job)
        parts = self._parts
        run = WriteRun(
            table=request.table,
            job=request.job,
            session=request.session,
            batch=request.batch,
            now_ms=parts.broker.clock.wall_us() // 1000,
        )
        one = _Commit(parts, request, run, deadline)
        try:
            record = await parts.store.change(request.table, request.job, one.note_record, deadline)
            assert record is not None, "a job that is not known is refused"
            if is_done(record, request.batch):
                return CommitWriteAnswer(is_done=True)
            if request.announces_rows:
                await one.announce()
                return CommitWriteAnswer()
            answer = await one.run_through()
        except EblaError as error:
            raise with_row_visibility(error, request.job, one.progress.seen) from error
        if not answer.lacking:
            await self._close(request, deadline)
        return answer

    async def _close(self, request: CommitWriteRequest, deadline: Deadline) -> None:
        """The job is done whatever comes of this: its session ends by its own deadline at the latest."""
        try:
            within_ms = deadline.at_most_ms(self._parts.broker.limits.close_session_ms)
            await self._parts.sessions.close(request.session, within_ms)
        except EblaError as error:
            self._parts.broker.report(
                "broker.session_not_closed", {"session": str(request.session), "cause": error.message}
            )


class _Commit:
    """One call."""

    def __init__(self, parts: WriteCommitDeps, request: CommitWriteRequest, run: WriteRun, deadline: Deadline) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._limits = parts.broker.limits
        self._request = request
        self._run = run
        self._deadline = deadline
        self._patience = Deadline(self._limits.patience_ms)
        self._staged: StagedRuns = collect_staged(request.targets, request.runs, request.brought)
        self._layouts: tuple[View, WriteLayout] | None = None
        self._partial: dict[ReplicaStack, None] = {}
        """That lack rows of some range they are for: they count as copies of none."""
        self.progress = CommitProgress()

    def note_record(self, found: WriteJobRecord | None) -> WriteJobRecord:
        if found is not None:
            self.progress.seen = RowVisibility.SOME if found.has_adopted else RowVisibility.NONE
        return require_current_run(found, self._run)

    async def announce(self) -> None:
        await self._look()
        await self._mark_adopting()

    async def run_through(self) -> CommitWriteAnswer:
        view = await self._look()
        while True:
            layout = self._layout(view)
            routes = [route for route in routes_with_rows(layout, self._staged) if not self.progress.is_met(route)]
            lacking = await self._open_lacking(view, routes)
            if lacking:
                return CommitWriteAnswer(lacking=lacking)
            if not await self._seal(layout, routes):
                continue
            await self._adopt_all(routes)
            if all(self.progress.is_met(route) for route in routes):
                break
            view = await self._newer(view, layout, routes)
        left = await self._stragglers()
        await self._change(lambda record: record_done(record, self._run))
        layers, rows = total_layers_and_rows(self.progress.adopted.values())
        return CommitWriteAnswer(lacking=(), left_to_repair=left, layers=layers, rows=rows)

    def _layout(self, view: View) -> WriteLayout:
        if self._layouts is None or self._layouts[0] is not view:
            wanted = TableWriteSpec(self._request.table, self._request.level, self._broker.datacenter)
            self._layouts = (view, write_layout(view, wanted))
        return self._layouts[1]

    # ---- replicas that came later

    async def _open_lacking(self, view: View, routes: Sequence[WriteRoute]) -> tuple[MissingCopy, ...]:
        """Places for those that have none, at nodes that are up. One that cannot be opened is as one that is down."""
        wanted: dict[ReplicaStack, None] = {}
        for route in routes:
            places = [place for copy in route.copies for place in copy.places]
            if all(self._is_struck(place) for place in places):
                raise Stale(
                    f"none of what was staged for table {self._request.table} fits its replicas any more: they were "
                    "emptied since",
                    advice="nothing of this run can be used",
                )
            for place in places:
                if not self._has_place(route, place):
                    wanted[place] = None
        self._partial = wanted
        there = [place for place in sorted(wanted) if not self._is_down(place)]
        if not there:
            return ()
        job = write_job_id(self._request.table, self._request.job)
        scope = TransferScope(job=job, session=self._request.session, table=self._request.table, version=view.version)
        questions: FanOutCall[ReplicaStack, TransferTarget] = FanOutCall(
            ask=lambda place: self._parts.places.open(scope, place, self._staged.numbers.get(place, 0), self._deadline),
            enough=lambda _: True,
            is_down=self._is_down,
        )
        answers = await fan_out(there, questions, self._pace(self._limits.open_stragglers_ms), self._deadline)
        self.progress.failures.update(answers.failures)
        # The new place stands for the whole of the one before: also for the ranges that that one did have.
        layout = self._layout(view)
        return tuple(
            MissingCopy(answers.found[place], route.range)
            for place in sorted(answers.found)
            for route in routes_with_rows(layout, self._staged)
            if any(place in copy.places for copy in route.copies)
        )

    def _has_place(self, route: WriteRoute, place: ReplicaStack) -> bool:
        return has_all_rows(route, place, self._staged) and not self._is_struck(place)

    def _is_struck(self, place: ReplicaStack) -> bool:
        return self.progress.strikes.get(place, 0) >= self._limits.stale_max

    def _brings_nothing(self, place: ReplicaStack) -> bool:
        has_all_rows = place in self._staged.targets and place not in self._partial
        return has_all_rows and not self._staged.runs_at(place)

    # ---- sealing

    async def _seal(self, layout: WriteLayout, routes: Sequence[WriteRoute]) -> bool:
        """False: what was staged somewhere is not what was brought there, as after a crash of the machine, and is to be
        brought again. Raises what those said without whom the level cannot be reached."""
        places = [place for place in self._places_to_adopt(routes) if place not in self.progress.sealed]
        await self._seal_at(
            places,
            lambda found: (
                first_unmet_route(layout, routes, lambda place: place in found or self._is_ready(place)) is None
            ),
            self._deadline,
        )
        broken = [place for place in places if is_staging_damaged(self.progress.failures.get(place))]
        self.progress.strikes.update((place, self._limits.stale_max) for place in broken)
        if not broken:
            self._require(layout, routes, self._is_ready)
        return not broken

    async def _seal_at(
        self,
        places: Sequence[ReplicaStack],
        enough: Callable[[Mapping[ReplicaStack, SealAnswer]], bool],
        deadline: Deadline,
    ) -> None:
        questions: FanOutCall[ReplicaStack, SealAnswer] = FanOutCall(self._seal_one, enough, self._is_down)
        answers = await fan_out(places, questions, self._pace(self._limits.stragglers_ms), deadline)
        self.progress.sealed.update(answers.found)
        self.progress.failures.update(answers.failures)

    async def _seal_one(self, place: ReplicaStack) -> SealAnswer:
        target, runs = self._staged.targets[place], self._staged.runs_at(place)
        request = SealRequest(
            session=target.session,
            transfer=target.transfer,
            attempt=runs[0].attempt,
            files=(runs[0].file,),
            more=tuple((run.attempt, run.file) for run in runs[1:]),
        )
        within_ms = self._deadline.at_most_ms(self._limits.seal_ms)
        return await self._broker.doors.bulk(place.replica.host, SEAL, request, within_ms)

    def _places_to_adopt(self, routes: Iterable[WriteRoute]) -> list[ReplicaStack]:
        """Those that have a place with something in it."""
        found = {
            place: None
            for route in routes
            for copy in route.copies
            for place in copy.places
            if self._has_place(route, place) and place not in self._partial and self._staged.runs_at(place)
        }
        return sorted(found)

    def _is_ready(self, place: ReplicaStack) -> bool:
        """Sealed, or there is nothing that it lacks."""
        return place in self.progress.sealed or self._brings_nothing(place)

    # ---- adopting

    async def _adopt_all(self, routes: Sequence[WriteRoute]) -> None:
        """One attempt at each tablet."""
        groups = group_routes(routes)
        if groups:
            await self._mark_adopting()
        await gather_bounded([partial(self._adopt, group) for group in groups], self._limits.at_once_max)

    async def _adopt(self, group: RouteGroup) -> None:
        """No await between the look at the view and the sending: a version that nobody holds may be drained."""
        view = self._broker.view.current
        layout = self._layout(view)
        if any(layout.by_range.get(route.range) != route for route in group.routes):
            return  # planned by another topology: it goes again by this one
        places = [place for place in self._places_to_adopt(group.routes) if place in self.progress.sealed]
        targets = {place: self._staged.targets[place] for place in places}
        found = await self._parts.adoptions.attempt(self._request.table, targets, view.version)
        self.progress.note(found)
        if (
            first_unmet_route(layout, group.routes, lambda place: place in found.found or self._brings_nothing(place))
            is None
        ):
            self.progress.met.update((route.range, route) for route in group.routes)
            self._patience = Deadline(self._limits.patience_ms)

    async def _mark_adopting(self) -> None:
        """From here on rows may be seen, whatever becomes of this call; the record says so to the next."""
        if self.progress.seen is not RowVisibility.SOME:
            await self._change(record_adopting)
            self.progress.seen = RowVisibility.SOME

    async def _newer(self, before: View, layout: WriteLayout, routes: Sequence[WriteRoute]) -> View:
        """After an attempt that did not do: by the newest topology, and not at once where that is the same."""
        lacking = [route for route in routes if not self.progress.is_met(route)]
        if self._deadline.is_over or (self._patience.is_over and not self._is_overloaded(lacking)):
            self._require(layout, lacking, lambda place: place in self.progress.adopted)
            raise Unavailable("the topology moved each time that the rows were adopted, until the time was over")
        await self._broker.view.wait_version(TopologyVersion(before.version + 1), PAUSE_S)
        view = await self._look()
        self.progress.looked(is_newer=view.version > before.version)
        return view

    def _is_overloaded(self, routes: Iterable[WriteRoute]) -> bool:
        """A shard that has as many layers as it may takes more once they are folded: that is waited for."""
        places = (place for route in routes for copy in route.copies for place in copy.places)
        return any(isinstance(self.progress.failures.get(place), Overloaded) for place in places)

    # ---- the end

    async def _stragglers(self) -> tuple[HostId, ...]:
        """Who is left without it: tried a while longer, each by the topology of that moment."""
        until = Deadline(self._deadline.at_most_ms(self._limits.stragglers_ms))
        while (behind := self._behind()) and not until.is_over:
            unsealed = [place for place in behind if place not in self.progress.sealed and self._staged.runs_at(place)]
            await self._seal_at([place for place in unsealed if not self._is_down(place)], lambda _: True, until)
            late = [route for route in self.progress.met.values() if _touches(route, behind)]
            await gather_bounded(
                [partial(self._adopt, group) for group in group_routes(late)], self._limits.at_once_max
            )
            if self._behind():
                await asyncio.sleep(PAUSE_S)
        return tuple(sorted({place.replica.host for place in self._behind()}))

    def _behind(self) -> list[ReplicaStack]:
        places = {place: None for route in self.progress.met.values() for copy in route.copies for place in copy.places}
        return sorted(
            place for place in places if place not in self.progress.adopted and not self._brings_nothing(place)
        )

    # ---- all of them

    async def _change(self, change: Callable[[WriteJobRecord], WriteJobRecord]) -> None:
        """Raises `Stale` where another run has taken over meanwhile. INV-BULKW-3: once it says that the job has ended,
        every run finds that there is nothing to do."""

        def decide(found: WriteJobRecord | None) -> WriteJobRecord | None:
            record = require_current_run(found, self._run)
            return None if is_done(record, self._run.batch) else change(record)

        await self._parts.store.change(self._request.table, self._request.job, decide, self._deadline)

    async def _look(self) -> View:
        """The newest topology, in which the job's session is open."""
        view = await fresh_view(self._broker, self._deadline)
        if self._request.session not in view.snapshot.sessions:
            raise Stale(
                f"the session of job {self._request.job!r} is closed: its time is over, it was aborted, or another run "
                "has begun"
            )
        return view

    def _require(self, layout: WriteLayout, routes: Sequence[WriteRoute], has: HasRows) -> None:
        """Raises for the first route that lacks replicas, with what one of them said."""
        route = first_unmet_route(layout, routes, has)
        if route is None:
            return
        for copy in route.copies:
            for place in copy.places:
                error = self.progress.failures.get(place)
                if error is not None and not has(place):
                    raise type(error)(f"host {place.replica.host}: {error.message}", advice=error.advice)
        raise too_few_replicas(layout, route, self._request.level, has)

    def _is_down(self, place: ReplicaStack) -> bool:
        return place.replica.host in self._broker.view.down

    def _pace(self, stragglers_ms: int) -> FanOutLimits:
        return FanOutLimits(self._limits.at_once_max, stragglers_ms, self._limits.patience_ms)


def _touches(route: WriteRoute, places: Sequence[ReplicaStack]) -> bool:
    return any(place in places for copy in route.copies for place in copy.places)


def is_staging_damaged(error: EblaError | None) -> bool:
    """Of a seal: what counts is not there, or not as it was brought. Elsewhere it may be."""
    return isinstance(error, Corruption | Refused) and not isinstance(error, Stale)


def with_row_visibility(error: EblaError, job: str, seen: RowVisibility) -> EblaError:
    """With what became of the rows. An error whose class says otherwise becomes one that does not."""
    again = f"run it again with the job id {job!r}: that is safe"
    advice = f"{error.advice}; {again}" if error.advice else again
    text = f"{error.message}; {seen.value}"
    if seen is not RowVisibility.NONE:
        kind = WriteTimeout if error.outcome is Outcome.UNKNOWN else WriteFailed
        return kind(text, advice=advice)
    return Unavailable(text, advice=advice) if error.outcome is Outcome.UNKNOWN else type(error)(text, advice=advice)
