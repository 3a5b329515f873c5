import uuid
from dataclasses import replace

import msgspec
import pytest
from tests.unit.topology.small_cluster import (
    TABLE,
    cluster,
    host,
    network,
    node,
    one_tablet,
    replica,
    request_id,
    simple,
)

from ebla.model.consistency import ConsistencyLevel, RequiredReplies
from ebla.model.identity import HostId, TableId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange
from ebla.topology.node_states import NODE_TABLE
from ebla.topology.routing.replica_sets import ReplicaSets, token_replicas
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.routing.vnode_ring import RING_USES, next_ring, previous_ring
from ebla.topology.routing.vnode_streams import (
    RangeStream,
    ring_streams,
    skipped_parts,
    stream_sources,
    why_streams_fail,
)
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, TabletStage, TransitionKind, TransitionState
from ebla.topology.tablet_map import ReplicaSet, TabletTransition, tablet_map
from ebla.topology.tablet_stages import STAGES, Selector

QUORUM = ConsistencyLevel.QUORUM
A, B, C, D = (replica(number, number % 4) for number in range(1, 5))
OLD = (A, B, C)
NEW = (D, B, C)
NODES = [node(number) for number in range(1, 5)]
S = TabletStage
T = TransitionState


def migrating(stage: TabletStage, kind: TransitionKind = TransitionKind.MIGRATION) -> Snapshot:
    new = (replica(1, 3), B, C) if kind is TransitionKind.INTRANODE_MIGRATION else NEW
    return cluster(
        *NODES, tablets=one_tablet(*OLD, transition=TabletTransition(kind=kind, stage=stage, new_replicas=new))
    )


# Tablets


def test_at_rest_a_tablet_is_read_and_written_at_its_replicas() -> None:
    found = token_replicas(cluster(*NODES, tablets=one_tablet(*OLD)), TABLE, 5)
    assert (found.natural, found.pending, found.reading) == (OLD, (), OLD)


@pytest.mark.parametrize(("kind", "stage"), list(STAGES))
def test_in_transition_selectors_decide(kind: TransitionKind, stage: TabletStage) -> None:
    row = STAGES[kind, stage]
    snapshot = migrating(stage, kind)
    new = snapshot.tablets[TABLE].transition(0)
    assert new is not None
    found = token_replicas(snapshot, TABLE, 5)
    assert found.natural == (new.new_replicas if row.writes is Selector.NEXT else OLD)
    assert found.reading == (new.new_replicas if row.reads is Selector.NEXT else OLD)
    outside = kind is not TransitionKind.INTRANODE_MIGRATION
    assert found.pending == ((D,) if row.writes is Selector.BOTH and outside else ())


@pytest.mark.parametrize(
    ("stage", "write", "read"), [(S.ALLOW_WRITE_BOTH_READ_OLD, 2, 2), (S.STREAMING, 3, 2), (S.USE_NEW, 2, 2)]
)
def test_a_pending_replica_raises_what_a_write_needs(stage: TabletStage, write: int, read: int) -> None:
    sets = ReplicaSets(migrating(stage))
    assert sets.required_write_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, write),)
    assert sets.required_read_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, read),)


def test_inside_a_node_nothing_is_pending_to_a_router() -> None:
    sets = ReplicaSets(migrating(S.STREAMING, TransitionKind.INTRANODE_MIGRATION))
    assert sets.required_write_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, 2),)


def test_a_tablet_with_fewer_replicas_than_asked_for_counts_those_it_has() -> None:
    """While a keyspace goes from one replica to two, a tablet not reached yet must stay usable."""
    growing = TabletTransition(kind=TransitionKind.REBUILD, stage=S.STREAMING, new_replicas=(A, B))
    sets = ReplicaSets(cluster(*NODES, replication=network(dc1=2), tablets=one_tablet(A, transition=growing)))
    assert sets.required_write_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, 2),)
    assert sets.required_read_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, 1),)


