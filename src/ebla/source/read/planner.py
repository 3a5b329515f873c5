"""Plans the input splits of a read: large ranges of the plan are cut by token, small ones are joined. Pure."""

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
"""A range that is larger by less than this factor is not cut."""
CUTS_PER_RANGE_MAX = 10_000
"""Of one range of the plan."""
RANGES_PER_SPLIT_MAX = 2_048
"""Each is a query of its own."""


class SplitRange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A range that does not wrap around the ring, and where to read it; see `ReadRange`."""

    range: TokenRange
    sources: tuple[int, ...]
    needed: int
    groups: tuple[tuple[tuple[int, ...], int], ...] = ()


class InputSplit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything a task needs; nothing else is sent to it."""

    schema: TableSchema
    columns: tuple[ColumnSelector, ...]
    now_s: int
    authority: bytes
    sources: tuple[ReadSource, ...]
    ranges: tuple[SplitRange, ...]
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Empty: all."""
    uses_local_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRestrictions:
    conditions: tuple[KeyCondition, ...] = ()
    ranges: tuple[TokenRange, ...] | None = None
    """None: the whole ring; empty: no row can match."""
    partitions: tuple[bytes, ...] | None = None
    """None: all; empty: no row can match."""

    @property
    def is_empty(self) -> bool:
        return self.ranges == () or self.partitions == ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec(KeyRestrictions):
    """What the job reads."""

    columns: tuple[ColumnSelector, ...]
    split_bytes: int = 128 << 20
    uses_local_files: bool = True


@dataclass(frozen=True, slots=True)
class _Part:
    range: TokenRange
    size_bytes: float
    planned: ReadRange


def plan_splits(plan: TableReadPlan, spec: ReadSpec) -> list[InputSplit]:
    """In token order, as far as joining allows. Together they contain every row of the plan once."""
    if spec.is_empty:
        return []
    selection = _Selection.of(spec)
    parts = [part for planned in plan.pieces for part in _parts(planned, selection, spec.split_bytes)]
    return [_input_split(plan, spec, selection, joined) for joined in _joined(parts, spec.split_bytes)]


def clip_range(one: TokenRange, within: Iterable[TokenRange]) -> list[TokenRange]:
    """The parts of the range inside any of the others, which do not overlap. No part wraps around the ring."""
    return _clipped(one, _ascending(within))


def _ascending(ranges: Iterable[TokenRange]) -> list[TokenRange]:
    return sorted(part for one in ranges for part in one.unwrapped())


def _clipped(one: TokenRange, others: Sequence[TokenRange]) -> list[TokenRange]:
    """`others` are ascending, without overlap, and none wraps. By binary search: there may be thousands."""
    clipped = []
    for mine in one.unwrapped():
        for place in range(bisect_right(others, mine.start, key=_end_of), len(others)):
            other = others[place]
            if other.start >= mine.end:
                break
            clipped.append(TokenRange(max(mine.start, other.start), min(mine.end, other.end)))
    return clipped


def _end_of(one: TokenRange) -> Token:
    return one.end


@dataclass(frozen=True, slots=True)
class _Selection:
    """The part of the ring that can have matching rows."""

    ranges: Sequence[TokenRange]
    """Ascending, without overlap; none wraps."""
    tokens: Sequence[int] | None
    """Of the partitions, ascending; None: all."""
    prefixes: Sequence[bytes]
    """In the order of their tokens."""

    @classmethod
    def of(cls, spec: ReadSpec) -> "_Selection":
        ranges = _ascending((WHOLE_RING,) if spec.ranges is None else spec.ranges)
        if spec.partitions is None:
            return cls(ranges, None, ())
        named = sorted((decode_token(prefix), prefix) for prefix in spec.partitions)
        return cls(ranges, [token for token, _ in named], [prefix for _, prefix in named])

    def within(self, part: TokenRange) -> Sequence[bytes]:
        """The partitions of a range that does not wrap around the ring."""
        tokens = self.tokens or ()
        return self.prefixes[bisect_right(tokens, part.start) : bisect_right(tokens, part.end)]


def _parts(planned: ReadRange, selection: _Selection, split_bytes: int) -> Iterable[_Part]:
    for within in _clipped(planned.range, selection.ranges):
        size = planned.size_bytes * (within.width / planned.range.width)
        for part in _cut(within, size, split_bytes):
            if selection.tokens is None or selection.within(part):
                yield _Part(part, size * (part.width / within.width), planned)


def _cut(within: TokenRange, size_bytes: float, split_bytes: int) -> Sequence[TokenRange]:
    if size_bytes <= split_bytes * SPLIT_TOLERANCE:
        return (within,)
    return within.split(min(round(size_bytes / split_bytes), CUTS_PER_RANGE_MAX, within.width))


def _joined(parts: Sequence[_Part], split_bytes: int) -> list[list[_Part]]:
    """Joins neighbours, or ranges with the same sources: a task that reads from few nodes depends on few."""
    open_groups: dict[tuple[object, ...], list[_Part]] = {}
    sizes: dict[tuple[object, ...], float] = {}
    groups: list[list[_Part]] = []
    for part in sorted(parts, key=lambda one: one.range):
        key = (tuple(sorted(part.planned.sources)), part.planned.needed, part.planned.groups)
        group = open_groups.get(key)
        if group is None or sizes[key] + part.size_bytes > split_bytes or len(group) >= RANGES_PER_SPLIT_MAX:
            group = open_groups[key] = []
            sizes[key] = 0.0
            groups.append(group)
        group.append(part)
        sizes[key] += part.size_bytes
    return groups


def _input_split(plan: TableReadPlan, spec: ReadSpec, selection: _Selection, parts: Sequence[_Part]) -> InputSplit:
    used = sorted({source for part in parts for source in part.planned.sources})
    place = {source: number for number, source in enumerate(used)}
    ranges = tuple(
        SplitRange(
            range=part.range,
            sources=tuple(place[source] for source in part.planned.sources),
            needed=part.planned.needed,
            groups=tuple((tuple(place[source] for source in group), count) for group, count in part.planned.groups),
        )
        for part in parts
    )
    return InputSplit(
        schema=plan.schema,
        columns=spec.columns,
        now_s=plan.now_s,
        authority=plan.authority,
        sources=tuple(plan.sources[source] for source in used),
        ranges=ranges,
        conditions=spec.conditions,
        partitions=tuple(sorted(prefix for one in ranges for prefix in selection.within(one.range))),
        uses_local_files=spec.uses_local_files,
    )


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(InputSplit)


def encode_split(split: InputSplit) -> bytes:
    return _encoder.encode(split)


def decode_split(data: bytes) -> InputSplit:
    return _decoder.decode(data)
