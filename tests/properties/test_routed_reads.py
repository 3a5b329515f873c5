"""Pages of routed reads against the merged whole.

Each replica has a part of the writes, every write is on a quorum, and replicas may end a page anywhere. For any page
size, order, limit and tablet map the pages of a read add up to what one replica with every write shows. Read repair has
then fixed what was read: the replicas agree.
"""

from dataclasses import dataclass
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.request.read_rig import (
    ALL,
    EVERYTHING,
    NOW_S,
    ONE,
    QUORUM,
    A,
    B,
    C,
    D,
    MemoryReplica,
    ReadRig,
    in_simulated_time,
    replace_position,
    running,
    snapshot_of,
    tablets_of,
)
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, stored_prefix
from tests.unit.topology.small_cluster import TABLE, network

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Replica
from ebla.model.schema import TableOptions, TableSchema, TombstoneGc
from ebla.request.read_router import ReadLimits
from ebla.request.router_types import ReadQuery
from ebla.storage.codec.key_codec import decode_token, head_key, prefix_end, row_key, split_key
from ebla.storage.codec.live_rows import has_static, is_live_row, static_values, visible_cells
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.storage.layers.layer import Item
from ebla.topology.snapshot import Snapshot
from ebla.wire.row_messages import Span

EXAMPLES = 40
REPLICAS = (A, B, C)
PARTITIONS = 6
COLLECTING = msgspec.structs.replace(MIXED, options=TableOptions(tombstone_gc=TombstoneGc.IMMEDIATE))

Shown = tuple[bytes, object]


def shown(item: Item, schema: TableSchema) -> Shown:
    """What a user sees of a live row or a head."""
    key, value = item
    if is_head(value):
        return key, static_values(schema, decode_head(value), NOW_S)
    return key, visible_cells(schema, decode_row(value, schema.layouts), NOW_S)


def expected(whole: MemoryReplica, query: ReadQuery) -> list[Shown]:
    found, counts = [], dict[bytes, int]()
    for key, value in whole.shown(query.spans, is_reversed=query.is_reversed):
        prefix = split_key(key)[0]
        if is_head(value):
            if has_static(value, whole.schema, NOW_S):
                found.append(shown((key, value), whole.schema))
        elif is_live_row(value, whole.schema, NOW_S):
            counts[prefix] = counts.get(prefix, 0) + 1
            if not query.partition_rows_max or counts[prefix] <= query.partition_rows_max:
                found.append(shown((key, value), whole.schema))
    return found


@dataclass(kw_only=True)
class Case:
    """One cluster with its contents, drawn from a seed."""

    rng: Random
    whole: MemoryReplica
    parts: dict[Replica, list[Item]]
    schema: TableSchema

    def query(self) -> ReadQuery:
        rng = self.rng
        return ReadQuery(
            table=TABLE,
            spans=self.spans(),
            rows_max=rng.choice([1, 2, 3, 7, 1000]),
            now_s=NOW_S,
            is_reversed=rng.random() < 0.5,
            partition_rows_max=rng.choice([0, 0, 1, 2, 3]),
        )

    def spans(self) -> tuple[Span, ...]:
        """Everything, some of the ring, whole partitions, slices, rows with or without heads."""
        rng = self.rng
        prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(PARTITIONS))
        match rng.randrange(5):
            case 0:
                return EVERYTHING
            case 1:
                start, end = sorted(rng.sample(prefixes, 2))
                return ((start[: rng.choice([8, 30])], rng.choice([end, end[:8], None])),)
            case 2:
                some = sorted(rng.sample(prefixes, 3))
                return tuple((prefix, prefix_end(prefix)) for prefix in some)
            case 3:
                some = sorted(rng.sample(prefixes, rng.choice([1, 2])))
                return tuple(span for prefix in some for span in self._slices(prefix))
            case _:
                keys = sorted(rng.sample(sorted(self.whole.items), 2)) if len(self.whole.items) > 2 else []
                return tuple((key, key + b"\0") for key in keys) or EVERYTHING

    def _slices(self, prefix: bytes) -> list[Span]:
        rng = self.rng
        rows = [key for key in sorted(self.whole.items) if key.startswith(prefix) and key != head_key(prefix)]
        middle = rng.choice(rows) if rows else row_key(prefix, b"m")
        found: list[Span] = []
        if rng.random() < 0.5:
            found.append((head_key(prefix), head_key(prefix) + b"\0"))
        if rng.random() < 0.5 and middle != row_key(prefix):
            found.append((row_key(prefix), middle))
            middle += b"\0"
        found.append((middle, prefix_end(prefix)))
        return found

    def fill(self, rig: ReadRig, *, cuts: bool = True) -> None:
        for replica, items in self.parts.items():
            one = rig.clients.of(replica)
            one.write(items)
            if cuts:
                one.cut = lambda: self.rng.choice([1, 2, 3, 5, 1000])


def case_of(seed: int, schema: TableSchema = MIXED, *, on_quorums: bool = True) -> Case:
    rng = Random(seed)
    rows = RandomRows(seed, Mix(plain=rng.choice([0.0, 0.5, 0.9]), partitions=PARTITIONS, rows=20))
    whole = MemoryReplica(schema)
    parts: dict[Replica, list[Item]] = {replica: [] for replica in REPLICAS}
    for _ in range(4):
        for item in rows.layer():
            whole.write([item])
            for replica in rng.sample(REPLICAS, rng.choice([2, 3] if on_quorums else [1, 2, 3])):
                parts[replica].append(item)
    return Case(rng=rng, whole=whole, parts=parts, schema=schema)


def snapshot_for(case: Case) -> Snapshot:
    """One tablet, several with the same replicas in other orders, or vnodes."""
    match case.rng.randrange(3):
        case 0:
            return snapshot_of(tablets_of(REPLICAS), case.schema)
        case 1:
            sets = [case.rng.sample(REPLICAS, 3) for _ in range(8)]
            return snapshot_of(tablets_of(*sets), case.schema)
        case _:
            tokens = [(case.rng.randrange(-(2**63), 2**63), case.rng.randrange(-(2**63), 2**63)) for _ in "abc"]
            base = snapshot_of(None, case.schema).nodes.values()
            nodes = [msgspec.structs.replace(node, tokens=pair) for node, pair in zip(base, tokens)]
            return snapshot_of(None, case.schema, nodes=nodes, replication=network(dc1=3))


def limits_of(case: Case) -> ReadLimits:
    return ReadLimits(page_bytes_max=case.rng.choice([60, 1 << 20]), parallel_ranges_max=case.rng.choice([1, 3, 64]))


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
