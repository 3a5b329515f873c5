"""Merges chunks of several layers into one stream in key order, each key once: `row_merge.py` by vector operations.

The layers advance together from window to window: a window ends at the least of the last keys at hand, so that every
row up to there is known. Within it, a plain row that is newer than the others of its key and has every cell wins
unchanged; whole columns of such decisions are one operation. Other repeated keys are merged one at a time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import CqlType
from ebla.model.schema import TableSchema
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.binary_columns import Mask, Positions, take_binary
from ebla.storage.columns.chunks import (
    FLAGS,
    KEY,
    STORED,
    TIMESTAMP,
    ChunkFlag,
    ChunkShape,
    chunk_of,
    concat_chunks,
    field_name,
    flags_of,
    reduced_rows,
    splice_chunks,
    stored_values,
    timestamps_of,
)
from ebla.storage.columns.key_columns import token_words
from ebla.storage.columns.wire_columns import to_wire
from ebla.storage.merge.row_merge import merge_all


def merge_chunks(shape: ChunkShape, streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Each stream in key order, with every key once. The shape must be whole or raw."""
    if len(streams) == 1:
        yield from streams[0]
        return
    sources = [_Source(stream) for stream in streams]
    while any(source.rest is not None for source in sources):
        ahead = [source for source in sources if source.rest is not None]
        if len(ahead) == 1:
            yield ahead[0].take_all()
            continue
        end = min(source.last_key() for source in ahead)
        parts = [part for source in ahead if len(part := source.take_through(end))]
        yield _merged_window(shape, parts)


