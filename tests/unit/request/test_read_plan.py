import uuid

import pytest
from tests.unit.topology.small_cluster import TABLE, cluster, host, network, node, one_tablet, replica

from ebla.feed.topology_view import view_of
from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.errors import NotFound, TooFewReplicas
from ebla.model.identity import HistoryId, HostId, Replica, TableId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.model.transaction import Revision
from ebla.request.read_plan import (
    ReadPlanner,
    ReadReplicaPlan,
    ReplicaSpans,
    choose_replicas,
    find_spare,
    first_token,
    is_one_token,
    last_token,
    replace_slow,
    replica_spans,
    sort_by_distance,
    split_by_replicas,
)
from ebla.storage.codec.key_codec import encode_token, partition_prefix
from ebla.topology.routing.replica_sets import ReplicaSets, TableReplicas
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState, TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition, tablet_map

A, B, C, D = (replica(number) for number in (1, 2, 3, 4))
NODES = [node(1), node(2), node(3, datacenter="dc2"), node(4, datacenter="dc2")]
DATACENTERS = {each.host: each.datacenter for each in NODES}
Level = ConsistencyLevel


def datacenter_of(target: Replica) -> str:
    return DATACENTERS[target.host]


def four_tablets() -> TableReplicas:
    tablets = tablet_map(TABLE, [(A,), (B,), (C,), (D,)])
    return ReplicaSets(cluster(*NODES, replication=network(dc1=1), tablets=tablets)).of(TABLE)


QUARTERS = [encode_token(-(2**62)), encode_token(0), encode_token(2**62)]


# Pieces


def test_a_scan_is_cut_where_other_shards_begin() -> None:
    assert list(split_by_replicas(four_tablets(), ((b"", None),))) == [
        ReplicaSpans(((b"", QUARTERS[0]),), (A,)),
        ReplicaSpans(((QUARTERS[0], QUARTERS[1]),), (B,)),
        ReplicaSpans(((QUARTERS[1], QUARTERS[2]),), (C,)),
        ReplicaSpans(((QUARTERS[2], None),), (D,)),
    ]


def test_spans_of_one_tablet_are_one_piece() -> None:
    near = [partition_prefix(token, b"k") for token in (5, 6, 7, 2**62)]
    spans = tuple((prefix, prefix + b"\xff") for prefix in near)
    assert list(split_by_replicas(four_tablets(), spans)) == [
        ReplicaSpans(spans[:3], (C,)),
        ReplicaSpans(spans[3:], (D,)),
    ]


def test_a_span_that_ends_with_its_tablet_does_not_reach_into_the_next() -> None:
    assert list(split_by_replicas(four_tablets(), ((QUARTERS[0], QUARTERS[1]),))) == [
        ReplicaSpans(((QUARTERS[0], QUARTERS[1]),), (B,))
    ]
    longer = QUARTERS[1] + b"\0"
    assert [piece.replicas for piece in split_by_replicas(four_tablets(), ((QUARTERS[0], longer),))] == [(B,), (C,)]


def test_reversed_pieces_come_from_the_end_with_their_spans_ascending() -> None:
    spans = ((b"", QUARTERS[0]), (encode_token(5), encode_token(6)), (encode_token(7), None))
    found = list(replica_spans(four_tablets(), spans, 3, is_reversed=True))
    assert [piece.replicas for piece in found] == [(D,), (C,), (A,)]
    assert found[1].spans == (spans[1], (encode_token(7), QUARTERS[2]))
    assert all(piece.partition_rows_max == 3 for piece in found)


@pytest.mark.parametrize(
    ("start", "token"),
    [(b"", TOKEN_MIN), (b"\x80", 0), (encode_token(9), 9), (partition_prefix(9, b"k"), 9), (b"\xff" * 8, TOKEN_MAX)],
)
def test_the_first_token_of_a_span(start: bytes, token: int) -> None:
    assert first_token(start) == token


@pytest.mark.parametrize(("end", "token"), [(None, TOKEN_MAX), (encode_token(9), 8), (encode_token(9) + b"\0", 9)])
def test_the_last_token_of_a_span(end: bytes | None, token: int) -> None:
    assert last_token(end) == token


def test_spans_inside_one_token() -> None:
    key = partition_prefix(9, b"k") + b"\x02"
    assert is_one_token(((key, key + b"\0"),))
    assert is_one_token(((key, key + b"\0"), (key + b"a", key + b"b")))
    assert not is_one_token(((key, None),))
    assert not is_one_token(((b"", key),))
    assert not is_one_token(((encode_token(9), encode_token(10)),))
    assert not is_one_token(((key, partition_prefix(10, b"k")),))


# Whom to ask


def test_the_nearest_come_first() -> None:
    own = replica(2, 1)
    assert sort_by_distance((A, B, C, own, D), own, "dc2", DATACENTERS) == (own, B, C, D, A)


