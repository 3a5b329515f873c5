import uuid
from dataclasses import replace

import pytest
from tests.unit.topology.small_cluster import TABLE, cluster, node, replica

from ebla.model.errors import InvalidRequest, Outcome, Refused
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange
from ebla.ports.rng import Rng
from ebla.sim.rng import SimRng
from ebla.topology.cdc_generations import (
    CDC_PARTS_MAX,
    PARTS_PER_COMMIT_MAX,
    CdcStreamState,
    CommittedGeneration,
    StreamId,
    StreamParts,
    committed_generations,
    draw_mark,
    generation_commits,
    generation_data,
    generation_for_write,
    generation_parts,
    generation_ranges,
    generation_timestamp_ms,
    is_optimal,
    obsolete_generations,
    oldest_set_read,
    ring_owners,
    stream_changes,
    stream_for_tablet_write,
    stream_for_token,
    stream_id,
    stream_parts,
    tablet_stream_ids,
    why_too_large,
)
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.snapshot import CdcGeneration, CdcGenerationPart, CdcRange
from ebla.topology.states import NodeState, TransitionState
from ebla.topology.tablet_map import TabletStreams, tablet_map


@pytest.fixture
def rng() -> Rng:
    return SimRng("cdc")


def generation(number: int, timestamp_ms: int | None, *, published: bool = True) -> CdcGeneration:
    return CdcGeneration(id=uuid.UUID(int=number), part_count=1, timestamp_ms=timestamp_ms, published=published)


def committed(*times_ms: int) -> list[CommittedGeneration]:
    return [CommittedGeneration(generation(number, each), each) for number, each in enumerate(times_ms)]


def test_a_stream_id_is_laid_out_as_readers_expect() -> None:
    parts = StreamParts(token=-2, random=(1 << 38) - 1, index=5)
    stream = stream_id(parts)
    assert stream.hex() == "fffffffffffffffe" + "fffffffffc000051"
    assert stream_parts(stream) == parts
    assert stream_parts(stream).version == 1


NODES = [node(1, tokens=(-(2**62), 100), shard_count=3), node(2, tokens=(2**62,), shard_count=5)]


def test_a_generation_has_a_stream_for_every_vnode_and_shard(rng: Rng) -> None:
    ranges = generation_ranges(NODES, rng)
    assert [(each.range_end, len(each.streams)) for each in ranges] == [(-(2**62), 3), (100, 3), (2**62, 5)]
    bounds = [TokenRange(Token(2**62), Token(-(2**62))), TokenRange(Token(-(2**62)), Token(100))]
    for index, within in enumerate(bounds):
        for shard, stream in enumerate(ranges[index].streams):
            parts = stream_parts(StreamId(stream))
            assert Token(parts.token) in within
            assert static_shard(parts.token, 3, ranges[index].ignore_msb) == shard
            assert parts.index == index
    streams = [stream for each in ranges for stream in each.streams]
    assert len(set(streams)) == 11


def test_a_write_goes_to_the_stream_of_its_range_and_of_the_shard_that_has_its_token(rng: Rng) -> None:
    ranges = generation_ranges(NODES, rng)
    for token, position in [(TOKEN_MIN + 1, 0), (-(2**62), 0), (-(2**62) + 1, 1), (100, 1), (101, 2), (TOKEN_MAX, 0)]:
        each = ranges[position]
        shard = static_shard(token, len(each.streams), each.ignore_msb)
        assert stream_for_token(ranges, token) == each.streams[shard]


def test_an_empty_ring_has_no_streams(rng: Rng) -> None:
    assert generation_ranges([], rng) == ()


def test_a_new_generation_covers_the_node_that_joins_and_never_the_replaced_one() -> None:
    joining = node(3, tokens=(7,), state=NodeState.BOOTSTRAPPING)
    snapshot = cluster(*NODES, joining, transition=TransitionState.COMMIT_CDC_GENERATION)
    assert [each.host for each in ring_owners(snapshot)] == [each.host for each in (*NODES, joining)]
    replacing = node(4, tokens=NODES[1].tokens, state=NodeState.REPLACING, replaced=NODES[1].host)
    assert [each.host for each in ring_owners(cluster(*NODES, replacing))] == [NODES[0].host, replacing.host]


