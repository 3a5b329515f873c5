"""Which ranges a checkpoint of a table answers for, by what the topology gives the node before and after."""

import uuid
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from tests.unit.topology.small_cluster import TABLE, cluster, host, network, node, one_tablet, replica, simple

from ebla.bulk.read_coverage import OwnedRanges, SnapshotCoverage, coverage_of, owned_ranges
from ebla.feed.topology_view import View, view_of
from ebla.model.identity import HistoryId, Replica, ShardNumber
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange, merge_ranges
from ebla.model.transaction import Revision
from ebla.model.transfers import CheckpointFile, CheckpointLayer, CheckpointPart
from ebla.topology.node_states import NODE_TABLE
from ebla.topology.routing.replica_sets import token_replicas
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState, TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition, tablet_map
from ebla.topology.tablet_stages import Selector, stage_row

OWN = host(1)
AT = Revision(HistoryId(uuid.UUID(int=1)), 1)
HALVES = WHOLE_RING.split(2)
NOTHING = SnapshotCoverage(ranges=(), parts=(), sizes=())
JOINING = (None, *(transition for state, transition in NODE_TABLE if state is NodeState.BOOTSTRAPPING))


def view(snapshot: Snapshot) -> View:
    return view_of(snapshot, AT)


def owned(snapshot: Snapshot) -> OwnedRanges:
    return owned_ranges(view(snapshot), TABLE, OWN)


def part(shard: int, token_range: TokenRange = WHOLE_RING, size_bytes: int = 100, rows: int = 10) -> CheckpointPart:
    layer = CheckpointLayer(folder="layer", range=token_range, files=(CheckpointFile("f", size_bytes),))
    return CheckpointPart(
        shard=ShardNumber(shard), range=token_range, layers=(layer,), rows=rows, incarnation=77 << 40 | shard
    )


def has(coverage: SnapshotCoverage, asked: TokenRange) -> bool:
    """By a ticket that was given for it."""
    return coverage.has(asked, coverage.incarnations)


def moving(stage: TabletStage, kind: TransitionKind, before: Replica, after: Replica) -> Snapshot:
    return cluster(
        node(1),
        node(2),
        tablets=one_tablet(before, transition=TabletTransition(kind=kind, stage=stage, new_replicas=(after,))),
    )


def test_ranges_are_joined_where_they_touch_and_cut_at_the_top() -> None:
    a, b, c = (TokenRange(Token(start), Token(end)) for start, end in ((0, 10), (10, 20), (30, 40)))
    assert merge_ranges([c, b, a, a]) == (TokenRange(Token(0), Token(20)), c)
    over = TokenRange(Token(30), Token(-5))
    assert merge_ranges([over]) == (TokenRange(TOKEN_MIN, Token(-5)), TokenRange(Token(30), TOKEN_MAX))
    assert merge_ranges([TokenRange(Token(7), Token(7))]) == (WHOLE_RING,)


def test_a_range_must_be_wholly_there() -> None:
    ranges = merge_ranges([TokenRange(Token(0), Token(10)), TokenRange(Token(20), Token(-20))])
    coverage = SnapshotCoverage(ranges=ranges, parts=(part(0),), sizes=(), is_by_part=False)
    for start, end in ((0, 10), (3, 4), (20, -20), (30, -30), (25, TOKEN_MIN), (TOKEN_MIN, -20), (TOKEN_MAX, -21)):
        assert has(coverage, TokenRange(Token(start), Token(end))), (start, end)
    for start, end in ((-1, 10), (0, 11), (5, 25), (12, 15), (20, 5), (-20, -20), (TOKEN_MIN, TOKEN_MAX), (0, 0)):
        assert not has(coverage, TokenRange(Token(start), Token(end))), (start, end)
    assert not has(NOTHING, WHOLE_RING)


