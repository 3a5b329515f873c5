"""The same pages where the replicas are stacks of layers, read as a shard reads them, with small bounds."""

import uuid
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.properties.routed_reads_rig import (
    COLLECTING,
    REPLICAS,
    Case,
    case_of,
    expected,
    limits_of,
    shown,
    snapshot_for,
)
from tests.unit.request.read_rig import ALL, QUORUM, A, MemoryReplica, running
from tests.unit.storage.random_rows import MIXED
from tests.unit.storage.store_rig import Rig

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import TableId
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING
from ebla.replica.replica_context import ReplicaLimits
from ebla.replica.row_pages import StackPageReader, are_single_keys, read_keys
from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.layer import Item
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest

EXAMPLES = 25
WHOLE_SHIFT = 64


@dataclass
class OneStack:
    """As `TableStacks`, of one stack that has the whole ring."""

    stacks: dict[int, Stack]
    shift: int = WHOLE_SHIFT


class StackReplica(MemoryReplica):
    """A stack in the place of a dictionary."""

    def __init__(self, store: ShardStore, stack: Stack, bounds: ReplicaLimits) -> None:
        super().__init__(stack.schema)
        self._store = store
        self._stack = stack
        self._bounds = bounds

    def write(self, items: object) -> None:
        opened = self._stack.find_open()
        assert opened is not None
        listed: list[Item] = list(items)  # type: ignore[call-overload] # any iterable of items
        self._store.write_open(self._stack, opened.live, listed)

    def read(self, request: ReadRowsRequest) -> ReadRowsAnswer:
        opened = self._stack.find_open()
        assert opened is not None
        if are_single_keys(request.spans):
            return read_keys(request, opened, self._stack)
        page = StackPageReader(request, OneStack({0: self._stack}), self._bounds)  # type: ignore[arg-type] # the part it needs
        while not page.is_over:
            assert page.turn() is None
        return page.answer()


async def stack_of(store: ShardStore, case: Case, number: int, items: list[Item]) -> Stack:
    """Its items in up to three layers."""
    schema = msgspec.structs.replace(case.schema, id=TableId(uuid.UUID(int=number)))
    await store.set_schema(schema)
    stack = await store.create(schema.id, WHOLE_RING)
    cuts = sorted(case.rng.randrange(len(items) + 1) for _ in range(case.rng.randrange(3)))
    for start, end in zip([0, *cuts], [*cuts, len(items)]):
        if start < end:
            await store.write(stack, items[start:end])
            await store.seal(stack)
    await store.open(stack)
    return stack


async def check(disk: ProcessDisk, rig: Rig, case: Case, level: ConsistencyLevel) -> None:
    items_max = case.rng.choice([20, 40, 16_384])
    bounds = ReplicaLimits(page_items_max=items_max, turn_items_max=case.rng.choice([1, items_max]))
    async with rig.store(disk) as store, running(snapshot_for(case), A, limits_of(case), case.schema) as reads:
        for number, replica in enumerate(REPLICAS, 1):
            stack = await stack_of(store, case, number, case.parts[replica])
            reads.clients.replicas[replica] = StackReplica(store, stack, bounds)
        for _ in range(3):
            query = case.query()
            pages = await reads.read_all(query, level)
            found = [shown(item, case.schema) for page in pages for item in page.items]
            assert found == expected(case.whole, query)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.parametrize("schema", [MIXED, COLLECTING], ids=["keeping", "collecting"])
@pytest.mark.parametrize("level", [QUORUM, ALL])
def test_pages_of_stacks_are_the_whole(level: ConsistencyLevel, schema: TableSchema, seed: int) -> None:
    rig = Rig(seed)
    case = case_of(seed, schema, on_quorums=level is QUORUM)
    rig.machine.run(lambda disk: check(disk, rig, case, level))
