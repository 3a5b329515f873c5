"""What a job writes is adopted as a write: routed by a version, fenced by it, and held back where layers pile up."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.replica.compaction_rig import Place
from tests.unit.replica.shard_rig import ShardRig, read_of
from tests.unit.replica.staged import AT_ONCE_MS, ITEMS, Staging, adopted_in, opened, request_of
from tests.unit.storage.store_rig import Rig

from ebla.model.errors import Outcome, Overloaded, Stale
from ebla.model.identity import TopologyVersion, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import StagingKind
from ebla.observe.event_reporter import discard_event
from ebla.observe.metrics import Metrics
from ebla.replica.compaction import CHECK_S, CompactionLoop
from ebla.replica.replica_context import OvertakenByFence
from ebla.replica.shard_metrics import ShardMetrics
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Layer
from ebla.storage.manifest import ManifestEdit
from ebla.storage.stack import Stack
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest

BY_TWO = request_of(version=2)


pytestmark = runs_in(adopted_in)


async def with_layer(staging: Staging) -> None:
    await staging.open(StagingKind.FILES)
    await staging.seal_layers([(WHOLE_RING, ITEMS)])


async def with_rows(staging: Staging) -> None:
    await staging.open(StagingKind.ROWS)
    await staging.seal_rows(ITEMS[:8], ITEMS[8:])


class HeldStore:
    """The store does what an adoption asks of it when the test lets it: before the effect, or behind it."""

    def __init__(self, shard: ShardRig, *, behind: bool = False, calls: int = 1) -> None:
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._behind = behind
        self._calls = calls
        self._adopt_all, self._open_live = shard.store.adopt_all, shard.store.open_live
        shard.store.adopt_all = self._adopting  # type: ignore[assignment,method-assign] # when it happens
        shard.store.open_live = self._opening  # type: ignore[method-assign] # when it happens

    async def _adopting(self, *arguments: object) -> int:
        if not self._behind:
            await self._hold()
        adopted = await self._adopt_all(*arguments)  # type: ignore[arg-type] # those of the caller
        if self._behind:
            await self._hold()
        return adopted

    async def _opening(self, stack: Stack) -> Layer:
        await self._hold()
        return await self._open_live(stack)

    async def _hold(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            self.begun.set()
            await self.may_go_on.wait()


async def refused(shard: ShardRig, failure: type[Stale], request: AdoptRequest = BY_TWO) -> Stale:
    with pytest.raises(failure) as caught:
        await shard.adoptions.adopt(request, AT_ONCE_MS)
    return caught.value


async def test_a_layer_of_a_job_is_adopted_once_whichever_versions_it_is_asked_by(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await with_layer(staging)
    assert await shard.adoptions.adopt(BY_TWO, AT_ONCE_MS) == AdoptAnswer(1, 0)
    await shard.follow(opened(version=3, fence=3))
    assert await shard.adoptions.adopt(request_of(version=3), AT_ONCE_MS) == AdoptAnswer(0, 0)
    assert shard.view.versions.oldest(TopologyVersion(3)) == 3, "nothing is held"
    assert (await shard.server.read(read_of(version=3), AT_ONCE_MS)).items == ITEMS


async def test_a_version_below_the_fence_is_refused_on_arrival(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await with_layer(staging)
    await shard.follow(opened(version=3, fence=3))
    asked = shard.barriers.asked
    assert (await refused(shard, Stale)).outcome is Outcome.NOT_APPLIED
    assert shard.barriers.asked == asked, "nothing was waited for"
    (stack,) = shard.store.stacks.values()
    assert stack.entry.bases == ()


async def test_a_newer_version_is_waited_for_and_held_meanwhile(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await with_layer(staging)
    with pytest.raises(Stale, match="has not come here"):
        await shard.adoptions.adopt(request_of(version=3), AT_ONCE_MS)
    async with asyncio.TaskGroup() as tasks:
        adopting = tasks.create_task(shard.adoptions.adopt(request_of(version=3), AT_ONCE_MS))
        await asyncio.sleep(0)
        await shard.follow(opened(version=3))
    assert adopting.result().layers == 1


@pytest.mark.parametrize("stage", [with_layer, with_rows])
async def test_a_fence_that_rises_before_the_effect_keeps_it_out(
    shard: ShardRig, _rig: Rig, staging: Staging, /, stage: Callable[[Staging], Awaitable[None]]
) -> None:
    """INV-ROWS-1, and a barrier sees that the version is still in use."""
    await stage(staging)
    held = HeldStore(shard)
    async with asyncio.TaskGroup() as tasks:
        refusing = tasks.create_task(refused(shard, Stale))
        await held.begun.wait()
        await shard.follow(opened(version=3, fence=3))
        assert shard.view.versions.oldest(TopologyVersion(3)) == 2
        held.may_go_on.set()
    assert refusing.result().outcome is Outcome.NOT_APPLIED
    assert shard.view.versions.oldest(TopologyVersion(3)) == 3
    assert (await shard.server.read(read_of(version=3), AT_ONCE_MS)).items == ()


async def test_a_fence_that_rises_behind_the_effect_takes_the_answer_away(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await with_layer(staging)
    held = HeldStore(shard, behind=True)
    async with asyncio.TaskGroup() as tasks:
        refusing = tasks.create_task(refused(shard, OvertakenByFence))
        await held.begun.wait()
        await shard.follow(opened(version=3, fence=3))
        held.may_go_on.set()
    assert refusing.result().outcome is Outcome.UNKNOWN
    assert (await shard.server.read(read_of(version=3), AT_ONCE_MS)).items == ITEMS
    assert await shard.adoptions.adopt(request_of(version=3), AT_ONCE_MS) == AdoptAnswer(0, 0)


async def test_a_fence_that_comes_while_a_layer_takes_effect_waits_for_it_and_lets_no_other_begin(
    shard: ShardRig, rig: Rig, staging: Staging, /
) -> None:
    """INV-ROWS-1: a manifest is not written in one step."""
    await with_layer(staging)
    await with_layer(Staging(rig, shard, job(1)))
    manifest, begun, may_go_on = shard.store.manifest, asyncio.Event(), asyncio.Event()
    change = manifest.change

    async def held(edit: ManifestEdit, then: Callable[[], None] = lambda: None) -> None:
        begun.set()
        await may_go_on.wait()
        await change(edit, then)

    manifest.change = held  # type: ignore[method-assign] # only when it happens is the test's
    async with asyncio.TaskGroup() as tasks:
        adopting = tasks.create_task(shard.adoptions.adopt(BY_TWO, AT_ONCE_MS))
        await begun.wait()
        preparing = tasks.create_task(shard.adoptions.before_fence(TopologyVersion(3)))
        other = tasks.create_task(refused(shard, Stale, job(1)))
        await asyncio.sleep(0.1)
        assert not preparing.done()
        may_go_on.set()
    assert adopting.result().layers == 1
    assert "about to be fenced off by 3" in other.result().message
    await shard.adoptions.before_fence(TopologyVersion(3))


async def test_rows_that_were_merged_in_part_when_the_fence_rose_are_merged_whole_when_asked_again(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await with_rows(staging)
    held = HeldStore(shard, calls=2)
    async with asyncio.TaskGroup() as tasks:
        refusing = tasks.create_task(refused(shard, OvertakenByFence))
        await held.begun.wait()
        await shard.follow(opened(version=3, fence=3))
        held.may_go_on.set()
    assert "only some of the rows" in refusing.result().message
    assert (await shard.server.read(read_of(version=3), AT_ONCE_MS)).items == ITEMS[:8]
    assert (await shard.adoptions.adopt(request_of(version=3), AT_ONCE_MS)).rows == len(ITEMS)
    assert (await shard.server.read(read_of(version=3), AT_ONCE_MS)).items == ITEMS


# -- many layers


def job(number: int) -> AdoptRequest:
    return msgspec.structs.replace(BY_TWO, transfer=TransferId(uuid.UUID(int=100 + number)))


async def bring(shard: ShardRig, rig: Rig, number: int) -> AdoptAnswer:
    """A layer of a job of its own."""
    await with_layer(Staging(rig, shard, job(number)))
    return await shard.adoptions.adopt(job(number), AT_ONCE_MS)


@runs_in(adopted_in, adopted_layers_max=6)
async def test_who_brings_more_layers_than_are_folded_waits(shard: ShardRig, rig: Rig, staging: Staging, /) -> None:
    for number in range(6):
        assert (await bring(shard, rig, number)).layers == 1
    shard.store.compaction_wanted.clear()
    with pytest.raises(Overloaded, match="has 6 layers, and with 1 more it would have over 6; they are") as caught:
        await bring(shard, rig, 6)
    assert "try again" in caught.value.advice
    assert shard.store.compaction_wanted.is_set(), "it does not wait for the next look"
    assert (await shard.adoptions.adopt(job(5), AT_ONCE_MS)).layers == 0, "what is there is there"
    await with_layer(staging)
    assert (await shard.adoptions.adopt(request_of(), AT_ONCE_MS)).layers == 1, "a copy of a replica comes whole"


class NotedPlace(Place):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, is_there=True)
        self.asked = asyncio.Event()

    async def compact(self, job: CompactionJob) -> CompactionResult:
        self.asked.set()
        return await super().compact(job)


async def test_layers_of_jobs_are_folded_like_others_while_a_session_is_open(
    shard: ShardRig, rig: Rig, _staging: Staging, /
) -> None:
    (stack,) = shard.store.stacks.values()
    place = NotedPlace(rig)
    folding = CompactionLoop(
        shard.store, shard.stacks, place.compact, lambda _stack: GcContext(now_s=1_000, replication_factor=1)
    )
    for number in range(4):
        await bring(shard, rig, number)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(folding.run(ShardMetrics(Metrics()), discard_event))
        await asyncio.sleep(CHECK_S * 1.5)
        assert not place.asked.is_set()
        await bring(shard, rig, 4)
        async with asyncio.timeout(CHECK_S / 4):
            await place.asked.wait()
        await asyncio.sleep(CHECK_S / 4)
        running.cancel()
    assert len(stack.entry.bases) < 4
    assert (await shard.server.read(read_of(), AT_ONCE_MS)).items == ITEMS
    assert (await shard.adoptions.adopt(job(4), AT_ONCE_MS)).layers == 0, (
        "a layer that was compacted away is not adopted again"
    )