def test_each_token_finds_its_own_tablet() -> None:
    tablets = tablet_map(TABLE, [(A,), (B,), (C,), (D,)])
    replicas = ReplicaSets(cluster(*NODES, replication=network(dc1=1), tablets=tablets)).of(TABLE)
    tokens = [TOKEN_MIN + 1, -(2**62) - 1, -(2**62), -1, 0, 2**62 - 1, 2**62, TOKEN_MAX]
    assert [replicas.writing(token).natural[0] for token in tokens] == [A, A, B, B, C, C, D, D]
    assert [replicas.reading(token)[0] for token in tokens] == [A, A, B, B, C, C, D, D]


def test_the_ranges_of_a_node_follow_its_tablets() -> None:
    tablets = tablet_map(TABLE, [(A, B), (B, C), (A, C), (C, D)])
    replicas = ReplicaSets(cluster(*NODES, replication=network(dc1=2), tablets=tablets)).of(TABLE)
    assert list(replicas.ranges_of(host(1))) == [
        TokenRange(TOKEN_MIN, Token(-(2**62) - 1)),
        TokenRange(Token(-1), Token(2**62 - 1)),
    ]
    assert list(replicas.ranges_of(host(9))) == []
    assert list(replicas.read_ranges_of(host(1))) == list(replicas.ranges_of(host(1)))


def test_the_ranges_that_a_node_serves_reads_of_change_over_before_those_that_it_is_counted_for() -> None:
    whole = [TokenRange(TOKEN_MIN, TOKEN_MAX)]
    moving = TabletTransition(kind=TransitionKind.MIGRATION, stage=S.WRITE_BOTH_READ_NEW, new_replicas=NEW)
    replicas = ReplicaSets(cluster(*NODES, tablets=one_tablet(*OLD, transition=moving))).of(TABLE)
    assert (list(replicas.ranges_of(host(1))), list(replicas.read_ranges_of(host(1)))) == (whole, [])
    assert (list(replicas.ranges_of(host(4))), list(replicas.read_ranges_of(host(4)))) == ([], whole)


def test_a_node_that_left_may_be_named_by_id_and_never_by_address() -> None:
    left = node(1, state=NodeState.LEFT)
    sets = ReplicaSets(cluster(left, *NODES[1:], tablets=one_tablet(*OLD)))
    natural = sets.of(TABLE).writing(5).natural
    assert natural[0].host == left.host
    assert sets.addresses_of(natural) == ("127.0.0.2", "127.0.0.3")


def test_local_levels_count_local_replicas() -> None:
    nodes = [node(1), node(2), node(3, datacenter="dc2"), node(4, datacenter="dc2")]
    moving = TabletTransition(kind=TransitionKind.MIGRATION, stage=S.STREAMING, new_replicas=(A, B, D))
    replication = network(dc1=2, dc2=1)
    sets = ReplicaSets(cluster(*nodes, replication=replication, tablets=one_tablet(*OLD, transition=moving)))
    level = ConsistencyLevel.LOCAL_QUORUM
    assert sets.required_write_replies(TABLE, 5, level, "dc1") == (RequiredReplies("dc1", 2),)
    assert sets.required_write_replies(TABLE, 5, level, "dc2") == (RequiredReplies("dc2", 2),)
    each = sets.required_write_replies(TABLE, 5, ConsistencyLevel.EACH_QUORUM, "dc1")
    assert each == (RequiredReplies("dc1", 2), RequiredReplies("dc2", 2))


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError):
        ReplicaSets(cluster(*NODES)).of(TableId(uuid.UUID(int=3)))


# Vnodes


def ring_of(*, changing: NodeState, transition: TransitionState | None, replaces: int | None = None) -> Snapshot:
    """Three nodes with tokens 10, 20, 30, and the changing one with token 15 (or the one it replaces has it)."""
    others = [node(number, tokens=(number * 10,)) for number in (1, 2, 3)]
    subject = node(4, tokens=(15,), state=changing, replaced=None if replaces is None else host(replaces))
    dead = [node(replaces, tokens=(15,))] if replaces is not None else []
    return cluster(*others, subject, *dead, replication=network(dc1=2), transition=transition)


