"""Which nodes a table is read from."""

from collections import Counter
from itertools import pairwise
from uuid import UUID

import msgspec
import pytest
from tests.unit.pipeline.job_plans_rig import TABLETS, VNODES, WORLD
from tests.unit.topology.world import host

from ebla.broker.read_plan import (
    OpenedReadSource,
    TableReadSpec,
    estimate_sizes,
    hosts_to_read,
    plan_read_ranges,
    range_copies,
    replica_shortage,
)
from ebla.feed.topology_view import View, view_of
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import NotFound, TooFewReplicas
from ebla.model.identity import HistoryId, HostId, TableId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.model.transaction import Revision
from ebla.wire.table_calls import StackSizeEstimate

REVISION = Revision(HistoryId(UUID(int=1)), 1)
VIEW = view_of(WORLD.snapshot, REVISION)
ALL = [host(number) for number in range(1, 5)]
LOCAL = dict.fromkeys(ALL, "dc1")
TWO = {host(1): "dc1", host(2): "dc1", host(3): "dc2", host(4): "dc2"}


def given(*hosts: HostId, stacks: tuple[StackSizeEstimate, ...] = ()) -> dict[HostId, OpenedReadSource]:
    return {one: OpenedReadSource(place, stacks) for place, one in enumerate(hosts)}


def in_two_datacenters() -> View:
    nodes = WORLD.snapshot.nodes
    for one, name in TWO.items():
        nodes = nodes.put(one, msgspec.structs.replace(nodes[one], datacenter=name))
    fields = {name: getattr(WORLD.snapshot, name) for name in WORLD.snapshot.__dataclass_fields__}
    return view_of(type(WORLD.snapshot)(**{**fields, "nodes": nodes}), REVISION)


def test_a_piece_for_each_tablet() -> None:
    copies = range_copies(VIEW, TableReadSpec(table=TABLETS, level=Level.QUORUM, datacenter="dc1"))
    assert [len(piece.hosts) for piece in copies] == [3] * 4
    assert copies[0].range.start == TOKEN_MIN
    assert [one.range.end for one in copies[:-1]] == [one.range.start for one in copies[1:]]
    with pytest.raises(NotFound):
        range_copies(VIEW, TableReadSpec(table=TableId(UUID(int=9)), level=Level.ONE, datacenter="dc1"))


def test_neighbouring_vnodes_of_the_same_hosts_are_one_piece() -> None:
    copies = range_copies(VIEW, TableReadSpec(table=VNODES, level=Level.QUORUM, datacenter="dc1"))
    assert (copies[0].range.start, copies[-1].range.end) == (TOKEN_MIN, TOKEN_MAX)
    for left, right in pairwise(copies):
        assert left.range.end == right.range.start
        assert left.hosts != right.hosts
    sets = VIEW.sets.of(VNODES)
    for piece in copies:
        assert {one.host for one in sets.reading(int(piece.range.end))} == set(piece.hosts)


@pytest.mark.parametrize(("level", "needed"), [(Level.ONE, 1), (Level.QUORUM, 2), (Level.ALL, 3), (Level.LOCAL_ONE, 1)])
def test_a_level_needs_so_many(level: Level, needed: int) -> None:
    asked = TableReadSpec(table=TABLETS, level=level, datacenter="dc1")
    pieces = plan_read_ranges(range_copies(VIEW, asked), asked, given(*ALL), LOCAL)
    assert {piece.needed for piece in pieces} == {needed}
    assert {len(piece.sources) for piece in pieces} == {3}
    assert {piece.groups for piece in pieces} == {()}


def test_reads_are_spread_over_the_nodes() -> None:
    asked = TableReadSpec(table=TABLETS, level=Level.ONE, datacenter="dc1")
    pieces = plan_read_ranges(range_copies(VIEW, asked), asked, given(*ALL), LOCAL)
    assert max(Counter(piece.sources[0] for piece in pieces).values()) == 1


def test_a_large_piece_counts_for_more() -> None:
    asked = TableReadSpec(table=TABLETS, level=Level.ONE, datacenter="dc1")
    copies = range_copies(VIEW, asked)
    stacks = tuple(
        StackSizeEstimate(one.range, size, 0) for one, size in zip(copies, (10 << 20, 1 << 20, 1 << 20, 1 << 20))
    )
    pieces = plan_read_ranges(copies, asked, given(*ALL, stacks=stacks), LOCAL)
    assert [piece.size_bytes for piece in pieces] == [10 << 20, 1 << 20, 1 << 20, 1 << 20]
    assert pieces[0].sources[0] not in [piece.sources[0] for piece in pieces[1:]]


