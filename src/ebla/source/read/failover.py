"""Reads a token range to its end although sources fail on the way, and yields no row twice.

Sources are replicas on different nodes: they need not send the same rows in the same batches, nor have the same rows at
all. So what has been yielded always ends with a whole token, and another source continues after it. Where a single
token has more rows than are buffered, its rows are yielded as they come; if the source fails then, the task fails and
Spark runs it again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa

from ebla.model.errors import ConnectionLost, EblaError, Overloaded, Unavailable
from ebla.model.token import Token, TokenRange
from ebla.source.read.planner import SplitRange

HELD_BYTES_MAX = 16 << 20
ROUNDS_MAX = 5
"""How often all sources are tried again without any progress, after transient errors."""
PAUSE_FIRST_S = 0.5
ROOM_ROUNDS_MAX = 120
PAUSE_ROOM_S = 2.0
"""Nodes that have no room for more streams are retried for some minutes: other streams end."""


class SourceFailed(Exception):
    """An error of one source, by its position in the split."""

    def __init__(self, place: int, error: EblaError) -> None:
        super().__init__(f"source {place}: {error}")
        self.place = place
        self.error = error


class OpenRows(Protocol):
    def __call__(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """Rows of these sources, merged, in token order; the last column is the token. Raises `SourceFailed` at any
        time, and errors that every source would raise."""
        ...


def read_with_failover(
    split_range: SplitRange, open_rows: OpenRows, names: tuple[str, ...], pause: Callable[[float], object]
) -> Iterator[pa.RecordBatch]:
    """`names` of the split's sources, for error messages."""
    failures: dict[int, EblaError] = {}
    whole = WholeTokenBuffer()
    start, rounds = split_range.range.start, 0
    while start != split_range.range.end:
        chosen = choose_replicas(split_range, failures)
        if chosen is None:
            if not _may_try_again(failures, rounds):
                raise too_few_replicas(split_range, failures, names)
            pause(_pause_s(failures, rounds))
            rounds += 1
            failures = {place: error for place, error in failures.items() if not error.is_transient}
            continue
        try:
            for batch in open_rows(chosen, TokenRange(start, split_range.range.end)):
                yield from whole.add(batch)
            yield from whole.rest()
            return
        except SourceFailed as failed:
            failures[failed.place] = failed.error
            if whole.is_in_middle:
                raise _broken_in_middle(failed, names) from None
            before, start = start, whole.drop_held(start)
            rounds = rounds if start == before else 0


def choose_replicas(split_range: SplitRange, failures: Mapping[int, EblaError]) -> tuple[int, ...] | None:
    """The preferred sources that have not failed; None where they are too few for the consistency level."""
    groups = split_range.groups or ((split_range.sources, split_range.needed),)
    chosen: list[int] = []
    for members, count in groups:
        left = [source for source in members if source not in failures]
        if len(left) < count:
            return None
        chosen += left[:count]
    return tuple(chosen)


class WholeTokenBuffer:
    """Holds back the rows of the last token until the next token begins."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._held_token: int | None = None
        self._after: int | None = None
        """The last token whose rows were all yielded."""
        self.is_in_middle = False
        """Some rows of the held token were yielded."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not len(batch):
            return
        tokens = batch.column(batch.num_columns - 1).to_numpy()
        last = int(tokens[-1])
        cut = int(np.searchsorted(tokens, last, side="left"))
        if self._held_token not in (None, last) or cut:
            self._held.append(batch.slice(0, cut))
            yield from self._release()
            self._after = int(tokens[cut - 1]) if cut else self._held_token
            self.is_in_middle = False
        self._held_token = last
        self._held.append(batch.slice(cut))
        self._held_bytes += self._held[-1].nbytes
        if self._held_bytes > HELD_BYTES_MAX:
            self.is_in_middle = True
            yield from self._release()

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._release()
        self._after, self._held_token, self.is_in_middle = self._held_token, None, False

    def drop_held(self, start: Token) -> Token:
        """Returns the token after which another source continues."""
        assert not self.is_in_middle
        self._held, self._held_bytes, self._held_token = [], 0, None
        return start if self._after is None else Token(self._after)

    def _release(self) -> Iterator[pa.RecordBatch]:
        """As one batch, so that a few held rows are not a batch of their own."""
        held = [batch for batch in self._held if len(batch)]
        self._held, self._held_bytes = [], 0
        if held:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)


def too_few_replicas(split_range: SplitRange, failures: Mapping[int, EblaError], names: tuple[str, ...]) -> Unavailable:
    causes = "; ".join(f"{names[place]}: {error.message}" for place, error in failures.items())
    needed = sum(count for _, count in split_range.groups) or split_range.needed
    return Unavailable(
        f"of the nodes that have tokens {split_range.range.start} to {split_range.range.end}, {needed} must answer "
        f"at this consistency level, and too few do ({causes})",
        advice="run the action again, which plans the read again: tablets may have moved, or nodes may be down",
    )


def _broken_in_middle(failed: SourceFailed, names: tuple[str, ...]) -> ConnectionLost:
    return ConnectionLost(
        f"{names[failed.place]} failed in the middle of a large partition: {failed.error.message}",
        advice="no other node can continue inside a partition; Spark runs the task again from its start if "
        "spark.task.maxFailures allows it (with a local master: local[N,4])",
    )


def _has_room_problem(failures: Mapping[int, EblaError]) -> bool:
    return any(isinstance(error, Overloaded) for error in failures.values())


def _may_try_again(failures: Mapping[int, EblaError], rounds: int) -> bool:
    if not any(error.is_transient for error in failures.values()):
        return False
    return rounds < (ROOM_ROUNDS_MAX if _has_room_problem(failures) else ROUNDS_MAX)


def _pause_s(failures: Mapping[int, EblaError], rounds: int) -> float:
    return PAUSE_ROOM_S if _has_room_problem(failures) else PAUSE_FIRST_S * 2**rounds
