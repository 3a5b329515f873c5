"""The commit of a write job: every replica seals its copy, and adopts it as a write at the job's consistency level.

1. Replicas that joined since the job began have no staging yet. It is opened for them, and the caller copies the rows
   there from another replica before anything else is done.
2. Each node makes one layer of the runs staged for a stack (SEAL). This may take long, and holds no version.
3. The replicas of each tablet adopt under one version of the topology (ADOPT). A replica that knows a newer version
   refuses; then the whole tablet goes again under that one. Adopting twice changes nothing.
4. Replicas that cannot be reached, beyond those that the level needs, are retried for a while and then left to repair.
5. The record says DONE, and the session is closed.

Every step may be repeated: after an interruption the same request goes on from there. `commit_states` has the states of
a copy; this module is the loop.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.broker.broker_deps import AT_ONCE_MAX, BrokerDeps
from ebla.broker.commit_states import (
    CommitProgress,
    CopyState,
    HasRows,
    RouteGroup,
    RowVisibility,
    group_routes,
    with_visibility,
)
from ebla.broker.write_layout import (
    ReplicaStack,
    TableWriteSpec,
    WriteLayout,
    WriteRoute,
    collect_staged,
    first_unmet_route,
    routes_with_rows,
    staging_spec,
    too_few_replicas,
    write_layout,
)
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, Stale, Unavailable
from ebla.model.identity import HostId, TopologyVersion
from ebla.model.records.write_jobs import (
    WriteJobRecord,
    WriteRun,
    check_job_name,
    is_done,
    record_adopting,
    record_done,
    require_current_run,
    write_job_id,
    write_key,
)
from ebla.model.transfers import TransferTarget
from ebla.transfers.deadline import Deadline
from ebla.transfers.fan_out import FanOutResult
from ebla.transfers.record_store import RecordStore
from ebla.transfers.transfer_client import SealedAttempt, TransferClient, TransferScope
from ebla.wire.table_calls import CommitWriteAnswer, CommitWriteRequest, MissingCopy
from ebla.wire.transfer_messages import AdoptAnswer, SealAnswer

STALE_MAX = 3
"""After so many refusals under the newest topology, staging was opened for an earlier incarnation of the stack."""
PAUSE_S = 0.3
"""Before a tablet whose replicas did not all answer goes again."""


class WriteCommits:
    def __init__(self, deps: BrokerDeps, records: RecordStore[WriteJobRecord], client: TransferClient) -> None:
        self._deps = deps
        self._records = records
        self._client = client

    async def commit(self, request: CommitWriteRequest, deadline: Deadline) -> CommitWriteAnswer:
        check_job_name(request.job)
        call = _CommitCall(self._deps, self._records, self._client, request, deadline)
        try:
            if await call.is_done():
                return CommitWriteAnswer(is_done=True)
            if request.announces_rows:
                await call.announce()
                return CommitWriteAnswer()
            answer = await call.commit()
        except EblaError as error:
            raise with_visibility(error, request.job, call.progress.visibility) from error
        if not answer.lacking:
            await self._close_session(request, deadline)
        return answer

    async def _close_session(self, request: CommitWriteRequest, deadline: Deadline) -> None:
        """The job is done even if this fails: its session ends at its own deadline at the latest."""
        try:
            within = Deadline(deadline.at_most_ms(self._deps.node.session_close_ms))
            await self._client.close_session(request.session, within)
        except EblaError as error:
            self._deps.report("broker.session_not_closed", {"session": str(request.session), "cause": error.message})


class _CommitCall:
    def __init__(
        self,
        deps: BrokerDeps,
        records: RecordStore[WriteJobRecord],
        client: TransferClient,
        request: CommitWriteRequest,
        deadline: Deadline,
    ) -> None:
        self._deps = deps
        self._limits = deps.limits
        self._records = records
        self._client = client
        self._adoption = _HeldAdoption(deps, client)
        self._request = request
        self._deadline = deadline
        self._patience = Deadline(self._limits.patience_ms)
        self._run = WriteRun(
            table=request.table,
            job=request.job,
            session=request.session,
            batch=request.batch,
            now_ms=deps.clock.wall_us() // 1000,
        )
        self._layout_of: tuple[View, WriteLayout] | None = None
        self._staged = collect_staged(request.targets, request.runs, request.brought)
        self.progress = CommitProgress(staged=self._staged)

    async def is_done(self) -> bool:
        record = await self._change(lambda record: record)
        return is_done(record, self._request.batch)

    async def announce(self) -> None:
        await self._fresh_view()
        await self._mark_adopting()

    async def commit(self) -> CommitWriteAnswer:
        view = await self._fresh_view()
        while True:
            layout = self._layout(view)
            routes = [route for route in routes_with_rows(layout, self._staged) if not self.progress.is_met(route)]
            missing = await self._open_missing(view, routes)
            if missing:
                return CommitWriteAnswer(lacking=missing)
            if not await self._seal(layout, routes):
                continue
            await self._adopt_all(routes)
            if all(self.progress.is_met(route) for route in routes):
                break
            view = await self._wait_newer_view(view, layout, routes)
        left = await self._adopt_stragglers()
        await self._change(lambda record: record_done(record, self._run))
        totals = self.progress.totals()
        return CommitWriteAnswer(left_to_repair=left, layers=totals.layers, rows=totals.rows)

    # ---- replicas without staging

    async def _open_missing(self, view: View, routes: Sequence[WriteRoute]) -> tuple[MissingCopy, ...]:
        """Opens staging for them at nodes that are up. A replica whose staging cannot be opened is treated as down."""
        for route in routes:
            if not any(self.progress.is_usable(stack) for stack in route.stacks):
                raise Stale(
                    f"what was staged for table {self._request.table} fits none of its replicas any more: they were "
                    "emptied since",
                    advice="nothing of this run can be used",
                )
        missing = self.progress.missing_stacks(routes)
        self.progress.incomplete = frozenset(missing)
        reachable = [stack for stack in missing if not self._deps.is_down(stack)]
        if not reachable:
            return ()
        job = write_job_id(self._request.table, self._request.job)
        scope = TransferScope(job=job, session=self._request.session, table=self._request.table, version=view.version)
        opened = await self._deps.call_stacks(
            reachable,
            lambda stack: self._client.open_staging_of_incarnation(
                scope, partial(staging_spec, scope.session, stack), self._staged.numbers.get(stack, 0), self._deadline
            ),
            lambda _: True,
            self._limits.open_stragglers_ms,
            self._deadline,
        )
        self.progress.note_not_opened(opened.failures)
        # The new staging replaces the earlier one of the stack, also for the ranges that the earlier one did have.
        layout = self._layout(view)
        return tuple(
            MissingCopy(opened.answers[stack], route.range)
            for stack in sorted(opened.answers)
            for route in routes_with_rows(layout, self._staged)
            if stack in route.stacks
        )

    # ---- sealing

    async def _seal(self, layout: WriteLayout, routes: Sequence[WriteRoute]) -> bool:
        """False: some staged rows are damaged and have to be copied again. Raises the error of a replica without which
        the level cannot be reached."""
        progress = self.progress
        stacks = [stack for stack in progress.stacks_to_adopt(routes) if progress.can_be_sealed(stack)]
        await self._seal_at(
            stacks,
            lambda sealed: (
                first_unmet_route(layout, routes, lambda stack: stack in sealed or progress.is_ready(stack)) is None
            ),
            self._deadline,
        )
        if any(progress.of(stack).state is CopyState.DAMAGED for stack in stacks):
            return False
        self._require(layout, routes, progress.is_ready)
        return True

    async def _seal_at(
        self,
        stacks: Sequence[ReplicaStack],
        is_enough: Callable[[Mapping[ReplicaStack, SealAnswer]], bool],
        deadline: Deadline,
    ) -> None:
        sealed = await self._deps.call_stacks(stacks, self._seal_one, is_enough, self._limits.stragglers_ms, deadline)
        self.progress.note_sealed(sealed.answers, sealed.failures)

    async def _seal_one(self, stack: ReplicaStack) -> SealAnswer:
        runs = self._staged.runs_of(stack)
        attempts = [SealedAttempt(run.attempt, (run.file,)) for run in runs]
        return await self._client.seal(self._staged.targets[stack], attempts, deadline=self._deadline)

    # ---- adopting

    async def _adopt_all(self, routes: Sequence[WriteRoute]) -> None:
        """One attempt at each tablet."""
        groups = group_routes(routes)
        if groups:
            await self._mark_adopting()
        await gather_bounded([partial(self._adopt, group) for group in groups], AT_ONCE_MAX)

    async def _adopt(self, group: RouteGroup) -> None:
        """No await between reading the view and sending: a version that no request holds may be drained."""
        view = self._deps.view.current
        layout = self._layout(view)
        if any(layout.by_range.get(route.range) != route for route in group.routes):
            return  # planned under another topology: it goes again under this one
        progress = self.progress
        stacks = [stack for stack in progress.stacks_to_adopt(group.routes) if progress.is_sealed(stack)]
        targets = {stack: self._staged.targets[stack] for stack in stacks}
        adopted = await self._adoption.adopt(targets, self._request, view.version)
        progress.note_adopted(adopted.answers, adopted.failures)
        # INV-BULKW-1: only the answers of this version count; those of two versions do not add up.
        unmet = first_unmet_route(
            layout,
            group.routes,
            lambda stack: stack in adopted.answers or progress.has_nothing_to_adopt(stack),
        )
        if unmet is None:
            progress.met.update((route.range, route) for route in group.routes)
            self._patience = Deadline(self._limits.patience_ms)

    async def _mark_adopting(self) -> None:
        """From here on rows may be visible, whatever becomes of this call; the record says so to the next."""
        if self.progress.visibility is not RowVisibility.SOME:
            await self._change(record_adopting)
            self.progress.visibility = RowVisibility.SOME

    async def _wait_newer_view(self, before: View, layout: WriteLayout, routes: Sequence[WriteRoute]) -> View:
        """After an attempt that was not enough: the newest topology, after a pause if that is the same."""
        unmet = [route for route in routes if not self.progress.is_met(route)]
        if self._deadline.is_over or (self._patience.is_over and not self.progress.is_overloaded(unmet)):
            self._require(layout, unmet, self.progress.is_adopted)
            raise Unavailable("the topology changed during each attempt to adopt the rows, until the time was over")
        await self._deps.view.wait_version(TopologyVersion(before.version + 1), PAUSE_S)
        view = await self._fresh_view()
        self.progress.note_topology(is_newer=view.version > before.version, refusals_max=STALE_MAX)
        return view

    async def _adopt_stragglers(self) -> tuple[HostId, ...]:
        """Retries replicas that missed the commit for a while, each under the topology of that moment. Returns the
        hosts that still lack it."""
        progress = self.progress
        until = Deadline(self._deadline.at_most_ms(self._limits.stragglers_ms))
        while (behind := progress.behind()) and not until.is_over:
            unsealed = [
                stack
                for stack in behind
                if progress.can_be_sealed(stack) and self._staged.runs_of(stack) and not self._deps.is_down(stack)
            ]
            await self._seal_at(unsealed, lambda _: True, until)
            late = [route for route in progress.met.values() if any(stack in behind for stack in route.stacks)]
            await gather_bounded([partial(self._adopt, group) for group in group_routes(late)], AT_ONCE_MAX)
            if progress.behind():
                await asyncio.sleep(PAUSE_S)
        return tuple(sorted({stack.replica.host for stack in progress.behind()}))

    # ---- shared

    async def _change(self, change: Callable[[WriteJobRecord], WriteJobRecord]) -> WriteJobRecord:
        """Raises `Stale` if another run has taken over. INV-BULKW-3: a record that is done does not change."""

        def decide(found: WriteJobRecord | None) -> WriteJobRecord:
            if found is not None and self.progress.visibility is RowVisibility.UNKNOWN:
                self.progress.visibility = RowVisibility.SOME if found.has_adopted else RowVisibility.NONE
            record = require_current_run(found, self._run)
            return record if is_done(record, self._run.batch) else change(record)

        key = write_key(self._request.table, self._request.job)
        record = await self._records.change(key, decide, self._deadline)
        assert record is not None, "it is never declined"
        return record

    async def _fresh_view(self) -> View:
        """The newest topology, in which the job's session is open."""
        view = await self._deps.fresh_view(self._deadline)
        if self._request.session not in view.snapshot.sessions:
            raise Stale(
                f"the session of job {self._request.job!r} is closed: its time is over, it was aborted, or another run "
                "has begun"
            )
        return view

    def _layout(self, view: View) -> WriteLayout:
        if self._layout_of is None or self._layout_of[0] is not view:
            spec = TableWriteSpec(self._request.table, self._request.level, self._deps.datacenter)
            self._layout_of = (view, write_layout(view, spec))
        return self._layout_of[1]

    def _require(self, layout: WriteLayout, routes: Sequence[WriteRoute], has: HasRows) -> None:
        """Raises for the first route that lacks replicas, with the error of one of them."""
        route = first_unmet_route(layout, routes, has)
        if route is None:
            return
        failure = self.progress.first_error(route, has)
        if failure is not None:
            host, error = failure
            raise type(error)(f"host {host}: {error.message}", advice=error.advice)
        raise too_few_replicas(layout, route, self._request.level, has)


