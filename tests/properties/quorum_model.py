"""Finds reads that can miss an acknowledged write while the views of routers and replicas move through a change.

A *path* is a sequence of commits. At every moment some views are in use: those since the last barrier. One of them
sends a write; any minimal quorum of hosts acknowledges it, and it lands on each of them at any moment while its view is
in use (a barrier waits for it). Streaming and clean-up happen at their moments. A read by any view in use after the
acknowledgement must not be able to collect its answers from hosts without the write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

Host = int
Storage = int
ViewName = str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a router or replica does at one stage. `applies` and `serves`: the replica's storages for a host."""

    write_hosts: tuple[Host, ...]
    write_needed: int
    read_hosts: tuple[Host, ...]
    read_needed: int
    applies: Mapping[Host, tuple[Storage, ...]]
    serves: Mapping[Host, Storage]
    knows: frozenset[Storage]
    """Storages this view has opened or may open."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Every destination gets what any source has."""

    sources: tuple[Storage, ...]
    destinations: tuple[Storage, ...]


@dataclass(frozen=True, slots=True)
class Erase:
    storages: tuple[Storage, ...]


Effect = Copy | Erase


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    source: ViewName
    target: ViewName
    after_barrier: bool
    effect: Effect | None = None
    """What the step before this commit did."""


@dataclass(frozen=True, slots=True)
class Moment:
    views: tuple[ViewName, ...]
    effect: Effect | None = None
    """Happens just before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    writer: ViewName
    reader: ViewName
    acknowledged_by: tuple[Host, ...]
    holders: frozenset[Storage]


def moments_of(path: Sequence[Commit]) -> list[Moment]:
    views: tuple[ViewName, ...] = (path[0].source,)
    moments = [Moment(views)]
    for commit in path:
        if commit.after_barrier:
            views = (commit.source,)
            moments.append(Moment(views))
        if commit.effect is not None:
            moments.append(Moment(views, commit.effect))
        if commit.target not in views:
            views = (*views, commit.target)
        moments.append(Moment(views))
    moments.append(Moment((path[-1].target,)))
    return moments


def lost_writes(path: Sequence[Commit], views: Mapping[ViewName, View]) -> Iterator[Lost]:
    """Every way in which an acknowledged write can be missed; nothing if the path is safe."""
    moments = moments_of(path)
    writers = dict.fromkeys(name for moment in moments for name in moment.views)
    for writer in writers:
        view = views[writer]
        if view.write_needed > len(view.write_hosts):
            continue
        for acknowledged in combinations(view.write_hosts, view.write_needed):
            for landings in product(*(_landings(moments, writer, host, views) for host in acknowledged)):
                flat = [landing for host_landings in landings for landing in host_landings]
                yield from _misses(moments, views, (writer, acknowledged), flat)


Landing = tuple[int, Storage]


def _landings(
    moments: Sequence[Moment], writer: ViewName, host: Host, views: Mapping[ViewName, View]
) -> list[tuple[Landing, ...]]:
    """The ways in which one host may apply the write, grouped by the effect of streaming and clean-up."""
    options: dict[tuple[tuple[int, Storage], ...], tuple[Landing, ...]] = {}
    epoch = 0
    for number, moment in enumerate(moments):
        epoch += moment.effect is not None
        if writer not in moment.views:
            continue
        for replica_view in moment.views:
            storages = views[replica_view].applies.get(host, ())
            if storages:
                seen = tuple((epoch, storage) for storage in storages)
                options.setdefault(seen, tuple((number, storage) for storage in storages))
    assert options, f"{writer} sends to host {host}, which is unknown"
    return list(options.values())


def _misses(
    moments: Sequence[Moment],
    views: Mapping[ViewName, View],
    write: tuple[ViewName, tuple[Host, ...]],
    landings: Sequence[Landing],
) -> Iterator[Lost]:
    writer, acknowledged = write
    done = max(number for number, _ in landings)
    holders: frozenset[Storage] = frozenset()
    for number, moment in enumerate(moments):
        holders = _after(moment.effect, holders)
        holders |= {storage for landed, storage in landings if landed == number}
        if number < done:
            continue
        for reader in moment.views:
            if _can_miss(views[reader], moment, views, holders):
                yield Lost(writer=writer, reader=reader, acknowledged_by=acknowledged, holders=holders)


def _after(effect: Effect | None, holders: frozenset[Storage]) -> frozenset[Storage]:
    match effect:
        case None:
            return holders
        case Copy(sources, destinations):
            return holders | set(destinations) if holders.intersection(sources) else holders
        case Erase(storages):
            return holders - set(storages)


def _can_miss(reader: View, moment: Moment, views: Mapping[ViewName, View], holders: frozenset[Storage]) -> bool:
    without = sum(
        any(views[name].serves.get(host, -1) not in holders for name in moment.views) for host in reader.read_hosts
    )
    return without >= reader.read_needed


def sent_to_the_unprepared(
    path: Sequence[Commit], views: Mapping[ViewName, View]
) -> Iterator[tuple[ViewName, ViewName]]:
    """(writer, replica) views in use at once where the writer sends to a storage that the replica has not opened."""
    for moment in moments_of(path):
        for writer, replica in product(moment.views, repeat=2):
            if not _written(views[writer]) <= views[replica].knows:
                yield writer, replica


def written_after_erase(path: Sequence[Commit], views: Mapping[ViewName, View]) -> Iterator[tuple[ViewName, Storage]]:
    """INV-TABL-1: (writer, storage) where a write can still land after the clean-up."""
    erased: frozenset[Storage] = frozenset()
    for moment in moments_of(path):
        if isinstance(moment.effect, Erase):
            erased |= set(moment.effect.storages)
        for writer in moment.views:
            for storage in sorted(_written(views[writer]) & erased):
                yield writer, storage


def _written(view: View) -> frozenset[Storage]:
    return frozenset(storage for host in view.write_hosts for storage in view.applies.get(host, ()))
