"""Plans of jobs under a topology: ranges, sources, targets, and the errors of invalid jobs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.job_plans_rig import TABLETS, VNODES, WORLD, a_cluster, on_vnodes
from tests.unit.topology.world import host

from ebla.model.errors import EblaError, InvalidRequest, NotFound, Unavailable
from ebla.model.identity import HostId, TableId
from ebla.model.records.jobs import CompareReplicas, CopyTablets, JobSpec, StreamRange
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange, covering_range, merge_ranges
from ebla.pipeline.job_plans import (
    ComparePlan,
    FileCopyPlan,
    RowStreamPlan,
    plan_job,
)
from ebla.topology.commands import StartMoves, TabletMove
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.states import TransitionKind
from ebla.transfers.token_ranges import replica_ranges

SETS = ReplicaSets(WORLD.snapshot)


# ---- files


def test_a_tablet_goes_from_one_replica_to_another() -> None:
    plan = plan_job(SETS, CopyTablets(table=TABLETS, tablets=(1,), source=host(2), target=host(4)), ())
    assert isinstance(plan, FileCopyPlan)
    tablets = WORLD.snapshot.tablets[TABLETS]
    (copy,) = plan.copies
    assert copy.range == TokenRange(Token(tablets.after_token(1)), Token(tablets.last_token(1)))
    assert (copy.source.host, copy.source.shard) == (host(2), 1)
    assert (copy.target.host, copy.target.shard) == (host(4), 1)


def test_tablets_that_are_named_twice_are_copied_once() -> None:
    world, _ = a_cluster()
    table = world.create_table(4, 4)
    plan = plan_job(
        ReplicaSets(world.snapshot), CopyTablets(table=table, tablets=(3, 0, 3), source=host(1), target=host(2)), ()
    )
    assert isinstance(plan, FileCopyPlan)
    tablets = world.snapshot.tablets[table]
    assert [copy.range.end for copy in plan.copies] == [tablets.last_token(0), tablets.last_token(3)]


def test_a_pending_replica_is_a_target_and_no_source() -> None:
    world, _ = a_cluster()
    table = world.create_table(4, 3)
    old = world.snapshot.tablets[table].replicas(0)
    new = (*old[:2], type(old[0])(host(4), old[0].shard))
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=new),)))
    sets = ReplicaSets(world.snapshot)
    plan = plan_job(sets, CopyTablets(table=table, tablets=(0,), source=host(1), target=host(4)), ())
    assert isinstance(plan, FileCopyPlan)
    assert plan.copies[0].target == new[2]
    with pytest.raises(InvalidRequest, match="holds no replica of tablet 0"):
        plan_job(sets, CopyTablets(table=table, tablets=(0,), source=host(4), target=host(1)), ())


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        (
            CopyTablets(table=TABLETS, tablets=(4,), source=host(1), target=host(2)),
            InvalidRequest,
            "ks.t has no tablet 4; its tablets are 0 to 3",
        ),
        (
            CopyTablets(table=TABLETS, tablets=(0, -1), source=host(1), target=host(2)),
            InvalidRequest,
            "has no tablet -1",
        ),
        (
            CopyTablets(table=TABLETS, tablets=(), source=host(1), target=host(2)),
            InvalidRequest,
            "no tablet of ks.t is named",
        ),
        (
            CopyTablets(table=VNODES, tablets=(0,), source=host(1), target=host(2)),
            InvalidRequest,
            "ring.t is on vnodes and has no tablets",
        ),
        (CopyTablets(table=TABLETS, tablets=(0,), source=host(1), target=host(1)), InvalidRequest, "to itself"),
        (
            CopyTablets(table=TABLETS, tablets=(0,), source=host(4), target=host(1)),
            InvalidRequest,
            r"127.0.0.4 \(.*\) holds no replica",
        ),
        (
            CopyTablets(table=TABLETS, tablets=(0,), source=host(1), target=host(4)),
            InvalidRequest,
            "127.0.0.4 .* is no replica of tablet 0",
        ),
        (CopyTablets(table=TABLETS, tablets=(0,), source=host(1), target=host(3)), Unavailable, "127.0.0.3 .* is down"),
        (
            CopyTablets(table=TABLETS, tablets=(0,), source=host(9), target=host(1)),
            InvalidRequest,
            "is no node of this cluster",
        ),
        (
            CopyTablets(table=TableId(host(77)), tablets=(0,), source=host(1), target=host(2)),
            NotFound,
            "there is no table",
        ),
        (
            StreamRange(table=TABLETS, range=WHOLE_RING, sources=(host(1),), target=host(2)),
            InvalidRequest,
            "holds no replica of ks.t in",
        ),
        (StreamRange(table=TABLETS, range=WHOLE_RING, sources=(), target=host(2)), InvalidRequest, "no source"),
        (StreamRange(table=TABLETS, range=WHOLE_RING, sources=(host(2),), target=host(2)), InvalidRequest, "to itself"),
        (CompareReplicas(TABLETS), Unavailable, "127.0.0.3 .* is down"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(spec: JobSpec, kind: type[EblaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        plan_job(SETS, spec, (host(3),))


# ---- rows


def test_rows_are_cut_by_the_tablets_of_the_target() -> None:
    first, second = (WORLD.snapshot.tablets[TABLETS].last_token(number) for number in (0, 1))
    asked = TokenRange(Token(first - 10), Token(second))
    plan = plan_job(SETS, StreamRange(table=TABLETS, range=asked, sources=(host(2),), target=host(3)), ())
    assert isinstance(plan, RowStreamPlan)
    assert [copy.range for copy in plan.copies] == ranges((first - 10, first), (first, second))
    assert all(replica.host == host(3) for copy in plan.copies for replica in copy.targets)


def test_of_a_range_the_target_must_be_a_replica_everywhere() -> None:
    tablets = WORLD.snapshot.tablets[TABLETS]
    asked = TokenRange(Token(tablets.after_token(1)), Token(tablets.last_token(2)))
    with pytest.raises(InvalidRequest, match=r"is no replica of ks\.t in"):
        plan_job(SETS, StreamRange(table=TABLETS, range=asked, sources=(host(3),), target=host(2)), ())


def test_a_joining_node_is_streamed_to_before_it_is_read() -> None:
    world, coordinator = a_cluster(3)
    table = on_vnodes(world)
    world.ask_to_join(world.node(4, ignore_msb=0))
    for _ in range(20):
        coordinator.step()
        pending = [piece for piece in replica_ranges(ReplicaSets(world.snapshot), table, WHOLE_RING) if piece.pending]
        if pending:
            break
    assert pending
    piece = pending[0]
    assert {replica.host for replica in piece.pending} == {host(4)}
    sets = ReplicaSets(world.snapshot)
    source = piece.replicas[0].host
    plan = plan_job(sets, StreamRange(table=table, range=piece.range, sources=(source,), target=host(4)), ())
    assert isinstance(plan, RowStreamPlan)
    assert [copy.targets for copy in plan.copies] == [piece.pending]
    with pytest.raises(InvalidRequest, match="holds no replica"):
        plan_job(sets, StreamRange(table=table, range=piece.range, sources=(host(4),), target=source), ())


# ---- comparing


def test_a_table_is_compared_where_it_has_replicas() -> None:
    plan = plan_job(SETS, CompareReplicas(TABLETS, heal=True), ())
    assert isinstance(plan, ComparePlan)
    assert plan.heal
    assert len(plan.ranges) == 4, "each tablet is a stack of its own"
    assert [len(piece.replicas) for piece in plan.ranges] == [3, 3, 3, 3]
    tablets = WORLD.snapshot.tablets[TABLETS]
    assert all(set(piece.replicas) == set(tablets.replicas(number)) for number, piece in enumerate(plan.ranges))


tokens = st.one_of(st.integers(TOKEN_MIN, TOKEN_MAX), st.sampled_from([TOKEN_MIN, TOKEN_MAX, -1, 0]))


@settings(deadline=None, max_examples=150)
@given(table=st.sampled_from([TABLETS, VNODES]), start=tokens, end=tokens, probe=tokens)
def test_pieces_are_the_range_and_each_lies_in_one_stack(table: TableId, start: int, end: int, probe: int) -> None:
    asked = TokenRange(Token(start), Token(end))
    pieces = list(replica_ranges(SETS, table, asked))
    assert sum(piece.range.width for piece in pieces) == sum(part.width for part in asked.unwrapped())
    replicas = SETS.of(table)
    for piece in pieces:
        assert not piece.range.wraps
        for token in (piece.range.start + 1, piece.range.end, _within(piece.range, probe)):
            assert set(replicas.reading(token)) == set(piece.replicas)
            for replica in piece.replicas:
                if table == VNODES:
                    assert replica.shard == static_shard(token, 2, 0)
    for one, other in itertools.pairwise(pieces):
        assert one.range.end <= other.range.start
        if table == VNODES and one.range.end == other.range.start != asked.start:
            assert one.replicas != other.replicas, "as few as there can be"


def _within(part: TokenRange, probe: int) -> int:
    return part.start + 1 + (probe - TOKEN_MIN) % part.width


# ---- ranges


def ranges(*ends: tuple[int, int]) -> list[TokenRange]:
    return [TokenRange(Token(start), Token(end)) for start, end in ends]


def test_neighbours_are_joined() -> None:
    assert merge_ranges(ranges((10, 20), (0, 10), (30, 40)), 2) == tuple(ranges((0, 20), (30, 40)))
    assert merge_ranges(ranges((10, 20), (0, 5), (30, 40)), 2) == tuple(ranges((0, 40))), "too many: one over all"


def test_a_hull_is_the_least_range_over_all() -> None:
    assert covering_range(ranges((10, 20), (-5, 0))) == TokenRange(Token(-5), Token(20))


def test_no_host_is_asked_for_twice() -> None:
    asked = TokenRange(Token(0), Token(10))
    holders = [replica.host for replica in SETS.of(TABLETS).reading(5)]
    plan = plan_job(
        SETS, StreamRange(table=TABLETS, range=asked, sources=(holders[0], holders[0]), target=HostId(holders[1])), ()
    )
    assert isinstance(plan, RowStreamPlan)
    assert [copy.sources for copy in plan.copies] == [(holders[0],)]
