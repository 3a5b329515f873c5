"""Stored keys and values in any order become rows in key order, each key once: what a run of a load is."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.schema import TableSchema
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.binary_columns import Mask, take_binary
from ebla.storage.merge.chunk_merge import KeyGroups, key_order, same_as_next
from ebla.storage.merge.row_merge import merge_all


def sort_rows(
    schema: TableSchema, keys: pa.Array, values: pa.Array, words: npt.NDArray[np.uint64] | None = None
) -> pa.RecordBatch:
    """Columns `key` and `value`. A key that is there twice is merged by the one rule of all rows. `words` are the
    tokens of the keys (`token_words`), where they are known already."""
    order, same_key = key_order(keys, words)
    keys, values = take_binary(keys, order), take_binary(values, order)
    if same_key.any():
        keys, values = _merged(schema, keys, values, same_key)
    return pa.RecordBatch.from_arrays([keys, values], schema=ROWS_SCHEMA)


def drop_repeats(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Without those that say the same as the next: heads of one partition, as a rule."""
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
    members = values.filter(pa.array(np.repeat(unequal, groups.sizes))).to_pylist()
    merged, start = [], 0
    for size in groups.sizes[unequal].tolist():
        merged.append(merge_all(members[start : start + size], schema))
        start += size
    order = np.where(unequal, len(found) + np.cumsum(unequal) - 1, np.arange(len(found)))
    return keys, pa.concat_arrays([found, pa.array(merged, pa.binary())]).take(pa.array(order))
