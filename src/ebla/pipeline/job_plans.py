"""From a version of the topology and a wish to what is moved: ranges, sources, targets and their shards. Pure.

A transfer goes into one stack. A tablet is one on each of its replicas; of a table on vnodes each shard has one, with
whatever part of the ring falls to it. So ranges are cut where replicas or their shards change.
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import assert_never

from ebla.model.errors import InvalidRequest, NotFound, Unavailable
from ebla.model.identity import HostId, Replica, TableId
from ebla.model.records.jobs import CompareReplicas, CopyTablets, JobSpec, StreamRange
from ebla.model.token import WHOLE_RING, Token, TokenRange, advance
from ebla.topology.routing.replica_sets import ReplicaSets, WriteReplicas
from ebla.topology.routing.static_sharding import last_token_of_shard
from ebla.topology.routing.vnode_ring import next_ring, previous_ring
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.tablet_map import TabletMap


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    """A range, over no top of the ring, that lies in one stack on each of these replicas."""

    range: TokenRange
    replicas: tuple[Replica, ...]
    """That serve reads, and so are to be equal."""
    pending: tuple[Replica, ...] = ()

    def replica_on(self, host: HostId) -> Replica | None:
        return next((replica for replica in (*self.replicas, *self.pending) if replica.host == host), None)


@dataclass(frozen=True, slots=True)
class TabletCopy:
    range: TokenRange
    source: Replica
    target: Replica


@dataclass(frozen=True, slots=True)
class FileCopyPlan:
    table: TableId
    copies: tuple[TabletCopy, ...]
    """From one host, to one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStreamPlan:
    table: TableId
    sources: tuple[HostId, ...]
    target: HostId
    pieces: tuple[ReplicaRange, ...]


@dataclass(frozen=True, slots=True)
class ComparePlan:
    table: TableId
    heal: bool
    pieces: tuple[ReplicaRange, ...]


JobPlan = FileCopyPlan | RowStreamPlan | ComparePlan


def plan_job(sets: ReplicaSets, spec: JobSpec, down: Collection[HostId]) -> JobPlan:
    """Raises `InvalidRequest` where it makes no sense as it stands, `Unavailable` where a node it needs is down."""
    match spec:
        case CopyTablets():
            return _copy(sets.snapshot, spec, down)
        case StreamRange():
            return _stream(sets, spec, down)
        case CompareReplicas():
            return _compare(sets, spec, down)
        case _:
            assert_never(spec)


def _copy(snapshot: Snapshot, spec: CopyTablets, down: Collection[HostId]) -> FileCopyPlan:
    name = _table_name(snapshot, spec.table)
    tablets = snapshot.tablets.get(spec.table)
    if tablets is None:
        raise InvalidRequest(f"{name} is on vnodes and has no tablets", advice="compare it with --heal instead")
    if not spec.tablets:
        raise InvalidRequest(f"no tablet of {name} is named", advice=_SEE_TABLETS)
    unknown = next((number for number in spec.tablets if not 0 <= number < tablets.tablet_count), None)
    if unknown is not None:
        raise InvalidRequest(f"{name} has no tablet {unknown}; its tablets are 0 to {tablets.tablet_count - 1}")
    if spec.source == spec.target:
        raise InvalidRequest(
            f"node {_node_name(snapshot, spec.source)} cannot copy to itself", advice="name another replica with --to"
        )
    _check_up(snapshot, (spec.source, spec.target), down)
    numbers = sorted(set(spec.tablets))
    return FileCopyPlan(spec.table, tuple(_copy_of(snapshot, spec, name, number) for number in numbers))


def _copy_of(snapshot: Snapshot, spec: CopyTablets, name: str, number: int) -> TabletCopy:
    tablets = snapshot.tablets[spec.table]
    what = f"tablet {number} of {name}"
    source = _on(spec.source, tablets.replicas(number))
    target = _on(spec.target, tablets.all_replicas(number))
    if source is None:
        raise InvalidRequest(
            f"node {_node_name(snapshot, spec.source)} holds no replica of {what}", advice=_SEE_TABLETS
        )
    if target is None:
        raise InvalidRequest(f"node {_node_name(snapshot, spec.target)} is no replica of {what}", advice=_SEE_TABLETS)
    return TabletCopy(_tablet_range(tablets, number), source, target)


_SEE_TABLETS = "see `ebla tablets`"


def _stream(sets: ReplicaSets, spec: StreamRange, down: Collection[HostId]) -> RowStreamPlan:
    snapshot = sets.snapshot
    name = _table_name(snapshot, spec.table)
    if not spec.sources:
        raise InvalidRequest(f"nobody is named to stream {name} from")
    if spec.target in spec.sources:
        raise InvalidRequest(f"node {_node_name(snapshot, spec.target)} cannot stream to itself")
    _check_up(snapshot, (*spec.sources, spec.target), down)
    pieces = tuple(replica_ranges(sets, spec.table, spec.range))
    for piece in pieces:
        for host in spec.sources:
            if _on(host, piece.replicas) is None:
                raise InvalidRequest(
                    f"node {_node_name(snapshot, host)} holds no replica of {name} in {format_range(piece.range)}"
                )
        if piece.replica_on(spec.target) is None:
            raise InvalidRequest(
                f"node {_node_name(snapshot, spec.target)} is no replica of {name} in {format_range(piece.range)}"
            )
    return RowStreamPlan(
        table=spec.table, sources=tuple(dict.fromkeys(spec.sources)), target=spec.target, pieces=pieces
    )


