"""Writes of whole tables opened: the job's record, a session, and a place in the staging of every replica.

The order is what counts (INV-BULKW-3): the record names this run before the sessions of the runs before are closed, and
those are closed before this run's is opened.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.broker.broker_parts import BrokerParts
from ebla.broker.deadline import Deadline
from ebla.broker.freshness import fresh_view
from ebla.broker.plan_reads import away_hosts
from ebla.broker.plan_writes import Layout, Place, Wanted, layout_of, too_few, transfer_of, unmet, write_routes
from ebla.broker.reads import schema_in
from ebla.broker.table_facts import is_captured
from ebla.broker.wave import Outcome, Pace, Questions, wave
from ebla.broker.write_book import Run, closed, opened
from ebla.broker.write_store import WriteStore
from ebla.model.errors import EblaError, Overloaded, Refused, Stale, TooFewReplicas, Unavailable
from ebla.model.identity import SessionId, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.transfers import StagingKind, Target
from ebla.pipeline.transfer_steps import Scope, StepLimits, TransferSteps
from ebla.wire.table_access import AbortWriteRequest, CallDone, OpenWriteRequest, WritePlan, WriteState
from ebla.wire.topology_view import View
from ebla.wire.transfer_messages import OpenStagingRequest
from ebla.wire.verbs import OPEN_STAGING
from ebla.wire.write_records import WriteRecord, check_job_name, is_write_job, write_job_id

LIVES_MAX = 4
"""Of one stack, within one job."""
SWEEP_EVERY_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Opened:
    """Where rows can be staged, at one version."""

    layout: Layout
    targets: Mapping[Place, Target]


class Sessions:
    """Opened and closed through the node's control, within the time of a call."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        limits = StepLimits(close_session_ms=parts.limits.close_session_ms)
        self._steps = TransferSteps(parts.doors, parts.chance, limits, parts.report)

    async def open(self, scope: Scope, life_ms: int, deadline: Deadline) -> int:
        """Its deadline, by wall time."""
        try:
            async with asyncio.timeout(deadline.left_ms / 1000):
                return (await self._steps.open_session(scope, life_ms, scope.version)).deadline_ms
        except TimeoutError:
            raise Unavailable(
                "the session of the job was not opened in time", advice="ask again: that is safe"
            ) from None

    async def close(self, session: SessionId, within_ms: int) -> None:
        """Nothing of it has an effect afterwards."""
        try:
            async with asyncio.timeout(within_ms / 1000):
                await self._steps.close_session(session)
        except TimeoutError:
            raise Unavailable(f"session {session} was not closed in time", advice="ask again: that is safe") from None


