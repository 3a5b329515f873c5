"""Stack A adopted into stack B is the merge of both.

Each gets rows and deletions of every kind with its own timestamps, sealed into random layers. Then B adopts the
checkpoint of A, in layers. Afterwards B shows what a list of all writes to both shows: the newest version of each cell,
unless a newer deletion covers it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.storage.small_table import CELLS, SMALL, clustering_of, head_of, key_of, partition_token, value_of
from tests.unit.storage.store_rig import Rig, limits

from ebla.model.rows import Cell, Deletion, PartitionHead, RangeDeletion, Row
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.options import CommitLogMode
from ebla.storage.codec.row_codec import decode_row, encode_head
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item
from ebla.storage.manifest import layer_folder
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore

PARTITIONS, ROWS = 3, 3
EXAMPLES = 60
LATE_S = 10_000
"""A time at which every deletion could be collected, if there were no older data."""

Place = tuple[int, int, int]
"""Partition, row and column."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One write. `kind`: 0 a cell, 1 deletes the cell, 2 its row, 3 rows from it on, 4 the partition, 5 seals."""

    kind: int
    partition: int
    row: int
    column: int
    at_us: int
    value: int


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.integers(0, 5),
        partition=st.integers(0, PARTITIONS - 1),
        row=st.integers(0, ROWS - 1),
        column=st.sampled_from(CELLS),
        at_us=st.integers(1, 12),
        value=st.integers(0, 3),
    ),
    max_size=14,
)


@dataclass
class Model:
    """All writes. At equal timestamps a deletion wins over a value, and a larger value over a smaller one."""

    cells: list[tuple[Place, int, bool, bytes]] = field(default_factory=list)
    deletions: list[tuple[int, range, int]] = field(default_factory=list)

    def put(self, step: Step) -> None:
        place = (step.partition, step.row, step.column)
        match step.kind:
            case 0 | 1:
                self.cells.append((place, step.at_us, step.kind == 1, b"" if step.kind else step.value.to_bytes(4)))
            case 2:
                self.deletions.append((step.partition, range(step.row, step.row + 1), step.at_us))
            case 3:
                self.deletions.append((step.partition, range(step.row, ROWS), step.at_us))
            case 4:
                self.deletions.append((step.partition, range(ROWS), step.at_us))

    def seen(self, within: TokenRange = WHOLE_RING) -> dict[Place, bytes]:
        newest: dict[Place, tuple[int, bool, bytes]] = {}
        for place, at_us, deletes, value in self.cells:
            covered = any(
                place[0] == partition and place[1] in rows and at_us <= deleted_us
                for partition, rows, deleted_us in self.deletions
            )
            if not covered and partition_token(place[0]) in within:
                newest[place] = max(newest.get(place, (0, False, b"")), (at_us, deletes, value))
        return {place: value for place, (_, deletes, value) in newest.items() if not deletes}


def item_of(step: Step) -> Item:
    deletion = Deletion(step.at_us, 0)
    match step.kind:
        case 0:
            return cell_item(step, Cell(timestamp_us=step.at_us, value=step.value.to_bytes(4)))
        case 1:
            return cell_item(step, Cell(timestamp_us=step.at_us, value=None, at_s=1))
        case 2:
            return key_of(step.partition, step.row), value_of(Row(marker=None, deletion=deletion, cells={}))
        case 3:
            head = PartitionHead(None, (RangeDeletion(clustering_of(step.row), None, deletion),))
            return head_of(step.partition), encode_head(head, SMALL.version)
        case _:
            return head_of(step.partition), encode_head(PartitionHead(deletion, ()), SMALL.version)


def cell_item(step: Step, cell: Cell) -> Item:
    return key_of(step.partition, step.row), value_of(Row(marker=None, deletion=None, cells={step.column: cell}))


async def apply(store: ShardStore, stack: Stack, steps: Sequence[Step]) -> None:
    for step in steps:
        if step.kind == 5:
            await store.seal(stack)
        else:
            await store.write(stack, [item_of(step)])


async def seen_in(store: ShardStore, stack: Stack) -> dict[Place, bytes]:
    shown: dict[Place, bytes] = {}
    for partition in range(PARTITIONS):
        for row in range(ROWS):
            value = (await store.open(stack)).read(key_of(partition, row))
            cells = {} if value is None else decode_row(value, SMALL.layouts).cells
            shown |= {(partition, row, at): one.value for at, one in cells.items() if one.value is not None}
    return shown


async def adopt_checkpoint(store: ShardStore, source: Stack, target: Stack, within: TokenRange) -> None:
    manifest = await store.checkpoint(source, "/data/checkpoint")
    (entry,) = manifest.stacks
    adoptions = [
        Adoption(layer_folder("/data/checkpoint", entry.incarnation, one.id), within, "transfer") for one in entry.bases
    ]
    assert await store.adopt_all(target, adoptions) == len(adoptions)
    assert await store.adopt_all(target, adoptions) == 0


async def fold_away(rig: Rig, store: ShardStore, stack: Stack) -> None:
    assert rig.engine is not None
    job = await store.begin_compaction(stack, GcContext(now_s=LATE_S, replication_factor=1), whole=True)
    if job is not None:
        result = await run_compaction(rig.engine, rig.engine.disk, job)
        assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED


HALF = TokenRange(partition_token(0), partition_token(1))
OTHER = TokenRange(Token(5), Token(5))
"""The whole ring as well, and yet another stack."""


@pytest.mark.parametrize("within", [WHOLE_RING, HALF], ids=["whole", "half"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_first=STEPS, given_second=STEPS, written_later=STEPS)
def test_what_is_adopted_is_merged(
    within: TokenRange, given_first: list[Step], given_second: list[Step], written_later: list[Step]
) -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC))
    brought, model = Model(), Model()
    for step in given_first:
        brought.put(step)
    for step in (*given_second, *written_later):
        model.put(step)
    model.cells += [one for one in brought.cells if partition_token(one[0][0]) in within]
    model.deletions += [one for one in brought.deletions if partition_token(one[0]) in within]

    async def work(store: ShardStore) -> None:
        await store.set_schema(SMALL)
        first = await store.create(SMALL.id, WHOLE_RING)
        second = await store.create(SMALL.id, OTHER)
        for stack in (first, second):
            store.release_gc(stack)
        await apply(store, first, given_first)
        await apply(store, second, given_second)
        assert await seen_in(store, first) == brought.seen()
        await store.hold_gc(second, "staging")
        await fold_away(rig, store, second)
        await adopt_checkpoint(store, first, second, within)
        store.release_gc(second, "staging")
        await apply(store, second, written_later)
        assert await seen_in(store, second) == model.seen()
        assert await seen_in(store, first) == brought.seen(), "the source is as it was"
        await fold_away(rig, store, second)
        assert await seen_in(store, second) == model.seen(), "also after a compaction of all layers"

    async def again(store: ShardStore) -> None:
        second = store.find(SMALL.id, OTHER)
        assert second is not None
        assert await seen_in(store, second) == model.seen()

    rig.life(work)
    rig.life(again)
