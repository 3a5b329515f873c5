"""Plans which nodes a job reads a table from: ranges, the hosts with copies of each, and which to read first. Pure.

A range is a tablet, or adjacent vnode ranges with the same hosts. The level needs some number of copies of each range,
counted as for any read. The order of the hosts spreads the reads evenly over the nodes.
"""

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, required_replies
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, TableId
from ebla.model.token import WHOLE_RING, Token, TokenRange, merge_ranges
from ebla.request.write_plan import table_replicas
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.transfers.token_ranges import format_range, replica_ranges
from ebla.wire.table_calls import ReadRange, StackSizeEstimate

LEAST_BYTES = 64 << 10
"""The least that a range counts when reads are spread: a task has a cost even without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadSpec:
    """What a job reads, and at which level."""

    table: TableId
    level: ConsistencyLevel
    datacenter: str
    """Of the node that plans: local levels mean this datacenter."""
    ranges: tuple[TokenRange, ...] = ()
    """Empty: the whole ring. Kept sorted and without overlap: a job may name thousands of partitions, and each range of
    the table is compared with them several times, on the loop that serves requests."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", merge_ranges(self.ranges))


@dataclass(frozen=True, slots=True)
class RangeCopies:
    """A range and the hosts that serve reads of it, up or down."""

    range: TokenRange
    hosts: tuple[HostId, ...]
    needed: tuple[RequiredReplies, ...]


@dataclass(frozen=True, slots=True)
class OpenedReadSource:
    """A node's answer: its number among the sources of the plan, and the size of what it holds."""

    number: int
    stacks: tuple[StackSizeEstimate, ...]


@dataclass(frozen=True, slots=True)
class RangeSize:
    size_bytes: int = 0
    rows: int = 0


def range_copies(view: View, spec: TableReadSpec) -> list[RangeCopies]:
    """In ring order from the lowest token, over the whole ring. Raises `NotFound`, or `Unavailable` for a table that is
    still being created."""
    replicas = table_replicas(view, spec.table)
    may_join = spec.table not in view.snapshot.tablets
    found: list[RangeCopies] = []
    for part in replica_ranges(view.sets, spec.table, WHOLE_RING):
        reading = replicas.reading(int(part.range.end))
        hosts = tuple(dict.fromkeys(replica.host for replica in sorted(reading)))
        needed = required_replies(spec.level, replicas.counts(reading), spec.datacenter)
        before = found[-1] if found else None
        if may_join and before is not None and (before.hosts, before.needed) == (hosts, needed):
            found[-1] = RangeCopies(TokenRange(before.range.start, part.range.end), hosts, needed)
        else:
            found.append(RangeCopies(part.range, hosts, needed))
    return found


def unreachable_hosts(snapshot: Snapshot, down: Collection[HostId]) -> frozenset[HostId]:
    """Hosts that are down or have left."""
    left = (host for host, node in snapshot.nodes.items() if node.state is NodeState.LEFT)
    return frozenset((*left, *down))


def hosts_to_read(
    copies: Sequence[RangeCopies], spec: TableReadSpec, datacenters: Mapping[HostId, str]
) -> tuple[HostId, ...]:
    """All hosts with a copy that counts for the level, by id."""
    found: dict[HostId, None] = {}
    for part in copies:
        if any(True for _ in _within(part.range, spec.ranges)):
            for host in _counting(part, part.hosts, datacenters):
                found[host] = None
    return tuple(sorted(found))


def replica_shortage(
    copies: Sequence[RangeCopies], spec: TableReadSpec, available: Collection[HostId], datacenters: Mapping[HostId, str]
) -> TooFewReplicas | None:
    """The error if these hosts are not enough for the level; None if they are."""
    for part in copies:
        if not any(True for _ in _within(part.range, spec.ranges)):
            continue
        hosts = [host for host in part.hosts if host in available]
        for each in part.needed:
            have = sum(1 for host in hosts if each.datacenter in (None, datacenters[host]))
            if have < max(1, each.count):
                return _too_few(part, spec.level, each, have)
    return None


def _too_few(part: RangeCopies, level: ConsistencyLevel, needed: RequiredReplies, have: int) -> TooFewReplicas:
    where = "" if needed.datacenter is None else f" in {needed.datacenter}"
    return TooFewReplicas(
        f"{level.name} needs {max(1, needed.count)} replicas{where} of the tokens {format_range(part.range)}, and "
        f"{have} can be read from",
        advice="bring nodes back, or read at a lower consistency level",
        required=max(1, needed.count),
        alive=have,
    )


# ---- the plan


