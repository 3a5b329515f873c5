"""Where the rows of a job go, and when they are on enough replicas."""

from itertools import pairwise
from uuid import UUID

import pytest
from tests.unit.pipeline.job_plans_rig import TABLETS, VNODES, WORLD, a_cluster
from tests.unit.topology.world import host

from ebla.broker.commit_states import group_routes
from ebla.broker.write_layout import (
    ReplicaStack,
    TableWriteSpec,
    WriteLayout,
    WriteRoute,
    collect_staged,
    first_unmet_route,
    has_all_rows,
    routes_with_rows,
    staging_routes,
    too_few_replicas,
    transfer_id_of,
    write_layout,
)
from ebla.feed.topology_view import view_of
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.identity import Address, AttemptId, HistoryId, Replica, SessionId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, TokenRange
from ebla.model.transaction import Revision
from ebla.model.transfers import StagedFile, StagingKind, TransferTarget
from ebla.topology.commands import StartMoves, TabletMove
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.states import TransitionKind
from ebla.topology.tablet_stages import Selector, stage_row
from ebla.wire.table_calls import StagedRanges, StagedRun

REVISION = Revision(HistoryId(UUID(int=1)), 1)
VIEW = view_of(WORLD.snapshot, REVISION)
SESSION = SessionId(UUID(int=7))


def layout(level: Level = Level.QUORUM) -> WriteLayout:
    return write_layout(VIEW, TableWriteSpec(TABLETS, level, "dc1"))


def target(place: ReplicaStack, number: int = 0) -> TransferTarget:
    return TransferTarget(
        host=place.replica.host,
        shard=place.replica.shard,
        session=SESSION,
        transfer=transfer_id_of(SESSION, place, number),
        kind=StagingKind.ROWS,
        range=place.range,
        ticket=b"",
        flight=Address("a", 1),
    )


def run(place: ReplicaStack, number: int = 0, attempt: int = 1, rows: int = 1) -> StagedRun:
    transfer = transfer_id_of(SESSION, place, number)
    return StagedRun(
        host=place.replica.host,
        transfer=transfer,
        attempt=AttemptId(UUID(int=attempt)),
        file=StagedFile(name="rows", size_bytes=5),
        rows=rows,
    )


def test_a_place_for_each_replica_of_each_tablet() -> None:
    found = layout()
    assert len(found.stacks()) == 12
    assert [len(route.copies) for route in found.routes] == [3] * 4
    assert {place.range for place in found.stacks()} == {route.range for route in found.routes}


def test_a_place_for_each_shard_where_there_are_no_tablets() -> None:
    found = write_layout(VIEW, TableWriteSpec(VNODES, Level.QUORUM, "dc1"))
    assert {place.range for place in found.stacks()} == {WHOLE_RING}
    assert len(found.stacks()) == sum(node.shard_count for node in VIEW.snapshot.members())
    assert (found.routes[0].range.start, found.routes[-1].range.end) == (TOKEN_MIN, TOKEN_MAX)
    for left, right in pairwise(found.routes):
        assert left.range.end == right.range.start
    for route in found.routes:
        token = int(route.range.end)
        for copy in route.copies:
            node = VIEW.snapshot.node(copy.host)
            assert [one.replica.shard for one in copy.stacks] == [static_shard(token, node.shard_count, 0)]
    groups = group_routes(found.routes)
    assert sum(len(group.routes) for group in groups) == len(found.routes)
    assert len({place for group in groups for place in group.stacks()}) == sum(len(one.stacks()) for one in groups)
    assert len(group_routes(layout().routes)) == 4


def moved(kind: TransitionKind, coming: Replica) -> WriteLayout:
    """Tablet 0 on its way, when it is written to at both ends."""
    world, coordinator = a_cluster()
    table = world.create_table(4, 3)
    old = world.snapshot.tablets[table].replicas(0)
    leaving = next((one for one in old if one.host == coming.host), old[0])
    new = tuple(coming if one == leaving else one for one in old)
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=kind, new_replicas=new),)))
    while True:
        transition = world.snapshot.tablets[table].transition(0)
        assert transition is not None
        if stage_row(transition).writes is Selector.BOTH:
            return write_layout(view_of(world.snapshot, REVISION), TableWriteSpec(table, Level.QUORUM, "dc1"))
        coordinator.advance_tablets(((table, 0),))


def test_a_pending_replica_gets_it_too_and_one_more_is_needed() -> None:
    old = WORLD.snapshot.tablets[TABLETS].replicas(0)
    route = moved(TransitionKind.MIGRATION, Replica(host(4), old[0].shard)).routes[0]
    assert len(route.copies) == 4
    assert [each.count for each in route.needed] == [3]