def test_who_is_not_there_is_left_out_as_long_as_the_level_is_reached() -> None:
    asked = TableReadSpec(table=TABLETS, level=Level.QUORUM, datacenter="dc1")
    copies = range_copies(VIEW, asked)
    there = [host(1), host(2), host(3)]
    assert replica_shortage(copies, asked, there, LOCAL) is None
    pieces = plan_read_ranges(copies, asked, given(*there), LOCAL)
    assert {place for piece in pieces for place in piece.sources} == {0, 1, 2}
    with pytest.raises(TooFewReplicas, match=r"QUORUM needs 2 replicas of the tokens .* and 1 can be read from"):
        plan_read_ranges(copies, asked, given(host(1), host(2)), LOCAL)


def test_local_levels_ask_the_own_datacenter_alone() -> None:
    view = in_two_datacenters()
    asked = TableReadSpec(table=TABLETS, level=Level.LOCAL_ONE, datacenter="dc2")
    copies = range_copies(view, asked)
    assert hosts_to_read(copies, asked, TWO) == (host(3), host(4))
    pieces = plan_read_ranges(copies, asked, given(host(3), host(4)), TWO)
    assert all(piece.sources for piece in pieces)
    near = TableReadSpec(table=TABLETS, level=Level.ONE, datacenter="dc2")
    for piece in plan_read_ranges(range_copies(view, near), near, given(*ALL), TWO):
        assert piece.sources[0] in (2, 3), "near ones first"


def test_each_datacenter_has_a_group_of_its_own() -> None:
    view = in_two_datacenters()
    asked = TableReadSpec(table=TABLETS, level=Level.EACH_QUORUM, datacenter="dc1")
    pieces = plan_read_ranges(range_copies(view, asked), asked, given(*ALL), TWO)
    for piece in pieces:
        assert len(piece.groups) == 2
        assert piece.needed == sum(count for _, count in piece.groups)
        first = piece.sources[: piece.needed]
        for members, count in piece.groups:
            assert len([place for place in first if place in members]) == count, "the first do"
    with pytest.raises(TooFewReplicas, match="in dc2"):
        plan_read_ranges(range_copies(view, asked), asked, given(host(1), host(2)), TWO)


def test_only_what_was_asked_for() -> None:
    whole = range_copies(VIEW, TableReadSpec(table=TABLETS, level=Level.ONE, datacenter="dc1"))
    first, second = whole[0].range, whole[1].range
    half = first.split(2)[1]
    asked = TableReadSpec(
        table=TABLETS, level=Level.ONE, datacenter="dc1", ranges=(half, TokenRange(half.start, second.start), second)
    )
    stacks = (StackSizeEstimate(first, 1_000, 100),)
    pieces = plan_read_ranges(whole, asked, given(*ALL, stacks=stacks), LOCAL)
    assert [piece.range for piece in pieces] == [half, second], "nothing twice"
    assert (pieces[0].size_bytes, pieces[0].rows) == (500, 50)
    alone = TableReadSpec(table=TABLETS, level=Level.QUORUM, datacenter="dc1", ranges=(first,))
    assert replica_shortage(whole, alone, whole[0].hosts, LOCAL) is None, "the others need not be there"
    assert set(hosts_to_read(whole, alone, LOCAL)) == set(whole[0].hosts)


def test_a_stack_inside_one_range_counts_for_that_range_alone() -> None:
    copies = range_copies(VIEW, TableReadSpec(table=VNODES, level=Level.ONE, datacenter="dc1"))
    owned = [n for n, one in enumerate(copies) if host(1) in one.hosts and one.range.start < one.range.end]
    number = owned[1]
    start = int(copies[number].range.start)
    stacks = (StackSizeEstimate(TokenRange(Token(start + 1), Token(start + 2)), 1_000, 10),)
    sizes = estimate_sizes(copies, {host(1): OpenedReadSource(0, stacks)})
    assert [n for n, size in enumerate(sizes) if size.size_bytes] == [number]


def test_a_stack_over_several_pieces_counts_by_tokens() -> None:
    copies = range_copies(VIEW, TableReadSpec(table=VNODES, level=Level.ONE, datacenter="dc1"))
    stacks = (StackSizeEstimate(WHOLE_RING, 1_000_000, 1_000),)
    sizes = estimate_sizes(copies, {host(1): OpenedReadSource(0, stacks)})
    own = [size for piece, size in zip(copies, sizes) if host(1) in piece.hosts]
    assert sum(size.size_bytes for size in own) == pytest.approx(1_000_000, rel=0.01)
    assert all(size.size_bytes == 0 for piece, size in zip(copies, sizes) if host(1) not in piece.hosts)
