import pytest
from cassandra.c_shard_info import ShardingInfo
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.small_cluster import TABLE, cluster, host, node, one_tablet, replica

from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange, advance
from ebla.topology.routing.sharder import (
    StaticSharder,
    TabletSharder,
    has_replica,
    sharder_for,
)
from ebla.topology.routing.static_sharding import first_token_in_range, first_token_of_shard, static_shard
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition
from ebla.topology.tablet_stages import STAGES, Selector

TOKENS = st.integers(TOKEN_MIN, TOKEN_MAX)
A, B, C = replica(1, 1), replica(2, 2), replica(3, 3)
OLD = (A, B, C)
PENDING = replica(4, 2)
ELSEWHERE_ON_A = replica(1, 3)

every_stage = pytest.mark.parametrize(
    "stage", [stage for kind, stage in STAGES if kind is TransitionKind.INTRANODE_MIGRATION]
)


def migrating(stage: TabletStage, kind: TransitionKind = TransitionKind.MIGRATION) -> TabletTransition:
    return TabletTransition(kind=kind, stage=stage, new_replicas=(PENDING, B, C))


def intranode(stage: TabletStage) -> TabletTransition:
    return TabletTransition(kind=TransitionKind.INTRANODE_MIGRATION, stage=stage, new_replicas=(ELSEWHERE_ON_A, B, C))


@given(TOKENS, st.integers(1, 128), st.integers(0, 20))
def test_static_sharding_is_what_drivers_compute(token: int, shards: int, ignore_msb: int) -> None:
    driver = ShardingInfo("0", str(shards), "murmur3", "biased-token-round-robin", str(ignore_msb), "", "")
    expected = driver.shard_id_from_token(token)
    assert static_shard(token, shards, ignore_msb) == expected
    sharder = StaticSharder(shards, ignore_msb)
    assert sharder.shard_for_reads(token) == expected
    assert sharder.shards_for_writes(token) == (expected,)


@given(TOKENS, st.integers(1, 40), st.integers(0, 14), st.data())
def test_the_first_token_of_a_shard_is_the_first(token: int, shards: int, ignore_msb: int, data: st.DataObject) -> None:
    shard = data.draw(st.integers(0, shards - 1))
    found = first_token_of_shard(Token(token), shard, shards, ignore_msb)
    assert static_shard(found, shards, ignore_msb) == shard
    if found != token:
        assert static_shard(advance(found, -1), shards, ignore_msb) != shard
        segment = 2**64 >> ignore_msb
        assert 0 < (found - token) % 2**64 <= segment


def test_every_shard_is_found_in_a_range_wide_enough_and_the_end_stands_in_where_none_is() -> None:
    wide = TokenRange(Token(0), Token(2**60))
    found = [first_token_in_range(wide, shard, 4, 12) for shard in range(4)]
    assert [static_shard(token, 4, 12) for token in found] == [0, 1, 2, 3]
    assert all(token in wide for token in found)
    narrow = TokenRange(Token(0), Token(10))
    assert [first_token_in_range(narrow, shard, 4, 12) for shard in range(4)] == [1, 10, 10, 10]
    over_the_top = TokenRange(Token(TOKEN_MAX - 5), Token(TOKEN_MIN + 5))
    assert first_token_in_range(over_the_top, 0, 4, 12) == TOKEN_MIN
    assert first_token_in_range(over_the_top, 3, 4, 12) == TOKEN_MAX - 4
    assert first_token_in_range(over_the_top, 2, 4, 12) == over_the_top.end


def test_at_rest_a_host_has_one_shard_and_shard_0_where_it_has_no_replica() -> None:
    tablets = one_tablet(*OLD)
    assert [TabletSharder(tablets, host(number)).shard_for_reads(5) for number in (1, 2, 3, 9)] == [1, 2, 3, 0]
    assert TabletSharder(tablets, host(3)).shards_for_writes(5) == (3,)
    assert TabletSharder(tablets, host(9)).shards_for_writes(5) == (0,)


@every_stage
@pytest.mark.parametrize("kind", [TransitionKind.MIGRATION, TransitionKind.REBUILD])
def test_between_nodes_answers_are_the_same_in_every_stage(stage: TabletStage, kind: TransitionKind) -> None:
    """A router one stage behind still reaches the leaving replica, one ahead already the pending one."""
    tablets = one_tablet(*OLD, transition=migrating(stage, kind))
    for number, shard in ((1, 1), (2, 2), (3, 3), (4, 2), (9, 0)):
        sharder = TabletSharder(tablets, host(number))
        assert sharder.shard_for_reads(5) == shard
        assert sharder.shards_for_writes(5) == (shard,)


@every_stage
def test_inside_a_node_answers_follow_the_stage(stage: TabletStage) -> None:
    row = STAGES[TransitionKind.INTRANODE_MIGRATION, stage]
    sharder = TabletSharder(one_tablet(*OLD, transition=intranode(stage)), host(1))
    assert sharder.shard_for_reads(5) == (3 if row.reads is Selector.NEXT else 1)
    expected = {Selector.PREVIOUS: (1,), Selector.BOTH: (3, 1), Selector.NEXT: (3,)}
    assert sharder.shards_for_writes(5) == expected[row.writes]
    bystander = TabletSharder(one_tablet(*OLD, transition=intranode(stage)), host(2))
    assert bystander.shard_for_reads(5) == 2
    assert bystander.shards_for_writes(5) == (2,)


@every_stage
def test_who_has_a_replica_does_not_follow_the_stage(stage: TabletStage) -> None:
    """In the first stage the pending shard is a replica without requests; in the last the leaving one still is one."""
    tablets = one_tablet(*OLD, transition=intranode(stage))
    assert has_replica(tablets, 0, A)
    assert has_replica(tablets, 0, ELSEWHERE_ON_A)
    assert not has_replica(tablets, 0, replica(1, 2))
    assert not has_replica(one_tablet(*OLD), 0, ELSEWHERE_ON_A)


def test_a_table_on_vnodes_is_sharded_by_the_nodes_own_numbers() -> None:
    snapshot = cluster(node(1, shard_count=7, ignore_msb=3))
    assert sharder_for(snapshot, TABLE, host(1)) == StaticSharder(7, 3)


def test_static_sharding_is_never_used_for_a_table_on_tablets() -> None:
    snapshot = cluster(node(1), tablets=one_tablet(A))
    assert isinstance(sharder_for(snapshot, TABLE, host(1)), TabletSharder)
