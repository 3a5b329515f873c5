"""The checker of INV-NODE-20 sees rows that a shard leaves visible, or leaves to the replay of its log."""

from types import SimpleNamespace
from typing import cast

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.ring_of_two import ALONE, FRESH, JOINED, JOINING, LEAVING, LEFT, OLD, at
from tests.unit.replica.shard_rig import OWN, ShardRig, in_shard, write_of

from ebla.feed.topology_view import View
from ebla.node.shard_process import ShardProcess
from ebla.sim.checkers.gained_ranges import GainedRangesLedger
from ebla.storage.manifest import HeldRanges

LEAVES_AT = 5


async def lose_and_gain(shard: ShardRig, *, late_write: bool = False) -> tuple[GainedRangesLedger, list[str]]:
    problems: list[str] = []
    ledger = GainedRangesLedger(fail=problems.append)
    stacks = shard.stacks

    async def prepare(view: View, _before: View | None) -> None:
        await unwatched(view)
        if late_write and view.version == LEAVES_AT:
            await shard.write(write_of(FRESH))

    unwatched = stacks.prepare
    process = SimpleNamespace(prepare=prepare, own=OWN, name="shard-0")
    ledger.watch(cast("ShardProcess", process), shard.store)

    async def watched(view: View) -> None:
        await process.prepare(view, None)

    stacks.prepare = watched  # type: ignore[method-assign]  # as the process would call it
    await shard.follow(at(2, ALONE))
    await shard.write(write_of(OLD))
    for version, second in ((3, JOINING), (4, JOINED), (LEAVES_AT, LEAVING), (6, LEFT)):
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


@runs_in(in_shard)
async def test_a_late_write_of_an_older_version_stays(shard: ShardRig, /) -> None:
    """It arrives between the mark that hides the range and the end of the preparation."""
    _, problems = await lose_and_gain(shard, late_write=True)
    assert not problems
