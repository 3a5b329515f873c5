"""The tablets of one table: an immutable map in chunks, so that changing one tablet copies one chunk.

A tablet count is a power of two and the token range is split evenly, so a token's tablet is the top bits of the token:
no search and no stored boundaries. Replicas are tuples of shared `Replica` values; transitions stand apart in a small
map per chunk, since few tablets are in transition at any time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ebla.model.identity import HostId, Replica, SessionId, TableId, TopologyVersion
from ebla.model.token import TOKEN_MIN
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.states import ResizeType, TabletStage, TransitionKind

TOKEN_BITS = 64
TOKEN_BIAS = 1 << 63
CHUNK_BITS = 7
CHUNK_TABLETS = 1 << CHUNK_BITS
CHUNK_MASK = CHUNK_TABLETS - 1
TABLET_COUNT_MAX = 1 << 20
TABLETS_PER_COMMIT_MAX = 1 << 14
"""A table is created and resized by one commit, which must fit a group 0 command (1 MiB). This many tablets have 128
chunks, of 6 KiB each in a cluster of 100 nodes."""
MOVES_PER_COMMIT_MAX = 1 << 12
STEPS_PER_COMMIT_MAX = 1 << 7
"""For the same reason. A move that starts writes a small row; one that ends may rewrite a chunk."""
STREAM_SETS_MAX = 1024

assert -TOKEN_BIAS == TOKEN_MIN

ReplicaSet = tuple[Replica, ...]


class TabletTransition(msgspec.Struct, frozen=True, tag="tablet_transition", array_like=True, kw_only=True):
    """One tablet in transition from `replicas` (in the map) to `new_replicas`."""

    kind: TransitionKind
    stage: TabletStage
    new_replicas: ReplicaSet
    session: SessionId | None = None
    """Open only in the stages that have side effects of their own; each such stage gets an id of its own."""
    since: TopologyVersion = TopologyVersion(1)
    """The version that entered this stage. A stage with a barrier is left only once the fence has reached it."""


class Resize(msgspec.Struct, frozen=True, tag="resize", array_like=True):
    """The newest resize decision of a table. `number` grows by one with each decision, revocations included."""

    kind: ResizeType = ResizeType.NONE
    number: int = 0
    ready: bool = False
    """Every replica has reported this number: the decision may be finalised."""


class TabletStreams(msgspec.Struct, frozen=True, tag="tablet_streams", array_like=True):
    """The change streams of a table from a time on: one per tablet of that time. Their ids are derived from the count
    and the mark (`cdc_generations.py`), so a set is small for any count."""

    timestamp_ms: int
    tablet_count: int
    mark: int
    """Random, and unique among the sets of a table, so that no two sets share a stream."""


@dataclass(frozen=True, slots=True)
class TabletChunk:
    """Up to `CHUNK_TABLETS` consecutive tablets."""

    replicas: tuple[ReplicaSet, ...]
    repair_times_ms: tuple[int, ...] = ()
    """Empty when no tablet of the chunk was ever repaired."""
    transitions: FrozenMap[int, TabletTransition] = field(default_factory=FrozenMap)
    """By tablet number (not offset), ordered by it."""
    hosts: frozenset[HostId] = field(init=False, compare=False, repr=False)
    """Hosts with a current replica in this chunk; queried, never iterated. Finding a host's tablets skips other
    chunks."""

    def __post_init__(self) -> None:
        hosts = frozenset([replica.host for replicas in self.replicas for replica in replicas])
        object.__setattr__(self, "hosts", hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletMap:
    table: TableId
    tablet_count: int
    chunks: tuple[TabletChunk, ...]
    resize: Resize = field(default_factory=Resize)
    shift: int = 0
    """Bits of a token below its tablet number. Derived from the count; stored for speed."""
    streams: tuple[TabletStreams, ...] = ()
    """Oldest first, at most `STREAM_SETS_MAX`; empty if changes of the table were never captured."""

    def number_of(self, token: int) -> int:
        """Which tablet has this token."""
        return (token + TOKEN_BIAS) >> self.shift

    def last_token(self, number: int) -> int:
        return last_token(number, self.shift)

    def after_token(self, number: int) -> int:
        """The token just before the tablet's first one; the first tablet begins after the least token."""
        return (number << self.shift) - 1 - TOKEN_BIAS if number else TOKEN_MIN

    def replicas(self, number: int) -> ReplicaSet:
        """The current (old, while in transition) replicas."""
        return self.chunks[number >> CHUNK_BITS].replicas[number & CHUNK_MASK]

    def all_replicas(self, number: int) -> ReplicaSet:
        """The current replicas, and in transition the new ones too."""
        moving = self.transition(number)
        current = self.replicas(number)
        return current if moving is None else (*current, *(each for each in moving.new_replicas if each not in current))

    def transition(self, number: int) -> TabletTransition | None:
        return self.chunks[number >> CHUNK_BITS].transitions.get(number)

    def repair_time_ms(self, number: int) -> int:
        times = self.chunks[number >> CHUNK_BITS].repair_times_ms
        return times[number & CHUNK_MASK] if times else 0

    def replica_sets(self) -> Iterator[ReplicaSet]:
        """Current replicas of every tablet, by number."""
        for chunk in self.chunks:
            yield from chunk.replicas

    def transitions(self) -> Iterator[tuple[int, TabletTransition]]:
        """Tablets in transition, by number."""
        for chunk in self.chunks:
            if chunk.transitions:
                yield from chunk.transitions.items()

    def tablets_on(self, host: HostId) -> Iterator[int]:
        """Tablets with a current or new replica on this host, by number."""
        for index, chunk in enumerate(self.chunks):
            coming = chunk.transitions and any(_on(each.new_replicas, host) for each in chunk.transitions.values())
            if not coming and host not in chunk.hosts:
                continue
            for number, replicas in enumerate(chunk.replicas, index << CHUNK_BITS):
                moving = chunk.transitions.get(number)
                if _on(replicas, host) or (moving is not None and _on(moving.new_replicas, host)):
                    yield number

    @property
    def any_transition(self) -> bool:
        return any(chunk.transitions for chunk in self.chunks)

    def with_replicas(self, number: int, replicas: ReplicaSet) -> "TabletMap":
        chunk, offset = self.chunks[number >> CHUNK_BITS], number & CHUNK_MASK
        put = (*chunk.replicas[:offset], replicas, *chunk.replicas[offset + 1 :])
        return self._with_chunk(number, replace(chunk, replicas=put))

    def with_repair_time(self, number: int, time_ms: int) -> "TabletMap":
        chunk, offset = self.chunks[number >> CHUNK_BITS], number & CHUNK_MASK
        times = chunk.repair_times_ms or (0,) * len(chunk.replicas)
        put = (*times[:offset], time_ms, *times[offset + 1 :])
        return self._with_chunk(number, replace(chunk, repair_times_ms=put))

    def _with_chunk(self, number: int, chunk: TabletChunk) -> "TabletMap":
        assert 0 <= number < self.tablet_count
        index = number >> CHUNK_BITS
        return replace(self, chunks=(*self.chunks[:index], chunk, *self.chunks[index + 1 :]))


