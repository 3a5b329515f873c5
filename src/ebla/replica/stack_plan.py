"""Which stacks a shard must have at a version of the topology. Pure.

A table on tablets has a stack for each tablet whose replica the shard holds, is getting or has yet to give up. A table
on vnodes has one stack for the whole ring, whatever vnodes the node has: the shard serves every request it gets, and
the routers know which shard to ask.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ebla.model.errors import Refused
from ebla.model.identity import HostId, Replica, ShardNumber, TableId
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.topology.routing.replica_sets import HeldRangesOfHost, ReplicaSets, VnodeReplicas
from ebla.topology.routing.sharder import TabletSharder, has_replica
from ebla.topology.snapshot import Replication, Snapshot
from ebla.topology.states import NodeState, TransitionKind
from ebla.topology.tablet_map import TOKEN_BITS, TabletMap

StackKey = tuple[TableId, TokenRange]


@dataclass(frozen=True, slots=True)
class Hop:
    """A tablet that moves between two shards of this node: writes to the old shard must reach the new one too."""

    to: ShardNumber
    here: bool
    """Whether this shard writes it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStackPlan:
    """One table on one shard. A key's number is its token's bits above the `shift` lowest."""

    shift: int
    ranges: Mapping[int, TokenRange]
    """By tablet number; a table on vnodes has only number 0."""
    pending: tuple[int, ...] = ()
    """Numbers of replicas that are pending here."""
    moving: tuple[int, ...] = ()
    """Numbers of tablets in any transition, or that are rebuilt here."""
    hops: Mapping[int, Hop] = field(default_factory=dict)


ShardStackPlan = Mapping[TableId, TableStackPlan]


def plan_shard(
    snapshot: Snapshot, own: Replica, before: Snapshot | None = None, before_plan: ShardStackPlan | None = None
) -> ShardStackPlan:
    """Plans of tables that did not change since `before` are the same objects as in its plan."""
    ring_moves = snapshot.transition is not None or _is_rebuilt(snapshot, own)
    plan: dict[TableId, TableStackPlan] = {}
    for table in snapshot.tables:
        tablets = snapshot.tablets.get(table)
        if tablets is None and snapshot.on_tablets(table):
            continue  # its tablets are not complete yet
        known = None
        if before is not None and before_plan is not None and before.tablets.get(table) is tablets:
            known = before_plan.get(table)
        if tablets is None:
            wanted = _VNODES_MOVING if ring_moves else _VNODES
            plan[table] = wanted
        else:
            plan[table] = known or _plan_tablets(tablets, own)
    return plan


def _is_rebuilt(snapshot: Snapshot, own: Replica) -> bool:
    """Rows that are older than its tombstones may arrive on such a node."""
    node = snapshot.nodes.get(own.host)
    return node is not None and node.state is NodeState.REBUILDING


_VNODES = TableStackPlan(shift=TOKEN_BITS, ranges={0: WHOLE_RING})
_VNODES_MOVING = TableStackPlan(shift=TOKEN_BITS, ranges={0: WHOLE_RING}, moving=(0,))


def _plan_tablets(tablets: TabletMap, own: Replica) -> TableStackPlan:
    ranges: dict[int, TokenRange] = {}
    pending: list[int] = []
    moving: list[int] = []
    hops: dict[int, Hop] = {}
    for number in tablets.tablets_on(own.host):
        if not has_replica(tablets, number, own):
            continue
        ranges[number] = TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))
        if tablets.transition(number) is None:
            continue
        moving.append(number)
        if own not in tablets.replicas(number):
            pending.append(number)
        elif (hop := _hop(tablets, number, own)) is not None:
            hops[number] = hop
    return TableStackPlan(shift=tablets.shift, ranges=ranges, pending=tuple(pending), moving=tuple(moving), hops=hops)


def _hop(tablets: TabletMap, number: int, own: Replica) -> Hop | None:
    """Routers see one host in a move inside a node, so they write to its old shard until all of them write to the new
    one alone. The new shard forwards nothing: a router that writes to it has left the old version behind."""
    transition = tablets.transition(number)
    if transition is None or transition.kind is not TransitionKind.INTRANODE_MIGRATION:
        return None
    shards = TabletSharder(tablets, own.host).shards_for_writes(tablets.last_token(number))
    other = next((shard for shard in shards if shard != own.shard), None)
    return None if other is None else Hop(other, own.shard in shards)


HeldByReplication = Mapping[Replication, HeldRangesOfHost]
"""What the node holds of tables on vnodes, by how their keyspace is replicated."""


def held_by_replication(
    sets: ReplicaSets, own: HostId, before: tuple[Snapshot, HeldByReplication] | None = None
) -> HeldByReplication:
    """What did not change since `before` is not computed again."""
    snapshot = sets.snapshot
    known = before[1] if before is not None and _same_rings(before[0], snapshot) else {}
    held: dict[Replication, HeldRangesOfHost] = {}
    for table in snapshot.tables:
        if snapshot.on_tablets(table) or (replication := snapshot.replication_of(table)) in held:
            continue
        replicas = sets.of(table)
        assert isinstance(replicas, VnodeReplicas), "it is not on tablets"
        held[replication] = known.get(replication) or replicas.held_ranges_of(own)
    return held


def _same_rings(before: Snapshot, snapshot: Snapshot) -> bool:
    """Whether the replicas of every vnode are surely the same in both."""
    return (
        before.nodes is snapshot.nodes
        and before.node_requests is snapshot.node_requests
        and before.transition is snapshot.transition
        and before.state.ignored_nodes == snapshot.state.ignored_nodes
    )


def stack_keys(plan: ShardStackPlan) -> list[StackKey]:
    return [(table, token_range) for table, one in plan.items() for token_range in one.ranges.values()]


def check_no_resize(wanted: Iterable[StackKey], known: Iterable[StackKey]) -> None:
    """Refuses a range that overlaps an existing stack with other bounds: tablets were split or merged. Treating the old
    stack as unowned would drop its rows."""
    there: dict[TableId, list[TokenRange]] = {}
    for table, token_range in known:
        there.setdefault(table, []).append(token_range)
    for table, token_range in wanted:
        for other in there.get(table, ()):
            if other != token_range and other.overlaps(token_range):
                raise Refused(
                    f"tablets of table {table} have other bounds than the replicas on disk",
                    advice="this release does not follow splits and merges of tablets; nothing was dropped",
                )
