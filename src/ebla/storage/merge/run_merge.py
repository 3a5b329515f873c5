"""A k-way merge of runs of staged rows, each a file in key order, into one stream in key order with every key once.

Each run has one record in memory. A window ends at the least of the last keys of the runs that have more, so that every
row up to there is known. Within it rows are sorted by token, and only repeated keys are decoded and merged, by the same
rule as all rows. A run that overlaps no other passes unchanged.

A run written by another process is read once and verified on the way: the bytes that are used are those that were
checked.

If there are more runs than can be open at once, or their records would take too much memory, they are merged in rounds:
groups of them into intermediate files first.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk, File
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.key_codec import token_word
from ebla.storage.codec.row_file import RECORD_HEADER_BYTES, decode_body, read_header, read_raw, records_of
from ebla.storage.columns.key_columns import token_words
from ebla.storage.layers.layer import KEY_BYTES_MIN
from ebla.storage.merge.chunk_merge import KeySequence, sort_rows

RUNS_OPEN_MAX = 256
BUFFERED_BYTES_MAX = 256 << 20
"""Of records in memory at once, one for each run."""
WINDOW_ROWS = 32 * 1024
"""About how many are sorted at once: fewer cost more calls for each row, more do not stay in the processor's caches."""
WINDOW_ROWS_OF_RUN = 256
"""Or this many of each run, where there are many: cutting a run has a fixed cost."""
ROUND_RECORD_BYTES = 1 << 20
"""Of an intermediate file."""

