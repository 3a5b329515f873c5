"""The transfers of a ring change: what they carry, and that a repeat makes the same."""

import dataclasses

import msgspec
import pytest
from tests.unit.pipeline.ring_rig import FIRST, NEW, ON_TABLETS, SECOND, SESSION, joining
from tests.unit.topology.small_cluster import host, session

from ebla.model.errors import Unavailable
from ebla.model.token import TokenRange, merge_ranges
from ebla.pipeline.ring_copies import TRANSFERS_PER_STACK_MAX, ring_copies
from ebla.storage.manifest import ADOPTED_MAX
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.routing.vnode_streams import ring_streams
from ebla.topology.snapshot import Snapshot
from ebla.transfers.transfer_run import RowCopy

TABLES = (FIRST, SECOND, ON_TABLETS)


def planned(snapshot: Snapshot) -> tuple[RowCopy, ...]:
    return ring_copies(snapshot, TABLES, SESSION)


def gained(snapshot: Snapshot) -> tuple[TokenRange, ...]:
    streams = ring_streams(snapshot, snapshot.replication_of(FIRST))
    return merge_ranges(stream.range for stream in streams)


@pytest.mark.parametrize("ignore_msb", [0, 5])
def test_every_table_on_vnodes_gets_what_the_new_node_gains_at_the_shards_that_have_it(ignore_msb: int) -> None:
    snapshot = joining(shards=3, ignore_msb=ignore_msb)
    copies = planned(snapshot)
    assert {copy.table for copy in copies} == {FIRST, SECOND}
    for table in (FIRST, SECOND):
        parts = [(part, copy) for copy in copies if copy.table == table for part in copy.parts]
        assert merge_ranges(part.range for part, _ in parts) == gained(snapshot)
        assert sum(part.range.width for part, _ in parts) == sum(each.width for each in gained(snapshot))
        for part, copy in parts:
            (target,) = copy.targets
            assert target.host == NEW
            assert copy.range.covers(part.range)
            assert set(part.hosts) <= set(copy.sources)
            for token in (part.range.start + 1, part.range.end):
                assert static_shard(token, 3, ignore_msb) == target.shard


def test_parts_ascend_and_the_host_that_loses_them_is_their_source() -> None:
    snapshot = joining()
    sources = {stream.range.end: stream.sources for stream in ring_streams(snapshot, snapshot.replication_of(FIRST))}
    for copy in planned(snapshot):
        starts = [part.range.start for part in copy.parts]
        assert starts == sorted(starts)
        for part in copy.parts:
            assert len(part.hosts) == 1
            following = min((end for end in sources if end >= part.range.end), default=min(sources))
            assert part.hosts == sources[following]


@pytest.mark.parametrize("excluded", [(), (2,), (2, 3)])
def test_a_repeat_and_an_excluded_source_make_the_same_transfers(excluded: tuple[int, ...]) -> None:
    before = planned(joining())
    hosts = {host(number) for number in excluded}
    again = planned(joining(excluded=sorted(hosts), version=9))
    assert [copy.transfers for copy in again] == [copy.transfers for copy in before]
    assert [(copy.range, copy.targets) for copy in again] == [(copy.range, copy.targets) for copy in before]
    assert all(any(one in copy.sources for copy in before) for one in hosts)
    assert hosts.isdisjoint({one for copy in again for one in copy.sources})


def test_transfers_differ_by_session_table_ranges_and_target() -> None:
    copies = planned(joining())
    assert len({copy.transfers for copy in copies}) == len(copies)
    others = ring_copies(joining(), TABLES, session(78))
    assert {copy.transfers for copy in copies}.isdisjoint({copy.transfers for copy in others})


def test_thousands_of_ranges_into_one_stack_are_few_transfers() -> None:
    copies = ring_copies(joining([FIRST], tokens=16, shards=2, ignore_msb=12), [FIRST], SESSION)
    by_stack = {shard: [copy for copy in copies if copy.targets[0].shard == shard] for shard in (0, 1)}
    assert sum(len(copy.parts) for copy in by_stack[0]) > 2_000
    assert max(len(stack) for stack in by_stack.values()) <= TRANSFERS_PER_STACK_MAX < ADOPTED_MAX


def test_a_range_without_a_source_is_not_left_out() -> None:
    with pytest.raises(Unavailable) as refused:
        planned(joining(factor=1, excluded=[host(1), host(2), host(3)]))
    assert "ks.first" in refused.value.message


def test_a_keyspace_that_had_no_replicas_has_nothing_to_stream() -> None:
    snapshot = joining()
    away = {each.host: msgspec.structs.replace(each, datacenter="dc2") for each in snapshot.nodes.values()}
    away[NEW] = snapshot.nodes[NEW]
    assert planned(dataclasses.replace(snapshot, nodes=type(snapshot.nodes)(away))) == ()
