"""Read repair: when replicas differ, what they lack is written to as many as the level needs before rows are returned.

A later read at the same level then finds these rows too (INV-ROWS-6), and a read at ALL leaves all replicas of what it
read equal (INV-ROWS-10).

A repair is an ordinary write with the old timestamps. It also goes to replicas that a topology change in progress is
about to read from, or may go back to. Otherwise a row that was read, and is on too few of them, would be gone again.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.model.errors import EblaError, InternalError
from ebla.model.identity import Replica, TableId, TopologyVersion
from ebla.request.read_executor import ReplicaQuery, ReplicaReplies
from ebla.request.read_plan import ReadPlanner, RepairRoute
from ebla.request.router_types import RouterDeps
from ebla.storage.codec.key_codec import decode_token, split_key
from ebla.wire.errors import ERROR_TAGS
from ebla.wire.row_messages import Item, RowWrite, WriteRowsRequest

REQUEST_BYTES_MAX = 1 << 20

MissingItems = Mapping[Replica, Sequence[Item]]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The repair of all keys that have the same targets."""

    route: RepairRoute
    have: tuple[Replica, ...]
    """Replicas that lack nothing."""
    items: Mapping[Replica, tuple[Item, ...]]
    """What each replica is sent."""


def plan_repairs(
    planner: ReadPlanner, replica_query: ReplicaQuery, missing: MissingItems, answered: Collection[Replica]
) -> Iterator[RepairPlan]:
    """One plan for each set of replicas that a write of the items would go to."""
    groups: dict[RepairRoute, dict[Replica, dict[bytes, bytes]]] = {}
    for replica, items in missing.items():
        for key, value in items:
            route = planner.repair_route(replica_query.data.table, decode_token(key), replica_query.level)
            groups.setdefault(route, {}).setdefault(replica, {})[key] = value
    for route, by_replica in groups.items():
        sent = dict(by_replica)
        if route.is_changing:
            every = {key: value for items in by_replica.values() for key, value in items.items()}
            sent |= {each: every for each in route.targets if each not in answered and not planner.is_unavailable(each)}
        have = tuple(each for each in answered if each not in by_replica)
        yield RepairPlan(route, have, {replica: tuple(sorted(items.items())) for replica, items in sent.items()})


def repair_requests(version: TopologyVersion, table: TableId, items: Sequence[Item]) -> Iterator[WriteRowsRequest]:
    """One write for each partition, in requests of bounded size."""
    writes: list[RowWrite] = []
    gathered: list[Item] = []
    prefix, size = b"", 0
    for key, value in items:
        found = split_key(key)[0]
        if gathered and (found != prefix or size >= REQUEST_BYTES_MAX):
            writes.append(RowWrite(version, table, tuple(gathered)))
            gathered = []
        if size >= REQUEST_BYTES_MAX:
            yield WriteRowsRequest(tuple(writes))
            writes, size = [], 0
        prefix = found
        gathered.append((key, value))
        size += len(key) + len(value)
    writes.append(RowWrite(version, table, tuple(gathered)))
    yield WriteRowsRequest(tuple(writes))


class ReadRepair(ReplicaReplies):
    """One plan in progress."""

    def __init__(self, deps: RouterDeps, replica_query: ReplicaQuery, plan: RepairPlan) -> None:
        super().__init__(replica_query, plan.route.needed)
        self._deps = deps
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._done = list(plan.have)
        self._waiting: dict[Replica, None] = dict.fromkeys(plan.items)
        self._decided: asyncio.Future[None] = self._loop.create_future()

    @property
    def target_count(self) -> int:
        return len(self._plan.items)

    def start(self) -> None:
        """All requests are sent when this returns. They hold their version until they end."""
        for target, items in self._plan.items.items():
            self._deps.view.hold(self._query.version)
            self._deps.tasks.create_task(self._write(target, items))

    async def wait_met(self) -> None:
        """Raises `Stale`, `ReadTimeout` and `ReadFailed`."""
        if not self._is_met:
            await self._decided
        if not self._is_met:
            raise self._unmet(self._done, (), has_data=True)

    @property
    def _is_met(self) -> bool:
        return self._meets(self._done)

    async def _write(self, target: Replica, items: Sequence[Item]) -> None:
        replica_query = self._query
        try:
            for request in repair_requests(replica_query.version, replica_query.data.table, items):
                left_ms = max(1, int((replica_query.expires_at - self._loop.time()) * 1000))
                answer = await self._deps.clients.write(target, request, left_ms)
                for one in answer.failures:
                    raise ERROR_TAGS.get(one.error, InternalError)(one.message, advice=one.advice)
        except Exception as error:  # a defect below must fail this read, not the shard
            self._failures[target] = (
                error if isinstance(error, EblaError) else InternalError(f"a repair failed: {error!r}")
            )
        else:
            self._done.append(target)
        finally:
            del self._waiting[target]
            self._deps.view.release(replica_query.version)
        is_over = self._is_met or not self._meets((*self._done, *self._waiting))
        if is_over and not self._decided.done():
            self._decided.set_result(None)
