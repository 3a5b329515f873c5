"""Compactions of a shard's stacks."""

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.compaction_rig import Place
from tests.unit.replica.shard_rig import OWN, ShardRig, in_shard, read_of, small_cluster, write_of
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, limits, plain

from ebla.model.errors import Unreachable
from ebla.model.token import WHOLE_RING
from ebla.options import CommitLogMode
from ebla.replica.compaction import CompactionLoop, gc_terms
from ebla.storage.compaction.tombstone_gc import GcContext, RepairedRange
from ebla.topology.tablet_map import tablet_map

REPAIRED = tablet_map(SMALL.id, [(OWN,)], repair_times_ms=[7_900])
BASES = 6


@pytest.mark.parametrize("is_there", [True, False])
def test_a_grown_stack_is_folded_or_left_as_it_was(is_there: bool) -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC))

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(REPAIRED))
        (stack,) = shard.store.stacks.values()
        for number in range(BASES):
            assert not shard.store.needs_compaction(stack) or number > 4
            await shard.write(write_of(plain(number, 0, number + 1)))
            await shard.store.seal(stack)
        assert shard.store.needs_compaction(stack)
        before = (await shard.server.read(read_of(), 1_000)).items
        terms = GcContext(now_s=1_000, replication_factor=3)
        folding = CompactionLoop(shard.store, shard.stacks, Place(rig, is_there=is_there).compact, lambda _stack: terms)
        if is_there:
            assert await folding.compact(stack) == "swapped"
            assert not shard.store.needs_compaction(stack)
            assert len(stack.entry.bases) < BASES
            assert await folding.compact(stack) is None
        else:
            with pytest.raises(Unreachable):
                await folding.compact(stack)
            assert shard.store.needs_compaction(stack), "it may be tried again"
        assert (await shard.server.read(read_of(), 1_000)).items == before

    in_shard(work, rig=rig)


@runs_in(in_shard)
async def test_the_terms_of_a_fold_come_from_the_topology(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(REPAIRED))
    (stack,) = shard.store.stacks.values()
    assert gc_terms(view, stack, 55) == GcContext(
        now_s=55, replication_factor=3, repaired=(RepairedRange(WHOLE_RING, 7),)
    )
