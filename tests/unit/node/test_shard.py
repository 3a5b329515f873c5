"""The limits of a shard, from the node's options."""

import pytest

from ebla.node.shard import store_limits
from ebla.node.shard_process import drain_ms, flush_ms
from ebla.options import CommitLogMode, NodeLimits, NodeOptions


def options(**limits: int) -> NodeOptions:
    return NodeOptions(data="d", limits=NodeLimits(**limits))


@pytest.mark.parametrize("mode", CommitLogMode)
def test_the_store_gets_the_mode_and_the_period_of_the_commit_log(mode: CommitLogMode) -> None:
    given = NodeOptions(data="d", commit_log=mode, limits=NodeLimits(commit_log_period_ms=7))
    log = store_limits(given, 1_024)
    assert (log.mode, log.period_ms) == (mode, 7)


def test_a_write_is_durable_before_it_is_acknowledged_unless_asked_otherwise() -> None:
    assert store_limits(NodeOptions(data="d"), 1_024).mode is CommitLogMode.SYNC


def test_open_layers_and_free_space_follow_the_options() -> None:
    store = store_limits(options(free_disk_bytes_min=5), 20_000)
    assert (store.free_bytes_min, store.layers_open_max) == (5, 625)


@pytest.mark.parametrize("stop_ms", [500, 5_000, 60_000])
def test_a_shard_has_ended_before_it_would_be_killed(stop_ms: int) -> None:
    limits = NodeLimits(stop_ms=stop_ms)
    assert 0 < drain_ms(limits) + flush_ms(limits) < stop_ms * 0.6
