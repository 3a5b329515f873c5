"""A stack of a table on vnodes against a dictionary of rows, while the node loses and gains ranges (INV-NODE-20).

Writes, deletes, seals, adoptions, compactions that purge tombstones and drop what the node does not hold, crashes at
any step of a gain, log replay, and views that are delivered again after a restart: within the ranges that the node
holds, reads always return what was written since it gained them.
"""

import random
import uuid
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.storage.small_table import CELLS, key_of, partition_token, small_table, value_of
from tests.unit.storage.store_rig import Rig, limits
from tests.unit.topology.small_cluster import cluster, network, node

from ebla.model.identity import HistoryId
from ebla.model.rows import Cell, Deletion, Row
from ebla.model.schema import TombstoneGc
from ebla.model.token import WHOLE_RING, Token, TokenRange, merge_ranges, subtract_ranges
from ebla.model.transaction import Revision
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.row_codec import decode_row
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult, SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.manifest import HeldRanges
from ebla.storage.merge.row_merge import facts_of
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore
from ebla.topology.routing.replica_sets import ReplicaSets, VnodeReplicas

HISTORY = HistoryId(uuid.UUID(int=5))
SCHEMA = small_table(TombstoneGc.IMMEDIATE)
PARTS = WHOLE_RING.split(4)
PARTITIONS = 12
OPERATIONS = 80
SCRIPTS_KEPT = 16
GC = GcContext(now_s=1 << 30, replication_factor=1)


class Killed(Exception):
    """The process dies at a fault point."""


@dataclass(slots=True)
class Model:
    """By partition, the newest timestamp and value; None: deleted."""

    rows: dict[int, tuple[int, int | None]] = field(default_factory=dict)

    def put(self, partition: int, timestamp_us: int, value: int | None) -> None:
        if self.rows.get(partition, (-1, None))[0] < timestamp_us:
            self.rows[partition] = (timestamp_us, value)

    def forget(self, ranges: tuple[TokenRange, ...]) -> None:
        self.rows = {one: row for one, row in self.rows.items() if not is_in(one, ranges)}

    def seen(self, held: tuple[TokenRange, ...]) -> dict[int, int]:
        return {one: value for one, (_, value) in self.rows.items() if value is not None and is_in(one, held)}


class Driver:
    def __init__(self, seed: int) -> None:
        self.rig = Rig(seed, limits(segments_max=6, bases_max=3))
        self.rng = random.Random(seed)
        self.model = Model()
        self.views = [_View(HeldRanges((WHOLE_RING,), Revision(HISTORY, 1)))]
        self.clock_us = 0
        self.staged: tuple[str, dict[int, tuple[int, int]]] | None = None
        self.job: tuple[CompactionJob, CompactionResult] | None = None
        self.store: ShardStore
        self.stack: Stack
        self.steps = (
            *(self.write,) * 12,
            *(self.delete,) * 5,
            *(self.seal,) * 3,
            *(self.begin_compaction,) * 4,
            *(self.finish_compaction,) * 4,
            *(self.stage,) * 2,
            *(self.adopt,) * 3,
            *(self.follow,) * 5,
            self.die_in_a_view,
            self.deliver_again,
        )

    def run(self, operations: int) -> None:
        left = [operations]
        while left[0]:
            self.rig.machine.run(partial(self._live, left=left))
            if self.rng.random() < 0.5:
                self.rig.lose_power()

    async def _live(self, disk: ProcessDisk, left: list[int]) -> None:
        async with self.rig.store(disk) as store:
            self.store = store
            await store.set_schema(SCHEMA)
            self.stack = await store.create(SCHEMA.id, WHOLE_RING)
            self.job = self.staged = None
            # After a start the first views may be older than what the shard had seen.
            for view in self.views[self.rng.randrange(len(self.views)) :]:
                await self.install(view)
            store.release_gc(self.stack)
            await self.check()
            while left[0]:
                left[0] -= 1
                if self.rng.random() < 0.04:
                    return  # killed
                try:
                    await self.rng.choice(self.steps)()
                except Killed:
                    return
                await self.check()

    @property
    def held(self) -> tuple[TokenRange, ...]:
        return self.views[-1].held.ranges

    # -- rows ------------------------------------------------------------------------------------------------------

    def draw(self) -> int | None:
        """A partition of a range that the node holds: nobody sends it another."""
        there = [one for one in range(PARTITIONS) if is_in(one, self.held)]
        return self.rng.choice(there) if there else None

    def item(self, partition: int, timestamp_us: int, value: int | None) -> Item:
        if value is None:
            return key_of(partition, 0), value_of(Row(deletion=Deletion(timestamp_us, 1)), SCHEMA)
        cell = Cell(timestamp_us=timestamp_us, value=value.to_bytes(4))
        return key_of(partition, 0), value_of(Row(cells={CELLS[0]: cell}), SCHEMA)

    async def write(self, *, deletes: bool = False) -> None:
        partition = self.draw()
        if partition is not None:
            self.clock_us += 1
            value = None if deletes else self.clock_us
            await self.store.write(self.stack, [self.item(partition, self.clock_us, value)])
            self.model.put(partition, self.clock_us, value)

    async def delete(self) -> None:
        await self.write(deletes=True)

    async def check(self) -> None:
        found: dict[int, int] = {}
        opened = await self.store.open(self.stack)
        keys = {key_of(partition, 0): partition for partition in range(PARTITIONS)}
        for key, value in opened.scan():
            assert opened.read(key) == value
            partition, cell = keys[key], decode_row(value, SCHEMA.layouts).cells.get(CELLS[0])
            if cell is not None and cell.value is not None and is_in(partition, self.held):
                found[partition] = int.from_bytes(cell.value)
        assert found == self.model.seen(self.held)

    # -- the stack -------------------------------------------------------------------------------------------------

    async def seal(self) -> None:
        await self.store.seal(self.stack)

    async def begin_compaction(self) -> None:
        if self.job is None:
            self.stack.kept = self.rng.choice((None, self.held))
            whole = self.rng.random() < 0.7
            job = await self.store.begin_compaction(self.stack, GC, whole=whole)
            if job is not None:
                assert self.rig.engine is not None
                self.job = (job, await run_compaction(self.rig.engine, self.rig.engine.disk, job))

    async def finish_compaction(self) -> None:
        if self.job is not None:
            job, self.job = self.job, None
            outcome = await self.store.finish_compaction(*job)
            assert outcome in (SwapOutcome.SWAPPED, SwapOutcome.OLDER_CELLS, SwapOutcome.HELD)

    async def stage(self) -> None:
        if self.staged is None:
            await self.store.hold_gc(self.stack, "staging")
            rows = {}
            for partition in filter(None, [self.draw() for _ in range(4)]):
                self.clock_us += 1
                rows[partition] = (self.clock_us, self.clock_us)
            items = sorted(self.item(partition, *row) for partition, row in rows.items())
            folder = f"/data/staged-{self.clock_us}-{self.rng.random()}"
            assert self.rig.engine is not None
            await build_layer(self.rig.engine, folder, items, facts_of([value for _, value in items], SCHEMA))
            self.staged = (folder, rows)

    async def adopt(self) -> None:
        """Its rows are written at this moment, wherever the node holds them now."""
        if self.staged is not None:
            (folder, rows), self.staged = self.staged, None
            await self.store.adopt_all(self.stack, [Adoption(folder, WHOLE_RING, folder)])
            self.store.release_gc(self.stack, "staging")
            for partition, row in rows.items():
                self.model.put(partition, *row)

    # -- the topology ----------------------------------------------------------------------------------------------

    def next_view(self) -> "_View":
        """Often by an operation, of which a part is pending. The shard may have skipped views in which it lost that."""
        known, index = self.views[-1].held, len(self.views) + 1
        ranges = merge_ranges(one for one in PARTS if self.rng.random() < 0.6)
        gained, operation = subtract_ranges(ranges, known.ranges), ""
        if self.rng.random() < 0.5:
            operation = self.rng.choice((known.operation, f"operation {index}"))
        pending = gained if operation else ()
        if operation and operation != known.operation:
            pending = merge_ranges((*gained, *(one for one in ranges if self.rng.random() < 0.3)))
        view = _View(HeldRanges(ranges, Revision(HISTORY, index), operation if pending else ""), pending)
        self.model.forget((*gained, *pending))
        self.views.append(view)
        return view

    async def install(self, view: "_View") -> None:
        await self.store.hold_ranges(self.stack, view.held, view.pending)

    async def follow(self) -> None:
        await self.install(self.next_view())

    async def die_in_a_view(self) -> None:
        place = self.rng.choice(("gain.before_manifest", "gain.after_manifest"))

        async def reach(reached: str) -> None:
            if reached == place:
                raise Killed

        view = self.next_view()
        await self.store.hold_ranges(self.stack, view.held, view.pending, reach)

    async def deliver_again(self) -> None:
        await self.install(self.rng.choice(self.views))


