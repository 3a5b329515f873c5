"""The verbs of a shard: served while it may serve, and counted."""

import asyncio
import uuid

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    DATA,
    OWN,
    HeldSyncs,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    unexpected_forward,
    with_sessions,
    with_state,
    write_of,
)
from tests.unit.replica.staged import OPEN, SESSION, Staging, request_of
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, plain

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import Outcome, Refused, Stale, Unavailable
from ebla.model.identity import TopologyVersion, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import StagingKind
from ebla.observe.exposition import expose
from ebla.observe.metrics import Metrics
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.shard_metrics import AdoptionResult, ShardMetrics
from ebla.storage.codec.staging_format import checkpoints_folder
from ebla.topology.tablet_map import tablet_map
from ebla.wire.frames import Introduction, Lane
from ebla.wire.row_messages import WriteRowsAnswer, WriteRowsRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest, CheckpointRequest
from ebla.wire.verbs import ADOPT, CHECKPOINT, FIND_TARGET

pytestmark = runs_in(in_shard)

ONE = tablet_map(SMALL.id, [(OWN,)])
CALL_S = 1.0
ROW, OTHER = plain(1, 1, 5), plain(2, 1, 5)
POINT = (ROW[0], ROW[0] + b"\0")


class Served:
    def __init__(self, shard: ShardRig) -> None:
        self.serves = True
        self.metrics = Metrics()
        self.replica = ReplicaServer(shard.context, unexpected_forward, ShardMetrics(self.metrics), lambda: self.serves)

    def counted(self, name: str) -> float:
        found = [line for line in expose(self.metrics).decode().splitlines() if line.startswith(f"ebla_{name} ")]
        return float(found[0].split()[1])


async def test_nothing_is_served_without_the_right(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(ONE))
    served = Served(shard)
    served.serves = False
    with pytest.raises(Unavailable):
        await served.replica.write(WriteRowsRequest((write_of(ROW),)), 1_000)
    with pytest.raises(Unavailable):
        await served.replica.read(read_of(POINT), 1_000)
    served.serves = True
    assert (await served.replica.read(read_of(POINT), 1_000)).items == ()


async def test_a_write_whose_shard_lost_the_right_meanwhile_is_not_acknowledged(shard: ShardRig, /) -> None:
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


async def test_what_is_done_is_counted(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(ONE, version=4, fence=3))
    served = Served(shard)
    request = WriteRowsRequest((write_of(ROW, version=4), write_of(OTHER, version=4), write_of(ROW)))
    assert len((await served.replica.write(request, 1_000)).failures) == 1
    assert await served.replica.write(WriteRowsRequest((write_of(ROW, version=3),)), 1_000) == WriteRowsAnswer()
    assert (await served.replica.read(read_of(POINT, version=4), 1_000)).items == (ROW,)
    assert not isinstance(run_eagerly(served.replica.read(read_of(POINT, version=4), 1_000)), Suspended)
    with pytest.raises(Stale):
        await served.replica.read(read_of(POINT), 1_000)
    assert served.counted("replica_writes_total") == 3
    assert served.counted("replica_write_batches_total") == 2
    assert served.counted("replica_reads_total") == 2
    assert served.counted('replica_stale_total{kind="write"}') == 1
    assert served.counted('replica_stale_total{kind="read"}') == 1
    assert served.counted('replica_seconds_count{kind="write"}') == 2
    await shard.follow(with_state(view.snapshot, 5, 5))


def call_of() -> IncomingCall:
    loop = asyncio.get_running_loop()
    return IncomingCall(
        peer=Introduction(host=OWN.host, cluster=None, cluster_name="test", process="bulk"),
        lane=Lane.DATA,
        expires_at=loop.time() + CALL_S,
        loop=loop,
    )


def test_what_becomes_of_an_adoption_is_counted() -> None:
    rig = Rig()

    async def work(shard: ShardRig) -> None:
        await shard.follow(with_sessions(small_cluster(ONE), OPEN))
        served = Served(shard)
        with pytest.raises(Refused):
            await served.replica.adopt(request_of(), call_of())
        staging = Staging(rig, shard, request_of())
        await staging.open(StagingKind.FILES)
        await staging.seal_layers([(WHOLE_RING, [ROW]), (WHOLE_RING, [OTHER])])
        for layers in (2, 0):
            assert (await served.replica.adopt(request_of(), call_of())).layers == layers
        rows = msgspec.structs.replace(request_of(), transfer=TransferId(uuid.UUID(int=42)))
        staging = Staging(rig, shard, rows)
        await staging.open(StagingKind.ROWS)
        await staging.seal_rows([ROW])
        assert (await served.replica.adopt(rows, call_of())).rows == 1
        counted = {end: served.counted(f'replica_adoptions_total{{end="{end}"}}') for end in AdoptionResult}
        assert counted == {"adopted": 2, "nothing_new": 1, "refused": 1, "failed": 0}
        assert served.counted("replica_adopted_layers_total") == 2
        assert served.counted("replica_adopted_rows_total") == 1
        taken = CheckpointRequest(
            session=SESSION,
            table=SMALL.id,
            range=WHOLE_RING,
            version=TopologyVersion(2),
            folder=f"{checkpoints_folder(DATA)}/a",
        )
        await served.replica.checkpoint(taken, call_of())
        assert served.counted("replica_checkpoints_total") == 1

    in_shard(work, rig=rig)


def test_a_right_that_is_lost_during_an_adoption_leaves_it_unknown() -> None:
    rig = Rig()

    async def work(shard: ShardRig) -> None:
        await shard.follow(with_sessions(small_cluster(ONE), OPEN))
        served = Served(shard)
        staging = Staging(rig, shard, request_of())
        await staging.open(StagingKind.FILES)
        await staging.seal_layers([(WHOLE_RING, [ROW])])
        adoptions = served.replica.adoptions
        adopt = adoptions.adopt

        async def adopt_and_lose(request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
            answer = await adopt(request, deadline_ms)
            served.serves = False
            return answer

        adoptions.adopt = adopt_and_lose  # type: ignore[method-assign] # only when the right goes is the test's
        with pytest.raises(Unavailable) as failure:
            await served.replica.adopt(request_of(), call_of())
        assert failure.value.outcome is Outcome.UNKNOWN
        with pytest.raises(Unavailable) as failure:
            await served.replica.adopt(request_of(), call_of())
        assert failure.value.outcome is Outcome.NOT_APPLIED

    in_shard(work, rig=rig)


async def test_whoever_names_folders_comes_in_by_the_local_door(shard: ShardRig, /) -> None:
    replica = Served(shard).replica
    async with asyncio.TaskGroup() as tasks:
        introduction = Introduction(host=OWN.host, cluster=None, cluster_name="test", process="shard-0")
        peers, local = [Server(tasks, introduction, lambda *_: None) for _ in range(2)]
        for server in (peers, local):
            replica.attach(server)
        replica.attach_local(local)
    assert ADOPT.number in peers.verbs
    assert set(local.verbs) - set(peers.verbs) == {CHECKPOINT.number, FIND_TARGET.number}
