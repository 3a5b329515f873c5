"""Sources that fail at any time: no row twice, none left out, and who cannot be followed is an error."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from ebla.model.errors import ConnectionLost, EblaError, InvalidRequest, Overloaded, Stale, Unavailable, Unreachable
from ebla.model.token import Token, TokenRange
from ebla.source.read import failover as subject
from ebla.source.read.failover import SourceFailed, choose_replicas, read_with_failover
from ebla.source.read.planner import SplitRange

RANGE = TokenRange(Token(0), Token(1_000))
NAMES = ("a", "b", "c")
Row = tuple[int, int]
"""A number within its partition, and a token."""


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.int64())], ["n", "token"]
    )


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    return [(row["n"], row["token"]) for one in batches for row in one.to_pylist()]


class Copies:
    """All sources have the same rows, in batches of their own sizes; a source fails when its time has come."""

    def __init__(self, rows: list[Row], failures: dict[int, list[tuple[int, EblaError]]], seed: int = 0) -> None:
        self._rows = rows
        self._failures = failures
        """Of each source: after how many rows, and how, for one call after the other."""
        self._rng = random.Random(seed)
        self.asked: list[tuple[tuple[int, ...], TokenRange]] = []

    def open(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        self.asked.append((sources, token_range))
        rows = [row for row in self._rows if token_range.start < row[1] <= token_range.end]
        ends = [(self._failures[place].pop(0), place) for place in sources if self._failures.get(place)]
        end, failure = len(rows), None
        if ends:
            (after, error), place = min(ends, key=lambda one: one[0][0])
            end, failure = min(after, end), SourceFailed(place, error)
        start = 0
        while start < end:
            size = min(self._rng.randrange(1, 40), end - start)
            yield batch(rows[start : start + size])
            start += size
        if failure is not None:
            raise failure


def read(piece: SplitRange, copies: Copies) -> tuple[list[Row], list[float]]:
    pauses: list[float] = []
    return rows_of(list(read_with_failover(piece, copies.open, NAMES, pauses.append))), pauses


def some_rows(seed: int, per_token: int) -> list[Row]:
    rng = random.Random(seed)
    tokens = sorted(rng.sample(range(1, 1_001), 60))
    return [(n, token) for token in tokens for n in range(rng.randrange(1, per_token + 1))]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("per_token", [1, 7, 60])
def test_whatever_fails_each_row_comes_once(seed: int, per_token: int) -> None:
    rows = some_rows(seed, per_token)
    rng = random.Random(seed + 1)
    lost: EblaError = ConnectionLost("it is gone")
    failures = {place: [(rng.randrange(0, len(rows)), lost) for _ in range(3)] for place in range(3)}
    piece = SplitRange(range=RANGE, sources=(0, 1, 2), needed=1 + seed % 2)
    found, _ = read(piece, Copies(rows, failures, seed))
    assert found == rows


def test_the_next_source_goes_on_behind_the_last_whole_token() -> None:
    rows = [(0, 10), (1, 10), (0, 20), (1, 20), (0, 30)]
    copies = Copies(rows, {0: [(4, Stale("moved"))]})
    found, pauses = read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)
    assert found == rows
    assert copies.asked == [((0,), RANGE), ((1,), TokenRange(Token(10), Token(1_000)))]
    assert pauses == []


def test_a_source_that_has_no_rows_at_all() -> None:
    assert read(SplitRange(range=RANGE, sources=(0,), needed=1), Copies([], {})) == ([], [])


def test_what_moved_is_not_asked_again() -> None:
    copies = Copies([(0, 1)], {0: [(0, Stale("moved"))], 1: [(0, Stale("moved too"))]})
    with pytest.raises(Unavailable, match=r"a: moved; b: moved too.*run the action again"):
        read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)
    assert len(copies.asked) == 2


def test_who_may_come_back_is_asked_again_after_a_while() -> None:
    gone = Unreachable("no route")
    copies = Copies([(0, 1)], {0: [(0, gone)] * 2, 1: [(0, Stale("moved"))]})
    found, pauses = read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)
    assert found == [(0, 1)]
    assert [sources for sources, _ in copies.asked] == [(0,), (1,), (0,), (0,)]
    assert pauses == [0.5, 1.0]


def test_that_has_an_end() -> None:
    copies = Copies([(0, 1)], {0: [(0, Unreachable("no route"))] * 100})
    with pytest.raises(Unavailable, match="no route"):
        read(SplitRange(range=RANGE, sources=(0,), needed=1), copies)
    assert len(copies.asked) == 1 + subject.ROUNDS_MAX


def test_room_is_waited_for_longer() -> None:
    copies = Copies([(0, 1)], {0: [(0, Overloaded("full"))] * 20})
    found, pauses = read(SplitRange(range=RANGE, sources=(0,), needed=1), copies)
    assert found == [(0, 1)]
    assert pauses == [subject.PAUSE_ROOM_S] * 20


def test_a_question_that_is_wrong_is_not_asked_elsewhere() -> None:
    class Wrong(Copies):
        def open(self, sources: tuple[int, ...], token_range: TokenRange) -> Iterator[pa.RecordBatch]:
            yield from super().open(sources, token_range)
            raise InvalidRequest("no such column")

    copies = Wrong([], {})
    with pytest.raises(InvalidRequest, match="no such column"):
        read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)
    assert len(copies.asked) == 1


def test_a_partition_larger_than_what_is_held_goes_out_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "HELD_BYTES_MAX", 1_000)
    rows = [(n, 500) for n in range(5_000)] + [(0, 600)]
    copies = Copies(rows, {})
    let_out = read_with_failover(SplitRange(range=RANGE, sources=(0,), needed=1), copies.open, NAMES, lambda _: None)
    first = next(let_out)
    assert len(first) < 200, "it is not gathered first"
    assert rows_of([first, *let_out]) == rows


def test_and_in_its_middle_nobody_else_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "HELD_BYTES_MAX", 1_000)
    rows = [(n, 500) for n in range(5_000)]
    copies = Copies(rows, {0: [(3_000, ConnectionLost("cut off"))]})
    with pytest.raises(ConnectionLost, match=r"a failed in the middle.*cut off.*maxFailures"):
        read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)


def test_behind_it_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "HELD_BYTES_MAX", 1_000)
    rows = [(n, 500) for n in range(1_000)] + [(0, token) for token in range(501, 700)]
    copies = Copies(rows, {0: [(1_100, ConnectionLost("cut off"))]})
    found, _ = read(SplitRange(range=RANGE, sources=(0, 1), needed=1), copies)
    assert found == rows
    assert copies.asked[1][1].start >= 500


def test_as_many_sources_as_the_level_needs() -> None:
    piece = SplitRange(range=RANGE, sources=(2, 0, 1), needed=2)
    gone = Unreachable("gone")
    assert choose_replicas(piece, {}) == (2, 0)
    assert choose_replicas(piece, {0: gone}) == (2, 1)
    assert choose_replicas(piece, {0: gone, 1: gone}) is None


def test_of_each_datacenter_its_own() -> None:
    piece = SplitRange(range=RANGE, sources=(0, 1, 2, 3), needed=2, groups=(((0, 1), 1), ((2, 3), 1)))
    gone = Unreachable("gone")
    assert choose_replicas(piece, {}) == (0, 2)
    assert choose_replicas(piece, {0: gone, 3: gone}) == (1, 2)
    assert choose_replicas(piece, {0: gone, 1: gone}) is None
