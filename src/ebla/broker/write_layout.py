"""Where the rows of a write job go under one version of the topology, and which acknowledgements its level needs. Pure.

Rows are staged per *stack*. On tablets, each replica of each tablet is a stack. On vnodes, each shard of each node is
a stack, for the whole ring. A *route* is a range whose rows go to the same stacks. Each host of a route has one *copy*,
in one stack; in two while a tablet moves between shards of the node, and then both must have it. Copies are counted
like those of any write: INV-BULKW-1.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, required_replies
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, Replica, SessionId, TableId, TransferId
from ebla.model.token import WHOLE_RING, TokenRange, merge_ranges
from ebla.model.transfers import StagingKind, TransferTarget
from ebla.request.write_acks import AckCounter, AckRule, make_ack_rule
from ebla.request.write_plan import table_replicas
from ebla.topology.routing.replica_sets import WriteReplicas, count_by_datacenter
from ebla.topology.routing.sharder import sharder_for
from ebla.topology.snapshot import Snapshot
from ebla.transfers.token_ranges import cut_at_replica_borders, format_range
from ebla.transfers.transfer_client import StagingSpec
from ebla.wire.table_calls import StagedRanges, StagedRun, StagingRoute


@dataclass(frozen=True, slots=True, order=True)
class ReplicaStack:
    replica: Replica
    range: TokenRange


@dataclass(frozen=True, slots=True)
class HostCopy:
    host: HostId
    stacks: tuple[ReplicaStack, ...]
    """All of them must have the rows."""


@dataclass(frozen=True, slots=True)
class WriteRoute:
    range: TokenRange
    copies: tuple[HostCopy, ...]
    """Natural replicas first."""
    needed: tuple[RequiredReplies, ...]

    @property
    def stacks(self) -> tuple[ReplicaStack, ...]:
        return tuple(stack for copy in self.copies for stack in copy.stacks)


@dataclass(frozen=True, slots=True)
class TableWriteSpec:
    table: TableId
    level: ConsistencyLevel
    datacenter: str


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """The routes of a table, without gap or overlap, in ring order from the lowest token."""

    routes: tuple[WriteRoute, ...]
    datacenters: Mapping[HostId, str]
    by_range: Mapping[TokenRange, WriteRoute]

    def stacks(self) -> tuple[ReplicaStack, ...]:
        return tuple(sorted({stack: None for route in self.routes for stack in route.stacks}))


def write_layout(view: View, wanted: TableWriteSpec) -> WriteLayout:
    """Raises `NotFound`, or `Unavailable` for a table that is still being created."""
    replicas = table_replicas(view, wanted.table)
    snapshot = view.snapshot
    on_tablets = wanted.table in snapshot.tablets
    datacenters = {host: node.datacenter for host, node in snapshot.nodes.items()}
    routes: list[WriteRoute] = []
    for part in cut_at_replica_borders(snapshot, wanted.table, WHOLE_RING):
        writing = replicas.writing(int(part.end))
        pending = count_by_datacenter(writing.pending, datacenters)
        needed = required_replies(wanted.level, replicas.counts(writing.natural), wanted.datacenter, pending)
        copies = tuple(_copies(snapshot, wanted.table, writing, part if on_tablets else WHOLE_RING, int(part.end)))
        before = routes[-1] if routes else None
        if not on_tablets and before is not None and (before.copies, before.needed) == (copies, needed):
            routes[-1] = WriteRoute(TokenRange(before.range.start, part.end), copies, needed)
        else:
            routes.append(WriteRoute(part, copies, needed))
    return WriteLayout(tuple(routes), datacenters, {route.range: route for route in routes})


def _copies(
    snapshot: Snapshot, table: TableId, writing: WriteReplicas, stack: TokenRange, token: int
) -> Iterator[HostCopy]:
    for replica in (*sorted(writing.natural), *sorted(writing.pending)):
        # A router sends a write to one shard of a host, which forwards it to the second one while a tablet moves inside
        # the node. Adopted rows are not forwarded: both shards adopt them.
        shards = sharder_for(snapshot, table, replica.host).shards_for_writes(token)
        yield HostCopy(
            replica.host, tuple(ReplicaStack(Replica(replica.host, shard), stack) for shard in sorted(shards))
        )


# ---- whether the level is met


def count_acks(route: WriteRoute, datacenters: Mapping[HostId, str], has: Callable[[ReplicaStack], bool]) -> AckCounter:
    """A copy has acknowledged if all its stacks have the rows."""
    acks = AckCounter(_rule(route, datacenters))
    for position, copy in enumerate(route.copies):
        if all(has(stack) for stack in copy.stacks):
            acks.acknowledge(position)
    return acks


def _rule(route: WriteRoute, datacenters: Mapping[HostId, str]) -> AckRule:
    counts_for = tuple(
        tuple(number for number, each in enumerate(route.needed) if each.datacenter in (None, datacenters[copy.host]))
        for copy in route.copies
    )
    return make_ack_rule([each.count for each in route.needed], counts_for)


def first_unmet_route(
    layout: WriteLayout, routes: Sequence[WriteRoute], has: Callable[[ReplicaStack], bool]
) -> WriteRoute | None:
    """The first route whose level is not met by these stacks. A write that no copy has is not met at any level."""
    for route in routes:
        acks = count_acks(route, layout.datacenters, has)
        if not acks.is_met or not any(all(has(stack) for stack in copy.stacks) for copy in route.copies):
            return route
    return None


def too_few_replicas(
    layout: WriteLayout, route: WriteRoute, level: ConsistencyLevel, has: Callable[[ReplicaStack], bool]
) -> TooFewReplicas:
    acks = count_acks(route, layout.datacenters, has)
    return TooFewReplicas(
        f"{level.name} needs {acks.required} replicas of the tokens {format_range(route.range)}, and {acks.received} "
        "can be written to",
        advice="bring nodes back, or write at a lower consistency level",
        required=acks.required,
        alive=acks.received,
    )


# ---- staging


def transfer_id_of(session: SessionId, stack: ReplicaStack, number: int = 0) -> TransferId:
    """The same at every node, so that a repeated call finds the staging of the first. A further `number` is for a
    further incarnation of the stack."""
    name = f"{stack.replica.host}/{stack.replica.shard}/{stack.range.start}/{stack.range.end}/{number}"
    return TransferId(uuid.uuid5(session, name))


def staging_spec(session: SessionId, stack: ReplicaStack, number: int) -> StagingSpec:
    return StagingSpec(
        replica=stack.replica,
        range=stack.range,
        kind=StagingKind.ROWS,
        transfer=transfer_id_of(session, stack, number),
    )


def staging_routes(layout: WriteLayout, numbers: Mapping[ReplicaStack, int]) -> tuple[StagingRoute, ...]:
    """`numbers`: the stacks with open staging, by their number in the plan."""
    return tuple(
        StagingRoute(route.range, tuple(numbers[stack] for stack in route.stacks if stack in numbers))
        for route in layout.routes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRuns:
    """What a job says it has staged, by stack."""

    targets: Mapping[ReplicaStack, TransferTarget]
    """The latest of each stack."""
    numbers: Mapping[ReplicaStack, int]
    """How many targets each stack has had."""
    runs: Mapping[TransferId, tuple[StagedRun, ...]]
    ranges: Mapping[TransferId, tuple[TokenRange, ...]]
    """The ranges of which a transfer has all rows. One that is not listed has all rows of its whole range."""

    def runs_of(self, stack: ReplicaStack) -> tuple[StagedRun, ...]:
        target = self.targets.get(stack)
        return () if target is None else self.runs.get(target.transfer, ())

    def covers(self, stack: ReplicaStack, wanted: TokenRange) -> bool:
        known = self.ranges.get(self.targets[stack].transfer)
        return known is None or all(any(one.covers(part) for one in known) for part in wanted.unwrapped())


def collect_staged(
    targets: Sequence[TransferTarget], runs: Sequence[StagedRun], ranges: Sequence[StagedRanges] = ()
) -> StagedRuns:
    by_stack: dict[ReplicaStack, TransferTarget] = {}
    numbers: dict[ReplicaStack, int] = {}
    seen: dict[TransferId, None] = {}
    for target in targets:
        if target.transfer in seen:
            continue
        seen[target.transfer] = None
        stack = ReplicaStack(Replica(target.host, target.shard), target.range)
        by_stack[stack] = target
        numbers[stack] = numbers.get(stack, 0) + 1
    by_transfer: dict[TransferId, dict[bytes, StagedRun]] = {}
    for run in runs:
        by_transfer.setdefault(run.transfer, {})[run.attempt.bytes] = run
    return StagedRuns(
        targets=by_stack,
        numbers=numbers,
        runs={transfer: tuple(attempts.values()) for transfer, attempts in by_transfer.items()},
        ranges={each.transfer: merge_ranges(each.ranges) for each in ranges},
    )


def routes_with_rows(layout: WriteLayout, staged: StagedRuns) -> tuple[WriteRoute, ...]:
    """Those that the job may have rows for. A tablet that was split since has its rows from the unsplit one."""
    filled = frozenset(target.range for target in staged.targets.values() if staged.runs.get(target.transfer))
    return tuple(
        route
        for route in layout.routes
        if any(stack.range in filled for stack in route.stacks) or any(route.range.overlaps(one) for one in filled)
    )


def has_all_rows(route: WriteRoute, stack: ReplicaStack, staged: StagedRuns) -> bool:
    """Whether a stack was sent all rows of the route. All replicas of a tablet get the same rows: a stack without runs,
    while another replica has some, must not count as a copy. The number of rows says nothing: rows copied to a replica
    that came later are merged already."""
    if stack not in staged.targets:
        return False
    if stack.range == WHOLE_RING and route.range != WHOLE_RING:
        # One stack for many routes: it may have no rows where another has some, if it was sent the whole range.
        return staged.covers(stack, route.range)
    return bool(staged.runs_of(stack)) or not any(staged.runs_of(other) for other in route.stacks)
