"""Changes of the schema, on any node: read, plan, commit if nothing came between, and wait until every node has it.

What a wish means for the topology is decided in `schema_wishes.py`. Two nodes that change the schema at once both plan
on the same state, and the condition on that state lets one of them through; the other plans anew on what it left.

- INV-SCHEMA-1: changes of one table have an order that explains all their answers;
- INV-SCHEMA-2: a change that was answered is on every node that is up, but for those the answer names;
- INV-SCHEMA-3: nobody sees half of a table or of what belongs to it, and of a keyspace not half unless it is huge.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from ebla.control.group0.client import error_of
from ebla.control.group0.node import Group0Node
from ebla.control.topology.barrier_client import BarrierClient, BarrierOutcome, Down
from ebla.control.topology.schema_plan import (
    NotYetPossible,
    PlanningState,
    SchemaChangePlan,
    is_applied,
    plan_schema_change,
)
from ebla.group0.commands import ConditionFailed, Done, Forgotten
from ebla.model.errors import DeadlineExceeded, EblaError, Outcome, Refused
from ebla.model.identity import TableId, TopologyVersion
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection as CommandRefused
from ebla.topology.apply.command_batch import apply_commands
from ebla.topology.snapshot import Snapshot
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import SCHEMA

FIND_OUT_SHARE = 0.25
"""Of the time left, what is kept for finding out what became of a commit that was not answered."""
AGAIN_MS_MAX = 50
LOOK_AGAIN_MS = 100


class TopologySource(Protocol):
    """The state of this node's group 0, as the topology."""

    @property
    def snapshot(self) -> Snapshot: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDeps:
    group0: Group0Node
    topology: TopologySource
    barriers: BarrierClient
    down: Down
    rng: Rng


@dataclass(frozen=True, slots=True)
class _Made:
    """What is so now, and since which version."""

    changed: bool
    version: TopologyVersion
    table: TableId | None


class SchemaService:
    def __init__(self, parts: SchemaDeps) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()

    def serve_on(self, server: Server) -> None:
        server.serve(SCHEMA, self._serve)

    async def _serve(self, request: SchemaRequest, call: IncomingCall) -> SchemaAnswer:
        return await self.change(request.change, call.work_ms())

    async def change(self, change: SchemaChange, deadline_ms: int) -> SchemaAnswer:
        """Returns once every node that is up has it. Raises what fits where the wish cannot be fulfilled, and
        `DeadlineExceeded` where nobody knows, or where it is made and a node did not confirm it in time."""
        expires_at = self._loop.time() + deadline_ms / 1000
        made = await self._make(change, expires_at)
        members = [node.host for node in self._parts.topology.snapshot.members()]
        request = NodeBarrierRequest(made.version, drain=False)
        asked = await self._parts.barriers.ask(members, request, self._remaining_ms(expires_at))
        if asked.lacking:
            raise _not_everywhere(made, asked)
        return SchemaAnswer(changed=made.changed, version=made.version, table=made.table, unreached=asked.down)

    def _remaining_ms(self, expires_at: float) -> int:
        return max(0, int((expires_at - self._loop.time()) * 1000))

    # ---- the change itself

    async def _make(self, change: SchemaChange, expires_at: float) -> _Made:
        """One attempt after another, each on what it reads then."""
        changed = False
        why: EblaError | None = None
        while self._remaining_ms(expires_at) > 0:
            try:
                planned, snapshot = await self._plan(change, expires_at)
                if not planned.commands:
                    return _Made(changed, snapshot.version, planned.table)
                version = await self._commit(planned, snapshot, expires_at)
            except NotYetPossible as not_yet:
                why = not_yet.error
                await asyncio.sleep(min(LOOK_AGAIN_MS, self._remaining_ms(expires_at)) / 1000)
                continue
            except EblaError as error:
                if changed:
                    raise _partly(error.message) from error
                raise
            if version is not None and not planned.more:
                return _Made(True, version, planned.table)
            why, changed = None, changed or version is not None
            if version is None:
                await asyncio.sleep(self._parts.rng.random() * AGAIN_MS_MAX / 1000)
        raise _partly("time ran out") if changed else why or _out_of_time()

    async def _plan(self, change: SchemaChange, expires_at: float) -> tuple[SchemaChangePlan, Snapshot]:
        await self._parts.group0.running.calls.read_barrier(self._remaining_ms(expires_at))
        snapshot = self._parts.topology.snapshot
        drawn = TableId(self._parts.rng.uuid())
        return plan_schema_change(change, PlanningState(snapshot, self._parts.down()), drawn), snapshot

    async def _commit(self, planned: SchemaChangePlan, snapshot: Snapshot, expires_at: float) -> TopologyVersion | None:
        """The version that has it; None where something else was committed first."""
        applied = apply_commands(snapshot, planned.commands)
        if isinstance(applied, CommandRefused):
            raise Refused(applied.reason)
        remaining_ms = self._remaining_ms(expires_at)
        if remaining_ms == 0:
            return None
        calls = self._parts.group0.running.calls
        try:
            answer = await calls.transact(applied.transaction, max(1, int(remaining_ms * (1 - FIND_OUT_SHARE))))
        except EblaError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                raise
            return await self._find_out(planned, error, self._remaining_ms(expires_at))
        match answer:
            case Done():
                return applied.snapshot.version
            case ConditionFailed():
                return None
            case Forgotten():
                return await self._find_out(planned, error_of(answer), self._remaining_ms(expires_at))
            case _:
                raise error_of(answer)

    async def _find_out(self, planned: SchemaChangePlan, cause: EblaError, deadline_ms: int) -> TopologyVersion:
        """After a commit that was not answered. If what it was to make is there, that is the answer. If it is not, it
        may yet come: group 0 was offered it, and only its own log could tell that it never will."""
        try:
            await self._parts.group0.running.calls.read_barrier(deadline_ms)
        except EblaError as error:
            raise _nobody_knows(error) from cause
        snapshot = self._parts.topology.snapshot
        if not is_applied(planned.commands, snapshot):
            raise _nobody_knows(cause) from cause
        return snapshot.version


def _nobody_knows(cause: EblaError) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"it is not known whether the schema was or will be changed: {cause.message}",
        advice="look at the schema before trying again",
    )


def _partly(cause: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"a part of the tables was dropped, then: {cause}", advice="drop the keyspace again")


def _out_of_time() -> Refused:
    return Refused("other changes of the topology came first, again and again, and time ran out", advice="try again")


def _not_everywhere(made: _Made, asked: BarrierOutcome) -> DeadlineExceeded:
    hosts = "; ".join(f"host {host}: {cause}" for host, cause in asked.lacking)
    what = "the schema is changed" if made.changed else "the schema was so already"
    return DeadlineExceeded(
        f"{what} (version {made.version}), but not every node has confirmed it in time: {hosts}",
        advice="they will have it as soon as they follow; do not repeat the change",
    )