def test_of_tablets_those_of_which_a_shard_has_a_replica() -> None:
    tablets = tablet_map(TABLE, [(replica(1), replica(2)), (replica(2),)])
    found = owned(cluster(node(1), node(2), tablets=tablets))
    coverage = coverage_of([part(0, HALVES[0], rows=7)], found, found)
    assert coverage.ranges == (HALVES[0],)
    assert [(one.range, one.size_bytes, one.rows) for one in coverage.sizes] == [(HALVES[0], 100, 7)]
    assert coverage_of([], found, found) == NOTHING, "a stack that was gone when the shard looked"
    assert coverage_of([part(0, HALVES[1])], found, found) == NOTHING, "a stack that is no replica's"
    assert coverage_of([part(1, HALVES[0])], found, found) == NOTHING, "a stack of another shard"


@pytest.mark.parametrize("stage", list(TabletStage))
def test_a_tablet_that_moves_to_another_node(stage: TabletStage) -> None:
    """The old one as long as all writes reach it; the new one from when it serves reads."""
    here, there = replica(1), replica(2)
    row = stage_row(TabletTransition(kind=TransitionKind.MIGRATION, stage=stage, new_replicas=(there,)))
    leaving = owned(moving(stage, TransitionKind.MIGRATION, here, there))
    assert bool(coverage_of([part(0)], leaving, leaving).ranges) is (row.writes is not Selector.NEXT)
    coming = owned(moving(stage, TransitionKind.MIGRATION, there, here))
    assert bool(coverage_of([part(0)], coming, coming).ranges) is (row.reads is Selector.NEXT)


def test_it_counts_neither_what_was_pending_before_nor_what_had_left_afterwards() -> None:
    pending = owned(moving(TabletStage.STREAMING, TransitionKind.MIGRATION, replica(2), replica(1)))
    natural = owned(cluster(node(1), node(2), tablets=one_tablet(replica(1))))
    gone = owned(cluster(node(1), node(2), tablets=one_tablet(replica(2))))
    assert coverage_of([part(0)], natural, natural).ranges == (WHOLE_RING,)
    assert coverage_of([part(0)], pending, natural) == NOTHING
    assert coverage_of([part(0)], natural, gone) == NOTHING
    assert coverage_of([part(0)], gone, natural) == NOTHING


def test_a_tablet_that_moves_between_shards_counts_at_the_shard_that_has_it() -> None:
    """Shard 1 is asked first, while it gets the tablet; shard 0 has lost it by the time it is asked."""
    old, new = replica(1, 0), replica(1, 1)
    before = owned(moving(TabletStage.STREAMING, TransitionKind.INTRANODE_MIGRATION, old, new))
    after = owned(cluster(node(1), tablets=one_tablet(new)))
    assert coverage_of([part(1)], before, after) == NOTHING
    assert coverage_of([part(0), part(1)], before, before).parts == (part(0),)
    both = owned(moving(TabletStage.WRITE_BOTH_READ_NEW, TransitionKind.INTRANODE_MIGRATION, old, new))
    assert coverage_of([part(0), part(1)], both, both).parts == (part(0), part(1))
    assert coverage_of([part(1)], after, after).ranges == (WHOLE_RING,)


def test_a_ticket_counts_for_the_lives_that_it_was_given_for() -> None:
    first, second = part(0, HALVES[0]), part(1, HALVES[1])
    tablets = SnapshotCoverage(ranges=(WHOLE_RING,), parts=(first, second), sizes=())
    assert tablets.has(WHOLE_RING, tablets.incarnations)
    only = SnapshotCoverage(ranges=(HALVES[0],), parts=(first,), sizes=()).incarnations
    assert [tablets.has(asked, only) for asked in (*HALVES, WHOLE_RING)] == [True, False, False]
    assert not tablets.has(HALVES[0], b"")
    vnodes = replace(tablets, is_by_part=False)
    assert [vnodes.has(HALVES[0], lives) for lives in (vnodes.incarnations, only)] == [True, False]