def hosts(replicas: ReplicaSet) -> tuple[int, ...]:
    return tuple(each.host.int for each in replicas)


def test_there_is_a_ring_use_for_every_row_of_the_node_table_and_no_other() -> None:
    assert RING_USES.keys() == {transition for state, transition in NODE_TABLE if state and transition}


@pytest.mark.parametrize(
    ("state", "transition", "natural", "pending", "reading"),
    [
        (NodeState.BOOTSTRAPPING, T.JOIN_GROUP0, (2, 3), (), (2, 3)),
        (NodeState.BOOTSTRAPPING, T.COMMIT_CDC_GENERATION, (2, 3), (), (2, 3)),
        (NodeState.BOOTSTRAPPING, T.WRITE_BOTH_READ_OLD, (2, 3), (4,), (2, 3)),
        (NodeState.BOOTSTRAPPING, T.WRITE_BOTH_READ_NEW, (2, 3), (4,), (4, 2)),
        (NodeState.BOOTSTRAPPING, T.LEFT_TOKEN_RING, (2, 3), (), (2, 3)),
        (NodeState.NORMAL, None, (4, 2), (), (4, 2)),
        (NodeState.NORMAL, T.TABLET_MIGRATION, (4, 2), (), (4, 2)),
        (NodeState.REBUILDING, None, (4, 2), (), (4, 2)),
        (NodeState.DECOMMISSIONING, T.TABLET_DRAINING, (4, 2), (), (4, 2)),
        (NodeState.DECOMMISSIONING, T.WRITE_BOTH_READ_OLD, (4, 2), (3,), (4, 2)),
        (NodeState.DECOMMISSIONING, T.WRITE_BOTH_READ_NEW, (4, 2), (3,), (2, 3)),
        (NodeState.DECOMMISSIONING, T.LEFT_TOKEN_RING, (2, 3), (), (2, 3)),
        (NodeState.DECOMMISSIONING, T.ROLLBACK_TO_NORMAL, (4, 2), (), (4, 2)),
        (NodeState.DECOMMISSIONING, T.TABLET_MIGRATION, (4, 2), (), (4, 2)),
        (NodeState.REMOVING, T.TABLET_DRAINING, (4, 2), (), (4, 2)),
        (NodeState.REMOVING, T.WRITE_BOTH_READ_OLD, (4, 2), (3,), (4, 2)),
        (NodeState.REMOVING, T.WRITE_BOTH_READ_NEW, (4, 2), (3,), (2, 3)),
        (NodeState.REMOVING, T.ROLLBACK_TO_NORMAL, (4, 2), (), (4, 2)),
        (NodeState.REMOVING, T.TABLET_MIGRATION, (4, 2), (), (4, 2)),
        (NodeState.LEFT, None, (2, 3), (), (2, 3)),
    ],
)
def test_vnodes_in_every_transition_state(
    state: NodeState,
    transition: TransitionState | None,
    natural: tuple[int, ...],
    pending: tuple[int, ...],
    reading: tuple[int, ...],
) -> None:
    found = token_replicas(ring_of(changing=state, transition=transition), TABLE, 12)
    assert (hosts(found.natural), hosts(found.pending), hosts(found.reading)) == (natural, pending, reading)


@pytest.mark.parametrize(
    ("transition", "natural", "pending", "reading"),
    [
        (T.JOIN_GROUP0, (5, 2), (), (5, 2)),
        (T.TABLET_DRAINING, (5, 2), (), (5, 2)),
        (T.WRITE_BOTH_READ_OLD, (5, 2), (4,), (5, 2)),
        (T.WRITE_BOTH_READ_NEW, (5, 2), (4,), (4, 2)),
        (T.LEFT_TOKEN_RING, (5, 2), (), (5, 2)),
    ],
)
def test_a_replacing_node_takes_the_place_of_the_dead_one(
    transition: TransitionState, natural: tuple[int, ...], pending: tuple[int, ...], reading: tuple[int, ...]
) -> None:
    snapshot = ring_of(changing=NodeState.REPLACING, transition=transition, replaces=5)
    found = token_replicas(snapshot, TABLE, 12)
    assert (hosts(found.natural), hosts(found.pending), hosts(found.reading)) == (natural, pending, reading)