class StagingPlaces:
    """Places opened at the nodes that have them."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    async def open(self, scope: Scope, place: Place, number: int, deadline: Deadline) -> Target:
        """A stack may have ended one life and begun another since the place was first opened; a place is for one."""
        limits = self._parts.limits
        for life in range(number, number + LIVES_MAX):
            request = OpenStagingRequest(
                scope.session,
                transfer_of(scope.session, place, life),
                scope.table,
                place.replica.shard,
                place.range,
                scope.version,
                StagingKind.ROWS,
            )
            within_ms = deadline.at_most_ms(limits.staging_ms)
            try:
                answer = await self._parts.doors.bulk(place.replica.host, OPEN_STAGING, request, within_ms)
            except Stale:
                raise
            except Refused:
                if life == number + LIVES_MAX - 1:
                    raise
                continue
            return answer.target
        raise AssertionError("the last one returns or raises")


class WriteOpening:
    def __init__(self, parts: BrokerParts, store: WriteStore, sessions: Sessions, places: StagingPlaces) -> None:
        self._parts = parts
        self._store = store
        self._sessions = sessions
        self._places = places
        self._swept_ms: int | None = None

    async def open(self, request: OpenWriteRequest, deadline: Deadline) -> WritePlan:
        check_job_name(request.job)
        view = await fresh_view(self._parts, deadline)
        schema = self._writable(view, request.table)
        self._check_reachable(view, request)
        self._admit(view, request)
        run = self._run(request)
        timestamp_us = self._parts.next_timestamp_us()
        record = await self._store.change(
            request.table, request.job, lambda before: opened(before, run, timestamp_us), deadline
        )
        assert record is not None, "a record is made where there was none"
        await self._sweep(deadline)
        if opened(record, run, timestamp_us) is None:
            return self._done_plan(schema, record)
        return await self._open_run(request, record, deadline)

    async def abort(self, request: AbortWriteRequest, deadline: Deadline) -> CallDone:
        """The record stays: run again, the job has the same timestamp."""
        await self._sessions.close(request.session, deadline.left_ms)
        return CallDone()

    # ---- whether

    def _writable(self, view: View, table: TableId) -> TableSchema:
        schema = schema_in(view, table)
        if is_captured(schema):
            raise Refused(
                f"changes of {schema.full_name} are captured (cdc), and a job's layers would pass by the log",
                advice="write its rows over CQL, or switch the table's option cdc off",
            )
        return schema

    def _check_reachable(self, view: View, request: OpenWriteRequest) -> None:
        """Before anything is begun."""
        layout = layout_of(view, self._wanted(request))
        away = away_hosts(view.snapshot, self._parts.view.down)
        _require(layout, request, {place: None for place in layout.places() if place.replica.host not in away})

    def _admit(self, view: View, request: OpenWriteRequest) -> None:
        """Sessions of this job do not count: they end before it has another."""
        limits, own = self._parts.limits, write_job_id(request.table, request.job)
        sessions = [
            each for each in view.snapshot.sessions.values() if is_write_job(each.request) and each.request != own
        ]
        here = sum(1 for each in sessions if each.table == request.table)
        for count, most, where, option in (
            (here, limits.table_write_jobs_max, "this table", "table_write_jobs_max"),
            (len(sessions), limits.write_jobs_max, "this cluster", "write_jobs_max"),
        ):
            if count >= most:
                raise Overloaded(
                    f"{count} jobs write to {where} already, and {most} may",
                    advice=f"nothing was begun; run it when another has ended, or raise limits.{option}",
                )

    # ---- the run

    def _run(self, request: OpenWriteRequest) -> Run:
        now_ms = self._parts.clock.wall_us() // 1000
        return Run(request.table, request.job, request.session, request.batch, now_ms)

    def _wanted(self, request: OpenWriteRequest) -> Wanted:
        return Wanted(request.table, request.level, self._parts.datacenter)

    async def _open_run(self, request: OpenWriteRequest, record: WriteRecord, deadline: Deadline) -> WritePlan:
        for session in record.closing:
            await self._sessions.close(session, deadline.left_ms)
        if record.closing:
            # Else a job that failed often enough could never be run again under its name.
            ended = record.closing
            await self._store.change(request.table, request.job, lambda now: closed(now, ended), deadline)
        life_ms = request.life_ms or self._parts.limits.write_life_ms
        view = self._parts.view.current
        scope = Scope(write_job_id(request.table, request.job), request.session, request.table, view.version)
        deadline_ms = await self._sessions.open(scope, life_ms, deadline)
        found = await self._open_places(request, deadline)
        view = self._parts.view.current
        places = tuple(found.targets)
        return WritePlan(
            schema_in(view, request.table),
            WriteState.OPEN,
            record.timestamp_us,
            tuple(found.targets.values()),
            write_routes(found.layout, {place: number for number, place in enumerate(places)}),
            self._parts.authority(),
            deadline_ms,
        )

    async def _open_places(self, request: OpenWriteRequest, deadline: Deadline) -> Opened:
        """At a version that held at every node that was asked; where one knew a newer one, again by that."""
        while True:
            view = await fresh_view(self._parts, deadline)
            layout = layout_of(view, self._wanted(request))
            answers = await self._ask(request, view, layout, deadline)
            stale = next((each for each in answers.failures.values() if isinstance(each, Stale)), None)
            if stale is None:
                _require(layout, request, answers.found, answers.failures)
                return Opened(layout, {place: answers.found[place] for place in sorted(answers.found)})
            if request.session not in (await fresh_view(self._parts, deadline)).snapshot.sessions or deadline.is_over:
                raise stale
            newer = TopologyVersion(view.version + 1)
            await self._parts.view.wait_version(newer, deadline.at_most_ms(self._parts.limits.moved_ms) / 1000)

    async def _ask(
        self, request: OpenWriteRequest, view: View, layout: Layout, deadline: Deadline
    ) -> Outcome[Place, Target]:
        away = away_hosts(view.snapshot, self._parts.view.down)
        places = [place for place in layout.places() if place.replica.host not in away]
        scope = Scope(write_job_id(request.table, request.job), request.session, request.table, view.version)
        questions: Questions[Place, Target] = Questions(
            ask=lambda place: self._places.open(scope, place, 0, deadline),
            enough=lambda found: unmet(layout, layout.routes, lambda place: place in found) is None,
            is_down=lambda place: place.replica.host in self._parts.view.down,
        )
        limits = self._parts.limits
        pace = Pace(limits.at_once_max, limits.open_stragglers_ms, limits.patience_ms)
        return await wave(places, questions, pace, deadline)

    def _done_plan(self, schema: TableSchema, record: WriteRecord) -> WritePlan:
        return WritePlan(schema, WriteState.DONE, record.timestamp_us, (), (), self._parts.authority())

    # ---- old records

    async def _sweep(self, deadline: Deadline) -> None:
        now_ms = self._parts.clock.boot_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms = now_ms
        try:
            gone = await self._store.forget_old(deadline)
        except EblaError as error:
            self._parts.report("broker.records_not_swept", {"cause": error.message})
            return
        if gone:
            self._parts.report("broker.records_swept", {"records": gone})


def _require(
    layout: Layout,
    request: OpenWriteRequest,
    there: Mapping[Place, object],
    failures: Mapping[Place, EblaError] | None = None,
) -> None:
    """Raises `TooFewReplicas` where a route lacks replicas, with what those said that could not be opened."""
    route = unmet(layout, layout.routes, lambda place: place in there)
    if route is None:
        return
    failure = too_few(layout, route, request.level, lambda place: place in there)
    said = "; ".join(
        f"host {place.replica.host}: {error.message}"
        for place, error in sorted((failures or {}).items(), key=lambda item: item[0])
        if any(place in copy.places for copy in route.copies)
    )
    text = f"{failure.message} ({said})" if said else failure.message
    raise TooFewReplicas(
        f"{text}; nothing was written", advice=failure.advice, required=failure.required, alive=failure.alive
    )
