"""Where the rows of a job go at one version of the topology, and what must come back for its level. Pure.

A *place* is one stack on one shard for which rows are staged: of a table on tablets one for each replica of each
tablet, of a table on vnodes one for each shard of each node, with the whole ring. A *route* is a range whose rows go to
the same places. Each host of a route has a *copy* there, in one place; where a tablet moves inside a node, in two, and
both must have it. Copies are counted as those of any write: INV-BULKW-1.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.model.consistency import ConsistencyLevel, Needed, answers_needed
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, Replica, SessionId, TableId, TransferId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import Target
from ebla.pipeline.plan_jobs import joined, range_words, stretches_of
from ebla.request.write_acks import AckRule, Acks, ack_rule
from ebla.request.write_plan import table_replicas
from ebla.topology.replica_sets import WriteReplicas, count_by_datacenter
from ebla.topology.sharder import sharder_for
from ebla.topology.snapshot import Snapshot
from ebla.wire.table_access import BroughtRanges, StagedRun, WriteRoute
from ebla.wire.topology_view import View


@dataclass(frozen=True, slots=True, order=True)
class Place:
    replica: Replica
    range: TokenRange


@dataclass(frozen=True, slots=True)
class Copy:
    host: HostId
    places: tuple[Place, ...]
    """All of them must have the rows."""


@dataclass(frozen=True, slots=True)
class Route:
    range: TokenRange
    copies: tuple[Copy, ...]
    """Natural ones first."""
    needed: tuple[Needed, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    table: TableId
    level: ConsistencyLevel
    datacenter: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The routes of a table, without gap or overlap, in ring order from the bottom."""

    routes: tuple[Route, ...]
    datacenters: Mapping[HostId, str]
    by_range: Mapping[TokenRange, Route]

    def places(self) -> tuple[Place, ...]:
        found = dict.fromkeys(place for route in self.routes for copy in route.copies for place in copy.places)
        return tuple(sorted(found))


def layout_of(view: View, wanted: Wanted) -> Layout:
    """Raises `NotFound`, or `Unavailable` for a table that is still being created."""
    replicas = table_replicas(view, wanted.table)
    snapshot = view.snapshot
    on_tablets = wanted.table in snapshot.tablets
    datacenters = {host: node.datacenter for host, node in snapshot.nodes.items()}
    routes: list[Route] = []
    for part in stretches_of(snapshot, wanted.table, WHOLE_RING):
        writing = replicas.writing(int(part.end))
        pending = count_by_datacenter(writing.pending, datacenters)
        needed = answers_needed(wanted.level, replicas.counts(writing.natural), wanted.datacenter, pending)
        copies = tuple(_copies(snapshot, wanted.table, writing, part if on_tablets else WHOLE_RING, int(part.end)))
        before = routes[-1] if routes else None
        if not on_tablets and before is not None and (before.copies, before.needed) == (copies, needed):
            routes[-1] = Route(TokenRange(before.range.start, part.end), copies, needed)
        else:
            routes.append(Route(part, copies, needed))
    return Layout(tuple(routes), datacenters, {route.range: route for route in routes})


def _copies(
    snapshot: Snapshot, table: TableId, writing: WriteReplicas, stack: TokenRange, token: int
) -> Iterator[Copy]:
    for replica in (*sorted(writing.natural), *sorted(writing.pending)):
        # A router sends to one shard of a host, which passes on what a move inside the node needs in two. What is
        # adopted is not passed on: both are asked.
        shards = sharder_for(snapshot, table, replica.host).shards_for_writes(token)
        yield Copy(replica.host, tuple(Place(Replica(replica.host, shard), stack) for shard in sorted(shards)))


# ---- who has it, and whether that is enough


def acks_of(route: Route, datacenters: Mapping[HostId, str], has: Callable[[Place], bool]) -> Acks:
    """The level counted of all copies; those whose places all have it have acknowledged."""
    acks = Acks(_rule(route, datacenters))
    for position, copy in enumerate(route.copies):
        if all(has(place) for place in copy.places):
            acks.acknowledge(position)
    return acks