def test_parts_are_small_and_together_are_the_whole(rng: Rng) -> None:
    ranges = generation_ranges(NODES, rng)
    parts = generation_parts(ranges, part_bytes_max=170)
    assert [len(part.ranges) for part in parts] == [2, 1]
    each_alone = generation_parts(ranges, part_bytes_max=1)
    assert [len(part.ranges) for part in each_alone] == [1, 1, 1]
    head = CdcGeneration(id=uuid.UUID(int=9), part_count=len(parts))
    snapshot = replace(
        cluster(*NODES),
        cdc_generations=FrozenMap({head.id: head}),
        cdc_parts=FrozenMap({(head.id, number): part for number, part in enumerate(parts)}),
    )
    assert generation_data(snapshot, head) == ranges
    assert generation_parts(()) == (CdcGenerationPart(()),)


def test_parts_are_written_in_commits_of_a_few() -> None:
    parts = [CdcGenerationPart((CdcRange(number, (b"",), 0),)) for number in range(7)]
    commits = generation_commits(uuid.UUID(int=9), parts)
    assert [len(commit) for commit in commits] == [3, 3, 1]
    written = [command for commit in commits for command in commit]
    assert [(each.number, each.part_count) for each in written] == [(number, 7) for number in range(7)]
    assert [each.part for each in written] == parts
    assert len(generation_commits(uuid.UUID(int=9), parts[:PARTS_PER_COMMIT_MAX])) == 1


def test_a_generation_of_too_many_parts_says_its_sizes() -> None:
    parts = [CdcGenerationPart((CdcRange(number, (b"", b""), 0),)) for number in range(CDC_PARTS_MAX + 1)]
    assert why_too_large(parts[:-1]) == ""
    reason = why_too_large(parts)
    assert "257 vnodes has 514 streams in 257 parts" in reason
    assert "at most 256 parts" in reason


def test_the_first_generation_holds_at_once_and_later_ones_give_the_news_time_to_spread() -> None:
    assert generation_timestamp_ms(1_000, 30_000, None) == 1_000
    assert generation_timestamp_ms(1_000, 30_000, 500) == 1_000 + 60_000 + 5_000
    assert generation_timestamp_ms(1_000, 0, 500) == 1_000
    assert generation_timestamp_ms(1_000, 0, 5_000) == 5_001


def test_a_generation_is_optimal_if_its_ranges_are_the_vnodes(rng: Rng) -> None:
    ranges = generation_ranges(NODES, rng)
    assert is_optimal(ranges, (100, 2**62, -(2**62)))
    assert not is_optimal(ranges, (100, 2**62))
    assert not is_optimal(ranges, (100, 2**62, -(2**62), 7))


def test_a_write_uses_the_generation_of_its_own_timestamp() -> None:
    both = committed(10_000, 100_000)
    assert generation_for_write(both, 99_999_999, 99_000).timestamp_ms == 10_000
    assert generation_for_write(both, 100_000_000, 99_000).timestamp_ms == 100_000
    assert generation_for_write(both, 100_000_000, 200_000).timestamp_ms == 100_000


def test_around_a_change_the_older_generation_takes_writes_for_as_long_as_clocks_may_differ() -> None:
    both = committed(10_000, 100_000)
    old_write_us = 99_999_000
    assert generation_for_write(both, old_write_us, 104_999).timestamp_ms == 10_000
    with pytest.raises(Refused, match="no longer written") as refused:
        generation_for_write(both, old_write_us, 105_000)
    assert refused.value.outcome is Outcome.NOT_APPLIED


