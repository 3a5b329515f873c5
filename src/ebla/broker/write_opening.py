"""Writes of whole tables opened: the job's record, a session, and a place in the staging of every replica.

The order is what counts (INV-BULKW-3): the record names this run before the sessions of the runs before are closed, and
those are closed before this run's is opened.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.fresh_view import fresh_view
from ebla.broker.read_broker import schema_of
from ebla.broker.read_plan import unreachable_hosts
from ebla.broker.table_options import is_cdc_enabled
from ebla.broker.write_job_states import WriteRun, record_opened, record_sessions_closed
from ebla.broker.write_layout import (
    ReplicaStack,
    TableWriteSpec,
    WriteLayout,
    first_unmet_route,
    staging_routes,
    too_few_replicas,
    transfer_id_of,
    write_layout,
)
from ebla.broker.write_record_store import WriteRecordStore
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, Overloaded, Refused, Stale, TooFewReplicas, Unavailable
from ebla.model.identity import SessionId, TableId, TopologyVersion
from ebla.model.records.write_jobs import WriteJobRecord, WriteJobState, check_job_name, is_write_job, write_job_id
from ebla.model.schema import TableSchema
from ebla.model.transfers import StagingKind, TransferTarget
from ebla.transfers.deadline import Deadline
from ebla.transfers.fan_out import FanOutCall, FanOutLimits, FanOutResult, fan_out
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient, TransferScope
from ebla.wire.table_calls import AbortWriteRequest, CallDone, OpenWriteRequest, StagingPlan
from ebla.wire.transfer_messages import OpenStagingRequest
from ebla.wire.verbs import OPEN_STAGING

INCARNATIONS_MAX = 4
"""Of one stack, within one job."""
SWEEP_EVERY_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class OpenStagings:
    """Where rows can be staged, at one version."""

    layout: WriteLayout
    targets: Mapping[ReplicaStack, TransferTarget]


class WriteSessions:
    """Opened and closed through the node's control, within the time of a call."""

    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts
        limits = TransferCallLimits(close_session_ms=parts.limits.close_session_ms)
        self._steps = TransferClient(parts.doors, parts.rng, limits, parts.report)

    async def open(self, scope: TransferScope, life_ms: int, deadline: Deadline) -> int:
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


class StagingOpener:
    """Places opened at the nodes that have them."""

    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts

    async def open(self, scope: TransferScope, place: ReplicaStack, number: int, deadline: Deadline) -> TransferTarget:
        """A stack may have ended one life and begun another since the place was first opened; a place is for one."""
        limits = self._parts.limits
        for life in range(number, number + INCARNATIONS_MAX):
            request = OpenStagingRequest(
                session=scope.session,
                transfer=transfer_id_of(scope.session, place, life),
                table=scope.table,
                shard=place.replica.shard,
                range=place.range,
                version=scope.version,
                kind=StagingKind.ROWS,
            )
            within_ms = deadline.at_most_ms(limits.staging_ms)
            try:
                answer = await self._parts.doors.bulk(place.replica.host, OPEN_STAGING, request, within_ms)
            except Stale:
                raise
            except Refused:
                if life == number + INCARNATIONS_MAX - 1:
                    raise
                continue
            return answer.target
        raise AssertionError("the last one returns or raises")


