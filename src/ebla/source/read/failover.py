"""A piece of a table read to its end, whichever of its sources fail on the way, and no row of it twice.

Sources are copies of different nodes: the same rows need not come in the same batches, nor be the same at all. So what
has been let out ends with a whole token, and another source goes on behind that. Where a single token has more rows
than are held back, its rows go out as they come; if the source fails just then, the task fails and Spark runs it anew.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa

from ebla.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    EblaError,
    Overloaded,
    Unavailable,
    Unreachable,
)
from ebla.model.token import Token, TokenRange
from ebla.source.read.planner import SplitRange

HELD_BYTES_MAX = 16 << 20
ROUNDS_MAX = 5
"""How often all sources are tried again without any progress, where they may come back."""
PAUSE_FIRST_S = 0.5
ROOM_ROUNDS_MAX = 120
PAUSE_ROOM_S = 2.0
"""Nodes that have no room for more streams just now are asked again for some minutes: others end."""

_MAY_COME_BACK = (ConnectionLost, DeadlineExceeded, Overloaded, Unavailable, Unreachable)


class SourceFailed(Exception):
    """One of the sources that are read from; by its place in the share."""

    def __init__(self, place: int, error: EblaError) -> None:
        super().__init__(f"source {place}: {error}")
        self.place = place
        self.error = error


class OpenRows(Protocol):
    def __call__(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        """Rows of these sources, merged, in the order of tokens; the last column is the token. Raises `SourceFailed`,
        at any time, and other errors that no other source would mend."""
        ...


def read_with_failover(
    piece: SplitRange, open_rows: OpenRows, names: tuple[str, ...], pause: Callable[[float], object]
) -> Iterator[pa.RecordBatch]:
    """`names` of the share's sources, for words."""
    failures: dict[int, EblaError] = {}
    whole = WholeTokenBuffer()
    start, rounds = piece.range.start, 0
    while start != piece.range.end:
        chosen = choose_replicas(piece, failures)
        if chosen is None:
            if not _may_try_again(failures, rounds):
                raise too_few_replicas(piece, failures, names)
            pause(_pause_s(failures, rounds))
            rounds += 1
            failures = {place: error for place, error in failures.items() if not isinstance(error, _MAY_COME_BACK)}
            continue
        try:
            for batch in open_rows(chosen, TokenRange(start, piece.range.end)):
                yield from whole.add(batch)
            yield from whole.rest()
            return
        except SourceFailed as failed:
            failures[failed.place] = failed.error
            if whole.is_in_middle:
                raise _broken_in_middle(failed, names) from None
            before, start = start, whole.drop_held(start)
            rounds = rounds if start == before else 0


def choose_replicas(piece: SplitRange, failures: Mapping[int, EblaError]) -> tuple[int, ...] | None:
    """The best that have not failed; None where they are too few for the level."""
    groups = piece.groups or ((piece.sources, piece.needed),)
    chosen: list[int] = []
    for members, count in groups:
        left = [source for source in members if source not in failures]
        if len(left) < count:
            return None
        chosen += left[:count]
    return tuple(chosen)


class WholeTokenBuffer:
    """Rows on their way out: the last token's are held back until the next one begins."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._held_token: int | None = None
        self._after: int | None = None
        """The last token all of whose rows are out."""
        self.is_in_middle = False
        """Some rows of the held token are out."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not len(batch):
            return
        tokens = batch.column(batch.num_columns - 1).to_numpy()
        last = int(tokens[-1])
        cut = int(np.searchsorted(tokens, last, side="left"))
        if self._held_token not in (None, last) or cut:
            self._held.append(batch.slice(0, cut))
            yield from self._let_out()
            self._after = int(tokens[cut - 1]) if cut else self._held_token
            self.is_in_middle = False
        self._held_token = last
        self._held.append(batch.slice(cut))
        self._held_bytes += self._held[-1].nbytes
        if self._held_bytes > HELD_BYTES_MAX:
            self.is_in_middle = True
            yield from self._let_out()

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._let_out()
        self._after, self._held_token, self.is_in_middle = self._held_token, None, False

    def drop_held(self, start: Token) -> Token:
        """Where another source goes on."""
        assert not self.is_in_middle
        self._held, self._held_bytes, self._held_token = [], 0, None
        return start if self._after is None else Token(self._after)

    def _let_out(self) -> Iterator[pa.RecordBatch]:
        """In one batch: a few rows held back are no batch of their own."""
        held = [batch for batch in self._held if len(batch)]
        self._held, self._held_bytes = [], 0
        if held:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)


def too_few_replicas(piece: SplitRange, failures: Mapping[int, EblaError], names: tuple[str, ...]) -> Unavailable:
    told = "; ".join(f"{names[place]}: {error.message}" for place, error in failures.items())
    needed = sum(count for _, count in piece.groups) or piece.needed
    return Unavailable(
        f"of the nodes that have tokens {piece.range.start} to {piece.range.end}, {needed} must answer at this "
        f"consistency level, and too few do ({told})",
        advice="run the action again, which plans the read anew: tablets may have moved, or nodes be down",
    )


def _broken_in_middle(failed: SourceFailed, names: tuple[str, ...]) -> ConnectionLost:
    return ConnectionLost(
        f"{names[failed.place]} failed in the middle of a large partition: {failed.error.message}",
        advice="no other node goes on within one; Spark runs the task again from its begin, if spark.task.maxFailures "
        "allows it (local masters do so as local[N,4])",
    )


def _has_room_problem(failures: Mapping[int, EblaError]) -> bool:
    return any(isinstance(error, Overloaded) for error in failures.values())


def _may_try_again(failures: Mapping[int, EblaError], rounds: int) -> bool:
    if not any(isinstance(error, _MAY_COME_BACK) for error in failures.values()):
        return False
    return rounds < (ROOM_ROUNDS_MAX if _has_room_problem(failures) else ROUNDS_MAX)


def _pause_s(failures: Mapping[int, EblaError], rounds: int) -> float:
    return PAUSE_ROOM_S if _has_room_problem(failures) else PAUSE_FIRST_S * 2**rounds