def _merged_window(shape: ChunkShape, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Replicas usually have the same keys, and most of their rows are the same: those are not even sorted."""
    first, *others = parts
    if not all(same_keys(first, other) for other in others):
        return merge_duplicates(shape, concat_chunks(parts))
    same: Mask = np.ones(len(first), np.bool_)
    for other in others:
        same &= same_rows(shape, first, other)
    if same.all():
        return first
    if 2 * np.count_nonzero(same) < len(same):
        return merge_duplicates(shape, concat_chunks(parts))
    differing = pa.array(~same)
    merged = merge_duplicates(shape, concat_chunks([part.filter(differing) for part in parts]))
    return splice_chunks([first.filter(pa.array(same)), merged], [np.flatnonzero(same), np.flatnonzero(~same)])


def merge_duplicates(shape: ChunkShape, chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in any order, with repeated keys, as a chunk in key order with every key once."""
    order, same_key = key_order(chunk.column(KEY))
    chunk = chunk.take(pa.array(order))
    if not same_key.any():
        return chunk
    groups = KeyGroups.of(same_key)
    winners, settled = _winners(shape, chunk, groups, same_key)
    if settled.all():
        return chunk.take(pa.array(winners))
    parts = [chunk.take(pa.array(winners[settled])), _merged_one_by_one(shape, chunk, groups, ~settled)]
    positions = np.arange(len(groups.starts))
    return splice_chunks(parts, [positions[settled], positions[~settled]])


class _Source:
    """One stream, and the rest of its current chunk."""

    def __init__(self, stream: Iterator[pa.RecordBatch]) -> None:
        self._stream = stream
        self.rest: pa.RecordBatch | None = None
        self._advance()

    def last_key(self) -> bytes:
        assert self.rest is not None
        key: bytes = self.rest.column(KEY)[-1].as_py()
        return key

    def take_all(self) -> pa.RecordBatch:
        taken = self.rest
        self._advance()
        return taken

    def take_through(self, end: bytes) -> pa.RecordBatch:
        assert self.rest is not None
        count = rows_through(self.rest.column(KEY), end)
        if count == len(self.rest):
            return self.take_all()
        taken = self.rest.slice(0, count)
        self.rest = self.rest.slice(count)
        return taken

    def _advance(self) -> None:
        self.rest = next((chunk for chunk in self._stream if len(chunk)), None)


class KeySequence(Sequence[bytes]):
    """A column of keys for `bisect`, which reads only a few of them."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, position: int) -> bytes:  # type: ignore[override]  # bisect reads single keys only
        key: bytes = self._column[position].as_py()
        return key


def rows_through(keys: pa.Array, end: bytes) -> int:
    """How many of the ascending keys are at most `end`."""
    return bisect_right(KeySequence(keys), end)


def rows_before(keys: pa.Array, end: bytes) -> int:
    """How many of the ascending keys are below `end`."""
    return bisect_left(KeySequence(keys), end)


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Groups of rows with one key, in a chunk in key order."""

    starts: Positions
    sizes: Positions

    @classmethod
    def of(cls, same_key: Mask) -> "KeyGroups":
        starts = np.concatenate(([0], np.flatnonzero(~same_key) + 1))
        return cls(starts, np.diff(starts, append=len(same_key) + 1))


def key_order(keys: pa.Array, words: npt.NDArray[np.uint64] | None = None) -> tuple[Positions, Mask]:
    """The positions of the keys in ascending order (equal ones in their original order), and which key equals the next.
    `words` are their tokens (`token_words`), if already known.

    Sorting by token alone is many times faster, and correct unless two different keys share a token: usually rows of
    one partition.
    """
    words = token_words(keys) if words is None else words
    order = np.argsort(words)
    ascending = words[order]
    tokens_tie = ascending[1:] == ascending[:-1]
    if not tokens_tie.any():
        return order, tokens_tie
    # Only now: a stable sort takes five times as long, and most loads have no equal keys.
    order = np.argsort(words, kind="stable")
    in_order = keys.take(pa.array(order))
    same = same_as_next(in_order)
    if (same == tokens_tie).all():
        return order, same
    by_key = np.asarray(pc.array_sort_indices(in_order)).astype(np.int64)
    return order[by_key], same_as_next(in_order.take(pa.array(by_key)))


def same_as_next(column: pa.Array) -> Mask:
    """For all but the last value whether the next one is equal."""
    if len(column) < 2:
        return np.zeros(0, np.bool_)
    same = pc.equal(column.slice(0, len(column) - 1), column.slice(1))
    return np.asarray(same.fill_null(False).to_numpy(zero_copy_only=False))


def _winners(shape: ChunkShape, chunk: pa.RecordBatch, groups: KeyGroups, same_key: Mask) -> tuple[Positions, Mask]:
    """The position of each group's newest row, and for which groups that row is the result."""
    flags, timestamps = flags_of(chunk), timestamps_of(chunk)
    newest = np.maximum.reduceat(timestamps, groups.starts)
    is_newest = timestamps == np.repeat(newest, groups.sizes)
    positions = np.where(is_newest, np.arange(len(chunk)), -1)
    winners = np.maximum.reduceat(positions, groups.starts)
    alone = np.add.reduceat(is_newest, groups.starts, dtype=np.int64) == 1
    all_flags = np.bitwise_and.reduceat(flags, groups.starts)
    any_flags = np.bitwise_or.reduceat(flags, groups.starts)
    won_flags = flags[winners]
    covers = (won_flags & ChunkFlag.COMPLETE) != 0
    marked = ((won_flags & ChunkFlag.MARKED) != 0) | ((any_flags & ChunkFlag.MARKED) == 0)
    plain = (all_flags & ChunkFlag.PLAIN) != 0
    may_stand = covers & marked & plain
    settled = (groups.sizes == 1) | (alone & may_stand)
    if not settled.all():
        settled |= _all_equal(shape, chunk, groups, same_key)
    if (may_stand & ~settled).any():
        looked_at = np.repeat(may_stand & ~settled, groups.sizes) & is_newest
        settled |= may_stand & _newest_agree(shape, chunk, groups, (looked_at, winners))
    return winners, settled


def _newest_agree(shape: ChunkShape, chunk: pa.RecordBatch, groups: KeyGroups, newest: tuple[Mask, Positions]) -> Mask:
    """Groups in which all of the newest rows are equal: two replicas have seen a write, and a third has not."""
    looked_at, winners = newest
    rivals = np.flatnonzero(looked_at)
    theirs = np.repeat(winners, groups.sizes)[rivals]
    differs = np.zeros(len(chunk), np.bool_)
    differs[rivals] = ~same_rows(shape, chunk.take(pa.array(rivals)), chunk.take(pa.array(theirs)))
    return ~np.logical_or.reduceat(differs, groups.starts)


def _all_equal(shape: ChunkShape, chunk: pa.RecordBatch, groups: KeyGroups, same_key: Mask) -> Mask:
    """Groups whose rows are equal: a layer that was adopted twice, or another replica."""
    differs = np.zeros(len(chunk), np.bool_)
    differs[:-1] = same_key & ~same_rows(shape, chunk.slice(0, len(chunk) - 1), chunk.slice(1))
    return ~np.logical_or.reduceat(differs, groups.starts)


def _merged_one_by_one(shape: ChunkShape, chunk: pa.RecordBatch, groups: KeyGroups, chosen: Mask) -> pa.RecordBatch:
    keys = chunk.column(KEY).take(pa.array(groups.starts[chosen]))
    members = chunk.filter(pa.array(np.repeat(chosen, groups.sizes)))
    merged = _merged_groups(shape.schema, stored_values(shape, members), groups.sizes[chosen])
    return chunk_of(shape, keys, merged)


def _merged_groups(schema: TableSchema, values: pa.Array, sizes: Positions) -> pa.Array:
    """The merged value of each group of consecutive values."""
    members = iter(values.to_pylist())
    merged = [merge_all(list(islice(members, size)), schema) for size in sizes.tolist()]
    return pa.array(merged, pa.binary())


# -- equal rows --------------------------------------------------------------------------------------------------------


_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64(), pa.month_day_nano_interval(): pa.binary(16)}


