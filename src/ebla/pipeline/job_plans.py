"""What a job does under one version of the topology: ranges, sources, targets and their shards. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from ebla.model.errors import InvalidRequest, NotFound, Unavailable
from ebla.model.identity import HostId, Replica, TableId
from ebla.model.records.jobs import CompareReplicas, CopyTablets, JobSpec, StreamRange
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.tablet_map import TabletMap
from ebla.transfers.token_ranges import ReplicaRange, format_range, replica_ranges
from ebla.transfers.transfer_run import RowCopy, TabletCopy

_SEE_TABLETS = "see `ebla tablets`"


@dataclass(frozen=True, slots=True)
class FileCopyPlan:
    copies: tuple[TabletCopy, ...]
    """All from one host to one host."""
    use_links: bool


@dataclass(frozen=True, slots=True)
class RowStreamPlan:
    copies: tuple[RowCopy, ...]


@dataclass(frozen=True, slots=True)
class ComparePlan:
    ranges: tuple[ReplicaRange, ...]
    heal: bool


JobPlan = FileCopyPlan | RowStreamPlan | ComparePlan


def plan_job(sets: ReplicaSets, spec: JobSpec, down: Collection[HostId]) -> JobPlan:
    """Raises `InvalidRequest` if the job makes no sense, and `Unavailable` if a node that it needs is down."""
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
    copies = tuple(_copy_of(snapshot, spec, name, number) for number in numbers)
    return FileCopyPlan(copies, spec.short_cut)


def _copy_of(snapshot: Snapshot, spec: CopyTablets, name: str, number: int) -> TabletCopy:
    tablets = snapshot.tablets[spec.table]
    tablet = f"tablet {number} of {name}"
    source = _on(spec.source, tablets.replicas(number))
    target = _on(spec.target, tablets.all_replicas(number))
    if source is None:
        raise InvalidRequest(
            f"node {_node_name(snapshot, spec.source)} holds no replica of {tablet}", advice=_SEE_TABLETS
        )
    if target is None:
        raise InvalidRequest(f"node {_node_name(snapshot, spec.target)} is no replica of {tablet}", advice=_SEE_TABLETS)
    return TabletCopy(_tablet_range(tablets, number), source, target)


def _stream(sets: ReplicaSets, spec: StreamRange, down: Collection[HostId]) -> RowStreamPlan:
    snapshot = sets.snapshot
    name = _table_name(snapshot, spec.table)
    if not spec.sources:
        raise InvalidRequest(f"no source to stream {name} from is named")
    if spec.target in spec.sources:
        raise InvalidRequest(f"node {_node_name(snapshot, spec.target)} cannot stream to itself")
    _check_up(snapshot, (*spec.sources, spec.target), down)
    sources = tuple(dict.fromkeys(spec.sources))
    copies: list[RowCopy] = []
    for part in replica_ranges(sets, spec.table, spec.range):
        for host in spec.sources:
            if _on(host, part.replicas) is None:
                raise InvalidRequest(
                    f"node {_node_name(snapshot, host)} holds no replica of {name} in {format_range(part.range)}"
                )
        target = part.replica_on(spec.target)
        if target is None:
            raise InvalidRequest(
                f"node {_node_name(snapshot, spec.target)} is no replica of {name} in {format_range(part.range)}"
            )
        copies.append(RowCopy(table=spec.table, range=part.range, sources=sources, targets=(target,)))
    return RowStreamPlan(tuple(copies))


def _compare(sets: ReplicaSets, spec: CompareReplicas, down: Collection[HostId]) -> ComparePlan:
    ranges = tuple(replica_ranges(sets, spec.table, spec.range or WHOLE_RING))
    hosts = sorted({host for part in ranges for host in part.hosts})
    _check_up(sets.snapshot, hosts, down)
    return ComparePlan(ranges, spec.heal)


def _tablet_range(tablets: TabletMap, number: int) -> TokenRange:
    return TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))


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