def test_a_tablet_is_read_at_the_same_shards_up_to_its_last_token() -> None:
    tablets = tablet_map(TABLE, [(A,), (A,), (C,), (D,)])
    replicas = ReplicaSets(cluster(*NODES, replication=network(dc1=1), tablets=tablets)).of(TABLE)
    ends = [-(2**62) - 1, -1, 2**62 - 1, TOKEN_MAX]
    assert [replicas.same_readers_until(token) for token in (TOKEN_MIN, -(2**62), 5, 2**62 - 1, TOKEN_MAX)] == [
        ends[0],
        ends[1],
        ends[2],
        ends[2],
        ends[3],
    ]


@pytest.mark.parametrize(
    "snapshot",
    [
        cluster(node(1, tokens=(0,), shard_count=3, ignore_msb=2), replication=simple(1)),
        cluster(
            node(1, tokens=(0,), shard_count=6, ignore_msb=1), node(2, tokens=(2**62,), shard_count=2, ignore_msb=0)
        ),
        cluster(*[node(n, tokens=(n * 2**60, -n * 2**60), ignore_msb=1) for n in (1, 2, 3)]),
        cluster(*[node(n, tokens=(n << 60, -n << 60), ignore_msb=0) for n in (1, 2, 3)], replication=network(dc1=2)),
        ring_of(changing=NodeState.BOOTSTRAPPING, transition=T.WRITE_BOTH_READ_NEW),
        cluster(node(1, tokens=(7,), shard_count=1, ignore_msb=0)),
        cluster(),
    ],
)
def test_a_ring_falls_into_stretches_with_the_same_shards(snapshot: Snapshot) -> None:
    """Within a stretch the shards are the same, and the next token after it has others."""
    replicas = ReplicaSets(snapshot).of(TABLE)
    token: int = TOKEN_MIN
    for _ in range(300):
        last = replicas.same_readers_until(token)
        shards = set(replicas.reading(token))
        assert token <= last <= TOKEN_MAX
        for inside in (last, (token + last) // 2, min(token + 1, last)):
            assert set(replicas.reading(inside)) == shards
            assert replicas.same_readers_until(inside) == last
        if last == TOKEN_MAX:
            return
        token = last + 1


def test_neighbours_with_the_same_shards_are_one_stretch() -> None:
    nodes = [node(number, tokens=(number * 100,), shard_count=2, ignore_msb=0) for number in (1, 2, 3)]
    replicas = ReplicaSets(cluster(*nodes)).of(TABLE)
    assert [replicas.same_readers_until(token) for token in (TOKEN_MIN, -1, 0, 150, TOKEN_MAX)] == [
        -1,
        -1,
        *[TOKEN_MAX] * 3,
    ]


def test_a_vnode_replica_is_on_the_shard_its_node_computes() -> None:
    snapshot = cluster(node(1, tokens=(0,), shard_count=6, ignore_msb=3), replication=simple(1))
    for token in (TOKEN_MIN + 1, -(2**60), 7, 2**61, TOKEN_MAX):
        found = token_replicas(snapshot, TABLE, token)
        assert found.natural == found.reading == (replica(1, static_shard(token, 6, 3)),)


def test_nodes_with_different_shards_have_a_replica_on_different_shards() -> None:
    nodes = [node(1, tokens=(0,), shard_count=6, ignore_msb=3), node(2, tokens=(9,), shard_count=2, ignore_msb=0)]
    snapshot = cluster(*nodes, replication=simple(2))
    for token in (TOKEN_MIN + 1, -(2**60), 7, 2**61, TOKEN_MAX):
        expected = {replica(1, static_shard(token, 6, 3)), replica(2, static_shard(token, 2, 0))}
        assert set(token_replicas(snapshot, TABLE, token).natural) == expected


def test_a_quorum_on_vnodes_is_one_of_the_factor_even_where_nodes_are_fewer() -> None:
    two = ReplicaSets(cluster(node(1, tokens=(1,)), node(2, tokens=(2,)), replication=network(dc1=5)))
    assert two.required_write_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, 3),)
    same = ReplicaSets(cluster(node(1, tokens=(1,)), replication=simple(3)))
    assert same.required_write_replies(TABLE, 5, QUORUM, "dc1") == (RequiredReplies(None, 2),)
    assert same.required_write_replies(TABLE, 5, ConsistencyLevel.LOCAL_QUORUM, "dc1") == (RequiredReplies("dc1", 1),)