@dataclass(frozen=True, slots=True)
class _View:
    held: HeldRanges
    pending: tuple[TokenRange, ...] = ()


def is_in(partition: int, ranges: tuple[TokenRange, ...]) -> bool:
    return any(partition_token(partition) in one for one in ranges)


@pytest.mark.parametrize("seed", range(SCRIPTS_KEPT))
def test_the_same_histories_every_time(seed: int) -> None:
    """Fixed seeds: deliberate bugs are caught by these, since a random search finds them at an unknown time."""
    Driver(seed).run(OPERATIONS)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(1 << 10, 1 << 20))
def test_a_gained_range_holds_what_was_written_since(seed: int) -> None:
    Driver(seed).run(OPERATIONS)


# -- what a node holds and gains, as pure functions --------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)


@given(RANGES, RANGES)
def test_ranges_without_others_are_the_tokens_without_the_others(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    ranges, without = ([TokenRange(Token(a), Token(b)) for a, b in pairs] for pairs in (first, second))
    left = subtract_ranges(ranges, without)
    assert left == merge_ranges(left)
    for token in map(Token, range(-11, 12)):
        expected = any(token in one for one in ranges) and not any(token in one for one in without)
        assert any(token in one for one in left) == expected


@given(
    tokens=st.lists(st.integers(-500, 500), min_size=1, max_size=24, unique=True),
    owners=st.lists(st.integers(1, 5), min_size=24, max_size=24),
    factor=st.integers(1, 4),
)
def test_a_node_holds_exactly_the_ranges_it_is_a_replica_of(tokens: list[int], owners: list[int], factor: int) -> None:
    numbers = dict(zip(tokens, owners))
    nodes = [
        node(number, tokens=tuple(sorted(token for token in tokens if numbers[token] == number)))
        for number in range(1, 6)
    ]
    sets = ReplicaSets(cluster(*nodes, replication=network(dc1=factor)))
    replicas = sets.of(next(iter(sets.snapshot.tables)))
    assert isinstance(replicas, VnodeReplicas)
    for one in nodes:
        of_host = replicas.held_ranges_of(one.host)
        held = of_host.ranges
        assert not of_host.pending
        assert held == merge_ranges(replicas.ranges_of(one.host))
        for token in (*tokens, *(token + 1 for token in tokens)):
            expected = one.host in [replica.host for replica in replicas.writing(token).natural]
            assert any(Token(token) in part for part in held) == expected
