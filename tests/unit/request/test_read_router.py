import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.request.read_rig import (
    ALL,
    EVERYTHING,
    NODES,
    NOW_S,
    ONE,
    QUORUM,
    A,
    B,
    C,
    D,
    ReadRig,
    in_simulated_time,
    running,
    snapshot_of,
    tablets_of,
)
from tests.unit.request.stored import SMALL, head, head_at, put, row_at, stored, value_of
from tests.unit.storage.random_rows import column
from tests.unit.topology.small_cluster import TABLE, host, one_tablet

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    ReadFailed,
    ReadTimeout,
    TooFewReplicas,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import Replica, TableId, TopologyVersion
from ebla.model.rows import Deletion, Row, RowMarker
from ebla.model.schema import with_column
from ebla.request.router_types import ReadQuery, RouterLimits
from ebla.storage.layers.layer import Item
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition
from ebla.wire.row_messages import Span

THREE = snapshot_of(tablets_of((A, B, C)), SMALL)
LOCAL_ONE, LOCAL_QUORUM = ConsistencyLevel.LOCAL_ONE, ConsistencyLevel.LOCAL_QUORUM
EAGER = RouterLimits(retry_delay_max_ms=20)
Test = Callable[[ReadRig], Coroutine[Any, Any, None]]


def point(name: str = "p", clustering: str = "1") -> ReadQuery:
    key = row_at(name, clustering)
    return ReadQuery(table=TABLE, spans=((key, key + b"\0"),), rows_max=10, now_s=NOW_S)


SCAN = ReadQuery(table=TABLE, spans=EVERYTHING, rows_max=100, now_s=NOW_S)


def with_rig(test: Test, snapshot: Any = THREE, own: Replica = A, limits: RouterLimits | None = None) -> None:
    async def main() -> None:
        async with running(snapshot, own, limits, SMALL) as rig:
            await test(rig)

    try:
        in_simulated_time(main())
    except* AssertionError as failures:
        raise failures.exceptions[0] from None


pytestmark = runs_in(with_rig)


def fill(rig: ReadRig, *items: Item, replicas: tuple[Replica, ...] = (A, B, C)) -> None:
    for each in replicas:
        rig.clients.of(each).write(items)


def asked(rig: ReadRig) -> list[tuple[Replica, bool]]:
    """Whom, and whether for a digest."""
    return [(target, request.digest_only) for target, request in rig.clients.reads]


# The nearest alone