def test_of_vnodes_what_the_ring_gives_the_node_if_all_its_shards_are_there() -> None:
    nodes = [node(number, shard_count=2, tokens=(number * 100, number * 1000)) for number in (1, 2, 3)]
    snapshot = cluster(*nodes, replication=simple(1))
    found = owned(snapshot)
    parts = [part(0, size_bytes=600, rows=60), part(1, size_bytes=400, rows=40)]
    coverage = coverage_of(parts, found, found)
    assert coverage.parts == tuple(parts)
    for token in (-5, 99, 100, 101, 200, 300, 301, 1000, 1001, 3001, TOKEN_MAX):
        is_ours = any(one.host == OWN for one in token_replicas(snapshot, TABLE, token).natural)
        assert has(coverage, TokenRange(Token(token - 1), Token(token))) is is_ours, token
    assert coverage_of(parts[:1], found, found).ranges == ()
    alone = owned(cluster(nodes[0], replication=simple(1)))
    both = coverage_of(parts, alone, found)
    assert both.ranges == coverage_of(parts, found, alone).ranges == coverage.ranges
    (whole,) = coverage_of(parts, alone, alone).sizes
    assert (whole.range, whole.size_bytes, whole.rows) == (WHOLE_RING, 1000, 100)


def test_of_vnodes_sizes_are_shared_out_by_width() -> None:
    quarter = Token(TOKEN_MIN + (1 << 62))
    nodes = [node(1, shard_count=1, tokens=(quarter, TOKEN_MAX)), node(2, shard_count=1, tokens=(0,))]
    found = owned(cluster(*nodes, replication=simple(1)))
    sizes = coverage_of([part(0, size_bytes=3000, rows=300)], found, found).sizes
    assert [(one.range, one.size_bytes, one.rows) for one in sizes] == [
        (TokenRange(TOKEN_MIN, quarter), 1000, 100),
        (TokenRange(Token(0), TOKEN_MAX), 1999, 199),
    ]


def test_a_node_without_a_place_in_the_ring_or_without_tablets_known_owns_nothing() -> None:
    found = owned(cluster(node(2, tokens=(1,)), replication=simple(1)))
    assert coverage_of([part(0)], found, found).ranges == ()
    snapshot = cluster(node(1), tablets=one_tablet(replica(1)))
    unknown = owned(replace(snapshot, tablets=cluster(node(1)).tablets))
    assert coverage_of([part(0)], unknown, unknown) == NOTHING


def test_a_ring_in_transition_is_judged_by_its_natural_and_reading_replicas() -> None:
    """Any seed: what is covered is what the replica sets say, token by token. A third node joins."""
    random = Random(5)
    seen: dict[tuple[int, bool], None] = {}
    for _ in range(60):
        tokens = sorted(random.sample(range(-1000, 1000), 9))
        nodes = [node(number + 1, shard_count=1, tokens=tuple(tokens[number::3])) for number in range(3)]
        replication = network(dc1=random.randrange(1, 3))
        transition = random.choice(JOINING)
        state = NodeState.NORMAL if transition is None else NodeState.BOOTSTRAPPING
        joining = node(3, shard_count=1, tokens=nodes[2].tokens, state=state)
        first = cluster(*nodes[:2], replication=replication)
        second = cluster(*nodes[:2], joining, replication=replication, transition=transition)
        for number, snapshots in ((1, (first, second)), (3, (second, second))):
            before, after = [owned_ranges(view(one), TABLE, host(number)) for one in snapshots]
            coverage = coverage_of([part(0)], before, after)
            for start, end in pairwise([-2000, *tokens, 2000]):
                found = [token_replicas(one, TABLE, end) for one in snapshots]
                is_theirs = all(
                    any(each.host == host(number) for each in (*one.natural, *one.reading)) for one in found
                )
                assert has(coverage, TokenRange(Token(start), Token(end))) is is_theirs
                seen[number, is_theirs] = None
    assert len(seen) == 4


def test_what_a_scan_reads_is_the_columns_of_layers_that_have_them() -> None:
    files = (CheckpointFile("1.sst", 700), CheckpointFile("columns.arrow", 300), CheckpointFile("columns.index", 9))
    layers = (
        CheckpointLayer(folder="both", range=WHOLE_RING, files=files),
        CheckpointLayer(folder="rows", range=WHOLE_RING, files=files[:1]),
    )
    found = OwnedRanges(None, (WHOLE_RING,), 1)
    (size,) = coverage_of([CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=layers)], found, found).sizes
    assert size.size_bytes == 300 + 700