def _compare(sets: ReplicaSets, spec: CompareReplicas, down: Collection[HostId]) -> ComparePlan:
    snapshot = sets.snapshot
    _table_name(snapshot, spec.table)
    pieces = tuple(replica_ranges(sets, spec.table, spec.range or WHOLE_RING))
    hosts = sorted({replica.host for piece in pieces for replica in piece.replicas})
    _check_up(snapshot, hosts, down)
    return ComparePlan(spec.table, spec.heal, pieces)


# ---- ranges


def replica_ranges(sets: ReplicaSets, table: TableId, wanted: TokenRange) -> Iterator[ReplicaRange]:
    """In ring order from the bottom, as few as there can be. Raises `NotFound`: a table may be dropped under a job."""
    _table_name(sets.snapshot, table)
    replicas = sets.of(table)

    def piece(part: TokenRange) -> ReplicaRange:
        token = int(part.end)
        writing: WriteReplicas = replicas.writing(token)
        reading = replicas.reading(token)
        pending = (each for each in (*writing.natural, *writing.pending) if each not in reading)
        return ReplicaRange(part, tuple(sorted(reading)), tuple(sorted(pending)))

    # Of a table on tablets each is a stack of its own, also where neighbours have the same replicas.
    may_join = sets.snapshot.tablets.get(table) is None
    for whole in wanted.unwrapped():
        kept: ReplicaRange | None = None
        for part in cut_at_replica_borders(sets.snapshot, table, whole):
            found = piece(part)
            if kept is None:
                kept = found
            elif may_join and (kept.replicas, kept.pending) == (found.replicas, found.pending):
                kept = ReplicaRange(TokenRange(kept.range.start, part.end), kept.replicas, kept.pending)
            else:
                yield kept
                kept = found
        if kept is not None:
            yield kept


def cut_at_replica_borders(snapshot: Snapshot, table: TableId, whole: TokenRange) -> Iterator[TokenRange]:
    """A range, over no top, cut wherever replicas or their shards may change; in order."""
    return _cut(whole, _borders(snapshot, table))


def _borders(snapshot: Snapshot, table: TableId) -> tuple[int, ...]:
    """The last tokens of everything within which replicas and their shards stay the same, in order."""
    tablets = snapshot.tablets.get(table)
    if tablets is not None:
        return tuple(tablets.last_token(number) for number in range(tablets.tablet_count))
    tokens = {*previous_ring(snapshot).tokens, *next_ring(snapshot).tokens}
    rules = {(node.shard_count, node.ignore_msb) for node in snapshot.members()}
    for shard_count, ignore_msb in sorted(rules):
        tokens.update(_shard_borders(shard_count, ignore_msb))
    return tuple(sorted(tokens))


def _shard_borders(shard_count: int, ignore_msb: int) -> Iterator[int]:
    token = WHOLE_RING.start
    while True:
        last = last_token_of_shard(token, shard_count, ignore_msb)
        yield last
        if last >= WHOLE_RING.end:
            return
        token = advance(last, 1)


def _cut(whole: TokenRange, borders: tuple[int, ...]) -> Iterator[TokenRange]:
    within = (border for border in borders if whole.start < border < whole.end)
    for start, end in itertools.pairwise((whole.start, *within, whole.end)):
        yield TokenRange(Token(start), Token(end))


def _tablet_range(tablets: TabletMap, number: int) -> TokenRange:
    return TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))


def merge_ranges(ranges: Collection[TokenRange], count_max: int) -> tuple[TokenRange, ...]:
    """Neighbours put together; more than so many give one range over all of them. None of them goes over the top."""
    found: list[TokenRange] = []
    for each in sorted(ranges):
        if found and found[-1].end >= each.start:
            found[-1] = TokenRange(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found) if len(found) <= count_max else (covering_range(found),)


def covering_range(ranges: Collection[TokenRange]) -> TokenRange:
    """The least range over all of these; none of them goes over the top."""
    return TokenRange(min(each.start for each in ranges), max(each.end for each in ranges))


# ---- words


def format_range(token_range: TokenRange) -> str:
    return f"({token_range.start}, {token_range.end}]"


def _on(host: HostId, replicas: Collection[Replica]) -> Replica | None:
    return next((replica for replica in replicas if replica.host == host), None)


def _table_name(snapshot: Snapshot, table: TableId) -> str:
    found = snapshot.tables.get(table)
    if found is None:
        raise NotFound(f"there is no table {table}; it may have been dropped")
    return found.full_name


def _node_name(snapshot: Snapshot, host: HostId) -> str:
    node: Node | None = snapshot.nodes.get(host)
    return f"{node.address} ({host})" if node is not None else str(host)


def _check_up(snapshot: Snapshot, hosts: Collection[HostId], down: Collection[HostId]) -> None:
    known = {node.host for node in snapshot.members()}
    for host in hosts:
        if host not in known:
            raise InvalidRequest(f"{_node_name(snapshot, host)} is no node of this cluster", advice="see `ebla ring`")
        if host in down:
            raise Unavailable(f"node {_node_name(snapshot, host)} is down", advice="see `ebla status`")