def test_the_vnode_ranges_of_a_node() -> None:
    replicas = ReplicaSets(ring_of(changing=NodeState.NORMAL, transition=None)).of(TABLE)
    assert list(replicas.ranges_of(host(4))) == [
        TokenRange(Token(30), Token(10)),
        TokenRange(Token(10), Token(15)),
    ]
    assert list(replicas.read_ranges_of(host(4))) == list(replicas.ranges_of(host(4)))
    leaving = ReplicaSets(ring_of(changing=NodeState.DECOMMISSIONING, transition=T.WRITE_BOTH_READ_NEW)).of(TABLE)
    assert (len(list(leaving.ranges_of(host(4)))), list(leaving.read_ranges_of(host(4)))) == (2, [])
    gone = ReplicaSets(ring_of(changing=NodeState.DECOMMISSIONING, transition=T.LEFT_TOKEN_RING)).of(TABLE)
    assert list(gone.ranges_of(host(4))) == []
    assert list(ReplicaSets(cluster()).of(TABLE).ranges_of(host(4))) == []


def test_a_version_with_the_same_nodes_takes_over_what_was_worked_out() -> None:
    first = ring_of(changing=NodeState.NORMAL, transition=None)
    before = ReplicaSets(first)
    before.of(TABLE)
    same = ReplicaSets(replace(first), before)
    assert same.rings is before.rings
    changed = ring_of(changing=NodeState.DECOMMISSIONING, transition=T.WRITE_BOTH_READ_OLD)
    other = ReplicaSets(changed, before)
    assert other.rings is not before.rings
    assert hosts(other.of(TABLE).writing(12).pending) == (3,)


# Streams of vnodes


def streams(snapshot: Snapshot, *given_up: HostId) -> list[RangeStream]:
    state = msgspec.structs.replace(snapshot.state, ignored_nodes=given_up)
    return list(ring_streams(replace(snapshot, state=state), snapshot.replication_of(TABLE)))


def test_a_joining_node_streams_from_whom_it_takes_over() -> None:
    snapshot = ring_of(changing=NodeState.BOOTSTRAPPING, transition=T.WRITE_BOTH_READ_OLD)
    assert streams(snapshot) == [
        RangeStream(TokenRange(Token(30), Token(10)), (host(2),), (host(4),)),
        RangeStream(TokenRange(Token(10), Token(15)), (host(3),), (host(4),)),
    ]


def test_a_leaving_node_streams_what_it_has_and_a_removed_one_is_stood_in_for_by_those_that_stay() -> None:
    leaving = ring_of(changing=NodeState.DECOMMISSIONING, transition=T.WRITE_BOTH_READ_OLD)
    assert {(each.sources, each.destinations) for each in streams(leaving)} == {
        ((host(4),), (host(2),)),
        ((host(4),), (host(3),)),
    }
    removed = ring_of(changing=NodeState.REMOVING, transition=T.WRITE_BOTH_READ_OLD)
    assert [each.sources for each in streams(removed, host(4))] == [(host(1),), (host(2),)]


def test_the_rings_of_nobody_stream_nothing() -> None:
    assert streams(cluster()) == []
    at_rest = ring_of(changing=NodeState.NORMAL, transition=None)
    assert previous_ring(at_rest) == next_ring(at_rest)
    assert streams(at_rest) == []


