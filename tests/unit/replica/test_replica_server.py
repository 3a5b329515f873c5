"""The verbs of a shard: served while it may serve, and counted."""

import asyncio

import pytest
from tests.unit.replica.shard_rig import (
    OWN,
    HeldSyncs,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    with_state,
    write_of,
)
from tests.unit.storage.store_rig import plain

from ebla.model.errors import DeadlineExceeded, Outcome, Stale, Unavailable
from ebla.observe.exposition import expose
from ebla.observe.metrics import Metrics
from ebla.replica.replica_server import ReplicaParts, ReplicaServer
from ebla.replica.shard_metrics import ShardMetrics
from ebla.sim.workloads.store_rows import SMALL
from ebla.topology.tablet_map import tablet_map
from ebla.wire.row_messages import WriteRowsAnswer, WriteRowsRequest

ONE = tablet_map(SMALL.id, [(OWN,)])
ROW, OTHER = plain(1, 1, 5), plain(2, 1, 5)
POINT = (ROW[0], ROW[0] + b"\0")


class Served:
    def __init__(self, shard: ShardRig) -> None:
        self.serves = True
        self.metrics = Metrics()
        parts = ReplicaParts(
            shard.writer,
            shard.reader,
            shard.streams,
            shard.checkpoints,
            shard.adoptions,
            ShardMetrics(self.metrics),
            lambda: self.serves,
        )
        self.replica = ReplicaServer(parts)

    def counted(self, name: str) -> float:
        found = [line for line in expose(self.metrics).decode().splitlines() if line.startswith(f"ebla_{name} ")]
        return float(found[0].split()[1])


def test_nothing_is_served_without_the_right() -> None:
    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(ONE))
        served = Served(shard)
        served.serves = False
        with pytest.raises(Unavailable):
            await served.replica.write(WriteRowsRequest((write_of(ROW),)), 1_000)
        with pytest.raises(Unavailable):
            await served.replica.read(read_of(POINT), 1_000)
        with pytest.raises(Unavailable):
            served.replica.read_now(read_of(POINT))
        served.serves = True
        assert (await served.replica.read(read_of(POINT), 1_000)).items == ()

    in_shard(work)


def test_a_write_whose_shard_lost_the_right_meanwhile_is_not_acknowledged() -> None:
    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(ONE))
        served, syncs = Served(shard), HeldSyncs(shard.store)

        async def write() -> Outcome:
            with pytest.raises(Unavailable) as caught:
                await served.replica.write(WriteRowsRequest((write_of(ROW),)), 1_000)
            return caught.value.outcome

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            await syncs.begun.wait()
            served.serves = False
            syncs.may_end.set()
        assert writing.result() is Outcome.UNKNOWN

    in_shard(work)


def test_a_call_from_within_ends_by_its_deadline() -> None:
    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(ONE))
        served = Served(shard)
        HeldSyncs(shard.store)
        with pytest.raises(DeadlineExceeded):
            await served.replica.write(WriteRowsRequest((write_of(ROW),)), 100)
        assert shard.writer.waiting == 0

    in_shard(work)


def test_what_is_done_is_counted() -> None:
    async def work(shard: ShardRig) -> None:
        view = await shard.follow(small_cluster(ONE, version=4, fence=3))
        served = Served(shard)
        request = WriteRowsRequest((write_of(ROW, version=4), write_of(OTHER, version=4), write_of(ROW)))
        assert len((await served.replica.write(request, 1_000)).failures) == 1
        assert await served.replica.write(WriteRowsRequest((write_of(ROW, version=3),)), 1_000) == WriteRowsAnswer()
        assert (await served.replica.read(read_of(POINT, version=4), 1_000)).items == (ROW,)
        assert served.replica.read_now(read_of(POINT, version=4)) is not None
        with pytest.raises(Stale):
            served.replica.read_now(read_of(POINT))
        assert served.counted("replica_writes_total") == 3
        assert served.counted("replica_write_batches_total") == 2
        assert served.counted("replica_reads_total") == 2
        assert served.counted('replica_stale_total{kind="write"}') == 1
        assert served.counted('replica_stale_total{kind="read"}') == 1
        assert served.counted('replica_seconds_count{kind="write"}') == 2
        await shard.follow(with_state(view.snapshot, 5, 5))

    in_shard(work)
