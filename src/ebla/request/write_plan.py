"""Which replicas a write is sent to and how many must acknowledge it, by one view of the topology. Pure.

The level counts all natural and pending replicas, whether they are up or not. The write is sent to those that are up.
If these are too few for the level, nothing is sent at all.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, required_replies
from ebla.model.errors import NotFound, TooFewReplicas, Unavailable
from ebla.model.identity import HostId, Replica, TableId
from ebla.request.write_acks import AckRule, make_ack_rule
from ebla.topology.routing.replica_sets import TableReplicas, WriteReplicas, count_by_datacenter
from ebla.topology.states import NodeState
from ebla.topology.tablet_map import ReplicaSet

PLANS_MAX = 16_384
"""For one view and level. A tablet has one plan, a vnode one per shard."""


class WriteReplicaPlan(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One object for all writes with the same targets, compared by identity."""

    targets: ReplicaSet
    """Replicas that are up, natural ones first."""
    skipped: ReplicaSet
    """Replicas that are not up. Read repair brings them what they missed."""
    rule: AckRule
    is_available: bool
    """The replicas that are up can meet the level."""


def plan_write(
    replicas: WriteReplicas,
    needed: tuple[RequiredReplies, ...],
    datacenters: Mapping[HostId, str],
    is_unavailable: Callable[[Replica], bool],
) -> WriteReplicaPlan:
    targets: list[Replica] = []
    skipped: list[Replica] = []
    for replica in (*replicas.natural, *replicas.pending):
        (skipped if is_unavailable(replica) else targets).append(replica)
    counts_for = tuple(_requirements_of(datacenters[target.host], needed) for target in targets)
    return _plan(targets, skipped, make_ack_rule([each.count for each in needed], counts_for))


def plan_without(plan: WriteReplicaPlan, skipped_now: frozenset[Replica]) -> WriteReplicaPlan:
    """The same write for fewer replicas; the required acknowledgements stay."""
    kept = [position for position, target in enumerate(plan.targets) if target not in skipped_now]
    dropped = tuple(target for target in plan.targets if target in skipped_now)
    rule = make_ack_rule(plan.rule.needed, [plan.rule.counts_for[position] for position in kept])
    return _plan([plan.targets[position] for position in kept], plan.skipped + dropped, rule)


def _plan(targets: Sequence[Replica], skipped: Sequence[Replica], rule: AckRule) -> WriteReplicaPlan:
    return WriteReplicaPlan(targets=tuple(targets), skipped=tuple(skipped), rule=rule, is_available=rule.can_be_met)


def _requirements_of(datacenter: str, needed: tuple[RequiredReplies, ...]) -> tuple[int, ...]:
    return tuple(index for index, each in enumerate(needed) if each.datacenter is None or each.datacenter == datacenter)


class _TablePlans:
    """Plans of one table at one level, by their replicas. Each is computed once."""

    __slots__ = ("_cache", "_known", "_level", "_replicas")

    def __init__(self, cache: "WritePlanCache", replicas: TableReplicas, level: ConsistencyLevel) -> None:
        self._replicas = replicas
        self._known: dict[tuple[ReplicaSet, ReplicaSet], WriteReplicaPlan] = {}
        self._cache = cache
        self._level = level

    def plan(self, token: int) -> WriteReplicaPlan:
        writing = self._replicas.writing(token)
        key = (writing.natural, writing.pending)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= PLANS_MAX:
                self._known.clear()
            found = self._known[key] = self._cache.compute_plan(self._replicas, writing, self._level)
        return found


class PlanCache:
    """The plans for one view and one set of unavailable replicas. A new cache is made when either changes."""

    def __init__(self, view: View, datacenter: str, down: frozenset[HostId], refused: frozenset[Replica]) -> None:
        left = frozenset(host for host, node in view.snapshot.nodes.items() if node.state is NodeState.LEFT)
        self.view = view
        self._down = down
        self._refused = refused
        self._unavailable_hosts = left | down
        self._datacenter = datacenter
        self._datacenters = {host: node.datacenter for host, node in view.snapshot.nodes.items()}

    def is_for(self, view: View, down: frozenset[HostId], refused: frozenset[Replica]) -> bool:
        """By identity: all three are replaced when they change."""
        return view is self.view and down is self._down and refused is self._refused

    def is_unavailable(self, replica: Replica) -> bool:
        """Nothing is sent to it: its host is down or has left, or it accepts no connection."""
        return replica.host in self._unavailable_hosts or replica in self._refused


class WritePlanCache(PlanCache):
    def __init__(self, view: View, datacenter: str, down: frozenset[HostId], refused: frozenset[Replica]) -> None:
        super().__init__(view, datacenter, down, refused)
        self._tables: dict[tuple[TableId, ConsistencyLevel], _TablePlans] = {}

    def plan(self, table: TableId, token: int, level: ConsistencyLevel) -> WriteReplicaPlan:
        """Raises `NotFound` if the view has no such table."""
        key = (table, level)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = _TablePlans(self, table_replicas(self.view, table), level)
        return found.plan(token)

    def compute_plan(
        self, replicas: TableReplicas, writing: WriteReplicas, level: ConsistencyLevel
    ) -> WriteReplicaPlan:
        pending = count_by_datacenter(writing.pending, self._datacenters)
        needed = required_replies(level, replicas.counts(writing.natural), self._datacenter, pending)
        return plan_write(writing, needed, self._datacenters, self.is_unavailable)


def table_replicas(view: View, table: TableId) -> TableReplicas:
    snapshot = view.snapshot
    if table not in snapshot.tables:
        raise NotFound(f"there is no table {table}", advice="it may have been dropped")
    if snapshot.on_tablets(table) and table not in snapshot.tablets:
        raise Unavailable(f"table {snapshot.tables[table].full_name} is still being created", advice="try again")
    return view.sets.of(table)


def too_few_replicas(plan: WriteReplicaPlan, level: ConsistencyLevel) -> TooFewReplicas:
    """The error for a plan that is not available."""
    required = sum(plan.rule.needed)
    alive = sum(min(want, want + spare) for want, spare in zip(plan.rule.needed, plan.rule.spare))
    return TooFewReplicas(
        f"{level.name} needs {required} replicas and {alive} of them are up",
        advice="nothing was written; bring nodes back or ask for a lower level",
        required=required,
        alive=alive,
    )


def target_to_wait_for(plans: Sequence[WriteReplicaPlan], full: Mapping[Replica, bool]) -> Replica | None:
    """When targets have no room: the one to wait for; None: send the write without them, and read repair brings them
    what they missed. `full` says of each whether it is abandoned: it has not answered for long, or the write has waited
    for it long enough.

    A replica that lags but answers is waited for: this is the back-pressure that reaches clients. A replica that does
    not answer delays no write that can do without it, and uses no more memory."""
    for target, is_abandoned in full.items():
        if not is_abandoned:
            return target
    skipped_now = frozenset(full)
    if all(plan_without(plan, skipped_now).is_available for plan in plans):
        return None
    return next(iter(full))
