"""Change data capture: which stream a write's change record goes to.

A *generation* gives every vnode one stream per shard of its owner. It is in effect from its timestamp until the next
one's. A write selects its generation by its own timestamp, so all routers agree on the stream without coordination, if
they know the generation before it takes effect: hence the delay added to every timestamp but the first. Tables on
tablets have one stream per tablet instead, in sets that change when the tablet count does.

Times in milliseconds are wall time; write timestamps are microseconds, as drivers send them.
"""

import enum
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NewType

from ebla.model.errors import InvalidRequest, Refused
from ebla.model.token import Token, TokenRange
from ebla.ports.rng import Rng
from ebla.topology.commands import WriteCdcPart
from ebla.topology.routing.static_sharding import first_token_in_range, static_shard
from ebla.topology.snapshot import CdcGeneration, CdcGenerationPart, CdcRange, GenerationId, Node, Snapshot
from ebla.topology.states import NodeState
from ebla.topology.tablet_map import TOKEN_BIAS, TabletStreams, last_token, shift_of

StreamId = NewType("StreamId", bytes)

STREAM_VERSION = 1
VERSION_BITS = 4
INDEX_BITS = 22
RANDOM_BITS = 38
STREAM_BYTES_ESTIMATE = 20
"""The size of one stream in an encoded part, with its share of the range's header."""

LEEWAY_MS = 5_000
"""How far clocks of clients and nodes may be apart before a write is refused."""
PART_BYTES_MAX = 256 << 10
"""A value of group 0 has at most 512 KiB."""
PARTS_PER_COMMIT_MAX = 3
"""Parts that fit into one command of group 0 together with the step that uses them."""
CDC_PARTS_MAX = 256
"""Parts of one generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamParts:
    """The fields of a stream id."""

    token: int
    random: int
    index: int
    version: int = STREAM_VERSION


def stream_id(parts: StreamParts) -> StreamId:
    """16 bytes, big-endian: the token; then 38 random bits, 22 bits of the vnode's index, 4 bits of version."""
    assert 0 <= parts.random < 1 << RANDOM_BITS
    assert 0 <= parts.index < 1 << INDEX_BITS
    assert 0 <= parts.version < 1 << VERSION_BITS
    low = parts.random << (INDEX_BITS + VERSION_BITS) | parts.index << VERSION_BITS | parts.version
    return StreamId(struct.pack(">qQ", parts.token, low))


def stream_parts(stream: StreamId) -> StreamParts:
    token, low = struct.unpack(">qQ", stream)
    index = low >> VERSION_BITS & (1 << INDEX_BITS) - 1
    return StreamParts(
        token=token, random=low >> (INDEX_BITS + VERSION_BITS), index=index, version=low & (1 << VERSION_BITS) - 1
    )


# Generations of vnodes


def generation_ranges(nodes: Iterable[Node], rng: Rng) -> tuple[CdcRange, ...]:
    """The data of a generation for a ring of these nodes' tokens (those of a joining node included)."""
    owners = sorted(((token, node) for node in nodes for token in node.tokens), key=lambda owned: owned[0])
    assert len(owners) < 1 << INDEX_BITS
    starts = [owners[-1][0], *(token for token, _ in owners)] if owners else []
    ranges = []
    for index, ((start, end), (_, owner)) in enumerate(zip(pairwise(starts), owners, strict=True)):
        within = TokenRange(Token(start), Token(end))
        streams = tuple(
            stream_id(
                StreamParts(
                    token=first_token_in_range(within, shard, owner.shard_count, owner.ignore_msb),
                    random=rng.randrange(0, 1 << RANDOM_BITS),
                    index=index,
                )
            )
            for shard in range(owner.shard_count)
        )
        ranges.append(CdcRange(end, streams, owner.ignore_msb))
    return tuple(ranges)


def ring_owners(snapshot: Snapshot) -> Iterator[Node]:
    """The token owners that a new generation covers: the ring's, and the node that is joining."""
    replaced = [each.replaced for each in snapshot.nodes_in(NodeState.REPLACING) if each.tokens]
    return (node for node in snapshot.token_owners() if node.host not in replaced)