class _HeldAdoption:
    """Adopts as a write under one version of the topology, and holds that version until every replica has answered or
    its time is over, even if the caller is gone.

    Without that: a commit is routed by a version; a replica joins under the next one, is filled from another that has
    not adopted yet, and takes over; then what is adopted later is on too few of the replicas that are read."""

    def __init__(self, deps: BrokerDeps, client: TransferClient) -> None:
        self._deps = deps
        self._client = client

    async def adopt(
        self, targets: Mapping[ReplicaStack, TransferTarget], request: CommitWriteRequest, version: TopologyVersion
    ) -> FanOutResult[ReplicaStack, AdoptAnswer]:
        """To be called without an await since the version was read. INV-BULKW-1: all of them under this version."""
        results: FanOutResult[ReplicaStack, AdoptAnswer] = FanOutResult()
        pending = {stack: self._send(request, target, version) for stack, target in targets.items()}
        for stack, answer in pending.items():
            try:
                results.answers[stack] = await asyncio.shield(answer)
            except EblaError as error:
                results.failures[stack] = error
        return results

    def _send(
        self, request: CommitWriteRequest, target: TransferTarget, version: TopologyVersion
    ) -> "asyncio.Future[AdoptAnswer]":
        """The version is held before this returns."""
        deps = self._deps
        answer: asyncio.Future[AdoptAnswer] = asyncio.get_running_loop().create_future()
        deps.view.hold(version)
        work = self._adopt_one(request, target, version, answer)
        try:
            deps.tasks.create_task(work)
        except RuntimeError:  # the group accepts no more tasks
            work.close()
            deps.view.release(version)
            answer.set_exception(Unavailable("this shard is stopping", advice="nothing was sent; try again"))
        return answer

    async def _adopt_one(
        self,
        request: CommitWriteRequest,
        target: TransferTarget,
        version: TopologyVersion,
        answer: "asyncio.Future[AdoptAnswer]",
    ) -> None:
        """A task of the shard's group: it must not raise, and does not end with the caller."""
        try:
            adopted = await self._client.adopt(request.table, target, version)
        except EblaError as error:
            answer.set_exception(error)
            answer.exception()  # the caller may be gone; asyncio would complain that it was never retrieved
        else:
            answer.set_result(adopted)
        finally:
            self._deps.view.release(version)
