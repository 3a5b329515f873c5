"""Pages of routed reads against the merged whole.

Each replica has a part of the writes, every write is on a quorum, and replicas may end a page anywhere. For any page
size, order, limit and tablet map the pages of a read add up to what one replica with every write shows. Read repair has
then fixed what was read: the replicas agree.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.properties.routed_reads_rig import (
    COLLECTING,
    REPLICAS,
    Case,
    Shown,
    case_of,
    expected,
    limits_of,
    shown,
    snapshot_for,
)
from tests.unit.request.read_rig import (
    ALL,
    NOW_S,
    ONE,
    QUORUM,
    A,
    B,
    C,
    D,
    ReadRig,
    in_simulated_time,
    replace_position,
    running,
    snapshot_of,
    tablets_of,
)
from tests.unit.storage.random_rows import MIXED
from tests.unit.topology.small_cluster import TABLE

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Replica
from ebla.model.schema import TableSchema
from ebla.request.router_types import ReadQuery
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_codec import is_head

EXAMPLES = 40


async def check_reads(seed: int, level: ConsistencyLevel, schema: TableSchema, *, on_quorums: bool) -> None:
    case = case_of(seed, schema, on_quorums=on_quorums)
    async with running(snapshot_for(case), case.rng.choice((A, D)), limits_of(case), schema) as rig:
        case.fill(rig)
        rig.clients.own_answers_at_once = case.rng.random() < 0.5
        for _ in range(3):
            query = case.query()
            pages = await rig.read_all(query, level)
            found = [shown(item, schema) for page in pages for item in page.items]
            assert found == expected(case.whole, query)
            rows = [sum(not is_head(value) for _, value in page.items) for page in pages]
            assert max(rows) <= query.rows_max


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.parametrize("schema", [MIXED, COLLECTING], ids=["keeping", "collecting"])
def test_pages_of_a_quorum_are_the_whole(schema: TableSchema, seed: int) -> None:
    in_simulated_time(check_reads(seed, QUORUM, schema, on_quorums=True), str(seed))


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_pages_of_all_replicas_are_the_whole_wherever_a_write_is(seed: int) -> None:
    in_simulated_time(check_reads(seed, ALL, MIXED, on_quorums=False), str(seed))


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_pages_of_one_replica_are_what_it_has(seed: int) -> None:
    async def main() -> None:
        case = case_of(seed)
        async with running(snapshot_of(tablets_of(*[(A,)] * 4)), case.rng.choice((A, B)), limits_of(case)) as rig:
            rig.clients.of(A).write(case.whole.items.items())
            rig.clients.of(A).cut = lambda: case.rng.choice([1, 2, 1000])
            query = case.query()
            pages = await rig.read_all(query, ONE)
            assert [shown(item, MIXED) for page in pages for item in page.items] == expected(case.whole, query)

    in_simulated_time(main(), str(seed))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.parametrize("schema", [MIXED, COLLECTING], ids=["keeping", "collecting"])
def test_replicas_that_were_read_agree_afterwards(schema: TableSchema, seed: int) -> None:
    """Repairs all that was read, not only what was returned."""

    async def main() -> None:
        case = case_of(seed, schema, on_quorums=False)
        async with running(snapshot_for(case), D, limits_of(case), schema) as rig:
            case.fill(rig)
            query = ReadQuery(
                table=TABLE,
                spans=case.spans(),
                rows_max=case.rng.choice([1, 5, 1000]),
                now_s=NOW_S,
                is_reversed=case.rng.random() < 0.5,
            )
            await rig.read_all(query, ALL)
            for replica in REPLICAS:
                rig.clients.of(replica).cut = lambda: 1 << 30
            rig.clients.writes.clear()
            before = rig.counted("router_read_mismatches_total")
            await rig.read_all(query, ALL)
            assert rig.counted("router_read_mismatches_total") == before
            assert rig.clients.writes == []

    in_simulated_time(main(), str(seed))


def moved(case: Case, rig: ReadRig, version: int) -> None:
    """Other replicas and another number of tablets, with everything where it belongs by then."""
    count = case.rng.choice([1, 2, 4, 8])
    sets = [case.rng.sample((A, B, C, D), 3) for _ in range(count)]
    tablets = tablets_of(*sets)
    for replica in (A, B, C, D):
        rig.clients.of(replica).items.clear()
    for key, value in case.whole.items.items():
        token = decode_token(key)
        targets = tablets.replicas(tablets.number_of(token))
        for replica in case.rng.sample(targets, 2):
            rig.clients.of(replica).write([(key, value)])
    rig.install(snapshot_of(tablets), version)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_no_row_is_lost_or_doubled_where_tablets_move_and_split_between_pages(seed: int) -> None:
    async def main() -> None:
        case = case_of(seed)
        async with running(snapshot_of(tablets_of(REPLICAS)), A, limits_of(case)) as rig:
            query, version = case.query(), 5
            found: list[Shown] = []
            position = b""
            while True:
                version += 1
                moved(case, rig, version)
                page = await rig.read(replace_position(query, position))
                found += [shown(item, MIXED) for item in page.items]
                position = page.position
                if not position:
                    break
                assert version < 1000
            assert found == expected(case.whole, query)

    in_simulated_time(main(), str(seed))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_no_row_is_lost_or_doubled_where_tablets_move_in_the_middle_of_a_page(seed: int) -> None:
    """The replicas refuse requests routed by the old map."""

    async def main() -> None:
        case = case_of(seed)
        async with running(snapshot_of(tablets_of(REPLICAS)), A, limits_of(case)) as rig:
            versions = iter(range(6, 1000))
            moved(case, rig, next(versions))

            def move_now_and_then(_target: Replica) -> None:
                if case.rng.random() < 0.2:
                    version = next(versions)
                    moved(case, rig, version)
                    rig.clients.fence = rig.view.current.version

            rig.clients.on_read = move_now_and_then
            for replica in (A, B, C, D):
                rig.clients.of(replica).cut = lambda: case.rng.choice([1, 2, 3, 1000])
            query = case.query()
            found: list[Shown] = []
            position = b""
            while True:
                page = await rig.read(replace_position(query, position), ms=60_000)
                found += [shown(item, MIXED) for item in page.items]
                position = page.position
                if not position:
                    break
            assert found == expected(case.whole, query)

    in_simulated_time(main(), str(seed))