@dataclass(slots=True)
class HostLoads:
    """The bytes that each host is the first choice for, so far."""

    datacenters: Mapping[HostId, str]
    datacenter: str
    _of: dict[HostId, int] = field(default_factory=dict)

    def order(self, hosts: Iterable[HostId]) -> list[HostId]:
        """Hosts of the own datacenter first, then those with the lower load."""
        return sorted(hosts, key=lambda host: (self.datacenters[host] != self.datacenter, self._of.get(host, 0), host))

    def add(self, hosts: Iterable[HostId], size_bytes: int) -> None:
        for host in hosts:
            self._of[host] = self._of.get(host, 0) + max(LEAST_BYTES, size_bytes)


def plan_read_ranges(
    copies: Sequence[RangeCopies],
    spec: TableReadSpec,
    opened: Mapping[HostId, OpenedReadSource],
    datacenters: Mapping[HostId, str],
) -> tuple[ReadRange, ...]:
    """The ranges that the job reads, cut to what it asked for. Raises `TooFewReplicas`."""
    failure = replica_shortage(copies, spec, opened, datacenters)
    if failure is not None:
        raise failure
    loads = HostLoads(datacenters, spec.datacenter)
    found: list[ReadRange] = []
    for part, size in zip(copies, estimate_sizes(copies, opened)):
        for inside in _within(part.range, spec.ranges):
            share = inside.width / part.range.width
            cut = RangeSize(round(size.size_bytes * share), round(size.rows * share))
            found.append(_read_piece(RangeCopies(inside, part.hosts, part.needed), cut, opened, loads))
    return tuple(found)


def _read_piece(
    part: RangeCopies, size: RangeSize, opened: Mapping[HostId, OpenedReadSource], loads: HostLoads
) -> ReadRange:
    there = [host for host in part.hosts if host in opened]
    groups: list[tuple[list[HostId], int]] = []
    for each in part.needed:
        members = [host for host in there if each.datacenter in (None, loads.datacenters[host])]
        if members:
            groups.append((loads.order(members), max(1, each.count)))
    first = [host for members, count in groups for host in members[:count]]
    others = [host for members, count in groups for host in members[count:]]
    loads.add(first, size.size_bytes)
    places = tuple(opened[host].number for host in (*first, *others))
    by_group = tuple((tuple(opened[host].number for host in members), count) for members, count in groups)
    return ReadRange(
        range=part.range,
        sources=places,
        needed=len(first),
        size_bytes=size.size_bytes,
        rows=size.rows,
        groups=by_group if len(part.needed) > 1 else (),
    )


def _counting(part: RangeCopies, hosts: Iterable[HostId], datacenters: Mapping[HostId, str]) -> Iterator[HostId]:
    for host in hosts:
        if any(each.datacenter in (None, datacenters[host]) for each in part.needed):
            yield host


def _within(part: TokenRange, ranges: tuple[TokenRange, ...]) -> Iterator[TokenRange]:
    """The parts of a range that does not wrap that are in one of the others, in order."""
    if not ranges:
        yield part
        return
    for number in range(bisect.bisect_right(ranges, part.start, key=_end_of), len(ranges)):
        one = ranges[number]
        if one.start >= part.end:
            return
        yield TokenRange(max(part.start, one.start), min(part.end, one.end))


def _end_of(one: TokenRange) -> Token:
    return one.end


# ---- sizes


def estimate_sizes(copies: Sequence[RangeCopies], opened: Mapping[HostId, OpenedReadSource]) -> list[RangeSize]:
    """Of each range, the largest size that any of its hosts reports. A stack that spans several ranges of its host
    counts for each by its share of their tokens."""
    sizes = [RangeSize() for _ in copies]
    number_of = {part.range: number for number, part in enumerate(copies)}
    ends = [int(part.range.end) for part in copies]
    for host in sorted(opened):
        own: dict[int, RangeSize] = {}
        for stack in opened[host].stacks:
            exact = number_of.get(stack.range)
            shares = [(exact, 1)] if exact is not None else _shares(copies, ends, host, stack.range)
            whole = sum(share for _, share in shares)
            for number, share in shares:
                before = own.get(number, RangeSize())
                own[number] = RangeSize(
                    before.size_bytes + stack.size_bytes * share // whole, before.rows + stack.rows * share // whole
                )
        for number, size in own.items():
            known = sizes[number]
            sizes[number] = RangeSize(max(known.size_bytes, size.size_bytes), max(known.rows, size.rows))
    return sizes


def _shares(
    copies: Sequence[RangeCopies], ends: Sequence[int], host: HostId, stack: TokenRange
) -> list[tuple[int, int]]:
    """The host's ranges that overlap a stack, each with the number of tokens in the overlap."""
    found: list[tuple[int, int]] = []
    for stored in stack.unwrapped():
        for number in range(bisect.bisect_right(ends, int(stored.start)), len(copies)):
            planned = copies[number].range
            if planned.start >= stored.end:
                break
            if host in copies[number].hosts:
                end, start = min(int(planned.end), int(stored.end)), max(int(planned.start), int(stored.start))
                found.append((number, end - start))
    return found
