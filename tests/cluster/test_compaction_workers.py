"""Compactions in worker processes, on real RocksDB: swapped in, abandoned, killed."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.store_rig import limits, open_new_store, plain, small_stack

from ebla.bulk.bulk_transfers import TransferConfig
from ebla.bulk.workers.bulk_workers import BulkWorkers, CompactionFailed
from ebla.bulk.workers.pool import NICENESS
from ebla.model.identity import ClusterId, HostId, ShardNumber
from ebla.node.bulk_process import BulkProcess
from ebla.node.context import NodeContext
from ebla.observe.event_reporter import discard_event
from ebla.options import CommitLogMode, NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.storage.columns.sidecar import open_sidecar
from ebla.storage.compaction.compaction_plan import CompactionJob, SwapOutcome
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import connect
from ebla.wire.verbs import COMPACT

pytestmark = runs_in(real_time)

TERMS = GcContext(now_s=1_000, replication_factor=3, repaired=())


@asynccontextmanager
async def real_store(folder: Path) -> AsyncIterator[tuple[ShardStore, FileDisk]]:
    disk = FileDisk()
    engine = RocksEngine(disk)
    store = await open_new_store(disk, SystemRng(), str(folder), engine, limits(CommitLogMode.PERIODIC))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        yield store, disk
        await store.close()
        running.cancel()
    disk.close()


@asynccontextmanager
async def bulk_workers() -> AsyncIterator[BulkWorkers]:
    workers = BulkWorkers()
    try:
        yield workers
    finally:
        await workers.close()
    assert not psutil.Process().children()


async def three_bases(store: ShardStore) -> tuple[Stack, CompactionJob]:
    """Overlapping layers, so that a compaction has something to decide."""
    stack = await small_stack(store)
    for timestamp in (1, 2, 3):
        rows = [plain(partition, 0, timestamp, timestamp) for partition in range(timestamp, 40)]
        await store.write(stack, sorted(rows))
        await store.seal(stack)
    job = await store.begin_compaction(stack, TERMS, whole=True)
    assert job is not None
    return stack, job


async def content(store: ShardStore, stack: Stack) -> object:
    return list((await store.open(stack)).scan())


async def test_a_compaction_in_a_worker_is_swapped_in(tmp_path: Path) -> None:
    async with real_store(tmp_path / "shard-0") as (store, disk), bulk_workers() as workers:
        stack, job = await three_bases(store)
        before = await content(store, stack)
        result = await workers.compact(job, 60)
        await _until(lambda: not workers.pool.pids)  # a compaction's worker is not kept
        assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED
        assert await content(store, stack) == before
        assert result.facts.rows == 39
        assert await open_sidecar(disk, job.output_folder) is not None


async def test_a_compaction_by_the_bulk_process_is_swapped_in(tmp_path: Path) -> None:
    """Over its socket, without a control process."""
    node = NodeContext(
        options=NodeOptions(data=str(tmp_path)),
        host=HostId(SystemRng().uuid()),
        cluster=ClusterId(SystemRng().uuid()),
        cluster_name="test",
        report=discard_event,
        pid=os.getpid(),
    )
    node.folder.lay_out()
    async with (
        TcpTransport(None, discard_event) as transport,
        bulk_workers() as workers,
        asyncio.TaskGroup() as tasks,
    ):
        environment = Environment(clock=SystemClock(), rng=SystemRng(), disk=FileDisk(), transport=transport)
        transfers = TransferConfig(
            staging_folder=str(node.folder.staging),
            checkpoints_folder=str(node.folder.checkpoints),
            flight=node.options.flight_address,
            peers_address=node.shard_socket(ShardNumber(1)),
            shard_address=node.shard_socket,
            machine="machine",
            isolation=FileIsolation(),
            building=workers,
        )
        bulk = tasks.create_task(BulkProcess(environment, node, workers, transfers).run())
        await _until(node.folder.bulk_socket.exists)
        context = node.peers_context(environment, "shard-0")
        caller, _ = await connect(context, node.bulk_socket, ConnectionTarget(Lane.DATA, node.host))
        async with real_store(tmp_path / "shard-0") as (store, _disk):
            stack, job = await three_bases(store)
            before = await content(store, stack)
            result = await caller.call(COMPACT, job, 60_000)
            assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED
            assert await content(store, stack) == before
        caller.close("done")
        bulk.cancel()


async def test_a_compaction_runs_at_low_priority_and_one_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    async with real_store(tmp_path / "shard-0") as (store, _disk), bulk_workers() as workers:
        stack, job = await three_bases(store)
        before = await content(store, stack)
        async with asyncio.TaskGroup() as tasks:
            compaction = tasks.create_task(_failure(workers, job))
            await _until(lambda: bool(workers.pool.pids))
            worker = psutil.Process(workers.pool.pids[0])
            assert worker.nice() == os.nice(0) + NICENESS
            worker.kill()
        assert "died" in compaction.result().message
        await store.abandon_compaction(job)
        assert await content(store, stack) == before


async def test_a_late_compaction_is_killed_and_reaped(tmp_path: Path) -> None:
    async with real_store(tmp_path / "shard-0") as (store, _disk), bulk_workers() as workers:
        _stack, job = await three_bases(store)
        with pytest.raises(CompactionFailed, match="longer than"):
            await workers.compact(job, 0.01)
        assert workers.pool.pids == []
        await store.abandon_compaction(job)


async def test_a_compaction_that_cannot_read_its_inputs_fails(tmp_path: Path) -> None:
    async with real_store(tmp_path / "shard-0") as (store, disk), bulk_workers() as workers:
        stack, job = await three_bases(store)
        before = await content(store, stack)
        disk.remove_folder(job.inputs[0].folder)
        with pytest.raises(CompactionFailed):
            await workers.compact(job, 60)
        await store.abandon_compaction(job)
        assert await content(store, stack) == before


async def _failure(workers: BulkWorkers, job: CompactionJob) -> CompactionFailed:
    with pytest.raises(CompactionFailed) as caught:
        await workers.compact(job, 60)
    return caught.value


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # another process cannot set an event of ours
            await asyncio.sleep(0)