def generation_parts(ranges: Sequence[CdcRange], part_bytes_max: int = PART_BYTES_MAX) -> tuple[CdcGenerationPart, ...]:
    """Parts that each fit one group 0 command, in ring order; a range is never split."""
    parts: list[CdcGenerationPart] = []
    gathered: list[CdcRange] = []
    size = 0
    for each in ranges:
        width = STREAM_BYTES_ESTIMATE * (len(each.streams) + 1)
        if gathered and size + width > part_bytes_max:
            parts.append(CdcGenerationPart(tuple(gathered)))
            gathered, size = [], 0
        gathered.append(each)
        size += width
    return (*parts, CdcGenerationPart(tuple(gathered)))


def generation_commits(
    generation: GenerationId, parts: Sequence[CdcGenerationPart]
) -> tuple[tuple[WriteCdcPart, ...], ...]:
    """The commands that write a generation's data, grouped into commits. The last commit has room for the step that
    uses the generation."""
    assert 1 <= len(parts) <= CDC_PARTS_MAX
    commands = [
        WriteCdcPart(generation=generation, part_count=len(parts), number=number, part=part)
        for number, part in enumerate(parts)
    ]
    starts = range(0, len(commands), PARTS_PER_COMMIT_MAX)
    return tuple(tuple(commands[start : start + PARTS_PER_COMMIT_MAX]) for start in starts)


def why_too_large(parts: Sequence[CdcGenerationPart]) -> str:
    """Why group 0 cannot hold a generation of these parts; empty: it can."""
    if len(parts) <= CDC_PARTS_MAX:
        return ""
    vnodes = sum(len(part.ranges) for part in parts)
    streams = sum(len(each.streams) for part in parts for each in part.ranges)
    return (
        f"the CDC generation of {vnodes} vnodes has {streams} streams in {len(parts)} parts of {PART_BYTES_MAX >> 10} "
        f"KiB, and a generation has at most {CDC_PARTS_MAX} parts"
    )


def generation_timestamp_ms(now_ms: int, ring_delay_ms: int, newest_ms: int | None) -> int:
    """The timestamp of a generation that is committed now: late enough that every node knows it by then."""
    if newest_ms is None:
        return now_ms
    delay_ms = 2 * ring_delay_ms + LEEWAY_MS if ring_delay_ms else 0
    return max(now_ms + delay_ms, newest_ms + 1)


def is_optimal(ranges: Sequence[CdcRange], ring_tokens: Iterable[int]) -> bool:
    """Whether exactly the vnodes of the ring have streams."""
    return [each.range_end for each in ranges] == sorted(ring_tokens)


def has_current_streams(snapshot: Snapshot) -> bool:
    """Whether the newest generation has streams for exactly the ring's vnodes: then there is nothing to repair."""
    committed = committed_generations(snapshot)
    if not committed:
        return False
    newest = committed[-1].generation
    if any((newest.id, number) not in snapshot.cdc_parts for number in range(newest.part_count)):
        return False
    ring = (token for node in ring_owners(snapshot) for token in node.tokens)
    return is_optimal(generation_data(snapshot, newest), ring)


def committed_generations(snapshot: Snapshot) -> tuple["CommittedGeneration", ...]:
    """Oldest first."""
    found = (
        CommittedGeneration(each, each.timestamp_ms)
        for each in snapshot.cdc_generations.values()
        if each.timestamp_ms is not None
    )
    return tuple(sorted(found, key=lambda each: each.timestamp_ms))


@dataclass(frozen=True, slots=True)
class CommittedGeneration:
    generation: CdcGeneration
    timestamp_ms: int


def generation_for_write(committed: Sequence[CommittedGeneration], write_us: int, now_ms: int) -> CommittedGeneration:
    """The generation whose streams a write with this timestamp goes to.

    Raises `InvalidRequest` for a timestamp too far ahead: the generation that will hold then may not exist yet. Raises
    `Refused` for one that belongs to a generation already left behind: readers of its streams may have moved on.
    """
    if write_us > (now_ms + LEEWAY_MS) * 1000:
        raise InvalidRequest(
            f"the write's timestamp is {write_us // 1000 - now_ms} ms ahead; change capture allows {LEEWAY_MS} ms",
            advice="check the client's clock, or let the server choose the timestamp",
        )
    wanted = _held_at(committed, write_us)
    if wanted is None:
        raise Refused("no stream generation held at the write's timestamp", advice="write with a current timestamp")
    in_use = _held_at(committed, (now_ms - LEEWAY_MS) * 1000)
    if in_use is not None and wanted < in_use:
        raise Refused(
            "the write's timestamp belongs to a stream generation that is no longer written to",
            advice="write with a current timestamp",
        )
    return committed[wanted]


