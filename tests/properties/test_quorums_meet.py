"""A QUORUM write and a QUORUM read share a replica that has the write, through every change of replicas.

Exhaustive: every path through the stage table and the node table, every pair of views in use at once, every set of
acknowledgements that is just enough, every order of writes and streaming; replication factors 1 to 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
from tests.properties.quorum_model import (
    Commit,
    Copy,
    Effect,
    Erase,
    View,
    lost_writes,
    sent_to_the_unprepared,
    written_after_erase,
)
from tests.properties.ring_changes import (
    REPLACED,
    SUBJECT,
    TABLE,
    RingChange,
    dead_host,
    host_id,
    name_of,
    node,
    ring_changes,
    ring_paths,
    ring_snapshot,
    ring_view,
)
from tests.unit.topology.small_cluster import with_transition

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.node_states import StatePair
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.routing.sharder import TabletSharder, has_replica
from ebla.topology.routing.vnode_streams import stream_sources
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import (
    NodeRequestKind,
    TabletStage,
    TransitionKind,
    TransitionState,
)
from ebla.topology.tablet_map import TabletTransition, tablet_map
from ebla.topology.tablet_stages import (
    STAGES,
    EdgeCause,
    StageAction,
    StageEdge,
    leaving_replicas,
    pending_replicas,
    stage_edges,
    tablet_stream,
)

TOKEN = 0
REST_OLD = "at rest before"
REST_NEW = "at rest after"
FACTORS = range(1, 6)


# Tablets


@dataclass(frozen=True, kw_only=True)
class Change:
    """One transition of one tablet."""

    name: str
    kind: TransitionKind
    previous: tuple[Replica, ...]
    after: tuple[Replica, ...]
    given_up: tuple[HostId, ...] = ()


def changes(factor: int) -> Iterator[Change]:
    old = tuple(Replica(host_id(number), ShardNumber(0)) for number in range(factor))
    new = Replica(host_id(factor), ShardNumber(2))
    other_shard = Replica(host_id(0), ShardNumber(1))
    yield Change(name="migration", kind=TransitionKind.MIGRATION, previous=old, after=(new, *old[1:]))
    yield Change(name="intranode", kind=TransitionKind.INTRANODE_MIGRATION, previous=old, after=(other_shard, *old[1:]))
    yield Change(name="one more", kind=TransitionKind.REBUILD, previous=old, after=(*old, new))
    if factor > 1:
        yield Change(
            name="in place of a dead one",
            kind=TransitionKind.REBUILD,
            previous=old,
            after=(new, *old[1:]),
            given_up=(host_id(0),),
        )
        yield Change(name="one less", kind=TransitionKind.REBUILD, previous=old, after=old[1:])


ALL_CHANGES = [(factor, change) for factor in FACTORS for change in changes(factor)]
every_change = pytest.mark.parametrize(
    "change", [pytest.param(change, id=f"{change.name} at {factor}") for factor, change in ALL_CHANGES]
)


def tablet_views(change: Change) -> dict[str, View]:
    views = {REST_OLD: tablet_view(change.previous, None), REST_NEW: tablet_view(change.after, None)}
    for kind, stage in STAGES:
        if kind is change.kind:
            views[stage] = tablet_view(
                change.previous, TabletTransition(kind=kind, stage=stage, new_replicas=change.after)
            )
    return views


def tablet_view(replicas: tuple[Replica, ...], transition: TabletTransition | None) -> View:
    tablets = tablet_map(TABLE, [replicas])
    if transition is not None:
        tablets = with_transition(tablets, 0, transition)
    nodes = FrozenMap({host_id(number): node(number) for number in range(7)})
    sets = ReplicaSets(Snapshot(nodes=nodes, tablets=FrozenMap({TABLE: tablets})))
    known = [Replica(host, ShardNumber(shard)) for host, shard in product(nodes, range(4))]
    placed = [replica for replica in known if has_replica(tablets, 0, replica)]
    sharders = {replica.host: TabletSharder(tablets, replica.host) for replica in placed}
    writing = sets.of(TABLE).writing(TOKEN)
    return View(
        write_hosts=tuple(replica.host.int for replica in (*writing.natural, *writing.pending)),
        write_needed=sets.required_write_replies(TABLE, TOKEN, ConsistencyLevel.QUORUM, "dc1")[0].count,
        read_hosts=tuple(replica.host.int for replica in sets.of(TABLE).reading(TOKEN)),
        read_needed=sets.required_read_replies(TABLE, TOKEN, ConsistencyLevel.QUORUM, "dc1")[0].count,
        applies={
            host.int: tuple(storage(host, shard) for shard in sharder.shards_for_writes(TOKEN))
            for host, sharder in sharders.items()
        },
        serves={host.int: storage(host, sharder.shard_for_reads(TOKEN)) for host, sharder in sharders.items()},
        knows=frozenset(storage(replica.host, replica.shard) for replica in placed),
    )


def storage(host: HostId, shard: int) -> int:
    return host.int * 10 + shard


def storages(replicas: Sequence[Replica]) -> tuple[int, ...]:
    return tuple(storage(replica.host, replica.shard) for replica in replicas)


def tablet_paths(change: Change, edges: Sequence[StageEdge]) -> list[list[Commit]]:
    """Every way from rest to rest."""
    return [[commit_of(edge, change) for edge in path] for path in _walk(None, edges)]


def _walk(at: TabletStage | None, edges: Sequence[StageEdge]) -> Iterator[list[StageEdge]]:
    for edge in edges:
        if edge.source is not at:
            continue
        if edge.target is None:
            yield [edge]
        else:
            yield from ([edge, *rest] for rest in _walk(edge.target, edges))


def commit_of(edge: StageEdge, change: Change) -> Commit:
    source = REST_OLD if edge.source is None else edge.source
    finished = edge.cause in (EdgeCause.DONE, EdgeCause.CHOSE_FORWARD)
    effect = effect_of(edge.source, change) if edge.source is not None and finished else None
    back_at_rest = REST_OLD if edge.source is TabletStage.REVERT_MIGRATION else REST_NEW
    return Commit(
        source=source,
        target=back_at_rest if edge.target is None else edge.target,
        after_barrier=edge.after_barrier,
        effect=effect,
    )


def effect_of(stage: TabletStage, change: Change) -> Effect | None:
    match STAGES[change.kind, stage].action:
        case StageAction.NONE:
            return None
        case StageAction.COPY_FILES | StageAction.LINK_FILES | StageAction.MERGE_ROWS:
            transition = TabletTransition(kind=change.kind, stage=stage, new_replicas=change.after)
            stream = tablet_stream(change.previous, transition, change.given_up)
            return Copy(storages(stream.sources), storages(stream.destinations))
        case StageAction.CLEAN_LEAVING:
            return Erase(storages(leaving_replicas(change.previous, change.after)))
        case StageAction.CLEAN_PENDING:
            return Erase(storages(pending_replicas(change.previous, change.after)))


@every_change
def test_quorums_meet_on_every_path_of_a_tablet(change: Change) -> None:
    views = tablet_views(change)
    paths = tablet_paths(change, list(stage_edges(change.kind)))
    assert len(paths) == (4 if change.kind is TransitionKind.INTRANODE_MIGRATION else 6)
    for path in paths:
        assert next(lost_writes(path, views), None) is None, [commit.target for commit in path]


@every_change
def test_a_write_is_sent_only_to_replicas_that_are_open_for_it(change: Change) -> None:
    views = tablet_views(change)
    for path in tablet_paths(change, list(stage_edges(change.kind))):
        assert list(sent_to_the_unprepared(path, views)) == []


@every_change
def test_nothing_is_written_where_it_was_cleaned_up(change: Change) -> None:
    """INV-TABL-1."""
    views = tablet_views(change)
    for path in tablet_paths(change, list(stage_edges(change.kind))):
        assert list(written_after_erase(path, views)) == []


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_quorums_meet_through_two_transitions_in_a_row(factor: int) -> None:
    """Two opposite transitions, each completed or rolled back: views of the first are in use when the second begins."""
    there = next(changes(factor))
    back = Change(name="back", kind=there.kind, previous=there.after, after=there.previous)
    again = replace(there, name="again")
    edges = list(stage_edges(there.kind))
    for first in tablet_paths(there, edges):
        second = back if first[-1].target == REST_NEW else again
        views = tablet_views(there) | renamed_views(tablet_views(second))
        for path in tablet_paths(second, edges):
            whole = [*first, *renamed(path, first[-1].target)]
            assert next(lost_writes(whole, views), None) is None, [commit.target for commit in whole]


def renamed_views(views: dict[str, View]) -> dict[str, View]:
    return {f"second {name}": view for name, view in views.items()}


def renamed(path: Sequence[Commit], start: str) -> list[Commit]:
    names = [start, *(f"second {commit.target}" for commit in path)]
    return [replace(commit, source=names[index], target=names[index + 1]) for index, commit in enumerate(path)]


def is_safe(change: Change, edges: Sequence[StageEdge]) -> bool:
    views = tablet_views(change)
    return not any(
        next(check, None) is not None
        for path in tablet_paths(change, edges)
        for check in (
            lost_writes(path, views),
            sent_to_the_unprepared(path, views),
            written_after_erase(path, views),
        )
    )


def test_the_seeds_direct_way_back_loses_writes() -> None:
    """`write_both_read_new` straight to `cleanup_target`: a writer one stage ahead is answered by two old replicas, and
    a reader one stage behind asks the third and the pending one."""
    change = next(changes(3))
    edges = [
        replace(edge, target=TabletStage.CLEANUP_TARGET) if edge.cause is EdgeCause.CHOSE_BACK else edge
        for edge in stage_edges(TransitionKind.MIGRATION)
    ]
    views = tablet_views(change)
    lost = [each for path in tablet_paths(change, edges) for each in lost_writes(path, views)]
    assert (TabletStage.CLEANUP_TARGET, TabletStage.WRITE_BOTH_READ_NEW) in {
        (each.writer, each.reader) for each in lost
    }


@pytest.mark.parametrize(
    "stage",
    [
        TabletStage.ALLOW_WRITE_BOTH_READ_OLD,
        TabletStage.WRITE_BOTH_READ_OLD,
        TabletStage.WRITE_BOTH_READ_NEW,
        TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        TabletStage.USE_NEW,
        TabletStage.CLEANUP_TARGET,
    ],
)
def test_every_barrier_is_needed(stage: TabletStage) -> None:
    """Without it something is lost, sent to a replica that is not open, or written where it was cleaned up."""
    change = next(changes(3))
    edges = list(stage_edges(change.kind))
    assert is_safe(change, edges)
    without = [replace(edge, after_barrier=False) if edge.source is stage else edge for edge in edges]
    assert not is_safe(change, without)


def test_views_may_be_further_apart_than_one_stage_where_a_stage_has_no_barrier() -> None:
    """The property covers that too, so it says more than "adjacent": `streaming` is left without a barrier."""
    assert not STAGES[TransitionKind.MIGRATION, TabletStage.STREAMING].barrier


# Vnodes


Pattern = tuple[tuple[int, ...], ...]


def check_ring_change(change: RingChange, seen: dict[Pattern, None]) -> None:
    """`seen`: patterns already checked, by which view uses which hosts; most rings repeat a few patterns."""
    steps = (step for path in ring_paths(change.kind) for step in path)
    places = dict.fromkeys(place for source, target, *_ in steps for place in (source, target))
    sets = {name_of(place): ReplicaSets(ring_snapshot(change, place)) for place in places}
    for token in range(-5, len(change.racks) * 10, 10):
        views = {name: ring_view(each, token) for name, each in sets.items()}
        pattern = pattern_of(change, views)
        if pattern in seen or only_copy_is_dead(change, views):
            continue
        seen[pattern] = None
        for path in ring_paths(change.kind):
            commits = [
                Commit(
                    source=name_of(source),
                    target=name_of(target),
                    after_barrier=barrier,
                    effect=streamed(change, views, source) if done else None,
                )
                for source, target, barrier, done in path
            ]
            assert next(lost_writes(commits, views), None) is None, (change, token)


def only_copy_is_dead(change: RingChange, views: dict[str, View]) -> bool:
    """Replication factor 1: data that only the dead node had is lost in any case."""
    return views[name_of(ring_paths(change.kind)[0][0][0])].read_hosts == (dead_host(change),)


def pattern_of(change: RingChange, views: dict[str, View]) -> Pattern:
    """Renames hosts in order of appearance; the subject keeps its role."""
    names = {SUBJECT: 0, REPLACED: 1}
    rows = (hosts for view in views.values() for hosts in (view.write_hosts, view.read_hosts))
    counted = tuple(number for view in views.values() for number in (view.write_needed, view.read_needed))
    return (counted, *(tuple(names.setdefault(host, len(names)) for host in hosts) for hosts in rows))


def streamed(change: RingChange, views: dict[str, View], at: StatePair) -> Copy:
    dead = dead_host(change)
    natural = views[name_of(replace(at, transition=TransitionState.WRITE_BOTH_READ_OLD))].read_hosts
    after = views[name_of(replace(at, transition=TransitionState.WRITE_BOTH_READ_NEW))].read_hosts
    sources = stream_sources(
        tuple(host_id(number) for number in natural),
        tuple(host_id(number) for number in after),
        () if dead is None else (host_id(dead),),
    )
    gaining = tuple(number for number in after if number not in natural)
    assert len(gaining) <= 1, "one node changes, so at most one replica of a range does"
    return Copy(tuple(host.int for host in sources), gaining)


@pytest.mark.parametrize("kind", [kind for kind in NodeRequestKind if kind is not NodeRequestKind.REBUILD])
@pytest.mark.parametrize("factor", FACTORS)
def test_quorums_meet_on_every_path_of_a_ring(factor: int, kind: NodeRequestKind) -> None:
    seen: dict[Pattern, None] = {}
    for change in ring_changes(factor, kind):
        check_ring_change(change, seen)
    assert seen


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (NodeRequestKind.JOIN, 4),
        (NodeRequestKind.REPLACE, 4),
        (NodeRequestKind.LEAVE, 3),
        (NodeRequestKind.REMOVE, 3),
    ],
)
def test_every_way_through_the_node_table_is_walked(kind: NodeRequestKind, count: int) -> None:
    assert len(ring_paths(kind)) == count
