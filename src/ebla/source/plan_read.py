"""What each task of a read does: pieces of the plan, large ones split by token, small ones joined. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ebla.model.asked_rows import AskedColumn, KeyCondition
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.storage.key_codec import decode_token
from ebla.wire.table_access import ReadPiece, ReadPlan, ReadSource

SPLIT_TOLERANCE = 1.5
"""A piece that is larger by less than this is left whole."""
SPLITS_MAX = 10_000
"""Of one piece."""
JOINED_MAX = 2_048
"""Pieces of one task: each is a question of its own."""


class SharePiece(msgspec.Struct, frozen=True, array_like=True):
    """A range that does not go over the top of the ring, and where to read it; see `ReadPiece`."""

    range: TokenRange
    sources: tuple[int, ...]
    needed: int
    groups: tuple[tuple[tuple[int, ...], int], ...] = ()


class ReadShare(msgspec.Struct, frozen=True, array_like=True):
    """All that a task needs to know; nothing else goes to where it runs."""

    schema: TableSchema
    columns: tuple[AskedColumn, ...]
    now_s: int
    authority: bytes
    sources: tuple[ReadSource, ...]
    pieces: tuple[SharePiece, ...]
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Only these; none: all."""
    uses_short_cut: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the job asks for."""

    columns: tuple[AskedColumn, ...]
    conditions: tuple[KeyCondition, ...] = ()
    ranges: tuple[TokenRange, ...] | None = None
    """None: the whole ring; empty: nothing can be found."""
    partitions: tuple[bytes, ...] | None = None
    """None: all; empty: nothing can be found."""
    split_bytes: int = 128 << 20
    uses_short_cut: bool = True

    @property
    def is_nothing(self) -> bool:
        return self.ranges == () or self.partitions == ()


@dataclass(frozen=True, slots=True)
class _Part:
    range: TokenRange
    size_bytes: float
    piece: ReadPiece


def plan_shares(plan: ReadPlan, wanted: Wanted) -> list[ReadShare]:
    """In the order of tokens, as far as joining allows. Together they have every row of the plan once."""
    if wanted.is_nothing:
        return []
    parts = [part for piece in plan.pieces for part in _parts(piece, wanted)]
    return [_share(plan, wanted, joined) for joined in _joined(parts, wanted.split_bytes)]


def clipped(one: TokenRange, within: Iterable[TokenRange]) -> list[TokenRange]:
    """What of the range lies in any of the others, which do not overlap; none of it goes over the top."""
    others = [part for other in within for part in other.unwrapped()]
    found = []
    for mine in one.unwrapped():
        for other in others:
            start, end = max(mine.start, other.start), min(mine.end, other.end)
            if start < end:
                found.append(TokenRange(start, end))
    return sorted(found)


def _parts(piece: ReadPiece, wanted: Wanted) -> Iterable[_Part]:
    ranges = (WHOLE_RING,) if wanted.ranges is None else wanted.ranges
    for within in clipped(piece.range, ranges):
        size = piece.size_bytes * (within.width / piece.range.width)
        for part in _split(within, size, wanted.split_bytes):
            if _has_any(part, wanted.partitions):
                yield _Part(part, size * (part.width / within.width), piece)


def _split(within: TokenRange, size_bytes: float, split_bytes: int) -> Sequence[TokenRange]:
    if size_bytes <= split_bytes * SPLIT_TOLERANCE:
        return (within,)
    return within.split(min(round(size_bytes / split_bytes), SPLITS_MAX, within.width))


def _has_any(part: TokenRange, partitions: tuple[bytes, ...] | None) -> bool:
    return partitions is None or any(decode_token(prefix) in part for prefix in partitions)


def _joined(parts: Sequence[_Part], split_bytes: int) -> list[list[_Part]]:
    """Neighbours, or others that have the same sources: a task that reads from few nodes depends on few."""
    open_groups: dict[tuple[object, ...], list[_Part]] = {}
    sizes: dict[tuple[object, ...], float] = {}
    found: list[list[_Part]] = []
    for part in sorted(parts, key=lambda one: one.range):
        key = (tuple(sorted(part.piece.sources)), part.piece.needed, part.piece.groups)
        group = open_groups.get(key)
        if group is None or sizes[key] + part.size_bytes > split_bytes or len(group) >= JOINED_MAX:
            group = open_groups[key] = []
            sizes[key] = 0.0
            found.append(group)
        group.append(part)
        sizes[key] += part.size_bytes
    return found


def _share(plan: ReadPlan, wanted: Wanted, parts: Sequence[_Part]) -> ReadShare:
    used = sorted({source for part in parts for source in part.piece.sources})
    place = {source: number for number, source in enumerate(used)}
    pieces = tuple(
        SharePiece(
            part.range,
            tuple(place[source] for source in part.piece.sources),
            part.piece.needed,
            tuple((tuple(place[source] for source in group), count) for group, count in part.piece.groups),
        )
        for part in parts
    )
    chosen = [prefix for prefix in wanted.partitions or () if any(decode_token(prefix) in one.range for one in pieces)]
    return ReadShare(
        plan.schema,
        wanted.columns,
        plan.now_s,
        plan.authority,
        tuple(plan.sources[source] for source in used),
        pieces,
        wanted.conditions,
        tuple(sorted(chosen)),
        wanted.uses_short_cut,
    )


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(ReadShare)


def encode_share(share: ReadShare) -> bytes:
    return _encoder.encode(share)


def decode_share(data: bytes) -> ReadShare:
    return _decoder.decode(data)
