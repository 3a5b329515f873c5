"""The limits of a shard, from the node's options."""

import pytest

from ebla.node.shard import replica_limits, rocks_limits, store_limits
from ebla.options import CommitLogMode, NodeLimits, NodeOptions


def options(**limits: int) -> NodeOptions:
    return NodeOptions(data="d", limits=NodeLimits(**limits))


@pytest.mark.parametrize("mode", CommitLogMode)
def test_the_store_gets_the_mode_and_the_period_of_the_commit_log(mode: CommitLogMode) -> None:
    given = NodeOptions(data="d", commit_log=mode, limits=NodeLimits(commit_log_period_ms=7))
    log = store_limits(given, 1_024).log
    assert (log.mode, log.period_ms) == (mode, 7)


def test_a_write_is_durable_before_it_is_acknowledged_unless_asked_otherwise() -> None:
    assert store_limits(NodeOptions(data="d"), 1_024).log.mode is CommitLogMode.SYNC


def test_open_layers_free_space_and_memory_follow_the_options() -> None:
    given = options(free_disk_bytes_min=5, shard_cache_bytes_max=8 << 20, shard_unflushed_bytes_max=32 << 20)
    store, rocks = store_limits(given, 20_000), rocks_limits(given)
    assert (store.free_bytes_min, store.layers_open_max) == (5, 625)
    assert (rocks.cache_bytes, rocks.write_buffers_total_bytes) == (8 << 20, 32 << 20)


@pytest.mark.parametrize("stop_ms", [500, 5_000, 60_000])
def test_a_shard_has_ended_before_it_would_be_killed(stop_ms: int) -> None:
    limits = replica_limits(options(stop_ms=stop_ms))
    assert 0 < limits.drain_ms + limits.stop_ms < stop_ms * 0.6