@pytest.mark.parametrize(
    ("needed", "contacts", "spares"),
    [
        ((RequiredReplies(None, 1),), (A,), (B, C, D)),
        ((RequiredReplies(None, 3),), (A, B, C), (D,)),
        ((RequiredReplies("dc1", 1),), (A,), (B,)),
        ((RequiredReplies("dc1", 1), RequiredReplies("dc2", 1)), (A, C), (B, D)),
    ],
)
def test_as_few_as_the_level_needs(
    needed: tuple[RequiredReplies, ...], contacts: tuple[Replica, ...], spares: tuple[Replica, ...]
) -> None:
    assert choose_replicas((A, B, C, D), needed, DATACENTERS) == ReadReplicaPlan(contacts, spares, needed)


@pytest.mark.parametrize(
    "needed",
    [(RequiredReplies(None, 4),), (RequiredReplies("dc2", 2),), (RequiredReplies("dc1", 2), RequiredReplies("dc2", 2))],
)
def test_too_few_are_told_with_their_numbers(needed: tuple[RequiredReplies, ...]) -> None:
    with pytest.raises(TooFewReplicas) as raised:
        choose_replicas((A, B, C), needed, DATACENTERS)
    assert raised.value.required == sum(each.count for each in needed)
    assert raised.value.alive < raised.value.required


def test_a_table_without_any_replica_is_not_asked_for_ever() -> None:
    with pytest.raises(TooFewReplicas):
        choose_replicas((), (), DATACENTERS)


def test_a_stand_in_counts_where_the_missing_one_would_have() -> None:
    anywhere, each = (RequiredReplies(None, 2),), (RequiredReplies("dc1", 1), RequiredReplies("dc2", 1))
    assert find_spare((B, D), C, anywhere, datacenter_of) == B
    assert find_spare((B, D), C, each, datacenter_of) == D
    assert find_spare((B,), C, each, datacenter_of) is None
    assert find_spare((), C, anywhere, datacenter_of) is None


def test_one_that_seems_to_have_stopped_is_asked_last() -> None:
    needed = (RequiredReplies(None, 2),)
    chosen = ReadReplicaPlan((A, B), (C, D), needed)
    assert replace_slow(chosen, lambda each: False, datacenter_of) == chosen
    assert replace_slow(chosen, lambda each: each == A, datacenter_of) == ReadReplicaPlan((B, C), (D, A), needed)
    assert replace_slow(chosen, lambda each: each in (B, C), datacenter_of) == ReadReplicaPlan((A, D), (C, B), needed)
    assert replace_slow(ReadReplicaPlan((A, B), (), needed), lambda each: each == A, datacenter_of).contacts == (A, B)


# The planner


def planner_of(
    snapshot: Snapshot, down: frozenset[HostId] = frozenset(), refused: frozenset[Replica] = frozenset()
) -> ReadPlanner:
    return ReadPlanner(view_of(snapshot, Revision(HistoryId(uuid.UUID(int=1)), 1)), A, "dc1", down, refused)


LOCAL = [node(number) for number in (1, 2, 3, 4)]


def test_those_that_are_away_are_not_asked() -> None:
    snapshot = cluster(*LOCAL, tablets=one_tablet(A, B, C))
    chosen = planner_of(snapshot, frozenset({host(2)})).plan(TABLE, (A, B, C), Level.QUORUM)
    assert (chosen.contacts, chosen.spares) == ((A, C), ())
    with pytest.raises(TooFewReplicas):
        planner_of(snapshot, frozenset({host(2)}), frozenset({C})).plan(TABLE, (A, B, C), Level.QUORUM)
    gone = cluster(node(1, state=NodeState.LEFT), *LOCAL[1:], tablets=one_tablet(A, B, C))
    assert planner_of(gone).plan(TABLE, (A, B, C), Level.QUORUM).contacts == (B, C)


def test_an_unknown_table_is_not_found() -> None:
    with pytest.raises(NotFound):
        planner_of(cluster(*LOCAL, tablets=one_tablet(A))).plan(TableId(uuid.UUID(int=3)), (A,), Level.ONE)


def test_a_repair_goes_where_a_write_would() -> None:
    at_rest = planner_of(cluster(*LOCAL, tablets=one_tablet(A, B, C))).repair_route(TABLE, 5, Level.QUORUM)
    assert (at_rest.targets, at_rest.needed, at_rest.is_changing) == ((A, B, C), (RequiredReplies(None, 2),), False)
    moving = TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(D, B, C))
    snapshot = cluster(*LOCAL, tablets=one_tablet(A, B, C, transition=moving))
    route = planner_of(snapshot).repair_route(TABLE, 5, Level.QUORUM)
    assert (route.targets, route.needed, route.is_changing) == ((A, B, C, D), (RequiredReplies(None, 3),), True)
