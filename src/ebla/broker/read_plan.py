"""Which nodes a job reads a table from: pieces of the ring, whose copies they are, and who is asked first. Pure.

A piece is a tablet, or neighbouring ranges of vnodes that the same hosts have. Of each piece the level wants some
number of copies, counted as for any read. Which of them come first is chosen so that no node has much more to read out
than another.
"""

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, required_replies
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, TableId
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.pipeline.job_plans import format_range, merge_ranges, replica_ranges
from ebla.request.write_plan import table_replicas
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.wire.table_calls import ReadRange, StackSizeEstimate

LEAST_BYTES = 64 << 10
"""What a piece counts for at least when reads are spread: a task costs something even where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadSpec:
    """What a job wants to read, and how sure it wants to be."""

    table: TableId
    level: ConsistencyLevel
    datacenter: str
    """Of the node that plans: levels that say local mean this one."""
    ranges: tuple[TokenRange, ...] = ()
    """None: the whole ring. Kept in order and without overlap: a job may name thousands of partitions, and each piece
    is compared with them several times, by the loop that serves requests."""

    def __post_init__(self) -> None:
        parts = [part for one in self.ranges for part in one.unwrapped()]
        object.__setattr__(self, "ranges", merge_ranges(parts, len(parts)))


@dataclass(frozen=True, slots=True)
class RangeCopies:
    """A piece and the hosts that serve reads of it, whoever of them is up."""

    range: TokenRange
    hosts: tuple[HostId, ...]
    needed: tuple[RequiredReplies, ...]


@dataclass(frozen=True, slots=True)
class OpenedReadSource:
    """What a node has given for a read: its place in the plan, and what it holds."""

    place: int
    stacks: tuple[StackSizeEstimate, ...]


@dataclass(frozen=True, slots=True)
class RangeSize:
    size_bytes: int = 0
    rows: int = 0


def range_copies(view: View, asked: TableReadSpec) -> list[RangeCopies]:
    """In ring order from the bottom, over the whole ring. Raises `NotFound`, or `Unavailable` for a table that is still
    being created."""
    replicas = table_replicas(view, asked.table)
    may_join = asked.table not in view.snapshot.tablets
    found: list[RangeCopies] = []
    for piece in replica_ranges(view.sets, asked.table, WHOLE_RING):
        reading = replicas.reading(int(piece.range.end))
        hosts = tuple(dict.fromkeys(replica.host for replica in sorted(reading)))
        needed = required_replies(asked.level, replicas.counts(reading), asked.datacenter)
        before = found[-1] if found else None
        if may_join and before is not None and (before.hosts, before.needed) == (hosts, needed):
            found[-1] = RangeCopies(TokenRange(before.range.start, piece.range.end), hosts, needed)
        else:
            found.append(RangeCopies(piece.range, hosts, needed))
    return found


def unreachable_hosts(snapshot: Snapshot, down: Collection[HostId]) -> frozenset[HostId]:
    """Who is not there to be asked."""
    left = (host for host, node in snapshot.nodes.items() if node.state is NodeState.LEFT)
    return frozenset((*left, *down))


def hosts_to_read(
    copies: Sequence[RangeCopies], asked: TableReadSpec, datacenters: Mapping[HostId, str]
) -> tuple[HostId, ...]:
    """Everyone who has a copy that counts for the level, by id."""
    found: dict[HostId, None] = {}
    for piece in copies:
        if any(True for _ in _within(piece.range, asked.ranges)):
            for host in _counting(piece, piece.hosts, datacenters):
                found[host] = None
    return tuple(sorted(found))


def replica_shortage(
    copies: Sequence[RangeCopies], asked: TableReadSpec, there: Collection[HostId], datacenters: Mapping[HostId, str]
) -> TooFewReplicas | None:
    """Why those that are there do not do; None: they do."""
    for piece in copies:
        if not any(True for _ in _within(piece.range, asked.ranges)):
            continue
        hosts = [host for host in piece.hosts if host in there]
        for each in piece.needed:
            have = sum(1 for host in hosts if each.datacenter in (None, datacenters[host]))
            if have < max(1, each.count):
                return _too_few(piece, asked.level, each, have)
    return None


def _too_few(piece: RangeCopies, level: ConsistencyLevel, needed: RequiredReplies, have: int) -> TooFewReplicas:
    where = "" if needed.datacenter is None else f" in {needed.datacenter}"
    return TooFewReplicas(
        f"{level.name} needs {max(1, needed.count)} replicas{where} of the tokens {format_range(piece.range)}, and "
        f"{have} can be read from",
        advice="bring nodes back, or read at a lower consistency level",
        required=max(1, needed.count),
        alive=have,
    )


# ---- the plan


@dataclass(slots=True)
class HostLoads:
    """Bytes that each host is the first choice for, so far."""

    datacenters: Mapping[HostId, str]
    datacenter: str
    _of: dict[HostId, int] = field(default_factory=dict)

    def order(self, hosts: Iterable[HostId]) -> list[HostId]:
        """Near ones first, and of those the one that has the least to do."""
        return sorted(hosts, key=lambda host: (self.datacenters[host] != self.datacenter, self._of.get(host, 0), host))

    def add(self, hosts: Iterable[HostId], size_bytes: int) -> None:
        for host in hosts:
            self._of[host] = self._of.get(host, 0) + max(LEAST_BYTES, size_bytes)


def plan_read_ranges(
    copies: Sequence[RangeCopies],
    asked: TableReadSpec,
    given: Mapping[HostId, OpenedReadSource],
    datacenters: Mapping[HostId, str],
) -> tuple[ReadRange, ...]:
    """Those that were asked for, cut to what was asked for. Raises `TooFewReplicas`."""
    failure = replica_shortage(copies, asked, given, datacenters)
    if failure is not None:
        raise failure
    loads = HostLoads(datacenters, asked.datacenter)
    found: list[ReadRange] = []
    for piece, size in zip(copies, estimate_sizes(copies, given)):
        for part in _within(piece.range, asked.ranges):
            share = part.width / piece.range.width
            cut = RangeSize(round(size.size_bytes * share), round(size.rows * share))
            found.append(_read_piece(RangeCopies(part, piece.hosts, piece.needed), cut, given, loads))
    return tuple(found)


def _read_piece(
    piece: RangeCopies, size: RangeSize, given: Mapping[HostId, OpenedReadSource], loads: HostLoads
) -> ReadRange:
    there = [host for host in piece.hosts if host in given]
    groups: list[tuple[list[HostId], int]] = []
    for each in piece.needed:
        members = [host for host in there if each.datacenter in (None, loads.datacenters[host])]
        if members:
            groups.append((loads.order(members), max(1, each.count)))
    first = [host for members, count in groups for host in members[:count]]
    others = [host for members, count in groups for host in members[count:]]
    loads.add(first, size.size_bytes)
    places = tuple(given[host].place for host in (*first, *others))
    by_group = tuple((tuple(given[host].place for host in members), count) for members, count in groups)
    return ReadRange(
        range=piece.range,
        sources=places,
        needed=len(first),
        size_bytes=size.size_bytes,
        rows=size.rows,
        groups=by_group if len(piece.needed) > 1 else (),
    )


def _counting(piece: RangeCopies, hosts: Iterable[HostId], datacenters: Mapping[HostId, str]) -> Iterator[HostId]:
    for host in hosts:
        if any(each.datacenter in (None, datacenters[host]) for each in piece.needed):
            yield host


def _within(piece: TokenRange, ranges: tuple[TokenRange, ...]) -> Iterator[TokenRange]:
    """What of a piece, which does not go over the top, is in one of the ranges; lowest first, nothing twice."""
    if not ranges:
        yield piece
        return
    for place in range(bisect.bisect_right(ranges, piece.start, key=_end_of), len(ranges)):
        one = ranges[place]
        if one.start >= piece.end:
            return
        yield TokenRange(max(piece.start, one.start), min(piece.end, one.end))


def _end_of(one: TokenRange) -> Token:
    return one.end


# ---- sizes


def estimate_sizes(copies: Sequence[RangeCopies], given: Mapping[HostId, OpenedReadSource]) -> list[RangeSize]:
    """Of each piece, the most that any of its hosts tells of. A stack that spans several pieces of its host counts for
    each by its share of their tokens."""
    sizes = [RangeSize() for _ in copies]
    place_of = {piece.range: place for place, piece in enumerate(copies)}
    ends = [int(piece.range.end) for piece in copies]
    for host in sorted(given):
        own: dict[int, RangeSize] = {}
        for stack in given[host].stacks:
            exact = place_of.get(stack.range)
            shares = [(exact, 1)] if exact is not None else _shares(copies, ends, host, stack.range)
            whole = sum(share for _, share in shares)
            for place, share in shares:
                before = own.get(place, RangeSize())
                own[place] = RangeSize(
                    before.size_bytes + stack.size_bytes * share // whole, before.rows + stack.rows * share // whole
                )
        for place, size in own.items():
            known = sizes[place]
            sizes[place] = RangeSize(max(known.size_bytes, size.size_bytes), max(known.rows, size.rows))
    return sizes


def _shares(
    copies: Sequence[RangeCopies], ends: Sequence[int], host: HostId, stack: TokenRange
) -> list[tuple[int, int]]:
    """The host's pieces that a stack has a part of, each with how many tokens of it."""
    found: list[tuple[int, int]] = []
    for part in stack.unwrapped():
        for place in range(bisect.bisect_right(ends, int(part.start)), len(copies)):
            piece = copies[place].range
            if piece.start >= part.end:
                break
            if host in copies[place].hosts:
                found.append((place, min(int(piece.end), int(part.end)) - max(int(piece.start), int(part.start))))
    return found