def test_a_timestamp_too_far_ahead_is_refused() -> None:
    generation_for_write(committed(10_000), 25_000_000, 20_000)
    with pytest.raises(InvalidRequest, match="ms ahead"):
        generation_for_write(committed(10_000), 25_000_001, 20_000)


def test_before_the_first_generation_nothing_is_captured() -> None:
    with pytest.raises(Refused, match="no stream generation"):
        generation_for_write(committed(10_000), 9_999_999, 12_000)
    with pytest.raises(Refused):
        generation_for_write([], 9_999_999, 12_000)


def test_committed_generations_are_those_with_a_timestamp_oldest_first() -> None:
    known = [generation(1, 500), generation(2, None), generation(3, 100)]
    snapshot = replace(cluster(), cdc_generations=FrozenMap({each.id: each for each in known}))
    assert [each.timestamp_ms for each in committed_generations(snapshot)] == [100, 500]


def test_a_generation_is_obsolete_once_nobody_can_write_to_it() -> None:
    three = committed(1_000, 50_000, 90_000)
    assert [each.timestamp_ms for each in obsolete_generations(three, 84_999, 30_000)] == []
    assert [each.timestamp_ms for each in obsolete_generations(three, 85_000, 30_000)] == [1_000]
    assert [each.timestamp_ms for each in obsolete_generations(three, 10**9, 30_000)] == [1_000, 50_000]


def test_the_generation_in_use_and_those_readers_have_not_seen_are_never_obsolete() -> None:
    assert obsolete_generations(committed(1_000), 10**9, 0) == ()
    three = committed(1_000, 2_000, 3_000)
    three[1] = CommittedGeneration(generation(1, 2_000, published=False), 2_000)
    assert [each.timestamp_ms for each in obsolete_generations(three, 10**9, 0)] == [1_000]


def test_a_tablet_has_one_stream_named_by_its_last_token(rng: Rng) -> None:
    tablets = tablet_map(TABLE, [(replica(1),)] * 4)
    streams = TabletStreams(500, 4, draw_mark(rng))
    parts = [stream_parts(each) for each in tablet_stream_ids(streams)]
    assert [each.token for each in parts] == [tablets.last_token(number) for number in range(4)]
    assert {each.index for each in parts} == {0}
    assert {each.random for each in parts} == {streams.mark}


def test_a_write_on_tablets_uses_the_set_of_its_timestamp(rng: Rng) -> None:
    sets = [TabletStreams(100, 2, draw_mark(rng)), TabletStreams(200, 4, draw_mark(rng))]
    before, after = [list(tablet_stream_ids(each)) for each in sets]
    assert stream_for_tablet_write(sets, -1, 199_999) == before[0]
    assert stream_for_tablet_write(sets, -1, 200_000) == after[1]
    assert stream_for_tablet_write(sets, 0, 200_000) == after[2]
    assert stream_for_tablet_write(sets, TOKEN_MAX, 300_000) == after[3]
    assert stream_for_tablet_write(sets, TOKEN_MIN + 1, 50) == before[0]


def test_readers_are_told_which_streams_end_and_which_begin() -> None:
    before, after = TabletStreams(1, 1, 5), TabletStreams(2, 2, 6)
    (closed,) = tablet_stream_ids(before)
    first, second = tablet_stream_ids(after)
    assert len({closed, first, second}) == 3, "the last tablet ends where it did, and still has a new stream"
    assert list(stream_changes(before, after)) == [
        (CdcStreamState.CLOSED, closed),
        (CdcStreamState.OPENED, first),
        (CdcStreamState.OPENED, second),
    ]


def test_old_sets_go_with_the_records_in_them() -> None:
    sets = [TabletStreams(time, 1, time) for time in (0, 100, 200)]
    assert oldest_set_read(sets, 1_000, 0) is sets[0]
    assert oldest_set_read(sets, 1_000, 900) is sets[1]
    assert oldest_set_read(sets, 1_000, 800) is sets[2]
    assert oldest_set_read(sets, 10_000, 1) is sets[2]