def _held_at(committed: Sequence[CommittedGeneration], time_us: int) -> int | None:
    """The generation in effect at that time."""
    after = bisect_right(committed, time_us, key=lambda each: each.timestamp_ms * 1000)
    return after - 1 if after else None


def stream_for_token(ranges: Sequence[CdcRange], token: int) -> StreamId:
    """The range that has the token, then the shard its owner had for it when the generation was made."""
    assert ranges
    position = bisect_left(ranges, token, key=lambda each: each.range_end)
    found = ranges[position if position < len(ranges) else 0]
    return StreamId(found.streams[static_shard(token, len(found.streams), found.ignore_msb)])


def generation_data(snapshot: Snapshot, generation: CdcGeneration) -> tuple[CdcRange, ...]:
    """All its ranges in order. Every part must be present."""
    parts = (snapshot.cdc_parts[generation.id, number] for number in range(generation.part_count))
    return tuple(each for part in parts for each in part.ranges)


def obsolete_generations(
    committed: Sequence[CommittedGeneration], now_ms: int, ring_delay_ms: int
) -> tuple[CommittedGeneration, ...]:
    """Generations that no write can use any more, oldest first: superseded for longer than clocks and the feed may lag.
    An unpublished generation stays, and so does every later one, because readers follow them in order."""
    safe_before_ms = now_ms - LEEWAY_MS - ring_delay_ms
    obsolete = []
    for each, successor in pairwise(committed):
        if successor.timestamp_ms > safe_before_ms or not each.generation.published:
            break
        obsolete.append(each)
    return tuple(obsolete)


# Streams of tablets


class CdcStreamState(enum.IntEnum):
    """How a set differs from the one before it, with the numbers readers see."""

    CURRENT = 0
    CLOSED = 1
    OPENED = 2


def draw_mark(rng: Rng) -> int:
    """For a new set of streams."""
    return rng.randrange(0, 1 << RANDOM_BITS)


def tablet_stream_ids(streams: TabletStreams) -> Iterator[StreamId]:
    """By the number of their tablet."""
    return (_tablet_stream_id(streams, number) for number in range(streams.tablet_count))


def _tablet_stream_id(streams: TabletStreams, number: int) -> StreamId:
    return stream_id(
        StreamParts(token=last_token(number, shift_of(streams.tablet_count)), random=streams.mark, index=0)
    )


def stream_for_tablet_write(sets: Sequence[TabletStreams], token: int, write_us: int) -> StreamId:
    """The stream in the set (oldest first) that was in effect at the write's timestamp; an older write uses the oldest
    set.

    A set records its own tablet count, so no old tablet map is needed.
    """
    assert sets
    after = bisect_right(sets, write_us, key=lambda each: each.timestamp_ms * 1000)
    held = sets[max(0, after - 1)]
    return _tablet_stream_id(held, (token + TOKEN_BIAS) >> shift_of(held.tablet_count))


def stream_changes(before: TabletStreams, after: TabletStreams) -> Iterator[tuple[CdcStreamState, StreamId]]:
    """What readers of `before` must do. No stream is in two sets, so all old streams end and new ones begin."""
    yield from ((CdcStreamState.CLOSED, each) for each in tablet_stream_ids(before))
    yield from ((CdcStreamState.OPENED, each) for each in tablet_stream_ids(after))


def oldest_set_read(sets: Sequence[TabletStreams], now_ms: int, ttl_ms: int) -> TabletStreams:
    """The oldest set that still has records to read. A set superseded for longer than the records' TTL has none;
    a TTL of 0 keeps all sets."""
    assert sets
    ended = sum(1 for _, successor in pairwise(sets) if successor.timestamp_ms <= now_ms - ttl_ms) if ttl_ms else 0
    return sets[ended]
