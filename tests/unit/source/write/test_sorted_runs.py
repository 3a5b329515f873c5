"""Runs: sorted, each key once, every row at all the targets of its route and nowhere else."""

from random import Random

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import column, table

from ebla.model.errors import InternalError
from ebla.model.schema import ColumnKind
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.source.write.sorted_runs import route_rows, rows_within, sort_and_route
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.columns.load_encoding import EncodedRows, WriteStamp, encode_upserts
from ebla.storage.merge.chunk_merge import sort_rows
from ebla.wire.table_calls import StagingRoute

NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))


def some(rng: Random, count: int, keys_max: int = 1_000_000) -> EncodedRows:
    keys = pa.array([rng.randrange(keys_max) for _ in range(count)], pa.int32())
    texts = pa.array([f"text of {key}" for key in keys.to_pylist()])
    return encode_upserts(NARROW, pa.record_batch({"p": keys, "v": texts}), WriteStamp(timestamp_us=7, at_s=1))


def random_routes(rng: Random, targets: int) -> tuple[StagingRoute, ...]:
    bounds = sorted({rng.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(rng.randrange(1, 9))})
    if rng.random() < 0.5:
        bounds[-1] = TOKEN_MAX
    ranges = [TokenRange(Token(bounds[place - 1]), Token(bounds[place])) for place in range(len(bounds))]
    return tuple(
        StagingRoute(one, tuple(sorted(rng.sample(range(targets), rng.randrange(1, targets + 1))))) for one in ranges
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_at_all_its_targets_and_nowhere_else(seed: int) -> None:
    rng = Random(seed)
    routes = random_routes(rng, 4)
    # With few different keys some are there twice.
    keys_max = rng.choice((100, 1_000_000))
    parts = [some(rng, rng.randrange(1, 200), keys_max=keys_max) for _ in range(3)]
    values = {key: value for part in parts for key, value in zip(*(column.to_pylist() for column in part))}
    found: dict[int, list[bytes]] = {}
    for one in sort_and_route(NARROW, routes, parts):
        for target in one.targets:
            assert target not in found, "one run for each target"
            items = [item for batch in one.batches for item in zip(*(column.to_pylist() for column in batch.columns))]
            assert all(values[key] == value for key, value in items), "a row keeps its own value"
            found[target] = [key for key, _ in items]
    expected: dict[int, set[bytes]] = {}
    for keys, _ in parts:
        for key in keys.to_pylist():
            (route,) = [route for route in routes if decode_token(key) in route.range]
            for target in route.targets:
                expected.setdefault(target, set()).add(key)
    assert found == {target: sorted(keys) for target, keys in expected.items()}


def test_targets_with_the_same_rows_stand_together() -> None:
    middle = Token(0)
    routes = (
        StagingRoute(TokenRange(Token(TOKEN_MIN), middle), (0, 2)),
        StagingRoute(TokenRange(middle, Token(TOKEN_MAX)), (0, 1, 2)),
    )
    found = route_rows(sort_rows(NARROW, *some(Random(1), 300)), routes)
    assert [one.targets for one in found] == [(0, 2), (1,)]
    assert len(found[0].batches) == 1, "neighbours are one piece"
    assert found[0].rows == 300
    assert 0 < found[1].rows < 300


def test_a_row_without_a_place_is_an_error_and_not_lost() -> None:
    routes = (StagingRoute(TokenRange(Token(TOKEN_MIN), Token(0)), (0,)),)
    with pytest.raises(InternalError, match=r"of 300 rows"):
        route_rows(sort_rows(NARROW, *some(Random(1), 300)), routes)


@pytest.mark.parametrize("seed", range(10))
def test_rows_within_ranges(seed: int) -> None:
    rng = Random(seed)
    rows = sort_rows(NARROW, *some(rng, 200))
    ranges = [TokenRange(*(Token(rng.randrange(TOKEN_MIN, TOKEN_MAX)) for _ in range(2))) for _ in range(2)]
    kept = [key for key in rows.column(0).to_pylist() if any(decode_token(key) in one for one in ranges)]
    assert rows_within(rows, ranges).column(0).to_pylist() == kept
    assert rows_within(rows, [WHOLE_RING]) is rows
