"""The checker of INV-NODE-20 sees rows that a shard leaves visible, or leaves to the replay of its log."""

from types import SimpleNamespace
from typing import cast

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import OWN, ShardRig, in_shard, write_of
from tests.unit.replica.test_gained_ranges import ALONE, JOINED, JOINING, LEAVING, LEFT, OLD, at

from ebla.feed.topology_view import View
from ebla.node.shard_process import ShardProcess
from ebla.sim.checkers.gained_ranges import GainedRangesLedger
from ebla.storage.manifest import HeldRanges


async def lose_and_gain(shard: ShardRig) -> tuple[GainedRangesLedger, list[str]]:
    problems: list[str] = []
    ledger = GainedRangesLedger(fail=problems.append)
    stacks = shard.stacks

    async def prepare(view: View, _before: View | None) -> None:
        await unwatched(view)

    unwatched = stacks.prepare
    process = SimpleNamespace(prepare=prepare, own=OWN, name="shard-0")
    ledger.watch(cast("ShardProcess", process), shard.store)

    async def watched(view: View) -> None:
        await process.prepare(view, None)

    stacks.prepare = watched  # type: ignore[method-assign]  # as the process would call it
    await shard.follow(at(2, ALONE))
    await shard.write(write_of(OLD))
    for version, second in ((3, JOINING), (4, JOINED), (5, LEAVING), (6, LEFT)):
        await shard.follow(at(version, second))
    return ledger, problems


@runs_in(in_shard)
async def test_a_range_that_starts_empty_is_counted(shard: ShardRig, /) -> None:
    ledger, problems = await lose_and_gain(shard)
    assert not problems
    assert ledger.gains == 1


@runs_in(in_shard)
async def test_a_row_that_stays_is_found_in_the_stack_and_in_the_log(
    shard: ShardRig, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldRanges, "is_news_to", lambda _held, known: known is None)
    _, problems = await lose_and_gain(shard)
    assert any("is in its stack" in one for one in problems)
    assert any("is in records of its commit log" in one for one in problems)
    assert all(one.startswith("INV-NODE-20: shard-0 of ") for one in problems)