Words = npt.NDArray[np.uint64]
_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class RunRules:
    """What the rows of a run must satisfy."""

    range: TokenRange
    schema: TableSchema
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Of whole files, by path. A file without one was written by this process."""


class RowOrderCheck:
    """Checks records as they pass: keys strictly ascending from the first to the last, all in one range."""

    def __init__(self, token_range: TokenRange) -> None:
        self._range = token_range
        self._last: bytes | None = None

    def check(self, batch: pa.RecordBatch) -> Words:
        """The tokens, as numbers of the same order. Raises `InvalidRequest`."""
        keys = batch.column(0)
        if pc.min(pc.binary_length(keys)).as_py() < KEY_BYTES_MIN:
            raise InvalidRequest("a staged row has a key that is too short")
        words = token_words(keys)
        is_next = self._last is None or keys[0].as_py() > self._last
        if not is_next or not _ascend(keys, words):
            raise InvalidRequest("staged rows are not in the order of their keys, each once")
        self._check_range(words)
        self._last = keys[-1].as_py()
        return words

    def _check_range(self, words: Words) -> None:
        start, end = np.uint64(self._range.start + _SIGN), np.uint64(self._range.end + _SIGN)
        inside = (words > start) | (words <= end) if self._range.wraps else (words > start) & (words <= end)
        if not inside.all():
            token = int(words[np.argmin(inside)]) - _SIGN
            raise InvalidRequest(f"a staged row has token {token}, outside of {self._range.start} to {self._range.end}")


def _ascend(keys: pa.Array, words: Words) -> bool:
    """By tokens, which are numbers; keys are compared only where tokens are equal."""
    if (words[1:] > words[:-1]).all():
        return True
    return len(keys) < 2 or bool(pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


class _Run:
    """One file, and the rest of its current record."""

    def __init__(self, file: File, rules: RunRules) -> None:
        self._file = file
        self._size = file.size()
        self._offset = 0
        self._expected = rules.checksums.get(file.path)
        self._checksum = 0
        self._order = RowOrderCheck(rules.range)
        self._batch: pa.RecordBatch | None = None
        self._words: Words = np.empty(0, np.uint64)
        """The tokens of its rows."""
        self.last_key = b""
        self._advance()

    @property
    def is_over(self) -> bool:
        return self._batch is None

    @property
    def has_more(self) -> bool:
        """Whether the file has more than is in memory."""
        return self._offset < self._size

    def key_at(self, position: int) -> bytes:
        """The key of a row in memory."""
        assert self._batch is not None
        key: bytes = self._batch.column(0)[position].as_py()
        return key

    def take_all(self) -> tuple[pa.RecordBatch, Words]:
        taken = self._batch, self._words
        self._advance()
        return taken

    def take_through(self, end: bytes) -> tuple[pa.RecordBatch, Words] | None:
        """The rows up to this key; None: there are none."""
        if self.last_key <= end:
            return self.take_all()
        batch, words = self._batch, self._words
        count = self.rows_through(end)
        if not count:
            return None
        assert batch is not None
        self._batch, self._words = batch.slice(count), words[count:]
        return batch.slice(0, count), words[:count]

    def rows_through(self, end: bytes) -> int:
        """By tokens first, which are numbers; keys are compared only where tokens are equal."""
        if self.last_key <= end:
            return len(self._words)
        assert self._batch is not None
        word = np.uint64(token_word(end))
        below, through = (int(np.searchsorted(self._words, word, side)) for side in ("left", "right"))
        if below == through:
            return below
        return below + bisect_right(KeySequence(self._batch.column(0).slice(below, through - below)), end)

    def _advance(self) -> None:
        self._batch = None
        if self._offset < self._size:
            header, body = read_raw(self._file, self._offset)
            self._offset += len(header) + len(body)
            self._verify(header, body)
            self._batch = decode_body(read_header(header, self._file.path), body, self._file.path)
            self._words = self._order.check(self._batch)
            self.last_key = self._batch.column(0)[-1].as_py()

    def _verify(self, header: bytes, body: bytes) -> None:
        """Runs before the last rows are used, so a caller that reads a run to its end has read what was sent."""
        if self._expected is None:
            return
        self._checksum = crc32(body, crc32(header, self._checksum))
        if self._offset >= self._size and self._checksum != self._expected:
            raise Corruption(f"{self._file.path} is not what its source has", advice="run the job again")


def merge_run_files(disk: Disk, paths: Sequence[str], rules: RunRules) -> Iterator[pa.RecordBatch]:
    """Merges all runs at once, into batches with the columns `key` and `value`. Blocks while it reads. Raises
    `Corruption` for a damaged run, and `InvalidRequest` for rows out of order or range."""
    with ExitStack() as files:
        runs = []
        for path in paths:
            file = disk.open(path)
            files.callback(file.close)
            runs.append(_Run(file, rules))
        yield from _merged(runs, rules.schema)


def _merged(runs: list[_Run], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    while ahead := [run for run in runs if not run.is_over]:
        runs = ahead
        if len(ahead) == 1:
            yield ahead[0].take_all()[0]
            continue
        end = _window_end(ahead)
        parts = [part for run in ahead if (part := run.take_through(end)) is not None]
        yield _in_order(parts, schema) if len(parts) > 1 else parts[0][0]


def _window_end(runs: Sequence[_Run]) -> bytes:
    bounds = [run.last_key for run in runs if run.has_more]
    end = min(bounds) if bounds else max(run.last_key for run in runs)
    counts = [run.rows_through(end) for run in runs]
    rows, wanted = sum(counts), max(WINDOW_ROWS, WINDOW_ROWS_OF_RUN * len(runs))
    if rows <= wanted:
        return end
    most = max(counts)
    return runs[counts.index(most)].key_at(most * wanted // rows)


def _in_order(parts: Sequence[tuple[pa.RecordBatch, Words]], schema: TableSchema) -> pa.RecordBatch:
    joined = pa.concat_batches([batch for batch, _ in parts])
    keys, values = joined.columns
    return sort_rows(schema, keys, values, np.concatenate([words for _, words in parts]))


# -- rounds ----------------------------------------------------------------------------------------------------------


class MergeRounds:
    """Merges many runs into as few as can be merged at once, in a folder of its own."""

    def __init__(self, disk: Disk, rules: RunRules, folder: str) -> None:
        self._disk = disk
        self._rules = rules
        self._folder = folder
        self._files = 0

    async def few(self, paths: Sequence[str]) -> Sequence[str]:
        """Returns paths of fewer runs with the same rows."""
        groups = merge_groups([largest_record_bytes(self._disk, path) for path in paths])
        while len(groups) > 1:
            self._disk.make_folder(self._folder)
            paths = [await self._one([paths[position] for position in group]) for group in groups]
            groups = merge_groups([largest_record_bytes(self._disk, path) for path in paths])
        return paths

    async def remove(self) -> None:
        if self._disk.exists(self._folder):
            await self._disk.run(partial(self._disk.remove_folder, self._folder))

    async def _one(self, paths: Sequence[str]) -> str:
        if len(paths) == 1:
            return paths[0]
        path = f"{self._folder}/{self._files}"
        self._files += 1
        file = self._disk.create(path)
        try:
            for record in records_of(merge_run_files(self._disk, paths, self._rules), ROUND_RECORD_BYTES):
                file.append(record)
                await asyncio.sleep(0)
        finally:
            file.close()
        for one in paths:
            if one.startswith(f"{self._folder}/"):
                self._disk.unlink(one)
        return path


def merge_groups(record_bytes: Sequence[int]) -> list[range]:
    """Groups of runs to merge together, by the largest record of each. Pure. Of two or more groups each but the last
    has
    at least two runs, so that the rounds end."""
    groups: list[range] = []
    first, size = 0, 0
    for position, one in enumerate(record_bytes):
        count = position - first
        if count >= 2 and (count >= RUNS_OPEN_MAX or size + one > BUFFERED_BYTES_MAX):
            groups.append(range(first, position))
            first, size = position, 0
        size += one
    groups.append(range(first, len(record_bytes)))
    return groups


def largest_record_bytes(disk: Disk, path: str) -> int:
    """Reads only headers. Blocks. Raises `Corruption`."""
    file = disk.open(path)
    try:
        largest = offset = 0
        while offset < file.size():
            record_bytes = read_header(file.read(offset, RECORD_HEADER_BYTES), path).record_bytes
            largest, offset = max(largest, record_bytes), offset + record_bytes
        return largest
    finally:
        file.close()