def test_inside_a_node_both_shards_must_have_it() -> None:
    old = WORLD.snapshot.tablets[TABLETS].replicas(0)
    moving = moved(TransitionKind.INTRANODE_MIGRATION, Replica(old[1].host, type(old[1].shard)(1 - old[1].shard)))
    route = moving.routes[0]
    assert [len(copy.stacks) for copy in route.copies] == [1, 2, 1]
    assert [each.count for each in route.needed] == [2]
    two = route.copies[1].stacks
    has = {route.copies[0].stacks[0], two[0]}
    assert first_unmet_route(moving, [route], has.__contains__) is route, "half of a copy is none"
    assert first_unmet_route(moving, [route], {*has, two[1]}.__contains__) is None


@pytest.mark.parametrize(("level", "enough"), [(Level.ONE, 1), (Level.QUORUM, 2), (Level.ALL, 3)])
def test_enough_is_what_the_level_says(level: Level, enough: int) -> None:
    """INV-BULKW-1."""
    found = layout(level)
    route = found.routes[0]
    places = [copy.stacks[0] for copy in route.copies]
    for count in range(4):
        assert (first_unmet_route(found, [route], places[:count].__contains__) is None) == (count >= enough)
    error = too_few_replicas(found, route, level, places[:0].__contains__)
    assert (error.required, error.alive) == (enough, 0)


def test_transfers_are_the_same_wherever_they_are_asked_for() -> None:
    first, second = layout().stacks()[:2]
    assert transfer_id_of(SESSION, first) == transfer_id_of(SESSION, first)
    different = {transfer_id_of(SESSION, first), transfer_id_of(SESSION, second), transfer_id_of(SESSION, first, 1)}
    assert len({*different, transfer_id_of(SessionId(UUID(int=8)), first)}) == 4


def test_routes_name_the_places_that_are_open() -> None:
    found = layout()
    places = {place: number for number, place in enumerate(found.stacks()[1:])}
    routes = staging_routes(found, places)
    assert sorted(target for route in routes for target in route.targets) == list(range(11))


def test_what_is_staged_is_known_by_its_place_the_latest_counts() -> None:
    place = layout().stacks()[0]
    staged = collect_staged(
        [target(place), target(place), target(place, 1)], [run(place), run(place, 1), run(place, 1)]
    )
    assert staged.targets == {place: target(place, 1)}
    assert staged.numbers == {place: 2}
    assert staged.runs_of(place) == (run(place, 1),), "an attempt counts once"


def test_routes_without_rows_bring_nothing() -> None:
    found = layout()
    route = found.routes[2]
    places = [copy.stacks[0] for copy in route.copies]
    staged = collect_staged([target(place) for place in found.stacks()], [run(places[0])])
    assert routes_with_rows(found, staged) == (route,)
    assert has_all_rows(route, places[0], staged)
    assert not has_all_rows(route, places[1], staged), "its sibling has rows"
    assert all(has_all_rows(other, other.copies[0].stacks[0], staged) for other in found.routes if other is not route)
    half = route.range.split(2)[0]
    cut = collect_staged([target(ReplicaStack(places[0].replica, half))], [run(ReplicaStack(places[0].replica, half))])
    assert routes_with_rows(found, cut) == (route,), "what was cut otherwise is found by its tokens"


def test_a_place_for_the_whole_ring_may_have_nothing_where_another_has() -> None:
    found = write_layout(VIEW, TableWriteSpec(VNODES, Level.QUORUM, "dc1"))
    places = found.stacks()
    staged = collect_staged([target(place) for place in places], [run(places[0])])
    assert all(
        has_all_rows(route, place, staged) for route in found.routes for copy in route.copies for place in copy.stacks
    )


def test_a_place_for_the_whole_ring_is_a_copy_of_what_it_was_brought() -> None:
    """A node that becomes a replica of a further range, as another leaves, was not sent the rows of that."""
    found = write_layout(VIEW, TableWriteSpec(VNODES, Level.QUORUM, "dc1"))
    place = found.stacks()[0]
    of_place = [route for route in found.routes if any(place in copy.stacks for copy in route.copies)]
    transfer = transfer_id_of(SESSION, place)
    brought = StagedRanges(transfer, tuple(route.range for route in of_place[1:]))
    staged = collect_staged([target(one) for one in found.stacks()], [run(place)], [brought])
    assert not has_all_rows(of_place[0], place, staged)
    assert all(has_all_rows(route, place, staged) for route in of_place[1:])
    assert all(has_all_rows(of_place[0], one, staged) for one in of_place[0].copies[-1].stacks if one != place)
    across = WriteRoute(TokenRange(of_place[1].range.start, of_place[1].range.end), of_place[1].copies, ())
    halves = StagedRanges(transfer, across.range.split(2))
    assert has_all_rows(across, place, collect_staged([target(place)], [run(place)], [halves]))
