"""Opens write jobs: takes over the job's record, opens a session, and opens staging at every replica.

The order matters (INV-BULKW-3): the record names this run before the sessions of earlier runs are closed, and those are
closed before the session of this run is opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.read_broker import is_cdc_enabled, schema_of
from ebla.broker.read_plan import unreachable_hosts
from ebla.broker.write_layout import (
    ReplicaStack,
    TableWriteSpec,
    WriteLayout,
    first_unmet_route,
    staging_routes,
    staging_spec,
    too_few_replicas,
    write_layout,
)
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, Overloaded, Refused, Stale, TooFewReplicas
from ebla.model.identity import TableId, TopologyVersion
from ebla.model.records.write_jobs import (
    WRITES_PREFIX,
    WriteJobRecord,
    WriteJobState,
    WriteRun,
    check_job_name,
    expired_records,
    is_done,
    is_write_job,
    record_opened,
    record_sessions_closed,
    write_job_id,
    write_key,
)
from ebla.model.schema import TableSchema
from ebla.model.transfers import TransferTarget
from ebla.transfers.deadline import Deadline
from ebla.transfers.fan_out import FanOutResult
from ebla.transfers.record_store import RecordStore
from ebla.transfers.transfer_client import TransferClient, TransferScope
from ebla.wire.table_calls import AbortWriteRequest, CallDone, OpenWriteRequest, StagingPlan

EXPIRE_EVERY_MS = 3_600_000
EXPIRED_MAX = 100
"""Records deleted at a time."""


@dataclass(frozen=True, slots=True)
class OpenStagings:
    """Open staging by stack, under one version."""

    layout: WriteLayout
    targets: Mapping[ReplicaStack, TransferTarget]


class WriteOpener:
    def __init__(self, deps: BrokerDeps, records: RecordStore[WriteJobRecord], client: TransferClient) -> None:
        self._deps = deps
        self._records = records
        self._client = client
        self._expired_at_ms: int | None = None

    async def open(self, request: OpenWriteRequest, deadline: Deadline) -> StagingPlan:
        check_job_name(request.job)
        view = await self._deps.fresh_view(deadline)
        schema = _writable_schema(view, request.table)
        self._check_reachable(view, request)
        self._admit(view, request)
        run = WriteRun(
            table=request.table,
            job=request.job,
            session=request.session,
            batch=request.batch,
            now_ms=self._deps.clock.wall_us() // 1000,
        )
        timestamp_us = self._deps.timestamps.next_us()
        record = await self._records.change(
            write_key(request.table, request.job), lambda before: record_opened(before, run, timestamp_us), deadline
        )
        assert record is not None, "it is never declined"
        # An earlier run may have been opened at a node whose clock was wrong.
        self._deps.timestamps.check(record.timestamp_us, self._deps.clock.wall_us())
        await self._delete_expired(deadline)
        if is_done(record, run.batch):
            return self._done_plan(schema, record)
        return await self._open_run(request, record, deadline)

    async def abort(self, request: AbortWriteRequest, deadline: Deadline) -> CallDone:
        """The record stays: if the job is run again, it has the same timestamp."""
        await self._client.close_session(request.session, deadline)
        return CallDone()

    # ---- admission

    def _check_reachable(self, view: View, request: OpenWriteRequest) -> None:
        """Before anything is begun."""
        layout = write_layout(view, self._spec(request))
        away = unreachable_hosts(view.snapshot, self._deps.view.down)
        _require(layout, request, {stack: None for stack in layout.stacks() if stack.replica.host not in away})

    def _admit(self, view: View, request: OpenWriteRequest) -> None:
        """Sessions of this job do not count: they are closed before it opens another."""
        limits, own = self._deps.node, write_job_id(request.table, request.job)
        sessions = [
            each for each in view.snapshot.sessions.values() if is_write_job(each.request) and each.request != own
        ]
        of_table = sum(1 for each in sessions if each.table == request.table)
        for count, most, where, option in (
            (of_table, limits.table_write_jobs_max, "this table", "table_write_jobs_max"),
            (len(sessions), limits.write_jobs_max, "this cluster", "write_jobs_max"),
        ):
            if count >= most:
                raise Overloaded(
                    f"{count} jobs write to {where} already, and {most} may",
                    advice=f"nothing was begun; run it when another has ended, or raise limits.{option}",
                )

    # ---- one run

    def _spec(self, request: OpenWriteRequest) -> TableWriteSpec:
        return TableWriteSpec(request.table, request.level, self._deps.datacenter)

    def _scope(self, request: OpenWriteRequest, version: TopologyVersion) -> TransferScope:
        job = write_job_id(request.table, request.job)
        return TransferScope(job=job, session=request.session, table=request.table, version=version)

    async def _open_run(self, request: OpenWriteRequest, record: WriteJobRecord, deadline: Deadline) -> StagingPlan:
        for session in record.closing:
            await self._client.close_session(session, deadline)
        if record.closing:
            # Otherwise a job that failed often enough could never be run again under its name.
            closed = record.closing
            await self._records.change(
                write_key(request.table, request.job),
                lambda now: None if now is None else record_sessions_closed(now, closed),
                deadline,
            )
        life_ms = request.life_ms or self._deps.node.bulk_job_life_ms
        scope = self._scope(request, self._deps.view.current.version)
        opened_session = await self._client.open_session(scope, life_ms, scope.version, deadline)
        opened = await self._open_stagings(request, deadline)
        numbers = {stack: number for number, stack in enumerate(opened.targets)}
        return StagingPlan(
            schema=schema_of(self._deps.view.current, request.table),
            state=WriteJobState.OPEN,
            timestamp_us=record.timestamp_us,
            targets=tuple(opened.targets.values()),
            routes=staging_routes(opened.layout, numbers),
            authority=self._deps.authority(),
            deadline_ms=opened_session.deadline_ms,
        )

    async def _open_stagings(self, request: OpenWriteRequest, deadline: Deadline) -> OpenStagings:
        """Under a version that every node that was called accepts; if one knows a newer one, again under that."""
        while True:
            view = await self._deps.fresh_view(deadline)
            layout = write_layout(view, self._spec(request))
            opened = await self._call_nodes(request, view, layout, deadline)
            stale = next((each for each in opened.failures.values() if isinstance(each, Stale)), None)
            if stale is None:
                _require(layout, request, opened.answers, opened.failures)
                return OpenStagings(layout, {stack: opened.answers[stack] for stack in sorted(opened.answers)})
            newest = await self._deps.fresh_view(deadline)
            if request.session not in newest.snapshot.sessions or deadline.is_over:
                raise stale
            newer = TopologyVersion(view.version + 1)
            wait_ms = deadline.at_most_ms(self._deps.limits.newer_version_ms)
            await self._deps.view.wait_version(newer, wait_ms / 1000)

    async def _call_nodes(
        self, request: OpenWriteRequest, view: View, layout: WriteLayout, deadline: Deadline
    ) -> FanOutResult[ReplicaStack, TransferTarget]:
        away = unreachable_hosts(view.snapshot, self._deps.view.down)
        stacks = [stack for stack in layout.stacks() if stack.replica.host not in away]
        scope = self._scope(request, view.version)
        return await self._deps.call_stacks(
            stacks,
            lambda stack: self._client.open_staging_of_incarnation(
                scope, partial(staging_spec, scope.session, stack), 0, deadline
            ),
            lambda opened: first_unmet_route(layout, layout.routes, lambda stack: stack in opened) is None,
            self._deps.limits.open_stragglers_ms,
            deadline,
        )

    def _done_plan(self, schema: TableSchema, record: WriteJobRecord) -> StagingPlan:
        return StagingPlan(
            schema=schema,
            state=WriteJobState.DONE,
            timestamp_us=record.timestamp_us,
            targets=(),
            routes=(),
            authority=self._deps.authority(),
        )

    # ---- old records

    async def _delete_expired(self, deadline: Deadline) -> None:
        """Now and then, when a job is opened."""
        now_ms = self._deps.clock.boot_ms()
        if self._expired_at_ms is not None and now_ms - self._expired_at_ms < EXPIRE_EVERY_MS:
            return
        self._expired_at_ms = now_ms
        try:
            records = await self._records.list(WRITES_PREFIX, deadline)
            tables = self._deps.view.current.snapshot.tables
            now_wall_ms = self._deps.clock.wall_us() // 1000
            expired = expired_records([one.value for one in records.values()], tables, now_wall_ms)[:EXPIRED_MAX]
            for record in expired:
                key = write_key(record.table, record.job)
                await self._records.delete(key, records[key].revision, deadline)
        except EblaError as error:
            self._deps.report("broker.records_not_expired", {"cause": error.message})
            return
        if expired:
            self._deps.report("broker.records_expired", {"records": len(expired)})


def _writable_schema(view: View, table: TableId) -> TableSchema:
    schema = schema_of(view, table)
    if is_cdc_enabled(schema):
        raise Refused(
            f"changes of {schema.full_name} are captured (cdc), and a job's layers would bypass the log",
            advice="write its rows over CQL, or switch the table's option cdc off",
        )
    return schema


def _require(
    layout: WriteLayout,
    request: OpenWriteRequest,
    opened: Mapping[ReplicaStack, object],
    failures: Mapping[ReplicaStack, EblaError] | None = None,
) -> None:
    """Raises `TooFewReplicas` if a route lacks replicas, with the errors of those that could not be opened."""
    route = first_unmet_route(layout, layout.routes, lambda stack: stack in opened)
    if route is None:
        return
    failure = too_few_replicas(layout, route, request.level, lambda stack: stack in opened)
    causes = "; ".join(
        f"host {stack.replica.host}: {error.message}"
        for stack, error in sorted((failures or {}).items(), key=lambda item: item[0])
        if stack in route.stacks
    )
    text = f"{failure.message} ({causes})" if causes else failure.message
    raise TooFewReplicas(
        f"{text}; nothing was written", advice=failure.advice, required=failure.required, alive=failure.alive
    )