def _rule(route: Route, datacenters: Mapping[HostId, str]) -> AckRule:
    counts_for = tuple(
        tuple(number for number, each in enumerate(route.needed) if each.datacenter in (None, datacenters[copy.host]))
        for copy in route.copies
    )
    return ack_rule([each.count for each in route.needed], counts_for)


def unmet(layout: Layout, routes: Sequence[Route], has: Callable[[Place], bool]) -> Route | None:
    """The first route whose level these do not bring. A write that nobody has is none, whatever the level says."""
    for route in routes:
        acks = acks_of(route, layout.datacenters, has)
        if not acks.is_met or not any(all(has(place) for place in copy.places) for copy in route.copies):
            return route
    return None


def too_few(layout: Layout, route: Route, level: ConsistencyLevel, has: Callable[[Place], bool]) -> TooFewReplicas:
    acks = acks_of(route, layout.datacenters, has)
    return TooFewReplicas(
        f"{level.name} needs {acks.required} replicas of the tokens {range_words(route.range)}, and {acks.received} "
        "can be written to",
        advice="bring nodes back, or write at a lower consistency level",
        required=acks.required,
        alive=acks.received,
    )


# ---- what the source is told


def transfer_of(session: SessionId, place: Place, number: int = 0) -> TransferId:
    """The same wherever it is asked for, so that a call that is made again finds the places of the first. A further
    `number` is for a stack that has begun another life since."""
    name = f"{place.replica.host}/{place.replica.shard}/{place.range.start}/{place.range.end}/{number}"
    return TransferId(uuid.uuid5(session, name))


def write_routes(layout: Layout, places: Mapping[Place, int]) -> tuple[WriteRoute, ...]:
    """`places`: those that are open, by their number in the plan."""
    return tuple(
        WriteRoute(
            route.range,
            tuple(places[place] for copy in route.copies for place in copy.places if place in places),
        )
        for route in layout.routes
    )


@dataclass(frozen=True, slots=True)
class Staged:
    """What a job says it has staged, by where."""

    targets: Mapping[Place, Target]
    """The latest of each place."""
    numbers: Mapping[Place, int]
    """How many there have been."""
    runs: Mapping[TransferId, tuple[StagedRun, ...]]
    ranges: Mapping[TransferId, tuple[TokenRange, ...]]
    """What each has all rows of; of one that is not named, all that it is for."""

    def runs_at(self, place: Place) -> tuple[StagedRun, ...]:
        target = self.targets.get(place)
        return () if target is None else self.runs.get(target.transfer, ())

    def covers(self, place: Place, asked: TokenRange) -> bool:
        known = self.ranges.get(self.targets[place].transfer)
        return known is None or all(any(one.covers(piece) for one in known) for piece in asked.unwrapped())


def staged_of(targets: Sequence[Target], runs: Sequence[StagedRun], brought: Sequence[BroughtRanges] = ()) -> Staged:
    by_place: dict[Place, Target] = {}
    numbers: dict[Place, int] = {}
    seen: dict[TransferId, None] = {}
    for target in targets:
        if target.transfer in seen:
            continue
        seen[target.transfer] = None
        place = Place(Replica(target.host, target.shard), target.range)
        by_place[place] = target
        numbers[place] = numbers.get(place, 0) + 1
    by_transfer: dict[TransferId, dict[bytes, StagedRun]] = {}
    for run in runs:
        by_transfer.setdefault(run.transfer, {})[run.attempt.bytes] = run
    ranges = {}
    for each in brought:
        pieces = [piece for one in each.ranges for piece in one.unwrapped()]
        ranges[each.transfer] = joined(pieces, len(pieces))
    return Staged(by_place, numbers, {transfer: tuple(of.values()) for transfer, of in by_transfer.items()}, ranges)


def routes_with_rows(layout: Layout, staged: Staged) -> tuple[Route, ...]:
    """Those that the job may have rows for. A tablet that was cut since has them from the whole one."""
    filled = [target.range for target in staged.targets.values() if staged.runs.get(target.transfer)]
    known = frozenset(filled)
    return tuple(
        route
        for route in layout.routes
        if any(place.range in known for copy in route.copies for place in copy.places)
        or any(route.range.overlaps(one) for one in known)
    )


def is_whole(route: Route, place: Place, staged: Staged) -> bool:
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