def _on(replicas: ReplicaSet, host: HostId) -> bool:
    return any(replica.host == host for replica in replicas)


def last_token(number: int, shift: int) -> int:
    """Of the tablet with this number, where numbers are the bits of a token above the `shift` lowest."""
    return ((number + 1) << shift) - 1 - TOKEN_BIAS


def shift_of(tablet_count: int) -> int:
    assert 1 <= tablet_count <= TABLET_COUNT_MAX
    assert tablet_count & (tablet_count - 1) == 0, "a tablet count is a power of two"
    return TOKEN_BITS - (tablet_count.bit_length() - 1)


def tablet_map(
    table: TableId,
    replica_sets: Sequence[ReplicaSet],
    *,
    repair_times_ms: Sequence[int] = (),
    resize: Resize | None = None,
) -> TabletMap:
    """A map with these replicas, none in transition. Equal replica sets are shared."""
    count = len(replica_sets)
    assert not repair_times_ms or len(repair_times_ms) == count
    shared: dict[ReplicaSet, ReplicaSet] = {}
    sets = tuple(shared.setdefault(each, each) for each in replica_sets)
    chunks = tuple(
        TabletChunk(sets[start : start + CHUNK_TABLETS], _times(repair_times_ms[start : start + CHUNK_TABLETS]))
        for start in range(0, count, CHUNK_TABLETS)
    )
    return TabletMap(table=table, tablet_count=count, chunks=chunks, resize=resize or Resize(), shift=shift_of(count))


def _times(times_ms: Sequence[int]) -> tuple[int, ...]:
    return tuple(times_ms) if any(times_ms) else ()
