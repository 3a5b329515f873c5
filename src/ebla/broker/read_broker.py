"""Reads of whole tables: opened at every node that has a copy, closed early where somebody says so.

Every write that was acknowledged before the call is in what its level reads: the topology is brought up to date first,
and each node takes its checkpoint afterwards, once its shards have that version.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.fresh_view import fresh_view
from ebla.broker.read_plan import (
    OpenedReadSource,
    TableReadSpec,
    hosts_to_read,
    plan_read_ranges,
    range_copies,
    replica_shortage,
    unreachable_hosts,
)
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, NotFound, Stale, TooFewReplicas, Unavailable
from ebla.model.identity import HostId, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.transfers.deadline import Deadline
from ebla.wire.table_calls import (
    CallDone,
    CloseReadRequest,
    CloseTableReadRequest,
    OpenReadRequest,
    OpenTableReadAnswer,
    OpenTableReadRequest,
    TableReadPlan,
)
from ebla.wire.verbs import CLOSE_TABLE_READ, OPEN_TABLE_READ

CLOSE_MS = 5_000
MOVED_MS = 1_000
"""How long a newer topology, of which a node has told, is waited for before the read is planned again."""


@dataclass(slots=True)
class _Answers:
    """What the nodes say to one try."""

    found: dict[HostId, OpenTableReadAnswer] = field(default_factory=dict)
    failures: dict[HostId, EblaError] = field(default_factory=dict)

    @property
    def was_stale(self) -> bool:
        return any(isinstance(failure, Stale) for failure in self.failures.values())


class TableReadBroker:
    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts

    async def open(self, request: OpenReadRequest, deadline: Deadline) -> TableReadPlan:
        """Raises `TooFewReplicas` where the level cannot be reached for some piece."""
        for _ in range(self._parts.limits.read_again_max):
            view = await fresh_view(self._parts, deadline)
            plan = await self._try(request, view, deadline)
            if plan is not None:
                return plan
            newer = TopologyVersion(view.version + 1)
            await self._parts.view.wait_version(newer, deadline.at_most_ms(MOVED_MS) / 1000)
        raise Unavailable("the topology moved each time that the read was opened", advice="nothing is open; try again")

    async def close(self, request: CloseReadRequest, deadline: Deadline) -> CallDone:
        """What a node does not hear goes there by itself."""
        view = self._parts.view.current
        if request.table not in view.snapshot.tables:
            return CallDone()
        hosts = [node.host for node in view.snapshot.members() if node.host not in self._parts.view.down]
        async with asyncio.TaskGroup() as tasks:
            for host in hosts:
                tasks.create_task(self._close_at(host, request, deadline))
        return CallDone()

    # ---- one try

    async def _try(self, request: OpenReadRequest, view: View, deadline: Deadline) -> TableReadPlan | None:
        """None: a node knows a newer topology, and without it there are too few."""
        schema = schema_of(view, request.table)
        asked = TableReadSpec(
            table=request.table, level=request.level, datacenter=self._parts.datacenter, ranges=request.ranges
        )
        datacenters = {host: node.datacenter for host, node in view.snapshot.nodes.items()}
        copies = range_copies(view, asked)
        away = unreachable_hosts(view.snapshot, self._parts.view.down)
        hosts = [host for host in hosts_to_read(copies, asked, datacenters) if host not in away]
        failure = replica_shortage(copies, asked, hosts, datacenters)
        if failure is not None:
            raise failure
        opening = OpenTableReadRequest(
            read=request.read, table=request.table, version=view.version, life_ms=request.life_ms
        )

        def do(found: Collection[HostId]) -> bool:
            return replica_shortage(copies, asked, found, datacenters) is None

        answers = await self._ask(hosts, opening, do, deadline)
        sources = [answers.found[host].source for host in hosts if host in answers.found]
        given = {
            source.host: OpenedReadSource(place, answers.found[source.host].stacks)
            for place, source in enumerate(sources)
        }
        failure = replica_shortage(copies, asked, given, datacenters)
        if failure is not None and answers.was_stale:
            return None
        if failure is not None:
            raise _told(failure, answers)
        pieces = plan_read_ranges(copies, asked, given, datacenters)
        now_s = self._parts.clock.wall_us() // 1_000_000
        return TableReadPlan(
            schema=schema,
            version=view.version,
            sources=tuple(sources),
            pieces=pieces,
            authority=self._parts.authority(),
            now_s=now_s,
        )

    async def _ask(
        self,
        hosts: Sequence[HostId],
        opening: OpenTableReadRequest,
        do: Callable[[Collection[HostId]], bool],
        deadline: Deadline,
    ) -> _Answers:
        """Of all of them, if they answer soon; once those that did are enough, the others have a little while left."""
        answers = _Answers()
        room = asyncio.Semaphore(self._parts.limits.at_once_max)

        async def one(host: HostId) -> None:
            async with room:
                try:
                    within_ms = deadline.at_most_ms(self._parts.limits.open_read_ms)
                    answers.found[host] = await self._parts.doors.bulk(host, OPEN_TABLE_READ, opening, within_ms)
                except EblaError as error:
                    answers.failures[host] = error

        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(one(host)) for host in hosts]
            while waiting := [task for task in asking if not task.done()]:
                enough = do(answers.found)
                bound_ms = self._parts.limits.read_stragglers_ms if enough else deadline.left_ms
                await asyncio.wait(waiting, timeout=bound_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
                still = [task for task in waiting if not task.done()]
                if len(still) == len(waiting):  # nobody answered in that time
                    for task in still:
                        task.cancel()
                    break
        return answers

    async def _close_at(self, host: HostId, request: CloseReadRequest, deadline: Deadline) -> None:
        try:
            query = CloseTableReadRequest(request.read)
            await self._parts.doors.bulk(host, CLOSE_TABLE_READ, query, deadline.at_most_ms(CLOSE_MS))
        except EblaError:
            pass  # it goes when nobody has used it for a while


def schema_of(view: View, table: TableId) -> TableSchema:
    found = view.schemas.get(table)
    if found is None:
        raise NotFound(f"there is no table {table}", advice="it may have been dropped; look it up by its name again")
    return found


def _told(failure: TooFewReplicas, answers: _Answers) -> TooFewReplicas:
    """With what those said that did not answer as they should."""
    said = "; ".join(f"host {host}: {answers.failures[host].message}" for host in sorted(answers.failures))
    text = f"{failure.message} ({said})" if said else failure.message
    return TooFewReplicas(text, advice=failure.advice, required=failure.required, alive=failure.alive)