def same_keys(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return len(one) == len(other) and bool(one.column(KEY).equals(other.column(KEY)))


def same_rows(shape: ChunkShape, one: pa.RecordBatch, other: pa.RecordBatch) -> Mask:
    """For each position whether both rows are the same, cell by cell and with their timestamps. Keys are not compared:
    they must be equal."""
    found: Mask = _same(one.column(TIMESTAMP), other.column(TIMESTAMP))
    found &= _same(one.column(FLAGS), other.column(FLAGS))
    found &= _same(one.column(STORED), other.column(STORED))
    if not shape.is_raw and (reduced := reduced_rows(one)).any():
        # Their stored values are the same, and their columns are not complete.
        rest = found & ~reduced
        found[rest] = same_rows(shape, one.filter(pa.array(rest)), other.filter(pa.array(rest)))
        return found
    for column in shape.schema.regular:
        if not found.any():
            break
        if column.number in shape.numbers:
            name = field_name(column.number)
            found &= _same_values(column.type, one.column(name), other.column(name))
    return found


def _same_values(kind: CqlType, one: pa.Array, other: pa.Array) -> Mask:
    if one.type in _BITS:
        # Not by value: NaN equals nothing, -0.0 equals 0.0, and Arrow does not compare durations at all.
        return _same(one.view(_BITS[one.type]), other.view(_BITS[one.type]))
    if not pa.types.is_nested(one.type):
        return _same(one, other)
    if one.equals(other):
        return np.ones(len(one), np.bool_)
    # Arrow has no element-wise comparison of nested values.
    return _same(to_wire(kind, one), to_wire(kind, other))


def _same(one: pa.Array, other: pa.Array) -> Mask:
    """A null is the same as a null."""
    equal = pc.equal(one, other)
    if equal.null_count:
        equal = pc.if_else(equal.is_null(), pc.and_(one.is_null(), other.is_null()), equal)
    return np.array(equal.to_numpy(zero_copy_only=False))


# -- staged rows -------------------------------------------------------------------------------------------------------


def sort_rows(
    schema: TableSchema, keys: pa.Array, values: pa.Array, words: npt.NDArray[np.uint64] | None = None
) -> pa.RecordBatch:
    """Stored keys and values in any order as a batch in key order, columns `key` and `value`, each key once; repeated
    keys are merged. `words` are the tokens of the keys (`token_words`), if already known."""
    order, same_key = key_order(keys, words)
    keys, values = take_binary(keys, order), take_binary(values, order)
    if same_key.any():
        keys, values = _merged(schema, keys, values, same_key)
    return pa.RecordBatch.from_arrays([keys, values], schema=ROWS_SCHEMA)


def drop_repeats(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Without entries that equal the next one: usually heads of one partition."""
    repeats = same_as_next(keys) & same_as_next(values)
    if not repeats.any():
        return keys, values
    kept = pa.array(np.append(~repeats, True))
    return keys.filter(kept), values.filter(kept)


def _merged(schema: TableSchema, keys: pa.Array, values: pa.Array, same_key: Mask) -> tuple[pa.Array, pa.Array]:
    groups = KeyGroups.of(same_key)
    differs = np.zeros(len(keys), np.bool_)
    differs[:-1] = same_key & ~same_as_next(values)
    unequal = np.logical_or.reduceat(differs, groups.starts)
    firsts = pa.array(groups.starts)
    keys, found = keys.take(firsts), values.take(firsts)
    if not unequal.any():
        return keys, found
    members = values.filter(pa.array(np.repeat(unequal, groups.sizes)))
    merged = _merged_groups(schema, members, groups.sizes[unequal])
    order = np.where(unequal, len(found) + np.cumsum(unequal) - 1, np.arange(len(found)))
    return keys, pa.concat_arrays([found, merged]).take(pa.array(order))
