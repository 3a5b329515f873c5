"""Reads of whole tables: opened at every node that has a copy, closed early if the job says so.

A read sees every write that was acknowledged before the call at its level: the topology is brought up to date first,
and each node takes its checkpoint after that, once its shards have that version.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from ebla.broker.broker_deps import AT_ONCE_MAX, BrokerDeps
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
from ebla.transfers.fan_out import FanOutResult
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
READ_PLANS_MAX = 5
"""How often a read is planned again because the topology changed."""

OpenedReads = FanOutResult[HostId, OpenTableReadAnswer]


class TableReadBroker:
    def __init__(self, deps: BrokerDeps) -> None:
        self._deps = deps

    async def open(self, request: OpenReadRequest, deadline: Deadline) -> TableReadPlan:
        """Raises `TooFewReplicas` if the level cannot be reached for some range."""
        for _ in range(READ_PLANS_MAX):
            view = await self._deps.fresh_view(deadline)
            plan = await self._open_under(view, request, deadline)
            if plan is not None:
                return plan
            newer = TopologyVersion(view.version + 1)
            wait_ms = deadline.at_most_ms(self._deps.limits.newer_version_ms)
            await self._deps.view.wait_version(newer, wait_ms / 1000)
        raise Unavailable("the topology changed each time the read was opened", advice="nothing is open; try again")

    async def close(self, request: CloseReadRequest, deadline: Deadline) -> CallDone:
        """A node that is not reached drops the read later."""
        view = self._deps.view.current
        if request.table not in view.snapshot.tables:
            return CallDone()
        hosts = [node.host for node in view.snapshot.members() if node.host not in self._deps.view.down]
        async with asyncio.TaskGroup() as tasks:
            for host in hosts:
                tasks.create_task(self._close_at(host, request, deadline))
        return CallDone()

    # ---- one attempt

    async def _open_under(self, view: View, request: OpenReadRequest, deadline: Deadline) -> TableReadPlan | None:
        """None: a node knows a newer topology, and without it there are too few."""
        schema = schema_of(view, request.table)
        spec = TableReadSpec(
            table=request.table, level=request.level, datacenter=self._deps.datacenter, ranges=request.ranges
        )
        datacenters = {host: node.datacenter for host, node in view.snapshot.nodes.items()}
        copies = range_copies(view, spec)
        away = unreachable_hosts(view.snapshot, self._deps.view.down)
        hosts = [host for host in hosts_to_read(copies, spec, datacenters) if host not in away]
        shortage = replica_shortage(copies, spec, hosts, datacenters)
        if shortage is not None:
            raise shortage
        opening = OpenTableReadRequest(
            read=request.read, table=request.table, version=view.version, life_ms=request.life_ms
        )

        def is_enough(opened: Collection[HostId]) -> bool:
            return replica_shortage(copies, spec, opened, datacenters) is None

        result = await self._open_at(hosts, opening, is_enough, deadline)
        sources = [result.answers[host].source for host in hosts if host in result.answers]
        opened = {
            source.host: OpenedReadSource(number, result.answers[source.host].stacks)
            for number, source in enumerate(sources)
        }
        shortage = replica_shortage(copies, spec, opened, datacenters)
        if shortage is not None and any(isinstance(error, Stale) for error in result.failures.values()):
            return None
        if shortage is not None:
            raise _with_causes(shortage, result)
        return TableReadPlan(
            schema=schema,
            version=view.version,
            sources=tuple(sources),
            pieces=plan_read_ranges(copies, spec, opened, datacenters),
            authority=self._deps.authority(),
            now_s=self._deps.clock.wall_us() // 1_000_000,
        )

    async def _open_at(
        self,
        hosts: Sequence[HostId],
        opening: OpenTableReadRequest,
        is_enough: Callable[[Collection[HostId]], bool],
        deadline: Deadline,
    ) -> OpenedReads:
        """Waits for all of them; once the answers are enough, a little longer for the others."""
        result: OpenedReads = FanOutResult()
        slots = asyncio.Semaphore(AT_ONCE_MAX)

        async def open_one(host: HostId) -> None:
            async with slots:
                try:
                    within_ms = deadline.at_most_ms(self._deps.limits.open_read_ms)
                    result.answers[host] = await self._deps.cluster.bulk(host, OPEN_TABLE_READ, opening, within_ms)
                except EblaError as error:
                    result.failures[host] = error

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(open_one(host)) for host in hosts]
            while pending := [task for task in calls if not task.done()]:
                wait_ms = self._deps.limits.read_stragglers_ms if is_enough(result.answers) else deadline.left_ms
                done, _ = await asyncio.wait(pending, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    for task in pending:
                        task.cancel()
                    break
        return result

    async def _close_at(self, host: HostId, request: CloseReadRequest, deadline: Deadline) -> None:
        try:
            closing = CloseTableReadRequest(request.read)
            await self._deps.cluster.bulk(host, CLOSE_TABLE_READ, closing, deadline.at_most_ms(CLOSE_MS))
        except EblaError:
            pass  # the node drops it when it has not been used for a while


def schema_of(view: View, table: TableId) -> TableSchema:
    schema = view.schemas.get(table)
    if schema is None:
        raise NotFound(f"there is no table {table}", advice="it may have been dropped; look it up by its name again")
    return schema


def is_cdc_enabled(schema: TableSchema) -> bool:
    """Whether the option `cdc` is on. Options without an effect here are stored as CQL text."""
    text = next((text for name, text in schema.options.others if name == "cdc"), "")
    words = text.lower().replace(" ", "").replace('"', "'")
    return "'enabled':'true'" in words or "'enabled':true" in words


def _with_causes(shortage: TooFewReplicas, result: OpenedReads) -> TooFewReplicas:
    causes = "; ".join(f"host {host}: {result.failures[host].message}" for host in sorted(result.failures))
    text = f"{shortage.message} ({causes})" if causes else shortage.message
    return TooFewReplicas(text, advice=shortage.advice, required=shortage.required, alive=shortage.alive)
