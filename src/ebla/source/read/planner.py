"""What each task of a read does: pieces of the plan, large ones split by token, small ones joined. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, KeyCondition
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.storage.codec.key_codec import decode_token
from ebla.wire.table_calls import ReadRange, ReadSource, TableReadPlan

SPLIT_TOLERANCE = 1.5
"""A piece that is larger by less than this is left whole."""
CUTS_PER_RANGE_MAX = 10_000
"""Of one piece."""
RANGES_PER_SPLIT_MAX = 2_048
"""Pieces of one task: each is a question of its own."""


class SplitRange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A range that does not go over the top of the ring, and where to read it; see `ReadRange`."""

    range: TokenRange
    sources: tuple[int, ...]
    needed: int
    groups: tuple[tuple[tuple[int, ...], int], ...] = ()


class InputSplit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a task needs to know; nothing else goes to where it runs."""

    schema: TableSchema
    columns: tuple[ColumnSelector, ...]
    now_s: int
    authority: bytes
    sources: tuple[ReadSource, ...]
    pieces: tuple[SplitRange, ...]
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Only these; none: all."""
    uses_local_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What the job asks for."""

    columns: tuple[ColumnSelector, ...]
    conditions: tuple[KeyCondition, ...] = ()
    ranges: tuple[TokenRange, ...] | None = None
    """None: the whole ring; empty: nothing can be found."""
    partitions: tuple[bytes, ...] | None = None
    """None: all; empty: nothing can be found."""
    split_bytes: int = 128 << 20
    uses_local_files: bool = True

    @property
    def is_empty(self) -> bool:
        return self.ranges == () or self.partitions == ()


@dataclass(frozen=True, slots=True)
class _Part:
    range: TokenRange
    size_bytes: float
    piece: ReadRange


def plan_splits(plan: TableReadPlan, wanted: ReadSpec) -> list[InputSplit]:
    """In the order of tokens, as far as joining allows. Together they have every row of the plan once."""
    if wanted.is_empty:
        return []
    chosen = _Chosen.of(wanted)
    parts = [part for piece in plan.pieces for part in _parts(piece, chosen, wanted.split_bytes)]
    return [_share(plan, wanted, chosen, joined) for joined in _joined(parts, wanted.split_bytes)]


def clip_range(one: TokenRange, within: Iterable[TokenRange]) -> list[TokenRange]:
    """What of the range lies in any of the others, which do not overlap; none of it goes over the top."""
    return _clipped(one, _ascending(within))


def _ascending(ranges: Iterable[TokenRange]) -> list[TokenRange]:
    return sorted(part for one in ranges for part in one.unwrapped())


def _clipped(one: TokenRange, others: Sequence[TokenRange]) -> list[TokenRange]:
    """`others` ascending, without overlap, none over the top. By search: there may be thousands of them."""
    found = []
    for mine in one.unwrapped():
        for place in range(bisect_right(others, mine.start, key=_end_of), len(others)):
            other = others[place]
            if other.start >= mine.end:
                break
            found.append(TokenRange(max(mine.start, other.start), min(mine.end, other.end)))
    return found


def _end_of(one: TokenRange) -> Token:
    return one.end


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What of the ring can have rows that are asked for."""

    ranges: Sequence[TokenRange]
    """Ascending, without overlap, none over the top."""
    tokens: Sequence[int] | None
    """Of the partitions, ascending; None: all."""
    prefixes: Sequence[bytes]
    """In the order of their tokens."""

    @classmethod
    def of(cls, wanted: ReadSpec) -> "_Chosen":
        ranges = _ascending((WHOLE_RING,) if wanted.ranges is None else wanted.ranges)
        if wanted.partitions is None:
            return cls(ranges, None, ())
        named = sorted((decode_token(prefix), prefix) for prefix in wanted.partitions)
        return cls(ranges, [token for token, _ in named], [prefix for _, prefix in named])

    def within(self, part: TokenRange) -> Sequence[bytes]:
        """Partitions of a range that does not go over the top."""
        tokens = self.tokens or ()
        return self.prefixes[bisect_right(tokens, part.start) : bisect_right(tokens, part.end)]


def _parts(piece: ReadRange, chosen: _Chosen, split_bytes: int) -> Iterable[_Part]:
    for within in _clipped(piece.range, chosen.ranges):
        size = piece.size_bytes * (within.width / piece.range.width)
        for part in _split(within, size, split_bytes):
            if chosen.tokens is None or chosen.within(part):
                yield _Part(part, size * (part.width / within.width), piece)


def _split(within: TokenRange, size_bytes: float, split_bytes: int) -> Sequence[TokenRange]:
    if size_bytes <= split_bytes * SPLIT_TOLERANCE:
        return (within,)
    return within.split(min(round(size_bytes / split_bytes), CUTS_PER_RANGE_MAX, within.width))


def _joined(parts: Sequence[_Part], split_bytes: int) -> list[list[_Part]]:
    """Neighbours, or others that have the same sources: a task that reads from few nodes depends on few."""
    open_groups: dict[tuple[object, ...], list[_Part]] = {}
    sizes: dict[tuple[object, ...], float] = {}
    found: list[list[_Part]] = []
    for part in sorted(parts, key=lambda one: one.range):
        key = (tuple(sorted(part.piece.sources)), part.piece.needed, part.piece.groups)
        group = open_groups.get(key)
        if group is None or sizes[key] + part.size_bytes > split_bytes or len(group) >= RANGES_PER_SPLIT_MAX:
            group = open_groups[key] = []
            sizes[key] = 0.0
            found.append(group)
        group.append(part)
        sizes[key] += part.size_bytes
    return found


def _share(plan: TableReadPlan, wanted: ReadSpec, chosen: _Chosen, parts: Sequence[_Part]) -> InputSplit:
    used = sorted({source for part in parts for source in part.piece.sources})
    place = {source: number for number, source in enumerate(used)}
    pieces = tuple(
        SplitRange(
            range=part.range,
            sources=tuple(place[source] for source in part.piece.sources),
            needed=part.piece.needed,
            groups=tuple((tuple(place[source] for source in group), count) for group, count in part.piece.groups),
        )
        for part in parts
    )
    return InputSplit(
        schema=plan.schema,
        columns=wanted.columns,
        now_s=plan.now_s,
        authority=plan.authority,
        sources=tuple(plan.sources[source] for source in used),
        pieces=pieces,
        conditions=wanted.conditions,
        partitions=tuple(sorted(prefix for one in pieces for prefix in chosen.within(one.range))),
        uses_local_files=wanted.uses_local_files,
    )


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(InputSplit)


def encode_split(share: InputSplit) -> bytes:
    return _encoder.encode(share)


def decode_split(data: bytes) -> InputSplit:
    return _decoder.decode(data)