def test_where_nobody_loses_the_range_all_are_merged() -> None:
    assert stream_sources((host(1), host(2)), (host(1), host(2), host(3)), ()) == (host(1), host(2))
    assert stream_sources((host(1), host(2)), (host(1), host(2), host(3)), (host(2),)) == (host(1),)


def test_a_rebuilt_node_streams_all_it_has_from_all_others() -> None:
    snapshot = ring_of(changing=NodeState.REBUILDING, transition=None)
    assert streams(snapshot) == [
        RangeStream(TokenRange(Token(30), Token(10)), (host(1),), (host(4),)),
        RangeStream(TokenRange(Token(10), Token(15)), (host(2),), (host(4),)),
    ]
    assert [each.sources for each in streams(snapshot, host(1))] == [(), (host(2),)]


@pytest.mark.parametrize("state", [NodeState.REMOVING, NodeState.REPLACING, NodeState.REBUILDING])
def test_of_three_replicas_both_others_are_merged(state: NodeState) -> None:
    """Any one of them may lack a write that two others acknowledged."""
    replaces = 5 if state is NodeState.REPLACING else None
    transition = None if state is NodeState.REBUILDING else T.WRITE_BOTH_READ_OLD
    ring = ring_of(changing=state, transition=transition, replaces=replaces)
    name = ring.tables[TABLE].keyspace
    wide = msgspec.structs.replace(ring.keyspaces[name], replication=network(dc1=3))
    dead = () if state is NodeState.REBUILDING else (host(replaces or 4),)
    found = streams(replace(ring, keyspaces=ring.keyspaces.put(name, wide)), *dead)
    assert found
    assert all(len(each.sources) == 2 for each in found), found


def test_a_rebuild_streams_from_one_datacenter_if_that_is_wanted() -> None:
    snapshot = ring_of(changing=NodeState.REBUILDING, transition=None)
    away = msgspec.structs.replace(snapshot.node(host(1)), rack="r9")
    subject = msgspec.structs.replace(snapshot.node(host(4)), rebuild_source="dc2")
    nodes = snapshot.nodes.put(host(1), away).put(host(4), subject)
    assert [each.sources for each in streams(replace(snapshot, nodes=nodes))] == [(), ()]


def test_hosts_that_are_not_pending_get_no_stream() -> None:
    removed = ring_of(changing=NodeState.REMOVING, transition=T.WRITE_BOTH_READ_OLD)
    request = NodeRequest(
        id=request_id(1),
        kind=NodeRequestKind.REMOVE,
        host=host(4),
        initiator=host(1),
        start_ms=1,
        excluded_at_start=(host(2),),
    )
    subject = msgspec.structs.replace(removed.node(host(4)), request=request.id)
    running = replace(
        removed, nodes=removed.nodes.put(host(4), subject), node_requests=removed.node_requests.put(request.id, request)
    )
    gaining = {each.destinations for each in streams(removed, host(4))}
    assert (host(2),) in gaining
    assert {each.destinations for each in streams(running, host(4), host(2))} == gaining - {(host(2),)}


def test_what_no_replica_has_is_named_by_table() -> None:
    removed = ring_of(changing=NodeState.REMOVING, transition=T.WRITE_BOTH_READ_OLD)
    state = msgspec.structs.replace(removed.state, ignored_nodes=(host(1), host(2), host(4)))
    assert skipped_parts(removed) == ()
    (line,) = skipped_parts(replace(removed, state=state))
    assert line.endswith(": 2 ranges lost, because no replica of them remains")
    leaving = ring_of(changing=NodeState.DECOMMISSIONING, transition=T.WRITE_BOTH_READ_OLD)
    assert skipped_parts(replace(leaving, state=state)) == ()


def test_a_lost_source_is_named() -> None:
    leaving = ring_of(changing=NodeState.DECOMMISSIONING, transition=T.WRITE_BOTH_READ_OLD)
    assert why_streams_fail(leaving, ()) == ""
    assert why_streams_fail(leaving, (host(3),)) == ""
    found = why_streams_fail(leaving, (host(4),))
    assert leaving.node(host(4)).address in found
    assert found.endswith("is unreachable")