class WriteOpener:
    def __init__(
        self, parts: BrokerDeps, store: WriteRecordStore, sessions: WriteSessions, places: StagingOpener
    ) -> None:
        self._parts = parts
        self._store = store
        self._sessions = sessions
        self._places = places
        self._swept_ms: int | None = None

    async def open(self, request: OpenWriteRequest, deadline: Deadline) -> StagingPlan:
        check_job_name(request.job)
        view = await fresh_view(self._parts, deadline)
        schema = self._writable(view, request.table)
        self._check_reachable(view, request)
        self._admit(view, request)
        run = self._run(request)
        timestamp_us = self._parts.next_timestamp_us()
        record = await self._store.change(
            request.table, request.job, lambda before: record_opened(before, run, timestamp_us), deadline
        )
        assert record is not None, "a record is made where there was none"
        await self._sweep(deadline)
        if record_opened(record, run, timestamp_us) is None:
            return self._done_plan(schema, record)
        return await self._open_run(request, record, deadline)

    async def abort(self, request: AbortWriteRequest, deadline: Deadline) -> CallDone:
        """The record stays: run again, the job has the same timestamp."""
        await self._sessions.close(request.session, deadline.left_ms)
        return CallDone()

    # ---- whether

    def _writable(self, view: View, table: TableId) -> TableSchema:
        schema = schema_of(view, table)
        if is_cdc_enabled(schema):
            raise Refused(
                f"changes of {schema.full_name} are captured (cdc), and a job's layers would pass by the log",
                advice="write its rows over CQL, or switch the table's option cdc off",
            )
        return schema

    def _check_reachable(self, view: View, request: OpenWriteRequest) -> None:
        """Before anything is begun."""
        layout = write_layout(view, self._wanted(request))
        away = unreachable_hosts(view.snapshot, self._parts.view.down)
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

    def _run(self, request: OpenWriteRequest) -> WriteRun:
        now_ms = self._parts.clock.wall_us() // 1000
        return WriteRun(
            table=request.table, job=request.job, session=request.session, batch=request.batch, now_ms=now_ms
        )

    def _wanted(self, request: OpenWriteRequest) -> TableWriteSpec:
        return TableWriteSpec(request.table, request.level, self._parts.datacenter)

    async def _open_run(self, request: OpenWriteRequest, record: WriteJobRecord, deadline: Deadline) -> StagingPlan:
        for session in record.closing:
            await self._sessions.close(session, deadline.left_ms)
        if record.closing:
            # Else a job that failed often enough could never be run again under its name.
            ended = record.closing
            await self._store.change(
                request.table, request.job, lambda now: record_sessions_closed(now, ended), deadline
            )
        life_ms = request.life_ms or self._parts.limits.write_life_ms
        view = self._parts.view.current
        scope = TransferScope(
            job=write_job_id(request.table, request.job),
            session=request.session,
            table=request.table,
            version=view.version,
        )
        deadline_ms = await self._sessions.open(scope, life_ms, deadline)
        found = await self._open_places(request, deadline)
        view = self._parts.view.current
        places = tuple(found.targets)
        return StagingPlan(
            schema=schema_of(view, request.table),
            state=WriteJobState.OPEN,
            timestamp_us=record.timestamp_us,
            targets=tuple(found.targets.values()),
            routes=staging_routes(found.layout, {place: number for number, place in enumerate(places)}),
            authority=self._parts.authority(),
            deadline_ms=deadline_ms,
        )

    async def _open_places(self, request: OpenWriteRequest, deadline: Deadline) -> OpenStagings:
        """At a version that held at every node that was asked; where one knew a newer one, again by that."""
        while True:
            view = await fresh_view(self._parts, deadline)
            layout = write_layout(view, self._wanted(request))
            answers = await self._ask(request, view, layout, deadline)
            stale = next((each for each in answers.failures.values() if isinstance(each, Stale)), None)
            if stale is None:
                _require(layout, request, answers.found, answers.failures)
                return OpenStagings(layout, {place: answers.found[place] for place in sorted(answers.found)})
            if request.session not in (await fresh_view(self._parts, deadline)).snapshot.sessions or deadline.is_over:
                raise stale
            newer = TopologyVersion(view.version + 1)
            await self._parts.view.wait_version(newer, deadline.at_most_ms(self._parts.limits.moved_ms) / 1000)

    async def _ask(
        self, request: OpenWriteRequest, view: View, layout: WriteLayout, deadline: Deadline
    ) -> FanOutResult[ReplicaStack, TransferTarget]:
        away = unreachable_hosts(view.snapshot, self._parts.view.down)
        places = [place for place in layout.places() if place.replica.host not in away]
        scope = TransferScope(
            job=write_job_id(request.table, request.job),
            session=request.session,
            table=request.table,
            version=view.version,
        )
        questions: FanOutCall[ReplicaStack, TransferTarget] = FanOutCall(
            ask=lambda place: self._places.open(scope, place, 0, deadline),
            enough=lambda found: first_unmet_route(layout, layout.routes, lambda place: place in found) is None,
            is_down=lambda place: place.replica.host in self._parts.view.down,
        )
        limits = self._parts.limits
        pace = FanOutLimits(limits.at_once_max, limits.open_stragglers_ms, limits.patience_ms)
        return await fan_out(places, questions, pace, deadline)

    def _done_plan(self, schema: TableSchema, record: WriteJobRecord) -> StagingPlan:
        return StagingPlan(
            schema=schema,
            state=WriteJobState.DONE,
            timestamp_us=record.timestamp_us,
            targets=(),
            routes=(),
            authority=self._parts.authority(),
        )

    # ---- old records

    async def _sweep(self, deadline: Deadline) -> None:
        now_ms = self._parts.clock.boot_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms = now_ms
        try:
            gone = await self._store.delete_expired(deadline)
        except EblaError as error:
            self._parts.report("broker.records_not_swept", {"cause": error.message})
            return
        if gone:
            self._parts.report("broker.records_swept", {"records": gone})


def _require(
    layout: WriteLayout,
    request: OpenWriteRequest,
    there: Mapping[ReplicaStack, object],
    failures: Mapping[ReplicaStack, EblaError] | None = None,
) -> None:
    """Raises `TooFewReplicas` where a route lacks replicas, with what those said that could not be opened."""
    route = first_unmet_route(layout, layout.routes, lambda place: place in there)
    if route is None:
        return
    failure = too_few_replicas(layout, route, request.level, lambda place: place in there)
    said = "; ".join(
        f"host {place.replica.host}: {error.message}"
        for place, error in sorted((failures or {}).items(), key=lambda item: item[0])
        if any(place in copy.places for copy in route.copies)
    )
    text = f"{failure.message} ({said})" if said else failure.message
    raise TooFewReplicas(
        f"{text}; nothing was written", advice=failure.advice, required=failure.required, alive=failure.alive
    )
