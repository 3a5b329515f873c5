"""Schema changes, on any node: read, plan, commit if the state is unchanged, and wait until every node has it.

`schema_plan.py` decides what a request means for the topology. Two nodes that change the schema at once both plan on
the same state, and the condition on that state lets one of them through; the other plans again on the result.

- INV-SCHEMA-1: changes of one table have an order that explains all their answers;
- INV-SCHEMA-2: a change that was answered is on every node that is up, except those the answer names;
- INV-SCHEMA-3: no node sees half of a table or of what belongs to it, nor half of a keyspace unless it is huge.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.control.topology.barrier_client import BarrierOutcome
from ebla.control.topology.deps import TopologyDeps, expires_at, out_of_time, remaining_ms
from ebla.control.topology.schema_plan import (
    NotYetPossible,
    SchemaChangePlan,
    is_applied,
    needs_barrier,
    plan_schema_change,
)
from ebla.model.errors import DeadlineExceeded, EblaError, Outcome, Unavailable
from ebla.model.identity import HostId, TableId, TopologyVersion
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import SCHEMA

FIND_OUT_SHARE = 0.25
"""The share of the remaining time that is reserved for finding out the outcome of a commit without an answer."""
RECHECK_MS = 100


@dataclass(frozen=True, slots=True)
class _SchemaResult:
    """The result, and the version that has it."""

    changed: bool
    version: TopologyVersion
    table: TableId | None


class SchemaService:
    def __init__(self, deps: TopologyDeps) -> None:
        self._deps = deps

    def serve_on(self, server: Server) -> None:
        server.serve(SCHEMA, self._serve)

    async def _serve(self, request: SchemaRequest, call: IncomingCall) -> SchemaAnswer:
        return await self.change(request.change, call.work_ms())

    async def change(self, change: SchemaChange, deadline_ms: int) -> SchemaAnswer:
        """Returns once every node that is up has the change. Raises an error that says why the request is impossible,
        or `DeadlineExceeded` if the outcome is unknown, or if it is committed and a node did not confirm it in time."""
        expires = expires_at(deadline_ms)
        made = await self._make(change, expires)
        members = [node.host for node in self._deps.topology.snapshot.members()]
        request = NodeBarrierRequest(made.version, drain=False)
        outcome = await self._deps.barriers.request(members, request, remaining_ms(expires))
        if outcome.lacking:
            raise _not_everywhere(made, outcome)
        return SchemaAnswer(changed=made.changed, version=made.version, table=made.table, unreached=outcome.down)

    # ---- the change itself

    async def _make(self, change: SchemaChange, expires: float) -> _SchemaResult:
        """One attempt after another, each on the state it reads."""
        changed = False
        why: EblaError | None = None
        while remaining_ms(expires) > 0:
            try:
                planned, snapshot = await self._plan(change, expires)
                if not planned.commands:
                    return _SchemaResult(changed, snapshot.version, planned.table)
                if needs_barrier(planned.commands, snapshot):
                    await self._barrier_before(snapshot, expires)
                version = await self._commit(planned, snapshot, expires)
            except NotYetPossible as not_yet:
                why = not_yet.error
                await asyncio.sleep(min(RECHECK_MS, remaining_ms(expires)) / 1000)
                continue
            except EblaError as error:
                if changed:
                    raise _partly(error.message) from error
                raise
            if version is not None and not planned.more:
                return _SchemaResult(True, version, planned.table)
            why, changed = None, changed or version is not None
            if version is None:
                await self._deps.pause()
        raise _partly("time ran out") if changed else why or out_of_time()

    async def _plan(self, change: SchemaChange, expires: float) -> tuple[SchemaChangePlan, Snapshot]:
        snapshot = await self._deps.read(remaining_ms(expires))
        drawn = TableId(self._deps.rng.uuid())
        return plan_schema_change(change, snapshot, drawn), snapshot

    async def _barrier_before(self, snapshot: Snapshot, expires: float) -> None:
        """No node may skip the version at which it lost a range, and see only the later one at which it gains the range
        again: it would keep rows that were deleted in between (INV-NODE-20). The commit that follows is void if the
        topology has changed meanwhile."""
        missing: dict[HostId, str] = {}

        def note(lacking: Mapping[HostId, str]) -> None:
            missing.clear()
            missing.update(lacking)

        hosts = tuple(
            node.host
            for node in snapshot.members()
            if node.state is not NodeState.NONE and node.host not in snapshot.state.ignored_nodes
        )
        left_s = remaining_ms(expires) * (1 - FIND_OUT_SHARE) / 1000
        try:
            async with asyncio.timeout(left_s):
                await self._deps.barriers.wait_all(snapshot.version, lambda: hosts, note)
        except TimeoutError:
            texts = [f"{snapshot.node(host).address}: {lacks}" for host, lacks in sorted(missing.items())]
            raise Unavailable(
                f"the replication is unchanged, because nodes did not acknowledge version {snapshot.version} of the "
                f"topology in time: {'; '.join(texts) or 'none has answered'}",
                advice="start them, or exclude them with `ebla failover`, and repeat the statement",
            ) from None

    async def _commit(self, planned: SchemaChangePlan, snapshot: Snapshot, expires: float) -> TopologyVersion | None:
        """The version that has it; None if another change was committed first, or if no time is left."""
        left_ms = remaining_ms(expires)
        if left_ms == 0:
            return None
        try:
            done = await self._deps.commit(snapshot, planned.commands, max(1, int(left_ms * (1 - FIND_OUT_SHARE))))
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                raise
            return await self._find_out(planned, error, remaining_ms(expires))
        return None if done is None else done.version

    async def _find_out(self, planned: SchemaChangePlan, cause: EblaError, deadline_ms: int) -> TopologyVersion:
        """After a commit without an answer. If its result is there, that is the answer. If not, it may still come:
        group 0 was offered it, and only its log could show that it never will."""
        try:
            snapshot = await self._deps.read(deadline_ms)
        except EblaError as error:
            raise _unknown_outcome(error) from cause
        if not is_applied(planned.commands, snapshot):
            raise _unknown_outcome(cause) from cause
        return snapshot.version


def _unknown_outcome(cause: EblaError) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"it is not known whether the schema was or will be changed: {cause.message}",
        advice="read the schema before trying again",
    )


def _partly(cause: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"a part of the tables was dropped, then: {cause}", advice="drop the keyspace again")


def _not_everywhere(made: _SchemaResult, outcome: BarrierOutcome) -> DeadlineExceeded:
    what = "the schema is changed" if made.changed else "the schema was already as requested"
    return DeadlineExceeded(
        f"{what} (version {made.version}), but not every node confirmed it in time: {outcome.describe_lacking()}",
        advice="they will have it once they catch up; do not repeat the change",
    )