async def test_a_row_that_this_shard_has_is_read_at_once(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1", "here"), replicas=(A,))
    page = run_eagerly(rig.read(point(), ONE))
    assert not isinstance(page, Suspended)
    assert [value_of(item) for item in page.items] == ["here"]
    assert page.position == b""
    assert await rig.read(point(), LOCAL_ONE) == page
    assert rig.view.held == 0, "no request was under way"


async def test_what_is_not_live_is_not_shown_at_once_either(rig: ReadRig, /) -> None:
    expired = row_at("p", "2"), stored(Row(marker=RowMarker(1, 5, NOW_S)))
    fill(rig, put("p", "1"), expired, head("p", "s"), head("q"), put("q", "1"))
    spans: tuple[Span, ...] = ((head_at("p"), row_at("p", "9")),)
    page = run_eagerly(rig.read(ReadQuery(table=TABLE, spans=spans, rows_max=10, now_s=NOW_S), ONE))
    assert not isinstance(page, Suspended)
    assert [key for key, _ in page.items] == [head_at("p"), row_at("p", "1")]


@pytest.mark.parametrize("level", [QUORUM, ALL, LOCAL_QUORUM, ConsistencyLevel.TWO])
async def test_more_than_one_replica_is_never_answered_at_once(rig: ReadRig, /, level: ConsistencyLevel) -> None:
    rest = run_eagerly(rig.read(point(), level))
    assert isinstance(rest, Suspended)
    await rest


@runs_in(with_rig, own=D)
async def test_a_shard_without_a_replica_asks_one_that_has(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1", "there"))
    page = await rig.read(point(), ONE)
    assert [value_of(item) for item in page.items] == ["there"]
    assert asked(rig) == [(A, False)]


async def test_where_the_own_shard_must_wait_it_is_asked_and_waited_for(rig: ReadRig, /) -> None:
    rig.clients.own_answers_at_once = False
    fill(rig, put("p", "1"))
    assert len((await rig.read(point(), ONE)).items) == 1
    assert asked(rig) == [(A, False)]


OWN_FAILURES = [
    Overloaded("too many reads wait"),
    Unavailable("this shard does not serve now"),
    Corruption("layer /data/shard-0/layers/7 is damaged"),
    InternalError("a defect"),
    OSError(5, "Input/output error"),
]


@pytest.mark.parametrize("failure", OWN_FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("level", [ONE, LOCAL_ONE, QUORUM])
def test_an_own_shard_that_fails_is_replaced_by_another_replica(failure: Exception, level: ConsistencyLevel) -> None:
    async def test(rig: ReadRig) -> None:
        rig.clients.errors[A] = failure
        fill(rig, put("p", "1"), replicas=(B, C))
        assert len((await rig.read(point(), level)).items) == 1
        assert asked(rig)[0][0] == A
        assert asked(rig)[-1][0] in (B, C)

    with_rig(test)


async def test_a_read_that_all_replicas_fail_is_a_failed_read_without_internals(rig: ReadRig, /) -> None:
    rig.clients.errors |= dict.fromkeys((A, B, C), Corruption("layer /data/shard-0/layers/7 is damaged"))
    with pytest.raises(ReadFailed, match="stored data is damaged") as caught:
        await rig.read(point(), ONE)
    assert "/data" not in str(caught.value)
    assert "/data" in caught.value.__notes__[0], "the log has it"


# Digests and repairs


async def test_a_quorum_is_the_own_data_and_another_digest(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"))
    assert len((await rig.read(point())).items) == 1
    assert asked(rig) == [(A, False), (B, True)]
    assert rig.counted("router_read_mismatches_total") == 0


@runs_in(with_rig, own=D)
async def test_what_a_quorum_has_shown_every_later_quorum_shows(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1", "old", 1))
    fill(rig, put("p", "1", "new", 2), replicas=(A,))
    rig.view.down = frozenset({host(3)})
    assert [value_of(item) for item in (await rig.read(point())).items] == ["new"]
    rig.view.down = frozenset({host(1)})
    assert [value_of(item) for item in (await rig.read(point())).items] == ["new"]
    assert rig.counted("router_read_repairs_total") == 2, "the one that was down is repaired too"


async def test_a_page_is_answered_once_the_repairs_are_done(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"), replicas=(B,))
    rig.clients.delays_ms[B] = 1
    rig.clients.write_errors[A] = ConnectionLost("gone")
    with pytest.raises(ReadFailed) as raised:
        await rig.read(point())
    assert (raised.value.received, raised.value.required, raised.value.failed) == (1, 2, 1)
    rig.clients.write_errors[A] = DeadlineExceeded("late")
    with pytest.raises(ReadTimeout) as late:
        await rig.read(point())
    assert (late.value.received, late.value.required, late.value.has_data) == (1, 2, True)


def test_in_a_migration_the_pending_replica_is_mended_before_the_page_is_answered() -> None:
    """It will be read from next, and what was shown must not be gone then."""
    moving = TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(D, B, C))
    snapshot = snapshot_of(one_tablet(A, B, C, transition=moving), SMALL)

    async def test(rig: ReadRig) -> None:
        fill(rig, put("p", "1"), replicas=(A,))
        assert len((await rig.read(point())).items) == 1
        assert {target for target, _ in rig.clients.writes} >= {B, D}
        rig.clients.writes.clear()
        fill(rig, put("p", "2"), replicas=(A,))
        rig.clients.write_errors[D] = ConnectionLost("gone")
        rig.view.down = frozenset({host(3)})
        with pytest.raises(ReadFailed):
            await rig.read(point("p", "2"))

    with_rig(test, snapshot)


async def test_a_deleted_slice_is_found_though_only_a_row_is_read(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1", at_us=1))
    fill(rig, head("p", deletion=Deletion(2, 5)), replicas=(B,))
    assert (await rig.read(point())).items == ()
    assert rig.clients.of(A).items[head_at("p")] == rig.clients.of(B).items[head_at("p")]
    backwards = msgspec.structs.replace(point("p", "1"), is_reversed=True)
    fill(rig, put("p", "2", at_us=1))
    assert (await rig.read(backwards, ALL)).items == ()


async def test_heads_larger_than_a_page_do_not_stop_a_read(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1", at_us=1), put("p", "2", at_us=9))
    fill(rig, head("p", "s", deletion=Deletion(2, 5)), replicas=(B,))
    for each in (A, B, C):
        rig.clients.of(each).cut = lambda: 1
    spans: tuple[Span, ...] = ((row_at("p", "0"), row_at("p", "9")),)
    for is_reversed in (False, True):
        page = await rig.read(ReadQuery(table=TABLE, spans=spans, rows_max=10, now_s=NOW_S, is_reversed=is_reversed))
        assert [key for key, _ in page.items] == [row_at("p", "2")]


# Errors


async def test_too_few_that_are_up(rig: ReadRig, /) -> None:
    rig.view.down = frozenset({host(2), host(3)})
    with pytest.raises(TooFewReplicas) as raised:
        await rig.read(point())
    assert (raised.value.required, raised.value.alive) == (2, 1)
    rig.view.down = frozenset({host(2)})
    rig.clients.refused = frozenset({C})
    with pytest.raises(TooFewReplicas):
        await rig.read(point())
    rig.clients.refused = frozenset()
    assert (await rig.read(point())).items == ()


async def test_too_few_that_answer_in_time(rig: ReadRig, /) -> None:
    rig.clients.delays_ms = {B: 9_000, C: 9_000}
    with pytest.raises(ReadTimeout) as raised:
        await rig.read(point(), ms=300)
    error = raised.value
    assert (error.required, error.received, error.has_data) == (2, 1, True)
    with pytest.raises(ReadTimeout) as without:
        await rig.read(msgspec.structs.replace(point(), now_s=11), ALL, ms=300)
    assert without.value.required == 3


async def test_too_few_that_can_answer(rig: ReadRig, /) -> None:
    rig.clients.errors = {B: Corruption("damaged"), C: Unreachable("connection refused")}
    with pytest.raises(ReadFailed, match="damaged") as raised:
        await rig.read(point())
    assert (raised.value.required, raised.value.received, raised.value.failed) == (2, 1, 2)


async def test_another_replica_is_asked_instead_of_one_that_fails(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"))
    rig.clients.errors = {A: Corruption("damaged")}
    assert len((await rig.read(point())).items) == 1
    assert set(asked(rig)) == {(A, False), (C, False), (B, True)}
    rig.clients.reads.clear()
    assert len((await rig.read(SCAN, ONE)).items) == 1
    assert asked(rig) == [(A, False), (B, False)]


async def test_queries_that_are_none_and_tables_that_are_not_there(rig: ReadRig, /) -> None:
    for level in (ONE, QUORUM):
        with pytest.raises(NotFound):
            await rig.read(msgspec.structs.replace(point(), table=TableId(host(9))), level)
        with pytest.raises(InvalidRequest):
            await rig.read(msgspec.structs.replace(point(), rows_max=0), level)
        with pytest.raises(InvalidRequest):
            await rig.read(msgspec.structs.replace(point(), spans=()), level)
    assert rig.metrics.counters["router_reads_total"].series("invalid_request").value == 4


# Versions


async def test_a_stale_read_waits_for_the_newer_version_and_goes_again(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"), replicas=(B, C, D))
    rig.clients.fence = 6
    reading = asyncio.ensure_future(rig.read(point(), ms=5_000))
    await asyncio.sleep(0.5)
    assert not reading.done()
    rig.install(snapshot_of(tablets_of((B, C, D)), SMALL), 6)
    assert len((await reading).items) == 1
    assert rig.counted("router_read_retries_total") >= 1


async def test_a_read_that_stays_stale_ends_with_its_time(rig: ReadRig, /) -> None:
    rig.clients.fence = 6
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(ReadTimeout):
        await rig.read(point(), ms=2_000)
    assert loop.time() - began_at == pytest.approx(2.0, abs=0.1)


@runs_in(with_rig, limits=EAGER)
async def test_the_version_is_held_until_the_slow_one_has_answered(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"))
    rig.clients.delays_ms = {B: 300}
    assert len((await rig.read(point(), ms=2_000)).items) == 1
    assert asked(rig) == [(A, False), (C, False)]
    assert rig.view.versions.oldest(TopologyVersion(9)) == 5, "B may still be asked by this version"
    await asyncio.sleep(0.4)
    assert rig.view.versions.oldest(TopologyVersion(9)) == 9


async def test_rows_of_a_newer_schema_wait_for_it(rig: ReadRig, /) -> None:
    newer = with_column(SMALL, column("added", "text"))
    row = Row(marker=RowMarker(1))
    key, _ = put("p", "1")
    value = b"\x01\x03\x00\x02" + stored(row)[4:] + b"\xff" * 4
    for each in (A, B, C):
        rig.clients.of(each).schema = newer
        rig.clients.of(each).write([(key, value)])
    reading = asyncio.ensure_future(rig.read(point(), ONE, ms=5_000))
    await asyncio.sleep(0.1)
    assert not reading.done()
    rig.install(snapshot_of(tablets_of((A, B, C)), newer), 6)
    assert len((await reading).items) == 1


# Slow replicas


@runs_in(with_rig, own=D, limits=EAGER)
async def test_a_slow_replica_is_not_waited_for(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"))
    rig.clients.delays_ms = {A: 500, B: 1, C: 1}
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    assert len((await rig.read(point(), ONE)).items) == 1
    assert loop.time() - began_at < 0.1
    assert rig.counted("router_speculative_retries_total") == 1


@runs_in(with_rig, own=D, limits=EAGER)
async def test_one_that_has_stopped_is_soon_asked_last(rig: ReadRig, /) -> None:
    fill(rig, put("p", "1"))
    rig.clients.delays_ms = {A: 9_000, B: 1, C: 1}
    loop = asyncio.get_running_loop()
    for _ in range(3):
        await rig.read(point(), ONE, ms=10_000)
    began_at = loop.time()
    for _ in range(20):
        await rig.read(point(), ONE, ms=10_000)
    assert loop.time() - began_at < 0.1


# Scans


def test_many_empty_tablets_are_asked_many_at_a_time() -> None:
    count = 1024
    snapshot = snapshot_of(tablets_of(*[((A, B, C, D)[number % 4],) for number in range(count)]), SMALL)

    async def test(rig: ReadRig) -> None:
        rig.clients.own_answers_at_once = False
        rig.clients.delays_ms = {A: 10, B: 10, C: 10, D: 10}
        fill(rig, put("p", "1"), put("q", "1"), put("r", "1"), replicas=(A, B, C, D))
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        keys = [key for key, _ in (await rig.read(SCAN, ONE, ms=10_000)).items]
        assert keys == sorted(row_at(name, "1") for name in "pqr")
        assert loop.time() - began_at < 0.25, "one by one they take ten seconds"

    with_rig(test, snapshot)


def test_partitions_are_asked_side_by_side() -> None:
    snapshot = snapshot_of(tablets_of(*[((A, B, C, D)[number % 4],) for number in range(64)]), SMALL)
    names = [f"p{number}" for number in range(30)]

    async def test(rig: ReadRig) -> None:
        rig.clients.delays_ms = {A: 10, B: 10, C: 10, D: 10}
        fill(rig, *[put(name, "1") for name in names], replicas=(A, B, C, D))
        keys = sorted(row_at(name, "1") for name in names)
        spans = tuple((key, key + b"\0") for key in keys)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        page = await rig.read(ReadQuery(table=TABLE, spans=spans, rows_max=100, now_s=NOW_S), ONE)
        assert [key for key, _ in page.items] == keys
        assert loop.time() - began_at < 0.05

    with_rig(test, snapshot)


def test_what_fails_behind_the_end_of_a_page_does_not_matter() -> None:
    snapshot = snapshot_of(tablets_of((A,), (B,)), SMALL)

    async def test(rig: ReadRig) -> None:
        keys = sorted(row_at(name, "1") for name in "abcdefgh")
        fill(rig, *[put(name, "1") for name in "abcdefgh"], replicas=(A, B))
        rig.clients.errors[B] = Corruption("damaged")
        spans = tuple((key, key + b"\0") for key in keys)
        page = await rig.read(ReadQuery(table=TABLE, spans=spans, rows_max=1, now_s=NOW_S), ONE)
        assert [key for key, _ in page.items] == keys[:1]
        with pytest.raises(ReadFailed):
            await rig.read(ReadQuery(table=TABLE, spans=spans, rows_max=8, now_s=NOW_S), ONE)

    with_rig(test, snapshot, own=D)


def test_a_page_whose_time_is_over_has_what_was_read() -> None:
    snapshot = snapshot_of(tablets_of(*[(A,)] * 8), SMALL)

    async def test(rig: ReadRig) -> None:
        rig.clients.own_answers_at_once = False
        fill(rig, *[put(f"p{number}", "1") for number in range(40)], replicas=(A,))
        rig.clients.delays_ms[A] = 100
        page = await rig.read(SCAN, ONE, ms=250)
        assert 0 < len(page.items) < 40
        rest = await rig.read(msgspec.structs.replace(SCAN, position=page.position), ONE, ms=9_000)
        assert len(page.items) + len(rest.items) == 40
        with pytest.raises(ReadTimeout):
            await rig.read(SCAN, ONE, ms=50)

    with_rig(test, snapshot, limits=RouterLimits(parallel_ranges_max=1))


def test_each_datacenter_is_asked_for_its_quorum() -> None:
    nodes = [msgspec.structs.replace(each, datacenter="dc2") if each.host == host(4) else each for each in NODES]
    snapshot = snapshot_of(tablets_of((D, A, B, C)), SMALL, nodes=nodes)

    async def test(rig: ReadRig) -> None:
        fill(rig, put("p", "1"), replicas=(A, B, C, D))
        assert len((await rig.read(point(), ConsistencyLevel.EACH_QUORUM)).items) == 1
        assert {target for target, _ in asked(rig)} == {A, B, D}
        rig.clients.reads.clear()
        rig.view.down = frozenset({host(4)})
        assert len((await rig.read(point(), LOCAL_QUORUM)).items) == 1
        assert asked(rig) == [(A, False), (B, True)]
        with pytest.raises(TooFewReplicas):
            await rig.read(point(), ConsistencyLevel.EACH_QUORUM)

    with_rig(test, snapshot)


async def test_a_read_waits_no_longer_than_the_node_allows(rig: ReadRig, /) -> None:
    rig.clients.fence = 6
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(ReadTimeout):
        await rig.read(point(), ms=1_000 * 3_600_000)
    assert loop.time() - began_at == pytest.approx(RouterLimits().read_timeout_ms_max / 1000, abs=0.6)
