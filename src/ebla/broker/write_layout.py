"""Where the rows of a job go at one version of the topology, and what must come back for its level. Pure.

A *place* is one stack on one shard for which rows are staged: of a table on tablets one for each replica of each
tablet, of a table on vnodes one for each shard of each node, with the whole ring. A *route* is a range whose rows go to
the same places. Each host of a route has a *copy* there, in one place; where a tablet moves inside a node, in two, and
both must have it. Copies are counted as those of any write: INV-BULKW-1.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, required_replies
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, Replica, SessionId, TableId, TransferId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import TransferTarget
from ebla.pipeline.job_plans import cut_at_replica_borders, format_range, merge_ranges
from ebla.request.write_acks import AckCounter, AckRule, make_ack_rule
from ebla.request.write_plan import table_replicas
from ebla.topology.routing.replica_sets import WriteReplicas, count_by_datacenter
from ebla.topology.routing.sharder import sharder_for
from ebla.topology.snapshot import Snapshot
from ebla.wire.table_calls import StagedRanges, StagedRun, StagingRoute


@dataclass(frozen=True, slots=True, order=True)
class ReplicaStack:
    replica: Replica
    range: TokenRange


@dataclass(frozen=True, slots=True)
class HostCopy:
    host: HostId
    places: tuple[ReplicaStack, ...]
    """All of them must have the rows."""


@dataclass(frozen=True, slots=True)
class WriteRoute:
    range: TokenRange
    copies: tuple[HostCopy, ...]
    """Natural ones first."""
    needed: tuple[RequiredReplies, ...]


@dataclass(frozen=True, slots=True)
class TableWriteSpec:
    table: TableId
    level: ConsistencyLevel
    datacenter: str


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """The routes of a table, without gap or overlap, in ring order from the bottom."""

    routes: tuple[WriteRoute, ...]
    datacenters: Mapping[HostId, str]
    by_range: Mapping[TokenRange, WriteRoute]

    def places(self) -> tuple[ReplicaStack, ...]:
        found = dict.fromkeys(place for route in self.routes for copy in route.copies for place in copy.places)
        return tuple(sorted(found))


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
        # A router sends to one shard of a host, which passes on what a move inside the node needs in two. What is
        # adopted is not passed on: both are asked.
        shards = sharder_for(snapshot, table, replica.host).shards_for_writes(token)
        yield HostCopy(
            replica.host, tuple(ReplicaStack(Replica(replica.host, shard), stack) for shard in sorted(shards))
        )


# ---- who has it, and whether that is enough


def count_acks(route: WriteRoute, datacenters: Mapping[HostId, str], has: Callable[[ReplicaStack], bool]) -> AckCounter:
    """The level counted of all copies; those whose places all have it have acknowledged."""
    acks = AckCounter(_rule(route, datacenters))
    for position, copy in enumerate(route.copies):
        if all(has(place) for place in copy.places):
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
    """The first route whose level these do not bring. A write that nobody has is none, whatever the level says."""
    for route in routes:
        acks = count_acks(route, layout.datacenters, has)
        if not acks.is_met or not any(all(has(place) for place in copy.places) for copy in route.copies):
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


# ---- what the source is told


def transfer_id_of(session: SessionId, place: ReplicaStack, number: int = 0) -> TransferId:
    """The same wherever it is asked for, so that a call that is made again finds the places of the first. A further
    `number` is for a stack that has begun another life since."""
    name = f"{place.replica.host}/{place.replica.shard}/{place.range.start}/{place.range.end}/{number}"
    return TransferId(uuid.uuid5(session, name))


def staging_routes(layout: WriteLayout, places: Mapping[ReplicaStack, int]) -> tuple[StagingRoute, ...]:
    """`places`: those that are open, by their number in the plan."""
    return tuple(
        StagingRoute(
            route.range,
            tuple(places[place] for copy in route.copies for place in copy.places if place in places),
        )
        for route in layout.routes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRuns:
    """What a job says it has staged, by where."""

    targets: Mapping[ReplicaStack, TransferTarget]
    """The latest of each place."""
    numbers: Mapping[ReplicaStack, int]
    """How many there have been."""
    runs: Mapping[TransferId, tuple[StagedRun, ...]]
    ranges: Mapping[TransferId, tuple[TokenRange, ...]]
    """What each has all rows of; of one that is not named, all that it is for."""

    def runs_at(self, place: ReplicaStack) -> tuple[StagedRun, ...]:
        target = self.targets.get(place)
        return () if target is None else self.runs.get(target.transfer, ())

    def covers(self, place: ReplicaStack, asked: TokenRange) -> bool:
        known = self.ranges.get(self.targets[place].transfer)
        return known is None or all(any(one.covers(piece) for one in known) for piece in asked.unwrapped())


def collect_staged(
    targets: Sequence[TransferTarget], runs: Sequence[StagedRun], brought: Sequence[StagedRanges] = ()
) -> StagedRuns:
    by_place: dict[ReplicaStack, TransferTarget] = {}
    numbers: dict[ReplicaStack, int] = {}
    seen: dict[TransferId, None] = {}
    for target in targets:
        if target.transfer in seen:
            continue
        seen[target.transfer] = None
        place = ReplicaStack(Replica(target.host, target.shard), target.range)
        by_place[place] = target
        numbers[place] = numbers.get(place, 0) + 1
    by_transfer: dict[TransferId, dict[bytes, StagedRun]] = {}
    for run in runs:
        by_transfer.setdefault(run.transfer, {})[run.attempt.bytes] = run
    ranges = {}
    for each in brought:
        pieces = [piece for one in each.ranges for piece in one.unwrapped()]
        ranges[each.transfer] = merge_ranges(pieces, len(pieces))
    return StagedRuns(
        targets=by_place,
        numbers=numbers,
        runs={transfer: tuple(of.values()) for transfer, of in by_transfer.items()},
        ranges=ranges,
    )


def routes_with_rows(layout: WriteLayout, staged: StagedRuns) -> tuple[WriteRoute, ...]:
    """Those that the job may have rows for. A tablet that was cut since has them from the whole one."""
    filled = [target.range for target in staged.targets.values() if staged.runs.get(target.transfer)]
    known = frozenset(filled)
    return tuple(
        route
        for route in layout.routes
        if any(place.range in known for copy in route.copies for place in copy.places)
        or any(route.range.overlaps(one) for one in known)
    )


def has_all_rows(route: WriteRoute, place: ReplicaStack, staged: StagedRuns) -> bool:
    """Whether a place has been brought what its siblings have. All replicas of a tablet get the same rows: one for
    which nothing is named, while there is something for another, must not count as a copy. How much it is says nothing:
    what is copied to a replica that came later is merged already."""
    if place not in staged.targets:
        return False
    if place.range == WHOLE_RING and route.range != WHOLE_RING:
        # One place for many routes: it may well have nothing where another has, if it was brought what there is.
        return staged.covers(place, route.range)
    siblings = (staged.runs_at(other) for copy in route.copies for other in copy.places)
    return bool(staged.runs_at(place)) or not any(siblings)
